"""Messages between stages: what each was, and what each side waited."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, UnmatchedTransfer
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.timeline import Transfer
from tracetool.reconstruction.actions.labels import SQL_PATTERN, parse_label
from tracetool.reconstruction.capture.waits import total_ns
from tracetool.reconstruction.steps.reading import SPANS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import PipelineShape
    from tracetool.reconstruction.actions import RankWork, Segment
    from tracetool.reconstruction.actions.placement import PlacedPieces
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading
    from tracetool.store.run import Run


class StageOp(NamedTuple):
    """A send or receive with its meaning in the pipeline.

    Attributes:
        op: As recorded.
        kind: FORWARD for an activation, BACKWARD for a gradient.
        stage: Stage on this rank.
        microbatch: Microbatch.
    """

    op: P2POp
    kind: ActionKind
    stage: int
    microbatch: int


class StepMessages(NamedTuple):
    """Sends and receives of one step.

    Attributes:
        posts: Per global rank, in order of posting.
        messages: Those that met.
    """

    posts: Mapping[int, tuple[P2POp, ...]]
    messages: tuple[PairedMessage, ...]


def messages_of_step(survey: Survey, group: PipelineGroup, step: Step) -> StepMessages:
    """Sends and receives posted within the step's spans, all of which must have met within it.

    Raises:
        UnmatchedTransfer: If a side is missing, was posted outside the step or has no kernel, or sizes differ.
    """
    posts = {rank: survey.posted_within(rank, step.spans[rank]) for rank in group.ranks}
    inside = {(op.rank, op.position) for ops in posts.values() for op in ops}
    sent = sorted(survey.sent[place] for place in inside if place in survey.sent)
    of_step = (survey.matched.messages[number] for number in sent)
    messages = tuple(m for m in of_step if (m.recv.rank, m.recv.position) in inside)
    met = {(op.rank, op.position) for m in messages for op in m}
    every = [op for ops in posts.values() for op in ops] if inside - met else []
    alone = Counter((op.rank, op.peer, op.is_send) for op in every)
    sizes: dict[tuple[int, int, bool], set[int]] = defaultdict(set)
    for op in (op for ops in posts.values() for op in ops):
        sizes[op.rank, op.peer, op.is_send] |= set() if op.payload_bytes is None else {op.payload_bytes}
    for ops in posts.values():
        for op in ops:
            _check_op(op, step, met, alone, sizes)
    for message in messages:
        send, recv = message
        if send.payload_bytes != recv.payload_bytes:
            raise UnmatchedTransfer(
                f"step {step.number}: rank {send.rank} sends {send.payload_bytes} bytes to rank {recv.rank}, "
                f"which expects {recv.payload_bytes}."
            )
    return StepMessages(posts, messages)


_CLEARLY_NS = 200_000
"""A receive that starts so much later than its send tells whether the send waits for it."""


def buffers_sends(messages: Sequence[PairedMessage], clocks: Clocks, account: Account) -> bool:
    """Whether sends end before their receive starts: NCCL copies them into buffers of the receiver.

    Only sends that are launched alone tell; a kernel that also receives ends when that has. Where none tells, as in
    blocking batches, they are taken to do so: in every recording that tells they did, and no order is called a deadlock
    for want of evidence.
    """
    waited = ended = 0
    together = Counter((op.rank, op.stream, op.start_ns) for message in messages for op in message)
    for send, recv in messages:
        alone = together[send.rank, send.stream, send.start_ns] == 1
        if send.stream is None or send.start_ns is None or recv.start_ns is None or not alone:
            continue
        start, begun = clocks.aligned_ns(send.rank, send.start_ns), clocks.aligned_ns(recv.rank, recv.start_ns)
        if send.end_ns is not None and begun - start > _CLEARLY_NS:
            ended += clocks.aligned_ns(send.rank, send.end_ns) < begun
            waited += clocks.aligned_ns(send.rank, send.end_ns) >= begun
    statement, late = "sends are taken not to wait for their receives: none that came late tells", ended + waited
    if late:
        statement = f"{ended} of {late} sends whose receive came late did not wait for it"
    if messages:
        confidence = max(ended, waited) / late if late else 0.5
        account.find("buffering", "all", statement, "messages" if late else "assumed", confidence)
    return ended > waited or not late


def _check_op(
    op: P2POp,
    step: Step,
    met: set[tuple[int, int]],
    alone: Mapping[tuple[int, int, bool], int],
    sizes: Mapping[tuple[int, int, bool], set[int]],
) -> None:
    if op.start_ns is None:
        raise UnmatchedTransfer(
            f"rank {op.rank}, step {step.number}: a message with rank {op.peer} has no kernel.",
            hint=f"the capture may end inside the step: try another one with {Option.STEP}",
        )
    if (op.rank, op.position) not in met:
        ours, theirs = alone[op.rank, op.peer, op.is_send], alone[op.peer, op.rank, not op.is_send]
        verb, other = ("sends", "receives") if op.is_send else ("receives", "sends")
        way = "to" if op.is_send else "from"
        if ours == theirs and sizes[op.rank, op.peer, op.is_send] != sizes[op.peer, op.rank, not op.is_send]:
            mine, others = (
                " and ".join(f"{size:,}" for size in sorted(sizes_of_side))
                for sizes_of_side in (sizes[op.rank, op.peer, op.is_send], sizes[op.peer, op.rank, not op.is_send])
            )
            raise UnmatchedTransfer(
                f"step {step.number}: rank {op.rank} {verb} messages of {mine} bytes {way} rank {op.peer}, which "
                f"{other} such of {others} bytes.",
                hint="one side may be of another run, or of another step",
            )
        if ours == theirs:
            raise UnmatchedTransfer(
                f"step {step.number}: rank {op.rank} {verb} {ours} messages {way} rank {op.peer}, which {other} as "
                "many, but their sizes or times do not fit each other.",
                hint="one side may be of another run, or its clock was set during the capture",
            )
        raise UnmatchedTransfer(
            f"step {step.number}: rank {op.rank} {verb} {ours} messages {way} rank {op.peer}, which {other} "
            f"{theirs} in it.",
            hint=f"the capture may begin or end inside the step (try another one with {Option.STEP}), or ranks are of "
            "different runs",
        )


def stage_ops(
    reading: StepReading, step: Step, messages: StepMessages, placed: PlacedPieces | None
) -> dict[int, tuple[StageOp, ...]]:
    """What each send and receive of the step carries: as the messages themselves showed, else by its label.

    Raises:
        UnmatchedTransfer: If neither tells, labels of both sides differ, or they name stages that are no neighbours.
    """
    if placed is not None:
        return {
            rank: tuple(
                StageOp(op, placed.kinds[at], placed.ends[at].stage, placed.ends[at].microbatch)
                for op in ops
                if (at := (op.rank, op.position)) in placed.ends
            )
            for rank, ops in messages.posts.items()
        }
    by_rank = {rank: _by_label(reading, step, rank, ops) for rank, ops in messages.posts.items()}
    known = {(o.op.rank, o.op.position): o for ops in by_rank.values() for o in ops}
    for send, recv in messages.messages:
        one, two = known[send.rank, send.position], known[recv.rank, recv.position]
        if (one.kind, one.microbatch) != (two.kind, two.microbatch):
            raise UnmatchedTransfer(
                f"step {step.number}: rank {send.rank} sends {one.kind.value}{one.microbatch} when rank {recv.rank} "
                f"expects {two.kind.value}{two.microbatch}."
            )
        if two.stage - one.stage != (1 if one.kind is ActionKind.FORWARD else -1):
            raise UnmatchedTransfer(
                f"step {step.number}: by its labels stage {one.stage} (rank {send.rank}) sends {one.kind.value}"
                f"{one.microbatch} to stage {two.stage} (rank {recv.rank}), which is not the next one.",
                hint="the labels name other stages than the messages show: they are of other ranks, or wrong",
            )
    return by_rank


_LABELS_SQL = f"""
WITH {SPANS},
labels AS (
    SELECT rank, start_ns, start_ns + duration_ns AS end_ns, name
    FROM events
    WHERE rank IN (SELECT rank FROM spans) AND category = 'annotation' AND regexp_matches(name, $labels)
),
posted AS (
    SELECT s.number, c.rank, c.position, c.posted_ns
    FROM comms AS c JOIN spans AS s ON s.rank = c.rank AND c.posted_ns >= s.first AND c.posted_ns < s.last
    WHERE c.operation IN ('send', 'recv')
)
SELECT c.number, c.position, CASE WHEN c.posted_ns <= l.end_ns THEN l.name END
FROM posted AS c
ASOF JOIN labels AS l ON l.rank = c.rank AND l.start_ns <= c.posted_ns
ORDER BY c.number
"""


def _by_label(reading: StepReading, step: Step, rank: int, ops: Sequence[P2POp]) -> tuple[StageOp, ...]:
    names = dict(reading.rows(_LABELS_SQL, rank, step.spans[rank], labels=SQL_PATTERN))
    labelled = []
    for op in ops:
        label = parse_label(f"PP:{op.label}" if op.label else names.get(op.position) or "")
        if (
            label is None
            or label.stage is None
            or label.microbatch is None
            or not label.kind.value.startswith(("SEND", "RECV"))
        ):
            raise UnmatchedTransfer(
                f"rank {rank}, step {step.number}: nothing tells what its message {'to' if op.is_send else 'from'} "
                f"rank {op.peer} carries.",
                hint=_label_hint(reading.run),
            )
        labelled.append(StageOp(op, ActionKind(label.kind.value[-1]), label.stage, label.microbatch))
    return tuple(labelled)


def _label_hint(run: Run) -> str:
    ((is_table,),) = run.rows("SELECT bool_or(reader = 'ndtimeline') FROM sources WHERE status = 'read'")
    if is_table:
        return (
            "its sends, receives and computes do not pair by number and time: rows may be lost, or times damaged; "
            "sources and problems (tracetool sql) say what was dropped, export the table anew"
        )
    return "record host activity (ProfilerActivity.CPU), whose autograd numbers tell it"


def find_transfers(
    group: PipelineGroup,
    matched: StepMessages,
    ops: Mapping[int, Sequence[StageOp]],
    survey: Survey,
    account: Account,
) -> list[Transfer]:
    """The step's messages with times on the reference rank's clock; how long one moved is what ``waits`` says."""
    known = {(o.op.rank, o.op.position): o for rank_ops in ops.values() for o in rank_ops}
    transfers = [
        _transfer(
            group,
            known[m.send.rank, m.send.position],
            known[m.recv.rank, m.recv.position],
            survey.clocks,
            _moved_ns(m.recv, survey.moved_ns),
        )
        for m in matched.messages
    ]
    early = sum(t.end_ns < t.send_posted_ns for t in transfers)
    if early:
        account.note(
            NoticeCode.MESSAGES_EARLY,
            f"{early} of {len(transfers)} messages arrive before they were sent: the clocks of the ranks differ, and "
            "every time that crosses ranks is off by as much",
        )
    return transfers


def _moved_ns(op: P2POp, waits: Mapping[tuple[int, int], int]) -> int:
    """How long a message moved; of several tensors, the time in which any of them did."""
    parts = op.parts or (op,)
    return total_ns(((one.end_ns or 0) - waits[one.rank, one.position], one.end_ns or 0) for one in parts)


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
                hint="an evaluation batch or another exchange may run inside the step: try another one with "
                f"{Option.STEP}",
            )


def _transfer(group: PipelineGroup, send: StageOp, recv: StageOp, clocks: Clocks, moved_ns: int) -> Transfer:
    """A matched pair, with the receiver's own time of moving at its end.

    A send may finish before its receive starts (its payload was buffered): then that is the receiver's copy out of
    the buffer.
    """
    sent = clocks.aligned_ns(send.op.rank, send.op.start_ns or 0)
    ready = clocks.aligned_ns(recv.op.rank, recv.op.start_ns or 0)
    usable = clocks.aligned_ns(recv.op.rank, recv.op.end_ns or 0)
    return Transfer(
        kind=send.kind,
        microbatch=send.microbatch,
        src_stage=send.stage,
        dst_stage=recv.stage,
        src_rank=group.position(send.op.rank),
        dst_rank=group.position(recv.op.rank),
        payload_bytes=send.op.payload_bytes,
        send_posted_ns=sent,
        recv_posted_ns=ready,
        start_ns=usable - moved_ns,
        end_ns=usable,
    )


def payload(transfers: Sequence[Transfer]) -> int | None:
    """Bytes of one message, or None if there is none, they differ or are unknown."""
    sizes = {t.payload_bytes for t in transfers}
    return sizes.pop() if len(sizes) == 1 else None


def median_transfer_ns(transfers: Sequence[Transfer]) -> int:
    """Median time from both sides ready to data usable; 0 if there are none."""
    return round(median(t.end_ns - t.start_ns for t in transfers)) if transfers else 0


_SHOWING_OPS = 4
"""Sends and receives of a rank that can show whether compute waits for them."""


def p2p_mode(posts: Mapping[int, Sequence[P2POp]], work: Mapping[int, RankWork]) -> P2PMode:
    """How transfers were issued: in mixed batches, one by one on one stream (beside compute or not), or on several."""
    for rank_ops in posts.values():
        directions: dict[int | None, set[bool]] = defaultdict(set)
        for op in rank_ops:
            directions[op.batch].add(op.is_send)
        if any(len(d) == 2 for batch, d in directions.items() if batch is not None):
            return "grouped"
    streams = max(len({op.stream for op in rank_ops}) for rank_ops in posts.values())
    if streams > 1:
        return "per-edge"
    return "blocking" if all(_blocks_compute(ops, work[rank].segments) for rank, ops in posts.items()) else "in-order"


def _blocks_compute(ops: Sequence[P2POp], segments: Sequence[Segment]) -> bool:
    """Whether a device computed all through a step but beside none of its sends and receives, though many might."""
    import numpy as np

    timed = (op for op in ops if op.stream is not None)
    spans = [(op.start_ns, op.end_ns) for op in timed if op.start_ns is not None and op.end_ns is not None]
    kernels = [k for s in segments for k in s.kernels if k.is_compute and k.stream is not None]
    if len(spans) < max(_SHOWING_OPS, len(ops)) or not kernels:
        return False
    starts, ends = (np.array(side, np.int64) for side in zip(*spans, strict=True))
    begun = np.searchsorted(np.sort(np.array([k.start_ns for k in kernels], np.int64)), ends)
    over = np.searchsorted(np.sort(np.array([k.end_ns for k in kernels], np.int64)), starts, "right")
    return bool((begun == over).all())


def shifted(transfer: Transfer, origin: int) -> Transfer:
    """A transfer on a clock that starts later."""
    return replace(
        transfer,
        send_posted_ns=transfer.send_posted_ns - origin,
        recv_posted_ns=transfer.recv_posted_ns - origin,
        start_ns=transfer.start_ns - origin,
        end_ns=transfer.end_ns - origin,
    )
