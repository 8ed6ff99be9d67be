"""Messages between stages: sends matched to receives, with what each side waited."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError, UnmatchedTransfer
from tracetool.model.action import ActionKind
from tracetool.model.timeline import Transfer
from tracetool.reconstruct.labels import SQL_PATTERN, parse_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import PipelineShape
    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.groups import PipelineGroup
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run


@dataclass(frozen=True, slots=True)
class P2POp:
    """One send or receive on one rank.

    Attributes:
        rank: Global rank.
        peer: Global rank of the other side.
        is_send: Whether it sends.
        kind: FORWARD for an activation, BACKWARD for a gradient.
        stage: Stage on this rank.
        microbatch: Microbatch.
        payload_bytes: Bytes; None if unknown.
        group: Process group.
        batch: Operations launched as one share it.
        stream: Device stream of the communicator.
        start_ns: Start of its kernel.
        end_ns: End of its kernel.
    """

    rank: int
    peer: int
    is_send: bool
    kind: ActionKind
    stage: int
    microbatch: int
    payload_bytes: int | None
    group: str
    batch: int | None
    stream: int | None
    start_ns: int
    end_ns: int


_SQL = """
WITH labels AS (
    SELECT start_ns, start_ns + duration_ns AS end_ns, name
    FROM events
    WHERE rank = $rank AND category = 'annotation' AND regexp_matches(name, $labels)
)
SELECT c.operation = 'send', c.peer, c.payload_bytes, c.group, c.batch, c.stream, c.start_ns, c.end_ns,
       CASE WHEN c.posted_ns <= l.end_ns THEN l.name END
