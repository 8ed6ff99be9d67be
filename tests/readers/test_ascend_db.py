"""Databases of Ascend profilers: real ones against SQL and against their text twins, and a synthetic pair."""

from __future__ import annotations

import csv
import sqlite3
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from helpers.ascend_capture import COMMUNICATION_STREAM, ORDERS, OUTPUT, hash_of, of_text
from helpers.recorded import SAMPLES, data
from helpers.thorough import spread

from tracetool.ingestion import ingest
from tracetool.readers import Identity, SourceReport
from tracetool.readers.ascend import READER

if TYPE_CHECKING:
    from pathlib import Path

DDP = "ascend/Ascend+msinsight/test/data/pytorch"
SAMPLE = SAMPLES / "ascend-1f1b"


@dataclass
class Read:
    """What was read of one source."""

    identity: Identity
    tables: dict[str, list[dict[str, Any]]]
    report: SourceReport

    def events(self, category: str) -> list[dict[str, Any]]:
        return [row for row in self.tables.get("events", []) if row["category"] == category]


def read(*paths: Path, keep: frozenset[str] = frozenset()) -> Read:
    files = [f for path in paths for f in (sorted(path.rglob("*")) if path.is_dir() else [path]) if f.is_file()]
    (source,) = READER.find(files).sources
    identity = READER.identify(source)
    assert identity.rank is not None
    report = SourceReport()
    advanced: list[int] = []
    batches: dict[str, list[pa.Table]] = {}
    for name, rows in READER.read(source, identity.rank, identity, keep, report, advanced.append):
        batches.setdefault(name, []).append(rows)
    assert sum(advanced) == source.size_bytes
    tables = {name: pa.concat_tables(parts).to_pylist() for name, parts in batches.items()}
    assert [e["event"] for e in tables.get("events", [])] == list(range(len(tables.get("events", []))))
    return Read(identity, tables, report)


def ddp(kind: str, rank: int) -> Path:
    return data(DDP, kind, "level1", f"rank{rank}_ascend_pt")


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# --- Real databases: DDP of 8 ranks, Level1, two ranks recorded


@pytest.mark.parametrize("rank", [0, 1])
def test_real_kernels_are_those_of_an_independent_join(rank: int) -> None:
    database = ddp("db", rank) / OUTPUT / f"ascend_pytorch_profiler_{rank}.db"
    expected = query(
        database,
        "SELECT n.value, t.startNs, t.endNs - t.startNs, t.streamId, t.connectionId, k.value "
        "FROM TASK t JOIN COMPUTE_TASK_INFO c USING (globalTaskId) "
        "JOIN STRING_IDS n ON n.id = c.name JOIN STRING_IDS k ON k.id = c.opType ORDER BY t.rowid",
    )
    found = read(ddp("db", rank))
    columns = ("name", "start_ns", "duration_ns", "stream", "correlation", "kernel_class")
    assert [tuple(k[c] for c in columns) for k in found.events("kernel")] == expected
    assert len(expected) == 187
    launches = {e["correlation"]: e["name"] for e in found.events("launch")}
    assert {launches[k["correlation"]] for k in found.events("kernel")} == {"launch"}
    assert found.report.dropped.total() == found.report.repaired.total() == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_real_host_side(rank: int) -> None:
    database = ddp("db", rank) / OUTPUT / f"ascend_pytorch_profiler_{rank}.db"
    found = read(ddp("db", rank), keep=frozenset({"python_function"}))
    for category, kinds in (("python", "50003"), ("op", "50001")):
        # Times of PYTORCH_API are TEXT in these databases; the text itself is the expectation.
        expected = query(
            database,
            "SELECT value, startNs, endNs, globalTid & 4294967295 FROM PYTORCH_API p JOIN STRING_IDS s "
            f"ON s.id = p.name WHERE p.type = {kinds} AND value NOT LIKE 'ProfilerStep#%' "
            "AND value NOT LIKE 'Optimizer.%' ORDER BY p.rowid",
        )
        rows = [
            (e["name"], str(e["start_ns"]), str(e["start_ns"] + e["duration_ns"]), e["thread"])
            for e in found.events(category)
        ]
        assert rows == expected
    assert any(e["name"] == "ProfilerStep#50" for e in found.events("annotation"))
    numbered = query(database, "SELECT count(*) FROM PYTORCH_API WHERE sequenceNumber >= 0")
    assert sum(e["sequence_number"] is not None for e in found.tables["events"]) == numbered[0][0] > 0
    assert len(found.events("launch")) == query(database, "SELECT count(*) FROM CANN_API")[0][0]
    assert len(found.events("memcpy")) == 24, "MEMCPY_ASYNC tasks; no MEMCPY_INFO in this release"


