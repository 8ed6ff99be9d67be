"""From a Run to the costs of whole steps: all pipelines, and the collectives around them without their waits."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import MissingRank, Option, ReconstructError, ScheduleError, command_or_call
from tracetool.model.notice import NoticeCode, Silent, SubjectKind
from tracetool.model.timeline import RankOp
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.actions.transfers import check_counts
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reconstruction.closeup.launches import has_late_launches
from tracetool.reconstruction.recorded_step import MOST_KERNELS, RecordedStep, record_each
from tracetool.reconstruction.steps import choose_step, steps_of
from tracetool.reconstruction.steps.reading import StepReading, step_evidence
from tracetool.replays.flow import Dataflow
from tracetool.stragglers.around import (
    HOST,
    LEADING,
    OPTIMIZER,
    Bounds,
    CollectiveWaits,
    ComputeKernels,
    RankCollective,
    collectives_around,
    leading_of,
    note_collectives,
    parts_between,
)
from tracetool.stragglers.step import Frame, JobStep, OutsideStretch, numbered
from tracetool.stragglers.together import put_together, waits_inside
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.timeline import Timeline
    from tracetool.reconstruction.actions import Segment
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.steps import Step
    from tracetool.store.run import Run
    from tracetool.stragglers.together import InsideWaits

MOST_STEPS = 32


def job_steps(run: Run, step: int | None, account: Account, progress: Progress | None = None) -> list[JobStep]:
    """The costs of the steps that all pipelines have complete.

    Args:
        run: The Run.
        step: Only this step; by default all, at most ``MOST_STEPS`` about the one of median length.
        account: Told what was left out.
        progress: Told how many pipelines there are, then how many of their steps, and how many are worked out.

    Raises:
        TraceToolError: If no step of any pipeline can be reconstructed.
    """
    progress = progress or Silent()
    survey = survey_run(run, Account())
    survey = replace(survey, run=survey.run.in_memory())
    progress.start(len(survey.pipelines))
    usable = _usable(run, survey, step, account, progress)
    numbers = _numbers(usable, step, account)
    waits = CollectiveWaits(survey)
    progress.start(len(usable) * len(numbers))
    of_pipelines = [
        steps
        for batch in _batches(usable, numbers, survey)
        for steps in _batch_steps(run, batch, numbers, survey, waits, progress)
    ]
    steps_of_job: list[JobStep] = []
    for number in numbers:
        pipelines: list[_PipelineStep] = []
        for of_pipeline in of_pipelines:
            one = of_pipeline[number]
            if not isinstance(one, _PipelineStep):
                if len(numbers) == 1:
                    raise one
                text = f"step {number} is left out: {one.message}"
                account.note(NoticeCode.STEPS_LEFT_OUT, text, subject=SubjectKind.STEP(number))
                break
            pipelines.append(one)
        else:
            steps_of_job.append(_job_step(number, pipelines, survey, account))
    if not steps_of_job:
        says = command_or_call("tracetool info RUN", "tracetool.reports.recording.findings.find_gaps(run)")
        raise ReconstructError(
            f"none of the steps {format_ranges(numbers)} of {run.name} can be reconstructed.",
            hint=f"{says} says what is missing",
        )
    return steps_of_job


class _PipelineStep(NamedTuple):
    """One step of one pipeline.

    Attributes:
        pipeline: Its costs.
        bounds: Per rank.
        collectives: Per rank, those outside its computes, in order.
        kernels: What computes ran ahead of and after the pipeline.
        inside: What its actions waited for ranks that share their layers.
    """

    pipeline: Pipeline
    bounds: Mapping[int, Bounds]
    collectives: Mapping[int, Sequence[RankCollective]]
    kernels: ComputeKernels
    inside: InsideWaits


class _Usable(NamedTuple):
    """A pipeline that can be reconstructed: its number, its ranks and all of its steps."""

    number: int
    group: PipelineGroup
    steps: Sequence[Step]


_Steps = dict[int, "_PipelineStep | ReconstructError | ScheduleError"]
"""By number, a step of a pipeline, or why it cannot be reconstructed."""


def _batches(usable: Sequence[_Usable], numbers: Sequence[int], survey: Survey) -> list[list[_Usable]]:
    """Pipelines that are read together."""
    batches: list[list[_Usable]] = []
    size = 0
    for one in usable:
        kernels = sum(survey.kernels.get(rank, 0) for rank in one.group.ranks) * len(numbers) // len(one.steps)
        if not batches or size + kernels > MOST_KERNELS:
            batches.append([])
            size = 0
        batches[-1].append(one)
        size += kernels
    return batches


def _batch_steps(
    run: Run,
    batch: Sequence[_Usable],
    numbers: Sequence[int],
    survey: Survey,
    waits: CollectiveWaits,
    progress: Progress,
) -> list[_Steps]:
    """The steps of pipelines that are read together."""
    ranks = [rank for one in batch for rank in one.group.ranks]
    narrowed = survey.run.of_ranks(ranks).in_memory()
    evidence = step_evidence(survey)
    steps = [(one.group, choose_step(one.steps, one.group.ranks, n, Account())) for one in batch for n in numbers]
    position = {one.group: one.number for one in batch}
    spans = {(one.group, step.number): step.spans for one in batch for step in one.steps}
    errors: dict[PipelineGroup, _Steps] = {one.group: {} for one in batch}
    costs: dict[PipelineGroup, dict[int, Pipeline]] = {one.group: {} for one in batch}
    inside: dict[PipelineGroup, dict[int, InsideWaits]] = {one.group: {} for one in batch}
    bounds: dict[int, dict[int, Bounds]] = defaultdict(dict)
    for group, step, recorded in record_each(narrowed, steps, survey, evidence):
        number = step.number
        inside[group][number] = waits_inside(recorded) if isinstance(recorded, RecordedStep) else {}
        try:
            if isinstance(recorded, RecordedStep) and not has_late_launches(recorded.turns()):
                check_counts(recorded.transfers, recorded.pipeline.observed.shape)
                costs[group][number] = recorded.pipeline
                ranks_work = recorded.work.ranks
                segments = {rank: work.segments for rank, work in ranks_work.items()}
                after = {rank: sum(part.duration_ns for part in work.tail) for rank, work in ranks_work.items()}
                bounds[number] |= _bounds(segments, after, spans[group, number])
            else:
                # What launches take hangs on other steps; and what stands in the way is told with its cause.
                whole = reconstruct(run, step=number, pipeline=position[group], survey=survey, account=Account())
                costs[group][number] = whole.pipeline
                bounds[number] |= _bounds(whole.segments, _after(whole.observed), spans[group, number])
        except (ReconstructError, ScheduleError) as error:
            errors[group][number] = error
        progress.advance(1)
    collectives = collectives_around(narrowed, bounds, waits)
    kernels = ComputeKernels(narrowed, ranks, survey.kernels)

    def of_pipeline(group: PipelineGroup, number: int) -> _PipelineStep:
        return _PipelineStep(
            costs[group][number],
            {rank: bounds[number][rank] for rank in group.ranks},
            {rank: collectives[number].get(rank, ()) for rank in group.ranks},
            kernels,
            inside[group][number],
        )

    return [errors[one.group] | {n: of_pipeline(one.group, n) for n in costs[one.group]} for one in batch]


def _readings(survey: Survey, step: int | None) -> dict[PipelineGroup, StepReading]:
    """What is read of the step of each pipeline that is looked at first: of as many together as fit."""
    readings: dict[PipelineGroup, StepReading] = {}
    together: dict[PipelineGroup, Step] = {}
    size = 0

    def read() -> None:
        ranks = [rank for group in together for rank in group.ranks]
        reading = StepReading(survey.run.of_ranks(ranks), together.values(), ranks, step_evidence(survey))
        readings.update(dict.fromkeys(together, reading))
        together.clear()

    for group in survey.pipelines:
        with suppress(ReconstructError):  # reconstructing it says why
            steps = steps_of(survey.run.of_ranks(group.ranks), group.ranks, Account(), survey.clocks)
            chosen = choose_step(steps, group.ranks, step, Account())
            kernels = sum(survey.kernels.get(rank, 0) for rank in group.ranks) // len(steps)
            if together and size + kernels > MOST_KERNELS:
                read()
                size = 0
            together[group] = chosen
            size += kernels
    read()
    return readings


def _usable(run: Run, survey: Survey, step: int | None, account: Account, progress: Progress) -> list[_Usable]:
    """The pipelines that can be reconstructed; of the first one, every note counts."""
    usable: list[_Usable] = []
    problem = None
    readings = _readings(survey, step)
    for number, group in enumerate(survey.pipelines):
        progress.advance(1)
        try:
            reading = readings.pop(group, None)
            recorded = reconstruct(run, step=step, pipeline=number, survey=survey, account=Account(), reading=reading)
        except (ReconstructError, MissingRank, ScheduleError) as error:
            problem = problem or error
            account.note(
                NoticeCode.PIPELINE_LEFT_OUT,
                f"pipeline {number} (ranks {format_ranges(group.ranks)}) is left out: {error.message}",
                subject=SubjectKind.PIPELINE(number),
            )
            continue
        for note in recorded.notes:
            # Those say of waits inside computes what is not so here.
            others = note.code not in (NoticeCode.PIPELINES_LEFT_OUT, NoticeCode.COLLECTIVES_BARE)
            if others and note not in account.notes:
                account.notes.append(note)
        usable.append(_Usable(number, group, recorded.steps))
    if not usable:
        if problem is not None:
            raise problem
        reconstruct(run, step=step, survey=survey)  # says why there is no pipeline
    return usable


def _numbers(usable: Sequence[_Usable], step: int | None, account: Account) -> list[int]:
    """Steps to look at, in order of time."""
    if step is not None:
        return [step]
    complete = [{s.number for s in one.steps if s.status == "complete"} for one in usable]
    steps, ranks = usable[0].steps, usable[0].group.ranks
    common = [s for s in steps if s.number in set.intersection(*complete)]
    if common:
        alike = choose_step(common, ranks, None, Account()).exchanged
        common = [s for s in common if s.exchanged == alike]
    if not common:
        raise ReconstructError(
            f"no step is complete on all {len(usable)} pipelines.",
            hint=f"choose one of one pipeline's with {Option.STEP}",
        )
    if len(common) < len(steps):
        account.note(
            NoticeCode.STEPS_LEFT_OUT,
            f"{len(common)} of {format_count(len(steps), 'step')} are complete on all pipelines and do the same work",
        )
    if len(common) > MOST_STEPS:
        middle = choose_step(common, ranks, None, Account()).number
        common.sort(key=lambda s: (abs(s.number - middle), s.number))
        account.note(
            NoticeCode.STEPS_LEFT_OUT,
            f"{MOST_STEPS} of {len(common)} complete steps are looked at, those about step {middle}",
        )
        common = common[:MOST_STEPS]
    return [s.number for s in sorted(common, key=lambda s: s.start_ns)]


def _job_step(number: int, pipelines: Sequence[_PipelineStep], survey: Survey, account: Account) -> JobStep:
    bounds = {rank: b for one in pipelines for rank, b in one.bounds.items()}
    first, last = min(b.begin_ns for b in bounds.values()), max(b.end_ns for b in bounds.values())
    collectives = {
        rank: [c for c in of_rank if c.start_ns >= first and c.end_ns <= last]
        for one in pipelines
        for rank, of_rank in one.collectives.items()
    }
    leading = {rank: leading_of(collectives.get(rank, ()), bounds[rank]) for rank in bounds}
    aligned = survey.clocks.aligned_ns
    starts = {rank: mine[0].start_ns if mine else bounds[rank].first_ns for rank, mine in leading.items()}
    origin = min(aligned(rank, at) for rank, at in starts.items())
    observed = max(aligned(rank, b.end_ns) for rank, b in bounds.items()) - origin
    frames = []
    for one in pipelines:
        flow = Dataflow(one.pipeline.observed)
        of_ranks = []
        for profile, order in zip(one.pipeline.ranks, one.pipeline.observed.orders, strict=True):
            rank = profile.rank
            ahead, after = one.kernels.around(rank, bounds[rank], leading[rank])
            late = max(0, aligned(rank, starts[rank]) - origin)
            # What lies between the last leading collective and a compute that waits for a message is that wait.
            waits = bool(flow.received(order[:1]))
            until = max((c.end_ns for c in leading[rank]), default=starts[rank]) if waits else bounds[rank].first_ns
            head = parts_between(starts[rank], until, leading[rank], ahead, LEADING)
            trailing = [c for c in collectives.get(rank, ()) if bounds[rank].last_ns < c.end_ns]
            tail = parts_between(bounds[rank].last_ns, bounds[rank].end_ns, trailing, after, OPTIMIZER)
            begins = [OutsideStretch(HOST, "host", late)] if late and (leading[rank] or not waits) else []
            of_ranks.append(Frame(numbered([*begins, *head]), numbered(tail)))
        frames.append(tuple(of_ranks))
    note_collectives(collectives, bounds, account)
    together = put_together([one.pipeline for one in pipelines], [one.inside for one in pipelines], account)
    return JobStep(number, observed, together.pipelines, tuple(frames), together.own, together.peers)


def _after(observed: Timeline) -> dict[int, int]:
    """How long the tail of each rank is."""
    after: Counter[int] = Counter(dict.fromkeys(observed.global_ranks, 0))
    for op in observed.ops:
        if isinstance(op, RankOp):
            after[observed.global_ranks[op.rank]] += op.duration_ns
    return after


def _bounds(
    segments: Mapping[int, Sequence[Segment]], after_ns: Mapping[int, int], spans: Mapping[int, tuple[int, int]]
) -> dict[int, Bounds]:
    """Of each rank of a pipeline; its tail as it was observed."""
    lasts = {rank: max(s.end_ns for s in of_rank) for rank, of_rank in segments.items()}
    return {
        rank: Bounds(spans[rank][0], min(s.start_ns for s in of_rank), lasts[rank], lasts[rank] + after_ns[rank])
        for rank, of_rank in segments.items()
    }
