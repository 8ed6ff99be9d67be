"""Sends matched to receives over the whole capture, whatever pipeline they belong to.

A communicator keeps messages in order, so the n-th send of one rank to another meets the n-th receive.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.store import Run

SHAPE_MESSAGE_BYTES = 64
"""Messages up to this size announce the shape of what follows (Megatron's variable sequence lengths)."""


class P2POp(NamedTuple):
    """One send or receive on one rank, as recorded.

    Attributes:
        rank: Global rank.
        position: Order of posting on the rank (``comms.position``).
        peer: Global rank of the other side.
        is_send: Whether it sends.
        payload_bytes: Bytes; None if unknown.
        group: Process group.
        batch: Operations launched as one share it.
        stream: Device stream of the communicator.
        thread: Host thread that posted it.
        posted_ns: When the host posted it, on the rank's own clock.
        start_ns: Start of its kernel; None if it has none.
        end_ns: End of its kernel.
        label: Pipeline action, where the trace lists operations by action.
    """

    rank: int
    position: int
    peer: int
    is_send: bool
    payload_bytes: int | None
    group: str
    batch: int | None
    stream: int | None
    thread: int | None
    posted_ns: int
    start_ns: int | None
    end_ns: int | None
    label: str | None


class Message(NamedTuple):
    """A send and the receive that it met."""

    send: P2POp
    recv: P2POp


class Matched(NamedTuple):
    """All messages of a Run.

    Attributes:
        messages: Matched pairs, by group, source, destination and order.
        unmatched: Operations without a partner in the Run.
    """

    messages: tuple[Message, ...]
    unmatched: tuple[P2POp, ...]


_SQL = """
SELECT rank, position, peer, operation = 'send', payload_bytes, "group", batch, stream, thread, posted_ns,
       start_ns, end_ns, label
FROM comms
WHERE operation IN ('send', 'recv') AND peer IS NOT NULL AND coalesce(payload_bytes, $shape + 1) > $shape
ORDER BY rank, position
"""


def read_p2p(run: Run) -> dict[int, list[P2POp]]:
    """Every send and receive with a known peer, per rank in order of posting; shape announcements are left out."""
    ops: dict[int, list[P2POp]] = defaultdict(list)
    for row in run.rows(_SQL, {"shape": SHAPE_MESSAGE_BYTES}):
        ops[row[0]].append(P2POp(*row))
    return dict(ops)


def match_messages(ops: Mapping[int, Sequence[P2POp]]) -> Matched:
    """Pair sends with receives, first in first out per (group, source, destination)."""
    queues: dict[tuple[str, int, int], tuple[list[P2POp], list[P2POp]]] = defaultdict(lambda: ([], []))
    for op in (op for rank in sorted(ops) for op in ops[rank]):
        key = (op.group, op.rank, op.peer) if op.is_send else (op.group, op.peer, op.rank)
        queues[key][0 if op.is_send else 1].append(op)
    messages: list[Message] = []
    unmatched: list[P2POp] = []
    for _, (sends, recvs) in sorted(queues.items()):
        whole = min(len(sends), len(recvs))
        messages += [Message(*pair) for pair in zip(sends[:whole], recvs[:whole], strict=True)]
        unmatched += [*sends[whole:], *recvs[whole:]]
    return Matched(tuple(messages), tuple(unmatched))
