"""Whether measured steps and a Run are about the same model on the same ranks.

What the process of a measured row still held of configurations that it ran before.

Torch's stages have a receive buffer per microbatch, and keep those of the most microbatches they ever ran: a row of 8
microbatches that was measured after one of 16 in the same process has the buffers of 16. What a row says was allocated
between steps tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracetool.costs.borrowed import hop_bytes, known_layers
from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScenarioError
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
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


_TOLERANCE_BYTES = 1 << 22
"""Small tensors, rounding of blocks, and three digits of a GiB in the file."""


def left_over_microbatches(
    pipeline: Pipeline, schedule: Schedule, scenario: Scenario, measured_bytes: Sequence[int | None]
) -> tuple[int, tuple[int, ...]]:
    """For how many more microbatches a process had receive buffers than the step that was measured needs.

    Args:
        pipeline: What the step was predicted from.
        schedule: Its order.
        scenario: The rest of it.
        measured_bytes: What was allocated between its steps, per pipeline rank; None where the row does not say.

    Returns:
        The number and the bytes that these buffers take on each rank; zeros unless one number explains every rank, but
        for what all ranks have alike (stages that keep the examples they were made with).
    """
    shape = schedule.shape
    costs = MeasuredCosts(pipeline, scenario, schedule)
    own = [costs.between_steps_bytes(rank) for rank in range(shape.ranks)]
    per_microbatch = [(costs.receive_buffer_bytes(rank) or 0) // shape.microbatches for rank in range(shape.ranks)]
    nothing = 0, (0,) * shape.ranks
    known = [
        (measured - expected, buffers)
        for measured, expected, buffers in zip(measured_bytes, own, per_microbatch, strict=True)
        if measured is not None and expected is not None and buffers
    ]
    counts = {(more + _TOLERANCE_BYTES) // buffers for more, buffers in known}
    count = max(counts, default=0)
    rests = [more - count * buffers for more, buffers in known]
    if len(counts) != 1 or count < 1 or max(rests) - min(rests) > _TOLERANCE_BYTES:
        return nothing
    return count, tuple(count * buffers for buffers in per_microbatch)
