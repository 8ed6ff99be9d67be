"""The question users come with: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.caveats import derived_remarks, has_memory, host_notes, is_like_the_recordings, memory_remarks
from tracetool.costs.recut import recut
from tracetool.depth import GAIN_RATIO, Shortage, choose_depth, fits
from tracetool.errors import ScenarioError, ScheduleError
from tracetool.metrics import Metrics, measure
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.replay import Replayed, replay
from tracetool.schedules import SCHEDULES, build_schedule
from tracetool.schedules.recognise import recognise
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import PipelineShape, Placement, Schedule
    from tracetool.model.timeline import Timeline
    from tracetool.reconstruct import Reconstruction


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
        seen_error_ratio: Largest error of the step time that predictions of this kind had on the recorded H100
            runs (see ``_seen_error``); None for kinds that none of them was like.
        remark: Why this variant was chosen, or how its costs came about.
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
    seen_error_ratio: float | None
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A schedule that was asked for and does not fit.

    Attributes:
        schedule: Its name.
        reason: Why it cannot be replayed.
        hint: What to do about it.
    """

    schedule: str
    reason: str
    hint: str | None


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
        results: One per schedule asked for that fits.
        notes: What was inferred, is missing or not modelled.
        refused: Schedules asked for that do not fit.
        warnings: Why not to trust any of it, for readers to see first.
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
    refused: tuple[Refused, ...] = ()
    warnings: tuple[str, ...] = ()

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
        ScheduleError: If the baseline or none of the schedules fits; one of several is among ``refused``.
        TraceToolError: If a schedule does not exist, or the scenario does not fit the pipeline.
    """
    scenario = scenario or Scenario()
    pipeline = found.pipeline
    observed = pipeline.observed
    scenario.topology.check(observed.shape.ranks)
    shape = replace(observed.shape, microbatches=scenario.microbatches or observed.shape.microbatches)
    if extra_forwards is not None and "geopipe" not in [name.lower() for name in schedules]:
        raise ScenarioError(
            f"extra forwards are geopipe's, and {', '.join(schedules)} has none.", hint="add --schedule geopipe"
        )
    known = recognise(observed)
    notes = list(found.notes)
    if observed.shape.chunks > 1 and baseline == "1f1b":
        baseline = "observed"
        notes.append("the baseline is the observed order: 1f1b needs one stage per rank")
    back, seen = measure(replay(pipeline, observed, Scenario()).timeline), measure(found.observed)
    fidelity = Fidelity(seen.window_ns, back.window_ns)
    # A model that misses its own recording by more than the known error misses other orders by as much at least.
    own_error = max(abs(fidelity.error_ratio), abs(back.step_ns / seen.step_ns - 1))
    base = _evaluate(pipeline, baseline, shape, scenario, None, own_error)
    results, refused = _evaluate_each(pipeline, schedules, shape, scenario, extra_forwards, own_error)
    if not is_like_the_recordings(found):
        base = replace(base, seen_error_ratio=None)
        results = [replace(result, seen_error_ratio=None) for result in results]
    return Answer(
        pipeline=pipeline,
        observed=found.observed,
        observed_schedule=known.name if known else None,
        observed_metrics=seen,
        fidelity=fidelity,
        scenario=scenario,
        baseline=base,
        results=tuple(results),
        notes=(*notes, *host_notes(found), *_notes(pipeline, scenario, [base, *results])),
        refused=tuple(refused),
        warnings=tuple(_distrust(own_error)),
    )


def _evaluate_each(
    pipeline: Pipeline,
    names: Sequence[str],
    shape: PipelineShape,
    scenario: Scenario,
    extra_forwards: tuple[int, ...] | None,
    own_error: float,
) -> tuple[list[Result], list[Refused]]:
    """Results of the schedules that fit, and why the others do not."""
    results: list[Result] = []
    refused: list[Refused] = []
    for name in names:
        try:
            results.append(_evaluate(pipeline, name, shape, scenario, extra_forwards, own_error))
        except ScheduleError as error:
            if len(names) == 1:
                raise
            refused.append(Refused(name, error.message, error.hint))
    if not results:
        raise ScheduleError(
            f"none of {', '.join(names)} fits. "
            + " ".join(r.reason if r.schedule in r.reason else f"{r.schedule}: {r.reason}" for r in refused),
            hint=next((r.hint for r in refused if r.hint), None),
        )
    return results, refused


def _evaluate(
    pipeline: Pipeline,
    name: str,
    shape: PipelineShape,
    scenario: Scenario,
    extra_forwards: tuple[int, ...] | None,
    own_error: float,
) -> Result:
    remark = None
    if name.lower() == "geopipe" and extra_forwards is None:
        extra_forwards, remark = choose_depth(pipeline, shape, scenario)
    measured = pipeline
    if (chunks := _chunks_needed(name)) is not None and shape.chunks == 1 < chunks[0]:
        pipeline = recut(pipeline, chunks[0], placement=chunks[1])
        shape = replace(pipeline.observed.shape, microbatches=shape.microbatches)
        remark = f"each rank's stage re-cut into {chunks[0]} by its layers (peaks of such were up to 8 % off)"
    schedule = build_schedule(name, shape, extra_forwards=extra_forwards, observed=pipeline.observed)
    done = replay(pipeline, schedule, scenario)
    metrics = measure(done.timeline)
    free = replace(scenario, topology=scenario.topology.without_delays())
    ideal = measure(replay(pipeline, schedule, free).timeline)
    feasible, shortage = fits(metrics, scenario)
    known = _seen_error(measured, schedule, done.p2p, len(scenario.topology.boundaries()))
    remarks = [
        *([remark] if remark else []),
        *derived_remarks(pipeline, schedule, metrics, scenario),
        *memory_remarks(measured, pipeline, metrics),
        *_transfer_remarks(pipeline, done, metrics, scenario),
    ]
    return Result(
        schedule=schedule.name,
        extra_forwards=schedule.extra_forwards,
        p2p=done.p2p,
        microbatches=schedule.shape.microbatches,
        feasible=feasible,
        shortage=shortage,
        metrics=metrics,
        cross_dc_bubble_ns=metrics.window_ns - ideal.window_ns,
        timeline=done.timeline,
        seen_error_ratio=None if known is None else max(known, own_error),
        remark="; ".join(remarks) or None,
    )


def _chunks_needed(name: str) -> tuple[int, Placement] | None:
    """Stages per rank that a named schedule needs, and where they sit; None for an order from a file."""
    if name.startswith("csv:"):
        return None
    kind = SCHEDULES.get(name)
    return kind.least_chunks, kind.placement


def _transfer_remarks(pipeline: Pipeline, done: Replayed, metrics: Metrics, scenario: Scenario) -> list[str]:
    """What of a result comes from how its transfers are issued."""
    remarks = []
    schedule = done.schedule
    if schedule.extra_forwards and not any(schedule.extra_forwards) and done.p2p != pipeline.p2p:
        remarks.append("this is 1F1B's order: what differs from 1f1b comes from how transfers are issued")
    if done.p2p != "per-edge" and not schedule.blocking and scenario.topology.links:
        edges = measure(replay(pipeline, schedule, replace(scenario, p2p="per-edge")).timeline)
        if edges.step_ns < (1 - GAIN_RATIO) * metrics.step_ns:
            remarks.append(f"with a channel per edge (--p2p per-edge) it would take {format_duration(edges.step_ns)}")
    return remarks


_ONE_FAMILY = ("1f1b", "geopipe")


def _seen_error(pipeline: Pipeline, schedule: Schedule, mode: P2PMode, boundaries: int) -> float | None:
    """Largest error of the step time for such a prediction, over all pairs of recorded H100 runs (README, Accuracy).

    They had one stage per rank (two, re-cut, in ``interleaved``), as many microbatches replayed as recorded, and at
    most one DC boundary, which per-edge transfers did not cross; anything else was not tried.

    Compute slows down beside communication kernels that wait, which is not modelled: costs belong to the order
    and the transfers they were recorded with.
    """
    shape = pipeline.observed.shape
    is_recut = schedule.name == "interleaved" and schedule.shape == replace(shape, chunks=2)
    tried = shape.chunks == 1 and (schedule.shape == shape or is_recut)
    tried = tried and boundaries <= (0 if mode == "per-edge" else 1)
    if not tried or any(stage.evidence == "kernels" for stage in pipeline.stages):
        return None
    if any(ActionKind.BACKWARD_WEIGHT in stage.costs for stage in pipeline.stages):
        return 0.18
    if is_recut:
        return 0.09
    recorded = recognise(pipeline.observed)
    alike = schedule.orders == pipeline.observed.orders or (
        recorded is not None and recorded.name in _ONE_FAMILY and schedule.name in _ONE_FAMILY
    )
    return 0.03 if alike and mode == pipeline.p2p else 0.08


def _distrust(own_error: float) -> list[str]:
    if own_error <= 0.05:
        return []
    return [
        f"replay misses its own recording by {own_error:.1%}: do not trust its predictions before the cause is known"
    ]


def _beyond_allocations(pipeline: Pipeline) -> list[str]:
    """What the HBM limit is compared with."""
    known = [r.overhead_bytes for r in pipeline.ranks if r.overhead_bytes is not None]
    if not known:
        return []
    return [
        f"a rank needs its peak and what it occupied beyond that when recorded (up to {format_size(max(known))}): what "
        "its allocator reserves more than it hands out and, on Ascend, what else the process holds; CUDA's context "
        "and NCCL's buffers are in no torch trace: leave room for them"
    ]


def _notes(pipeline: Pipeline, scenario: Scenario, results: Sequence[Result]) -> list[str]:
    recorded = recognise(pipeline.observed)
    notes = [
        "Not modelled: compute slows down beside communication kernels that wait, so costs belong to the order and "
        f"transfers they were recorded with ({recorded.name if recorded else 'unknown order'}, {pipeline.p2p})"
    ]
    if any(r.seen_error_ratio is not None for r in results):
        notes.insert(
            0,
            "±: the largest error of such predictions on this tool's own H100 recordings (~: a change within it; "
            "empty: none was like it)",
        )
    if scenario.hbm_bytes is not None and any(r.feasible for r in results):
        notes.append("maybe: a peak within 4 % of the limit")
    unchecked = [r.schedule for r in results if r.feasible is None]
    if scenario.hbm_bytes is not None and unchecked:
        notes.append(
            f"the HBM limit was not checked for {', '.join(dict.fromkeys(unchecked))} (its remark says why): give "
            "--activation and --static"
            if has_memory(pipeline)
            else "what actions hold in memory is unknown, so the HBM limit was not checked: give --activation and "
            "--static (torch: or record with profile_memory=True)"
        )
    if scenario.hbm_bytes is not None and scenario.static_bytes is None:
        notes += _beyond_allocations(pipeline)
    if scenario.activation_bytes is not None:
        notes.append("≥: peaks from --activation and --static leave out transient buffers and gradients")
    device = min((r.hbm_bytes for r in pipeline.ranks if r.hbm_bytes is not None), default=None)
    if scenario.hbm_bytes is not None and device is not None and scenario.hbm_bytes > device:
        notes.append(f"the HBM limit is above what the recorded devices have ({format_size(device)})")
    return notes
