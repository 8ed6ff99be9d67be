"""Lower bounds of steps, in closed form, for very many candidates at once.

Of a plan whose stages take F and B (input gradients I of it, all of it where backwards are whole), whose messages take
c, with m microbatches:

* rank r begins no earlier than a forward gets to one of its stages, computes m (F + B) of all of them, and has its tail
  to do after that;
* after its last I, a backward has to get back to stage 0, whose whole backward is behind it, and the tail of stage 0's
  rank: until then r has computed m (F + I);
* where batches of messages block, r waits for each that it sends, but for the last;
* a link between places carries its messages one after another: m times what those of all hops occupy it for.

A device holds its static bytes and at least one microbatch of one stage. Plans that need more than a device has are not
bounded otherwise. These are bounds of what replay gives, not of what hardware does.

Plans of a base are alike where order and use are so to the bounds. Of those that differ in their tails alone
everything else is worked out once, and of pipelines of one shape together.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracetool.estimates.form import FIGURES, HeldMost
from tracetool.estimates.training import default_order, holds_up, traits_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.estimates.stages import JobCosts, RankPlace
    from tracetool.estimates.training import Training
    from tracetool.explore.candidates import Base, PlanOrder
    from tracetool.explore.judge import Judge
    from tracetool.explore.plan import JobPlan
    from tracetool.model.schedule import PipelineShape

    Int64s = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class PlanBounds:
    """Of every candidate, in the order of bases, orders and uses.

    Attributes:
        base: Number of its base.
        within: Which of its base's plans it is.
        compute_ns: What computes, messages on the critical path and the tail take at least; 0 of what cannot fit.
        link_ns: What the busiest link takes at least; likewise.
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

    def with_others(self, others: PlanBounds) -> PlanBounds:
        """Those of other bases as well, in the order of bases."""
        order = np.argsort(np.concatenate([self.base, others.base]), kind="stable")
        return PlanBounds(
            **{name: np.concatenate([mine, others.arrays[name]])[order] for name, mine in self.arrays.items()}
        )


BOUNDS = tuple(each.name for each in fields(PlanBounds))


class _Kind(NamedTuple):
    """What stacked pipelines have in common."""

    shape: PipelineShape
    split: bool
    grouped: bool


class _OrderSort(NamedTuple):
    """What an order is to the bounds."""

    chunks: int
    placement: str
    splits: bool
    holds_up: bool
    grouped: bool


@dataclass
class _Stack:
    """Pipelines of one kind, and plans that have them.

    Attributes:
        figures: Of each pipeline, times of its stages.
        microbatches: Of each.
        link_ns: Of each, what the busiest link is occupied for.
        plans: Of alike plans, their number.
        pipelines: Of each of these, the pipeline by its number here.
        tails: Of each, what ranks do after their last backward, by what they have of the model.
    """

    figures: list[Int64s] = field(default_factory=list)
    microbatches: list[int] = field(default_factory=list)
    link_ns: list[int] = field(default_factory=list)
    plans: list[int] = field(default_factory=list)
    pipelines: list[int] = field(default_factory=list)
    tails: list[Mapping[RankPlace, int]] = field(default_factory=list)


def bounds_of(judge: Judge, bases: Sequence[Base]) -> PlanBounds:
    """PlanBounds of all plans of bases.

    Args:
        judge: Knows their costs.
        bases: Which.
    """
    stacks: dict[_Kind, _Stack] = defaultdict(_Stack)
    memory: list[int] = []
    alike: list[Int64s] = []
    for base in bases:
        sorts, numbers = _sorts(base.orders)
        first, uses = len(memory), len(base.uses)
        alike.append((first + numbers[:, None] * uses + np.arange(uses)).ravel())
        _add(judge, base, sorts, stacks, memory)
    compute, link = np.zeros(len(memory), np.int64), np.zeros(len(memory), np.int64)
    for kind, stack in stacks.items():
        _raise(compute, link, kind, stack)
    sizes = [len(of) for of in alike]
    at = np.concatenate(alike) if alike else np.zeros(0, np.int64)
    return PlanBounds(
        base=np.repeat(np.arange(len(bases)), sizes),
        within=np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, np.int64),
        compute_ns=compute[at],
        link_ns=link[at],
        memory_bytes=np.array(memory, np.int64)[at],
    )


def joined(parts: Mapping[int, PlanBounds]) -> PlanBounds:
    """Bounds of bases in their order.

    Args:
        parts: Of some bases each, numbered from 0, by the number of the first of them.
    """
    moved = [replace(parts[begin], base=parts[begin].base + begin) for begin in sorted(parts)]
    return PlanBounds(**{name: np.concatenate([part.arrays[name] for part in moved]) for name in BOUNDS})


@lru_cache(maxsize=4096)
def _sorts(orders: tuple[PlanOrder, ...]) -> tuple[Mapping[_OrderSort, int], Int64s]:
    """Sorts of orders, each with the number of an order of it, and of every order the number of its sort."""
    firsts: dict[_OrderSort, int] = {}
    of_each = []
    for number, order in enumerate(orders):
        of_each.append(sort := _sort(order))
        firsts.setdefault(sort, number)
    numbers = {sort: number for number, sort in enumerate(firsts)}
    return firsts, np.array([numbers[sort] for sort in of_each], np.int64)


def _sort(order: PlanOrder) -> _OrderSort:
    name = order.schedule or default_order(order.chunks)
    traits = traits_of(name, order.chunks)
    return _OrderSort(
        order.chunks,
        order.placement,
        traits.splits,
        holds_up(name, order.p2p),
        traits.blocks and order.p2p is None,
    )


