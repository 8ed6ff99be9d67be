"""Lower bounds of steps, in closed form, for very many candidates at once.

Of a plan whose stages take F and B (input gradients I of it, all of it where backwards are whole), whose messages take
c, with m microbatches:

* rank r begins no earlier than a forward gets to one of its stages, computes m (F + B) of all of them, and has its tail
  to do after that;
* after its last I, a backward has to get back to stage 0, whose whole backward is behind it, and the tail of stage 0's
  rank: until then r has computed m (F + I);
* where batches of messages block, r waits for each that it sends, but for the last;
* a link between places carries its messages one after another: m times what those of all hops occupy it for.

A device holds its static bytes and at least one microbatch of one stage. These are bounds of what replay gives, not of
what hardware does.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracetool.estimates.form import FIGURES, HeldMost
from tracetool.estimates.training import traits_of
from tracetool.schedules import kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.estimates.stages import JobCosts
    from tracetool.estimates.training import Training
    from tracetool.explore.candidates import Base, PlanOrder
    from tracetool.explore.judge import Judge
    from tracetool.model.schedule import PipelineShape

    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bools = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class PlanBounds:
    """Of every candidate, in the order of bases, orders and uses.

    Attributes:
        base: Number of its base.
        within: Which of its base's plans it is.
        compute_ns: What computes, messages on the critical path and the tail take at least.
        link_ns: What the busiest link takes at least.
        memory_bytes: What the fullest device holds at least.
    """

    base: Int64s
    within: Int64s
    compute_ns: Int64s
    link_ns: Int64s
    memory_bytes: Int64s

    @property
    def arrays(self) -> dict[str, Int64s]:
        """All of them by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def step_ns(self) -> Int64s:
        """The higher of both."""
        return np.maximum(self.compute_ns, self.link_ns)


BOUNDS = tuple(each.name for each in fields(PlanBounds))


class _Kind(NamedTuple):
    """What stacked rows have in common."""

    shape: PipelineShape
    split: bool
    grouped: bool


class _BoundRow(NamedTuple):
    """One pipeline of candidates that are alike to the bounds."""

    number: int
    figures: list[int]
    tails: list[int]
    link_ns: int


def bounds_of(judge: Judge, bases: Sequence[Base]) -> PlanBounds:
    """PlanBounds of all plans of bases.

    Args:
        judge: Knows their costs.
        bases: Which.
    """
    stacks: dict[_Kind, list[_BoundRow]] = defaultdict(list)
    memory: list[int] = []
    microbatches: list[int] = []
    places: list[Int64s] = []
    for base in bases:
        alike: dict[tuple[object, ...], int] = {}
        known: dict[object, tuple[list[int], int]] = {}
        numbers = []
        for number in range(base.size):
            order, use = base.orders[number // len(base.uses)], base.uses[number % len(base.uses)]
            key = _sort(order, base.at(number).training), use
            if key not in alike:
                alike[key] = len(memory)
                _add(judge, base, number, len(memory), stacks, memory, known)
                microbatches.append(base.plan.training.microbatches)
            numbers.append(alike[key])
        places.append(np.array(numbers, np.int64))
    compute = np.zeros(len(memory), np.int64)
    link = np.zeros(len(memory), np.int64)
    counts = np.array(microbatches, np.int64)
    for kind, rows in stacks.items():
        at = np.array([row.number for row in rows], np.int64)
        figures = np.array([row.figures for row in rows], np.int64)[:, 1:].reshape(len(rows), -1, FIGURES)
        tails = np.array([row.tails for row in rows], np.int64)
        np.maximum.at(compute, at, _compute_ns(kind, figures, tails, counts[at]))
        np.maximum.at(link, at, np.array([row.link_ns for row in rows], np.int64))
    sizes = [len(of) for of in places]
    alike_at = np.concatenate(places) if places else np.zeros(0, np.int64)
    return PlanBounds(
        base=np.repeat(np.arange(len(bases)), sizes),
        within=np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, np.int64),
        compute_ns=compute[alike_at],
        link_ns=link[alike_at],
        memory_bytes=np.array(memory, np.int64)[alike_at] if memory else np.zeros(0, np.int64),
    )


