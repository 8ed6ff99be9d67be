"""Rows of the events, steps and memory tables, out of a profiler's database.

Times are whole nanoseconds since 1970, in some releases as text. Tasks name what they ran through
``COMPUTE_TASK_INFO``, and what launched them through a connection.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import DEVICE_MEMORY, FilePlace
from tracetool.readers.ascend.memory import bounded, record_row
from tracetool.readers.cann.db import Names, enumeration, known, whole
from tracetool.readers.cann.kernels import CHUNK_ROWS, PhaseKernel, is_communication, mark_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.readers import SourceReport
    from tracetool.readers.ascend.memory import Allocations
    from tracetool.readers.cann.db import Database

    Row = tuple[object, ...]

_THREAD_BITS = 0xFFFF_FFFF
_TIME_LIMIT = 2**62
_OP, _QUEUE, _PYTHON = 50001, 50002, 50003
_RANGES = (1, 2)  # push/pop and start/end; the other kinds are points in time
_COPY = re.compile(r"^MEMCPY", re.IGNORECASE)
# Kineto calls them annotations; here they are among the operators.
_ANNOTATION = re.compile(r"^(ProfilerStep#\d+$|Optimizer\.)")
_NO_NAME = "name lost"
NO_NUMBER = -1
"""Stands in columns of bytes for what is no number."""


class Keyed:
    """Whole numbers of a table by one of its columns: some bytes per row, however many there are.

    Args:
        database: Where the table is.
        table: Its name.
        key: Column that the numbers are looked up by; of equal ones the first counts.
        columns: Columns to keep; NO_NUMBER stands for what is none.
    """

    def __init__(self, database: Database, table: str, key: str, *columns: str) -> None:
        keys = array("q")
        values = [array("q") for _ in columns]
        for key_value, *numbers in database.rows(table, key, *columns):
            number = _int64(key_value)
            if number is not None:
                keys.append(number)
                for column, value in zip(values, numbers, strict=True):
                    kept = _int64(value)
                    column.append(NO_NUMBER if kept is None else kept)
        if any(keys[i] > keys[i + 1] for i in range(len(keys) - 1)):
            order = sorted(range(len(keys)), key=keys.__getitem__)
            keys = array("q", (keys[i] for i in order))
            values = [array("q", (column[i] for i in order)) for column in values]
        self._keys, self._values = keys, values

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: object) -> tuple[int, ...] | None:
        """What the row of this key holds; None without such a row."""
        if not self._keys or not isinstance(key, int):
            return None
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        return tuple(column[at] for column in self._values)


class HostSteps:
    """Steps as the host marked them, and what the device ran of each.

    A device operation belongs to the step in which the host launched it: it may well run after the mark's end.

    Args:
        database: Where ``STEP_TIME`` is.
        report: Told about marks that are no use.
    """

    def __init__(self, database: Database, report: SourceReport) -> None:
        self._spans: list[tuple[int, int, int]] = []
        self._extents: dict[int, tuple[int, int]] = {}
        marked: set[int] = set()
        for number, (step, start, end) in enumerate(database.rows("STEP_TIME", "id", "startNs", "endNs")):
            report.rows += 1
            times = span(start, end, (database, "STEP_TIME", number), report)
            which = whole(step)
            if times is None:
                continue
            if which is None or which in marked or not 0 <= which < 2**31:
                report.dropped["step without a number of its own"] += 1
                continue
            marked.add(which)
            self._spans.append((times[0], times[0] + times[1], which))
        self._spans.sort()
        self._starts = [start for start, _, _ in self._spans]
        self._launches = Keyed(database, "CANN_API", "connectionId", "startNs") if marked else None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, connection: int | None, start_ns: int, end_ns: int) -> None:
        """Count a device operation to the step that its launch lies in."""
        if self._launches is None:
            return
        launch = self._launches.get(connection)
        moment = launch[0] if launch is not None and launch[0] > 0 else start_ns
        at = bisect_right(self._starts, moment) - 1
        if at >= 0 and moment <= self._spans[at][1]:
            step = self._spans[at][2]
            first, last = self._extents.get(step, (start_ns, end_ns))
            self._extents[step] = (min(first, start_ns), max(last, end_ns))

    def extents(self, report: SourceReport) -> dict[int, tuple[int, int]]:
        """First start and last end of each step's device operations; its mark if it has none."""
        bare = [step for _, _, step in self._spans if step not in self._extents]
        if bare:
            report.note(
                SourceCode.STEPS_INFERRED,
                f"steps {sorted(bare)} ran nothing on the device: they last as the host marked them",
            )
        return {step: self._extents.get(step, (start, end)) for start, end, step in self._spans}


