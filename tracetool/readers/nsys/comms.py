"""Communication of a process as NCCL's own ranges tell it: what was posted, with whom, and which kernel ran it.

A payload names the other side by its place in the communicator. Which rank that is follows where the capture shows who
joined the communicator; else the peer stays unknown, and so does what nothing but a kernel tells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import SourceCode
from tracetool.readers.cuda import P2P, CommKernel, CommRecord, attach_kernels
from tracetool.readers.nsys.nvtx import labelled_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.capture import Communicator
    from tracetool.readers.nsys.nvtx import Payload

OPERATIONS = {
    "ncclSend": "send", "ncclRecv": "recv", "ncclAllReduce": "allreduce", "ncclAllGather": "allgather",
    "ncclReduceScatter": "reduce_scatter", "ncclBroadcast": "broadcast", "ncclBcast": "broadcast",
    "ncclReduce": "reduce", "ncclAlltoAll": "all_to_all", "ncclAllToAll": "all_to_all", "ncclGather": "gather",
    "ncclScatter": "scatter",
}  # fmt: skip
OPERATIONS |= {name.removeprefix("nccl"): operation for name, operation in OPERATIONS.items()}
"""The advanced trace leaves the prefix out."""

_OF_ONE_RANK = frozenset(("allgather", "reduce_scatter"))
"""Their payloads count what one rank gives or gets."""

_SINGLE = ("nccl:coalesced", "nccl:send", "nccl:recv", "nccl:batch")
"""Annotations of messages; any other one is of a collective, whatever it is made of."""


class NcclRange(NamedTuple):
    """A call of NCCL on the host.

    Attributes:
        name: Function, as ``ncclSend``.
        start_ns: Unix time.
        end_ns: Unix time.
        thread: Host thread.
        payload: What NCCL says of it.
        label: c10d's annotation around it, as ``nccl:all_reduce``; empty without.
        label_ns: When that began.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    payload: Payload
    label: str
    label_ns: int


def comm_records(
    calls: Iterable[NcclRange],
    labels: Sequence[tuple[str, int, int, int]],
    kernels: Sequence[CommKernel],
    communicators: Mapping[str, Communicator],
    rank: int,
    report: SourceReport,
) -> list[CommRecord]:
    """Communication operations in order of posting.

    Args:
        calls: NCCL's ranges in order of their start.
        labels: c10d's annotations, as name, start, end and thread; they stand in for NCCL's own ranges.
        kernels: Communication kernels.
        communicators: By id, who is where.
        rank: The process' own global rank.
        report: Told what stays unknown.
    """
    records: list[CommRecord] = []
    taken: set[tuple[int, int]] = set()
    for call in calls:
        operation = OPERATIONS.get(call.name)
        if operation is None:
            continue
        collective = _collective_in(call.label)
        if collective is not None:
            if (call.thread, call.label_ns) in taken:
                continue
            taken.add((call.thread, call.label_ns))
            operation = collective if operation in P2P or collective == "barrier" else operation
        records.append(_record(operation, call, communicators, rank))
    if not records:
        records = [_labelled(*label) for label in labels if not label[0].startswith(_SINGLE[0])]
    linked = _with_collectives(records, kernels)
    # Notes without numbers: those of all ranks are one line then. Counts are the Run's, over all ranks.
    if any(kernel.launch_thread is None for kernel in kernels):
        report.note(
            SourceCode.LAUNCHES_UNKNOWN,
            "communication kernels without a launch in the capture count as posted when they start",
        )
    attached = attach_kernels(records, linked, report)
    nameless = [r for r in attached if r.operation in P2P and r.peer is None]
    if nameless:
        why = "begin the capture before the communicators are made, and export with nsys export --include-blobs=true"
        if all(r.payload_bytes is not None and not r.communicator for r in nameless):
            why = "NCCL before 2.25 says their size, but not their communicator"
        report.note(SourceCode.PEERS_UNKNOWN, f"sends and receives name no peer: {why}")
    report.least_world = max((n + 1 for r in attached for n in (r.peer, *r.group_ranks) if n is not None), default=None)
    return attached


def _collective_in(label: str) -> str | None:
    """What collective an annotation is of; None of those of messages."""
    if not label or label.startswith(_SINGLE):
        return None
    return "barrier" if "barrier" in label else label.removeprefix("nccl:").partition(" ")[0]


def _record(operation: str, call: NcclRange, communicators: Mapping[str, Communicator], rank: int) -> CommRecord:
    payload = call.payload
    who = communicators.get(payload.communicator or "")
    whole = who is not None and None not in who.ranks
    members = tuple(r for r in who.ranks if r is not None) if who is not None and whole else ()
    place = payload.peer
    if place is None and (named := labelled_message(call.label)) is not None:
        place = named[1]
    peer = who.ranks[place] if who is not None and place is not None and place < len(who.ranks) else None
    size = payload.size_bytes
    if operation in _OF_ONE_RANK and size is not None:
        size = size * len(who.ranks) if who is not None else None
    return CommRecord(
        operation=operation, group=payload.communicator or "", group_ranks=members,
        peer=peer if operation in P2P and peer != rank else None, payload_bytes=size, posted_ns=call.start_ns,
        thread=call.thread, external_id=None, communicator=payload.communicator,
    )  # fmt: skip


def _labelled(name: str, start_ns: int, _end_ns: int, thread: int) -> CommRecord:
    message = labelled_message(name)
    operation = message[0] if message is not None else _collective_in(name) or "unknown"
    return CommRecord(
        operation=operation, group="", group_ranks=(), peer=None, payload_bytes=None, posted_ns=start_ns,
        thread=thread, external_id=None,
    )  # fmt: skip


def _with_collectives(records: Sequence[CommRecord], kernels: Sequence[CommKernel]) -> list[CommKernel]:
    """The kernels, linked to the collective that was posted last on the thread since the launch before."""
    posted: dict[int | None, list[CommRecord]] = defaultdict(list)
    for number, record in enumerate(records):
        record.external_id = number
        posted[record.thread].append(record)
    last: dict[int | None, int] = defaultdict(int)
    linked = []
    for kernel in sorted(kernels, key=lambda k: k.launch_ns):
        queue = posted[kernel.launch_thread]
        first = bisect_left(queue, last[kernel.launch_thread], key=lambda r: r.posted_ns)
        until = bisect_right(queue, kernel.launch_ns, key=lambda r: r.posted_ns)
        between = queue[first:until]
        own = between[-1] if between and between[-1].operation not in P2P else None
        linked.append(replace(kernel, external_id=own.external_id if own is not None else None))
        last[kernel.launch_thread] = kernel.launch_ns
    return linked
