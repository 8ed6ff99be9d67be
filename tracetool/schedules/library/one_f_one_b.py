"""1F1B: a short warm-up, then one forward and one backward in turn.

Source: Narayanan et al., arXiv 1806.03377 (PipeDream-Flush, arXiv 2006.09503); Megatron-LM's
``forward_backward_pipelining_without_interleaving`` and torch's ``Schedule1F1B``.
Phases on stage i: min(m, p - i - 1) forwards, (F, B) pairs, the remaining Bs.
Shape: any p and m, one stage per rank.
Memory: stage i holds min(m, p - i) microbatches.
Bubble: (p - 1)(f + b) at equal stages and zero delay.
"""

from __future__ import annotations

from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_one_chunk, warm_up_then_alternate


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """A warm-up of p - i - 1 forwards on stage i."""
    require_one_chunk("1f1b", shape)
    p, m = shape.ranks, shape.microbatches
    return Schedule("1f1b", shape, tuple(warm_up_then_alternate(i, p - i - 1, m) for i in range(p)))


SCHEDULE = ScheduleKind(
    name="1f1b",
    summary="one forward, one backward in turn",
    source="arXiv 2006.09503; Megatron-LM, torch Schedule1F1B",
    constraints="any p, m; v = 1",
    bubble="(p-1)(f+b)",
    in_flight="min(m, p-i)",
    build=build,
    aliases=("pipedream-flush",),
    recognition_rank=0,
    is_compared=True,
)
