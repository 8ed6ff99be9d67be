"""From a Run to the costs of whole steps: all pipelines, and the collectives around them without their waits.

What ranks do ahead of and after their pipeline: collectives without their waits, compute, waits for the host.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import MissingRank, Option, ReconstructError, ScheduleError, command_or_call
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.timeline import RankOp
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.process_groups import DIMENSIONS, dimension_of
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reconstruction.steps import choose_step, steps_of
from tracetool.replays.flow import Dataflow
from tracetool.stragglers.step import Frame, JobStep, OutsideStretch, numbered
from tracetool.units import format_count, format_ranges, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.store.run import Run

OPTIMIZER = "optimizer"
LEADING = "leading compute"
HOST = "host gap"

_COLLECTIVES_SQL = """
SELECT rank, position, start_ns, end_ns, posted_ns, operation, "group", group_ranks
FROM comms
WHERE operation NOT IN ('send', 'recv', 'exchange') AND start_ns >= $first AND end_ns <= $last
ORDER BY rank, start_ns, end_ns, position
"""

_KERNELS_SQL = """
SELECT e.rank, e.start_ns, e.start_ns + e.duration_ns AS end_ns
FROM events AS e
JOIN (SELECT unnest($ranks) AS rank, unnest($lows) AS low, unnest($highs) AS high) AS w
  ON e.rank = w.rank AND e.start_ns < w.high AND e.start_ns + e.duration_ns > w.low
WHERE e.category IN ('kernel', 'memcpy', 'memset')
  AND NOT regexp_matches(lower(e.name), '^(nccl|rccl|mscclpp|hcom_)')
ORDER BY e.rank, e.start_ns
"""


class RankCollective(NamedTuple):
    """A collective on one rank, on its own clock."""

    rank: int
    start_ns: int
    end_ns: int
    posted_ns: int
    transfer_ns: int
    pair: int | None
    upper_bound: bool
    name: str


class Bounds(NamedTuple):
    """Of one rank and step, on its own clock: start of the step, of the first compute, end of the last, of all."""

    begin_ns: int
    first_ns: int
    last_ns: int
    end_ns: int


Spans = list[tuple[int, int]]


def collectives_of(run: Run, bounds: Mapping[int, Bounds], survey: Survey) -> dict[int, list[RankCollective]]:
    """Collectives of each rank in its step, in order."""
    first = min(b.begin_ns for b in bounds.values())
    last = max(b.end_ns for b in bounds.values())
    dims = _dimensions(survey)
    waits = {(wait.rank, wait.position): wait for wait in survey.waits}
    found: dict[int, list[RankCollective]] = defaultdict(list)
    for rank, position, start, end, posted, operation, group, members in run.rows(
        _COLLECTIVES_SQL, {"first": first, "last": last}
    ):
        mine = bounds.get(rank)
        if mine is not None and posted >= mine.begin_ns and start < mine.end_ns:
            wait = waits[rank, position]
            name = f"{operation} {dims.get((group, tuple(members or ())), group)}".strip()
            found[rank].append(
                RankCollective(
                    rank=rank,
                    start_ns=start,
                    end_ns=end,
                    posted_ns=posted,
                    transfer_ns=wait.transfer_ns,
                    pair=wait.pair,
                    upper_bound=wait.upper_bound,
                    name=name,
                )
            )
    return found


def leading_of(collectives: Sequence[RankCollective], bounds: Bounds) -> list[RankCollective]:
    """Those that were over before the rank's first compute, barriers aside: a step begins with the first of them."""
    return [c for c in collectives if c.end_ns <= bounds.first_ns and not c.name.startswith("barrier")]


def kernels_around(
    run: Run, bounds: Mapping[int, Bounds], leading: Mapping[int, Sequence[RankCollective]]
) -> dict[int, tuple[Spans | None, Spans | None]]:
    """Compute kernels ahead of and after the pipeline, per rank; None for ranks without any kernel at all."""
    on_device = {rank for (rank,) in run.rows("SELECT DISTINCT rank FROM events WHERE category = 'kernel'")}
    windows: list[tuple[int, int, int]] = []
    for rank, b in bounds.items():
        if leading[rank]:
            windows.append((rank, leading[rank][0].start_ns, b.first_ns))
        windows.append((rank, b.last_ns, b.end_ns))
    ranks, lows, highs = zip(*windows, strict=True)
    found: dict[int, tuple[Spans, Spans]] = {rank: ([], []) for rank in bounds}
    for rank, start, end in run.rows(_KERNELS_SQL, {"ranks": list(ranks), "lows": list(lows), "highs": list(highs)}):
        found[rank][start >= bounds[rank].first_ns].append((start, end))
    return {rank: spans if rank in on_device else (None, None) for rank, spans in found.items()}


