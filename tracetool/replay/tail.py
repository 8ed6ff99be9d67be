"""After the last compute: gradient reduction and optimizer, with the collectives at which ranks meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.timeline import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.costs.over_links import OverLinks
    from tracetool.model.collective import CollectiveUse
    from tracetool.model.pipeline import TailPart


class LinkQueues:
    """Links that serve collectives in turn.

    Args:
        over_links: What a collective takes over links; None if it crosses none.
    """

    def __init__(self, over_links: Callable[[CollectiveUse], OverLinks | None]) -> None:
        self._over_links = over_links
        self._free_ns: dict[str, int] = {}

    def end_ns(self, use: CollectiveUse, start_ns: int) -> int:
        """When a collective that its ranks begin at a time ends; its links are taken until it has moved its bytes."""
        found = self._over_links(use)
        if found is None:
            return start_ns + use.own_ns
        start = max(start_ns, *(self._free_ns.get(link, 0) for link in found.links))
        self._free_ns |= dict.fromkeys(found.links, start + found.occupied_ns)
        return start + found.duration_ns


def run_tails(
    ends_ns: Sequence[int],
    tails: Sequence[Sequence[TailPart]],
    overlapped: Sequence[Sequence[CollectiveUse]] = (),
    queues: LinkQueues | None = None,
) -> list[Op]:
    """Run every rank's tail; a part that opens with a meeting starts when all its ranks have come to it.

    Args:
        ends_ns: Per pipeline rank, the end of its last compute.
        tails: Per pipeline rank, its parts in order.
        overlapped: Per pipeline rank, the collectives that run beside its computes, and may outlast them.
        queues: The links that collectives cross; None if all take what was measured.

    Returns:
        The parts as ops with stage and microbatch -1, rank by rank.
    """
    now = list(ends_ns)
    position = [0] * len(tails)
    ops: list[list[Op]] = [[] for _ in tails]
    if queues is not None:
        for rank, more in enumerate(_outlasting(ends_ns, overlapped, queues)):
            if more:
                ops[rank].append(Op(rank, -1, ActionKind.REDUCE_GRAD, -1, now[rank], more))
                now[rank] += more
    while any(position[rank] < len(tail) for rank, tail in enumerate(tails)):
        ready = [rank for rank in range(len(tails)) if _may_start(rank, position, tails)]
        # Meetings in different orders on two ranks cannot be kept: they are no meetings then.
        ready = ready or [rank for rank, tail in enumerate(tails) if position[rank] < len(tail)]
        meets = {tails[rank][position[rank]].meet for rank in ready} - {None}
        together = {meet: max(now[r] for r in ready if tails[r][position[r]].meet == meet) for meet in meets}
        for rank in sorted(ready, key=lambda rank: together.get(tails[rank][position[rank]].meet, now[rank])):
            part = tails[rank][position[rank]]
            start = together.get(part.meet, now[rank])
            duration = part.duration_ns if queues is None else _over_links_ns(part, start, queues)
            ops[rank].append(Op(rank, -1, part.kind, -1, start, duration))
            now[rank] = start + duration
            position[rank] += 1
    return [op for rank_ops in ops for op in rank_ops]


def _may_start(rank: int, position: list[int], tails: Sequence[Sequence[TailPart]]) -> bool:
    """Whether a rank's next part needs no meeting, or all that still have the meeting ahead stand at it."""
    if position[rank] == len(tails[rank]):
        return False
    meet = tails[rank][position[rank]].meet
    return meet is None or all(
        tail[position[other]].meet == meet
        for other, tail in enumerate(tails)
        if any(part.meet == meet for part in tail[position[other] :])
    )


def _over_links_ns(part: TailPart, start_ns: int, queues: LinkQueues) -> int:
    """How long a part takes whose collectives may cross links, one after another."""
    at = start_ns
    measured = 0
    for use in part.collectives:
        at = queues.end_ns(use, at)
        measured += use.own_ns
    return max(0, part.duration_ns - measured) + at - start_ns


def _outlasting(ends_ns: Sequence[int], overlapped: Sequence[Sequence[CollectiveUse]], queues: LinkQueues) -> list[int]:
    """Per rank, how much longer than as measured the collectives beside its computes outlast them.

    Those of one rank run one after another, each from when the rank came to it at the earliest.
    """
    begun = sorted(
        (ends_ns[rank] - use.lead_ns, rank, number)
        for rank, uses in enumerate(overlapped)
        for number, use in enumerate(uses)
    )
    measured, over = [0] * len(ends_ns), [0] * len(ends_ns)
    for start, rank, number in begun:
        use = overlapped[rank][number]
        measured[rank] = max(measured[rank], start) + use.own_ns
        over[rank] = queues.end_ns(use, max(over[rank], start))
    return [max(0, there - end) - max(0, here - end) for there, here, end in zip(over, measured, ends_ns, strict=True)]
