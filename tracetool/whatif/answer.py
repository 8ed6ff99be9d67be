"""The question users come with: what would other schedules take over these links, within this memory?"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, Option, ScenarioError, ScheduleError, checked
from tracetool.model.notice import Notice, NoticeCode, Notices, unasked
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import measure
from tracetool.reconstruction.job import WholeJob
from tracetool.replays.evaluation import evaluate, stages_for
from tracetool.replays.problem import pose
from tracetool.schedules import REFERENCE, build_schedule, needs_costs, parse_names, tuning_of
from tracetool.schedules.names import choice_of, named_here, recognise, refuse_chunks, refuse_unheeded, schedule_name
from tracetool.whatif.accuracy import LayersStep, known_error, layers_gain, with_copies
from tracetool.whatif.best import choose, plan_name, recorded_schedule, recorded_test, rests_on
from tracetool.whatif.depth import choose_warm_ups
from tracetool.whatif.job import joined, pipeline_notes, refuse_of_one, setting
from tracetool.whatif.layers import gain_note, layers_error
from tracetool.whatif.memory_limit import all_fit, find_shortage
from tracetool.whatif.own_error import is_like_the_recordings, own_error_notices, own_miss
from tracetool.whatif.remarks import (
    ResultRemarks,
    derived_remarks,
    host_notes,
    memory_remarks,
    notes_of,
    overlap_remarks,
)
from tracetool.whatif.results import Answer, Fidelity, Refused, Result, step_change, step_change_error
from tracetool.whatif.variation import predict_each_step, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.job import SortedPipelines
    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Taken
    from tracetool.model.schedule import PipelineShape
    from tracetool.reconstruction import Reconstruction
    from tracetool.whatif.depth import WarmUps


__all__ = ["Answer", "Fidelity", "Refused", "Result", "answer", "fidelity_of", "step_change", "step_change_error"]


@checked
def answer(
    recording: Reconstruction,
    schedules: str | Sequence[str],
    scenario: Scenario | None = None,
    *,
    baseline: str | None = None,
    extra_forwards: tuple[int, ...] | None = None,
    jitter_seed: int | None = None,
    chunks: int | None = None,
    time_limit_s: float | None = None,
    each_step: Sequence[Pipeline] = (),
    pipelines: WholeJob | SortedPipelines | None = None,
    progress: Progress | None = None,
) -> Answer:
    """Replay schedules in a scenario and compare them with a baseline.

    Args:
        recording: A reconstructed Run.
        schedules: Names, as ``build_schedule`` or torch has them (``schedules.names``); a list, or with commas.
        scenario: What differs from the measurement; by default nothing.
        baseline: Schedule to compare with; by default the recorded order, by its name if it has one.
        extra_forwards: For schedules that are tuned, per pipeline rank; chosen by ``choose_depth`` if not given.
        jitter_seed: Also replay each result with costs drawn anew.
        chunks: Stages per rank that schedules of several get from a trace of one; by default as few as they take.
        time_limit_s: For optimal: how long to search; by default half a minute.
        each_step: What each recorded step measured: results are replayed by each as well.
        pipelines: All of the job: with their costs (``record_job``) they are replayed together, as those of a joined
            recording are (``join_pipelines``): a step is as slow as the slowest of them and the reduction that joins
            them, and what is said of one pipeline is said of the one that sets the recorded step. Sorted
            (``sort_pipelines``), they are only told of.
        progress: Told how many schedules there are to replay, and how many are done.

    Raises:
        ScenarioError: If none of the schedules heeds an option that was given.
        ScheduleError: If the baseline or none of the schedules fits; one of several is among ``refused``.
        TraceToolError: If a schedule does not exist, or the scenario does not fit the pipeline.

    Example:
        >>> answer = tt.answer(found, "geopipe", scenario)
        >>> answer.results[0].extra_forwards, answer.results[0].feasible
        ((2, 2, 0, 0), True)
        >>> f"{answer.bubble_reduction(answer.results[0]):.1%}"
        '28.4%'
    """
    schedules, scenario = parse_names(schedules), scenario or Scenario()
    if isinstance(pipelines, WholeJob):
        recording, pipelines = joined(pipelines), pipelines.sorted
    pipeline = recording.pipeline
    if pipeline.job is not None:
        refuse_of_one(jitter=jitter_seed is not None, each_step=bool(each_step))
        pipelines = pipeline.job.sorted
    observed = pipeline.observed
    scenario.topology.check(observed.shape.ranks)
    shape = replace(observed.shape, microbatches=scenario.microbatches or observed.shape.microbatches)
    baseline = recorded_schedule(observed, scenario.microbatches) if baseline is None else baseline
    renamed = [meant for asked in dict.fromkeys((*schedules, baseline)) if (meant := named_here(asked))]
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
            f"{scenario.pipelines} pipelines are to share links, but there is none.",
            hint=f"add {Option.DC} and {Option.LINK}",
        )
    known = recognise(observed)
    notes = Notices([*(Notice(NoticeCode.NAME_MEANT, meant) for meant in renamed), *recording.notes])
    if not observed.has_backwards and baseline == REFERENCE:
        baseline = OBSERVED
        notes.add(
            NoticeCode.BASELINE_OBSERVED,
            "the step has no backward (inference, or an evaluation): the baseline is the observed order",
        )
    if observed.shape.chunks > 1 and baseline == REFERENCE:
        baseline = OBSERVED
        notes.add(NoticeCode.BASELINE_OBSERVED, "the baseline is the observed order: 1f1b needs one stage per rank")
    recorded = measure(recording.observed)
    fidelity, own_error = fidelity_of(recording)
    is_like = is_like_the_recordings(recording)
    how = _How(
        shape=shape, scenario=scenario, chunks=chunks, own_error=own_error, is_like=is_like, jitter_seed=jitter_seed,
        time_limit_s=time_limit_s, each_step=each_step, taken=recording.taken,
    )  # fmt: skip
    progress = progress or unasked()
    progress.start(1 + len(schedules))
    base = _evaluate(pipeline, baseline, how, None)
    progress.advance(1)
    results, refused = _evaluate_each(pipeline, schedules, how, extra_forwards, progress)
    if pipeline.unchanged is not None:
        notes.append(_gained(pipeline, base, _evaluate(pipeline.unchanged, baseline, how, None)))
    tuned = [name for name in schedules if tuning_of(name) is not None and extra_forwards is None]
    closer = [result for name in tuned for result in _closer(pipeline, name, how)]
    best = choose([base, *results, *closer], recorded_test(pipeline), baseline).best
    results += [result for result in closer if result is best]
    every_note = (*notes, *host_notes(recording), *notes_of(pipeline, scenario, [base, *results]))
    return Answer(
        pipeline=pipeline, observed=recording.observed, observed_schedule=known.name if known else None,
        observed_metrics=recorded, fidelity=fidelity, scenario=scenario, baseline=base, results=tuple(results),
        notes=tuple(pipeline_notes(every_note, pipelines, base.slowest_pipeline, scenario)), refused=tuple(refused),
        warnings=tuple(own_error_notices(own_error)), taken=recording.taken, jitter_seed=jitter_seed,
        closer=tuple(result for result in closer if result is not best), pipelines=pipelines,
    )  # fmt: skip


def _gained(pipeline: Pipeline, base: Result, plain: Result) -> Notice:
    """What layers that do not run as recorded make of the baseline."""
    steps = (
        LayersStep(one.step_ns, one.known_error, layers_error(of))
        for one, of in ((plain, pipeline.unchanged or pipeline), (base, pipeline))
    )
    return gain_note(plan_name(base), layers_gain(pipeline.overlap, *steps))


def fidelity_of(recording: Reconstruction) -> tuple[Fidelity, float]:
    """How well replay gives back what was observed, and by how much it misses window or step.

    A model that misses its own recording by more than the known error misses other orders by as much at least.
    """
    miss = own_miss(recording)
    return Fidelity(miss.observed.window_ns, miss.replayed.window_ns, miss.profiler_ns), miss.error_ratio


@dataclass(frozen=True, kw_only=True)
class _How:
    """What all results of an answer share."""

    shape: PipelineShape
    scenario: Scenario
    chunks: int | None
    own_error: float
    is_like: bool
    jitter_seed: int | None
    time_limit_s: float | None
    each_step: Sequence[Pipeline]
    taken: Taken
    known_warm_ups: dict[str, WarmUps] = field(default_factory=dict)

    def warm_ups(self, name: str, pipeline: Pipeline, shape: PipelineShape) -> WarmUps:
        """Depths of a schedule that is tuned, sought once."""
        if name not in self.known_warm_ups:
            self.known_warm_ups[name] = choose_warm_ups(name, pipeline, shape, self.scenario)
        return self.known_warm_ups[name]


def _evaluate_each(
    pipeline: Pipeline, names: Sequence[str], how: _How, extra_forwards: tuple[int, ...] | None, progress: Progress
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
        progress.advance(1)
    if not results:
        raise ScheduleError(
            f"none of {', '.join(names)} fits. " + " ".join(f"{r.schedule}: {r.reason}" for r in refused),
            hint=next((r.hint for r in refused if r.hint), None),
        )
    return results, refused


def _closer(pipeline: Pipeline, name: str, how: _How) -> list[Result]:
    """What a tuned schedule takes with a warm-up closer to its shortest step, where that is another one."""
    warm_ups = how.known_warm_ups.get(name)
    if warm_ups is None or warm_ups.closer is None:
        return []  # where none were found, it is refused with the reason
    try:
        result = _evaluate(pipeline, name, how, warm_ups.closer)
    except (ScheduleError, BadTopology):
        return []
    return [replace(result, remarks=(*_noticed(NoticeCode.WARM_UP, warm_ups.closer_remark), *result.remarks))]


def _noticed(code: NoticeCode, text: str | None) -> tuple[Notice, ...]:
    return (Notice(code, text),) if text else ()


def _evaluate(pipeline: Pipeline, name: str, how: _How, extra_forwards: tuple[int, ...] | None) -> Result:
    shape, scenario = how.shape, how.scenario
    chosen: tuple[Notice, ...] = ()
    choice = choice_of(name, extra_forwards, how.chunks, how.time_limit_s)
    cut_forwards: tuple[int, ...] = ()
    unlimited_ns = None
    measured = pipeline
    pipeline, shape, cut = stages_for(pipeline, name, how.chunks, shape.microbatches)
    if tuning_of(name) is not None and extra_forwards is None:
        warm_ups = how.warm_ups(name, pipeline, shape)
        extra_forwards, unlimited_ns = warm_ups.chosen, warm_ups.unlimited_ns
        chosen = _noticed(NoticeCode.WARM_UP, warm_ups.remark)
        if warm_ups.limited_by_hbm and warm_ups.wanted is not None:
            pairs = zip(warm_ups.wanted, extra_forwards, strict=True)
            cut_forwards = tuple(max(0, more - now) for more, now in pairs)
    posed = pose(pipeline, shape, scenario) if needs_costs(name) else None
    schedule = build_schedule(
        name,
        shape,
        extra_forwards=extra_forwards,
        observed=pipeline.observed,
        problem=posed.problem if posed else None,
        time_limit_s=30.0 if how.time_limit_s is None else how.time_limit_s,
        judge=posed.judge if posed else None,
    )
    free = replace(scenario, topology=scenario.topology.without_delays())
    evaluation = evaluate(pipeline, schedule, scenario)
    done, metrics, ideal = evaluation.replayed, evaluation.metrics, evaluate(pipeline, schedule, free).metrics
    known = known_error(measured, schedule, done.p2p, scenario, how.own_error) if how.is_like else None
    known = with_copies(known, how.taken)
    remarks = (
        *((cut,) if cut else chosen),
        *_noticed(NoticeCode.ORDER_SEARCHED, schedule.remark),
        *(posed.remarks if posed else ()),
        *derived_remarks(pipeline, schedule, metrics, scenario),
        *memory_remarks(measured, pipeline, metrics),
        *overlap_remarks(schedule, scenario),
    )
    return Result(
        schedule=schedule.name, extra_forwards=schedule.extra_forwards, p2p=done.p2p,
        microbatches=schedule.shape.microbatches, feasible=all_fit((of for _, of in evaluation.kinds), scenario),
        shortage=next(filter(None, (find_shortage(*each, scenario) for each in evaluation.kinds)), None),
        metrics=metrics,
        cross_dc_bubble_ns=metrics.window_ns - ideal.window_ns, cross_dc_step_ns=metrics.step_ns - ideal.step_ns,
        replayed=done, known_error=known,
        remarks=ResultRemarks(remarks, pipeline, done, metrics.step_ns, scenario),
        spread=None if how.jitter_seed is None else spread(pipeline, schedule, scenario, how.jitter_seed),
        cut_forwards=cut_forwards, each_step=predict_each_step(how.each_step, schedule, scenario), choice=choice,
        rests_on=rests_on(measured, name, schedule, done.p2p), unlimited_ns=unlimited_ns,
        slowest=setting(pipeline, evaluation),
    )  # fmt: skip
