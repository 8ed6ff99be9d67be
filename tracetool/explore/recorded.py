"""The plans of a recorded job on a fleet: what its measured costs can be replayed as, and the best of them.

Every plan is replayed as ``replay`` and sweeps do it: measured costs, in stages as recorded or cut anew by layers, over
the tiers of a network.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from tracetool.costs.rescaled import with_layers
from tracetool.errors import ScheduleError
from tracetool.explore.answer import CHOICES
from tracetool.explore.recorded_space import RECORDED_AXES, WAY_AXES
from tracetool.model.notice import Silent, unasked
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.model.scenario import Scenario
from tracetool.schedules import kind_of
from tracetool.sweeps.grid import Grid
from tracetool.sweeps.run import sweep
from tracetool.whatif.answer import answer
from tracetool.whatif.best import choose, plan_name, recorded_test
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tracetool.explore.recorded_space import RecordedSpace, RecordedWay
    from tracetool.model.notice import Notice, Progress
    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.results import SweepPoint
    from tracetool.whatif.best import Chosen
    from tracetool.whatif.results import Result


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """One plan of a recorded job, replayed.

    Attributes:
        way: What was chosen beside the schedule.
        point: The schedule, and what came of it.
    """

    way: RecordedWay
    point: SweepPoint

    @property
    def order_text(self) -> str:
        """Schedule and depth, with stages per rank that were asked for."""
        return plan_name(self.point) + (f" x{self.way.chunks}" if (self.way.chunks or 1) > 1 else "")

    @property
    def text(self) -> str:
        """Schedule, how transfers are issued, and how layers overlap."""
        overlap = "" if self.point.overlap == NO_OVERLAP else f", layers overlap by {self.point.overlap}"
        return f"{self.order_text}, {self.point.p2p} transfers{overlap}"

    @property
    def step_ns(self) -> int:
        """Its step."""
        return self.point.step_ns or 0


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

    @property
    def named(self) -> RecordedPlan | None:
        """What to run: the base where nothing that was asked for is shorter; None if nothing fits."""
        is_longer = self.best is not None and self.best.step_ns > self.base.step_ns
        return self.base if is_longer and self.base.point.feasible is not False else self.best


def explore_recording(
    space: RecordedSpace,
    *,
    jobs: int | None = None,
    executor: str | None = None,
    ends: float | None = None,
    progress: Progress | None = None,
) -> RecordedExploration:
    """Replay every plan of a recorded job on a fleet, and choose by the rule of ``tracetool.whatif.best``.

    Args:
        space: What to search.
        jobs: Worker processes; by default as many as pay.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        ends: When the time is up, of ``time.monotonic``: the best plan so far is the answer.
        progress: Told how many ways to run there are beside schedules, and how many are done.

    Raises:
        BadTopology: If the job does not fit on the fleet.
        ScheduleError: If nothing can be replayed.
    """
    left_out: Counter[str] = Counter()
    ways = list(space.ways(left_out))
    progress = progress or unasked()
    progress.start(1 + len(ways))
    alone = Scenario(seated(space.base.choice(space.choice), space.recording), space.hbm_bytes)
    done = sweep(space.recording, Grid((space.baseline,), alone), knees=False, jobs=1, progress=Silent())
    base = RecordedPlan(space.base, done.points[0])
    progress.advance(1)
    plans: list[RecordedPlan] = []
    refused: Counter[str] = Counter()
    looked = 0
    for way, scenario in ways:
        if plans and ends is not None and time.monotonic() >= ends:
            break
        looked += 1
        try:
            points = _swept(space, way, scenario, jobs, executor)
        except ScheduleError as error:
            refused[error.message] += 1
            points = ()
        for point in points:
            if point.step_ns is None:
                refused[f"{point.schedule}: {point.reason}"] += 1
            plans += [RecordedPlan(way, one) for one in (point, point.closer) if one is not None and one.step_ns]
        progress.advance(1)
    chosen = _chosen(space, plans)
    start = _start(space, plans, base)
    plan_of = {id(plan.point): plan for plan in plans}
    return RecordedExploration(
        space=space, base=base, start=start, best=None if chosen.best is None else plan_of[id(chosen.best)],
        as_good=tuple(plan_of[id(point)] for point in chosen.as_good),
        unproven=(*(plan_of[id(point)] for point in chosen.unproven), *_bounds(space, plans, chosen.best)),
        alone=tuple(ChoiceAlone(name=name, best=_changed(space, plans, start, of)) for name, of in _CHOICES.items()),
        one_by_one=ChoiceAlone(name="one by one", best=_one_by_one(space, plans, start)),
        front=tuple(_front(space, plans)), plans=tuple(plans), refused=refused, left_out=left_out,
        open=len(ways) - looked, notes=done.notes,
    )  # fmt: skip


_CHOICES: Mapping[str, frozenset[str]] = {
    **{name: kept for name, axes in CHOICES.items() if (kept := frozenset(axes) & frozenset(RECORDED_AXES))},
    "overlap": frozenset({"overlap"}),
}


def _swept(
    space: RecordedSpace, way: RecordedWay, scenario: Scenario, jobs: int | None, executor: str | None
) -> Sequence[SweepPoint]:
    """All schedules and depths that go with a way, replayed; those that cannot be hold the reason."""
    chunks = way.chunks if way.chunks != 1 else None
    grid = Grid(space.schedules(way.chunks), scenario, extra_forwards=space.values("depth"), overlaps=space.overlaps)
    recording = _at(space, way)
    points = sweep(
        recording, grid, knees=False, jobs=jobs, executor=executor, chunks=chunks, progress=Silent(), beside=()
    ).points
    return points if recording is space.recording else [_scaled(point) for point in points]


def _at(space: RecordedSpace, way: RecordedWay) -> Reconstruction:
    """The recording with microbatches of a way's size."""
    if way.microbatch is None or space.sizes is None or space.scaling is None:
        return space.recording
    return replace(space.recording, pipeline=space.scaling.at(replace(space.sizes, sequences=way.microbatch)))


def _scaled(point: SweepPoint) -> SweepPoint:
    """A point whose costs are extrapolated: no recorded step was like it."""
    rests_on = (*point.rests_on, "microbatches of other sizes")
    closer = None if point.closer is None else _scaled(point.closer)
    return replace(point, known_error=None, rests_on=rests_on, closer=closer)


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


def replayed_plan(space: RecordedSpace, plan: RecordedPlan) -> Result:
    """A plan again, with its timeline.

    Args:
        space: What was searched.
        plan: One of its plans.

    Raises:
        ScheduleError: If it cannot be replayed.
    """
    way, point = plan.way, plan.point
    recording = _at(space, way)
    overlap = next((each for each in space.overlaps if each.way == point.overlap), None)
    if overlap is not None:
        recording = replace(recording, pipeline=with_layers(recording.pipeline, overlap))
    scenario = next(scenario for each, scenario in space.ways(Counter()) if each == way)
    chunks = way.chunks if way.chunks != 1 else None
    asked = answer(recording, [point.schedule], scenario, extra_forwards=point.extra_forwards, chunks=chunks)
    return (*asked.results, asked.baseline)[0]


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
