"""All pipelines of a job in one answer: which is told of, what sets the step, and what to know about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError, command_or_call
from tracetool.model.notice import Notice, NoticeCode, SubjectKind
from tracetool.model.scenario import Scenario
from tracetool.reconstruction.job import ALIKE_RATIO
from tracetool.replays.evaluation import stages_for
from tracetool.replays.joined import replay_joined
from tracetool.units import format_count, format_duration, format_ranges
from tracetool.whatif.results import AlikeTimes, Slowest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import Schedule
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.job import SortedPipelines, WholeJob
    from tracetool.replays.joined import JobReplayed
    from tracetool.whatif.results import Result

_OF_ONE = frozenset({NoticeCode.PIPELINES_LEFT_OUT, NoticeCode.WAITS_FOR_PIPELINES, NoticeCode.LINKS_SHARED})
"""What is said of a pipeline by itself, and does not hold where all are replayed together."""
_MOST_KINDS = 4


def refuse_of_one(*, jitter: bool, each_step: bool) -> None:
    """Refuse what is replayed of single pipelines alone.

    Raises:
        ScenarioError: If it was asked for.
    """
    for asked, what in ((jitter, "costs drawn anew"), (each_step, "each recorded step")):
        if asked:
            raise ScenarioError(
                f"{what}: these are replayed of one pipeline alone.",
                hint=f"choose it ({Option.PIPELINE(0)})",
            )


def slowest_found(job: WholeJob) -> Reconstruction:
    """What was reconstructed of the pipeline that sets the recorded step, or of one alike."""
    observed = job.pipelines[0].observed
    done = _joined(job, job.pipelines, observed, Scenario())
    return job.firsts[job.kinds[done.place]]


def evaluate_joined(
    job: WholeJob, name: str, chunks: int | None, schedule: Schedule, scenario: Scenario
) -> tuple[JobReplayed, Slowest]:
    """Replay a schedule on all pipelines of a job.

    Args:
        job: The pipelines.
        name: The schedule as it was asked for.
        chunks: Stages per rank to cut one into, as ``stages_for`` has it.
        schedule: The order.
        scenario: What differs from the measurement.

    Raises:
        TraceToolError: As ``replay_joined``.
    """
    pipelines = [stages_for(one, name, chunks, schedule.shape.microbatches)[0] for one in job.pipelines]
    done = _joined(job, pipelines, schedule, scenario)
    alike = []
    for kind, numbers in enumerate(job.sorted.alike):
        times = [time for time, of in zip(done.times, job.kinds, strict=True) if of == kind]
        alike.append(
            AlikeTimes(numbers.numbers, max(time.window_ns for time in times), max(time.step_ns for time in times))
        )
    ratio = None if done.rank is None else job.sorted.slower[done.rank]
    return done, Slowest(job.numbers[done.place], done.rank, ratio, tuple(alike))


def _joined(job: WholeJob, pipelines: Sequence[Pipeline], schedule: Schedule, scenario: Scenario) -> JobReplayed:
    slow = {rank: ratio for rank, ratio in job.sorted.slower.items() if ratio > ALIKE_RATIO}
    return replay_joined(pipelines, job.kinds, schedule, scenario, slow)


def pipeline_notes(
    notes: Iterable[Notice], pipelines: SortedPipelines | None, results: Sequence[Result], scenario: Scenario
) -> list[Notice]:
    """Notes with those about the pipelines of the job in place of what is said of one by itself.

    Args:
        notes: All others.
        pipelines: Those of the job, by their costs; None where nobody looked.
        results: The baseline first.
        scenario: What they are replayed in.
    """
    if pipelines is None:
        return list(notes)
    slowest = results[0].slowest
    if slowest is None:
        if pipelines.differ:
            differ = Notice(NoticeCode.PIPELINES_DIFFER, _differ_text(pipelines))
            return [differ, *(note for note in notes if note.code is not NoticeCode.PIPELINES_LEFT_OUT)]
        notice = Notice(NoticeCode.PIPELINES_ALIKE, _alike_text(pipelines))
        return [notice if note.code is NoticeCode.PIPELINES_LEFT_OUT else note for note in notes]
    kept = [note for note in notes if note.code not in _OF_ONE]
    joined = Notice(
        NoticeCode.PIPELINES_JOINED, _joined_text(pipelines), subject=SubjectKind.PIPELINE(slowest.pipeline)
    )
    sharing = scenario.topology.pipelines
    if scenario.topology.links and sharing > 1:
        text = f"{sharing} pipelines share the links of the one that sets the step"
        kept.append(Notice(NoticeCode.LINKS_SHARED, text))
    return [joined, *kept]


def setting_text(slowest: Slowest) -> str:
    """Which pipeline and rank sets the step, in words."""
    text = f"pipeline {slowest.pipeline} sets the step"
    if slowest.rank is None or slowest.rank_slower_ratio is None:
        return f"{text}: no rank stands out"
    return (
        f"{text}: the kernels of rank {slowest.rank} take {slowest.rank_slower_ratio:.1%} longer than those of the "
        "other ranks of its stage"
    )


def _alike_text(pipelines: SortedPipelines) -> str:
    (alike,) = pipelines.alike
    count = format_count(len(alike.numbers), "equal pipeline")
    text = f"{count} side by side (costs of their ranks within {alike.apart_ratio:.1%}): this is the first"
    return text + _left_out_text(pipelines)


def _differ_text(pipelines: SortedPipelines) -> str:
    rank, ratio = max(pipelines.slower.items(), key=lambda item: item[1], default=(None, 0.0))
    stands_out = rank is not None and ratio > ALIKE_RATIO
    slow = f" (kernels of rank {rank} take {ratio:.1%} longer than others of its stage)" if stands_out else ""
    together = command_or_call("tracetool replay RUN --all-pipelines", "pipelines=tt.record_job(run, found)")
    return (
        f"pipelines differ by more than {ALIKE_RATIO:.0%}{slow}, and a step is as slow as its slowest: this is one by "
        f"itself, {together} takes all together"
    )


def _joined_text(pipelines: SortedPipelines) -> str:
    count = sum(len(alike.numbers) for alike in pipelines.alike)
    listed = "; ".join(format_ranges(alike.numbers) for alike in pipelines.alike[:_MOST_KINDS])
    more = f"; {len(pipelines.alike) - _MOST_KINDS} kinds more" if len(pipelines.alike) > _MOST_KINDS else ""
    apart = max(alike.apart_ratio for alike in pipelines.alike)
    within = f", each kind's costs within {apart:.1%}" if apart else ""
    kinds = format_count(len(pipelines.alike), "kind")
    return (
        f"{count} pipelines of {kinds} ({listed}{more}{within}) replayed together: "
        f"they meet in the collectives after their last computes{_left_out_text(pipelines)}"
    )


def _left_out_text(pipelines: SortedPipelines) -> str:
    if not pipelines.left_out:
        return ""
    many = format_count(len(pipelines.left_out), "pipeline")
    return f"; {many} not recorded whole ({format_ranges(pipelines.left_out)}) may be slower"


def times_lines(slowest: Slowest) -> list[str]:
    """What sets the step, and what pipelines of each kind take, a line each."""
    lines = [setting_text(slowest)]
    for alike in slowest.alike[:_MOST_KINDS]:
        which = f"pipeline{'s' if len(alike.numbers) > 1 else ''} {format_ranges(alike.numbers)}"
        lines.append(f"{which}: window {format_duration(alike.window_ns)}, step {format_duration(alike.step_ns)}")
    return lines
