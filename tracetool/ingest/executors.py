"""Where sources are read: here one after the other, in worker processes, or on a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracetool.errors import IngestError
from tracetool.ingest.work import Outcome, Task, read_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

WORKER_BYTES = 512 << 20
"""Memory that reading one source may take, with the libraries loaded."""

_DASK = "dask://"
_CONNECT_SECONDS = 10
# Below this much text per further worker, starting one costs more than it saves.
_WORTH_BYTES = 256 << 20
_COMPRESSION = 12
_read_so_far: Any = None


class Progress(Protocol):
    """Told about bytes read; the command line shows a bar."""

    def start(self, total_bytes: int) -> None:
        """Reading begins."""

    def advance(self, count: int) -> None:
        """So many more bytes of the files were consumed."""


class Silent:
    """No progress shown."""

    def start(self, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, count: int) -> None:
        """Do nothing."""


def run_tasks(tasks: Sequence[Task], progress: Progress, *, jobs: int | None, executor: str | None) -> list[Outcome]:
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
    progress.start(sum(task.found.source.size_bytes for task in tasks))
    if executor is not None:
        return _on_cluster(tasks, progress, executor)
    count = min(len(tasks), jobs if jobs is not None else _sensible_jobs(tasks))
    if count <= 1:
        return [read_source(task, progress.advance) for task in tasks]
    return _in_processes(tasks, progress, count)


def available_memory_bytes() -> int:
    """Memory that this process and its children may still take: the system's, or less if a cgroup says so."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    info = Path("/proc/meminfo")
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        found = [int(lines["MemAvailable"].split()[0]) << 10]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="ascii").strip()).isdigit():
        found.append(max(0, int(text) - int(used.read_text(encoding="ascii"))))
    return min(found)


def _cores() -> int:
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
    return max(1, min(_cores(), by_memory, text // _WORTH_BYTES))


def _text_bytes(task: Task) -> int:
    """Size of a source's text; that of a compressed one is a guess, good enough to choose the workers by."""
    plain = task.found.source.path.suffix in (".json", ".csv", ".db", ".parquet")
    return task.found.source.size_bytes * (1 if plain else _COMPRESSION)


def _in_processes(tasks: Sequence[Task], progress: Progress, jobs: int) -> list[Outcome]:
    # Forking a process that already runs threads can hang: workers start afresh.
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    with _stopped_at_once(
        ProcessPoolExecutor(jobs, mp_context=context, initializer=_start_worker, initargs=(counter,))
    ) as pool:
        with _uninterrupted():
            futures = [pool.submit(_read_in_worker, task) for task in tasks]
        seen = 0
        waiting: set[Future[Outcome]] = set(futures)
        while waiting:
            try:
                for future in as_completed(waiting, timeout=0.2):
                    waiting.discard(future)
                    future.result()
            except TimeoutError:
                pass
            now = counter.value
            progress.advance(now - seen)
            seen = now
        return [future.result() for future in futures]


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
            "a worker process was ended from outside, perhaps for want of memory.", hint="try again with --jobs 1"
        ) from error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise
    finally:
        pool.shutdown()


def _start_worker(counter: Any) -> None:
    global _read_so_far  # noqa: PLW0603 - shared memory reaches a worker only when it starts
    import pyarrow as pa

    threading.Thread(target=_end_with_parent, daemon=True).start()
    pa.set_cpu_count(1)
    _read_so_far = counter


def _end_with_parent() -> None:
    """A parent that is killed tells nobody: its workers would wait for work without end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _read_in_worker(task: Task) -> Outcome:
    def advance(count: int) -> None:
        with _read_so_far.get_lock():
            _read_so_far.value += count

    return read_source(task, advance)


def _on_cluster(tasks: Sequence[Task], progress: Progress, address: str) -> list[Outcome]:
    if not address.startswith(_DASK):
        raise IngestError(f"no executor {address!r}.", hint=f"name a Dask scheduler: {_DASK}HOST:PORT")
    try:
        client_of: Any = import_module("distributed").Client
    except ImportError as error:
        raise IngestError("Dask is not installed.", hint="pip install 'tracetool[dask]'") from error
    try:
        client = client_of(f"tcp://{address.removeprefix(_DASK)}", timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise IngestError(f"no Dask scheduler answers at {address}: {error}.", hint="check host and port") from error
    with client:
        pool: Executor = client.get_executor(pure=False)
        futures = [pool.submit(partial(read_source, task, _unseen)) for task in tasks]
        by_future = dict(zip(futures, tasks, strict=True))
        for future in as_completed(futures):
            future.result()
            progress.advance(by_future[future].found.source.size_bytes)
        return [future.result() for future in futures]


def _unseen(count: int) -> None:
    """Bytes read on another machine show when their source is done."""
