"""From a Run to the costs of whole steps: all pipelines, and the collectives around them without their waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import MissingRank, Option, ReconstructError, ScheduleError
from tracetool.model.notice import NoticeCode
from tracetool.model.timeline import RankOp
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture.account import Account
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reconstruction.steps.steps import choose_step, steps_of
from tracetool.replays.program import Dataflow
from tracetool.stragglers.around import (
    HOST,
    LEADING,
    OPTIMIZER,
    Bounds,
    collectives_of,
    kernels_around,
    leading_of,
    parts_between,
    tell_collectives,
)
from tracetool.stragglers.step import Frame, JobStep, OutsideStretch, numbered
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.store.run import Run

MOST_STEPS = 32


def job_steps(run: Run, step: int | None, account: Account) -> list[JobStep]:
    """The costs of the steps that all pipelines have complete.

    Args:
        run: The Run.
        step: Only this step; by default all, at most ``MOST_STEPS`` about the one of median length.
        account: Told what was left out.

    Raises:
        TraceToolError: If no step of any pipeline can be reconstructed.
    """
    survey = survey_run(run, Account())
    groups = _usable(run, survey, step, account)
    numbers = _numbers(survey.run, [group for _, group in groups], step, survey, account)
    found: list[JobStep] = []
    for number in numbers:
        try:
            pipelines = [
                reconstruct(run, step=number, pipeline=position, survey=survey, account=Account())
                for position, _ in groups
            ]
        except (ReconstructError, ScheduleError) as error:
            if len(numbers) == 1:
                raise
            account.note(NoticeCode.STEPS_LEFT_OUT, f"step {number} is left out: {error.message}")
            continue
        found.append(_job_step(run, number, pipelines, survey, account))
    if not found:
        raise ReconstructError(
            f"none of the steps {format_ranges(numbers)} of {run.name} can be reconstructed.",
            hint="'tracetool info' says what is missing",
        )
    return found


def _usable(run: Run, survey: Survey, step: int | None, account: Account) -> list[tuple[int, PipelineGroup]]:
    """The pipelines that can be reconstructed, with their numbers; of the first one, every note counts."""
    usable, problem = [], None
    for number, group in enumerate(survey.pipelines):
        try:
            found = reconstruct(run, step=step, pipeline=number, survey=survey, account=Account())
        except (ReconstructError, MissingRank, ScheduleError) as error:
            problem = problem or error
            account.note(
                NoticeCode.PIPELINE_LEFT_OUT,
                f"pipeline {number} (ranks {format_ranges(group.ranks)}) is left out: {error.message}",
            )
            continue
        for note in found.notes:
            if note.code is not NoticeCode.PIPELINES_LEFT_OUT:
                account.note(note.code, note.text)
        usable.append((number, group))
    if not usable:
        if problem is not None:
            raise problem
        reconstruct(run, step=step, survey=survey)  # says why there is no pipeline
    return usable


def _numbers(
    run: Run, groups: Sequence[PipelineGroup], step: int | None, survey: Survey, account: Account
) -> list[int]:
    """Steps to look at, in order of time."""
    if step is not None:
        return [step]
    of_pipelines = [steps_of(run, group.ranks, Account(), survey.clocks) for group in groups]
    complete = [{s.number for s in steps if s.status == "complete"} for steps in of_pipelines]
    steps = of_pipelines[0]
    common = [s for s in steps if s.number in set.intersection(*complete)]
    if common:
        alike = choose_step(common, groups[0].ranks, None, Account()).exchanged
        common = [s for s in common if s.exchanged == alike]
    if not common:
        raise ReconstructError(
            f"no step is complete on all {len(groups)} pipelines.",
            hint=f"choose one of one pipeline's with {Option.STEP}",
        )
    if len(common) < len(steps):
        account.note(
            NoticeCode.STEPS_LEFT_OUT,
            f"{len(common)} of {format_count(len(steps), 'step')} are complete on all pipelines and do the same work",
        )
    if len(common) > MOST_STEPS:
        middle = choose_step(common, groups[0].ranks, None, Account()).number
        common.sort(key=lambda s: (abs(s.number - middle), s.number))
        account.note(
            NoticeCode.STEPS_LEFT_OUT,
            f"{MOST_STEPS} of {len(common)} complete steps are looked at, those about step {middle}",
        )
        common = common[:MOST_STEPS]
    return [s.number for s in sorted(common, key=lambda s: s.start_ns)]


def _job_step(
    run: Run,
    number: int,
    pipelines: Sequence[Reconstruction],
    survey: Survey,
    account: Account,
) -> JobStep:
    bounds = {
        profile.rank: _bounds(found, position, profile.rank)
        for found in pipelines
        for position, profile in enumerate(found.pipeline.ranks)
    }
    collectives = collectives_of(run, bounds, survey)
    leading = {rank: leading_of(collectives.get(rank, ()), bounds[rank]) for rank in bounds}
    kernels = kernels_around(run, bounds, leading)
    aligned = survey.clocks.aligned_ns
    starts = {rank: mine[0].start_ns if mine else bounds[rank].first_ns for rank, mine in leading.items()}
    origin = min(aligned(rank, at) for rank, at in starts.items())
    observed = max(aligned(rank, b.end_ns) for rank, b in bounds.items()) - origin
    frames = []
    for found in pipelines:
        flow = Dataflow(found.pipeline.observed)
        of_ranks = []
        for profile, order in zip(found.pipeline.ranks, found.pipeline.observed.orders, strict=True):
            rank = profile.rank
            late = max(0, aligned(rank, starts[rank]) - origin)
            # What lies between the last leading collective and a compute that waits for a message is that wait.
            waits = bool(flow.received(order[:1]))
            until = max((c.end_ns for c in leading[rank]), default=starts[rank]) if waits else bounds[rank].first_ns
            head = parts_between(starts[rank], until, leading[rank], kernels[rank][0], LEADING)
            trailing = [c for c in collectives.get(rank, ()) if bounds[rank].last_ns < c.end_ns]
            tail = parts_between(bounds[rank].last_ns, bounds[rank].end_ns, trailing, kernels[rank][1], OPTIMIZER)
            begins = [OutsideStretch(HOST, "host", late)] if late and (leading[rank] or not waits) else []
            of_ranks.append(Frame(numbered([*begins, *head]), numbered(tail)))
        frames.append(tuple(of_ranks))
    tell_collectives(collectives, bounds, account)
    return JobStep(number, observed, tuple(found.pipeline for found in pipelines), tuple(frames))


def _bounds(found: Reconstruction, position: int, rank: int) -> Bounds:
    segments = found.segments[rank]
    last = max(s.end_ns for s in segments)
    after = sum(op.duration_ns for op in found.observed.ops if isinstance(op, RankOp) and op.rank == position)
    span = next(s.spans[rank] for s in found.steps if s.number == found.pipeline.step)
    return Bounds(span[0], min(s.start_ns for s in segments), last, last + after)
