"""All pipelines of a job in one answer: which is told of, what sets the step, and what to know about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError, checked, command_or_call
from tracetool.model.job import ALIKE_RATIO
from tracetool.model.notice import Notice, NoticeCode, SubjectKind
from tracetool.model.pipeline import JobPipelines
from tracetool.model.scenario import Scenario
from tracetool.reconstruction.job import record_job, sorted_pipelines
from tracetool.replays.evaluation import evaluate
from tracetool.units import format_count, format_duration, format_ranges
from tracetool.whatif.results import AlikeTimes, Slowest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracetool.model.job import SortedPipelines
    from tracetool.model.pipeline import Pipeline
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.job import WholeJob
    from tracetool.replays.evaluation import Evaluation
    from tracetool.store.run import Run

_OF_ONE = frozenset({NoticeCode.WAITS_FOR_PIPELINES, NoticeCode.LINKS_SHARED})
"""What is said of a pipeline by itself, and does not hold where all are replayed together."""
_OF_PIPELINES = frozenset({
    NoticeCode.PIPELINES_LEFT_OUT, NoticeCode.PIPELINES_DIFFER, NoticeCode.PIPELINES_ALIKE, NoticeCode.PIPELINES_JOINED,
})  # fmt: skip
"""What is said of them once, by what is known."""
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


@checked
def join_pipelines(
    run: Run, recording: Reconstruction, *, change: Callable[[Reconstruction], Reconstruction] | None = None
) -> Reconstruction:
    """What was reconstructed of the pipeline that sets the recorded step, to be replayed together with all others.

    Whatever is asked of it (``answer``, ``advise``, ``sweep``, ``explain``) is answered of all pipelines of the job.

    Args:
        run: The ingested traces.
        recording: What was reconstructed of its first pipeline, which says which step is meant.
        change: What was done to it, for the others.

    Raises:
        TraceToolError: As ``record_job``.

    Example:
        >>> whole = tt.join_pipelines(run, found)
        >>> tt.answer(whole, "1f1b").baseline.slowest_pipeline
        0
    """
    return joined(record_job(run, recording, change=change))


def joined(job: WholeJob) -> Reconstruction:
    """What was reconstructed of the pipeline that sets the recorded step, or of one alike, with all others."""
    together = JobPipelines(job.sorted, job.pipelines, job.numbers, job.kinds, 0)
    observed = job.pipelines[0].observed
    done = evaluate(replace(job.pipelines[0], job=together), observed).joined
    kind = 0 if done is None else job.kinds[done.place]
    first = job.firsts[kind]
    together = replace(together, place=job.kinds.index(kind))
    return replace(first, pipeline=replace(first.pipeline, job=together))


def unlike_pipelines(
    run: Run, recording: Reconstruction
) -> tuple[Reconstruction, tuple[tuple[Reconstruction, tuple[int, ...]], ...]]:
    """What was reconstructed, and of pipelines that differ one of each kind, with the numbers of all of it.

    Args:
        run: The ingested traces.
        recording: What was reconstructed of its first pipeline, which says which step is meant.

    Returns:
        No kinds where pipelines are alike, or there is one; else what was reconstructed is of the first kind.

    Raises:
        TraceToolError: As ``record_job``.
    """
    if len({place.pipeline for place in recording.coordinates} - {None}) < 2:
        return recording, ()
    known = sorted_pipelines(run)
    if not known.differ:
        notes = pipeline_notes(recording.notes, known if known.alike else None, None, Scenario())
        return replace(recording, notes=tuple(notes)), ()
    firsts = record_job(run, recording, known).firsts
    kinds = format_count(len(firsts), "kind")
    listed = "; ".join(format_ranges(alike.numbers) for alike in known.alike[:_MOST_KINDS])
    text = (
        f"pipelines of {kinds} ({listed}) are replayed one by one, each over its own links, and the slowest sets the "
        f"step{_left_out_text(known)}"
    )
    notes = [note for note in firsts[0].notes if note.code not in _OF_PIPELINES]
    first = replace(firsts[0], notes=(Notice(NoticeCode.PIPELINES_DIFFER, text), *notes))
    return first, tuple(zip((first, *firsts[1:]), (alike.numbers for alike in known.alike), strict=True))


def setting(pipeline: Pipeline, done: Evaluation) -> Slowest | None:
    """What sets the step of all pipelines; None where one is replayed by itself."""
    job, together = pipeline.job, done.joined
    if job is None or together is None:
        return None
    alike = []
    for kind, numbers in enumerate(job.sorted.alike):
        times = [time for time, of in zip(together.times, job.kinds, strict=True) if of == kind]
        alike.append(
            AlikeTimes(numbers.numbers, max(time.window_ns for time in times), max(time.step_ns for time in times))
        )
    ratio = None if together.rank is None else job.sorted.slower[together.rank]
    return Slowest(job.numbers[together.place], together.rank, ratio, tuple(alike))


def pipeline_notes(
    notes: Iterable[Notice], pipelines: SortedPipelines | None, setting: int | None, scenario: Scenario
) -> list[Notice]:
    """Notes with those about the pipelines of the job in place of what is said of one by itself.

    Args:
        notes: All others.
        pipelines: Those of the job, by their costs; None where nobody looked.
        setting: Number of the one that sets the step; None where one is replayed by itself.
        scenario: What they are replayed in.
    """
    if pipelines is None:
        return list(notes)
    if setting is None and not pipelines.differ:
        alike = Notice(NoticeCode.PIPELINES_ALIKE, _alike_text(pipelines))
        return [alike if note.code in _OF_PIPELINES else note for note in notes]
    others = [note for note in notes if note.code not in _OF_PIPELINES]
    if setting is None:
        return [Notice(NoticeCode.PIPELINES_DIFFER, _differ_text(pipelines)), *others]
    kept = [note for note in others if note.code not in _OF_ONE]
    joined = Notice(NoticeCode.PIPELINES_JOINED, _joined_text(pipelines), subject=SubjectKind.PIPELINE(setting))
    sharing = scenario.topology.pipelines
    if scenario.topology.links and sharing > 1:
        text = f"{sharing} pipelines share the links of the one that sets the step"
        kept.append(Notice(NoticeCode.LINKS_SHARED, text))
    return [joined, *kept]


def job_notes(notes: Iterable[Notice], pipeline: Pipeline, scenario: Scenario) -> list[Notice]:
    """Notes on what hangs on no single result, with those about the job where all pipelines are replayed together.

    Args:
        notes: All others.
        pipeline: Whose they are.
        scenario: What is replayed, as far as results share it.
    """
    job = pipeline.job
    if job is None:
        return list(notes)
    slow = {p.rank: job.sorted.slow_ranks[p.rank] for p in pipeline.ranks if p.rank in job.sorted.slow_ranks}
    rank = max(slow, key=lambda rank: slow[rank], default=None)
    number = job.numbers[job.place]
    first, *others = pipeline_notes(notes, job.sorted, number, scenario)
    as_recorded = setting_text(Slowest(number, rank, None if rank is None else slow[rank], ()))
    return [replace(first, text=f"{first.text}; as recorded {as_recorded}"), *others]


def setting_text(slowest: Slowest) -> str:
    """Which pipeline and rank sets the step, in words."""
    text = f"pipeline {slowest.pipeline} sets the step"
    if slowest.rank is None or slowest.rank_slower_ratio is None:
        return f"{text}: no rank stands out"
    return (
        f"{text}; the kernels of rank {slowest.rank} take {slowest.rank_slower_ratio:.1%} longer than those of the "
        "other ranks of its stage"
    )


def _alike_text(pipelines: SortedPipelines) -> str:
    (alike,) = pipelines.alike
    if len(alike.numbers) == 1:
        return f"this is the one pipeline that was recorded whole{_left_out_text(pipelines)}"
    count = format_count(len(alike.numbers), "equal pipeline")
    text = f"{count} side by side (costs of their ranks within {alike.apart_ratio:.1%}): this is the first"
    return text + _left_out_text(pipelines)


def _differ_text(pipelines: SortedPipelines) -> str:
    rank, ratio = max(pipelines.slower.items(), key=lambda item: item[1], default=(None, 0.0))
    stands_out = rank is not None and ratio > ALIKE_RATIO
    slow = f" (kernels of rank {rank} take {ratio:.1%} longer than others of its stage)" if stands_out else ""
    together = command_or_call("tracetool replay RUN --all-pipelines", "tt.join_pipelines(run, found)")
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
        f"{format_count(count, 'pipeline')} of {kinds} ({listed}{more}{within}) replayed together: "
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
