"""The plans of a recorded job on a fleet: what its measured costs can be replayed as, and the best of them.

Every plan is replayed as ``replay`` and sweeps do it: measured costs, in stages as recorded or cut anew by layers, over
the tiers of a network.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import TraceToolError
from tracetool.explore.answer import CHOICES
from tracetool.explore.failures import Failures, check_weights, weighed
from tracetool.explore.fleets import check_currencies
from tracetool.explore.recorded_search import RecordedPlan, RecordedWork, replay_base, replay_plans, replayed_plan
from tracetool.explore.recorded_space import RECORDED_AXES, WAY_AXES
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.schedules import kind_of
from tracetool.whatif.best import choose, recorded_test

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracetool.explore.failures import Failure
    from tracetool.explore.recorded_space import RecordedSpace
    from tracetool.sweeps.results import SweepPoint
    from tracetool.whatif.best import Chosen

_RECHECKED = 25
"""So many of the fastest plans of the whole fleet are replayed in each failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceAlone:
    """What a choice reaches.

    Attributes:
        name: What is chosen, all else as in the start.
        best: The best of it; None if nothing of it can run.
    """

    name: str
    best: RecordedPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExploration:
    """The answer to a search over a recording.

    Attributes:
        space: What was searched.
        base: The recorded order on the fleet.
        start: The same with what was fixed: choices alone, and one by one, start from it.
        best: The best of what was asked for; None if nothing fits.
        as_good: Plans as sure as the best whose steps do not differ from its by more than the error.
        unproven: Plans with shorter steps whose predictions rest on less; last those that are no more than bounds.
        alone: Each choice alone, all else as in the start.
        one_by_one: All of them, one after another, each kept.
        front: Plans that fit than which none is as good in step, memory and bytes over the outermost tier, and better
            in one of them; the fastest first. What is not known of a plan is no merit of it.
        plans: All that were replayed.
        refused: How many cannot be run, by reason.
        left_out: What was not taken up, by reason.
        open: How many ways were not looked at when the time was up.
        notes: What holds of all: how far replay misses the recording, what was inferred or is missing.
        others: The best plans on other fleets.
        failures: What failures of the fleet do; None if none was asked for.
    """

    space: RecordedSpace
    base: RecordedPlan
    start: RecordedPlan
    best: RecordedPlan | None
    as_good: tuple[RecordedPlan, ...]
    unproven: tuple[RecordedPlan, ...]
    alone: tuple[ChoiceAlone, ...]
    one_by_one: ChoiceAlone
    front: tuple[RecordedPlan, ...]
    plans: tuple[RecordedPlan, ...]
    refused: Counter[str]
    left_out: Counter[str]
    open: int
    notes: tuple[Notice, ...]
    others: tuple[RecordedFleet, ...] = ()
    failures: Failures[RecordedPlan] | None = None

    @property
    def varied(self) -> tuple[ChoiceAlone, ...]:
        """Of the choices alone those of which there was another one to take."""
        fixed = {"overlap"} if not self.space.overlaps else set()
        fixed |= {"microbatch"} if self.space.sizes is None else set()
        return tuple(one for one in self.alone if one.name not in fixed)

    @property
    def named(self) -> RecordedPlan | None:
        """What to run: the base where nothing that was asked for is shorter; None if nothing fits."""
        is_longer = self.best is not None and self.best.step_ns > self.base.step_ns
        return self.base if is_longer and self.base.point.feasible is not False else self.best


class RecordedFleet(NamedTuple):
    """The best plan on another fleet.

    Attributes:
        space: The job, and where.
        base: The recorded order there.
        best: By the rule of ``tracetool.whatif.best``; None if nothing fits there.
        open: How many ways were not looked at when the time was up.
    """

    space: RecordedSpace
    base: RecordedPlan
    best: RecordedPlan | None
    open: int