def parts_between(
    start: int, end: int, collectives: Sequence[RankCollective], kernels: Spans | None, compute: str
) -> list[OutsideStretch]:
    """Cut a stretch of a rank's time at its collectives; what lies between is compute or a wait for the host."""
    parts: list[OutsideStretch] = []
    at = start
    for c in collectives:
        if c.end_ns <= at:
            continue
        parts += _between(at, min(c.start_ns, end), kernels, compute)
        # The wait comes first: of one that began beside what was before, only what is left of it counts.
        moving = min(c.transfer_ns, c.end_ns - max(at, c.start_ns))
        meet = str(c.pair) if c.pair is not None and c.start_ns >= start else None
        parts.append(OutsideStretch(c.name, "collective", moving, meet))
        at = c.end_ns
    return [*parts, *_between(at, end, kernels, compute)]


def _between(start: int, end: int, kernels: Spans | None, compute: str) -> list[OutsideStretch]:
    """Gap, compute with the launch gaps inside it, gap; the host itself computes where there is no device."""
    if end <= start:
        return []
    if kernels is None:
        return [OutsideStretch(compute, "compute", end - start)]
    inside = [(max(low, start), min(high, end)) for low, high in kernels if low < end and high > start]
    if not inside:
        return [OutsideStretch(HOST, "host", end - start)]
    first, last = min(low for low, _ in inside), max(high for _, high in inside)
    parts = [
        OutsideStretch(HOST, "host", first - start),
        OutsideStretch(compute, "compute", last - first),
        OutsideStretch(HOST, "host", end - last),
    ]
    return [part for part in parts if part.duration_ns]


def tell_collectives(
    collectives: Mapping[int, Sequence[RankCollective]], bounds: Mapping[int, Bounds], account: Account
) -> None:
    """Say which collectives could not be split into waiting and moving, or began too early to be met at."""
    alone = sorted({c.rank for mine in collectives.values() for c in mine if c.upper_bound})
    if alone:
        account.note(
            NoticeCode.COLLECTIVES_OF_UNRECORDED,
            f"{format_ranks(alone)}: collectives with ranks that were not recorded may hold waits: upper bounds",
        )
    beside = sorted(
        {
            c.rank
            for mine in collectives.values()
            for c in mine
            if c.start_ns < bounds[c.rank].last_ns < c.end_ns
        }
    )  # fmt: skip
    if beside:
        account.note(
            NoticeCode.COLLECTIVES_BESIDE,
            f"{format_ranks(beside)}: collectives that begin beside the last backward count with what is left of them "
            "after it, and nobody waits for another rank in them",
        )


def _dimensions(survey: Survey) -> dict[tuple[str, tuple[int, ...]], str]:
    """What to call each process group: the dimension it serves, so that those of all stages are alike; else its name.

    A group that does not say its dimension serves the one in which alone its ranks differ, if it holds all of those.
    """
    known = {c.rank: tuple(getattr(c, dim) for dim in DIMENSIONS) for c in survey.coordinates}
    lines: dict[tuple[int, ...], str] = {}
    for number, dim in enumerate(DIMENSIONS):
        members: dict[tuple[int | None, ...], list[int]] = defaultdict(list)
        for rank, place in known.items():
            if place[number] is not None:
                members[place[:number] + place[number + 1 :]].append(rank)
        lines |= {tuple(sorted(line)): dim for line in members.values() if len(line) > 1}
    return {
        (g.name, g.ranks): dimension_of(g.description) or lines.get(tuple(sorted(g.ranks))) or g.name
        for g in survey.groups
    }


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
    run = run.in_memory()
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
            text = f"step {number} is left out: {error.message}"
            account.note(NoticeCode.STEPS_LEFT_OUT, text, subject=SubjectKind.STEP(number))
            continue
        found.append(_job_step(run, number, pipelines, survey, account))
    if not found:
        says = command_or_call("tracetool info RUN", "tracetool.reports.recording.findings.find_gaps(run)")
        raise ReconstructError(
            f"none of the steps {format_ranges(numbers)} of {run.name} can be reconstructed.",
            hint=f"{says} says what is missing",
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
                subject=SubjectKind.PIPELINE(number),
            )
            continue
        for note in found.notes:
            if note.code is not NoticeCode.PIPELINES_LEFT_OUT and note not in account.notes:
                account.notes.append(note)
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
