"""How deep geopipe's warm-up should be: the smallest that hides the links within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleDeadlock
from tracetool.metrics import Metrics, measure
from tracetool.model.action import ActionKind
from tracetool.replay import replay
from tracetool.schedules import build_schedule
from tracetool.schedules.geopipe import extra_per_rank
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape

GAIN_RATIO = 0.005
"""geopipe stops adding forwards when no deeper warm-up shortens the step by more than this share."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where a schedule first needs more memory than there is."""

    rank: int
    missing_bytes: int


def fits(metrics: Metrics, scenario: Scenario) -> tuple[bool | None, Shortage | None]:
    """Whether a replay stays within the scenario's memory limit, and the rank that lacks most if not.

    Returns:
        True without a limit, None if there is one but memory is unknown.
    """
    if scenario.hbm_bytes is None:
        return True, None
    over = [
        Shortage(rank, peak - scenario.hbm_bytes)
        for rank, peak in enumerate(metrics.peak_hbm_bytes)
        if peak is not None and peak > scenario.hbm_bytes
    ]
    if over:
        return False, max(over, key=lambda s: s.missing_bytes)
    return (None if None in metrics.peak_hbm_bytes else True), None


@dataclass(frozen=True, slots=True)
class _Depth:
    """One choice of extra forwards, replayed."""

    per_boundary: tuple[int, ...]
    extra_forwards: tuple[int, ...]
    step_ns: int
    feasible: bool | None


def choose_depth(pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> tuple[tuple[int, ...], str | None]:
    """Extra warm-up forwards per pipeline rank that hide the links, within the memory limit.

    From 1F1B on, forwards are added where they shorten the step most (to one boundary, or to all), each
    choice replayed. Taken is the first depth after which no deeper one shortens the step by more than
    ``GAIN_RATIO``; if that does not fit the memory, the search goes again over what does.

    Returns:
        Extra forwards per rank, and in words what limited them.
    """
    boundaries = scenario.topology.boundaries()
    if not boundaries:
        return (0,) * shape.ranks, "no DC boundary: nothing to hide, the order is 1F1B's"
    path, deadlock = _deepening(pipeline, shape, scenario, boundaries)
    if not path:
        return (0,) * shape.ranks, None  # even 1F1B deadlocks here: replaying it will say where
    best = _first_good(path)
    if path[0].feasible is False:
        return path[0].extra_forwards, "even 1F1B's own warm-up exceeds the HBM limit"
    if best.feasible is not False:
        return best.extra_forwards, _why_not_deeper(best, path, deadlock=deadlock)
    fitting, _ = _deepening(pipeline, shape, scenario, boundaries, only_fitting=True)
    chosen = _first_good(fitting)
    return chosen.extra_forwards, (
        f"limited by HBM: without the limit {_signed(best.extra_forwards)} would take {format_duration(best.step_ns)}"
    )


def _why_not_deeper(best: _Depth, path: Sequence[_Depth], *, deadlock: bool) -> str | None:
    if deadlock:
        return f"anything deeper than {_signed(path[-1].extra_forwards)} would deadlock with blocking transfers"
    if best.step_ns > min(d.step_ns for d in path):
        return f"deeper warm-ups would gain less than {GAIN_RATIO:.1%}"
    return None


def _signed(extra_forwards: Sequence[int]) -> str:
    return "+" + ",".join(map(str, extra_forwards))


def _first_good(path: Sequence[_Depth]) -> _Depth:
    for index, depth in enumerate(path):
        rest = min(d.step_ns for d in path[index:])
        if depth.step_ns - rest <= GAIN_RATIO * depth.step_ns:
            return depth
    raise AssertionError("the last depth has none after it")


def _deepening(
    pipeline: Pipeline,
    shape: PipelineShape,
    scenario: Scenario,
    boundaries: Sequence[int],
    *,
    only_fitting: bool = False,
) -> tuple[list[_Depth], bool]:
    """Ever deeper warm-ups, from none to twice what the closed form of the schedule asks for.

    Returns:
        The path, and whether it ends because anything deeper would deadlock.
    """

    def depth_of(per_boundary: tuple[int, ...]) -> _Depth | None:
        extra = extra_per_rank(shape.ranks, dict(zip(boundaries, per_boundary, strict=True)))
        try:
            done = replay(pipeline, build_schedule("geopipe", shape, extra_forwards=extra), scenario)
        except ScheduleDeadlock:
            return None
        metrics = measure(done.timeline)
        return _Depth(per_boundary, extra, metrics.step_ns, fits(metrics, scenario)[0])

    ceilings = [min(shape.microbatches, 2 * _hiding_depth(pipeline, scenario, b) + 2) for b in boundaries]
    path: list[_Depth] = []
    raised = {(0,) * len(boundaries)}
    while raised:
        running = [depth for depth in map(depth_of, sorted(raised)) if depth is not None]
        found = [depth for depth in running if depth.feasible is not False or not only_fitting]
        if not found:
            return path, not running
        path.append(min(found, key=lambda d: (d.step_ns, d.per_boundary)))
        raised = _raised(path[-1].per_boundary, ceilings)
    return path, False


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
