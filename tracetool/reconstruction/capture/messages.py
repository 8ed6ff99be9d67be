"""Sends matched to receives over the whole capture, whatever pipeline they belong to.

A communicator keeps messages in order, so the n-th send of one rank to another meets the n-th receive.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.collectives import rough_differences
from tracetool.reconstruction.capture.shifts import (
    EARLY_NS,
    RoughClocks,
    agrees,
    find_shift,
    is_early,
    meetings,
    rough_pairs,
    side_of,
)
from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.reconstruction.capture.shifts import RankOperations
    from tracetool.store.run import Run

_Key = tuple[str, int, int]

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
        parts: The operations that it stands for, where a hop hands on several tensors; empty if it is one alone.
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
    parts: tuple[P2POp, ...] = ()


class PairedMessage(NamedTuple):
    """A send and the receive that it met."""

    send: P2POp
    recv: P2POp


class Matched(NamedTuple):
    """All messages of a Run.

    Attributes:
        messages: Matched pairs, by group, source, destination and order.
        unmatched: Operations without a partner in the Run.
    """

    messages: tuple[PairedMessage, ...]
    unmatched: tuple[P2POp, ...]


_SQL = """
SELECT rank, position, peer, operation = 'send' AS is_send, payload_bytes, "group", batch, stream, thread, posted_ns,
       start_ns, end_ns, label
