"""Whether measured steps and a Run are about the same model on the same ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracetool.costs.alike import hop_bytes, known_layers
from tracetool.errors import ScenarioError
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.model.pipeline import Pipeline
    from tracetool.reconstruction import Reconstruction
    from tracetool.validation.measured import MeasuredStep

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


def layers_of(model: Mapping[str, Any]) -> int | None:
    """Number of layers that a file's model has: a number, or one per stage; None if it does not say."""
    layers = model.get("layers")
    if isinstance(layers, list) and layers and all(type(n) is int for n in layers):
        return sum(layers)
    return layers if type(layers) is int else None


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
