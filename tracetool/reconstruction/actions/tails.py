"""What follows the last backward of a rank: gradient reduction and optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.pipeline import TailPart
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions.collective_uses import StepCollective
    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.actions.work import RankWork, Segment, Tail
    from tracetool.reconstruction.capture.account import Account
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.store.run import Run

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
    run: Run,
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
    recorded = {rank for (rank,) in run.rows("SELECT rank FROM ranks")}
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