def joined(parts: Sequence[PlanBounds], sizes: Sequence[int]) -> PlanBounds:
    """Bounds of bases one after another.

    Args:
        parts: Of some bases each, numbered from 0.
        sizes: How many bases these are.
    """
    begins = [sum(sizes[:number]) for number in range(len(sizes))]
    moved = [replace(part, base=part.base + begin) for part, begin in zip(parts, begins, strict=True)]
    return PlanBounds(**{name: np.concatenate([part.arrays[name] for part in moved]) for name in moved[0].arrays})


def _sort(order: PlanOrder, training: Training) -> tuple[object, ...]:
    """What an order is to the bounds."""
    traits = traits_of(training.order_name, training.chunks)
    grouped = traits.blocks and order.p2p is None
    placement = kind_of(order.schedule).placement if order.schedule else "loop"
    return order.chunks, placement, traits.splits, training.messages_hold_up, grouped


def _add(
    judge: Judge,
    base: Base,
    within: int,
    number: int,
    stacks: dict[_Kind, list[_BoundRow]],
    memory: list[int],
    known: dict[object, tuple[list[int], int]],
) -> None:
    plan = base.at(within)
    how = plan.training
    most = 0
    traits = traits_of(how.order_name, how.chunks)
    kind = _Kind(_bare(how), traits.splits, how.p2p is None and traits.blocks)
    for over, costs in judge.costs(plan):
        key = kind, how.messages_hold_up, plan.sharing, over.line
        if key not in known:
            figures = costs.figures()
            known[key] = figures, _busiest_ns(how, figures, over.line.places) if over.line.places else 0
        figures, link = known[key]
        tails = costs.tails_ns()
        stacks[kind].append(_BoundRow(number, figures, tails, link + min(tails) if link else 0))
        most = max(most, _least_bytes(how, costs))
    memory.append(most)


def _bare(how: Training) -> PipelineShape:
    shape = how.shape
    return type(shape)(shape.ranks, 1, shape.chunks, shape.placement)


def _least_bytes(how: Training, costs: JobCosts) -> int:
    last = how.shape.rank_of(how.shape.stages - 1)
    one = HeldMost(1, 0)
    return max(
        costs.peaks_bytes([HeldMost(0, 1) if rank == last and how.chunks == 1 else one for rank in range(how.stages)])
    )


def _busiest_ns(how: Training, figures: Sequence[int], places: Sequence[int]) -> int:
    """What messages occupy the link for that they occupy longest."""
    busy: dict[tuple[int, int], int] = defaultdict(int)
    shape = how.shape
    for stage in range(shape.stages - 1):
        one, other = places[shape.rank_of(stage)], places[shape.rank_of(stage + 1)]
        if one != other:
            busy[one, other] += figures[1 + FIGURES * stage + 4]
            busy[other, one] += figures[1 + FIGURES * (stage + 1) + 6]
    return how.microbatches * max(busy.values(), default=0)


def _compute_ns(kind: _Kind, figures: Int64s, tails: Int64s, microbatches: Int64s) -> Int64s:
    shape = kind.shape
    forward, backward = figures[:, :, 0], figures[:, :, 1]
    through = figures[:, :, 2].copy() if kind.split else backward.copy()
    through[:, 0] = backward[:, 0]
    onward = figures[:, :, 4] + figures[:, :, 5]
    back = figures[:, :, 6] + figures[:, :, 7]
    # When a stage's first forward may begin, and what a backward has before it once that stage is through.
    begins = np.zeros_like(forward)
    begins[:, 1:] = np.cumsum(forward + onward, axis=1)[:, :-1]
    ahead = np.zeros_like(forward)
    ahead[:, 1:] = np.cumsum(through[:, :-1] + back[:, 1:], axis=1)
    m = microbatches
    found = np.zeros(len(figures), np.int64)
    for rank in range(shape.ranks):
        stages = list(shape.stages_of(rank))
        first = begins[:, stages].min(axis=1)
        waits = m * onward[:, stages].sum(axis=1) + (m - 1) * back[:, stages].sum(axis=1) if kind.grouped else 0
        whole = first + m * (forward + backward)[:, stages].sum(axis=1) + waits + tails[:, rank]
        halves = first + m * (forward + through)[:, stages].sum(axis=1) + waits
        halves += ahead[:, stages].min(axis=1) + tails[:, shape.rank_of(0)]
        found = np.maximum(found, np.maximum(whole, halves))
    return found
