"""What Ascend's allocators and its driver say of memory: records, allocations of operators, sizes of libraries.

``memory_record.csv`` (table MEMORY_RECORD) has the allocator's level at every change, ``operator_memory.csv``
(OP_MEMORY) both ends of each allocation by an operator, at the same times: together they are a log of changes.
``npu_module_mem.csv`` (NPU_MODULE_MEM) samples what each library has reserved: of these only changes are kept.
NPU_OP_MEM lists every allocation and release of the allocators that CANN itself knows, whose records are in
MEMORY_RECORD, too, where the framework wrote that table.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from tracetool.readers.cann import KB_OF_MEMORY, MB_OF_MEMORY, csv_rows, lost_digits, scaled, time_ns
from tracetool.readers.cann.db import Names, enumeration, whole
from tracetool.readers.cann.kernels import CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport
    from tracetool.readers.cann.db import Database

    Row = tuple[object, ...]
    Ends = tuple[int | None, int | None, int | None]

MODULE = "module "
"""Begins the component of a library's own memory."""
_ALLOCATORS = ("PTA", "GE")
_OF_CANN = "cann::"
# The allocator's level falls when a block is no longer active; the release of its tensor is recorded after that.
_FREED_FIRST = "Active Release Time(us)"
_SIZE_LIMIT = 2**58
_UNKNOWN = -(2**63)
_SIGNS = {"allocate": 1, "malloc": 1, "alloc": 1, "release": -1, "free": -1}
_UNCHANGED = "size of a library that did not change"


class Allocations:
    """Both ends of the allocations of operators, to be found by their times."""

    def __init__(self) -> None:
        # Of each end: time, change, number of the allocation, allocator, allocated and reserved then.
        self._ends = tuple(array("q") for _ in range(6))
        self._used = bytearray()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, operator: str, size: int, allocated: Ends, released: Ends) -> None:
        """Take up one allocation.

        Args:
            operator: Who asked for it: those of CANN itself take memory of the graph engine.
            size: Its bytes.
            allocated: Time in ns, and what the allocator had allocated and reserved after it.
            released: The same of its release; no time if it was not released.
        """
        allocator = _ALLOCATORS.index("GE" if operator.startswith(_OF_CANN) else "PTA")
        for delta, (time, *levels) in ((size, allocated), (-size, released)):
            if time is not None:
                values = (
                    time,
                    delta,
                    self._count,
                    allocator,
                    *(_UNKNOWN if level is None else level for level in levels),
                )
                for column, value in zip(self._ends, values, strict=True):
                    column.append(value)
        self._count += 1

    def close(self) -> None:
        """Put what was added in order of time; to be called before it is asked for."""
        import numpy as np

        columns = [np.frombuffer(column, np.int64) if column else np.empty(0, np.int64) for column in self._ends]
        order = np.argsort(columns[0], kind="stable")
        self._ends = tuple(array("q", column[order].tobytes()) for column in columns)
        self._used = bytearray(len(order))

    def at(self, time: int, level: int | None) -> tuple[int | None, int | None]:
        """What changed at a time, and the number of the allocation; each change is given out once.

        Args:
            time: In ns.
            level: What the allocator says it has allocated then: another allocator has another level.
        """
        times, deltas, blocks, _, levels, _ = self._ends
        index = bisect_left(times, time)
        while index < len(times) and times[index] == time:
            if not self._used[index] and (levels[index] == _UNKNOWN or levels[index] == level):
                self._used[index] = 1
                return deltas[index], blocks[index]
            index += 1
        return None, None

    def rest(self, rank: int) -> Iterator[Row]:
        """Rows of the changes that nobody asked for: no record of the allocator has their times."""
        for index, used in enumerate(self._used):
            if not used:
                time, delta, block, allocator, *levels = (column[index] for column in self._ends)
                known = (None if level == _UNKNOWN else level for level in levels)
                yield (rank, _ALLOCATORS[allocator], time, delta, *known, block)