def explore_recording(
    space: RecordedSpace,
    *,
    others: Sequence[RecordedSpace] = (),
    failures: Sequence[Failure] = (),
    work: RecordedWork | None = None,
) -> RecordedExploration:
    """Replay every plan of a recorded job on a fleet, and choose by the rule of ``tracetool.whatif.best``.

    Args:
        space: What to search.
        others: The same job on other fleets.
        failures: What may fail of the fleet.
        work: How it is worked on; when its time is up, the best plan so far is the answer.

    Raises:
        BadTopology: If the job does not fit on the fleet.
        ScenarioError: If fleets have prices in several currencies, or shares of the time do not go together.
        ScheduleError: If nothing can be replayed.
    """
    check_currencies([each.choice for each in (space, *others)])
    check_weights(failures)
    work = work or RecordedWork()
    base, notes = replay_base(space)
    done = replay_plans(space, work)
    plans = done.plans
    chosen = _chosen(space, plans)
    start = _start(space, plans, base)
    plan_of = {id(plan.point): plan for plan in plans}
    best = None if chosen.best is None else plan_of[id(chosen.best)]
    as_good = tuple(plan_of[id(point)] for point in chosen.as_good)
    explored = RecordedExploration(
        space=space, base=base, start=start, best=best, as_good=as_good,
        unproven=(*(plan_of[id(point)] for point in chosen.unproven), *_bounds(space, plans, chosen.best)),
        alone=tuple(ChoiceAlone(name=name, best=_changed(space, plans, start, of)) for name, of in _CHOICES.items()),
        one_by_one=ChoiceAlone(name="one by one", best=_one_by_one(space, plans, start)),
        front=tuple(_front(space, plans)), plans=plans, refused=done.refused, left_out=done.left_out,
        open=done.open, notes=notes, others=tuple(_elsewhere(others, work.beside())),
    )  # fmt: skip
    return replace(explored, failures=_weighed(explored, failures, work.beside())) if failures else explored


def _elsewhere(spaces: Sequence[RecordedSpace], work: RecordedWork) -> Iterator[RecordedFleet]:
    for space in spaces:
        done = replay_plans(space, work)
        base, _ = replay_base(space)
        yield RecordedFleet(space=space, base=base, best=_best_of(space, done.plans), open=done.open)


def _weighed(explored: RecordedExploration, failures: Sequence[Failure], work: RecordedWork) -> Failures[RecordedPlan]:
    """Plans as sure as the best one, and the best of each failure, in every failure."""
    space, named = explored.space, explored.named
    if named is None:
        return Failures((), None, None, None)
    usable = sorted((plan for plan in explored.plans if plan.runs), key=lambda plan: plan.step_ns)
    sure = [plan for plan in usable if plan.point.evidence == named.point.evidence][:_RECHECKED]
    plans = {plan.plan: plan for plan in (named, *sure)}
    spaces = [replace(space, choice=failure.of(space.choice), slow=failure.slow) for failure in failures]
    cut = []
    for failure, failing in zip(failures, spaces, strict=True):
        done = None if work.is_over else replay_plans(failing, work)
        if done is None or done.open:
            cut.append(failure.text)
        best = None if done is None else _best_of(failing, done.plans)
        if best is not None and best.plan not in plans:
            whole = _again(space, best)
            plans |= {best.plan: whole} if whole.runs else {}
    in_each = [[_again(failing, plan) for plan in plans.values()] for failing in spaces]
    return weighed(plans, failures, in_each, tuple(cut))


def _again(space: RecordedSpace, plan: RecordedPlan) -> RecordedPlan:
    """A plan as it is on another fleet."""
    try:
        result = replayed_plan(space, plan)
    except TraceToolError as error:
        remark = Notice(NoticeCode.NOT_REPLAYED, error.message)
        return replace(plan, point=replace(plan.point, step_ns=None, remarks=(remark,)))
    return replace(
        plan,
        point=replace(
            plan.point, step_ns=result.step_ns, window_ns=result.metrics.window_ns,
            bubble_ratio=result.metrics.bubble_ratio, feasible=result.feasible,
        ),
    )  # fmt: skip