FROM comms
WHERE operation IN ('send', 'recv') AND peer IS NOT NULL AND coalesce(payload_bytes, $shape + 1) > $shape
ORDER BY rank, position
"""
_SHAPES_SQL = "SELECT count(*) FROM comms WHERE operation IN ('send', 'recv') AND payload_bytes <= ?"


def read_p2p(run: Run) -> dict[int, list[P2POp]]:
    """Every send and receive with a known peer, per rank in order of posting; shape announcements are left out."""
    ops: dict[int, list[P2POp]] = defaultdict(list)
    for record in run.records(_SQL, {"shape": SHAPE_MESSAGE_BYTES}):
        ops[record["rank"]].append(P2POp(**record))
    return dict(ops)


def record_shapes(run: Run, account: Account) -> None:
    """Say how many shape announcements are left out."""
    ((shapes,),) = run.rows(_SHAPES_SQL, [SHAPE_MESSAGE_BYTES])
    if shapes:
        account.note(
            NoticeCode.MESSAGES_SMALL,
            f"{format_count(shapes, 'small message')} of at most {SHAPE_MESSAGE_BYTES} bytes left out: they announce "
            "the shape of what follows",
        )


def match_messages(
    ops: Mapping[int, Sequence[P2POp]], account: Account, collectives: Sequence[Collective] = ()
) -> Matched:
    """Pair sends with receives, first in first out per (group, source, destination).

    Sizes of both sides must agree. Where a capture begins or ends in the middle on one side, the shift is searched;
    see :func:`tracetool.reconstruction.capture.shifts.find_shift`. Without a clear one nothing is paired.

    Args:
        ops: Sends and receives per rank in order of posting.
        account: Told what was shifted, and what met nothing.
        collectives: They tell how far clocks are apart, so that kernels of different ranks can be laid side by side.
    """
    queues: dict[_Key, tuple[list[P2POp], list[P2POp]]] = defaultdict(lambda: ([], []))
    for op in (op for rank in sorted(ops) for op in ops[rank]):
        key = (op.group, op.rank, op.peer) if op.is_send else (op.group, op.peer, op.rank)
        queues[key][0 if op.is_send else 1].append(op)
    shifts = _shifts(queues, rough_differences(collectives))
    messages: list[PairedMessage] = []
    unmatched: list[P2POp] = []
    for key, (sends, recvs) in sorted(queues.items()):
        _, src, dst = key
        shift = shifts[key]
        pairs = [] if shift is None else _paired(sends, recvs, shift)
        messages += pairs
        met = {id(op) for pair in pairs for op in pair}
        left = [op for op in (*sends, *recvs) if id(op) not in met]
        unmatched += left
        if left and src in ops and dst in ops:
            account.note(NoticeCode.MESSAGES_UNMATCHED, _mismatch(src, dst, sends, recvs, len(pairs), shift))
    alone = sorted({op.peer for op in unmatched} - set(ops))
    if alone:
        account.note(
            NoticeCode.MESSAGES_OF_UNRECORDED,
            f"{format_count(sum(op.peer in alone for op in unmatched), 'message')} with {format_ranks(alone)}, not "
            "recorded: their time holds the waiting, too",
        )
    return Matched(tuple(messages), tuple(unmatched))


def _mismatch(src: int, dst: int, sends: Sequence[P2POp], recvs: Sequence[P2POp], met: int, shift: int | None) -> str:
    counts = f"rank {src} sends {format_count(len(sends), 'message')} to rank {dst}, which receives {len(recvs)}"
    if shift is None:
        return f"{counts}: no shift of the one against the other fits sizes and times, none was matched"
    late = f", from the {shift + 1}. send on" if shift > 0 else f", from the {1 - shift}. receive on" if shift else ""
    return f"{counts}: {met} were matched{late}; the capture of one begins or ends in the middle"


def _paired(sends: Sequence[P2POp], recvs: Sequence[P2POp], shift: int) -> list[PairedMessage]:
    """The messages if the first receive meets the send number ``shift`` (negative: the other way round)."""
    return [PairedMessage(*pair) for pair in zip(sends[max(shift, 0) :], recvs[max(-shift, 0) :], strict=False)]


def _shifts(
    queues: Mapping[_Key, tuple[list[P2POp], list[P2POp]]], differences: Mapping[tuple[int, int], int]
) -> dict[_Key, int | None]:
    """The shift of each queue; those that need none tell how far clocks are apart where nothing else does."""
    sides = {key: (_side(sends), _side(recvs)) for key, (sends, recvs) in queues.items()}
    peers = _peers(queues)
    least = {key: _least_lag_ns(sends, recvs, peers) for key, (sends, recvs) in queues.items()}
    clocks = RoughClocks(differences)
    shifts: dict[_Key, int | None] = {}
    lags: list[tuple[int, int, int]] = []
    # By clocks that are the same, which some message each way shows: a receiver may fall behind buffered sends.
    causal = {key[1:] for key, side in sides.items() if _is_causal(*side, least[key])}
    for key, (sends, recvs) in sorted(sides.items()):
        is_causal = _is_causal(sends, recvs, least[key]) and (key[2], key[1]) in causal
        if is_causal or _needs_none(sends, recvs, clocks.ahead_ns(*key[1:])):
            shifts[key] = 0
            lag = least[key]
            lags += [] if lag is None else [(*key[1:], lag)]
    clocks = RoughClocks({**rough_pairs(lags), **differences})
    cut = {
        rank
        for key, (sends, recvs) in sides.items()
        if len(sends.kinds) != len(recvs.kinds) and len(sends.kinds) and len(recvs.kinds)
        for rank in key[1:]
    }
    for key, (sends, recvs) in sides.items():
        if key not in shifts:
            whole = len(sends.kinds) > 0 and len(recvs.kinds) > 0
            ahead, is_whole = clocks.ahead_ns(*key[1:]), cut.isdisjoint(key[1:])
            shifts[key] = find_shift(sends, recvs, ahead, is_whole=is_whole) if whole else None
    return shifts


def _needs_none(sends: RankOperations, recvs: RankOperations, ahead_ns: int | None) -> bool:
    """Whether both sides are equally many and fit as they are: kernels of several messages run at one time."""
    count = len(sends.kinds)
    if count != len(recvs.kinds) or not agrees(sends, recvs, 0) or is_early(sends, recvs, 0, ahead_ns or 0):
        return False
    return sends.starts is None or recvs.starts is None or 2 * meetings(sends, recvs, 0, ahead_ns or 0) >= count


def _is_causal(sends: RankOperations, recvs: RankOperations, lag_ns: int | None) -> bool:
    """Whether both sides fit as they are by clocks that are the same."""
    if len(sends.kinds) != len(recvs.kinds) or not agrees(sends, recvs, 0) or is_early(sends, recvs, 0, 0):
        return False
    return lag_ns is not None and abs(lag_ns) <= EARLY_NS


def _peers(queues: Mapping[_Key, tuple[list[P2POp], list[P2POp]]]) -> Mapping[tuple[int, int | None], set[int]]:
    """With whom the operations of each batch are."""
    peers: dict[tuple[int, int | None], set[int]] = defaultdict(set)
    for op in (op for queue in queues.values() for ops in queue for op in ops):
        peers[op.rank, op.batch].add(op.peer)
    return peers


def _least_lag_ns(
    sends: Sequence[P2POp], recvs: Sequence[P2POp], peers: Mapping[tuple[int, int | None], set[int]]
) -> int | None:
    """The shortest distance from the end of a send to that of its receive, if both sides fit as they are.

    A batch for several peers ends when the last of them is served, which says nothing of the others.
    """
    if len(sends) != len(recvs):
        return None
    lags = [
        recv.end_ns - send.end_ns
        for send, recv in zip(sends, recvs, strict=True)
        if send.end_ns is not None
        and recv.end_ns is not None
        and all(op.batch is None or len(peers[op.rank, op.batch]) == 1 for op in (send, recv))
    ]
    return min(lags, default=None)


def _side(ops: Sequence[P2POp]) -> RankOperations:
    return side_of([0] * len(ops), [op.payload_bytes for op in ops], [(op.start_ns, op.end_ns) for op in ops])
