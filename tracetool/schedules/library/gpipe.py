"""GPipe: all forwards, then all backwards.

Source: Huang et al., arXiv 1811.06965; the order of torch's ``ScheduleGPipe``.
Phases: F x m, B x m on every stage.
Shape: any p and m, one stage per rank.
Memory: every stage holds m microbatches.
Bubble: (p - 1)(f + b) at equal stages and zero delay.
"""

from __future__ import annotations

from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_one_chunk, warm_up_then_alternate


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """All forwards first: a warm-up of m."""
    require_one_chunk("gpipe", shape)
    m = shape.microbatches
    orders = tuple(warm_up_then_alternate(r, m, m) for r in range(shape.ranks))
    return Schedule("gpipe", shape, orders, blocking=False, batched=True)


SCHEDULE = ScheduleKind(
    name="gpipe",
    summary="all forwards, then all backwards",
    source="arXiv 1811.06965",
    constraints="any p, m; v = 1",
    bubble="(p-1)(f+b)",
    in_flight="m",
    build=build,
    recognition_rank=1,
    is_compared=True,
)
