"""Which rank each of several parts of a file is: from labels, else from who exchanged messages with whom."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MOST_TRIALS = 200_000
_SHARE = 0.1
_OWN = frozenset({
    "allreduce", "all_reduce", "allgather", "all_gather", "_allgather_base", "allgather_into_tensor_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "all_to_all", "all_to_allv", "alltoall", "barrier", "allreduce_coalesced",
})  # fmt: skip
"""Operations whose ``Rank`` is the rank that posts them; of sends it is the peer, of broadcasts the root."""


@dataclass(slots=True)
class RankEvidence:
    """What the events of one part tell about its rank.

    Attributes:
        name: What to call it in messages.
        said: The rank that labels say.
        own: Ranks that its collectives say it is, with how many of them do.
        members: Ranks that all its process groups have in common; None if none is listed.
        messages: (operation, peer) to number of sends and receives.
        devices: Devices to number of kernels.
    """

    name: str
    said: int | None = None
    own: Counter[int] = field(default_factory=Counter)
    members: set[int] | None = None
    messages: Counter[tuple[str, int]] = field(default_factory=Counter)
    devices: Counter[int] = field(default_factory=Counter)

    def take(self, operation: str, ranks: tuple[int, ...], rank: object, peer: int | None) -> None:
        """Learn from one record of a communication operation."""
        if ranks:
            self.members = set(ranks) if self.members is None else self.members & set(ranks)
        if operation in ("send", "recv") and peer is not None:
            self.messages[operation, peer] += 1
        elif operation in _OWN and isinstance(rank, int) and 0 <= rank < len(ranks):
            self.own[ranks[rank]] += 1

    def contradiction(self) -> str | None:
        """Why these records cannot be those of one rank, or None."""
        most = max(self.own.values(), default=0)
        own = sorted(rank for rank, count in self.own.items() if count >= _SHARE * most)
        if len(own) > 1:
            return f"collectives say that they are posted by ranks {', '.join(map(str, own[:6]))}"
        peers = {peer for _, peer in self.messages}
        if self.members and self.members <= peers:
            return f"each of ranks {', '.join(map(str, sorted(self.members)[:6]))} sends to or receives from another"
        return None

    def candidates(self, world: int) -> list[int]:
        """Ranks that it may be."""
        if self.said is not None:
            return [self.said]
        if self.own:
            return [self.own.most_common(1)[0][0]]
        peers = {peer for _, peer in self.messages}
        return sorted((set(range(world)) if self.members is None else self.members) - peers)


def most_frequent(devices: Counter[int]) -> int | None:
    """The device that most events are of, the lowest of several; None without any."""
    return min(devices, key=lambda device: (-devices[device], device), default=None)


def assign(parts: Sequence[RankEvidence], world: int) -> tuple[list[int] | None, str]:
    """The rank of each part if the evidence leaves no other, and what it was told by.

    Every send of one part must be a receive of the other, so that those who exchange messages are told by it.

    Args:
        parts: All parts.
        world: Ranks in the job, as far as it is known.
    """
    if all(part.said is not None for part in parts):
        ranks = [part.said for part in parts if part.said is not None]
        return (ranks if len(set(ranks)) == len(ranks) else None), "labels of its events"
    candidates: list[list[int]] = []
    for ranks in _assignments(parts, [part.candidates(max(world, len(parts))) for part in parts]):
        candidates.append(ranks)
        if len(candidates) > 1:
            break
    if len(candidates) == 1:
        return candidates[0], "its communication"
    devices = [-1 if (device := most_frequent(part.devices)) is None else device for part in parts]
    if candidates and sorted(devices) == list(range(world)) and _fits(parts, devices):
        return devices, "its device"
    return None, ""


def _assignments(parts: Sequence[RankEvidence], candidates: list[list[int]]) -> Iterator[list[int]]:
    """Ranks for all parts, no two alike, that agree with their messages."""
    order = sorted(range(len(parts)), key=lambda n: len(candidates[n]))
    chosen: dict[int, int] = {}
    trials = 0

    def extend(depth: int) -> Iterator[list[int]]:
        nonlocal trials
        if depth == len(order):
            yield [chosen[n] for n in range(len(parts))]
            return
        here = order[depth]
        for rank in candidates[here]:
            trials += 1
            if trials > _MOST_TRIALS:
                return
            if rank not in chosen.values() and all(
                _agree(parts[here], rank, parts[other], known) for other, known in chosen.items()
            ):
                chosen[here] = rank
                yield from extend(depth + 1)
                del chosen[here]

    return extend(0)


def _agree(one: RankEvidence, rank: int, two: RankEvidence, other: int) -> bool:
    return all(
        bool(a.messages[operation, at_b]) == bool(b.messages[answer, at_a])
        for a, at_a, b, at_b in ((one, rank, two, other), (two, other, one, rank))
        for operation, answer in (("send", "recv"), ("recv", "send"))
    )


def _fits(parts: Sequence[RankEvidence], ranks: list[int]) -> bool:
    pairs = list(zip(parts, ranks, strict=True))
    return all(rank in part.candidates(len(parts)) for part, rank in pairs) and all(
        _agree(*pairs[a], *pairs[b]) for a in range(len(pairs)) for b in range(a)
    )
