"""What ranks do ahead of and after their pipeline: collectives without their waits, compute, waits for the host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.process_groups import DIMENSIONS, dimension_of
from tracetool.stragglers.step import OutsideStretch
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture.account import Account
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