class Events:
    """The events of one database.

    Args:
        database: The database.
        device: The only device to read; None for all.

    Attributes:
        marks: Kernels that tell forward from backward, in the order of the table; filled by ``device_rows``.
    """

    def __init__(self, database: Database, device: int | None) -> None:
        self.database = database
        self.marks: list[PhaseKernel] = []
        self._device = device
        self._names = Names(database)
        self._compute = Keyed(database, "COMPUTE_TASK_INFO", "globalTaskId", "name", "opType", "taskType")
        self._launched: set[int] = set()

    def count(self) -> int:
        """Kernels that can be read."""
        tasks = self.database.rows("TASK", "globalTaskId", "deviceId")
        return sum(self._here(device) and self._compute.get(task) is not None for task, device in tasks)

    def device_rows(self, rank: int, steps: HostSteps | None, report: SourceReport) -> Iterator[Row]:
        """Kernels and copies, as rows of the ``events`` table without their number."""
        columns = ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId")
        copies = Keyed(self.database, "MEMCPY_INFO", "globalTaskId", "memcpyOperation")
        operations = enumeration(self.database, "ENUM_MEMCPY_OPERATION")
        for number, row in enumerate(self.database.rows("TASK", *columns)):
            start, end, device, connection_text, task, kind, stream = row
            if not self._here(device):
                continue
            report.rows += 1
            connection = known(connection_text)
            if self._device is not None and connection is not None:
                self._launched.add(connection)
            compute, copy = self._compute.get(task), copies.get(task)
            kind_name = self._names.text(kind) or "?"
            if compute is None and copy is None and not _COPY.match(kind_name):
                report.skipped[f"device task that is neither kernel nor copy: {kind_name[:40]}"] += 1
                continue
            times = span(start, end, (self.database, "TASK", number), report)
            if times is None:
                continue
            if compute is None:
                name = operations.get(copy[0], kind_name) if copy is not None else kind_name
                yield _event(rank, "memcpy", name, times, stream=known(stream), correlation=connection)
                continue
            name, kernel_class = self._name(compute[0], report), self._names.text(compute[1])
            if is_communication(name, self._names.text(compute[2]) or ""):
                report.skipped["kernel that is a communication operation"] += 1
                continue
            if steps is not None:
                steps.add(connection, times[0], sum(times))
            if mark := mark_of(kernel_class or name, times[0]):
                self.marks.append(mark)
            kernel_class = None if kernel_class in ("", "N/A") else kernel_class
            yield _event(
                rank, "kernel", name, times, stream=known(stream), correlation=connection, kernel_class=kernel_class
            )

    def host_rows(self, rank: int, keep: frozenset[str], report: SourceReport) -> Iterator[Row]:
        """Launches, operators and annotated ranges; for one device of several after its ``device_rows``."""
        yield from self._launches(rank, report)
        yield from self._operators(rank, keep, report)
        columns = ("startNs", "endNs", "eventType", "message", "globalTid")
        for number, (start, end, kind, message, tid) in enumerate(self.database.rows("MSTX_EVENTS", *columns)):
            report.rows += 1
            if whole(kind) not in _RANGES:
                report.skipped["marker without a duration"] += 1
            elif times := span(start, end, (self.database, "MSTX_EVENTS", number), report):
                yield _event(rank, "annotation", self._name(message, report), times, thread=_thread(tid))

    def _launches(self, rank: int, report: SourceReport) -> Iterator[Row]:
        unique = self.database.is_key("CANN_API", "connectionId")
        launched: set[int] = set()
        columns = ("startNs", "endNs", "globalTid", "connectionId", "name")
        for number, (start, end, tid, connected, name) in enumerate(self.database.rows("CANN_API", *columns)):
            connection = known(connected)
            if self._device is not None and connection not in self._launched:
                continue
            report.rows += 1
            times = span(start, end, (self.database, "CANN_API", number), report)
            if times is None:
                continue
            if connection is not None and not unique:
                # Two launches of one task would count it twice where they are joined.
                again = connection in launched
                launched.add(connection)
                if again:
                    report.repair(
                        "second launch with one connection: its connection left out", FilePlace("CANN_API", 0)
                    )
                    connection = None
            yield _event(rank, "launch", self._name(name, report), times, thread=_thread(tid), correlation=connection)

    def _operators(self, rank: int, keep: frozenset[str], report: SourceReport) -> Iterator[Row]:
        columns = ("startNs", "endNs", "globalTid", "name", "sequenceNumber", "type")
        for number, row in enumerate(self.database.rows("PYTORCH_API", *columns)):
            start, end, tid, name_id, sequence, kind = row
            report.rows += 1
            category = {_OP: "op", _PYTHON: "python", None: "op"}.get(whole(kind))
            if category is None:
                report.skipped["entry of the task queue" if whole(kind) == _QUEUE else f"operator of type {kind}"] += 1
                continue
            if category == "python" and "python_function" not in keep:
                report.skipped["python_function"] += 1
                continue
            times = span(start, end, (self.database, "PYTORCH_API", number), report)
            if times is None:
                continue
            name = self._name(name_id, report)
            category = "annotation" if category == "op" and _ANNOTATION.match(name) else category
            yield _event(rank, category, name, times, thread=_thread(tid), sequence=known(sequence))

    def _here(self, device: object) -> bool:
        return self._device is None or whole(device) == self._device

    def _name(self, number: object, report: SourceReport) -> str:
        name = self._names.text(number)
        if name is None:
            report.repaired[f"no text for a name in STRING_IDS: called {_NO_NAME!r}"] += 1
        return name or _NO_NAME


