"""How deep a tuned schedule's warm-up should be: the smallest that hides the links within the memory limit."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ScheduleDeadlock, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.replays.evaluation import evaluate
from tracetool.schedules import build_schedule, tuning_of
from tracetool.units import format_duration
from tracetool.whatif.memory_limit import all_fit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape
    from tracetool.schedules import Tuning

RELEVANT_RATIO = 0.02
"""Steps of two orders that differ by less are the same to whoever measures them: each of the two scatters by about 1 %
(repeated steps of the recorded H100 runs). No forwards are added when no deeper warm-up would gain more."""

NEXT_TO_SHORTEST_RATIO = 0.005
"""A tuned schedule is also tried so near to its shortest step: what is chosen for is measured against that."""

_MOST_REPLAYED_FORWARDS = 50_000
"""Up to so many (about two seconds) every combination of depths is replayed."""


@dataclass(frozen=True, slots=True)
class _Depth:
    """One choice of extra forwards, replayed."""

    per_boundary: tuple[int, ...]
    extra_forwards: tuple[int, ...]
    step_ns: int
    feasible: bool | None


class _Settled(NamedTuple):
    """A choice that is worth it and fits: what limited it in words, and whether the memory limit did."""

    extra_forwards: Depth
    remark: str | None
    by_hbm: bool = False


@dataclass(frozen=True, slots=True)
class Tried:
    """What a choice of extra forwards comes to.

    Attributes:
        step_ns: Its step.
        feasible: As ``fits`` says.
    """

    step_ns: int
    feasible: bool | None


Depth = tuple[int, ...]
"""Extra forwards per pipeline rank."""


def choose_depth(name: str, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> tuple[Depth, str | None]:
    """Extra warm-up forwards per pipeline rank that hide the links, within the memory limit, of a tuned schedule.

    Taken are the fewest forwards after which more would not shorten the step by more than ``RELEVANT_RATIO``, every
    choice replayed; if they do not fit the memory, the shortest step of those that do.

    Returns:
        Extra forwards per rank, and in words what limited them.
    """
    warm_ups = choose_warm_ups(name, pipeline, shape, scenario)
    return warm_ups.chosen, warm_ups.remark


@dataclass(frozen=True, slots=True)
class WarmUps:
    """Warm-ups that are worth it over some links, within the memory limit.

    Attributes:
        chosen: What ``choose_depth`` says.
        remark: In words, what limited it.
        closer: The fewest forwards so near to the shortest step as ``NEXT_TO_SHORTEST_RATIO``; None for no others.
        closer_remark: In words, what limited those.
        wanted: What would be chosen without the memory limit.
        unlimited_ns: Step of ``closer`` without the memory limit; None if that cuts nothing.
        limited_by_hbm: Whether the memory limit made ``chosen`` another than what would be chosen without it.
        closer_limited_by_hbm: Likewise of ``closer``.
    """

    chosen: Depth
    remark: str | None
    closer: Depth | None = None
    closer_remark: str | None = None
    wanted: Depth | None = None
    unlimited_ns: int | None = None
    limited_by_hbm: bool = False
    closer_limited_by_hbm: bool = False


WarmUpSearch = Generator[list[Depth], list[Tried | None], WarmUps]
"""Yields depths to replay, takes what they come to (None for a deadlock), returns what ``choose_warm_ups`` does."""


def choose_warm_ups(name: str, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> WarmUps:
    """What ``choose_depth`` says, and what comes closer to the shortest step; every depth is replayed once."""
    tuning = tuning_of(name)
    if tuning is None:
        raise UnsupportedShape(f"{name} has no warm-up to choose.")
    search = search_warm_ups(tuning, pipeline, shape, scenario)
    try:
        asked = next(search)
        while True:
            asked = search.send([_tried(name, pipeline, shape, scenario, extra) for extra in asked])
    except StopIteration as found:
        chosen: WarmUps = found.value
        return chosen


def _tried(name: str, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, extra: Depth) -> Tried | None:
    schedule = build_schedule(name, shape, extra_forwards=extra)
    try:
        done = evaluate(pipeline, schedule, scenario)
    except ScheduleDeadlock:
        return None
    return Tried(done.metrics.step_ns, all_fit((of for _, of in done.kinds), scenario))


def search_warm_ups(
    tuning: Tuning, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, cycle_ns: int | None = None
) -> WarmUpSearch:
    """The search of ``choose_warm_ups``, for callers who replay many scenarios at once.

    Args:
        tuning: What the schedule says of its depths.
        pipeline: What was measured.
        shape: Ranks and microbatches.
        scenario: The links and the memory limit.
        cycle_ns: ``shortest_cycle_ns``, if it is known already.
    """
    boundaries = scenario.topology.boundaries()
    if not boundaries:
        return WarmUps((0,) * shape.ranks, f"no DC boundary: nothing to hide, the order is {tuning.untuned.upper()}'s")
    search = _Search(tuning, pipeline, shape, scenario, boundaries, cycle_ns or shortest_cycle_ns(pipeline))
    choices = yield from search.choices()
    if not choices:
        return WarmUps((0,) * shape.ranks, None)  # even the untuned order deadlocks here: replaying it will say where
    chosen = yield from _settled(search, choices, RELEVANT_RATIO)
    closer = yield from _settled(search, choices, NEXT_TO_SHORTEST_RATIO)
    is_other = closer.extra_forwards != chosen.extra_forwards
    unlimited = _fewest(choices, NEXT_TO_SHORTEST_RATIO)
    return WarmUps(
        chosen.extra_forwards,
        chosen.remark,
        closer=closer.extra_forwards if is_other else None,
        closer_remark=closer.remark if is_other else None,
        wanted=_fewest(choices, RELEVANT_RATIO).extra_forwards,
        unlimited_ns=unlimited.step_ns if unlimited.feasible is False else None,
        limited_by_hbm=chosen.by_hbm,
        closer_limited_by_hbm=is_other and closer.by_hbm,
    )


def _settled(
    search: _Search, choices: Sequence[_Depth], gain_ratio: float
) -> Generator[list[Depth], list[Tried | None], _Settled]:
    """The fewest forwards that are worth it and fit."""
    best = _fewest(choices, gain_ratio)
    if choices[0].feasible is False:
        return _Settled(
            choices[0].extra_forwards, f"even {search.tuning.untuned.upper()}'s own warm-up exceeds the HBM limit"
        )
    if best.feasible is not False:
        reason = _why_not_deeper(best, choices, gain_ratio, deadlock=search.deadlocked)
        return _Settled(best.extra_forwards, reason)
    chosen = _fewest((yield from search.choices(only_fitting=True)), 0)
    without = f"without the limit {_signed(best.extra_forwards)} would take {format_duration(best.step_ns)}"
    return _Settled(chosen.extra_forwards, f"limited by HBM: {without}", by_hbm=True)


def _why_not_deeper(best: _Depth, choices: Sequence[_Depth], gain_ratio: float, *, deadlock: bool) -> str | None:
    if deadlock:
        deepest = max(choices, key=lambda d: sum(d.extra_forwards))
        return f"anything deeper than {_signed(deepest.extra_forwards)} would deadlock with blocking transfers"
    if best.step_ns > min(d.step_ns for d in choices):
        return f"deeper warm-ups would gain less than {gain_ratio * 100:g}%"
    return None


def _signed(extra_forwards: Sequence[int]) -> str:
    return "+" + ",".join(map(str, extra_forwards))


def _fewest(choices: Sequence[_Depth], gain_ratio: float) -> _Depth:
    """The fewest forwards whose step is within ``gain_ratio`` of the shortest."""
    shortest = min(d.step_ns for d in choices)
    good = [d for d in choices if d.step_ns - shortest <= gain_ratio * d.step_ns]
    return min(good, key=lambda d: (sum(d.extra_forwards), d.step_ns))


_Choices = Generator[list[Depth], list[Tried | None], list[_Depth]]


class _Search:
    """Asks for depths up to twice what the closed form of the schedule asks for at each boundary."""

    def __init__(
        self,
        tuning: Tuning,
        pipeline: Pipeline,
        shape: PipelineShape,
        scenario: Scenario,
        boundaries: Sequence[int],
        cycle_ns: int,
    ) -> None:
        self.tuning = tuning
        self._shape = shape
        self._boundaries = boundaries
        hiding = [tuning.hiding(_delay_ns(pipeline, scenario, boundary), cycle_ns) for boundary in boundaries]
        self._ceilings = [min(shape.microbatches, 2 * depth + 2) for depth in hiding]
        self._known: dict[tuple[int, ...], _Depth | None] = {}

    @property
    def deadlocked(self) -> bool:
        """Whether a depth could not run."""
        return None in self._known.values()

    def choices(self, *, only_fitting: bool = False) -> _Choices:
        """Depths that run, the untuned one first: all there are, or where those are too many the steepest way up."""
        grid = [range(ceiling + 1) for ceiling in self._ceilings]
        if prod(map(len, grid)) * self._shape.ranks * self._shape.microbatches > _MOST_REPLAYED_FORWARDS:
            return (yield from self._steepest(only_fitting=only_fitting))
        return (yield from self._running(list(product(*grid)), only_fitting=only_fitting))

    def _running(self, choices: Sequence[tuple[int, ...]], *, only_fitting: bool) -> _Choices:
        unknown = [choice for choice in choices if choice not in self._known]
        if unknown:
            extras = [
                self.tuning.per_rank(self._shape.ranks, dict(zip(self._boundaries, choice, strict=True)))
                for choice in unknown
            ]
            tried = yield extras
            for choice, extra, what in zip(unknown, extras, tried, strict=True):
                self._known[choice] = None if what is None else _Depth(choice, extra, what.step_ns, what.feasible)
        depths = (self._known[choice] for choice in choices)
        return [d for d in depths if d is not None and (d.feasible is not False or not only_fitting)]

    def _steepest(self, *, only_fitting: bool) -> _Choices:
        """From the untuned order on, one forward more where it shortens the step most: at one boundary, or at all."""
        path: list[_Depth] = []
        raised = {(0,) * len(self._boundaries)}
        while raised:
            running = yield from self._running(sorted(raised), only_fitting=only_fitting)
            if not running:
                break
            path.append(min(running, key=lambda d: (d.step_ns, d.per_boundary)))
            raised = _raised(path[-1].per_boundary, self._ceilings)
        return path


def _raised(now: tuple[int, ...], ceilings: Sequence[int]) -> set[tuple[int, ...]]:
    """One forward more at one boundary, for each that has room, and at all of them."""
    room = [n < ceiling for n, ceiling in zip(now, ceilings, strict=True)]
    single = {tuple(n + (i == j) for j, n in enumerate(now)) for i in range(len(now)) if room[i]}
    return single | ({tuple(n + 1 for n in now)} if all(room) else set())


def shortest_cycle_ns(pipeline: Pipeline) -> int:
    """Forward and backward of the stage where both together are shortest: what one extra forward hides at least."""
    return min(
        (s.median_ns(ActionKind.FORWARD) or 0) + (s.median_ns(ActionKind.BACKWARD) or 0) for s in pipeline.stages
    )


def _delay_ns(pipeline: Pipeline, scenario: Scenario, boundary: int) -> int:
    """What a message takes over a boundary and back."""
    delay = 0
    up, down = pipeline.stages[boundary], pipeline.stages[boundary + 1]
    for ranks, payload in (
        ((boundary, boundary + 1), up.forward_payload_bytes),
        ((boundary + 1, boundary), down.backward_payload_bytes),
    ):
        path = scenario.topology.path(*ranks)
        if path is not None:
            delay += path.latency_ns + path.occupancy_ns(payload or 0)
    return delay
