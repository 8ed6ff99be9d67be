"""Where work is done beside this process: in worker processes, or on a Dask cluster."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import uuid4

from tracetool.errors import IngestError, flags_now, installing, typed_as
from tracetool.tables import leave_pandas
from tracetool.version import code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future
    from multiprocessing.context import BaseContext

    from tracetool.model.notice import Progress

_DASK = "dask://"
_CONNECT_SECONDS = 10
_PATIENCE_SECONDS = 60
"""So long is waited for a worker where a cluster has none any more."""

_PRELOADED = ("pyarrow.compute", "pyarrow.parquet", "tracetool.readers.kineto", __name__)
_done_so_far: Any = None


class WorkPiece(Protocol):
    """A piece of work that people can tell from others."""

    @property
    def name(self) -> str:
        """What is done, in a few words."""


_Task = TypeVar("_Task", bound=WorkPiece)
_Result = TypeVar("_Result")


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


def prepare_workers(module: str) -> None:
    """Have what workers need loaded while there is no work for them yet: it takes a second.

    Args:
        module: That of the work.
    """
    if sys.platform == "linux":
        _starting(module)
        # Starting it lets signals through: it comes first, so that the server never sees one while it loads.
        resource_tracker.ensure_running()
        with _uninterrupted():
            forkserver.ensure_running()


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
        IngestError: If a worker is ended from outside, and the one that is to do its work as well.
    """
    done: dict[int, _Result] = {}
    try:
        _in_pool(work, dict(enumerate(tasks)), progress, jobs, done)
    except BrokenProcessPool:
        # Memory may have been short for several at once: what is left is done one after another.
        left = {number: task for number, task in enumerate(tasks) if number not in done}
        try:
            _in_pool(work, left, progress, 1, done)
        except BrokenProcessPool as error:
            at = next(task.name for number, task in left.items() if number not in done)
            raise IngestError(
                f"a worker process was ended from outside, and its successor at {at!r}: perhaps for want of memory.",
                hint="free memory, or find out who ends processes (the system's log tells)",
            ) from error
    return [done[number] for number in range(len(tasks))]


def _in_pool(
    work: Callable[[_Task, Callable[[int], None]], _Result],
    tasks: Mapping[int, _Task],
    progress: Progress,
    jobs: int,
    done: dict[int, _Result],
) -> None:
    """Work on tasks in a pool of processes; ``done`` gets each result under its task's number.

    Raises:
        BrokenProcessPool: If a worker is ended from outside.
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
            waiting: dict[Future[_Result], int] = {
                pool.submit(_work_in_worker, work, task, flags_now()): number for number, task in tasks.items()
            }
        shown = 0
        while waiting:
            try:
                for future in as_completed(list(waiting), timeout=0.2):
                    done[waiting[future]] = future.result()
                    del waiting[future]
            except TimeoutError:
                pass
            now = counter.value
            progress.advance(now - shown)
            shown = now


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
    except BrokenProcessPool:
        pool.shutdown()  # the others are ended with the one that was lost, and waited for
        raise
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
        distributed: Any = import_module("distributed")
    except ImportError as error:
        raise IngestError("Dask is not installed.", hint=installing("dask")) from error
    try:
        client = distributed.Client(f"tcp://{address.removeprefix(_DASK)}", timeout=_CONNECT_SECONDS)
    except OSError as error:
        raise IngestError(f"no Dask scheduler answers at {address}: {error}.", hint="check host and port") from error
    with client, _cluster_errors(address):
        # The scheduler's dashboard shows keys without what tells them apart.
        futures = [
            client.submit(
                _work_on_cluster, work, task, flags_now(), code_digest(), key=f"{task.name}-{uuid4().hex}", pure=False
            )
            for task in tasks
        ]
        size_of = dict(zip(futures, sizes, strict=True))
        for future in _completed(distributed, client, futures):
            future.result()
            progress.advance(size_of[future])
        return [future.result() for future in futures]


def _completed(distributed: Any, client: Any, futures: Sequence[Any]) -> Iterator[Any]:
    """Futures as they are done.

    Raises:
        IngestError: If the cluster has no worker for long.
    """
    waiting, had_workers = set(futures), time.monotonic()
    while waiting:
        try:
            for future in distributed.as_completed(list(waiting), timeout=min(5, _PATIENCE_SECONDS)):
                waiting.discard(future)
                yield future
        except TimeoutError:
            pass
        if client.nthreads():
            had_workers = time.monotonic()
        elif time.monotonic() - had_workers > _PATIENCE_SECONDS:
            raise IngestError(
                f"the Dask cluster has no workers, {len(waiting)} of {len(futures)} pieces of work are left.",
                hint="start some: dask worker HOST:PORT",
            )


@contextmanager
def _cluster_errors(address: str) -> Iterator[None]:
    """Says what went wrong with a cluster, and what to do.

    Raises:
        IngestError: If so.
    """
    scheduling: Any = import_module("distributed.scheduler")
    client: Any = import_module("distributed.client")
    try:
        yield
    except scheduling.KilledWorker as error:
        name = str(error.task).rpartition("-")[0]
        raise IngestError(
            f"workers of {address} ended one after another, with {name!r} to do: perhaps for want of memory.",
            hint="give workers more memory (Dask's memory_limit), or look at their logs",
        ) from error
    except (client.FutureCancelledError, import_module("distributed.comm").CommClosedError) as error:
        raise IngestError(f"the Dask scheduler at {address} was lost: {error}.", hint="start it, and again") from error
    except ImportError as error:
        raise IngestError(
            f"workers of {address} cannot do the work: {error}.",
            hint="install tracetool on all machines of the cluster",
        ) from error


def _work_on_cluster(
    work: Callable[[_Task, Callable[[int], None]], _Result], task: _Task, flags: dict[str, str], code: str
) -> _Result:
    if code_digest() != code:
        raise IngestError(
            "a worker of the cluster has other code of tracetool than this machine.",
            hint="install the same version on all machines of the cluster",
        )
    # What is done on another machine shows when its task is done.
    with typed_as(flags):
        return work(task, lambda _count: None)
