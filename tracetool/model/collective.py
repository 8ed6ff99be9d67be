"""A collective that is part of an action or of a rank's tail: what a topology has to know to say how long it takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective as one rank uses it.

    Attributes:
        operation: allreduce, allgather ... as the trace names it.
        group_ranks: Global ranks of its group.
        payload_bytes: Bytes of the whole tensor; None if unknown.
        own_ns: Its measured time, without waiting for the last rank.
        count: How many of them there are: in each action of a stage and kind on average; 1 of a rank's own.
        lead_ns: How long before the end of the rank's last compute it started, of one that ran beside computes.
        after_ns: How much of its own time came after that end, where it is part of the rank's tail.
        shares: Over how many of the shares that pipelines have of each link it moves its bytes.
        meeting: Name of this collective, the same on all of its ranks; empty of those of actions.
    """

    operation: str
    group_ranks: tuple[int, ...]
    payload_bytes: int | None
    own_ns: int
    count: float = 1.0
    lead_ns: int = 0
    after_ns: int = 0
    shares: int = 1
    meeting: str = ""
