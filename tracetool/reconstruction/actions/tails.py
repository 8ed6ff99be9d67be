"""What follows the last backward of a rank: gradient reduction and optimizer.

Collectives of a step: those that actions wait for, and those that run beside computes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.notice import NoticeCode
from tracetool.model.pipeline import TailPart
from tracetool.reconstruction.steps.reading import SPANS
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel, RankWork, Segment, Tail
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading

_OF_STEP_SQL = f"""
WITH {SPANS}
SELECT s.number, c.position, c.start_ns, c.end_ns, c.operation, c.payload_bytes, c.group_ranks
FROM comms AS c JOIN spans AS s ON s.rank = c.rank AND c.posted_ns >= s.first AND c.posted_ns < s.last
WHERE c.operation NOT IN ('send', 'recv', 'exchange', 'barrier') AND c.start_ns IS NOT NULL AND c.end_ns IS NOT NULL
ORDER BY s.number, c.start_ns
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
        group: Name of its group; empty if it was matched with no other rank.
        number: Which of its group's it is in the step, from 1; 0 likewise.
    """

    rank: int
    start_ns: int
    end_ns: int
    operation: str
    payload_bytes: int | None
    group_ranks: tuple[int, ...]
    name: str | None
    own_ns: int
    group: str = ""
    number: int = 0

    def use(self, end_ns: int | None = None) -> CollectiveUse:
        """The same without its time.

        Args:
            end_ns: End of the rank's last compute, if it ran beside computes.
        """
        use = CollectiveUse(
            self.operation, self.group_ranks, self.payload_bytes, self.own_ns,
            meeting=self.name or "", group=self.group, number=self.number,
        )  # fmt: skip
        if end_ns is None:
            return use
        after = max(0, min(self.own_ns, self.end_ns - end_ns))
        return replace(use, lead_ns=max(0, end_ns - self.start_ns), after_ns=after)


def step_collectives(
    reading: StepReading, group: PipelineGroup, step: Step, survey: Survey
) -> dict[int, list[StepCollective]]:
    """The collectives of a step, barriers left out, per rank in order of their start.

    Args:
        reading: What the Run holds of the step.
        group: The pipeline.
        step: The step.
        survey: What is known of the whole capture.
    """
    rows = [(rank, *row) for rank in group.ranks for row in reading.rows(_OF_STEP_SQL, rank, step.spans[rank])]
    met = {survey.met_in[rank, position] for rank, position, *_ in rows if (rank, position) in survey.met_in}
    matched = {number: survey.collectives[number] for number in sorted(met)}
    numbers: Counter[tuple[str, tuple[int, ...]]] = Counter()
    number_in_group: dict[int, int] = {}
    for number, one in matched.items():
        key = one.group, one.group_ranks
        numbers[key] += 1
        number_in_group[number] = numbers[key]
    by_rank: dict[int, list[StepCollective]] = defaultdict(list)
    for rank, position, start, end, operation, payload, group_ranks in rows:
        alone = StepCollective(
            rank=rank, start_ns=start, end_ns=end, operation=operation, payload_bytes=payload,
            group_ranks=tuple(group_ranks), name=None, own_ns=end - start,
        )  # fmt: skip
        place = survey.met_in.get((rank, position))
        if place is not None:
            whole, number = matched[place], number_in_group[place]
            alone = alone._replace(
                payload_bytes=whole.payload_bytes if payload is None else payload, group_ranks=whole.group_ranks,
                name=meeting_of(whole.group, whole.group_ranks, number), own_ns=whole.own_ns, group=whole.group,
                number=number,
            )  # fmt: skip
        by_rank[rank].append(alone)
    return by_rank


def meeting_of(group: str, ranks: Sequence[int], number: int) -> str:
    """Name of a collective, the same on all of its ranks.

    Args:
        group: Name of its group.
        ranks: Those of the group.
        number: Which of the group's it is in the step.
    """
    return f"{group} {list(ranks)} {number}"


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
        if 2 * _busy_ns(busy, starts, one.start_ns, one.end_ns) > one.end_ns - one.start_ns or one.end_ns > end:
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


def _busy_ns(busy: Sequence[tuple[int, int]], starts: Sequence[int], start: int, end: int) -> int:
    """How much of a span computes cover; those of one stream do not overlap each other."""
    total = 0
    for at in range(max(0, bisect_right(starts, start) - 1), len(busy)):
        low, high = busy[at]
        if low >= end:
            break
        total += max(0, min(high, end) - max(low, start))
    return total


_WORTH_TELLING = 0.01
"""Share of a rank's tail."""


