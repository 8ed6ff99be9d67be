"""V-Half: two stages per rank in a V with half the activations of 1F1B.

Source: Qi et al., arXiv 2405.15362; the block of sail-sg's ``zbv_greedy.py``. Without its reordering of the fill and
the drain (see ``v_block``).
Block on rank i: F at 2i and 3p - i - 2, I at 3p + d + 2i - 1 and 6p + d - i - 2, with d = 0 for odd p, 3 for even p.
Shape: v = 2 in a V; any p and m.
Memory: (p + 2) // 2 microbatches of whole stages on the fullest rank for m >= p, on every rank for m > p.
Bubble: at f = i = w = t of a half stage and zero delay (7 floor(p / 2) - 2 [p even]) t for m > p / 2: about
7/12 of 1F1B's (derived model of this tool; the paper reorders and comes to about a half).
"""

from __future__ import annotations

from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import Block, repeat_block, require_chunks


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """The block of each rank, once per microbatch."""
    require_chunks("v-half", shape, placement="v", most=2)
    orders = tuple(repeat_block(rank, shape, _block(rank, shape.ranks)) for rank in range(shape.ranks))
    return Schedule("v-half", shape, orders, blocking=False)


def _block(rank: int, p: int) -> Block:
    apart = 0 if p % 2 else 3
    return 2 * rank, 3 * p - rank - 2, 3 * p + apart + 2 * rank - 1, 6 * p + apart - rank - 2


SCHEDULE = ScheduleKind(
    name="v-half",
    summary="two stages per rank in a V with half the activations of 1F1B",
    source="arXiv 2405.15362, sail-sg zbv_greedy.py (without reordering the fill and the drain)",
    constraints="v = 2 in a V; any p, m; a trace whose backward is or can be split",
    bubble="about 7/12 of 1F1B's: (7(p//2) - 2 if p is even)t at f = i = w = t of half a stage",
    in_flight="(p + 2) // 2",
    build=build,
    aliases=("ZBV-half",),
    least_chunks=2,
    placement="v",
    recognition_rank=2,
)
