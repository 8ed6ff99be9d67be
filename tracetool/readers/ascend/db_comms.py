"""Communication operations out of a profiler's databases, in the terms of the text files.

A capture's own database has every operation and each of its tasks, hence all links of all operations;
``analysis.db`` has what ``communication.json`` and ``communication_matrix.json`` have, rounding included.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace
from tracetool.readers.ascend.db_rows import Keyed, span
from tracetool.readers.cann import MB_OF_LINKS, scaled, small_integer
from tracetool.readers.cann.comms import (
    LOCAL,
    RDMA,
    CommOperation,
    LinkEntry,
    Matrix,
    collect_links,
    group_hash,
    listed_operation,
    moved_bytes,
    operation_kind,
)
from tracetool.readers.cann.db import Names, enumeration, known, whole
from tracetool.readers.cann.kernels import CommunicationTask, LoggedTraffic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.readers import SourceReport
    from tracetool.readers.cann.db import Database

OPERATIONS, TASKS = "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO"

# As the ENUM_ tables of real captures say, for those that lack one.
_TRANSPORTS = {0: "SDMA", 1: "RDMA", 2: "LOCAL"}
_LINKS = {0: "ON_CHIP", 1: "HCCS", 2: "PCIE", 3: "ROCE", 4: "SIO", 5: "HCCS_SW", 6: "STANDARD_ROCE"}
_RDMA_KINDS = {1: "RDMA_SEND_PAYLOAD"}
# Bytes that tasks other than copies name over these are those of the copies.
_UNDERSTOOD = ("SDMA", "RDMA", LOCAL, "N/A", "INVALID_TYPE", "")
_COPIES = ("Memcpy", "Reduce_Inline")
_LINK_NAMES = {"ON_CHIP": LOCAL, "HCCS_SW": "HCCS"}


@dataclass(slots=True)
class _Tasks:
    """What the tasks of one operation say together."""

    moved: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    notified: set[int] = field(default_factory=set)
    streams: set[int] = field(default_factory=set)
    device: int | None = None

    def links(self) -> tuple[LoggedTraffic, ...]:
        return tuple(LoggedTraffic(*ends, size) for ends, size in self.moved.items())


def communication_tasks(database: Database, device: int | None, report: SourceReport) -> list[CommunicationTask]:
    """Every operation of a capture with its links, in the order of the table.

    Args:
        database: The capture's database.
        device: The only device to read; None for all.
        report: Told about what cannot be used.
    """
    names = Names(database)
    tasks = _Reader(database, names).tasks(report)
    tasks_with_links: list[CommunicationTask] = []
    columns = ("opName", "startNs", "endNs", "connectionId", "groupName", "opId", "opType", "deviceId")
    for number, row in enumerate(database.rows(OPERATIONS, *columns)):
        name_id, start, end, connection, group_id, op, kind, where = row
        mine = tasks.get(op) or _Tasks()
        on_device = known(where) if known(where) is not None else mine.device
        if device is not None and on_device is not None and on_device != device:
            continue
        report.rows += 1
        place = FilePlace(f"{database.path}: {OPERATIONS}", number, "row")
        times = span(start, end, (database, OPERATIONS, number), report)
        name = names.text(name_id)
        if times is None:
            continue
        if name is None:
            report.drop("communication operation without a name", place)
            continue
        if device is not None and on_device is None:
            report.drop("communication operation of unknown device, in a database of several", place)
            continue
        links = mine.links()
        linked, rdma = moved_bytes(_sizes(links)) if links else (None, None)
        tasks_with_links.append(
            CommunicationTask(
                name=name, kernel_class=names.text(kind), start_ns=times[0], end_ns=sum(times),
                stream=next(iter(mine.streams)) if len(mine.streams) == 1 else None,
                hash=_hash(names.text(group_id)), links=links, linked_bytes=linked, rdma_bytes=rdma,
                notified=tuple(sorted(mine.notified)), connection=known(connection),
            )
        )  # fmt: skip
    if tasks_with_links and tasks and not any(task.links for task in tasks_with_links):
        report.note(
            SourceCode.LINKS_UNKNOWN,
            f"{TASKS} holds neither bytes nor peers, as at Level0: links of its communication unknown",
        )
    return tasks_with_links


def total_links(tasks: Sequence[CommunicationTask]) -> dict[tuple[str, str], tuple[LoggedTraffic, ...]]:
    """Sums of links by hash and kind of operation, as the totals of the communication matrix."""
    totals: dict[tuple[str, str], Counter[tuple[int, int, str]]] = defaultdict(Counter)
    for task in tasks:
        for link in task.links:
            key = (task.hash, operation_kind(task.name, task.kernel_class))
            totals[key][link.own, link.peer, link.transport] += link.size_bytes
    return {key: tuple(LoggedTraffic(*ends, size) for ends, size in sums.items()) for key, sums in totals.items()}


def listed_operations(database: Database, report: SourceReport) -> list[CommOperation]:
    """What ``analysis.db`` has of ``communication.json``."""
    sizes: dict[tuple[object, ...], dict[str, int]] = defaultdict(dict)
    columns = ("hccl_op_name", "group_name", "step", "transport_type", "transit_size")
    for name, group, step, transport, size in database.rows("CommAnalyzerBandwidth", *columns):
        # One row per size of packet, each with the sum over all of them.
        sizes[name, group, step][str(transport)] = scaled(str(size), MB_OF_LINKS) or 0
    operations = []
    timed = ("hccl_op_name", "group_name", "step", "start_timestamp", "elapse_time", "wait_time")
    for number, (name, group, step, start, elapse, wait) in enumerate(database.rows("CommAnalyzerTime", *timed)):
        if str(name).startswith("Total Op Info"):
            continue
        report.rows += 1
        key = f"{name}@{group}" if group is not None else str(name)
        moved = sizes.get((name, group, step), {}) if "CommAnalyzerBandwidth" in database.tables else None
        operation = listed_operation(key, str(step), (str(start), str(elapse), str(wait)), moved)
        if operation is None:
            report.drop("operation without time", FilePlace(f"{database.path}: CommAnalyzerTime", number, "row"))
        else:
            operations.append(operation)
    return operations


def listed_matrix(database: Database, report: SourceReport) -> Matrix:
    """What ``analysis.db`` has of ``communication_matrix.json``."""
    return collect_links(_entries(database), report)


def vendor_steps(database: Database, device: int | None) -> Iterator[tuple[str, str, str]]:
    """Step, Bubble and Computing of ``StepTraceTime``, as text in us."""
    columns = ("step", "bubble", "computing", "deviceId")
    for step, bubble, computing, where in database.rows("StepTraceTime", *columns):
        if device is None or whole(where) in (None, device):
            yield tuple("" if v is None else str(v) for v in (step, bubble, computing))  # type: ignore[misc]


def _entries(database: Database) -> Iterator[LinkEntry]:
    columns = ("hccl_op_name", "group_name", "src_rank", "dst_rank", "transport_type", "transit_size", "op_name")
    for label, group, own, peer, transport, size, name in database.rows("CommAnalyzerMatrix", *columns):
        yield LinkEntry(
            label=str(label), hash=str(group or ""), own=small_integer(str(own)), peer=small_integer(str(peer)),
            transport=str(transport),
            size_bytes=scaled(str(size), MB_OF_LINKS), operation=str(name) if name else None,
        )  # fmt: skip


class _Reader:
    """Reads the tasks of communication operations."""

    def __init__(self, database: Database, names: Names) -> None:
        self._database = database
        self._names = names
        self._transports = enumeration(database, "ENUM_HCCL_TRANSPORT_TYPE") or _TRANSPORTS
        self._links = enumeration(database, "ENUM_HCCL_LINK_TYPE") or _LINKS
        self._rdma_kinds = enumeration(database, "ENUM_HCCL_RDMA_TYPE") or _RDMA_KINDS

    def tasks(self, report: SourceReport) -> dict[object, _Tasks]:
        """What the tasks say, by operation."""
        by_operation: dict[object, _Tasks] = defaultdict(_Tasks)
        if TASKS not in self._database.tables:
            return by_operation
        places = Keyed(self._database, "TASK", "globalTaskId", "streamId", "deviceId")
        columns = (
            "opId", "globalTaskId", "taskType", "planeId", "srcRank", "dstRank",
            "transportType", "size", "linkType", "rdmaType",
        )  # fmt: skip
        for op, task, kind, plane, *about in self._database.rows(TASKS, *columns):
            report.rows += 1
            mine = by_operation[op]
            if (place := places.get(task)) is not None:
                stream, device = place
                if whole(plane) == 0 and stream >= 0:
                    mine.streams.add(stream)
                mine.device = device if device >= 0 else mine.device
            self._add(mine, self._names.text(kind) or "", about, report)
        return dict(by_operation)

    def _add(self, mine: _Tasks, kind: str, about: Sequence[object], report: SourceReport) -> None:
        own, peer = known(about[0]), known(about[1])
        transport, size, link, rdma_kind = about[2:]
        if own is None:
            return
        if kind.startswith("Notify") and peer is not None and peer != own:
            mine.notified.add(peer)
        carried = self._carried(kind, transport, link, rdma_kind)
        size_bytes = known(size)
        over = self._transports.get(_number(transport), "")
        if carried is None and size_bytes and over not in _UNDERSTOOD:
            report.skipped[f"transfer over {over[:20]}: which way it goes is not known"] += 1
        if carried is None:
            return
        if size_bytes is None:
            report.dropped[f"transfer without a size in {TASKS}"] += 1
        else:
            # Where the other side is unknown it is the rank itself, as the communication matrix has it.
            mine.moved[own, own if peer is None else peer, carried] += size_bytes

    def _carried(self, kind: str, transport: object, link: object, rdma_kind: object) -> str | None:
        """Over what a task moved bytes; None if it moved none."""
        if self._rdma_kinds.get(_number(rdma_kind)) == "RDMA_SEND_PAYLOAD":
            return RDMA
        if kind not in _COPIES or self._transports.get(_number(transport)) != "SDMA":
            return None
        name = self._links.get(_number(link), "")
        return _LINK_NAMES.get(name, name)


def _sizes(links: Sequence[LoggedTraffic]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for link in links:
        if link.transport != LOCAL:
            sizes[link.transport] += link.size_bytes
    return dict(sizes)


def _hash(group: str | None) -> str:
    """The hash of a group that is named by it or by its communicator."""
    if not group:
        return ""
    return group if group.isdecimal() else str(group_hash(group))


def _number(value: object) -> int:
    number = whole(value)
    return -1 if number is None else number
