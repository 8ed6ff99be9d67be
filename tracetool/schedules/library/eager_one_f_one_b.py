"""eager-1f1b: 1F1B with one more warm-up forward for every hop downstream, so that transfers overlap with compute.

Source: Zhuang et al., arXiv 2211.05322 (section on overlapping-friendly schedules); Paddle's
``pipeline_scheduler_Eager1F1B``, jaxpp's ``Eager1F1B``.
Phases on stage i: min(m, 2(p - i) - 2) forwards, (F, B) pairs, the remaining Bs. It is geopipe with one extra forward
for every boundary between ranks.
Shape: any p and m, one stage per rank (Paddle asks for m >= 2p - 1, below which the order is GPipe's upstream).
Memory: stage i holds min(m, 2(p - i) - 1) microbatches.
Bubble: (p - 1)(f + b) at equal stages and zero delay. With a delay c on every hop and receives posted ahead
(p - 1)(f + b + 2c) while 2c <= f + b (derived model of this tool, see geopipe).
"""

from __future__ import annotations

from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_one_chunk, warm_up_then_alternate


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """A warm-up of 2(p - i) - 2 forwards on stage i, ahead of the first pair."""
    require_one_chunk("eager-1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    orders = tuple(warm_up_then_alternate(i, 2 * (p - i) - 2, m) for i in range(p))
    return Schedule("eager-1f1b", shape, orders, blocking=False)


SCHEDULE = ScheduleKind(
    name="eager-1f1b",
    summary="1F1B with one more warm-up forward per hop downstream: transfers overlap with compute",
    source="arXiv 2211.05322; Paddle Eager1F1B",
    constraints="any p, m; v = 1",
    bubble="(p-1)(f+b), plus 2c(p-1) for a delay 2c <= f+b on every hop",
    in_flight="min(m, 2(p-i)-1)",
    build=build,
    recognition_rank=2,
)
