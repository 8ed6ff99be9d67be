"""The question users come with: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tracetool.accuracy import KnownError, change_error_ratio, is_within_error, known_error
from tracetool.causes import idle_intervals, idles_of
from tracetool.depth import LIMITED_BY_HBM, choose_depth
from tracetool.each_step import predict_each_step
from tracetool.errors import BadTopology, ScenarioError, ScheduleError
from tracetool.jitter import Spread, spread
from tracetool.memory_limit import Shortage, find_shortage, fits
from tracetool.metrics import Metrics, measure
from tracetool.model.choice import Choice, Taken
from tracetool.model.pipeline import BY_EDGE
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.remarks import (
    derived_remarks,
    distrust,
    host_notes,
    is_like_the_recordings,
    memory_remarks,
    notes_of,
    overlap_remarks,
    transfer_remarks,
)
from tracetool.replay import replay
from tracetool.replay.problem import pose
from tracetool.replay.stages import stages_for
from tracetool.schedules import SCHEDULES, build_schedule, parse_names
from tracetool.schedules.heeded import choice_of, refuse_chunks, refuse_unheeded
from tracetool.schedules.names import named_here, schedule_name
from tracetool.schedules.recognise import recognise
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.each_step import StepPrediction
    from tracetool.model.idle import Idle
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import PipelineShape
    from tracetool.model.timeline import Timeline
    from tracetool.reconstruct import Reconstruction
    from tracetool.replay import Replayed


@dataclass(frozen=True)
class Result:
    """One schedule in one scenario.

    Attributes:
        schedule: Name of the schedule.
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's; None for schedules without any.
        p2p: How its transfers were issued.
        microbatches: Microbatches per step.
        feasible: Whether it fits the memory limit; None if there is a limit but memory is unknown.
        shortage: Who exceeds the limit first and who lacks most, if it does not fit.
        metrics: Its metrics.
        cross_dc_bubble_ns: Window minus the window with free cross-DC links.
        replayed: Its order, and when everything ran.
        known_error: How far off predictions of this kind were on the recorded H100 runs; None for kinds that none of
            them was like.
        remark: Why this variant was chosen, or how its costs came about.
        spread: Step times with costs drawn anew, if that was asked for.
        cut_forwards: How many warm-up forwards of each rank the memory limit cut off; empty if it did not.
        each_step: The same by each recorded step, if that was asked for.
        choice: What was asked of it.
    """

    schedule: str
    extra_forwards: tuple[int, ...] | None
    p2p: P2PMode
    microbatches: int
    feasible: bool | None
    shortage: Shortage | None
    metrics: Metrics
    cross_dc_bubble_ns: int
    replayed: Replayed
    known_error: KnownError | None
    remark: str | None = None
    spread: Spread | None = None
    cut_forwards: tuple[int, ...] = ()
    each_step: tuple[StepPrediction, ...] = ()
    choice: Choice = field(default_factory=Choice)

    def __repr__(self) -> str:
        return f"<Result {self.schedule}: {format_duration(self.metrics.step_ns)}>"

    @property
    def timeline(self) -> Timeline:
        """When everything ran."""
        return self.replayed.timeline

    @property
    def seen_error_ratio(self) -> float | None:
        """Largest error of the step time that such predictions had on recorded runs; None if none was like it."""
        return None if self.known_error is None else self.known_error.step_ratio

    @cached_property
    def idles(self) -> tuple[Idle, ...]:
        """Every idle interval of the window with its cause; see ``causes``."""
        return idles_of(self.replayed, cut_forwards=self.cut_forwards)


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


@dataclass(frozen=True)
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
        taken: What of the costs was not measured where it is used.
        jitter_seed: Of costs drawn anew, if that was asked for.
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
    taken: Taken = field(default_factory=Taken)
    jitter_seed: int | None = None

    def __repr__(self) -> str:
        return f"<Answer: {', '.join(map(repr, self.results))}>"

    @cached_property
    def observed_idles(self) -> tuple[Idle, ...]:
        """Every idle interval of the observed window with its cause; no message crossed a link there."""
        p2p = self.pipeline.p2p
        return idle_intervals(self.observed, Topology(), blocking=p2p == "grouped", by_edge=p2p in BY_EDGE)

    def step_change(self, result: Result) -> float:
        """Step of the result over that of the baseline, minus one."""
        return step_change(self.baseline, result)

    def step_change_error(self, result: Result) -> float | None:
        """How far off that may be, as far as recorded runs tell; None if none was like it."""
        return step_change_error(self.baseline, result)

    def bubble_reduction(self, result: Result) -> float | None:
        """1 - bubble of the result / bubble of the baseline; None if the baseline has no bubble."""
        return _reduction(result.metrics.bubble_ns, self.baseline.metrics.bubble_ns)

    def cross_dc_bubble_reduction(self, result: Result) -> float | None:
        """The same for the cross-DC bubble."""
        return _reduction(result.cross_dc_bubble_ns, self.baseline.cross_dc_bubble_ns)


def step_change(base: Result, other: Result) -> float:
    """Step of the other over that of the base, minus one."""
    return other.metrics.step_ns / base.metrics.step_ns - 1


def step_change_error(base: Result, other: Result) -> float | None:
    """How far off that may be, as pairs of recorded runs tell it; None if none was like both."""
    return change_error_ratio(base.known_error, other.known_error, step_change(base, other))


def is_as_good(one: Result, other: Result) -> bool:
    """Whether it cannot be told which of two steps is shorter: they differ by no more than the error of that."""
    return is_within_error(one.known_error, other.known_error, step_change(one, other))


def _reduction(value: int, base: int) -> float | None:
    return None if base == 0 else 1 - value / base


def answer(
    found: Reconstruction,
    schedules: str | Sequence[str],
    scenario: Scenario | None = None,
    *,
    baseline: str = "1f1b",
    extra_forwards: tuple[int, ...] | None = None,
    jitter_seed: int | None = None,
    chunks: int | None = None,
    time_limit_s: float | None = None,
    each_step: Sequence[Pipeline] = (),
) -> Answer:
    """Replay schedules in a scenario and compare them with a baseline.

    Args:
        found: A reconstructed Run.
        schedules: Names, as ``build_schedule`` or torch has them (``schedules.names``); a list, or with commas.
        scenario: What differs from the measurement; by default nothing.
        baseline: Schedule to compare with.
        extra_forwards: For geopipe, per pipeline rank; chosen by ``choose_depth`` if not given.
        jitter_seed: Also replay each result with costs drawn anew.
        chunks: Stages per rank that schedules of several get from a trace of one; by default as few as they take.
        time_limit_s: For optimal: how long to search; by default half a minute.
        each_step: What each recorded step measured: results are replayed by each as well.

    Raises:
        ScenarioError: If none of the schedules heeds an option that was given.
        ScheduleError: If the baseline or none of the schedules fits; one of several is among ``refused``.
        TraceToolError: If a schedule does not exist, or the scenario does not fit the pipeline.

    Example:
        >>> answer = tt.answer(found, "geopipe", scenario)
        >>> answer.results[0].extra_forwards, answer.results[0].feasible
        ((2, 2, 0, 0), True)
        >>> f"{answer.bubble_reduction(answer.results[0]):.1%}"
        '29.6%'
    """
    schedules, scenario = parse_names(schedules), scenario or Scenario()
    pipeline = found.pipeline
    observed = pipeline.observed
    scenario.topology.check(observed.shape.ranks)
    shape = replace(observed.shape, microbatches=scenario.microbatches or observed.shape.microbatches)
    renamed = [told for asked in dict.fromkeys((*schedules, baseline)) if (told := named_here(asked))]
    schedules, baseline = list(dict.fromkeys(map(schedule_name, schedules))), schedule_name(baseline)
    if extra_forwards is not None:
        refuse_unheeded("extra forwards", schedules)
    if time_limit_s is not None:
        refuse_unheeded("time limit", [*schedules, baseline])
    if scenario.overlap_ratio != 1:
        refuse_unheeded("overlap ratio", [*schedules, baseline], observed)
    if chunks is not None:
        refuse_chunks([*schedules, baseline], observed)
    if (scenario.pipelines or 1) > 1 and not scenario.topology.links:
        raise ScenarioError(
            f"{scenario.pipelines} pipelines are to share links, but there is none.", hint="add --dc and --link"
        )
    known = recognise(observed)
    notes = [*renamed, *found.notes]
    if not observed.has_backwards and baseline == "1f1b":
        baseline = "observed"
        notes.append("the step has no backward (inference, or an evaluation): the baseline is the observed order")
    if observed.shape.chunks > 1 and baseline == "1f1b":
        baseline = "observed"
        notes.append("the baseline is the observed order: 1f1b needs one stage per rank")
    back = measure(replay(pipeline.as_recorded().with_other_pipelines(), observed, Scenario()).timeline)
    seen = measure(found.observed)
    fidelity = Fidelity(seen.window_ns, back.window_ns)
    # A model that misses its own recording by more than the known error misses other orders by as much at least.
    own_error = max(abs(fidelity.error_ratio), abs(back.step_ns / seen.step_ns - 1))
    is_like = is_like_the_recordings(found)
    how = _How(shape, scenario, chunks, own_error, is_like, jitter_seed, time_limit_s, each_step)
    base = _evaluate(pipeline, baseline, how, None)
    results, refused = _evaluate_each(pipeline, schedules, how, extra_forwards)
    return Answer(
        pipeline=pipeline,
        observed=found.observed,
        observed_schedule=known.name if known else None,
        observed_metrics=seen,
        fidelity=fidelity,
        scenario=scenario,
        baseline=base,
        results=tuple(results),
        notes=(*notes, *host_notes(found), *notes_of(pipeline, scenario, [base, *results])),
        refused=tuple(refused),
        warnings=tuple(distrust(own_error)),
        taken=found.taken,
        jitter_seed=jitter_seed,
    )


class _How(NamedTuple):
    """What all results of an answer share."""

    shape: PipelineShape
    scenario: Scenario
    chunks: int | None
    own_error: float
    is_like: bool
    jitter_seed: int | None
    time_limit_s: float | None
    each_step: Sequence[Pipeline]


def _evaluate_each(
    pipeline: Pipeline, names: Sequence[str], how: _How, extra_forwards: tuple[int, ...] | None
) -> tuple[list[Result], list[Refused]]:
    """Results of the schedules that fit, and why the others do not."""
    results: list[Result] = []
    refused: list[Refused] = []
    for name in names:
        try:
            results.append(_evaluate(pipeline, name, how, extra_forwards))
        except (ScheduleError, BadTopology) as error:
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


def _evaluate(pipeline: Pipeline, name: str, how: _How, extra_forwards: tuple[int, ...] | None) -> Result:
    shape, scenario = how.shape, how.scenario
    remark = None
    choice = choice_of(name, extra_forwards, how.chunks, how.time_limit_s)
    cut_forwards: tuple[int, ...] = ()
    if name == "geopipe" and extra_forwards is None:
        extra_forwards, remark = choose_depth(pipeline, shape, scenario)
        if remark is not None and remark.startswith(LIMITED_BY_HBM):
            unlimited, _ = choose_depth(pipeline, shape, replace(scenario, hbm_bytes=None))
            cut_forwards = tuple(max(0, more - now) for more, now in zip(unlimited, extra_forwards, strict=True))
    measured = pipeline
    pipeline, shape, cut = stages_for(pipeline, name, how.chunks, shape.microbatches)
    remark = cut or remark
    posed = pose(pipeline, shape, scenario) if _needs_costs(name) else None
    schedule = build_schedule(
        name,
        shape,
        extra_forwards=extra_forwards,
        observed=pipeline.observed,
        problem=posed.problem if posed else None,
        time_limit_s=30.0 if how.time_limit_s is None else how.time_limit_s,
        judge=posed.judge if posed else None,
    )
    done = replay(pipeline, schedule, scenario)
    metrics = measure(done.timeline)
    free = replace(scenario, topology=scenario.topology.without_delays())
    ideal = measure(replay(pipeline, schedule, free).timeline)
    known = known_error(measured, schedule, done.p2p, scenario, how.own_error) if how.is_like else None
    remarks = [
        *([remark] if remark else []),
        *([schedule.remark] if schedule.remark else []),
        *(posed.remarks if posed else ()),
        *derived_remarks(pipeline, schedule, metrics, scenario),
        *memory_remarks(measured, pipeline, metrics),
        *overlap_remarks(schedule, scenario),
        *transfer_remarks(pipeline, done, metrics, scenario),
    ]
    return Result(
        schedule=schedule.name,
        extra_forwards=schedule.extra_forwards,
        p2p=done.p2p,
        microbatches=schedule.shape.microbatches,
        feasible=fits(metrics, scenario),
        shortage=find_shortage(done.timeline, metrics, scenario),
        metrics=metrics,
        cross_dc_bubble_ns=metrics.window_ns - ideal.window_ns,
        replayed=done,
        known_error=known,
        remark="; ".join(remarks) or None,
        spread=None if how.jitter_seed is None else spread(pipeline, schedule, scenario, how.jitter_seed),
        cut_forwards=cut_forwards,
        each_step=predict_each_step(how.each_step, schedule, scenario),
        choice=choice,
    )


def _needs_costs(name: str) -> bool:
    return not name.startswith("csv:") and SCHEDULES.get(name).needs_costs
