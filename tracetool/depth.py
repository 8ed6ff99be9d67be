"""How deep geopipe's warm-up should be: the smallest that hides the links within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import ceil, prod
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleDeadlock
from tracetool.metrics import Metrics, measure
from tracetool.model.action import ActionKind
from tracetool.replay import replay
from tracetool.schedules import build_schedule
from tracetool.schedules.geopipe import extra_per_rank
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape

GAIN_RATIO = 0.005
"""geopipe stops adding forwards when no deeper warm-up shortens the step by more than this share."""


_MOST_REPLAYED_FORWARDS = 50_000
"""Up to so many (about two seconds) every combination of depths is replayed."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where a schedule first needs more memory than there is."""

    rank: int
    missing_bytes: int


def fits(metrics: Metrics, scenario: Scenario) -> tuple[bool | None, Shortage | None]:
    """Whether a replay stays within the scenario's memory limit, and the rank that lacks most if not.

    What a rank needs is its highest allocation and, where it was measured, what it occupies beyond that.

    Returns:
        True without a limit, None if there is one but memory is unknown.
    """
    if scenario.hbm_bytes is None:
        return True, None
    over = [
        Shortage(rank, needed - scenario.hbm_bytes)
        for rank, needed in enumerate(metrics.needed_hbm_bytes)
        if needed is not None and needed > scenario.hbm_bytes
    ]
    if over:
        return False, max(over, key=lambda s: s.missing_bytes)
    return (None if None in metrics.peak_hbm_bytes else True), None


PEAK_ERROR_RATIO = 0.04
"""Predicted peaks were up to so much too low on recorded runs where a trace does not name the blocks it frees (0.3 %
where it does): so close to the limit, "fits" is "maybe"."""


def is_near_the_limit(metrics: Metrics, scenario: Scenario) -> bool:
    """Whether a rank needs so much of the memory limit that the error of its prediction decides."""
    if scenario.hbm_bytes is None:
        return False
    highest = max(needed or 0 for needed in metrics.needed_hbm_bytes)
    return highest > (1 - PEAK_ERROR_RATIO) * scenario.hbm_bytes


@dataclass(frozen=True, slots=True)
class _Depth:
    """One choice of extra forwards, replayed."""

    per_boundary: tuple[int, ...]
    extra_forwards: tuple[int, ...]
    step_ns: int
    feasible: bool | None


