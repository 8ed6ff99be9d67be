"""Collectives of a step: those that actions wait for, and those that run beside computes."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.collective import CollectiveUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.reconstruct.segments import RankWork, Segment
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run

_COLLECTIVES_SQL = """
WITH numbered AS (
    SELECT rank, operation, payload_bytes, "group", group_ranks, start_ns, end_ns,
           row_number() OVER (PARTITION BY rank, "group", group_ranks ORDER BY position) AS number
    FROM comms
    WHERE operation NOT IN ('send', 'recv', 'barrier') AND start_ns >= $first AND end_ns <= $last
)
SELECT rank, start_ns, end_ns, operation, payload_bytes, group_ranks,
       "group" || ' ' || group_ranks::VARCHAR || ' ' || number::VARCHAR AS name,
       min(end_ns - start_ns) OVER (PARTITION BY "group", group_ranks, number) AS own_ns
FROM numbered
ORDER BY rank, start_ns
"""


class StepCollective(NamedTuple):
    """One collective on one rank; ``own_ns`` is its shortest duration over the recorded ranks.

    The last rank to arrive does not wait, so what a rank spends beyond that is waiting.
    """

    rank: int
    start_ns: int
    end_ns: int
    operation: str
    payload_bytes: int | None
    group_ranks: list[int]
    name: str
    own_ns: int

    def use(self, lead_ns: int = 0) -> CollectiveUse:
        """The same without its time."""
        return CollectiveUse(
            self.operation, tuple(self.group_ranks), self.payload_bytes, self.own_ns, lead_ns=max(0, lead_ns)
        )


def step_collectives(run: Run, step: Step) -> dict[int, list[StepCollective]]:
    """The collectives of a step, barriers left out, per rank in order of their start."""
    first = min(start for start, _ in step.spans.values())
    last = max(end for _, end in step.spans.values())
    found: dict[int, list[StepCollective]] = defaultdict(list)
    for row in run.rows(_COLLECTIVES_SQL, {"first": first, "last": last}):
        found[row[0]].append(StepCollective(*row))
    return found


class RankUses(NamedTuple):
    """The collectives of a rank's computes.

    Attributes:
        awaited: By stage and kind, those that its actions wait for.
        overlapped: Those that ran beside computes.
    """

    awaited: Mapping[tuple[int, ActionKind], tuple[CollectiveUse, ...]]
    overlapped: tuple[CollectiveUse, ...]


def uses_of(work: RankWork, collectives: Sequence[StepCollective]) -> RankUses:
    """Which collectives a rank's actions wait for: those that computes leave most of their time free for.

    Args:
        work: What the rank computed.
        collectives: Its collectives of the step.
    """
    segments = sorted(work.segments, key=lambda s: s.start_ns)
    end = max(s.end_ns for s in segments)
    busy = sorted((k.start_ns, k.end_ns) for s in segments for k in s.kernels if k.is_compute and not k.is_collective)
    awaited: dict[tuple[int, ActionKind], list[StepCollective]] = defaultdict(list)
    overlapped = []
    ends = [s.end_ns for s in segments]
    starts = [start for start, _ in busy]
    for one in collectives:
        if not segments[0].start_ns <= one.start_ns < end:
            continue
        if 2 * _covered(busy, starts, one.start_ns, one.end_ns) > one.end_ns - one.start_ns or one.end_ns > end:
            overlapped.append(one.use(end - one.start_ns))
        else:
            # Between two actions it is the next one that waits.
            segment = segments[bisect_right(ends, one.start_ns)]
            awaited[segment.stage, segment.kind].append(one)
    return RankUses({key: _averaged(ones, _count(segments, key)) for key, ones in awaited.items()}, tuple(overlapped))


def _count(segments: Sequence[Segment], key: tuple[int, ActionKind]) -> int:
    return sum((s.stage, s.kind) == key for s in segments)


def _averaged(ones: Sequence[StepCollective], actions: int) -> tuple[CollectiveUse, ...]:
    alike: dict[tuple[str, tuple[int, ...], int | None], list[int]] = defaultdict(list)
    for one in ones:
        alike[one.operation, tuple(one.group_ranks), one.payload_bytes].append(one.own_ns)
    return tuple(
        CollectiveUse(operation, ranks, size, round(median(times)), len(times) / actions)
        for (operation, ranks, size), times in alike.items()
    )


def _covered(busy: Sequence[tuple[int, int]], starts: Sequence[int], start: int, end: int) -> int:
    """How much of a span computes cover; those of one stream do not overlap each other."""
    total = 0
    for at in range(max(0, bisect_right(starts, start) - 1), len(busy)):
        low, high = busy[at]
        if low >= end:
            break
        total += max(0, min(high, end) - max(low, start))
    return total
