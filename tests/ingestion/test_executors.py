"""The same Run from one process, several, and a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.killed import Deadly, work_on
from helpers.made_job import MadeJob
from helpers.made_traces import write_job
from helpers.recorded import ROOT, SAMPLES, run_of
from helpers.thorough import is_asked

import tracetool as tt
from tracetool.cli import run as command
from tracetool.errors import IngestError
from tracetool.ingestion import IngestOptions, executors, ingest
from tracetool.ingestion import reading as room
from tracetool.ingestion.discover import DiscoveredSource
from tracetool.ingestion.executors import available_memory_bytes
from tracetool.model.notice import Silent
from tracetool.readers import Identity, Source
from tracetool.reconstruction.job import kept_kind, record_job, sort_pipelines
from tracetool.store.run import Run, RunWriter
from tracetool.tables.run import TABLES as EVERY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracetool.ingestion.reading import BatchOutcome

FOUR_RANKS = ROOT / "tests" / "data" / "megatron-vpp2"
TABLES = ("sources", "ranks", "groups", "steps", "events", "comms", "memory", "problems")


def _same(one: Run, two: Run) -> None:
    for table in TABLES:
        assert one.query(f"SELECT * FROM {table}").equals(two.query(f"SELECT * FROM {table}")), table
    drop = ("files", "reconstruction")
    assert {k: v for k, v in one.manifest.items() if k not in drop} == {
        k: v for k, v in two.manifest.items() if k not in drop
    }


class _Counted:
    def __init__(self) -> None:
        self.total = self.seen = 0

    def start(self, total_bytes: int) -> None:
        self.total = total_bytes

    def advance(self, count: int) -> None:
        self.seen += count


def test_worker_processes_write_the_same_run(tmp_path: Path) -> None:
    counted = _Counted()
    run = ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run", progress=counted, options=IngestOptions(jobs=2))
    _same(run, run_of(SAMPLES / "h100-1f1b"))
    assert counted.seen == counted.total > 0
    assert not multiprocessing.active_children()


def test_a_failing_source_costs_the_other_workers_nothing(tmp_path: Path) -> None:
    (tmp_path / "rank9.json").write_text('{"schemaVersion": 1, "traceEvents": [', encoding="utf-8")
    (tmp_path / "some.json").write_bytes((FOUR_RANKS / "rank0.json.gz").read_bytes())
    paths = [tmp_path / "some.json", tmp_path / "rank9.json"]
    run = ingest(paths, tmp_path / "x.run", options=IngestOptions(jobs=2))
    assert run.rows("SELECT rank, status FROM sources ORDER BY rank") == [(0, "read"), (9, "failed")]


def test_workers_are_limited_by_memory_cores_and_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def run_here(work: object, tasks: object, progress: object, jobs: int) -> list[BatchOutcome]:
        seen.append(jobs)
        return [room.read_sources(batch, lambda _count: None) for batch in tasks]  # type: ignore[attr-defined]

    monkeypatch.setattr(room, "in_processes", run_here)
    monkeypatch.setattr(room, "_WORTH_BYTES", 1)
    for cores, memory, expected in ((8, 64 << 30, 4), (3, 64 << 30, 3), (8, 2 * room.WORKER_BYTES, 2)):
        monkeypatch.setattr(room, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(room, "available_memory_bytes", lambda memory=memory: memory)
        ingest([FOUR_RANKS], tmp_path / "x.run", force=True)
        assert seen.pop() == expected
    monkeypatch.setattr(room, "available_memory_bytes", lambda: 1)
    ingest([FOUR_RANKS], tmp_path / "x.run", force=True)
    assert not seen, "with little memory the sources are read one after the other"


def test_workers_take_small_sources_together_and_large_ones_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [5, 5, 5, 300, 5, 60, 60]
    for number, size in enumerate(sizes):
        (tmp_path / f"{number}.json").write_bytes(b" " * size)
    items = [DiscoveredSource(Source("", f, (f,)), "", None, Identity(None), "") for f in sorted(tmp_path.iterdir())]
    tasks = [room.Task(number, item, tmp_path, frozenset()) for number, item in enumerate(items)]
    taken: list[list[list[int]]] = []

    def run_here(work: object, tasks: object, progress: object, jobs: int) -> list[BatchOutcome]:
        taken.append([[task.number for task in batch.tasks] for batch in tasks])  # type: ignore[attr-defined]
        return []

    monkeypatch.setattr(room, "in_processes", run_here)
    for most_bytes in (55, 1 << 30):
        monkeypatch.setattr(room, "_BATCH_BYTES", most_bytes)
        room.run_tasks(tasks, RunWriter(tmp_path / "x.run"), Silent(), jobs=2, executor=None)
    # Of 440 bytes, each of two workers has four turns of 55.
    assert taken == [[[0, 1, 2], [3], [4], [5], [6]]] * 2
    monkeypatch.setattr(room, "_BATCH_BYTES", 100)
    monkeypatch.setattr(room, "_TURNS", 1)
    room.run_tasks(tasks, RunWriter(tmp_path / "x.run"), Silent(), jobs=2, executor=None)
    assert taken[2] == [[0, 1, 2], [3], [4, 5], [6]]


@pytest.mark.parametrize(
    ("jobs", "worth_bytes", "is_expected"),
    [(1, 1, False), (2, 1 << 60, True), (None, 1 << 60, False), (None, 100, True)],
)
def test_workers_load_while_ranks_are_discovered(
    jobs: int | None, worth_bytes: int, is_expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there will be some: 120 bytes of gzip are 1,440 of text. What is not there is for discovery to say."""
    (tmp_path / "rank0.json.gz").write_bytes(bytes(120))
    prepared: list[str] = []
    monkeypatch.setattr(room, "prepare_workers", prepared.append)
    monkeypatch.setattr(room, "_WORTH_BYTES", worth_bytes)
    monkeypatch.setattr(room, "usable_cores", lambda: 2)
    room.expect_tasks([tmp_path, tmp_path / "absent"], jobs=jobs)
    assert prepared == (["tracetool.ingestion.reading"] if is_expected else [])