def memory_rows(
    database: Database, device: int | None, rank: int, report: SourceReport, allocations: Allocations | None = None
) -> Iterator[Row]:
    """Rows of the ``memory`` table: the allocators' own records, and what the driver says of the process.

    Args:
        database: Where they are.
        device: The only device to read, where it holds several.
        rank: Global rank.
        report: Told about unusable rows.
        allocations: What is known of single allocations.
    """
    names = Names(database)
    columns = ("component", "timestamp", "totalAllocated", "totalReserved", "deviceId")
    for number, row in enumerate(database.rows("MEMORY_RECORD", *columns)):
        component, time, allocated, reserved, where = row
        if device is not None and whole(where) != device:
            continue
        report.rows += 1
        moment = span(time, time, (database, "MEMORY_RECORD", number), report)
        if moment is not None:
            sizes = (bounded(allocated), bounded(reserved))
            yield record_row(rank, names.text(component) or "?", moment[0], sizes, allocations)
    for number, (kind, ddr, hbm, time, where) in enumerate(
        database.rows("NPU_MEM", "type", "ddr", "hbm", "timestampNs", "deviceId")
    ):
        if device is not None and whole(where) != device:
            continue
        report.rows += 1
        if (names.text(kind) or "").lower() != "app":
            report.skipped[DEVICE_MEMORY] += 1
            continue
        moment = span(time, time, (database, "NPU_MEM", number), report)
        in_parts = (bounded(ddr), bounded(hbm))
        if moment is not None:
            known_sizes = [size for size in in_parts if size is not None]
            yield rank, "APP", moment[0], None, None, sum(known_sizes) if known_sizes else None, None


def chunks(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in lists of bounded length."""
    pending: list[Row] = []
    for row in rows:
        pending.append(row)
        if len(pending) == CHUNK_ROWS:
            yield pending
            pending = []
    if pending:
        yield pending


def span(start: object, end: object, where: tuple[Database, str, int], report: SourceReport) -> tuple[int, int] | None:
    """Start and duration in ns; None, counted, if they are no usable times.

    Args:
        start: As the column holds it.
        end: The same.
        where: Database, table and number of the row.
        report: Told about unusable ones.
    """
    if type(start) is int and type(end) is int and 0 < start <= end < _TIME_LIMIT:
        return start, end - start
    first, last = whole(start), whole(end)
    place = FilePlace(f"{where[0].path}: {where[1]}", where[2], "row")
    if first is None or last is None or max(abs(first), abs(last)) >= _TIME_LIMIT:
        report.drop("time is no whole number", place)
    elif first <= 0:
        report.drop("time is zero", place)
    elif last < first:
        report.repair("negative duration set to 0", place)
        return first, 0
    else:
        return first, last - first
    return None


def _event(
    rank: int,
    category: str,
    name: str,
    times: tuple[int, int],
    *,
    thread: int | None = None,
    stream: int | None = None,
    correlation: int | None = None,
    sequence: int | None = None,
    kernel_class: str | None = None,
) -> Row:
    return (
        rank, category, name, *times, thread, stream, correlation, None, sequence, kernel_class, None, None, None,
    )  # fmt: skip


def _thread(global_tid: object) -> int | None:
    number = known(global_tid)
    return None if number is None else number & _THREAD_BITS


def _int64(value: object) -> int | None:
    number = value if type(value) is int else whole(value)
    return number if number is not None and abs(number) < 2**63 else None
