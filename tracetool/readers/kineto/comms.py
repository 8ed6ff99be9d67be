"""Ties the communication kernels of a Kineto trace to the host records that describe them.

Kernels of coalesced batches carry no metadata (pytorch/pytorch#194693); the ``record_param_comms`` records of the
operations in the batch come before its launch, on the same thread, and before the ``nccl:coalesced`` span opens.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.readers import Group, SourceReport

P2P = ("send", "recv")
_MOST_RANKS = 1 << 22
_DTYPE_BYTES = {
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_RANKS = 2**31
_MOST_MEMBERS = 1 << 17
_MOST_ELEMENTS = 2**58
_COMMUNICATION_KERNEL = re.compile(r"^(nccl|rccl|mscclpp)", re.IGNORECASE)
_OPERATION_IN_NAME = re.compile(
    r"^[a-z]*?(?:Dev)?(?:Kernel)?_?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv)", re.IGNORECASE
)


@dataclass(slots=True, kw_only=True)
class CommRecord:
    """One ``record_param_comms`` record, and the kernel found for it."""

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


def parse_record(args: Mapping[str, Any], posted_ns: int, thread: int, groups: Sequence[Group]) -> CommRecord | None:
    """Read a ``record_param_comms`` record; None for waits and initialisation, which move nothing."""
    operation = args.get("Collective name")
    if not isinstance(operation, str) or operation in ("wait", "init", ""):
        return None
    name = str(args.get("Process Group Name", ""))
    ranks = _group_ranks(args, name, groups)
    # All-gather reports the full size on the output side, reduce-scatter on the input side.
    elements = max(args.get("In msg nelems") or 0, args.get("Out msg nelems") or 0)
    element_bytes = _DTYPE_BYTES.get(str(args.get("dtype"))) if elements < _MOST_ELEMENTS else None
    return CommRecord(
        operation=intern(operation), group=intern(name), group_ranks=ranks,
        peer=_peer(args, operation, ranks) if operation in P2P else None,
        payload_bytes=None if element_bytes is None else elements * element_bytes, posted_ns=posted_ns, thread=thread,
        external_id=args.get("External id", args.get("external id")),
        communicator=str(args["Comms Id"]).strip('"') if "Comms Id" in args else None,
    )  # fmt: skip


def _peer(args: Mapping[str, Any], operation: str, ranks: tuple[int, ...]) -> int | None:
    peer = args.get("Dst Rank" if operation == "send" else "Src Rank")
    if isinstance(peer, int) and 0 <= peer < _RANKS:
        return peer
    local = args.get("Rank")  # of send and recv: the peer, counted inside the group
    return ranks[local] if isinstance(local, int) and 0 <= local < len(ranks) else None


def _group_ranks(args: Mapping[str, Any], name: str, groups: Sequence[Group]) -> tuple[int, ...]:
    text = str(args.get("Process Group Ranks", ""))
    listed = _listed_ranks(text)
    if "..." not in text and listed:
        return listed
    # The list is cut to 30 items: the envelope has it whole, or the group has stride form.
    for group in groups:
        if group.name == name and group.ranks[: len(listed)] == listed:
            return group.ranks
    start, stride, size = (args.get(k) for k in ("Global rank start", "Global rank stride", "Group size"))
    if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int):
        return _strided_ranks(start, stride, size) or listed
    return listed


# A trace names few groups and many operations: they share the lists of ranks.
@lru_cache(maxsize=1024)
def _listed_ranks(text: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", text)
    ranks = tuple(int(n) for n in numbers if len(n) < 11 and int(n) < _MOST_RANKS)
    return ranks if len(ranks) == len(numbers) else ()


@lru_cache(maxsize=1024)
def _strided_ranks(start: int, stride: int, size: int) -> tuple[int, ...]:
    if not (0 <= start < _MOST_RANKS and 0 < stride < _MOST_RANKS and 0 < size < _MOST_RANKS):
        return ()
    return tuple(range(start, start + stride * size, stride))


def attach_kernels(records: list[CommRecord], kernels: Iterable[CommKernel], report: SourceReport) -> list[CommRecord]:
    """Give each record its kernel's stream and times; operations launched together share a batch.

    A kernel linked to a record by ``External id`` belongs to it. Any other one belongs to the send and
    receive records posted on its thread since the previous communication launch there. A kernel without
    any becomes a record of its own, of which only the operation in its name is known.
    """
    records.sort(key=lambda r: r.posted_ns)
    linked = {r.external_id: r for r in records if r.external_id is not None}
    posted: dict[int | None, list[CommRecord]] = defaultdict(list)
    for record in records:
        if record.operation in P2P:
            posted[record.thread].append(record)
    last_launch: dict[int | None, int] = defaultdict(int)
    bare: list[CommRecord] = []
    for batch, kernel in enumerate(sorted(kernels, key=lambda k: k.launch_ns)):
        thread = kernel.launch_thread
        own = linked.get(kernel.external_id) if kernel.external_id is not None else None
        if own is not None:
            members = [own]
        else:
            queue = posted[thread]
            first = bisect_left(queue, last_launch[thread], key=lambda r: r.posted_ns)
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
            member.batch, member.stream = batch, kernel.stream
            member.start_ns, member.end_ns = kernel.start_ns, kernel.end_ns
        last_launch[thread] = kernel.launch_ns
    if bare:
        report.notes.append(f"{len(bare):,} communication kernels have no host record: what they moved is unknown")
    return sorted([*records, *bare], key=lambda r: r.posted_ns)
