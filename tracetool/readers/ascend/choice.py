"""Text files and databases of one rank: of each thing the more complete record is taken, never two.

What several files have is counted first: the one with the most whole records is taken, of equal ones the
first offered, which is the exact one. Files of another time than the rest are another capture and left out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace, SourceReport, rows_table
from tracetool.readers.ascend.db_comms import (
    communication_tasks,
    listed_matrix,
    listed_operations,
    total_links,
    vendor_steps,
)
from tracetool.readers.ascend.db_rows import Events, HostSteps, chunks, memory_rows
from tracetool.readers.ascend.memory import (
    database_allocations,
    database_module_rows,
    database_operation_rows,
    text_allocations,
    text_memory_rows,
    text_module_rows,
)
from tracetool.readers.ascend.view import View
from tracetool.readers.cann import csv_rows
from tracetool.readers.cann.comms import (
    COMMUNICATION,
    MATRIX,
    CommOperation,
    Matrix,
    join,
    read_communication,
    read_matrix,
)
from tracetool.readers.cann.db import Names
from tracetool.readers.cann.kernels import KERNEL_DETAILS, CommunicationTask, Kernels, PhaseKernel
from tracetool.readers.cann.parts import MEMORY, MODULE_MEMORY, OPERATOR_MEMORY, STEP_TRACE, TRACE_VIEW, nobody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers import Group
    from tracetool.readers.ascend.memory import Allocations
    from tracetool.readers.cann.db import Database
    from tracetool.readers.cann.parts import Parts

    Row = tuple[object, ...]

T = TypeVar("T")


class ChosenFiles:
    """What is taken of one rank's files.

    Args:
        parts: The files.
        captures: Databases of the capture, open.
        analyses: Databases of its analysis, open.
        report: Gets notes of what was taken and what was left.
        advance: Called with the bytes of the text files consumed.

    Attributes:
        marks: Kernels that tell forward from backward; filled by ``event_tables``.
    """

    def __init__(
        self,
        parts: Parts,
        captures: Sequence[Database],
        analyses: Sequence[Database],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> None:
        self.marks: list[PhaseKernel] = []
        self._parts = parts
        self._report = report
        self._advance = advance
        self._analyses = list(analyses)
        self._events = [Events(database, parts.device) for database in captures]
        self._leave_text = False
        self._text = Kernels(0, SourceReport())
        self._taken: Events | None = None
        if self._events:
            self._choose_kernels()
        marked = [e for e in (self._taken, *self._events) if e is not None and "STEP_TIME" in e.database.tables]
        self._steps = HostSteps(marked[0].database, report) if marked else None

    def event_tables(self, rank: int, keep: frozenset[str]) -> Iterator[pa.Table]:
        """Rows of the ``events`` table: what the device ran, then what the host did."""
        session = self._parts.session()
        outside = 0
        for rows in self._event_rows(rank, keep):
            table = rows_table("events", rows) if isinstance(rows, list) else rows
            if len(table):
                starts = table.column("start_ns").to_numpy()
                met = self._report.first_ns
                first = int(starts.min())
                self._report.first_ns = first if met is None else min(met, first)
                if session is not None:
                    outside += int(((starts < session[0]) | (starts > session[1])).sum())
            yield table
        if outside:
            self._report.note(
                SourceCode.EVENTS_OUTSIDE, f"{outside:,} events lie outside the recording's time in SESSION_TIME_INFO"
            )

    def _event_rows(self, rank: int, keep: frozenset[str]) -> Iterator[list[Row] | pa.Table]:
        count = 0
        if self._taken is not None:
            self._file(KERNEL_DETAILS, used=False)
            self._file(TRACE_VIEW, used=False)
            for rows in chunks(self._taken.device_rows(rank, self._steps, self._report)):
                yield [(count + i, *row) for i, row in enumerate(rows)]
                count += len(rows)
            self.marks = self._taken.marks
        else:
            for text_rows in self._text_rows(rank, keep):
                yield text_rows
                count += len(text_rows)
        for events in [self._taken] if self._taken is not None else self._events[:1]:
            for rows in chunks(events.host_rows(rank, keep, self._report)):
                yield [(count + i, *row) for i, row in enumerate(rows)]
                count += len(rows)

    def _text_rows(self, rank: int, keep: frozenset[str]) -> Iterator[list[Row] | pa.Table]:
        self._text = Kernels(rank, self._report)
        if (path := self._file(KERNEL_DETAILS)) is not None:
            for rows in self._text.event_rows(path, self._advance):
                for _, _, _, _, start, duration, *_ in rows:
                    self._count_to_step(None, _number(start), _number(start) + _number(duration))
                yield rows
        self.marks = self._text.marks
        # A database beside it has the same host events.
        if (path := self._file(TRACE_VIEW, used=not self._events)) is not None:
            others = any(self._parts.path(part) is not None for part in (KERNEL_DETAILS, COMMUNICATION))
            view = self._whole(partial(View, path, rank, keep, self._report, self._advance), beside=others)
            if view is not None:
                yield from view.event_tables(self._text)

    def operations(self, groups: Sequence[Group]) -> tuple[list[CommOperation], Matrix]:
        """All communication operations, and the sums of their links; after ``event_tables``."""
        tasks = self._tasks()
        listed = self._listed(tasks)
        matrix = self._matrix()
        totals = total_links(tasks)
        matrix = Matrix(matrix.links, totals) if totals else matrix
        for task in tasks:
            self._count_to_step(task.connection, task.start_ns, task.end_ns)
        return join(tasks, listed, matrix, groups, self._report), matrix

    def extents(self) -> dict[int, tuple[int, int]]:
        """First start and last end of each step on the device; after ``operations``."""
        text = {} if self._leave_text else self._text.extents
        if self._steps is None or not len(self._steps):
            return text
        if text and (self._taken is None or len(text) > len(self._steps)):
            return text
        return self._steps.extents(self._report)

    def vendor_steps(self) -> Iterator[tuple[str, str, str]]:
        """Step, Bubble and Computing as the vendor's analysis has them, in us."""
        path = self._parts.path(STEP_TRACE)
        offers: list[tuple[str, list[tuple[str, str, str]]]] = []
        if path is not None and not self._leave_text:
            offers.append((STEP_TRACE, self._whole(partial(_step_trace, path, self._advance, self._report)) or []))
        else:
            self._file(STEP_TRACE, used=False)
        offers += [(d.path.name, list(vendor_steps(d, self._parts.device))) for d in self._analyses]
        yield from self._fuller("the vendor's times of steps", offers) or ()

    def memory_rows(self, rank: int) -> Iterator[list[Row]]:
        """Rows of the ``memory`` table."""
        path = self._parts.path(MEMORY)
        databases = [e.database for e in self._events]
        counts = [(d, sum(1 for _ in self._database_rows(d, rank, SourceReport()))) for d in databases]
        best = max(counts, key=lambda item: item[1], default=None)
        if best is not None and best[1] and path is not None and not self._leave_text:
            text = self._whole(partial(_memory_count, path)) or 0
            self._say_taken("memory", [(best[0].path.name, best[1]), (MEMORY, text)])
            best = best if best[1] >= text else None
        text_parts = (MEMORY, OPERATOR_MEMORY, MODULE_MEMORY)
        if best is not None and (best[1] or not any(map(self._parts.path, text_parts))):
            for part in text_parts:
                self._file(part, used=False)
            allocations = database_allocations(best[0], self._parts.device, self._report)
            yield from chunks(self._database_rows(best[0], rank, self._report, allocations))
            yield from chunks(allocations.rest(rank))
            yield from database_module_rows(best[0], self._parts.device, rank, self._report)
        else:
            yield from self._text_memory_rows(rank)

    def _database_rows(
        self, database: Database, rank: int, report: SourceReport, allocations: Allocations | None = None
    ) -> Iterator[Row]:
        device = self._parts.device
        yield from memory_rows(database, device, rank, report, allocations)
        names = Names(database)
        listed = frozenset(name for n in database.distinct("MEMORY_RECORD", "component") if (name := names.text(n)))
        if not database.has("OP_MEMORY") or not database.count("OP_MEMORY"):
            yield from database_operation_rows(database, device, rank, listed, report)

    def _text_memory_rows(self, rank: int) -> Iterator[list[Row]]:
        listed = self._file(OPERATOR_MEMORY)
        known = listed and self._whole(partial(text_allocations, listed, self._report, self._advance), beside=True)
        allocations = known or None
        if (path := self._file(MEMORY)) is not None:
            yield from text_memory_rows(path, rank, self._report, self._advance, allocations)
        if allocations is not None:
            yield from chunks(allocations.rest(rank))
        if (path := self._file(MODULE_MEMORY)) is not None:
            read = partial(text_module_rows, path, rank, self._report, self._advance)
            yield from self._whole(lambda: list(read()), beside=True) or ()

    def _choose_kernels(self) -> None:
        """Count what each file has of kernels, and leave out the text files if they are another capture's."""
        path = self._parts.path(KERNEL_DETAILS)
        if path is None and len(self._events) == 1:
            self._taken = self._events[0]
            return
        counts = [(events, events.count()) for events in self._events]
        best = max(counts, key=lambda item: item[1])
        if path is None:
            self._taken = best[0]
            self._say_taken("kernels", [(e.database.path.name, n) for e, n in counts])
            return
        first, last = 2**63, 0
        try:
            for rows in self._text.event_rows(path, nobody):
                starts = [_number(start) for _, _, _, _, start, *_ in rows]
                first, last = min([first, *starts]), max([last, *starts])
        except MalformedTrace as error:
            if best[1]:
                self._text = Kernels(0, SourceReport())
                self._report.note(SourceCode.FILES_DAMAGED, f"damaged, hence the database is taken: {error.message}")
        if best[1] >= len(self._text.starts) and best[1]:
            self._taken = best[0]
        offers = [(e.database.path.name, n) for e, n in counts] + [(KERNEL_DETAILS, len(self._text.starts))]
        self._say_taken("kernels", offers)
        session = self._parts.session()
        if session is not None and len(self._text.starts) and (last < session[0] or first > session[1]):
            self._leave_other_capture()

    def _leave_other_capture(self) -> None:
        names = ", ".join(e.database.path.name for e in self._events)
        if self._taken is None:
            self._events = []
            self._report.note(
                SourceCode.FILES_LEFT_OUT, f"{names} left out: recorded at another time than {KERNEL_DETAILS}"
            )
        else:
            self._leave_text = True
            self._report.note(SourceCode.FILES_LEFT_OUT, f"text files left out: recorded at another time than {names}")

    def _tasks(self) -> list[CommunicationTask]:
        reports: list[SourceReport] = []
        offers = []
        for events in self._events:
            reports.append(SourceReport())
            offers.append(
                (events.database.path.name, communication_tasks(events.database, self._parts.device, reports[-1]))
            )
        if not self._leave_text:
            offers.append((KERNEL_DETAILS, self._text.tasks))
        taken = self._fuller("communication operations", offers)
        for (_, tasks), report in zip(offers, reports, strict=False):
            if tasks is taken or taken is None:
                _merge(self._report, report)
        return taken or []

    def _listed(self, tasks: Sequence[CommunicationTask]) -> list[CommOperation]:
        path = self._file(COMMUNICATION)
        reports = [SourceReport() for _ in range(1 + len(self._analyses))]
        text = None if path is None else self._whole(partial(read_communication, path, reports[0], self._advance))
        self._record_damage(reports[0])
        offers = [(COMMUNICATION, text or [])]
        for database, own in zip(self._analyses, reports[1:], strict=True):
            offers.append((database.path.name, listed_operations(database, own)))
        taken = self._fuller("sizes and waits of communication", offers) or []
        for (name, operations), own in zip(offers, reports, strict=True):
            if operations is taken or not taken:
                _merge(self._report, own)
            if operations is taken and tasks and taken and not _at_one_time(tasks, taken):
                self._report.note(
                    SourceCode.FILES_LEFT_OUT, f"{name} left out: it is of another time than what the device recorded"
                )
                return []
        return taken

    def _matrix(self) -> Matrix:
        path = self._file(MATRIX)
        reports = [SourceReport() for _ in range(1 + len(self._analyses))]
        text = None if path is None else self._whole(partial(read_matrix, path, reports[0], self._advance))
        self._record_damage(reports[0])
        offers = [(MATRIX, text or Matrix())]
        for database, own in zip(self._analyses, reports[1:], strict=True):
            offers.append((database.path.name, listed_matrix(database, own)))
        counts = [(name, sum(map(len, matrix.links.values()))) for name, matrix in offers]
        self._say_taken("links of communication", counts)
        best = max(range(len(offers)), key=lambda i: counts[i][1])
        _merge(self._report, reports[best])
        return offers[best][1]

    def _count_to_step(self, connection: int | None, start_ns: int, end_ns: int) -> None:
        if self._steps is not None:
            self._steps.add(connection, start_ns, end_ns)

    def _file(self, part: str, *, used: bool = True) -> Path | None:
        """A text file that is read; the bytes of one that is not are counted here."""
        path = self._parts.path(part)
        if path is None or (used and not self._leave_text):
            return path
        self._advance(path.stat().st_size)
        return None

    def _whole(self, read: Callable[[], T], *, beside: bool = False) -> T | None:
        """What a text file holds; beside databases a damaged one is left out instead of ending it all.

        Args:
            read: Reads it.
            beside: Whether other text files would be lost with it.
        """
        try:
            return read()
        except MalformedTrace as error:
            if not self._events and not self._analyses and not beside:
                raise
            reason = "damaged text file beside others" if beside else "damaged text file beside a database"
            self._report.drop(reason, FilePlace(str(self._parts.folder), 0))
            self._report.note(SourceCode.FILES_DAMAGED, f"left out: {error.message}")
            return None

    def _record_damage(self, report: SourceReport) -> None:
        """Say what is damaged in a text file, whether it is taken or a database has more."""
        for reason in [r for r in report.dropped if r in report.damaged]:
            self._report.drop(reason, report.places.pop(reason), report.dropped.pop(reason))

    def _fuller(self, what: str, offers: Sequence[tuple[str, list[T]]]) -> list[T] | None:
        held = [offer for offer in offers if offer[1]]
        if not held:
            return None
        self._say_taken(what, [(name, len(records)) for name, records in held])
        return max(held, key=lambda offer: len(offer[1]))[1]

    def _say_taken(self, what: str, counts: Sequence[tuple[str, int]]) -> None:
        held = [offer for offer in counts if offer[1]]
        if len(held) > 1:
            taken = max(held, key=lambda offer: offer[1])
            others = [f"{count:,} in {name}" for name, count in held if name != taken[0]]
            self._report.note(
                SourceCode.FILES_CHOSEN, f"{what}: {taken[1]:,} taken from {taken[0]}, not the {' or '.join(others)}"
            )


def _step_trace(path: Path, advance: Callable[[int], None], report: SourceReport) -> list[tuple[str, str, str]]:
    records = csv_rows(path, ("Step",), ("Bubble", "Computing"), advance, report)
    return [(step, bubble, computing) for step, bubble, computing in records]


def _memory_count(path: Path) -> int:
    return sum(len(rows) for rows in text_memory_rows(path, 0, SourceReport(), nobody))


def _number(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 - times of event rows are
    return value


def _at_one_time(tasks: Sequence[CommunicationTask], operations: Sequence[CommOperation]) -> bool:
    first, last = min(t.start_ns for t in tasks), max(t.end_ns for t in tasks)
    return any(o.end_ns >= first and o.start_ns <= last for o in operations)


def _merge(into: SourceReport, report: SourceReport) -> None:
    into.rows += report.rows
    into.dropped.update(report.dropped)
    into.repaired.update(report.repaired)
    into.skipped.update(report.skipped)
    into.places.update({reason: at for reason, at in report.places.items() if reason not in into.places})
    into.notes += report.notes
