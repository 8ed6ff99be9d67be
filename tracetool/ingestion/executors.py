"""Where sources are read: here one after the other, in worker processes, or on a Dask cluster.

Reads one source into its part of a Run: in this process, a worker process or on another machine.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tracetool.errors import IngestError, MalformedTrace, Option, flags_now, installing, typed_as
from tracetool.model.notice import Notice, SourceCode
from tracetool.readers import READERS, SeveralRanks, SourceReport, stated_sizes
from tracetool.store import PartWriter, source_part
from tracetool.tables import leave_pandas
from tracetool.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from multiprocessing.context import BaseContext

    import pyarrow as pa

    from tracetool.ingestion.discover import DiscoveredSource
    from tracetool.model.notice import Progress

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
        payload_bytes: What a send or receive holds that does not say it, as the user stated.
    """

    number: int
    discovered: DiscoveredSource
    folder: Path
    keep: frozenset[str]
    payload_bytes: int | None = None


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

_DASK = "dask://"
_CONNECT_SECONDS = 10
# Below this much text per further worker, starting one costs more than it saves.
_WORTH_BYTES = 256 << 20
_COMPRESSION = 12
_PRELOADED = ("pyarrow.compute", "pyarrow.parquet", "tracetool.readers.kineto", __name__)
_done_so_far: Any = None

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_tasks(
    tasks: Sequence[Task], progress: Progress, *, jobs: int | None, executor: str | None
) -> list[SourceOutcome]:
    """Read all sources; the outcomes are in the order of the tasks.

    Args:
        tasks: One per source.
        progress: Told about bytes read.
        jobs: Worker processes; by default as many as cores, memory and the size of the sources allow.
        executor: ``dask://HOST:PORT`` of a cluster whose workers reach the same paths.

    Raises:
        IngestError: If the executor cannot be used.
        OSError: If a part cannot be written.
    """
    progress.start(sum(task.discovered.source.size_bytes for task in tasks))
    if executor is not None:
        return on_cluster(read_source, tasks, [t.discovered.source.size_bytes for t in tasks], progress, executor)
    count = min(len(tasks), jobs if jobs is not None else _sensible_jobs(tasks))
    if count <= 1:
        return [read_source(task, progress.advance) for task in tasks]
    return in_processes(read_source, tasks, progress, count)


