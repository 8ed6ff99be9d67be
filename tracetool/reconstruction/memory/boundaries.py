"""When the host worked for each action: by launches where the trace has them, else by what device times still tell.

Memory is logged on the host's clock. Where a trace holds device times only, the host is known to be level with the
device where it waits for a message: between two actions with a transfer in between. Without one (a forward and its
backward on the last stage) the host is ahead by an unknown time, unless it stood still in the forward, waiting for a
result; its longest silence is where the forward ended for it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reconstruction.memory.actions import HostSpan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import RankWork, Segment
    from tracetool.reconstruction.memory.log import Log, Numbers
    from tracetool.reconstruction.steps import Step
    from tracetool.store.run import Run

_LEAST_SILENT_SHARE = 0.9
_STANDS_OUT = 3
"""A silence that is so many times as long as the next one is a wait of the host."""

_LAUNCHES_SQL = """
SELECT k.rank, k.event, l.start_ns
FROM events AS k
JOIN (SELECT unnest($ranks) AS rank, unnest($first) AS first, unnest($last) AS last) AS step ON step.rank = k.rank
JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
WHERE k.category = 'kernel' AND k.start_ns >= first AND k.start_ns < last
"""

_AROUND_SQL = """
SELECT l.rank, coalesce(max(l.start_ns) FILTER (l.start_ns < first), 0),
       coalesce(min(l.start_ns) FILTER (l.start_ns > last), 9223372036854775807)