def text_memory_rows(
    path: Path,
    rank: int,
    report: SourceReport,
    advance: Callable[[int], None],
    allocations: Allocations | None = None,
) -> Iterator[list[Row]]:
    """Rows of the ``memory`` table, in chunks.

    Args:
        path: ``memory_record.csv``.
        rank: Global rank.
        report: Told about unusable rows.
        advance: Called with the file bytes consumed.
        allocations: What is known of single allocations.

    Raises:
        MalformedTrace: With the line, if the file is damaged.
    """
    rows: list[Row] = []
    columns = ("Total Allocated(MB)", "Total Reserved(MB)")
    for component, time, allocated, reserved in csv_rows(
        path, ("Component", "Timestamp(us)", *columns), (), advance, report
    ):
        report.rows += 1
        time_of_change = _moment(time, report)
        if time_of_change is not None:
            sizes = (scaled(allocated, MB_OF_MEMORY), scaled(reserved, MB_OF_MEMORY))
            rows.append(record_row(rank, component, time_of_change, sizes, allocations))
        if len(rows) == CHUNK_ROWS:
            yield rows
            rows = []
    yield rows


def record_row(
    rank: int,
    component: str,
    time: int,
    sizes: tuple[int | None, int | None],
    allocations: Allocations | None,
) -> Row:
    """The row of an allocator's record, with the allocation that it is of where that is known."""
    if allocations is None or component not in _ALLOCATORS:
        return (rank, component, time, None, *sizes, None)
    delta, block = allocations.at(time, sizes[0])
    return (rank, component, time, delta, *sizes, block)


def text_allocations(path: Path, report: SourceReport, advance: Callable[[int], None]) -> Allocations:
    """What ``operator_memory.csv`` holds.

    Raises:
        MalformedTrace: If its header is damaged.
    """
    allocations = Allocations()
    required = ("Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)")
    levels_of = [f"{end} Total {what}(MB)" for end in ("Allocation", "Release") for what in ("Allocated", "Reserved")]
    optional = (_FREED_FIRST, *levels_of)
    for name, size, start, end, freed_first, *levels in csv_rows(path, required, optional, advance, report):
        report.rows += 1
        held = [scaled(level, MB_OF_MEMORY) for level in levels]
        freed = [moment for text in (end, freed_first) if text and (moment := _moment(text, report)) is not None]
        ends = (_moment(start, report), held[0], held[1]), (min(freed, default=None), held[2], held[3])
        _take(allocations, name, scaled(size, KB_OF_MEMORY), ends, report)
    allocations.close()
    return allocations


def database_allocations(database: Database, device: int | None, report: SourceReport) -> Allocations:
    """What OP_MEMORY holds."""
    allocations = Allocations()
    names = Names(database)
    columns = (
        "name", "size", "allocationTime", "releaseTime", "activeReleaseTime", "allocationTotalAllocated",
        "allocationTotalReserved", "releaseTotalAllocated", "releaseTotalReserved", "deviceId",
    )  # fmt: skip
    for name, size, start, end, freed_first, *levels, where in database.rows("OP_MEMORY", *columns):
        if device is not None and whole(where) != device:
            continue
        report.rows += 1
        held = [bounded(level) for level in levels]
        freed = [moment for time in (end, freed_first) if (moment := whole(time))]
        ends = (whole(start), held[0], held[1]), (min(freed, default=None), held[2], held[3])
        _take(allocations, names.text(name) or "", bounded(size), ends, report)
    allocations.close()
    return allocations


def _take(allocations: Allocations, name: str, size: int | None, ends: tuple[Ends, Ends], report: SourceReport) -> None:
    allocated, released = ends
    if size is None:
        report.dropped["allocation of unknown size"] += 1
    elif size < 0:
        # Documented: a release whose allocation was before the capture.
        report.skipped["release without its allocation"] += 1
    elif allocated[0] is None:
        report.skipped["allocation at an unknown time"] += 1
    elif released[0] is not None and released[0] < allocated[0]:
        report.dropped["allocation that is released before it is made"] += 1
    else:
        allocations.add(name, size, allocated, released)