def _add(
    judge: Judge, base: Base, sorts: Mapping[_OrderSort, int], stacks: dict[_Kind, _Stack], memory: list[int]
) -> None:
    """Memory of the alike plans of a base, and their pipelines."""
    tails: dict[tuple[object, ...], Mapping[RankPlace, int]] = {}
    needs: dict[tuple[object, ...], int] = {}
    for sort, order in sorts.items():
        placed = sort.chunks, sort.placement
        if placed not in needs:
            plan = base.at(order * len(base.uses))
            needs[placed] = _least_bytes(plan.training, judge.costs(plan)[0][1])
        numbers = range(len(memory), len(memory) + len(base.uses))
        memory += [needs[placed]] * len(base.uses)
        if needs[placed] > judge.workload.hbm_bytes:
            continue
        pipelines: dict[object, list[tuple[_Stack, int]]] = {}
        for number, use in zip(numbers, range(len(base.uses)), strict=True):
            plan = base.at(order * len(base.uses) + use)
            if plan.sharing not in pipelines:
                pipelines[plan.sharing] = list(_pipelines(judge, plan, sort, stacks))
            key = *placed, plan.collectives, plan.training.overlap_reduction
            if key not in tails:
                tails[key] = judge.costs(plan)[0][1].tails_by_place_ns()
            for stack, pipeline in pipelines[plan.sharing]:
                stack.plans.append(number)
                stack.pipelines.append(pipeline)
                stack.tails.append(tails[key])


def _pipelines(
    judge: Judge, plan: JobPlan, sort: _OrderSort, stacks: dict[_Kind, _Stack]
) -> Iterator[tuple[_Stack, int]]:
    """Stack the pipelines of a plan that are unlike: each with its number in its stack."""
    how = plan.training
    shape = replace(how.shape, microbatches=1)
    stack = stacks[_Kind(shape, sort.splits, sort.grouped)]
    for over, costs in judge.costs(plan):
        figures = costs.figures()
        stack.figures.append(figures)
        stack.microbatches.append(how.microbatches)
        stack.link_ns.append(_busiest_ns(how, figures, over.line.places) if over.line.places else 0)
        yield stack, len(stack.figures) - 1


def _least_bytes(how: Training, costs: JobCosts) -> int:
    last = how.shape.rank_of(how.shape.stages - 1)
    one = HeldMost(1, 0)
    return max(
        costs.peaks_bytes([HeldMost(0, 1) if rank == last and how.chunks == 1 else one for rank in range(how.stages)])
    )


def _busiest_ns(how: Training, figures: Int64s, places: Sequence[int]) -> int:
    """What messages occupy the link for that they occupy longest."""
    shape = how.shape
    each = np.array(places)[_ranks_of(replace(shape, microbatches=1))]
    one, other = each[:-1], each[1:]
    crossing = one != other
    of_stages = figures[1:].reshape(-1, FIGURES)
    wide = len(places)
    onward = np.bincount((one * wide + other)[crossing], of_stages[:-1, 4][crossing], wide * wide)
    back = np.bincount((other * wide + one)[crossing], of_stages[1:, 6][crossing], wide * wide)
    return how.microbatches * round(float((onward + back).max(initial=0)))


@lru_cache(maxsize=1024)
def _ranks_of(shape: PipelineShape) -> Int64s:
    """The rank of each stage."""
    return np.array([shape.rank_of(stage) for stage in range(shape.stages)], np.int64)


def _raise(compute: Int64s, link: Int64s, kind: _Kind, stack: _Stack) -> None:
    """Raise bounds of plans to those of their pipelines of one kind."""
    figures = np.stack(stack.figures)[:, 1:].reshape(len(stack.figures), -1, FIGURES)
    whole, halves = _compute_ns(kind, figures, np.array(stack.microbatches, np.int64))
    plans, pipelines = np.array(stack.plans, np.int64), np.array(stack.pipelines, np.int64)
    tails = np.array([list(tail.values()) for tail in stack.tails], np.int64)
    places = list(stack.tails[0])
    shape = kind.shape
    of_ranks = [(0 in mine, shape.stages - 1 in mine) for mine in map(shape.stages_of, range(shape.ranks))]
    begins = of_ranks[shape.rank_of(0)]
    np.maximum.at(compute, plans, halves[pipelines] + tails[:, places.index(begins)])
    for number, place in enumerate(places):
        longest = whole[:, [each == place for each in of_ranks]].max(axis=1)
        np.maximum.at(compute, plans, longest[pipelines] + tails[:, number])
    busy = np.array(stack.link_ns, np.int64)[pipelines]
    np.maximum.at(link, plans, np.where(busy > 0, busy + tails.min(axis=1), 0))


def _compute_ns(kind: _Kind, figures: Int64s, microbatches: Int64s) -> tuple[Int64s, Int64s]:
    """Until the last action of each rank ends, and until the last backward of stage 0 does, tails apart."""
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
    of_ranks = np.array(list(map(shape.stages_of, range(shape.ranks))))
    m = microbatches[:, None]
    first = begins[:, of_ranks].min(axis=2)
    if kind.grouped:
        first += m * onward[:, of_ranks].sum(axis=2) + (m - 1) * back[:, of_ranks].sum(axis=2)
    whole = first + m * (forward + backward)[:, of_ranks].sum(axis=2)
    halves = first + m * (forward + through)[:, of_ranks].sum(axis=2) + ahead[:, of_ranks].min(axis=2)
    return whole, halves.max(axis=1)
