"""Communication operations of one rank, put together from the three files that describe them.

``kernel_details.csv`` has exact times, ``communication.json`` sizes and waits, ``communication_matrix.json``
links. Operations carry the hash of their communicator, links the ranks inside the group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tracetool.model.notice import SourceCode
from tracetool.readers.cann import MB_OF_LINKS, NS_PER_MS, operations, raw_text, scaled, small_integer, time_ns
from tracetool.readers.cann.kernels import LoggedTraffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.cann.kernels import CommunicationTask

COMMUNICATION = "communication.json"
MATRIX = "communication_matrix.json"
LOCAL, RDMA = "LOCAL", "RDMA"

_NAME = re.compile(r"^hcom_(?P<kind>[A-Za-z0-9]+)_*_(?P<digits>\d+)_-?\d+(?:_-?\d+)?$")
_STEP = re.compile(r"^step(\d+)$")
_ABSENT = msgspec.Raw(b"null")
# A start in communication.json went through a float64 of microseconds (0.25 us apart) and a short print.
_ROUNDING_NS = 1000
_OPERATION = {"receive": "recv"}


class _Time(msgspec.Struct):
    start: msgspec.Raw = msgspec.field(name="Start Timestamp(us)", default=_ABSENT)
    elapse: msgspec.Raw = msgspec.field(name="Elapse Time(ms)", default=_ABSENT)
    wait: msgspec.Raw = msgspec.field(name="Wait Time(ms)", default=_ABSENT)


class _Bandwidth(msgspec.Struct):
    size: msgspec.Raw = msgspec.field(name="Transit Size(MB)", default=_ABSENT)


class _Entry(msgspec.Struct):
    time: _Time = msgspec.field(name="Communication Time Info", default_factory=_Time)
    bandwidth: dict[str, _Bandwidth] = msgspec.field(name="Communication Bandwidth Info", default_factory=dict)


class _Cell(msgspec.Struct):
    transport: str = msgspec.field(name="Transport Type", default="")
    size: msgspec.Raw = msgspec.field(name="Transit Size(MB)", default=_ABSENT)
    operation: str | None = msgspec.field(name="Op Name", default=None)


@dataclass(slots=True)
class CommOperation:
    """One communication operation on one rank.

    Attributes:
        name: Name in the trace, without the hash.
        operation: What it does: send, recv, batchsendrecv, allreduce ...
        digits: Last digits of the group's hash, as the name has them.
        start_ns: Start, Unix time.
        end_ns: End.
        stream: Device stream.
        hash: Hash of the communicator as text; empty if unknown.
        group: The group of that hash; None if the trace does not list it.
        step: Step of ``communication.json``.
        linked_bytes: Bytes over HCCS, PCIe and SIO in ``communication.json``; None if it is not listed.
        rdma_bytes: The same over RDMA.
        wait_ns: Its own waiting time there.
        links: Its links in ``communication_matrix.json``, those that survived, or all of a database.
        notified: Ranks inside the group that it exchanged notices with; empty if unknown.
    """

    name: str
    operation: str
    digits: str
    start_ns: int
    end_ns: int
    stream: int | None = None
    hash: str = ""
    group: Group | None = None
    step: int | None = None
    linked_bytes: int | None = None
    rdma_bytes: int | None = None
    wait_ns: int | None = None
    links: tuple[LoggedTraffic, ...] = ()
    notified: tuple[int, ...] = ()

    @property
    def group_name(self) -> str:
        """Communicator, else its hash, else the digits of the hash that are known."""
        return self.group.name if self.group is not None else self.hash or self.digits


class LinkEntry(NamedTuple):
    """A link as the communication matrix lists it.

    Attributes:
        label: Kind of operation and which of them, as in ``batchsendrecv-top1``, or the operation.
        hash: Hash of the communicator as text.
        own: Rank inside the group; None if the entry is damaged, like the next two.
        peer: Rank of the other side.
        transport: Over what.
        size_bytes: Bytes.
        operation: Name of the operation, if it is of one.
    """

    label: str
    hash: str
    own: int | None
    peer: int | None
    transport: str
    size_bytes: int | None
    operation: str | None


@dataclass(slots=True)
class Matrix:
    """``communication_matrix.json`` by operation.

    Attributes:
        links: (operation name, hash) to the links that survived; at most five operations per link do.
        totals: Hash and kind of operation (as in ``batchsendrecv``) to the sums over all operations.
    """

    links: dict[tuple[str, str], tuple[LoggedTraffic, ...]] = field(default_factory=dict)
    totals: dict[tuple[str, str], tuple[LoggedTraffic, ...]] = field(default_factory=dict)


def group_hash(communicator: str) -> int:
    """The 64-bit hash that stands for a communicator in operation names.

    Two polynomial hashes of 32 bits over the bytes of the name: base 29 gives the high half, 131 the low.
    """
    high = low = 0
    for byte in communicator.encode():
        high = (high * 29 + byte) & 0xFFFF_FFFF
        low = (low * 131 + byte) & 0xFFFF_FFFF
    return high << 32 | low


def read_matrix(path: Path, report: SourceReport, advance: Callable[[int], None]) -> Matrix:
    """Links of each operation, and their sums.

    Raises:
        MalformedTrace: If the file is damaged.
    """
    return collect_links(_entries(operations(path, dict[str, _Cell], report, advance)), report)


def collect_links(entries: Iterable[LinkEntry], report: SourceReport) -> Matrix:
    """Links of each operation, and their sums, out of the single ones."""
    links: dict[tuple[str, str], dict[tuple[int, int], LoggedTraffic]] = defaultdict(dict)
    totals: dict[tuple[str, str], Counter[tuple[int, int, str]]] = defaultdict(Counter)
    for label, hashed, own, peer, transport, size, operation in entries:
        report.rows += 1
        if own is None or peer is None or size is None:
            report.dropped["link without ranks or size"] += 1
        elif label.endswith("-total"):
            totals[hashed, label.removesuffix("-total")][own, peer, transport] += size
        else:
            # Captures of 2023 have one entry per operation and no Op Name.
            links[operation or label, hashed][own, peer] = LoggedTraffic(own, peer, transport, size)
    return Matrix(
        {key: tuple(links_of_key.values()) for key, links_of_key in links.items()},
        {
            key: tuple(LoggedTraffic(*ends, size) for ends, size in links_of_key.items())
            for key, links_of_key in totals.items()
        },
    )


def read_communication(path: Path, report: SourceReport, advance: Callable[[int], None]) -> list[CommOperation]:
    """Operations with the rounded times of ``communication.json``.

    Raises:
        MalformedTrace: If the file is damaged.
    """
    listed: list[CommOperation] = []
    for step, key, entry in operations(path, _Entry, report, advance):
        if key.startswith("Total Op Info"):
            continue
        report.rows += 1
        times = (raw_text(entry.time.start), raw_text(entry.time.elapse), raw_text(entry.time.wait))
        sizes = {name: scaled(raw_text(b.size), MB_OF_LINKS) or 0 for name, b in entry.bandwidth.items()}
        operation = listed_operation(key, step, times, sizes)
        if operation is None:
            report.dropped["operation without time in communication.json"] += 1
        else:
            listed.append(operation)
    return listed


def listed_operation(
    key: str, step: str, times: tuple[str, str, str], sizes: Mapping[str, int] | None
) -> CommOperation | None:
    """An operation as ``communication.json`` lists it; None if it does not say when it was.

    Args:
        key: Name, ``@`` and hash.
        step: Step as in ``step13``.
        times: Start in us, duration and wait in ms, as text.
        sizes: Bytes by transport; None if unknown.
    """
    start, elapse = time_ns(times[0]), scaled(times[1], NS_PER_MS)
    if start is None or start <= 0 or elapse is None:
        return None
    name, _, hashed = key.partition("@")
    match = _STEP.match(step)
    operation = _named(name, None, start, start + max(elapse, 0))
    operation.hash, operation.step = hashed, small_integer(match[1]) if match else None
    operation.wait_ns = scaled(times[2], NS_PER_MS)
    if sizes is not None:
        operation.linked_bytes, operation.rdma_bytes = moved_bytes(sizes)
    return operation


def join(
    tasks: Sequence[CommunicationTask],
    listed: Sequence[CommOperation],
    matrix: Matrix,
    groups: Sequence[Group],
    report: SourceReport,
) -> list[CommOperation]:
    """All operations in order of start: exact times where a task has them, groups and links attached.

    Args:
        tasks: Communication operations of ``kernel_details.csv``.
        listed: Operations of ``communication.json``.
        matrix: Links.
        groups: Groups that the trace lists.
        report: Told about rounded, differing and guessed things.
    """
    waiting: dict[str, list[CommOperation]] = defaultdict(list)
    for operation in listed:
        waiting[operation.name].append(operation)
    joined = [_with_task(task, waiting[task.name], report) for task in tasks]
    rounded = [operation for rest in waiting.values() for operation in rest]
    if rounded:
        report.note(
            SourceCode.TIMES_ROUNDED,
            f"{len(rounded)} communication operations are in {COMMUNICATION} only: "
            "their times are rounded there to 0.25 us",
        )
    operations = sorted(joined + rounded, key=lambda o: (o.start_ns, o.name, o.hash))
    by_hash = {str(group_hash(group.name)): group for group in groups}
    guessed = sum(_attach(operation, matrix, by_hash) for operation in operations)
    if guessed:
        report.note(
            SourceCode.GROUPS_GUESSED,
            f"{guessed} communication operations were given the only group whose hash ends like their name",
        )
    return operations


def collective_bytes(operation: CommOperation) -> int | None:
    """Bytes that the links of this rank carried for it, or None if nothing was logged."""
    if operation.linked_bytes is None or operation.rdma_bytes is None:
        return None
    return operation.linked_bytes + operation.rdma_bytes or None


def moved_bytes(sizes: Mapping[str, int]) -> tuple[int, int]:
    """Bytes over links inside a host, and over RDMA, from those by transport."""
    # SDMA is the sum of the three and would count them twice.
    links = max(sizes.get("SDMA", 0), sizes.get("HCCS", 0) + sizes.get("PCIE", 0) + sizes.get("SIO", 0))
    return links, sizes.get(RDMA, 0)


def operation_kind(name: str, kernel_class: str | None) -> str:
    """What an operation does (allreduce, send, recv, batchsendrecv ...), by its name or else its type."""
    match = _NAME.match(name)
    kind = (match["kind"] if match else (kernel_class or name).removeprefix("hcom_").rstrip("_")).lower()
    return _OPERATION.get(kind, kind)


def _entries(listed: Iterable[tuple[str, str, Mapping[str, _Cell]]]) -> Iterator[LinkEntry]:
    for _, key, cells in listed:
        label, _, hashed = key.partition("@")
        for ends, cell in cells.items():
            own, peer = (small_integer(end) if end.isdecimal() else None for end in _pair(ends))
            size = scaled(raw_text(cell.size), MB_OF_LINKS)
            yield LinkEntry(
                label=label, hash=hashed, own=own, peer=peer, transport=cell.transport, size_bytes=size,
                operation=cell.operation,
            )  # fmt: skip


def _pair(ends: str) -> tuple[str, str]:
    own, _, peer = ends.partition("-")
    return own, peer


def _named(name: str, kernel_class: str | None, start: int, end: int) -> CommOperation:
    match = _NAME.match(name)
    return CommOperation(name, operation_kind(name, kernel_class), match["digits"] if match else "", start, end)


def _with_task(task: CommunicationTask, waiting: list[CommOperation], report: SourceReport) -> CommOperation:
    """The operation of a task, taken out of those of its name in ``communication.json``."""
    same = [o for o in waiting if not (task.hash and o.hash and o.hash != task.hash)]
    if not same:
        operation = _named(task.name, task.kernel_class, task.start_ns, task.end_ns)
    else:
        # Groups whose hashes end alike share names: the start tells them apart.
        operation = min(same, key=lambda o: abs(o.start_ns - task.start_ns))
        waiting.remove(operation)
        # With its hash an operation is known for sure; a database's start is then that of its launch on the device.
        if not task.hash and abs(operation.start_ns - task.start_ns) > _ROUNDING_NS:
            report.repaired[f"start differs in {COMMUNICATION}: kernel_details.csv taken"] += 1
    operation.start_ns, operation.end_ns, operation.stream = task.start_ns, task.end_ns, task.stream
    operation.hash = task.hash or operation.hash
    operation.links, operation.notified = task.links, task.notified
    if task.linked_bytes is not None:
        operation.linked_bytes, operation.rdma_bytes = task.linked_bytes, task.rdma_bytes
    return operation


def _attach(operation: CommOperation, matrix: Matrix, by_hash: Mapping[str, Group]) -> bool:
    """Give an operation its group and links; return whether the group was guessed from the digits."""
    guessed = False
    if not operation.hash and operation.digits:
        ending = [hashed for hashed in by_hash if hashed[-3:] == operation.digits]
        guessed = len(ending) == 1
        operation.hash = ending[0] if guessed else ""
    operation.group = by_hash.get(operation.hash)
    if not operation.links:
        links = matrix.links.get((operation.name, operation.hash)) or matrix.links.get((operation.name, ""))
        operation.links = links or ()
    return guessed