def available_memory_bytes() -> int:
    """Memory that this process and its children may still take: the system's, or less if a cgroup says so."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    info = Path("/proc/meminfo")
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        limits = [int(lines["MemAvailable"].split()[0]) << 10]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="ascii").strip()).isdigit():
        limits.append(max(0, int(text) - int(used.read_text(encoding="ascii"))))
    return min(limits)


def usable_cores() -> int:
    """Cores that this process may use: those it may run on, or fewer if a cgroup says so."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        allowed, period = quota.read_text(encoding="ascii").split()[:2]
        if allowed.isdigit():
            cores = min(cores, max(1, int(allowed) // int(period)))
    return cores


def _sensible_jobs(tasks: Sequence[Task]) -> int:
    text = sum(_text_bytes(task) for task in tasks)
    by_memory = available_memory_bytes() // WORKER_BYTES
    return max(1, min(usable_cores(), by_memory, text // _WORTH_BYTES))


def _text_bytes(task: Task) -> int:
    """Size of a source's text; that of a compressed one is a guess, good enough to choose the workers by."""
    plain = task.discovered.source.path.suffix in (".json", ".csv", ".db", ".parquet")
    return task.discovered.source.size_bytes * (1 if plain else _COMPRESSION)


def in_processes(
    work: Callable[[_Task, Callable[[int], None]], _Result], tasks: Sequence[_Task], progress: Progress, jobs: int
) -> list[_Result]:
    """Work on tasks in worker processes; the results are in the order of the tasks.

    Args:
        work: Takes a task and whom to tell how far it is; of a module, so that workers find it.
        tasks: What to work on.
        progress: Told how far the workers are.
        jobs: Worker processes.

    Raises:
        IngestError: If a worker is ended from outside.
    """
    context = _starting(work.__module__)
    counter = context.Value("q", 0)
    with _stopped_at_once(
        ProcessPoolExecutor(
            jobs,
            mp_context=context,
            initializer=_start_worker,
            initargs=(counter, dict(os.environ), gc.get_threshold()),
        )
    ) as pool:
        with _uninterrupted():
            futures = [pool.submit(_work_in_worker, work, task, flags_now()) for task in tasks]
        shown = 0
        waiting: set[Future[_Result]] = set(futures)
        while waiting:
            try:
                for future in as_completed(waiting, timeout=0.2):
                    waiting.discard(future)
                    future.result()
            except TimeoutError:
                pass
            now = counter.value
            progress.advance(now - shown)
            shown = now
        return [future.result() for future in futures]


def _starting(module: str) -> BaseContext:
    """How workers start: forking a process that already runs threads can hang, so that they start afresh.

    On Linux a server that has loaded what they need forks them: loading it takes each half a second otherwise.

    Args:
        module: Where their work is.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, module])
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds Ctrl-C back; processes that start meanwhile never see it: the parent decides when to stop."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


@contextmanager
def _stopped_at_once(pool: ProcessPoolExecutor) -> Iterator[Executor]:
    """A pool whose workers do not outlive an interruption."""
    try:
        yield pool
    except BrokenProcessPool as error:
        raise IngestError(
            "a worker process was ended from outside, perhaps for want of memory.",
            hint=f"try again with {Option.JOBS(1)}",
        ) from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown()


def _start_worker(counter: Any, environment: dict[str, str], thresholds: tuple[int, int, int]) -> None:
    global _done_so_far  # noqa: PLW0603 - shared memory reaches a worker only when it starts
    leave_pandas()
    import pyarrow as pa

    # The server that forks workers has the environment of the time when it started.
    os.environ.clear()
    os.environ.update(environment)
    # Rows hold no cycles: to look for some as seldom as the parent does saves a fifth of reading databases.
    gc.set_threshold(*thresholds)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pa.set_cpu_count(1)
    _done_so_far = counter


def _end_with_parent() -> None:
    """A parent that is killed tells nobody: its workers would wait for work without end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work_in_worker(
    work: Callable[[_Task, Callable[[int], None]], _Result], task: _Task, flags: dict[str, str]
) -> _Result:
    def advance(count: int) -> None:
        with _done_so_far.get_lock():
            _done_so_far.value += count

    with typed_as(flags):
        return work(task, advance)


def check_address(address: str) -> None:
    """Check that an executor is one that can be used.

    Raises:
        IngestError: If it is no address of a Dask scheduler.
    """
    if not address.startswith(_DASK):
        raise IngestError(f"no executor {address!r}.", hint=f"name a Dask scheduler: {_DASK}HOST:PORT")


def on_cluster(
    work: Callable[[_Task, Callable[[int], None]], _Result],
    tasks: Sequence[_Task],
    sizes: Sequence[int],
    progress: Progress,
    address: str,
) -> list[_Result]:
    """Work on tasks on a Dask cluster; the results are in the order of the tasks.

    Args:
        work: Takes a task and whom to tell how far it is.
        tasks: What to work on.
        sizes: Of each task: its progress shows when it is done.
        progress: Told how much is done.
        address: ``dask://HOST:PORT`` of a cluster whose workers have this tool.

    Raises:
        IngestError: If the cluster cannot be used.
    """
    check_address(address)
    try:
        client_of: Any = import_module("distributed").Client
    except ImportError as error:
        raise IngestError("Dask is not installed.", hint=installing("dask")) from error
    try:
        client = client_of(f"tcp://{address.removeprefix(_DASK)}", timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise IngestError(f"no Dask scheduler answers at {address}: {error}.", hint="check host and port") from error
    with client:
        pool: Executor = client.get_executor(pure=False)
        futures = [pool.submit(partial(_work_on_cluster, work, task, flags_now())) for task in tasks]
        size_of = dict(zip(futures, sizes, strict=True))
        for future in as_completed(futures):
            future.result()
            progress.advance(size_of[future])
        return [future.result() for future in futures]


def _work_on_cluster(
    work: Callable[[_Task, Callable[[int], None]], _Result], task: _Task, flags: dict[str, str]
) -> _Result:
    # What is done on another machine shows when its task is done.
    with typed_as(flags):
        return work(task, lambda _count: None)
