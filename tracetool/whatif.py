"""The question users come with: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleDeadlock
from tracetool.metrics import Metrics, measure
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.replay import replay
from tracetool.schedules import build_schedule
from tracetool.schedules.geopipe import extra_per_rank
from tracetool.schedules.recognise import recognise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import PipelineShape
    from tracetool.model.timeline import Timeline
    from tracetool.reconstruct import Reconstruction

GAIN_RATIO = 0.005
"""geopipe stops adding forwards when no deeper warm-up shortens the step by more than this share."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """Where a schedule first needs more memory than there is."""

    rank: int
    missing_bytes: int


@dataclass(frozen=True, slots=True)
class Result:
    """One schedule in one scenario.

    Attributes:
        schedule: Name of the schedule.
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's; None for schedules without any.
        p2p: How its transfers were issued.
        microbatches: Microbatches per step.
        feasible: Whether it fits the memory limit; None if there is a limit but memory is unknown.
        shortage: The rank that lacks most, if it does not fit.
        metrics: Its metrics.
        cross_dc_bubble_ns: Window minus the window with free cross-DC links.
        timeline: When everything ran.
        remark: Why this variant was chosen, for geopipe.
    """

    schedule: str
    extra_forwards: tuple[int, ...] | None
    p2p: P2PMode
    microbatches: int
    feasible: bool | None
    shortage: Shortage | None
    metrics: Metrics
    cross_dc_bubble_ns: int
    timeline: Timeline
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well replay gives back what was observed: the observed order at the measured costs."""

    observed_ns: int
    replayed_ns: int

    @property
    def error_ratio(self) -> float:
        """Replayed over observed window, minus one."""
        return self.replayed_ns / self.observed_ns - 1


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything a report says.

    Attributes:
        pipeline: What was measured.
        observed: The observed Timeline.
        observed_schedule: Name of the observed order, or None if it is none that is known.
        observed_metrics: Metrics of the observed Timeline.
        fidelity: Check of the model on the observed order.
        scenario: The what-if.
        baseline: The schedule that the others are compared with, in the same scenario.
        results: One per schedule asked for.
        notes: What was inferred, is missing or not modelled.
    """

    pipeline: Pipeline
    observed: Timeline
    observed_schedule: str | None
    observed_metrics: Metrics
    fidelity: Fidelity
    scenario: Scenario
    baseline: Result
    results: tuple[Result, ...]
    notes: tuple[str, ...]

    def bubble_reduction(self, result: Result) -> float | None:
        """1 - bubble of the result / bubble of the baseline; None if the baseline has no bubble."""
        return _reduction(result.metrics.bubble_ns, self.baseline.metrics.bubble_ns)

    def cross_dc_bubble_reduction(self, result: Result) -> float | None:
        """The same for the cross-DC bubble."""
        return _reduction(result.cross_dc_bubble_ns, self.baseline.cross_dc_bubble_ns)


def _reduction(value: int, base: int) -> float | None:
    return None if base == 0 else 1 - value / base


def answer(
    found: Reconstruction,
    schedules: Sequence[str],
    scenario: Scenario | None = None,
    *,
    baseline: str = "1f1b",
    extra_forwards: tuple[int, ...] | None = None,
) -> Answer:
    """Replay schedules in a scenario and compare them with a baseline.

    Args:
        found: A reconstructed Run.
        schedules: Names, as ``build_schedule`` takes them.
        scenario: What differs from the measurement; by default nothing.
        baseline: Schedule to compare with.
        extra_forwards: For geopipe, per pipeline rank; chosen by ``choose_depth`` if not given.

    Raises:
        TraceToolError: If a schedule does not exist or fit, or the scenario does not fit the pipeline.
    """
    scenario = scenario or Scenario()
    pipeline = found.pipeline
    observed = pipeline.observed
    scenario.topology.check(observed.shape.ranks)
    shape = replace(observed.shape, microbatches=scenario.microbatches or observed.shape.microbatches)
    known = recognise(observed)
    if known is None and observed.shape.chunks > 1 and baseline == "1f1b":
        baseline = "observed"
    back = replay(pipeline, observed, Scenario())
    base = _evaluate(pipeline, baseline, shape, scenario, None)
    results = [_evaluate(pipeline, name, shape, scenario, extra_forwards) for name in schedules]
    return Answer(
        pipeline=pipeline,
        observed=found.observed,
        observed_schedule=known.name if known else None,
        observed_metrics=measure(found.observed),
        fidelity=Fidelity(measure(found.observed).window_ns, measure(back.timeline).window_ns),
        scenario=scenario,
        baseline=base,
        results=tuple(results),
        notes=(*found.notes, *_notes(pipeline, scenario, [base, *results])),
    )


def _evaluate(
    pipeline: Pipeline,
    name: str,
    shape: PipelineShape,
    scenario: Scenario,
    extra_forwards: tuple[int, ...] | None,
) -> Result:
    remark = None
    if name.lower() == "geopipe" and extra_forwards is None:
        extra_forwards, remark = choose_depth(pipeline, shape, scenario)
    schedule = build_schedule(name, shape, extra_forwards=extra_forwards, observed=pipeline.observed)
    done = replay(pipeline, schedule, scenario)
    metrics = measure(done.timeline)
    free = replace(scenario, topology=scenario.topology.without_delays())
    ideal = measure(replay(pipeline, schedule, free).timeline)
    feasible, shortage = _fits(metrics, scenario)
    return Result(
        schedule=schedule.name,
        extra_forwards=schedule.extra_forwards,
        p2p=done.p2p,
        microbatches=shape.microbatches,
        feasible=feasible,
        shortage=shortage,
        metrics=metrics,
        cross_dc_bubble_ns=metrics.window_ns - ideal.window_ns,
        timeline=done.timeline,
        remark=remark,
    )


def _fits(metrics: Metrics, scenario: Scenario) -> tuple[bool | None, Shortage | None]:
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
    ``GAIN_RATIO``; if that does not fit the memory, the best of those that do.

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
        return best.extra_forwards, (
            f"more than {_depth_text(path[-1])} would deadlock with blocking transfers" if deadlock else None
        )
    fitting = _first_good([d for d in path if d.feasible is not False])
    return fitting.extra_forwards, (
        f"limited by HBM: {_depth_text(fitting)} fit, {_depth_text(best)} would hide the link"
    )


def _depth_text(depth: _Depth) -> str:
    return "+".join(map(str, depth.per_boundary)) + " extra forwards"


def _first_good(path: Sequence[_Depth]) -> _Depth:
    for index, depth in enumerate(path):
        rest = min(d.step_ns for d in path[index:])
        if depth.step_ns - rest <= GAIN_RATIO * depth.step_ns:
            return depth
    raise AssertionError("the last depth has none after it")


def _deepening(
    pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, boundaries: Sequence[int]
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
        return _Depth(per_boundary, extra, metrics.step_ns, _fits(metrics, scenario)[0])

    ceilings = [min(shape.microbatches, 2 * _hiding_depth(pipeline, scenario, b) + 2) for b in boundaries]
    path: list[_Depth] = []
    raised = {(0,) * len(boundaries)}
    while raised:
        found = [depth for depth in map(depth_of, sorted(raised)) if depth is not None]
        if not found:
            return path, True
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


def _notes(pipeline: Pipeline, scenario: Scenario, results: Sequence[Result]) -> list[str]:
    notes = []
    other_mode = sorted({r.p2p for r in results if r.p2p != pipeline.p2p})
    if other_mode:
        notes.append(
            f"not modelled: compute slows down beside communication kernels that wait. The costs come from a "
            f"{pipeline.p2p} run and are applied to {' and '.join(other_mode)} transfers; on the H100 runs this "
            "tool is tested with, step times predicted across modes were off by 4 to 8 %"
        )
    if scenario.hbm_bytes is not None and any(r.feasible is None for r in results):
        notes.append(
            "memory is unknown (the trace has no [memory] events), so the HBM limit was not checked: "
            "record with profile_memory=True, or give --activation and --static"
        )
    if scenario.activation_bytes is not None:
        notes.append("memory from --activation: transient buffers are not in it")
    return notes