FROM events AS l
JOIN (SELECT unnest($ranks) AS rank, unnest($first) AS first, unnest($last) AS last) AS step ON step.rank = l.rank
WHERE l.category = 'launch'
GROUP BY l.rank
"""

_TRANSFERS_SQL = """
SELECT DISTINCT rank, start_ns, end_ns FROM comms
WHERE operation IN ('send', 'recv') AND start_ns IS NOT NULL AND end_ns IS NOT NULL AND list_contains($ranks, rank)
ORDER BY rank, start_ns, end_ns
"""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """When the host worked for each action of a rank.

    Attributes:
        spans: In the order of the host; empty if they cannot be told.
        by: What they are taken from: ``launches``, or ``device times``.
        confidence: Share of the checks that hold: transfers during which the allocator is silent, turns found.
        detail: What the evidence leaves open, or why there are no spans.
    """

    spans: tuple[HostSpan, ...]
    by: str
    confidence: float = 1.0
    detail: str | None = None


class HostTimes:
    """Tells when the host worked for the actions of the ranks of a pipeline.

    Args:
        run: The Run.
        step: The step whose actions they are.
        work: Segments of each rank.
    """

    def __init__(self, run: Run, step: Step, work: Mapping[int, RankWork]) -> None:
        self._work = work
        self._spans = dict(step.spans)
        # Only kernels of traces without autograd's records are timed by the device alone.
        bare = [rank for rank, of_rank in work.items() if of_rank.evidence == "kernels"]
        self._launches: dict[int, dict[int, int]] = {}
        self._transfers: dict[int, list[tuple[int, int]]] = {}
        if not bare:
            return
        for rank, event, time in run.rows(_LAUNCHES_SQL, _bounds(bare, step.spans)):
            self._launches.setdefault(rank, {})[event] = time
        on_host = {rank: (min(times.values()), max(times.values())) for rank, times in self._launches.items()}
        if on_host:
            for rank, before, after in run.rows(_AROUND_SQL, _bounds(list(on_host), on_host)):
                self._spans[rank] = before, after
        for rank, start, end in run.rows(_TRANSFERS_SQL, {"ranks": bare}):
            first, last = step.spans[rank]
            if first <= start < last:
                self._transfers.setdefault(rank, []).append((start, end))

    def span(self, rank: int) -> tuple[int, int]:
        """When the host worked for the step: from the launch before its first one to the launch after its last one.

        Where there are no launches, and where the step is marked on the host, as long as the step lasted.
        """
        return self._spans[rank]

    def of(self, rank: int, log: Log) -> Boundaries:
        """The boundaries of a rank's actions on the clock of its allocator's log."""
        work = self._work[rank]
        if work.evidence != "kernels":
            return _in_order([HostSpan(_key(s), s.issue_ns, s.issued_ns) for s in work.segments])
        launches = self._launches.get(rank, {})
        times = [[launches[k.event] for k in s.kernels if k.event in launches] for s in work.segments]
        if all(times):
            return _in_order([HostSpan(_key(s), min(t), max(t)) for s, t in zip(work.segments, times, strict=True)])
        return by_device_times(work.segments, self._transfers.get(rank, []), log.time_ns)


def _bounds(ranks: Sequence[int], spans: Mapping[int, tuple[int, int]]) -> dict[str, list[int]]:
    return {
        "ranks": list(ranks),
        "first": [spans[rank][0] for rank in ranks],
        "last": [spans[rank][1] for rank in ranks],
    }


def _key(segment: Segment) -> tuple[int, str, int]:
    return segment.stage, segment.kind.value, segment.microbatch


def _in_order(spans: list[HostSpan]) -> Boundaries:
    return Boundaries(tuple(sorted(spans, key=lambda s: s.begin_ns)), "launches")


def by_device_times(segments: Sequence[Segment], transfers: Sequence[tuple[int, int]], times: Numbers) -> Boundaries:
    """Boundaries where the host is known to be level with the device.

    Args:
        segments: In order of the device.
        transfers: Start and end of each send and receive on the device.
        times: When the allocator changed anything, on the host.
    """
    import numpy as np

    starts, ends = (np.array([t[i] for t in transfers], np.int64) for i in (0, 1))
    changes = np.searchsorted(times, ends, "left") - np.searchsorted(times, starts, "right")
    silent = float((changes <= 0).mean()) if len(changes) else 0.0
    if silent < _LEAST_SILENT_SHARE:
        loud = f"the host allocates during {int((changes > 0).sum())} of {len(changes)} transfers"
        why = loud if len(changes) else "no transfer makes the host wait"
        return Boundaries((), "device times", silent, f"{why}: how far it is ahead of the device is unknown")
    waited = ends[ends <= segments[0].start_ns]
    begins, stops, turns = [int(waited.max()) if len(waited) else segments[0].start_ns], [], 0
    for before, after in itertools.pairwise(segments):
        inside = ends[(starts >= before.end_ns) & (ends <= after.start_ns)]
        turn = _silence(times, before) if not len(inside) and before.kind is ActionKind.FORWARD else None
        if len(inside):
            turn = before.end_ns, int(inside.max())
        elif turn is None:
            why = f"no transfer lies between {_name(before)} and {_name(after)}"
            return Boundaries((), "device times", silent, f"{why}: how far the host is ahead there is unknown")
        turns += not len(inside)
        stops.append(turn[0])
        begins.append(turn[1])
    stops.append(segments[-1].end_ns)
    spans = tuple(HostSpan(_key(s), b, e) for s, b, e in zip(segments, begins, stops, strict=True))
    # Nothing checks a turn.
    return Boundaries(spans, "device times", silent * (1 - turns / len(segments)), _detail(len(segments), turns))


def _detail(boundaries: int, turns: int) -> str:
    statement = (
        "memory is on the host's clock, actions are on the device's: they are laid together where the host waits for "
        f"a transfer ({boundaries - turns} of {boundaries} boundaries)"
    )
    return statement + (f", and where it stands still longest in a forward ({turns})" if turns else "")


def _silence(times: Numbers, segment: Segment) -> tuple[int, int] | None:
    """The longest time without a change within a segment, if it stands out."""
    import numpy as np

    inside = times[(times >= segment.start_ns) & (times <= segment.end_ns)]
    if len(inside) < _STANDS_OUT:
        return None
    gaps = np.diff(inside)
    longest = int(np.argmax(gaps))
    next_one = int(np.max(np.delete(gaps, longest), initial=0))
    if gaps[longest] < _STANDS_OUT * max(1, next_one):
        return None
    return int(inside[longest]), int(inside[longest + 1])


def _name(segment: Segment) -> str:
    return f"{segment.stage}{segment.kind.value}{segment.microbatch}"