def observed_tail(kernels: Sequence[Kernel], segments: Sequence[Segment]) -> Tail:
    """What ran after the last backward, without barriers, as it was observed."""
    end = max(s.end_ns for s in segments)
    rest = [k for k in kernels if not (k.is_p2p or k.is_barrier)]
    # A collective launched by the last backward may run on after it.
    after = [k for k in rest if k.start_ns >= end or (k.is_collective and k.end_ns > end)]
    optimizer = [k for k in after if k.is_optimizer]
    if not optimizer:
        return (TailPart(ActionKind.REDUCE_GRAD, max(k.end_ns for k in after) - end),) if after else ()
    start = min(k.start_ns for k in optimizer)
    parts = [TailPart(ActionKind.OPTIMIZER, max(k.end_ns for k in optimizer) - start)]
    if start > end:
        parts.insert(0, TailPart(ActionKind.REDUCE_GRAD, start - end))
    return tuple(parts)


def tails_without_waits(
    reading: StepReading,
    group: PipelineGroup,
    work: Mapping[int, RankWork],
    collectives: Mapping[int, Sequence[StepCollective]],
    account: Account,
) -> dict[int, Tail]:
    """Each rank's tail without the time its collectives waited for slower ranks.

    Collectives over several ranks of the pipeline cut the tail: replay lets the ranks meet there. What they waited for
    ranks of other pipelines (data-parallel groups) is kept apart.
    """
    others = _waits_for_others(work, collectives)
    recorded = reading.recorded
    tails, alone = {}, set()
    for rank, rank_work in work.items():
        at = max(s.end_ns for s in rank_work.segments)
        mine = [c for c in collectives.get(rank, ()) if c.end_ns > at]
        parts: list[TailPart] = []
        for part in rank_work.tail:
            inside = [c for c in mine if c.start_ns < at + part.duration_ns and c.end_ns > at]
            alone |= {c.group_ranks for c in inside if set(c.group_ranks) - recorded or c.name is None}
            parts += _cut(part, at, inside, set(group.ranks) & recorded, others)
            at += part.duration_ns
        tails[rank] = tuple(parts)
    waited = {rank: sum(part.waited_ns for part in tail) for rank, tail in tails.items()}
    if any(waited[rank] > _WORTH_TELLING * sum(part.duration_ns for part in tail) for rank, tail in tails.items()):
        account.note(
            NoticeCode.WAITS_FOR_PIPELINES,
            "after their last backward, ranks waited for ranks of other pipelines, which replays of one pipeline leave "
            f"out: up to {format_duration(max(waited.values()))} (rank {max(waited, key=lambda r: waited[r])})",
        )
    if alone:
        groups = ", ".join(str(list(g)) for g in sorted(alone))
        account.note(
            NoticeCode.COLLECTIVES_OF_UNRECORDED,
            f"collectives after the last backward with ranks that were not recorded or match no other ({groups}) may "
            "hold waits: upper bounds",
        )
    return tails


def _waits_for_others(
    work: Mapping[int, RankWork], collectives: Mapping[int, Sequence[StepCollective]]
) -> dict[str, int]:
    """By name of a collective, what even the last rank of the pipeline to come to it waited: for other pipelines."""
    least: dict[str, int] = {}
    for one in (one for rank in work for one in collectives.get(rank, ()) if one.name is not None):
        waited = one.end_ns - one.start_ns - one.own_ns
        least[one.name or ""] = min(least.get(one.name or "", waited), waited)
    return least


def _cut(
    part: TailPart,
    start: int,
    collectives: Sequence[StepCollective],
    pipeline: set[int],
    others: Mapping[str, int],
) -> list[TailPart]:
    """Split a part where collectives let ranks of the pipeline meet, and take all waits out."""
    begun = [c for c in collectives if c.start_ns >= start]
    meets = [c for c in begun if c.name is not None and len(set(c.group_ranks) & pipeline) > 1]
    waits = sorted((max(c.start_ns, start), c.end_ns - c.own_ns) for c in collectives)
    beyond = sorted(
        (max(c.end_ns - c.own_ns - others.get(c.name or "", 0), start), c.end_ns - c.own_ns) for c in collectives
    )
    bounds = [start, *(c.start_ns for c in meets), start + part.duration_ns]
    names = [None, *(c.name for c in meets)]
    return [
        TailPart(
            part.kind,
            (after - before) - _covered(waits, before, after),
            name,
            tuple(c.use() for c in begun if before <= c.start_ns < after),
            _covered(beyond, before, after),
        )
        for before, after, name in zip(bounds, bounds[1:], names, strict=False)
    ]


def _covered(spans: Sequence[tuple[int, int]], start: int, end: int) -> int:
    """Length of the union of sorted spans within [start, end)."""
    total, at = 0, start
    for low, high in spans:
        fresh, until = max(low, at), min(high, end)
        if until > fresh:
            total, at = total + until - fresh, until
    return total
