"""After the last compute: gradient reduction and optimizer, with the collectives at which ranks meet.

Ranks that work through what lies ahead of them and meet at collectives, in order of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.timeline import RankOp, TailCollective

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracetool.costs.over_links import OverLinks
    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import TailPart


class Visit(NamedTuple):
    """A stretch of what a rank does.

    Attributes:
        duration_ns: Its time, of what is no collective that may cross links.
        meet: Name of the collective at which ranks meet: those that have it begin it together; None for none.
        use: The collective, where links may change how long it takes.
        earliest_ns: It does not begin before.
    """

    duration_ns: int
    meet: str | None = None
    use: CollectiveUse | None = None
    earliest_ns: int | None = None


class Span(NamedTuple):
    """When a visit began, at a meeting all ranks of it, and when it ended."""

    start_ns: int
    end_ns: int


def as_measured(use: CollectiveUse, start_ns: int) -> int:
    """End of a collective that takes its own time."""
    return start_ns + use.own_ns


def run_visits(
    starts_ns: Sequence[int],
    visits: Sequence[Sequence[Visit]],
    serve: Callable[[CollectiveUse, int], int] = as_measured,
) -> list[list[Span]]:
    """When each rank's visits ran; what begins first is served first.

    Meetings in different orders on two ranks cannot be kept: where nothing else can go on, ranks do not wait for
    those that are not there yet.

    Args:
        starts_ns: Per rank, when its first visit may begin.
        visits: Per rank, what it does in order.
        serve: Gives the end of a collective that its ranks begin at a time; called once per meeting.
    """
    if all(visit.meet is None and visit.use is None for of_rank in visits for visit in of_rank):
        return [_apart(start_ns, of_rank) for start_ns, of_rank in zip(starts_ns, visits, strict=True)]
    return _Run(starts_ns, visits, serve).run()


def _apart(now_ns: int, visits: Sequence[Visit]) -> list[Span]:
    """The visits of a rank that waits for nobody, one after another."""
    spans = []
    for visit in visits:
        start_ns = now_ns if visit.earliest_ns is None else max(now_ns, visit.earliest_ns)
        now_ns = start_ns + visit.duration_ns
        spans.append(Span(start_ns, now_ns))
    return spans


class _Run:
    """One run of ``run_visits``."""

    def __init__(
        self,
        starts_ns: Sequence[int],
        visits: Sequence[Sequence[Visit]],
        serve: Callable[[CollectiveUse, int], int],
    ) -> None:
        self._now = list(starts_ns)
        self._visits = visits
        self._serve = serve
        self._spans: list[list[Span]] = [[] for _ in visits]
        # A name that a rank has twice is two meetings.
        self._names = [numbered_meetings(visit.meet for visit in of_rank) for of_rank in visits]
        self._missing = Counter(name for of_rank in self._names for name in of_rank if name is not None)
        self._arrived: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._ready: list[tuple[int, list[int]]] = []

    def run(self) -> list[list[Span]]:
        for rank in range(len(self._visits)):
            self._come(rank)
        while self._ready or self._arrived:
            if not self._ready:
                self._ready = [(self._start(ranks), ranks) for ranks in self._arrived.values()]
                heapify(self._ready)
                self._arrived.clear()
            self._go_on(*heappop(self._ready))
        return self._spans

    def _come(self, rank: int) -> None:
        """A rank comes to its next visit."""
        place = len(self._spans[rank])
        if place == len(self._visits[rank]):
            return
        name = self._names[rank][place]
        there = [rank]
        if name is not None:
            self._missing[name] -= 1
            there = self._arrived[name]
            there.append(rank)
            if self._missing[name]:
                return
            del self._arrived[name]
        heappush(self._ready, (self._start(there), there))

    def _start(self, ranks: Sequence[int]) -> int:
        """When ranks can begin what they stand at together."""
        earliest = (self._visits[rank][len(self._spans[rank])].earliest_ns for rank in ranks)
        return max([*(self._now[rank] for rank in ranks), *(at for at in earliest if at is not None)])

    def _go_on(self, start: int, ranks: Sequence[int]) -> None:
        here = {rank: self._visits[rank][len(self._spans[rank])] for rank in ranks}
        uses = [visit.use for visit in here.values() if visit.use is not None]
        until = self._serve(_whole(uses), start) if uses else None
        for rank, visit in here.items():
            end = start + visit.duration_ns if visit.use is None or until is None else until
            self._spans[rank].append(Span(start, end))
            self._now[rank] = end
            self._come(rank)


def numbered_meetings(meets: Iterable[str | None]) -> list[tuple[str, int] | None]:
    """Meetings of a rank in order, each with its number: a name that it has twice is two. None meets nobody."""
    counts: Counter[str] = Counter()
    names: list[tuple[str, int] | None] = []
    for meet in meets:
        if meet is None:
            names.append(None)
            continue
        names.append((meet, counts[meet]))
        counts[meet] += 1
    return names


def _whole(uses: Sequence[CollectiveUse]) -> CollectiveUse:
    """One collective as its ranks tell it: a size that one of them does not know, others may."""
    sizes = [use.payload_bytes for use in uses if use.payload_bytes is not None]
    return replace(uses[0], payload_bytes=max(sizes, default=None), own_ns=max(use.own_ns for use in uses))


class Moved(NamedTuple):
    """The links that a collective crossed, when it took them, and when it had moved its bytes."""

    links: tuple[str, ...] = ()
    taken_ns: int = 0
    left_ns: int = 0


class LinkQueues:
    """Links that serve collectives in turn.

    Args:
        over_links: What a collective takes over links; None if it crosses none.
    """

    def __init__(self, over_links: Callable[[CollectiveUse], OverLinks | None]) -> None:
        self._over_links = over_links
        self._free_ns: dict[str, int] = {}
        self._moved: dict[tuple[CollectiveUse, int], Moved] = {}

    def end_ns(self, use: CollectiveUse, start_ns: int) -> int:
        """When a collective that its ranks begin at a time ends; its links are taken until it has moved its bytes."""
        at_ns = self._over_links(use)
        if at_ns is None:
            return start_ns + use.own_ns
        start = max([start_ns, *(self._free_ns.get(link, 0) for link in at_ns.links)])
        self._free_ns |= dict.fromkeys(at_ns.links, start + at_ns.occupied_ns)
        end = start + at_ns.duration_ns
        self._moved[_alike(use), end] = Moved(at_ns.links, start, start + at_ns.occupied_ns)
        return end

    def moved(self, use: CollectiveUse, end_ns: int) -> Moved:
        """What a collective that ended at a time did on links."""
        return self._moved.get((_alike(use), end_ns), Moved())


def _alike(use: CollectiveUse) -> CollectiveUse:
    """What a collective is to all of its ranks."""
    return replace(use, payload_bytes=None, own_ns=0, lead_ns=0, after_ns=0)


def run_tails(
    ends_ns: Sequence[int],
    tails: Sequence[Sequence[TailPart]],
    overlapped: Sequence[Sequence[CollectiveUse]] = (),
    queues: LinkQueues | None = None,
    collectives: list[TailCollective] | None = None,
) -> list[RankOp]:
    """Run every rank's tail.

    A collective over links begins when all ranks that have it here have come to it, moves its bytes once, and ends
    on all of them together. Ranks of its group that are not among these are taken to come no later than they do.

    Args:
        ends_ns: Per pipeline rank, the end of its last compute.
        tails: Per pipeline rank, its parts in order.
        overlapped: Per pipeline rank, the collectives that run beside its computes, and may outlast them.
        queues: The links that collectives cross; None if all take what was measured.
        collectives: Takes up when each collective ran; by default nobody asks.

    Returns:
        The parts as ops with stage and microbatch -1, rank by rank.
    """
    if queues is None:
        alone = [[Visit(part.duration_ns, part.meet) for part in tail] for tail in tails]
        spans = run_visits(ends_ns, alone)
        if collectives is not None:
            for rank, (tail, of_rank) in enumerate(zip(tails, spans, strict=True)):
                collectives += _inside(rank, ends_ns[rank], tail, of_rank)
        return [op for rank, tail in enumerate(tails) for op in _ops(rank, [(p, 1) for p in tail], spans[rank])]
    beside = [_by_group(uses) for uses in overlapped] or [[] for _ in tails]
    lanes = [
        [*_begin(rank, end, groups), *(visit for part in tail for visit in _visits(part))]
        for rank, (end, groups, tail) in enumerate(zip(ends_ns, beside, tails, strict=True))
    ]
    begins = list(ends_ns)
    ranks = list(range(len(tails)))
    for rank, (end, groups) in enumerate(zip(ends_ns, beside, strict=True)):
        for uses in groups:
            lanes.append([*(_beside(use, end) for use in uses), Visit(0, _through(rank))])
            begins.append(end - max(use.lead_ns for use in uses))
            ranks.append(rank)
    spans = run_visits(begins, lanes, queues.end_ns)
    ops: list[RankOp] = []
    for rank, (end, tail) in enumerate(zip(ends_ns, tails, strict=True)):
        ahead = len(_begin(rank, end, beside[rank]))
        begun = spans[rank][ahead - 1].end_ns if ahead else end
        if begun > end:
            ops.append(RankOp(rank, ActionKind.REDUCE_GRAD, end, begun - end))
        ops += _ops(rank, [(part, len(_visits(part))) for part in tail], spans[rank][ahead:])
    if collectives is not None:
        for rank, begin, lane, of_lane in zip(ranks, begins, lanes, spans, strict=True):
            collectives += _crossing(rank, begin, lane, of_lane, queues, ops)
    return ops


def _inside(rank: int, end_ns: int, tail: Sequence[TailPart], spans: Sequence[Span]) -> Iterator[TailCollective]:
    """The collectives of a tail that crosses no links: those of a part one after another, then what else it does."""
    came = end_ns
    for part, span in zip(tail, spans, strict=True):
        start = span.start_ns
        for use in part.collectives:
            end = min(span.end_ns, start + use.own_ns)
            yield TailCollective(rank, part.kind, use, came, start, end)
            came = start = end
        came = span.end_ns


def _crossing(
    rank: int, begin: int, lane: Sequence[Visit], spans: Sequence[Span], queues: LinkQueues, ops: Sequence[RankOp]
) -> Iterator[TailCollective]:
    """The collectives of what a rank visits, one after another, some of them over links."""
    came = begin
    optimizing = [op for op in ops if op.rank == rank and op.kind is ActionKind.OPTIMIZER]
    for visit, span in zip(lane, spans, strict=True):
        if visit.use is not None:
            is_late = any(op.start_ns <= span.start_ns and span.end_ns <= op.end_ns for op in optimizing)
            kind = ActionKind.OPTIMIZER if is_late else ActionKind.REDUCE_GRAD
            moved = queues.moved(visit.use, span.end_ns)._asdict()
            yield TailCollective(rank, kind, visit.use, came, span.start_ns, span.end_ns, **moved)
        came = span.end_ns


def _ops(rank: int, parts: Sequence[tuple[TailPart, int]], spans: Sequence[Span]) -> list[RankOp]:
    """Parts, each of so many visits, as ops."""
    ops, at = [], iter(spans)
    for part, visits in parts:
        mine = list(islice(at, visits))
        ops.append(RankOp(rank, part.kind, mine[0].start_ns, mine[-1].end_ns - mine[0].start_ns))
    return ops


def _visits(part: TailPart) -> list[Visit]:
    """A part whose collectives may cross links: these one after another, then what else it does."""
    rest = max(0, part.duration_ns - sum(use.own_ns for use in part.collectives))
    if not part.collectives:
        return [Visit(rest, part.meet)]
    first, *others = part.collectives
    return [
        Visit(first.own_ns, part.meet or first.meeting or None, first),
        *(Visit(use.own_ns, use.meeting or None, use) for use in others),
        Visit(rest),
    ]


def _by_group(uses: Sequence[CollectiveUse]) -> list[list[CollectiveUse]]:
    """Collectives beside computes, apart for each group: those of one communicator run one after another."""
    groups: dict[tuple[int, ...], list[CollectiveUse]] = {}
    for use in uses:
        groups.setdefault(use.group_ranks, []).append(use)
    return list(groups.values())


def _beside(use: CollectiveUse, end_ns: int) -> Visit:
    """A collective beside computes: from when the rank came to it, at the earliest."""
    return Visit(use.own_ns, use.meeting or None, use, end_ns - use.lead_ns)


def _begin(rank: int, end_ns: int, groups: Sequence[Sequence[CollectiveUse]]) -> list[Visit]:
    """Until the collectives beside a rank's computes are over as well; what the tail holds of them comes off again."""
    if not groups:
        return []
    held = max(sum(use.after_ns for use in uses) for uses in groups)
    return [Visit(0, _through(rank), earliest_ns=end_ns), Visit(-held), Visit(0, earliest_ns=end_ns)]


def _through(rank: int) -> str:
    return f"rank {rank} is through"
