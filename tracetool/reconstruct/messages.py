"""Sends matched to receives over the whole capture, whatever pipeline they belong to.

A communicator keeps messages in order, so the n-th send of one rank to another meets the n-th receive.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account
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
_SHAPES_SQL = "SELECT count(*) FROM comms WHERE operation IN ('send', 'recv') AND payload_bytes <= ?"
_MOST_SHIFTS = 64
_EARLY_NS = 1_000_000
"""A receive that ends so long before its send starts is that of another one, or a clock is wrong."""


def read_p2p(run: Run) -> dict[int, list[P2POp]]:
    """Every send and receive with a known peer, per rank in order of posting; shape announcements are left out."""
    ops: dict[int, list[P2POp]] = defaultdict(list)
    for row in run.rows(_SQL, {"shape": SHAPE_MESSAGE_BYTES}):
        ops[row[0]].append(P2POp(*row))
    return dict(ops)


def tell_shapes(run: Run, account: Account) -> None:
    """Say how many shape announcements are left out."""
    ((shapes,),) = run.rows(_SHAPES_SQL, [SHAPE_MESSAGE_BYTES])
    if shapes:
        account.note(
            f"{format_count(shapes, 'small message')} of at most {SHAPE_MESSAGE_BYTES} bytes left out: they announce "
            "the shape of what follows"
        )


def match_messages(ops: Mapping[int, Sequence[P2POp]], account: Account) -> Matched:
    """Pair sends with receives, first in first out per (group, source, destination).

    Sizes of both sides must agree. Where a capture begins or ends in the middle on one side, the shift is searched
    at which sizes agree and ends are nearest to a constant distance; without a clear one nothing is paired.
    """
    queues: dict[tuple[str, int, int], tuple[list[P2POp], list[P2POp]]] = defaultdict(lambda: ([], []))
    for op in (op for rank in sorted(ops) for op in ops[rank]):
        key = (op.group, op.rank, op.peer) if op.is_send else (op.group, op.peer, op.rank)
        queues[key][0 if op.is_send else 1].append(op)
    messages: list[Message] = []
    unmatched: list[P2POp] = []
    for (_, src, dst), (sends, recvs) in sorted(queues.items()):
        shift = _shift(sends, recvs)
        pairs = [] if shift is None else _paired(sends, recvs, shift)
        messages += pairs
        met = {id(op) for pair in pairs for op in pair}
        left = [op for op in (*sends, *recvs) if id(op) not in met]
        unmatched += left
        if left and src in ops and dst in ops:
            account.note(_told(src, dst, sends, recvs, len(pairs), shift))
    alone = sorted({op.peer for op in unmatched} - set(ops))
    if alone:
        account.note(
            f"{format_count(sum(op.peer in alone for op in unmatched), 'message')} with {format_ranks(alone)}, not "
            "recorded: their time holds the waiting, too"
        )
    return Matched(tuple(messages), tuple(unmatched))


def _told(src: int, dst: int, sends: Sequence[P2POp], recvs: Sequence[P2POp], met: int, shift: int | None) -> str:
    counts = f"rank {src} sends {format_count(len(sends), 'message')} to rank {dst}, which receives {len(recvs)}"
    if shift is None:
        return f"{counts}: no shift of the one against the other fits sizes and times, none was matched"
    late = f", from the {shift + 1}. send on" if shift > 0 else f", from the {1 - shift}. receive on" if shift else ""
    return f"{counts}: {met} were matched{late}; the capture of one begins or ends in the middle"


def _paired(sends: Sequence[P2POp], recvs: Sequence[P2POp], shift: int) -> list[Message]:
    """The messages if the first receive meets the send number ``shift`` (negative: the other way round)."""
    return [Message(*pair) for pair in zip(sends[max(shift, 0) :], recvs[max(-shift, 0) :], strict=False)]


def _shift(sends: Sequence[P2POp], recvs: Sequence[P2POp]) -> int | None:
    if not sends or not recvs:
        return None
    plain = _paired(sends, recvs, 0)
    usual = 0 if len(sends) == len(recvs) and _fits(plain) else None
    if usual is not None and not any(_is_early(m) for m in plain):
        return usual
    least = max(1, min(len(sends), len(recvs)) // 2)
    fitting = []
    for shift in range(max(1 - len(recvs), -_MOST_SHIFTS), min(len(sends), _MOST_SHIFTS + 1)):
        pairs = _paired(sends, recvs, shift)
        if len(pairs) >= least and _fits(pairs):
            fitting.append((_scatter(pairs), shift))
    fitting.sort()
    if not fitting or fitting[0][0] == inf:
        return usual
    clear = len(fitting) == 1 or 2 * fitting[0][0] < fitting[1][0]
    return fitting[0][1] if clear else usual


def _fits(pairs: Sequence[Message]) -> bool:
    return all(send.payload_bytes == recv.payload_bytes for send, recv in pairs)


def _is_early(message: Message) -> bool:
    """Whether the receive was over before the send began."""
    send, recv = message
    return recv.end_ns is not None and send.start_ns is not None and recv.end_ns < send.start_ns - _EARLY_NS


def _scatter(pairs: Sequence[Message]) -> float:
    """How far the distances between both ends scatter around their median, ns; infinite if they are not known."""
    apart = [recv.end_ns - send.end_ns for send, recv in pairs if recv.end_ns is not None and send.end_ns is not None]
    if not apart:
        return inf
    middle = median(apart)
    return 1.0 + float(median(abs(d - middle) for d in apart))
