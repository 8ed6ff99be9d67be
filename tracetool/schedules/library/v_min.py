"""V-Min: two stages per rank in a V with a third of the activations of 1F1B.

Source: Qi et al., arXiv 2405.15362; the block of sail-sg's ``zbv_greedy.py``. Without its reordering of the fill and
the drain (see ``v_block``).
Block on rank i: F at i and 2p - i - 1, I at 2p + d + i and 4p + d - i - 1, with d = 0, or 2 where 3 divides p.
Shape: v = 2 in a V; any p and m.
Memory: (p + 4) // 3 microbatches of whole stages on the fullest rank, for m >= p.
Bubble: at f = i = w = t of a half stage and zero delay (4p - 5 + 2 [3 divides p]) t for m >= 2: about 2/3 of
1F1B's; more where they differ, as the block leaves no slack (derived model of this tool).
"""

from __future__ import annotations

from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import Block, repeat_block, require_chunks


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """The block of each rank, once per microbatch."""
    require_chunks("v-min", shape, placement="v", most=2)
    orders = tuple(repeat_block(rank, shape, _block(rank, shape.ranks)) for rank in range(shape.ranks))
    return Schedule("v-min", shape, orders, blocking=False)


def _block(rank: int, p: int) -> Block:
    apart = 0 if p % 3 else 2
    return rank, 2 * p - rank - 1, 2 * p + apart + rank, 4 * p + apart - rank - 1


SCHEDULE = ScheduleKind(
    name="v-min",
    summary="two stages per rank in a V with a third of the activations of 1F1B",
    source="arXiv 2405.15362, sail-sg zbv_greedy.py (without reordering the fill and the drain)",
    constraints="v = 2 in a V; any p, m; a trace whose backward is or can be split",
    bubble="about 2/3 of 1F1B's: (4p-5, or 4p-3 if 3 divides p)t at f = i = w = t of half a stage",
    in_flight="(p + 4) // 3",
    build=build,
    aliases=("ZBV-min",),
    least_chunks=2,
    placement="v",
    recognition_rank=3,
)