def database_operation_rows(
    database: Database, device: int | None, rank: int, listed: frozenset[str], report: SourceReport
) -> Iterator[Row]:
    """Rows of the ``memory`` table from NPU_OP_MEM: one per allocation and release.

    Args:
        database: Where they are.
        device: The only device to read, where it holds several.
        rank: Global rank.
        listed: Allocators whose records are read from elsewhere.
        report: Told about unusable rows.
    """
    names = Names(database)
    columns = ("addr", "type", "size", "timestampNs", "totalAllocate", "totalReserve", "component", "deviceId")
    for address, kind, size, time, allocated, reserved, component, where in database.rows("NPU_OP_MEM", *columns):
        allocator = names.text(component) or "?"
        if allocator in listed or (device is not None and whole(where) != device):
            continue
        report.rows += 1
        moment, change = whole(time), bounded(size)
        sign = _SIGNS.get((names.text(kind) or "").lower())
        if moment is None or not 0 < moment < 2**61:
            report.dropped["memory time is no number"] += 1
        elif change is None or sign is None:
            report.dropped["allocation of unknown size or kind"] += 1
        else:
            block = whole(address)
            known = None if block is None or abs(block) >= 2**63 else block
            yield rank, allocator, moment, sign * abs(change), bounded(allocated), bounded(reserved), known


def text_module_rows(
    path: Path, rank: int, report: SourceReport, advance: Callable[[int], None]
) -> Iterator[list[Row]]:
    """Rows of the ``memory`` table from ``npu_module_mem.csv``: one per library and change.

    Raises:
        MalformedTrace: If its header is damaged.
    """
    required = ("Component", "Timestamp(us)", "Total Reserved(MB)")
    samples = (
        (component, moment, scaled(size, MB_OF_MEMORY))
        for component, time, size in csv_rows(path, required, (), advance, report)
        if (moment := _moment(time, report)) is not None
    )
    yield from _changes(samples, rank, report)


def database_module_rows(
    database: Database, device: int | None, rank: int, report: SourceReport
) -> Iterator[list[Row]]:
    """The same from NPU_MODULE_MEM."""
    names = enumeration(database, "ENUM_MODULE")
    others = Names(database)

    def samples() -> Iterator[tuple[str, int, int | None]]:
        for module, time, size, where in database.rows(
            "NPU_MODULE_MEM", "moduleId", "timestampNs", "totalReserved", "deviceId"
        ):
            if device is not None and whole(where) != device:
                continue
            number, moment = whole(module), whole(time)
            if number is None or moment is None or moment <= 0:
                report.dropped["size of a library without its name or time"] += 1
                continue
            yield names.get(number) or others.text(module) or str(number), moment, bounded(size)

    yield from _changes(samples(), rank, report)


def _changes(samples: Iterable[tuple[str, int, int | None]], rank: int, report: SourceReport) -> Iterator[list[Row]]:
    """Those samples that differ from the last one of their library; what never holds anything is not listed."""
    held: dict[str, int] = {}
    rows: list[Row] = []
    for component, time, size in samples:
        report.rows += 1
        if size is None:
            report.dropped["size of a library is no number"] += 1
        elif held.get(component, 0) == size:
            report.skipped[_UNCHANGED] += 1
        else:
            held[component] = size
            rows.append((rank, MODULE + component, time, None, None, size, None))
        if len(rows) == CHUNK_ROWS:
            yield rows
            rows = []
    yield rows


def bounded(value: object) -> int | None:
    """A size of a database column; None if there is no such number."""
    number = whole(value)
    return number if number is not None and abs(number) < _SIZE_LIMIT else None


def _moment(text: str, report: SourceReport) -> int | None:
    moment = time_ns(text)
    if lost_digits(text):
        report.dropped["time in E notation: its digits are lost"] += 1
        return None
    if moment is None or moment <= 0:
        report.dropped["memory time is no number"] += 1
        return None
    return moment
