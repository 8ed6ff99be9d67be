"""From sources to their parts of a Run: here, in worker processes or on a Dask cluster."""

from __future__ import annotations

import ctypes
import errno
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import IngestError, MalformedTrace
from tracetool.ingestion.executors import (
    available_memory_bytes,
    in_processes,
    on_cluster,
    prepare_workers,
    usable_cores,
)
from tracetool.model.notice import Notice, SourceCode
from tracetool.readers import READERS, SeveralRanks, SourceReport, stated_sizes
from tracetool.store import PartWriter, is_local
from tracetool.store.objects import cache_folder, copied_anew, put_folder
from tracetool.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from tracetool.ingestion.discover import DiscoveredSource
    from tracetool.model.notice import Progress
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


@dataclass(frozen=True, slots=True)
class Batch:
    """Sources that are read one after the other by one worker, small ones of which share parts.

    Attributes:
        tasks: One per source, of one Run and for one folder.
    """

    tasks: tuple[Task, ...]

    @property
    def name(self) -> str:
        """What is done, in a few words."""
        first, *others = (
            task.discovered.source.path.name if task.discovered.rank is None else f"rank {task.discovered.rank}"
            for task in self.tasks
        )
        # A scheduler's dashboard cuts names at dashes.
        return f"{first} to {others[-1]}: read" if others else f"{first}: read"


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


class BatchOutcome(NamedTuple):
    """What became of a batch: of each source, and how many bytes each part has, by its path below the folder."""

    outcomes: Sequence[SourceOutcome]
    sizes: Mapping[str, int]


def read_sources(batch: Batch, advance: Callable[[int], None]) -> BatchOutcome:
    """Read sources and write their parts; a source that cannot be used is an outcome, not an exception.

    Raises:
        OSError: If a part cannot be written.
    """
    folder = batch.tasks[0].folder
    if not is_local(folder):
        with tempfile.TemporaryDirectory(prefix="tracetool-") as aside:
            made = read_sources(Batch(tuple(replace(task, folder=Path(aside)) for task in batch.tasks)), advance)
            put_folder(Path(aside), folder, is_whole=False)
        return made
    _keep_heap_small()
    with PartWriter(folder) as parts:
        outcomes = [_read_source(task, parts, advance) for task in batch.tasks]
    return BatchOutcome(outcomes, {str(file.relative_to(folder)): file.stat().st_size for file in parts.files})


def _read_source(task: Task, parts: PartWriter, advance: Callable[[int], None]) -> SourceOutcome:
    report = SourceReport()
    item = task.discovered
    reader = READERS.get(item.reader)
    stated = 0
    try:
        with parts.source(task.number) as writer:
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


WORKER_BYTES = 512 << 20
"""Memory that reading one source may take, with the libraries loaded."""

# Below this much text per further worker, starting one costs more than it saves.
_WORTH_BYTES = 256 << 20
# So much text fills a few parts; and each worker has several turns, so that all are done at about the same time.
_BATCH_BYTES = 128 << 20
_TURNS = 4
_PLAIN = (".json", ".csv", ".db", ".parquet")
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
    progress.start(_size_bytes(tasks))
    count = min(len(tasks), jobs if jobs is not None else _sensible_jobs(_text_bytes(tasks)))
    if executor is not None:
        read = _read_on_cluster(_batches(tasks, _BATCH_BYTES), writer, progress, executor)
    elif count > 1:
        turns = _batches(tasks, min(_BATCH_BYTES, _text_bytes(tasks) // (_TURNS * count)))
        read = in_processes(read_sources, turns, progress, count)
    else:
        read = [read_sources(Batch(tuple(tasks)), progress.advance)] if tasks else []
    return [outcome for of_batch in read for outcome in of_batch.outcomes]


def expect_tasks(paths: Sequence[Path], *, jobs: int | None) -> None:
    """Prepare for reading what lies in files and folders, where that will be in worker processes.

    Args:
        paths: As they were named; what is wrong with them is for those to say who look through them.
        jobs: Worker processes, as :func:`run_tasks` takes them.
    """
    text = 0
    if jobs is None:
        for path in filter(is_local, paths):
            with suppress(OSError, ValueError):
                files = [entry for entry in (path.iterdir() if path.is_dir() else [path]) if entry.is_file()]
                text += sum(_expected_bytes(file, file.stat().st_size) for file in files)
    if (jobs or _sensible_jobs(text)) > 1:
        prepare_workers(__name__)


def _batches(tasks: Sequence[Task], most_bytes: int) -> list[Batch]:
    """Tasks as workers take them: large ones by themselves, small neighbours together, so that they share parts."""
    batches: list[list[Task]] = []
    room = 0
    for task in tasks:
        text = _text_bytes([task])
        if not batches or text > room:
            batches.append([])
            room = most_bytes
        batches[-1].append(task)
        room -= text
    return [Batch(tuple(batch)) for batch in batches]


def _read_on_cluster(
    batches: Sequence[Batch], writer: RunWriter, progress: Progress, executor: str
) -> list[BatchOutcome]:
    sizes = [_size_bytes(batch.tasks) for batch in batches]
    with writer.handing_over() as folder:
        copies = cache_folder()
        there = [Batch(tuple(replace(task, folder=folder, copies=copies) for task in b.tasks)) for b in batches]
        read = on_cluster(_read_there, there, sizes, progress, executor)
    for of_batch in read:
        _check_parts(writer.folder, of_batch.sizes)
    return read


def _read_there(batch: Batch, advance: Callable[[int], None]) -> BatchOutcome:
    """Read sources on another machine."""
    folder = batch.tasks[0].folder
    if is_local(folder) and not folder.is_dir():
        raise _not_shared(folder.parent)
    return read_sources(Batch(tuple(map(_with_copies, batch.tasks))), advance)


def _with_copies(task: Task) -> Task:
    """The same on this machine, which needs copies of its own."""
    source, base = task.discovered.source, task.copies
    if base is None:
        return task
    files = {file: file if file.exists() else copied_anew(file, base) for file in (*source.files, source.path)}
    if all(old == new for old, new in files.items()):
        return task
    here = replace(source, path=files[source.path], files=tuple(files[file] for file in source.files))
    return replace(task, discovered=replace(task.discovered, source=here))


def _check_parts(folder: Path, sizes: Mapping[str, int]) -> None:
    """Check that what workers wrote is here.

    Raises:
        IngestError: If it is not.
    """
    for name, size in sizes.items():
        part = folder / name
        if not part.is_file() or part.stat().st_size != size:
            raise _not_shared(folder.parent)


def _not_shared(folder: Path) -> IngestError:
    return IngestError(
        f"workers of the cluster do not write to this machine's {folder}.",
        hint="write the Run to a folder that all machines share, or to an object store (s3://...)",
    )


def _sensible_jobs(text_bytes: int) -> int:
    by_memory = available_memory_bytes() // WORKER_BYTES
    return max(1, min(usable_cores(), by_memory, text_bytes // _WORTH_BYTES))


def _size_bytes(tasks: Sequence[Task]) -> int:
    return sum(task.discovered.source.size_bytes for task in tasks)


def _text_bytes(tasks: Sequence[Task]) -> int:
    sources = [task.discovered.source for task in tasks]
    return sum(_expected_bytes(source.path, source.size_bytes) for source in sources)


def _expected_bytes(path: Path, size_bytes: int) -> int:
    """Size of the text of files; that of compressed ones is a guess, good enough to choose the workers by."""
    return size_bytes * (1 if path.suffix in _PLAIN else _COMPRESSION)
