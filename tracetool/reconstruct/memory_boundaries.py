"""When the host worked for each action: by launches where the trace has them, else by what device times still tell.

Memory is logged on the host's clock. Where a trace holds device times only, the host is known to be level with the
device where it waits for a message: between two actions with a transfer in between. Without one (a forward and its
backward on the last stage) the host is ahead by an unknown time, unless it stood still in the forward, waiting for a
result; its longest silence is where the forward ended for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reconstruct.memory_actions import HostSpan
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.memory_log import Log, Numbers
    from tracetool.reconstruct.segments import RankWork, Segment
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run

_LEAST_SILENT_SHARE = 0.9
_STANDS_OUT = 3
"""A silence that is so many times as long as the next one is a wait of the host."""

_LAUNCHES_SQL = """
SELECT k.rank, k.event, l.start_ns
FROM events AS k
JOIN events AS l ON l.rank = k.rank AND l.category = 'launch' AND l.correlation = k.correlation
WHERE k.category = 'kernel' AND list_contains($ranks, k.rank)
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
        # Only kernels of traces without autograd's records are timed by the device alone.
        bare = [rank for rank, found in work.items() if found.evidence == "kernels"]
        self._launches: dict[int, dict[int, int]] = {}
        self._transfers: dict[int, list[tuple[int, int]]] = {}
        if not bare:
            return
        for rank, event, time in run.rows(_LAUNCHES_SQL, {"ranks": bare}):
            self._launches.setdefault(rank, {})[event] = time
        for rank, start, end in run.rows(_TRANSFERS_SQL, {"ranks": bare}):
            first, last = step.spans[rank]
            if first <= start < last:
                self._transfers.setdefault(rank, []).append((start, end))

    def of(self, rank: int, log: Log) -> Boundaries:
        """The boundaries of a rank's actions on the clock of its allocator's log."""
        found = self._work[rank]
        if found.evidence != "kernels":
            return _in_order([HostSpan(_key(s), s.issue_ns, s.issued_ns) for s in found.segments])
        launches = self._launches.get(rank, {})
        times = [[launches[k.event] for k in s.kernels if k.event in launches] for s in found.segments]
        if all(times):
            return _in_order([HostSpan(_key(s), min(t), max(t)) for s, t in zip(found.segments, times, strict=True)])
        return _by_device_times(found.segments, self._transfers.get(rank, []), log.time_ns)


def _key(segment: Segment) -> tuple[int, str, int]:
    return segment.stage, segment.kind.value, segment.microbatch


def _in_order(spans: list[HostSpan]) -> Boundaries:
    return Boundaries(tuple(sorted(spans, key=lambda s: s.begin_ns)), "launches")


def _by_device_times(segments: Sequence[Segment], transfers: Sequence[tuple[int, int]], times: Numbers) -> Boundaries:
    import numpy as np

    starts, ends = (np.array([t[i] for t in transfers], np.int64) for i in (0, 1))
    busy = np.searchsorted(times, ends, "left") - np.searchsorted(times, starts, "right")
    silent = float((busy == 0).mean()) if len(busy) else 0.0
    if silent < _LEAST_SILENT_SHARE:
        why = (
            f"the host allocates during {int((busy > 0).sum())} of {len(busy)} transfers"
            if len(busy)
            else "no transfer makes the host wait"
        )
        return Boundaries((), "device times", silent, f"{why}, so that it runs ahead of the device by an unknown time")
    begins = [segments[0].start_ns]
    stops = []
    turns = 0
    for before, after in zip(segments, segments[1:], strict=False):
        inside = np.flatnonzero((starts >= before.end_ns) & (ends <= after.start_ns))
        if len(inside):
            stops.append(before.end_ns)
            begins.append(int(ends[inside].max()))
            continue
        silence = _silence(times, before)
        if before.kind is not ActionKind.FORWARD or silence is None:
            return Boundaries(
                (), "device times", silent,
                f"{_name(before)} and {_name(after)} follow each other without a transfer, and nothing shows how far "
                "the host was ahead there",
            )  # fmt: skip
        turns += 1
        stops.append(silence[0])
        begins.append(silence[1])
    stops.append(segments[-1].end_ns)
    first_wait = ends[ends <= segments[0].start_ns]
    begins[0] = int(first_wait.max()) if len(first_wait) else begins[0]
    spans = tuple(HostSpan(_key(s), b, e) for s, b, e in zip(segments, begins, stops, strict=True))
    detail = f"memory is on the host's clock, actions on the device's: level at {len(segments)} boundaries, where the host waits for a transfer"
    if turns:
        detail += f"; {turns} turns from forward to backward taken where the host stood still longest"
    return Boundaries(spans, "device times", silent * (1 - 0.5 * turns / len(segments)), detail)


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
    return f"{segment.stage}{segment.kind.value}{segment.microbatch} ({format_duration(segment.end_ns - segment.start_ns)})"
