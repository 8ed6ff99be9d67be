"""Collectives of a step: those that actions wait for, and those that run beside computes."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.collective import CollectiveUse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.reconstruction.actions.work import RankWork, Segment
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.reconstruction.steps.steps import Step
    from tracetool.store.run import Run

_OF_STEP_SQL = """
SELECT c.rank, c.position, c.start_ns, c.end_ns, c.operation, c.payload_bytes, c.group_ranks
FROM comms AS c
JOIN (SELECT unnest($ranks) AS rank, unnest($firsts) AS first, unnest($lasts) AS last) AS span
  ON span.rank = c.rank AND c.posted_ns >= span.first AND c.posted_ns < span.last
WHERE c.operation NOT IN ('send', 'recv', 'exchange', 'barrier') AND c.start_ns IS NOT NULL AND c.end_ns IS NOT NULL
ORDER BY c.rank, c.start_ns
"""
"""What each rank posted within the step, on its own clock."""


class StepCollective(NamedTuple):
    """One collective on one rank.

    Attributes:
        rank: Global rank.
        start_ns: Start of its kernel, on the rank's own clock.
        end_ns: End of its kernel.
        operation: allreduce, allgather ...
        payload_bytes: Bytes; what another of its ranks says where this one does not. None if unknown.
        group_ranks: Global ranks of its group.
        name: The same on all of its recorded ranks; None if it was matched with no other rank.
        own_ns: Its time without waiting for the last rank to arrive, which is its shortest over the recorded ranks;
            of one that was not matched, all of it.
    """

    rank: int
    start_ns: int
    end_ns: int
    operation: str
    payload_bytes: int | None
    group_ranks: tuple[int, ...]
    name: str | None
    own_ns: int

    def use(self, end_ns: int | None = None) -> CollectiveUse:
        """The same without its time.

        Args:
            end_ns: End of the rank's last compute, if it ran beside computes.
        """
        use = CollectiveUse(self.operation, self.group_ranks, self.payload_bytes, self.own_ns, meeting=self.name or "")
        if end_ns is None:
            return use
        after = max(0, min(self.own_ns, self.end_ns - end_ns))
        return replace(use, lead_ns=max(0, end_ns - self.start_ns), after_ns=after)


def step_collectives(run: Run, step: Step, matched: Sequence[Collective]) -> dict[int, list[StepCollective]]:
    """The collectives of a step, barriers left out, per rank in order of their start.

    Args:
        run: The ingested traces.
        step: The step.
        matched: The collectives of the whole capture on all of their ranks.
    """
    ranks = list(step.spans)
    firsts, lasts = ([step.spans[rank][end] for rank in ranks] for end in (0, 1))
    rows = run.rows(_OF_STEP_SQL, {"ranks": ranks, "firsts": firsts, "lasts": lasts})
    posted = {(rank, position) for rank, position, *_ in rows}
    of_op: dict[tuple[int, int], tuple[Collective, str]] = {}
    numbers: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for one in matched:
        mine = posted.intersection((op.rank, op.position) for op in one.ops)
        if mine:
            key = one.group, one.group_ranks
            numbers[key] += 1
            of_op |= dict.fromkeys(mine, (one, f"{one.group} {list(one.group_ranks)} {numbers[key]}"))
    by_rank: dict[int, list[StepCollective]] = defaultdict(list)
    for rank, position, start, end, operation, payload, group_ranks in rows:
        alone = StepCollective(
            rank=rank, start_ns=start, end_ns=end, operation=operation, payload_bytes=payload,
            group_ranks=tuple(group_ranks), name=None, own_ns=end - start,
        )  # fmt: skip
        whole, name = of_op.get((rank, position), (None, None))
        if whole is not None:
            size = whole.payload_bytes if payload is None else payload
            alone = alone._replace(payload_bytes=size, group_ranks=whole.group_ranks, name=name, own_ns=whole.own_ns)
        by_rank[rank].append(alone)
    return by_rank


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
            overlapped.append(one.use(end))
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
        alike[one.operation, one.group_ranks, one.payload_bytes].append(one.own_ns)
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