def choose_depth(pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> tuple[tuple[int, ...], str | None]:
    """Extra warm-up forwards per pipeline rank that hide the links, within the memory limit.

    Taken are the fewest forwards after which more would not shorten the step by more than ``GAIN_RATIO``, every
    choice replayed; if they do not fit the memory, the same among the choices that do.

    Returns:
        Extra forwards per rank, and in words what limited them.
    """
    return choose_depths(pipeline, shape, scenario, (GAIN_RATIO,))[0]


def choose_depths(
    pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, gain_ratios: Sequence[float]
) -> list[tuple[tuple[int, ...], str | None]]:
    """The same for several shares of the step that more forwards must gain; depths are replayed once for all."""
    boundaries = scenario.topology.boundaries()
    if not boundaries:
        return [((0,) * shape.ranks, "no DC boundary: nothing to hide, the order is 1F1B's") for _ in gain_ratios]
    search = _Search(pipeline, shape, scenario, boundaries)
    return [_choose(search, shape, gain_ratio) for gain_ratio in gain_ratios]


def _choose(search: _Search, shape: PipelineShape, gain_ratio: float) -> tuple[tuple[int, ...], str | None]:
    choices = search.choices()
    if not choices:
        return (0,) * shape.ranks, None  # even 1F1B deadlocks here: replaying it will say where
    best = _fewest(choices, gain_ratio)
    if choices[0].feasible is False:
        return choices[0].extra_forwards, "even 1F1B's own warm-up exceeds the HBM limit"
    if best.feasible is not False:
        return best.extra_forwards, _why_not_deeper(best, choices, gain_ratio, deadlock=search.deadlocked)
    chosen = _fewest(search.choices(only_fitting=True), gain_ratio)
    return chosen.extra_forwards, (
        f"limited by HBM: without the limit {_signed(best.extra_forwards)} would take {format_duration(best.step_ns)}"
    )


def _why_not_deeper(best: _Depth, choices: Sequence[_Depth], gain_ratio: float, *, deadlock: bool) -> str | None:
    if deadlock:
        deepest = max(choices, key=lambda d: sum(d.extra_forwards))
        return f"anything deeper than {_signed(deepest.extra_forwards)} would deadlock with blocking transfers"
    if best.step_ns > min(d.step_ns for d in choices):
        return f"deeper warm-ups would gain less than {gain_ratio:.1%}"
    return None


def _signed(extra_forwards: Sequence[int]) -> str:
    return "+" + ",".join(map(str, extra_forwards))


def _fewest(choices: Sequence[_Depth], gain_ratio: float) -> _Depth:
    """The fewest forwards whose step is within ``gain_ratio`` of the shortest."""
    shortest = min(d.step_ns for d in choices)
    good = [d for d in choices if d.step_ns - shortest <= gain_ratio * d.step_ns]
    return min(good, key=lambda d: (sum(d.extra_forwards), d.step_ns))


class _Search:
    """Replays depths up to twice what the closed form of the schedule asks for at each boundary."""

    def __init__(self, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, boundaries: Sequence[int]) -> None:
        self._pipeline = pipeline
        self._shape = shape
        self._scenario = scenario
        self._boundaries = boundaries
        self._ceilings = [min(shape.microbatches, 2 * _hiding_depth(pipeline, scenario, b) + 2) for b in boundaries]
        self.deadlocked = False
        self._replay = cache(self._replay_depth)

    def choices(self, *, only_fitting: bool = False) -> list[_Depth]:
        """Depths that run, 1F1B's own first: all there are, or where those are too many the steepest way up."""
        grid = [range(ceiling + 1) for ceiling in self._ceilings]
        if prod(map(len, grid)) * self._shape.ranks * self._shape.microbatches > _MOST_REPLAYED_FORWARDS:
            return self._steepest(only_fitting=only_fitting)
        return self._running(product(*grid), only_fitting=only_fitting)

    def _running(self, choices: Iterable[tuple[int, ...]], *, only_fitting: bool) -> list[_Depth]:
        found = [depth for depth in map(self._replay, choices) if depth is not None]
        return [depth for depth in found if depth.feasible is not False or not only_fitting]

    def _steepest(self, *, only_fitting: bool) -> list[_Depth]:
        """From 1F1B on, one forward more where it shortens the step most: at one boundary, or at all."""
        path: list[_Depth] = []
        raised = {(0,) * len(self._boundaries)}
        while raised:
            found = self._running(sorted(raised), only_fitting=only_fitting)
            if not found:
                break
            path.append(min(found, key=lambda d: (d.step_ns, d.per_boundary)))
            raised = _raised(path[-1].per_boundary, self._ceilings)
        return path

    def _replay_depth(self, per_boundary: tuple[int, ...]) -> _Depth | None:
        extra = extra_per_rank(self._shape.ranks, dict(zip(self._boundaries, per_boundary, strict=True)))
        schedule = build_schedule("geopipe", self._shape, extra_forwards=extra)
        try:
            done = replay(self._pipeline, schedule, self._scenario)
        except ScheduleDeadlock:
            self.deadlocked = True
            return None
        metrics = measure(done.timeline)
        return _Depth(per_boundary, extra, metrics.step_ns, fits(metrics, self._scenario)[0])


def _raised(now: tuple[int, ...], ceilings: Sequence[int]) -> set[tuple[int, ...]]:
    """One forward more at one boundary, for each that has room, and at all of them."""
    room = [n < ceiling for n, ceiling in zip(now, ceilings, strict=True)]
    single = {tuple(n + (i == j) for j, n in enumerate(now)) for i in range(len(now)) if room[i]}
    return single | ({tuple(n + 1 for n in now)} if all(room) else set())


def _hiding_depth(pipeline: Pipeline, scenario: Scenario, boundary: int) -> int:
    """ceil(2c / (f + b)) for one boundary (derived model, see the geopipe schedule), c from both directions."""
    delay = 0
    up, down = pipeline.stages[boundary], pipeline.stages[boundary + 1]
    for ranks, payload in (
        ((boundary, boundary + 1), up.forward_payload_bytes),
        ((boundary + 1, boundary), down.backward_payload_bytes),
    ):
        link = scenario.topology.link(*ranks)
        if link is not None:
            delay += link.latency_ns + link.occupancy_ns(payload or 0)
    cycle = min(
        (s.median_ns(ActionKind.FORWARD) or 0) + (s.median_ns(ActionKind.BACKWARD) or 0) for s in pipeline.stages
    )
    return ceil(delay / cycle) if cycle else 0
