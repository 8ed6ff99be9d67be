"""The same Run from one process, several, and a Dask cluster."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, run_of

from tracetool.cli import run as command
from tracetool.errors import IngestError
from tracetool.ingestion import IngestOptions, executors, ingest
from tracetool.ingestion import reading as room
from tracetool.ingestion.executors import available_memory_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.ingestion.reading import SourceOutcome
    from tracetool.store.run import Run

TABLES = ("sources", "ranks", "groups", "steps", "events", "comms", "memory", "problems")


def _same(one: Run, two: Run) -> None:
    for table in TABLES:
        assert one.query(f"SELECT * FROM {table}").equals(two.query(f"SELECT * FROM {table}")), table
    drop = ("reconstruction",)
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
    (tmp_path / "some.json").write_bytes((SAMPLES / "h100-1f1b" / "rank0.json.gz").read_bytes())
    paths = [tmp_path / "some.json", tmp_path / "rank9.json"]
    run = ingest(paths, tmp_path / "x.run", options=IngestOptions(jobs=2))
    assert run.rows("SELECT rank, status FROM sources ORDER BY rank") == [(0, "read"), (9, "failed")]


def test_workers_are_limited_by_memory_cores_and_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def run_here(work: object, tasks: object, progress: object, jobs: int) -> list[SourceOutcome]:
        seen.append(jobs)
        return [room.read_source(task, lambda _count: None) for task in tasks]  # type: ignore[attr-defined]

    monkeypatch.setattr(room, "in_processes", run_here)
    monkeypatch.setattr(room, "_WORTH_BYTES", 1)
    for cores, memory, expected in ((8, 64 << 30, 4), (3, 64 << 30, 3), (8, 2 * room.WORKER_BYTES, 2)):
        monkeypatch.setattr(room, "usable_cores", lambda cores=cores: cores)
        monkeypatch.setattr(room, "available_memory_bytes", lambda memory=memory: memory)
        ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run", force=True)
        assert seen.pop() == expected
    monkeypatch.setattr(room, "available_memory_bytes", lambda: 1)
    ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run", force=True)
    assert not seen, "with little memory the sources are read one after the other"


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
    monkeypatch.setattr(executors, "_CONNECT_SECONDS", 1)
    target = tmp_path / "x.run"
    assert command(["ingest", str(SAMPLES / "h100-1f1b"), "-o", str(target), "--executor", address]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# A cluster of its own is 9 s of CPU. It reads sources by the same function as worker processes do; that what it takes
# and gives can be sent it alone tells. By default it is tried that an address nobody answers is named.
@pytest.mark.thorough
@pytest.mark.filterwarnings("default")  # what Dask warns of is not ours to mend
def test_a_dask_cluster_writes_the_same_run(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as cluster:
        address = cluster.scheduler_address.replace("tcp://", "dask://")
        run = ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run", options=IngestOptions(executor=address))
        damaged = tmp_path / "rank0.json"
        damaged.write_text('{"schemaVersion": 1, "traceEvents": [{"ph": {"schemaVersion": 1', encoding="utf-8")
        with pytest.raises(IngestError, match="second trace"):
            ingest([damaged], tmp_path / "y.run", options=IngestOptions(executor=address))
    _same(run, run_of(SAMPLES / "h100-1f1b"))