FROM comms AS c
ASOF LEFT JOIN labels AS l ON l.start_ns <= c.posted_ns
WHERE c.rank = $rank AND c.operation IN ('send', 'recv') AND c.peer IS NOT NULL
  AND coalesce(c.payload_bytes, 65) > 64  -- shapes of what follows (Megatron's variable sequence lengths)
  AND c.posted_ns >= $first AND c.posted_ns < $last
ORDER BY c.position
"""


def find_transfers(
    run: Run, group: PipelineGroup, step: Step, *, use_labels: bool, account: Account
) -> tuple[list[Transfer], dict[int, tuple[P2POp, ...]]]:
    """Match sends to receives, first in first out per (group, source, destination).

    A communicator keeps messages in order, so the n-th send meets the n-th receive.

    Returns:
        The transfers with times as in the trace, and the operations of each rank in order of posting.

    Raises:
        UnmatchedTransfer: If counts, sizes or labels of both sides differ, or a kernel is missing.
        ReconstructError: If ranks hold several stages and nothing labels them.
    """
    ops = {r: tuple(_rank_ops(run, group, step, r, use_labels=use_labels)) for r in group.ranks}
    queues: dict[tuple[str, int, int], tuple[list[P2POp], list[P2POp]]] = defaultdict(lambda: ([], []))
    for op in (op for rank in group.ranks for op in ops[rank]):
        key = (op.group, op.rank, op.peer) if op.is_send else (op.group, op.peer, op.rank)
        queues[key][0 if op.is_send else 1].append(op)
    transfers = []
    for (name, src, dst), (sends, recvs) in sorted(queues.items()):
        if len(sends) != len(recvs):
            raise UnmatchedTransfer(
                f"step {step.number}: rank {src} sends {len(sends)} messages to rank {dst} in group {name!r}, "
                f"rank {dst} receives {len(recvs)}.",
                hint="the capture may begin or end inside the step: try another one with --step",
            )
        for send, recv in zip(sends, recvs, strict=True):
            if send.payload_bytes != recv.payload_bytes:
                raise UnmatchedTransfer(
                    f"step {step.number}: rank {src} sends {send.payload_bytes} bytes to rank {dst} "
                    f"({send.kind.value}{send.microbatch}), which expects {recv.payload_bytes}."
                )
            if (send.kind, send.microbatch) != (recv.kind, recv.microbatch):
                raise UnmatchedTransfer(
                    f"step {step.number}: rank {src} sends {send.kind.value}{send.microbatch} when rank {dst} "
                    f"expects {recv.kind.value}{recv.microbatch}.",
                    hint="the order of messages fits no pipeline with one stage per rank",
                )
            transfers.append(_transfer(group, send, recv))
    early = sum(t.end_ns < t.send_posted_ns for t in transfers)
    if early:
        account.note(
            f"{early} of {len(transfers)} messages arrive before they were sent: the clocks of the ranks differ, and "
            "every time that crosses ranks is off by as much"
        )
    return transfers, ops


def check_counts(transfers: Sequence[Transfer], shape: PipelineShape) -> None:
    """Check that every pair of neighbouring stages exchanged one message per microbatch and direction.

    Raises:
        UnmatchedTransfer: If there are more or fewer.
    """
    counted = Counter((t.kind, t.src_stage, t.dst_stage) for t in transfers)
    for (kind, src, dst), count in sorted(counted.items()):
        if count != shape.microbatches:
            raise UnmatchedTransfer(
                f"stage {src} sends {count} {'activations' if kind is ActionKind.FORWARD else 'gradients'} to stage "
                f"{dst} in a step of {shape.microbatches} microbatches.",
                hint="an evaluation batch or another exchange may run inside the step: try another one with --step",
            )


def _rank_ops(run: Run, group: PipelineGroup, step: Step, rank: int, *, use_labels: bool) -> Iterable[P2POp]:
    first, last = step.spans[rank]
    position = group.position(rank)
    counted: dict[tuple[bool, ActionKind], int] = defaultdict(int)
    parameters = {"rank": rank, "first": first, "last": last, "labels": SQL_PATTERN}
    for is_send, peer, size, name, batch, stream, start, end, label_name in run.rows(_SQL, parameters):
        if start is None:
            raise UnmatchedTransfer(
                f"rank {rank}, step {step.number}: a message with rank {peer} has no kernel.",
                hint="the capture may end inside the step: try another one with --step",
            )
        # One stage per rank: towards a later stage goes an activation, towards an earlier one a gradient.
        towards_later = (group.position(peer) > position) == is_send
        kind = ActionKind.FORWARD if towards_later else ActionKind.BACKWARD
        stage, microbatch = position, counted[is_send, kind]
        label = parse_label(label_name) if use_labels and label_name else None
        if label is not None and label.kind.value.startswith(("SEND", "RECV")) and label.stage is not None:
            kind = ActionKind(label.kind.value[-1])
            stage, microbatch = label.stage, label.microbatch
        elif abs(group.position(peer) - position) != 1:
            raise ReconstructError(
                f"ranks {rank} and {peer} exchange messages but are no neighbours in the pipeline "
                f"{list(group.ranks)}: each rank holds several stages, and no labels tell them apart.",
                hint="record with torch 2.10 or newer, whose schedules label their actions (PP:...)",
            )
        counted[is_send, kind] += 1
        yield P2POp(rank, peer, is_send, kind, stage, microbatch, size, name, batch, stream, start, end)


def _transfer(group: PipelineGroup, send: P2POp, recv: P2POp) -> Transfer:
    """Split a matched pair into waiting and moving: bytes move from the later start to the receiver's end.

    A send may finish before its receive starts (its payload was buffered): then what is left to do once
    both sides are ready is the receiver's copy out of the buffer.
    """
    return Transfer(
        kind=send.kind,
        microbatch=send.microbatch,
        src_stage=send.stage,
        dst_stage=recv.stage,
        src_rank=group.position(send.rank),
        dst_rank=group.position(recv.rank),
        payload_bytes=send.payload_bytes,
        send_posted_ns=send.start_ns,
        recv_posted_ns=recv.start_ns,
        start_ns=min(max(send.start_ns, recv.start_ns), recv.end_ns),
        end_ns=recv.end_ns,
    )


def payload(transfers: Sequence[Transfer]) -> int | None:
    """Bytes of one message, or None if there is none, they differ or are unknown."""
    sizes = {t.payload_bytes for t in transfers}
    return sizes.pop() if len(sizes) == 1 else None


def median_transfer_ns(transfers: Sequence[Transfer]) -> int:
    """Median time from both sides ready to data usable; 0 if there are none."""
    return round(median(t.end_ns - t.start_ns for t in transfers)) if transfers else 0


def p2p_mode(ops: Mapping[int, Sequence[P2POp]]) -> P2PMode:
    """How transfers were issued: in mixed batches, one by one on one stream, or on several streams."""
    for rank_ops in ops.values():
        directions: dict[int | None, set[bool]] = defaultdict(set)
        for op in rank_ops:
            directions[op.batch].add(op.is_send)
        if any(len(d) == 2 for batch, d in directions.items() if batch is not None):
            return "grouped"
    streams = max(len({op.stream for op in rank_ops}) for rank_ops in ops.values())
    return "per-edge" if streams > 1 else "in-order"
