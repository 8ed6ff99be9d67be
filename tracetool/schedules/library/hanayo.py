"""hanayo: waves over the ranks, down and up again, as if two opposed pipelines had been unfolded into one.

Source: Liu et al., arXiv 2308.15762; the order of CrossPipe's ``Hanayo1F1BPipeline``. W waves are v = 2W stages per
rank that turn round at either end. The order is drawn with a forward for one slot and a backward for two: the first
microbatch of a group of p goes straight through; slots just ahead of its second forward (p - i - 1 on rank i) and its
first backward (i) stay empty; the others take the first free slots. The next group begins when the first microbatch
of this one is done.
Shape: even v, stages in waves (V placement); m a multiple of p.
Memory: at most p microbatches of whole stages.
Bubble: with a backward twice as long as a forward f of a whole rank, and zero delay, 2(p - 1) f / W for m = p, a ratio
of (2p - 2) / (3pW + 2p - 2); each further group of p adds (2p - 3) f / v (derived model of this tool).
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
_SLOTS = {F: 1, B: 2}


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Microbatch by microbatch into the first free slots of each rank."""
    require_chunks("hanayo", shape, placement="v")
    if shape.chunks % 2 or shape.microbatches % shape.ranks:
        raise UnsupportedShape(
            f"hanayo needs two stages per rank and wave and groups of {shape.ranks} microbatches, "
            f"got {shape.chunks} stages per rank and {shape.microbatches} microbatches.",
            hint=f"use an even number of chunks and a multiple of {shape.ranks} microbatches",
        )
    return Schedule("hanayo", shape, _Slots(shape).orders(), blocking=False)


class _Slots:
    """Who has which slot on each rank."""

    def __init__(self, shape: PipelineShape) -> None:
        self._shape = shape
        self._path = [(s, F) for s in range(shape.stages)] + [(s, B) for s in reversed(range(shape.stages))]
        self._placed: list[list[tuple[int, Action]]] = [[] for _ in range(shape.ranks)]
        # Per rank, for a slot that is taken a later one to look at.
        self._beyond: list[dict[int, int]] = [{} for _ in range(shape.ranks)]

    def orders(self) -> tuple[tuple[Action, ...], ...]:
        """All groups, one after another."""
        p, start = self._shape.ranks, 0
        for first in range(0, self._shape.microbatches, p):
            slots = self._place(first, start)
            for rank in range(p):
                ahead_of = slots[2 * p - 1 - rank, F]
                self._close(rank, ahead_of - (p - 1 - rank), ahead_of)
                ahead_of = slots[self._shape.stages - 1 - rank, B]
                self._close(rank, ahead_of - rank, ahead_of)
            for microbatch in range(first + 1, first + p):
                self._place(microbatch, start)
            start = slots[0, B] + _SLOTS[B]
        return tuple(tuple(action for _, action in sorted(placed)) for placed in self._placed)

    def _place(self, microbatch: int, start: int) -> dict[tuple[int, ActionKind], int]:
        """Give a microbatch the first free slots on its path from ``start`` on; returns the slot of each pass."""
        slots = {}
        slot = start
        for stage, kind in self._path:
            rank = self._shape.rank_of(stage)
            slot = self._free(rank, slot)
            while kind is B and (after := self._free(rank, slot + 1)) != slot + 1:
                slot = after
            self._placed[rank].append((slot, Action(stage, kind, microbatch)))
            slots[stage, kind] = slot
            self._close(rank, slot, slot + _SLOTS[kind])
            slot += _SLOTS[kind]
        return slots

    def _close(self, rank: int, first: int, end: int) -> None:
        for slot in range(max(0, first), end):
            self._beyond[rank].setdefault(slot, slot + 1)

    def _free(self, rank: int, slot: int) -> int:
        """The first free slot of a rank from ``slot`` on."""
        beyond, taken = self._beyond[rank], []
        while slot in beyond:
            taken.append(slot)
            slot = beyond[slot]
        for passed in taken:
            beyond[passed] = slot
        return slot


SCHEDULE = ScheduleKind(
    name="hanayo",
    summary="waves over the ranks, v/2 of them: stages turn round at either end",
    source="arXiv 2308.15762; C-TC/Megatron-LM Hanayo1F1BPipeline",
    constraints="even v (two stages per rank and wave), V placement; m a multiple of p",
    bubble="(4(p-1) + (m/p-1)(2p-3))f/v at b = 2f",
    in_flight="p (v stages each)",
    build=build,
    aliases=("wave",),
    least_chunks=2,
    placement="v",
    recognition_rank=4,
)