_CHOICES: Mapping[str, frozenset[str]] = {
    **{name: kept for name, axes in CHOICES.items() if (kept := frozenset(axes) & frozenset(RECORDED_AXES))},
    "overlap": frozenset({"overlap"}),
}


def _chosen(space: RecordedSpace, plans: Sequence[RecordedPlan]) -> Chosen[SweepPoint]:
    """Bounds are no plans: what is no faster than they say may be slower than all else."""
    points = [plan.point for plan in plans if plan.point.overlap not in space.bounds]
    return choose(points, recorded_test(space.recording.pipeline), space.baseline)


def _bounds(space: RecordedSpace, plans: Sequence[RecordedPlan], best: SweepPoint | None) -> list[RecordedPlan]:
    """Shorter ones of ways that are bounds alone: the shortest of each schedule, in order."""
    bounds = [plan for plan in plans if plan.point.overlap in space.bounds and plan.point.feasible is not False]
    shorter = [plan for plan in bounds if best is None or plan.step_ns < (best.step_ns or 0)]
    by_name = {plan.point.schedule: plan for plan in sorted(shorter, key=lambda plan: -plan.step_ns)}
    return sorted(by_name.values(), key=lambda plan: plan.step_ns)


def _front(space: RecordedSpace, plans: Sequence[RecordedPlan]) -> Iterator[RecordedPlan]:
    """Plans in the order of their steps that need less than all before them of something."""
    known: list[tuple[float, float]] = []
    usable = [plan for plan in plans if plan.point.feasible is not False and plan.point.overlap not in space.bounds]
    for plan in sorted(usable, key=lambda plan: plan.step_ns):
        moved = tier_bytes(space, plan)
        needed = plan.point.needed_bytes
        costs = inf if needed is None else needed, inf if moved is None else moved[-1]
        if all(any(mine < theirs for mine, theirs in zip(costs, other, strict=True)) for other in known):
            known.append(costs)
            yield plan


def tier_bytes(space: RecordedSpace, plan: RecordedPlan) -> tuple[int, ...] | None:
    """Bytes that a step of a plan moves over each tier; None where they are not known, or stages are cut anew.

    Args:
        space: What was searched.
        plan: One of its plans.
    """
    recorded = space.recording.pipeline.observed.shape.chunks
    is_cut = (plan.way.chunks or 1) > recorded or kind_of(plan.point.schedule).least_chunks > recorded
    return None if is_cut else space.tier_bytes(plan.way)


def _changed(
    space: RecordedSpace, plans: Sequence[RecordedPlan], now: RecordedPlan, axes: Collection[str]
) -> RecordedPlan | None:
    """The best of the plans that are as one of them but for some axes."""
    kept = [axis for axis in WAY_AXES if axis not in axes]
    alike = [
        plan
        for plan in plans
        if all(getattr(plan.way, axis) == getattr(now.way, axis) for axis in kept)
        and ("schedule" in axes or plan.order_text == now.order_text)
        and ("overlap" in axes or plan.point.overlap == now.point.overlap)
    ]
    return _best_of(space, alike)


def _best_of(space: RecordedSpace, plans: Sequence[RecordedPlan]) -> RecordedPlan | None:
    best = _chosen(space, plans).best
    return next((plan for plan in plans if plan.point is best), None)


def _start(space: RecordedSpace, plans: Sequence[RecordedPlan], base: RecordedPlan) -> RecordedPlan:
    """The base with what was fixed; the base itself where nothing like it can run."""
    alike = [plan for plan in plans if plan.way == space.start and plan.point.overlap == NO_OVERLAP]
    ordered = [plan for plan in alike if plan.point.schedule == space.baseline]
    if ordered and space.start == space.base:
        return base
    return _best_of(space, ordered or alike) or next(iter(ordered or alike), base)


def _one_by_one(space: RecordedSpace, plans: Sequence[RecordedPlan], start: RecordedPlan) -> RecordedPlan:
    now = start
    for axes in _CHOICES.values():
        better = _changed(space, plans, now, axes)
        if better is not None and better.step_ns < now.step_ns:
            now = better
    return now
