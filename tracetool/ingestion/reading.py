"""From one source to its part of a Run: here, in worker processes or on a Dask cluster."""

from __future__ import annotations

import ctypes
import errno
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracetool.errors import IngestError, MalformedTrace
from tracetool.ingestion.executors import available_memory_bytes, in_processes, on_cluster, usable_cores
from tracetool.model.notice import Notice, SourceCode
from tracetool.readers import READERS, SeveralRanks, SourceReport, stated_sizes
from tracetool.store import PartWriter, is_local, part_path, source_part
from tracetool.store.objects import cache_folder, copied_anew, put_folder
from tracetool.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from tracetool.ingestion.discover import DiscoveredSource
    from tracetool.model.notice import Progress
    from tracetool.readers import Source
    from tracetool.store.run import RunWriter

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """One source to read.

    Attributes:
        number: Number of the source in the Run.
        discovered: The source, and who it is.
        folder: Folder of the Run being written, or a URL from which the Run gets the part.
        keep: What is read only on request.
        payload_bytes: What a send or receive holds that does not say it, as the user stated.
        copies: Where the machine that discovered the source has its copies of what lies on object stores.
    """

    number: int
    discovered: DiscoveredSource
    folder: Path
    keep: frozenset[str]
    payload_bytes: int | None = None
    copies: Path | None = None

    @property
    def name(self) -> str:
        """What is done, in a few words."""
        who = self.discovered.source.path.name if self.discovered.rank is None else f"rank {self.discovered.rank}"
        return f"{who}: read"


@dataclass(slots=True)
class SourceOutcome:
    """What became of a source.

    Attributes:
        report: What was seen in it.
        failure: Why nothing of it can be used, or None.
        hint: What to do then.
        is_several: Whether it holds several ranks.
        sizes: Of each table that it has rows for, the size of its file in bytes.
    """

    report: SourceReport
    failure: str | None = None
    hint: str | None = None
    is_several: bool = False
    sizes: dict[str, int] = field(default_factory=dict)


def read_source(task: Task, advance: Callable[[int], None]) -> SourceOutcome:
    """Read a source and write its part; a source that cannot be used is an outcome, not an exception.

    Raises:
        OSError: If the part cannot be written.
    """
    if not is_local(task.folder):
        with tempfile.TemporaryDirectory(prefix="tracetool-") as aside:
            outcome = read_source(replace(task, folder=Path(aside)), advance)
            if outcome.failure is None:
                put_folder(Path(aside), task.folder, is_whole=False)
        return outcome
    _keep_heap_small()
    report = SourceReport()
    item = task.discovered
    reader = READERS.get(item.reader)
    part = source_part(task.number)
    stated = 0
    try:
        with PartWriter(task.folder, part) as writer:
            tables = reader.read(item.source, item.stored_rank, item.identity, task.keep, report, advance)
            for table, read in _reading(item, tables):
                rows = _numbered(read, task.number) if table == "vendor_figures" else read
                if table == "comms" and task.payload_bytes is not None:
                    rows, count = stated_sizes(read, task.payload_bytes)
                    stated += count
                writer.write(table, rows)
        if report.rows == 0 and item.source.ranked:
            raise IngestError(
                f"{item.label} holds no events.",
                hint="export the trace inside on_trace_ready, before the profiler's context closes",
            )
    except (MalformedTrace, IngestError) as error:
        return SourceOutcome(report, error.message, error.hint, isinstance(error, SeveralRanks))
    if item.rank_from is not None:
        report.notes.insert(0, Notice(SourceCode.RANK_INFERRED, f"this rank is taken from {item.rank_from}"))
    if stated:
        size = format_size(task.payload_bytes or 0)
        text = f"{format_count(stated, 'send')} and receives hold {size} each because ingest was told so"
        report.note(SourceCode.SIZES_STATED, text)
    written = {table: part_path(task.folder, table, part) for table, rows in writer.rows.items() if rows}
    return SourceOutcome(report, sizes={table: file.stat().st_size for table, file in written.items()})


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


WORKER_BYTES = 512 << 20
"""Memory that reading one source may take, with the libraries loaded."""

# Below this much text per further worker, starting one costs more than it saves.
_WORTH_BYTES = 256 << 20
_COMPRESSION = 12


def run_tasks(
    tasks: Sequence[Task], writer: RunWriter, progress: Progress, *, jobs: int | None, executor: str | None
) -> list[SourceOutcome]:
    """Read all sources; the outcomes are in the order of the tasks.

    Args:
        tasks: One per source.
        writer: Of the Run.
        progress: Told about bytes read.
        jobs: Worker processes; by default as many as cores, memory and the size of the sources allow.
        executor: ``dask://HOST:PORT`` of a cluster whose workers reach the same paths.

    Raises:
        IngestError: If the executor cannot be used, or a worker wrote a part where the Run does not get it from.
        OSError: If a part cannot be written.
        StoreError: If an object store refuses, or cannot be reached.
    """
    sizes = [task.discovered.source.size_bytes for task in tasks]
    progress.start(sum(sizes))
    if executor is not None:
        with writer.handing_over() as folder:
            there = [replace(task, folder=folder, copies=cache_folder()) for task in tasks]
            outcomes = on_cluster(_read_there, there, sizes, progress, executor)
        for task, outcome in zip(tasks, outcomes, strict=True):
            _check_part(task, outcome)
        return outcomes
    count = min(len(tasks), jobs if jobs is not None else _sensible_jobs(tasks))
    if count <= 1:
        return [read_source(task, progress.advance) for task in tasks]
    return in_processes(read_source, tasks, progress, count)


def _read_there(task: Task, advance: Callable[[int], None]) -> SourceOutcome:
    """Read a source on another machine."""
    if is_local(task.folder) and not task.folder.is_dir():
        raise _not_shared(task.folder.parent)
    return read_source(task, advance) if task.copies is None else read_source(_with_copies(task, task.copies), advance)


def _with_copies(task: Task, base: Path) -> Task:
    """The same on this machine, which needs copies of its own."""
    source: Source = task.discovered.source
    files = {file: file if file.exists() else copied_anew(file, base) for file in (*source.files, source.path)}
    if all(old == new for old, new in files.items()):
        return task
    here = replace(source, path=files[source.path], files=tuple(files[file] for file in source.files))
    return replace(task, discovered=replace(task.discovered, source=here))


def _check_part(task: Task, outcome: SourceOutcome) -> None:
    """Check that what a worker wrote is here.

    Raises:
        IngestError: If it is not.
    """
    for table, size in outcome.sizes.items():
        part = part_path(task.folder, table, source_part(task.number))
        if not part.is_file() or part.stat().st_size != size:
            raise _not_shared(task.folder.parent)


def _not_shared(folder: Path) -> IngestError:
    return IngestError(
        f"workers of the cluster do not write to this machine's {folder}.",
        hint="write the Run to a folder that all machines share, or to an object store (s3://...)",
    )


def _sensible_jobs(tasks: Sequence[Task]) -> int:
    text = sum(_text_bytes(task) for task in tasks)
    by_memory = available_memory_bytes() // WORKER_BYTES
    return max(1, min(usable_cores(), by_memory, text // _WORTH_BYTES))


def _text_bytes(task: Task) -> int:
    """Size of a source's text; that of a compressed one is a guess, good enough to choose the workers by."""
    plain = task.discovered.source.path.suffix in (".json", ".csv", ".db", ".parquet")
    return task.discovered.source.size_bytes * (1 if plain else _COMPRESSION)
