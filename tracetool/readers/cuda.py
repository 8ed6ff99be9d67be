"""What traces of CUDA programs have in common, whichever profiler wrote them: kernels of NCCL, labels of actions.

Kernels of coalesced batches carry no metadata (pytorch/pytorch#194693): the host records of the operations in the
batch come before its launch, on the same thread.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.readers import SourceReport

P2P = ("send", "recv")
BEFORE_ALL_NS = -(2**63)
_COMMUNICATION_KERNEL = re.compile(r"^(nccl|rccl|mscclpp)", re.IGNORECASE)
_OPERATION_IN_NAME = re.compile(
    r"^[a-z]*?(?:Dev)?(?:Kernel)?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)", re.IGNORECASE
)
_ACTION = re.compile(r"^PP:((?:\d+|\()[\w;()]*)$")


def action_in(name: str) -> str | None:
    """The pipeline action that an annotation of torch's runtime names: ``2F0`` of ``PP:2F0``; None of other names."""
    match = _ACTION.match(name)
    return match[1] if match is not None else None


@dataclass(slots=True, kw_only=True)
class CommRecord:
    """One communication operation as the host posted it, and the kernel found for it."""

    operation: str
    group: str
    group_ranks: tuple[int, ...]
    peer: int | None
    payload_bytes: int | None
    posted_ns: int
    thread: int | None
    external_id: int | None
    communicator: str | None = None
    batch: int | None = None
    stream: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def evidence(self) -> str:
        """How its peer and bytes are known."""
        known = self.payload_bytes is not None and (self.peer is not None or self.operation not in P2P)
        return "metadata" if known else "unknown"


@dataclass(frozen=True, slots=True)
class CommKernel:
    """One communication kernel, with the host call that launched it."""

    name: str
    start_ns: int
    end_ns: int
    stream: int | None
    external_id: int | None
    launch_ns: int
    launch_thread: int | None


def is_communication_kernel(name: str) -> bool:
    """Whether a kernel belongs to a communication library, by the prefix of its name."""
    return _COMMUNICATION_KERNEL.match(name) is not None


def operation_of_kernel(name: str) -> str:
    """What a communication kernel does, by its name alone: SendRecv may be any of several operations."""
    match = _OPERATION_IN_NAME.match(name)
    return match[1].lower() if match else "unknown"


@dataclass(slots=True)
class Launched:
    """How far launches were gone through, in order of time.

    Attributes:
        since_ns: Of each thread, when it last launched communication; before any time if it never did.
        count: Launches so far, which is the number of the next batch.
    """

    since_ns: dict[int | None, int] = field(default_factory=lambda: defaultdict(lambda: BEFORE_ALL_NS))
    count: int = 0


def attach_kernels(records: list[CommRecord], kernels: Iterable[CommKernel], report: SourceReport) -> list[CommRecord]:
    """Give each record its kernel's stream and times, see :func:`attach`; kernels without any stand behind them."""
    records.sort(key=lambda r: r.posted_ns)
    bare = attach(records, sorted(kernels, key=lambda k: k.launch_ns), Launched())
    if bare:
        note_bare(report)
    return sorted([*records, *bare], key=lambda r: r.posted_ns)


def note_bare(report: SourceReport) -> None:
    """Say that kernels stand without what the host posted."""
    report.note(
        SourceCode.BYTES_UNKNOWN,
        "communication kernels have no host record: what they moved is unknown",
    )


def attach(records: Sequence[CommRecord], kernels: Sequence[CommKernel], launched: Launched) -> list[CommRecord]:
    """Give records their kernels' stream and times; operations launched together share a batch.

    A kernel linked to a record by ``External id`` belongs to it. Any other one belongs to the send and
    receive records posted on its thread since the previous communication launch there. A kernel without
    any becomes a record of its own, of which only the operation in its name is known.

    Args:
        records: In order of posting.
        kernels: In order of their launches.
        launched: What was launched before; moves on.

    Returns:
        The records of kernels without any, in order of launches.
    """
    linked = {r.external_id: r for r in records if r.external_id is not None}
    posted: dict[int | None, list[CommRecord]] = defaultdict(list)
    for record in records:
        if record.operation in P2P:
            posted[record.thread].append(record)
    bare: list[CommRecord] = []
    for kernel in kernels:
        thread = kernel.launch_thread
        own = linked.get(kernel.external_id) if kernel.external_id is not None else None
        if own is not None:
            members = [own]
        else:
            queue = posted[thread]
            first = bisect_left(queue, launched.since_ns[thread], key=lambda r: r.posted_ns)
            last = bisect_right(queue, kernel.launch_ns, key=lambda r: r.posted_ns)
            members = [r for r in queue[first:last] if r.batch is None]
        if not members:
            members = [
                CommRecord(
                    operation=operation_of_kernel(kernel.name),
                    group="",
                    group_ranks=(),
                    peer=None,
                    payload_bytes=None,
                    posted_ns=kernel.launch_ns,
                    thread=thread,
                    external_id=None,
                )
            ]
            bare += members
        for member in members:
            member.batch, member.stream = launched.count, kernel.stream
            member.start_ns, member.end_ns = kernel.start_ns, kernel.end_ns
        launched.since_ns[thread], launched.count = kernel.launch_ns, launched.count + 1
    return bare