@pytest.mark.parametrize("rank", [0, 1])
def test_real_step_lasts_as_long_as_the_vendor_says(rank: int) -> None:
    folder = ddp("db", rank)
    ((stage, computing),) = query(folder / OUTPUT / "analysis.db", "SELECT stage, computing FROM StepTraceTime")
    (step,) = read(folder).tables["steps"]
    # Stage = latest end - earliest start on the device, as its Bubble is 0 (_trace_step_time_parser.py of torch_npu).
    assert step["end_ns"] - step["start_ns"] == Decimal(str(stage)) * 1000
    assert step["vendor_computing_ns"] == Decimal(str(computing)) * 1000
    assert (step["step"], step["vendor_bubble_ns"]) == (50, 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_real_links_agree_with_the_vendors_matrix(rank: int) -> None:
    folder = ddp("db", rank)
    found = read(folder)
    # Bytes over HCCS of each operation: all tasks here, the vendor's own sum there.
    expected = query(
        folder / OUTPUT / "analysis.db",
        "SELECT DISTINCT hccl_op_name, group_name, transit_size FROM CommAnalyzerBandwidth "
        "WHERE transport_type = 'HCCS' ORDER BY hccl_op_name",
    )
    rows = found.tables["comms"]
    assert [(r["group"], r["payload_bytes"]) for r in rows] == [
        (group, int((Decimal(str(size)) * 10**6).to_integral_value())) for _, group, size in expected
    ]
    assert {r["operation"] for r in rows} == {"allreduce"}
    (communicator,) = query(
        folder / OUTPUT / f"ascend_pytorch_profiler_{rank}.db",
        "SELECT DISTINCT value FROM COMMUNICATION_OP JOIN STRING_IDS ON id = groupName",
    )[0]
    assert {r["group"] for r in rows} == {hash_of(communicator)}


@spread("rank", [0, 1], 1)
def test_text_and_database_of_the_same_program_agree(rank: int) -> None:
    """Two runs of one program, 28 minutes apart: what it does agrees, when it does so does not.

    Found different, and left so: times (another run), the communicator's hash (its name holds the start time),
    the device (the text of January 2025 has no column for it), streams of communication (text: N/A).
    """
    text, database = read(ddp("text", rank)), read(ddp("db", rank))
    for column in ("name", "kernel_class", "stream"):
        one, two = (Counter(k[column] for k in found.events("kernel")) for found in (text, database))
        assert one == two
    for column in ("operation", "payload_bytes", "evidence", "peer"):
        assert [c[column] for c in text.tables["comms"]] == [c[column] for c in database.tables["comms"]]
    counts = [Counter(m["component"] for m in found.tables["memory"]) for found in (text, database)]
    for component, count in {"PTA+GE": 495, "PTA": 381, "GE": 114}.items():
        assert [c[component] for c in counts] == [count, count]
        changes = [
            Counter(m["delta_bytes"] for m in f.tables["memory"] if m["component"] == component)
            for f in (text, database)
        ]
        assert changes[0] == changes[1]
    libraries = [
        {m["component"]: m["reserved_bytes"] for m in f.tables["memory"] if m["component"].startswith("module ")}
        for f in (text, database)
    ]
    assert set(libraries[0]) == {"module APP", "module HCCL", "module RUNTIME", "module GE"}
    assert {k: v for k, v in libraries[0].items() if "RUN" not in k} == {
        k: v for k, v in libraries[1].items() if "RUN" not in k
    }
    assert all(13 <= c["APP"] <= 14 for c in counts), "sampled every 20 ms, whatever the program does"
    assert text.tables["steps"][0]["step"] == database.tables["steps"][0]["step"] == 50


@pytest.mark.parametrize("rank", [0, 1])
def test_real_memory_and_identity(rank: int) -> None:
    database = ddp("db", rank) / OUTPUT / f"ascend_pytorch_profiler_{rank}.db"
    found = read(ddp("db", rank))
    rows = [m for m in found.tables["memory"] if m["component"] in ("PTA", "PTA+GE", "GE")]
    expected = query(database, "SELECT timestamp, totalAllocated, totalReserved FROM MEMORY_RECORD ORDER BY rowid")
    assert [(m["time_ns"], m["allocated_bytes"], m["reserved_bytes"]) for m in rows] == expected
    app = query(database, "SELECT ddr + hbm FROM NPU_MEM JOIN STRING_IDS ON id = type WHERE value = 'app'")
    assert [m["reserved_bytes"] for m in found.tables["memory"] if m["component"] == "APP"] == [r[0] for r in app]
    who = found.identity
    assert (who.rank, who.device, who.host, who.device_name) == (rank, rank, "ubuntu", "Ascend910B")


def test_one_file_named_alone_is_read(tmp_path: Path) -> None:
    database = ddp("db", 1) / OUTPUT / "ascend_pytorch_profiler_1.db"
    alone, folder = read(database), read(ddp("db", 1))
    assert alone.tables["events"] == folder.tables["events"]
    assert alone.tables["comms"] == folder.tables["comms"]
    assert alone.tables["steps"][0]["vendor_computing_ns"] is None
    assert alone.identity.rank == 1
    run = ingest([database, ddp("db", 0)], tmp_path / "x.run")
    assert run.rows("SELECT rank, device, host FROM ranks ORDER BY rank") == [(0, 0, "ubuntu"), (1, 1, "ubuntu")]


# --- The committed sample as databases: everything the text says, and what it cannot say


@pytest.mark.parametrize("rank", range(4))
def test_sample_as_database_is_the_sample_as_text(rank: int, tmp_path: Path) -> None:
    folder = SAMPLE / f"rank_{rank}_ascend_pt"
    text = read(folder)
    found = read(of_text(folder, rank, ORDERS[rank]).write(tmp_path / "any name.db"))
    assert found.report.dropped.total() == found.report.repaired.total() == 0
    assert (found.identity.rank, found.identity.world_size, found.identity.groups) == (
        rank, 4, text.identity.groups,
    )  # fmt: skip

    def without(rows: list[dict[str, Any]], *columns: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in columns} for row in rows]

    assert without(found.events("kernel"), "correlation") == without(text.events("kernel"), "correlation")
    assert without(found.tables["comms"], "evidence", "stream") == without(text.tables["comms"], "evidence", "stream")
    assert {c["stream"] for c in found.tables["comms"]} == {COMMUNICATION_STREAM}
    # Notices name the receiver, which the matrix does not: nothing is left to infer.
    assert {c["evidence"] for c in found.tables["comms"] if c["peer"] is not None} == {"matrix"}
    assert without(found.tables["steps"], "vendor_bubble_ns", "vendor_computing_ns") == without(
        text.tables["steps"], "vendor_bubble_ns", "vendor_computing_ns"
    )

    def in_order(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        return sorted(tuple((v is not None, v) for v in row.values()) for row in rows)

    assert in_order(found.tables["memory"]) == in_order(text.tables["memory"])


def test_sample_as_databases_has_the_same_pipeline(tmp_path: Path) -> None:
    for rank in range(4):
        folder = SAMPLE / f"rank_{rank}_ascend_pt"
        of_text(folder, rank, ORDERS[rank]).write(tmp_path / "db" / f"ascend_pytorch_profiler_{rank}.db")
    names = "comms.operation, comms.peer, comms.payload_bytes, comms.start_ns"
    sql = f"SELECT rank, position, {names} FROM comms ORDER BY rank, position"
    text, databases = ingest([SAMPLE], tmp_path / "t.run"), ingest([tmp_path / "db"], tmp_path / "d.run")
    assert databases.rows(sql) == text.rows(sql)


def test_numbers_of_a_csv_reader_and_of_the_reader(tmp_path: Path) -> None:
    folder = SAMPLE / "rank_1_ascend_pt"
    with (folder / OUTPUT / "kernel_details.csv").open(newline="", encoding="utf-8") as stream:
        names = [r["Name"] for r in csv.DictReader(stream) if not r["Name"].startswith("hcom_")]
    found = read(of_text(folder, 1, ORDERS[1]).write(tmp_path / "x.db"))
    assert [k["name"] for k in found.events("kernel")] == names
