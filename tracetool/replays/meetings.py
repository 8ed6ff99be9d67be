"""Ranks that work through what lies ahead of them and meet at collectives, in order of time."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.collective import CollectiveUse


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
    return _Run(starts_ns, visits, serve).run()


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
        self._names = [_numbered(of_rank) for of_rank in visits]
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


def _numbered(visits: Sequence[Visit]) -> list[tuple[str, int] | None]:
    seen: Counter[str] = Counter()
    names: list[tuple[str, int] | None] = []
    for visit in visits:
        if visit.meet is None:
            names.append(None)
            continue
        names.append((visit.meet, seen[visit.meet]))
        seen[visit.meet] += 1
    return names


def _whole(uses: Sequence[CollectiveUse]) -> CollectiveUse:
    """One collective as its ranks tell it: a size that one of them does not know, others may."""
    sizes = [use.payload_bytes for use in uses if use.payload_bytes is not None]
    return replace(uses[0], payload_bytes=max(sizes, default=None), own_ns=max(use.own_ns for use in uses))
