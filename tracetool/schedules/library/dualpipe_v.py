"""dualpipev: DualPipe cut in half and folded: two stages per rank in a V, without a second copy of the weights.

Source: Sea AI Lab's "cut in half" of DualPipe; deepseek-ai/DualPipe ``dualpipev.py``, torch's ``ScheduleDualPipeV``.
Steps: see ``dual_steps``, with all p ranks as the half.
Shape: v = 2 in a V; m at least 2p.
Memory: 2p + 1 microbatches of half stages on every rank.
Bubble: at most (p - 1)(f&b + b - 3w) at equal stages and zero delay, f, b, w those of a half stage and f&b a forward
and backward that run as one (``overlap_ratio`` of f + b); exact at f = i = w and f&b = f + b.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import eight_steps, require_chunks


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Phase 0 is the way down the V, phase 1 the way up."""
    require_chunks("dualpipev", shape, placement="v", most=2)
    p, m = shape.ranks, shape.microbatches
    if m < 2 * p:
        raise UnsupportedShape(
            f"dualpipev needs at least as many microbatches as stages ({2 * p}), got {m}.", hint=f"use {2 * p} or more"
        )
    rows = [eight_steps(rank, p, [(stage, range(m)) for stage in shape.stages_of(rank)]) for rank in range(p)]
    orders, overlaps = zip(*rows, strict=True)
    return Schedule("dualpipev", shape, orders, blocking=False, overlaps=overlaps)


SCHEDULE = ScheduleKind(
    name="dualpipev",
    summary="DualPipe folded into a V of two stages per rank: no second copy of the weights",
    source="deepseek-ai/DualPipe dualpipev.py; torch ScheduleDualPipeV",
    constraints="v = 2 in a V; m >= 2p; a trace whose backward is or can be split",
    bubble="(p-1)(f&b+b-3w) at most, of half stages; f&b a forward and backward run as one",
    in_flight="2p+1 stages of half the size",
    build=build,
    least_chunks=2,
    placement="v",
    heeds=frozenset({"overlap ratio"}),
    recognition_rank=1,
)
