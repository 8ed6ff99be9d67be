"""What the process of a measured row still held of configurations that it ran before.

Torch's stages have a receive buffer per microbatch, and keep those of the most microbatches they ever ran: a row of 8
microbatches that was measured after one of 16 in the same process has the buffers of 16. What a row says was allocated
between steps tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.costs.measured import MeasuredCosts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule

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