def test_available_memory_is_what_the_system_says() -> None:
    assert 0 < available_memory_bytes() < 1 << 50


@pytest.mark.parametrize(
    ("address", "says"),
    [("ray://somewhere:1", "no executor"), ("dask://127.0.0.1:1", "no Dask scheduler answers")],
)
def test_an_executor_that_is_not_there_is_named(
    address: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "_CONNECT_SECONDS", 0.2)
    target = tmp_path / "x.run"
    assert command(["ingest", str(FOUR_RANKS), "-o", str(target), "--executor", address]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def _pieces(mark: Path, *, is_always: bool) -> list[Deadly]:
    return [Deadly(f"rank {n}: read", mark if n == 2 else None, is_always and n == 2) for n in range(4)]


def test_work_of_a_worker_that_is_killed_is_done_by_another(tmp_path: Path) -> None:
    pieces = _pieces(tmp_path / "mark", is_always=False)
    assert executors.in_processes(work_on, pieces, Silent(), 2) == [piece.name for piece in pieces]
    assert (tmp_path / "mark").exists()
    assert not multiprocessing.active_children()


def test_work_that_has_every_worker_killed_is_named(tmp_path: Path) -> None:
    pieces = _pieces(tmp_path / "mark", is_always=True)
    with pytest.raises(IngestError, match="ended from outside, and its successor at 'rank 2: read'") as caught:
        executors.in_processes(work_on, pieces, Silent(), 2)
    assert caught.value.hint
    assert not multiprocessing.active_children()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Workers that have a cache of their own as those of another machine: two, for one that is killed."""
    distributed = pytest.importorskip("distributed")
    cache = str(tmp_path_factory.mktemp("cache-of-workers"))
    with distributed.LocalCluster(
        n_workers=2 if is_asked() else 1, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0",
        host="127.0.0.1", protocol="tcp", env={"TRACETOOL_CACHE": cache},
    ) as made:  # fmt: skip
        yield made


def _address(cluster: Any) -> str:
    return str(cluster.scheduler_address).replace("tcp://", "dask://")


_of_dask = pytest.mark.filterwarnings("default")  # what Dask warns of is not ours to mend


@_of_dask
def test_a_dask_cluster_writes_the_same_run_and_shows_whose_trace_is_read(cluster: Any, tmp_path: Path) -> None:
    options = IngestOptions(executor=_address(cluster))
    run = ingest([FOUR_RANKS], tmp_path / "x.run", options=options)
    _same(run, run_of(FOUR_RANKS))
    assert "rank 0 to rank 3: read" in cluster.scheduler.task_prefixes
    damaged = tmp_path / "rank0.json"
    damaged.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": {"schemaVersion": 1', encoding="utf-8")
    with pytest.raises(IngestError, match="second trace"):
        ingest([damaged], tmp_path / "y.run", options=options)


@_of_dask
def test_a_dask_cluster_reads_and_writes_an_object_store(cluster: Any, tmp_path: Path) -> None:
    """``local://`` is a store to fsspec, and one that all processes of this machine reach."""
    pytest.importorskip("upath")
    store = f"local://{tmp_path}"
    shutil.copytree(FOUR_RANKS, tmp_path / "traces", ignore=shutil.ignore_patterns("*.md"))
    run = ingest([f"{store}/traces"], f"{store}/x.run", options=IngestOptions(executor=_address(cluster)))
    here = run_of(FOUR_RANKS)
    for table in EVERY:
        if table not in ("sources", "problems"):
            assert run.table(table).equals(here.table(table)), table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["traces", "x.run"]
    assert not list((tmp_path / "x.run").glob(".*"))


@_of_dask
def test_workers_that_reach_another_folder_are_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their parts would be missing: what they wrote is looked for here."""
    options = IngestOptions(executor=_address(cluster))

    def elsewhere(folder: Path) -> Path:
        return tmp_path / "nowhere" / folder.name

    monkeypatch.setattr(room, "replace", lambda task, **to: replace(task, **to | {"folder": elsewhere(to["folder"])}))
    with pytest.raises(IngestError, match="do not write to this machine's") as caught:
        ingest([FOUR_RANKS], tmp_path / "x.run", options=options)
    assert "object store" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


# Workers of this machine are killed by default (above).
@pytest.mark.thorough
@_of_dask
def test_a_worker_of_a_cluster_that_is_killed_costs_nothing(cluster: Any, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        until = time.monotonic() + 60
        while not list(tmp_path.glob(".x.run.*/events/*")) and time.monotonic() < until:
            time.sleep(0.005)
        killed.append(next(iter(cluster.workers.values())).process.pid)
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    run = ingest([FOUR_RANKS], tmp_path / "x.run", options=IngestOptions(executor=_address(cluster)))
    killer.join()
    assert killed
    _same(run, run_of(FOUR_RANKS))


# Work that ends every process of this machine is named by default, and one killed worker of a cluster costs nothing
# (above).
@pytest.mark.thorough
@_of_dask
def test_work_that_ends_every_worker_of_a_cluster_is_named(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)
    piece = Deadly("rank 2: read", tmp_path / "mark", is_always=True)
    with pytest.raises(IngestError, match=r"of dask://.* ended one after another, with 'rank 2: read' to do") as caught:
        executors.on_cluster(work_on, [piece], [1], Silent(), _address(cluster))
    assert caught.value.hint


@_of_dask
def test_a_cluster_with_other_code_is_refused(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "code_digest", lambda: "of another version")
    with pytest.raises(IngestError, match="has other code of tracetool"):
        executors.on_cluster(work_on, [Deadly("rank 0: read")], [1], Silent(), _address(cluster))


@_of_dask
def test_a_cluster_without_workers_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(executors, "_PATIENCE_SECONDS", 0.2)
    with (
        distributed.LocalCluster(
            n_workers=0, dashboard_address="127.0.0.1:0", host="127.0.0.1", protocol="tcp"
        ) as empty,
        pytest.raises(IngestError, match="has no workers, 1 of 1 pieces of work are left"),
    ):
        executors.on_cluster(work_on, [Deadly("rank 0: read")], [1], Silent(), _address(empty))


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Traces of three pipelines of which two are unlike the first, each in its way; and their Run, by this process."""
    folder = tmp_path_factory.mktemp("unlike")
    write_job(folder / "traces", MadeJob(pp=2, dp=3, microbatches=2, steps=1, slow={1: 1.25, 5: 1.5}, seed=3))
    return folder / "traces", tt.ingest(folder / "traces", folder / "x.run", options=IngestOptions(jobs=1))


# Kinds of pipelines are told apart and joined by default (whatif/test_all_pipelines), and what is kept is what would be
# found again (store/test_kept).
@pytest.mark.thorough
def test_one_of_each_kind_of_pipelines_is_kept_as_it_would_be_reconstructed(
    unlike: tuple[Path, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = unlike
    first = tt.reconstruct(run)
    job = record_job(run, first)
    kinds = [kind.first for kind in job.sorted.alike]
    assert len(kinds) == 3
    step = first.pipeline.step
    assert list(job.firsts[1:]) == [tt.reconstruct(run, step=step, pipeline=number) for number in kinds[1:]]

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("it is kept")

    monkeypatch.setattr("tracetool.reconstruction.job.reconstruct", asked)
    assert record_job(run, first) == job
    (run.folder / f"{kept_kind(kinds[1])}.kept").unlink()
    with pytest.raises(AssertionError, match="it is kept"):
        record_job(run, first)
    monkeypatch.undo()
    assert record_job(run, first) == job


# Workers write the same Run, and this process keeps each kind, by default (above).
@pytest.mark.thorough
def test_worker_processes_keep_the_same_kinds(unlike: tuple[Path, Run], tmp_path: Path) -> None:
    traces, run = unlike
    _same_kinds(tt.ingest(traces, tmp_path / "x.run", options=IngestOptions(jobs=2)), run)


# A cluster writes the same Run, and this process keeps each kind, by default (above).
@pytest.mark.thorough
@_of_dask
def test_a_dask_cluster_keeps_the_same_kinds_and_shows_which(
    cluster: Any, unlike: tuple[Path, Run], tmp_path: Path
) -> None:
    traces, run = unlike
    options = IngestOptions(executor=_address(cluster))
    kinds = _same_kinds(tt.ingest(traces, tmp_path / "x.run", options=options), run)
    assert {f"pipeline {number}: derive" for number in kinds} <= set(cluster.scheduler.task_prefixes)


def _same_kinds(one: Run, two: Run) -> list[int]:
    kinds = [kind.first for kind in sort_pipelines(two).alike][1:]
    expected = [tt.reconstruct(two, step=tt.reconstruct(two).pipeline.step, pipeline=number) for number in kinds]
    assert [one.kept(kept_kind(number)) for number in kinds] == expected
    return kinds
