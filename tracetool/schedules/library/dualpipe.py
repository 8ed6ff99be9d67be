"""dualpipe: two opposed pipelines over the same ranks, forwards of the one run as one with backwards of the other.

Source: DeepSeek-V3 (arXiv 2412.19437), deepseek-ai/DualPipe ``dualpipe.py``. Steps: see ``dual_steps``.
Every rank holds two stages, one of each copy of the model: weights, gradients and optimizer are there twice, and the
two copies have to sum their gradients after the step, which is not modelled.
Shape: even p, one measured stage per rank; m even (half of them in either direction) and at least 2p.
Memory: p + 1 microbatches of whole stages on every rank, static memory of two stages.
Bubble: at most (p/2 - 1)(f&b + b - 3w) at equal stages and zero delay, f&b a forward and backward that run as one
(``overlap_ratio`` of f + b), w the weight part of b; exact at f = i = w and f&b = f + b.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import eight_steps, require_copies


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """The steps of the outer ranks run their own end's microbatches first."""
    require_copies("dualpipe", shape)
    p, m = shape.ranks, shape.microbatches
    if p % 2 or m % 2 or m < 2 * p:
        raise UnsupportedShape(
            f"dualpipe needs an even number of ranks and an even number of microbatches, at least twice the ranks; "
            f"got {p} ranks and {m} microbatches.",
            hint=f"use an even number from {2 * p} on" if p % 2 == 0 else "use a trace with an even number of ranks",
        )
    rows = []
    for rank in range(p):
        phases = [(stage, shape.microbatches_of(stage)) for stage in shape.stages_of(rank)]
        rows.append(eight_steps(min(rank, p - 1 - rank), p // 2, phases if rank < p // 2 else phases[::-1]))
    orders, overlaps = zip(*rows, strict=True)
    return Schedule("dualpipe", shape, orders, blocking=False, overlaps=overlaps)


SCHEDULE = ScheduleKind(
    name="dualpipe",
    summary="two opposed pipelines, forwards of the one run as one with backwards of the other",
    source="arXiv 2412.19437; deepseek-ai/DualPipe dualpipe.py",
    constraints="even p, two copies of one stage per rank; m even, >= 2p; a trace whose backward is or can be split",
    bubble="(p/2-1)(f&b+b-3w) at most, w of b for the weight gradient, f&b a forward and backward run as one",
    in_flight="p+1, and the weights twice",
    build=build,
    least_chunks=2,
    placement="bidirectional",
    heeds=frozenset({"overlap ratio"}),
    recognition_rank=0,
)
