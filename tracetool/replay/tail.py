"""After the last compute: gradient reduction and optimizer, with the collectives at which ranks meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.timeline import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import TailPart


def run_tails(ends_ns: Sequence[int], tails: Sequence[Sequence[TailPart]]) -> list[Op]:
    """Run every rank's tail; a part that opens with a meeting starts when all its ranks have come to it.

    Args:
        ends_ns: Per pipeline rank, the end of its last compute.
        tails: Per pipeline rank, its parts in order.

    Returns:
        The parts as ops with stage and microbatch -1, rank by rank.
    """
    now = list(ends_ns)
    position = [0] * len(tails)
    ops: list[list[Op]] = [[] for _ in tails]
    while any(position[rank] < len(tail) for rank, tail in enumerate(tails)):
        ready = [rank for rank in range(len(tails)) if _may_start(rank, position, tails)]
        # Meetings in different orders on two ranks cannot be kept: they are no meetings then.
        ready = ready or [rank for rank, tail in enumerate(tails) if position[rank] < len(tail)]
        meets = {tails[rank][position[rank]].meet for rank in ready} - {None}
        together = {meet: max(now[r] for r in ready if tails[r][position[r]].meet == meet) for meet in meets}
        for rank in ready:
            part = tails[rank][position[rank]]
            now[rank] = together.get(part.meet, now[rank])
            ops[rank].append(Op(rank, -1, part.kind, -1, now[rank], part.duration_ns))
            now[rank] += part.duration_ns
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
