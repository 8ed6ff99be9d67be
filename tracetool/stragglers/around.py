"""What ranks do ahead of and after their pipeline: collectives without their waits, compute, waits for the host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.process_groups import DIMENSIONS, dimension_of
from tracetool.stragglers.step import OutsideStretch
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.replays.flow import Int64s
    from tracetool.store.run import Run

OPTIMIZER = "optimizer"
LEADING = "leading compute"
HOST = "host gap"

_COLLECTIVES_SQL = """
SELECT b.step, c.rank, c.position, c.start_ns, c.end_ns, c.posted_ns, c.operation, c."group", c.group_ranks
FROM comms AS c
JOIN (SELECT unnest($steps) AS step, unnest($ranks) AS rank, unnest($begins) AS begin_ns, unnest($firsts) AS first_ns,
             unnest($lasts) AS last_ns, unnest($ends) AS end_ns) AS b
  ON b.rank = c.rank AND c.posted_ns >= b.begin_ns AND c.start_ns < b.end_ns
WHERE c.operation NOT IN ('send', 'recv', 'exchange') AND c.end_ns IS NOT NULL
  AND ($every OR c.end_ns <= b.first_ns OR c.end_ns > b.last_ns)
ORDER BY b.step, c.rank, c.start_ns, c.end_ns, c.position
"""

_KERNELS_SQL = """
SELECT rank, start_ns, start_ns + duration_ns AS end_ns
FROM events
WHERE list_contains($ranks, rank) AND category IN ('kernel', 'memcpy', 'memset')
  AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
ORDER BY rank, start_ns
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


class CollectiveWaits:
    """How long collectives waited, and what to call them.

    Args:
        survey: What is known of the whole capture.
    """

    def __init__(self, survey: Survey) -> None:
        self._dims = _dimensions(survey)
        self._waits = {(w.rank, w.position): w for w in survey.waits}
        self.unmatched = frozenset(wait.rank for wait in survey.waits if wait.upper_bound)

    def collective(
        self, rank: int, position: int, start: int, end: int, posted: int, operation: str, group: str, of: Sequence[int]
    ) -> RankCollective:
        """One collective on one rank, from its row."""
        wait = self._waits[rank, position]
        return RankCollective(
            rank=rank, start_ns=start, end_ns=end, posted_ns=posted, transfer_ns=wait.transfer_ns, pair=wait.pair,
            upper_bound=wait.upper_bound, name=f"{operation} {self._dims.get((group, tuple(of or ())), group)}".strip(),
        )  # fmt: skip


def collectives_around(
    run: Run, bounds: Mapping[int, Mapping[int, Bounds]], waits: CollectiveWaits
) -> dict[int, dict[int, list[RankCollective]]]:
    """Collectives of each step and rank outside its computes, in order; all of its step where some were not matched.

    Args:
        run: The Run.
        bounds: Per step and rank.
        waits: How long they waited.
    """
    places = [(step, rank, b) for step, of_step in bounds.items() for rank, b in of_step.items()]
    parameters = {
        "steps": [step for step, _, _ in places],
        "ranks": [rank for _, rank, _ in places],
        "begins": [b.begin_ns for *_, b in places],
        "firsts": [b.first_ns for *_, b in places],
        "lasts": [b.last_ns for *_, b in places],
        "ends": [b.end_ns for *_, b in places],
        "every": any(rank in waits.unmatched for _, rank, _ in places),
    }
    of_steps: dict[int, dict[int, list[RankCollective]]] = {step: defaultdict(list) for step in bounds}
    for step, rank, *row in run.rows(_COLLECTIVES_SQL, parameters):
        of_steps[step][rank].append(waits.collective(rank, *row))
    return of_steps


def leading_of(collectives: Sequence[RankCollective], bounds: Bounds) -> list[RankCollective]:
    """Those that were over before the rank's first compute, barriers aside: a step begins with the first of them."""
    return [c for c in collectives if c.end_ns <= bounds.first_ns and not c.name.startswith("barrier")]


class ComputeKernels:
    """Compute kernels of some ranks in the whole capture, by time.

    Args:
        run: The Run.
        ranks: Those that are asked about.
        on_device: Ranks whose traces hold kernels.
    """

    def __init__(self, run: Run, ranks: Sequence[int], on_device: Container[int]) -> None:
        import numpy as np

        table = run.arrow(_KERNELS_SQL, {"ranks": list(ranks)})
        of_ranks, starts, ends = (table.column(name).to_numpy() for name in ("rank", "start_ns", "end_ns"))
        self._of_rank: dict[int, tuple[Int64s, Int64s, Int64s]] = {}
        for rank in ranks:
            if rank in on_device:
                mine = slice(*np.searchsorted(of_ranks, [rank, rank + 1]))
                over = np.maximum.accumulate(ends[mine])
                self._of_rank[rank] = starts[mine], ends[mine], over

    def around(self, rank: int, bounds: Bounds, leading: Sequence[RankCollective]) -> tuple[Spans | None, Spans | None]:
        """Those ahead of and after the pipeline in a step; None for ranks without any kernel at all."""
        if rank not in self._of_rank:
            return None, None
        ahead = self._within(rank, leading[0].start_ns, bounds.first_ns) if leading else []
        after = self._within(rank, bounds.last_ns, bounds.end_ns)
        both = [*ahead, *after]
        first = bounds.first_ns
        return [span for span in both if span[0] < first], [span for span in both if span[0] >= first]

    def _within(self, rank: int, low: int, high: int) -> Spans:
        """Those that run for some of a stretch of time."""
        import numpy as np

        starts, ends, over = self._of_rank[rank]
        mine = slice(np.searchsorted(over, low, "right"), np.searchsorted(starts, high))
        spans: Spans = list(zip(starts[mine].tolist(), ends[mine].tolist(), strict=True))
        return [span for span in spans if span[1] > low]


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


def note_collectives(
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
