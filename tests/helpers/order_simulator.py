"""A second simulator of orders, for tests: events in a heap, nothing of the replay engine in it.

Ranks run their order, links take messages in order of readiness (occupancy, then latency); sends never block. Which
messages share a link is the caller's to say. Who feeds whom is worked out here from the placement.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from tracetool.model.action import Action
    from tracetool.model.schedule import PipelineShape, Schedule


Unit = tuple["Action", ...]
Arrival = tuple[int, bool, int]
"""Receiving stage, whether it is a gradient, microbatch."""


class Hop(NamedTuple):
    """A message between ranks; ``gradient`` tells the way through the model."""

    src_rank: int
    dst_rank: int
    gradient: bool


class Spans(NamedTuple):
    """When ranks began and ended."""

    first: list[int]
    last: list[int]

    @property
    def window(self) -> int:
        return max(self.last) - min(self.first)

    @property
    def longest(self) -> int:
        return max(last - first for first, last in zip(self.first, self.last, strict=True))


def seat(shape: PipelineShape, stage: int) -> int:
    lap, position = divmod(stage, shape.ranks)
    return position if lap % 2 == 0 or shape.placement == "loop" else shape.ranks - 1 - position


def ends(shape: PipelineShape) -> tuple[set[int], set[int]]:
    """First and last stages of the model's copies."""
    p = shape.ranks
    return ({0, p}, {p - 1, 2 * p - 1}) if shape.placement == "bidirectional" else ({0}, {shape.stages - 1})


def needs(action: Action, firsts: set[int], lasts: set[int]) -> set[Arrival]:
    """What has to arrive before an action."""
    kind, stage = action.kind.value, action.stage
    if kind == "F":
        return set() if stage in firsts else {(stage, False, action.microbatch)}
    return {(stage, True, action.microbatch)} if kind in "BI" and stage not in lasts else set()


def simulate(
    schedule: Schedule,
    cost: Mapping[str, int],
    *,
    occupancy: int = 0,
    latency: int = 0,
    link_of: Callable[[Hop], Hashable | None] = lambda _: None,
    pair_ratio: float | None = None,
) -> Spans:
    """Run an order; ``cost`` is per kind, ``link_of`` names the link a message takes (None: none, no delay).

    Of two actions that run as one the first waits for its own input, then the second for its own, and both are sent
    after that (as torch's runtime does it). With a ``pair_ratio`` they begin together, with both inputs, and take that
    share of their times.
    """

    def parts(unit: Unit) -> list[Unit]:
        return [(action,) for action in unit] if pair_ratio is None else [unit]

    shape = schedule.shape
    firsts, lasts = ends(shape)
    # What runs without a pause, and what is sent after it, the next one last.
    queues: list[list[tuple[Unit, Unit]]] = [
        [(run, unit if run[-1] == unit[-1] else ()) for unit in units[::-1] for run in parts(unit)[::-1]]
        for units in map(schedule.units, range(shape.ranks))
    ]
    began: list[int | None] = [None] * shape.ranks
    ended = [0] * shape.ranks
    busy = [False] * shape.ranks
    here: set[Arrival] = set()
    free: dict[Hashable, int] = {}
    # At one time, computes end (0) before messages arrive (1).
    events: list[tuple[int, int, int, int, tuple[Action, ...], Arrival | None]] = []
    count = 0

    def push(time: int, rank: int, ended: tuple[Action, ...] = (), arrived: Arrival | None = None) -> None:
        nonlocal count
        count += 1
        heappush(events, (time, 0 if arrived is None else 1, count, rank, ended, arrived))

    def begin(rank: int, now: int) -> None:
        if busy[rank] or not queues[rank] or any(needs(a, firsts, lasts) - here for a in queues[rank][-1][0]):
            return
        run, sent = queues[rank].pop()
        busy[rank] = True
        began[rank] = now if began[rank] is None else began[rank]
        alone = sum(cost[action.kind.value] for action in run)
        push(now + (round(alone * (pair_ratio or 1)) if run[1:] else alone), rank, sent)

    def send(rank: int, now: int, action: Action) -> None:
        gradient = action.kind.value != "F"
        if action.kind.value == "W" or action.stage in (firsts if gradient else lasts):
            return
        target = action.stage + (-1 if gradient else 1)
        there = seat(shape, target)
        link = link_of(Hop(rank, there, gradient))
        if link is None:
            push(now, there, arrived=(target, gradient, action.microbatch))
        else:
            free[link] = max(now, free.get(link, 0)) + occupancy
            push(free[link] + latency, there, arrived=(target, gradient, action.microbatch))

    for rank in range(shape.ranks):
        begin(rank, 0)
    while events:
        now, _, _, rank, unit, arrival = heappop(events)
        if arrival is None:
            busy[rank], ended[rank] = False, now
            for action in unit:
                send(rank, now, action)
        else:
            here.add(arrival)
        begin(rank, now)
    assert not any(queues), "every rank waits"
    return Spans([start or 0 for start in began], ended)


def most_in_flight(schedule: Schedule) -> list[int]:
    """Per rank, forwards whose backward (or weight part) is still to come, at most: of stages, whatever their size."""
    peaks = []
    for order in schedule.orders:
        held = peak = 0
        for action in order:
            held += {"F": 1, "B": -1, "W": -1}.get(action.kind.value, 0)
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
