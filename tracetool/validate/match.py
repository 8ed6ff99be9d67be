"""Whether measured steps and a Run are about the same model on the same ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracetool.errors import ScenarioError
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.model.pipeline import Pipeline
    from tracetool.reconstruct import Reconstruction
    from tracetool.validate.measured import MeasuredStep

_BYTES = {
    "bfloat16": 2, "bf16": 2, "float16": 2, "fp16": 2, "half": 2,
    "float32": 4, "fp32": 4, "float": 4, "float64": 8, "fp64": 8,
}  # fmt: skip


def check_row(step: MeasuredStep, model: Mapping[str, Any], run: Reconstruction) -> None:
    """Check that a row is about the Run's model and ranks, as far as both tell.

    Raises:
        ScenarioError: If they differ, saying in what.
    """
    differing = [
        f"{name} is {row} in the row and {ours} in the Run"
        for name, row, ours in (
            ("pipeline_ranks", step.pipeline_ranks, run.pipeline.observed.shape.ranks),
            ("tensor_parallel", step.tensor_parallel, _extent(run, "tp")),
            ("data_parallel", step.data_parallel, _extent(run, "dp")),
            ("the number of layers", layers_of(model), known_layers(run.pipeline)),
        )
        if row is not None and ours is not None and row != ours
    ]
    differing += _payload_differs(step, model, run.pipeline)
    if differing:
        raise ScenarioError(f"{'; '.join(differing)}.")


def mismatch(one: Pipeline, other: Pipeline) -> str | None:
    """In what two Runs' pipelines differ that one's figures could not stand for the other's, or None."""
    for name, a, b in (
        ("pipeline ranks", one.observed.shape.ranks, other.observed.shape.ranks),
        ("layers", known_layers(one), known_layers(other)),
        ("bytes per message", hop_bytes(one), hop_bytes(other)),
    ):
        if a is not None and b is not None and a != b:
            return f"{a:,} {name} in one Run, {b:,} in the other"
    return None


def layers_of(model: Mapping[str, Any]) -> int | None:
    """Number of layers that a file's model has: a number, or one per stage; None if it does not say."""
    layers = model.get("layers")
    if isinstance(layers, list) and layers and all(type(n) is int for n in layers):
        return sum(layers)
    return layers if type(layers) is int else None


def known_layers(pipeline: Pipeline) -> int | None:
    """Number of layers that a Run's stages hold; None unless all of them are known."""
    per_stage = [None if stage.layers is None else len(stage.layers.layers) for stage in pipeline.stages]
    known = [count for count in per_stage if count is not None]
    return sum(known) if len(known) == len(per_stage) else None


def hop_bytes(pipeline: Pipeline) -> int | None:
    """Bytes of one activation between stages; None if unknown or not the same everywhere."""
    sizes = {stage.forward_payload_bytes for stage in pipeline.stages[:-1]}
    return sizes.pop() if len(sizes) == 1 else None


def _payload_differs(step: MeasuredStep, model: Mapping[str, Any], pipeline: Pipeline) -> list[str]:
    """Messages of another size than micro-batch x sequence x hidden, whole or split by tensor parallelism."""
    factors = [model.get(key) for key in ("mbs", "seq", "h")]
    width = _BYTES.get(str(model.get("dtype")).lower().removeprefix("torch."))
    sent = hop_bytes(pipeline)
    if sent is None or width is None:
        return []
    whole = width
    for factor in factors:
        if type(factor) is not int:
            return []
        whole *= factor
    if sent == whole or sent * step.tensor_parallel == whole:
        return []
    shape = " x ".join(map(str, factors))
    return [
        f"a message is {format_size(whole)} ({shape} {model['dtype']}) in the file and {format_size(sent)} in the Run"
    ]


def _extent(run: Reconstruction, dimension: str) -> int | None:
    """Ranks along a parallel dimension; None if the Run does not tell."""
    places = {getattr(c, dimension) for c in run.coordinates}
    return len(places) if places and None not in places else None
