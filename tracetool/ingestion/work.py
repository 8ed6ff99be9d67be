"""Reads one source into its part of a Run: in this process, a worker process or on another machine."""

from __future__ import annotations

import ctypes
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.errors import IngestError, MalformedTrace
from tracetool.readers import READERS, SeveralRanks, SourceReport
from tracetool.store.parts import PartWriter, source_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from tracetool.ingestion.discover import DiscoveredSource

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """One source to read.

    Attributes:
        number: Number of the source in the Run.
        discovered: The source, and who it is.
        folder: Folder of the Run being written.
        keep: What is read only on request.
    """

    number: int
    discovered: DiscoveredSource
    folder: Path
    keep: frozenset[str]


@dataclass(slots=True)
class SourceOutcome:
    """What became of a source.

    Attributes:
        report: What was seen in it.
        failure: Why nothing of it can be used, or None.
        hint: What to do then.
        is_several: Whether it holds several ranks.
    """

    report: SourceReport
    failure: str | None = None
    hint: str | None = None
    is_several: bool = False


def read_source(task: Task, advance: Callable[[int], None]) -> SourceOutcome:
    """Read a source and write its part; a source that cannot be used is an outcome, not an exception.

    Raises:
        OSError: If the part cannot be written.
    """
    _keep_heap_small()
    report = SourceReport()
    item = task.discovered
    reader = READERS.get(item.reader)
    part = source_part(task.number)
    try:
        with PartWriter(task.folder, part) as writer:
            tables = reader.read(item.source, item.stored_rank, item.identity, task.keep, report, advance)
            for table, rows in _reading(item, tables):
                writer.write(table, _numbered(rows, task.number) if table == "vendor_figures" else rows)
        if report.rows == 0 and item.source.ranked:
            raise IngestError(
                f"{item.label} holds no events.",
                hint="export the trace inside on_trace_ready, before the profiler's context closes",
            )
    except (MalformedTrace, IngestError) as error:
        return SourceOutcome(report, error.message, error.hint, isinstance(error, SeveralRanks))
    if item.rank_from is not None:
        report.notes.insert(0, f"this rank is taken from {item.rank_from}")
    return SourceOutcome(report)


def _keep_heap_small() -> None:
    """Have glibc keep blocks of the size that readers use in its heap, instead of moving the limit as it goes.

    With its default the heap of a process that reads a large file grows by fragmentation (by 70 MB over 1 GB of
    text), and every block costs the page faults of a new one (a fifth of the time of the compiled scanner).
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    except (OSError, AttributeError, TypeError):
        return  # another C library


def _reading(item: DiscoveredSource, tables: Iterator[tuple[str, pa.Table]]) -> Iterator[tuple[str, pa.Table]]:
    """The same, but a source that cannot be read is no fault of the output."""
    try:
        yield from tables
    except OSError as error:
        if error.errno in _FULL:
            raise  # of the folder for temporary files
        raise MalformedTrace(f"{item.label} cannot be read: {error}.", hint="check the disk") from error


def _numbered(rows: Any, number: int) -> Any:
    import pyarrow as pa

    column = pa.array([number] * rows.num_rows, pa.int32())
    return rows.set_column(rows.column_names.index("source"), "source", column)
