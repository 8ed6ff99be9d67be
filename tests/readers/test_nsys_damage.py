"""Damaged exports of Nsight Systems: what is whole is read, the rest is said, and nothing else goes wrong."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.nsys_export import How, Tables, export
from helpers.recorded import ROOT
from helpers.thorough import spread

from tracetool.errors import IngestError, TraceToolError
from tracetool.ingestion import discover, ingest

if TYPE_CHECKING:
    from pathlib import Path

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
TABLES = (
    "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY", "NVTX_EVENTS",
    "NVTX_PAYLOAD_SCHEMA_ENTRIES", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_GPU",
    "META_DATA_CAPTURE", "META_DATA_EXPORT", "StringIds",
)  # fmt: skip


@pytest.fixture(scope="module")
def rank0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small export of one rank: its first milliseconds."""
    folder = tmp_path_factory.mktemp("nsys")
    whole = export(ROOT / "tests" / "data" / "megatron-m4", folder / "whole", How())[0]
    with sqlite3.connect(whole) as connection:
        for table in TABLES[:4]:
            connection.execute(f"DELETE FROM {table} WHERE rowid > 800")
    connection.close()
    with sqlite3.connect(whole, isolation_level=None) as connection:
        connection.execute("VACUUM")
    connection.close()
    return whole


# Each table and column is read by code of its own: that of one could need it without any test of the others showing it.
@spread("table", TABLES, ["CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"])
def test_any_table_may_be_missing(table: str, rank0: Path, tmp_path: Path) -> None:
    file = shutil.copy(rank0, tmp_path / "rank0.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute(f'DROP TABLE "{table}"')
    connection.close()
    run = ingest([file], tmp_path / "x.run")
    ((kernels, launches, ops),) = run.rows(
        "SELECT count(*) FILTER (category = 'kernel'), count(*) FILTER (category = 'launch'), "
        "count(*) FILTER (category = 'op') FROM events"
    )
    assert (kernels > 0) == (table != "CUPTI_ACTIVITY_KIND_KERNEL")
    assert (ops > 0) == (table != "NVTX_EVENTS")
    assert (launches > 0) == (table != "CUPTI_ACTIVITY_KIND_RUNTIME")


@spread(
    ("table", "column"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "start"), ("CUPTI_ACTIVITY_KIND_KERNEL", "correlationId"),
        ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid"),
        ("NVTX_EVENTS", "text"), ("NVTX_EVENTS", "domainId"), ("NVTX_EVENTS", "end"), ("StringIds", "value"),
    ],
)  # fmt: skip
def test_any_column_may_be_called_otherwise(table: str, column: str, rank0: Path, tmp_path: Path) -> None:
    file = shutil.copy(rank0, tmp_path / "rank0.sqlite")
    with sqlite3.connect(file) as connection:
        connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')
    connection.close()
    run = ingest([file], tmp_path / "x.run")
    ((events,),) = run.rows("SELECT count(*) FROM events")
    (source,) = run.manifest["sources"]
    assert events > 0
    if column in ("start", "end"):
        assert source["dropped"][f"row of {table} without usable times"] >= 790


# Every third is cut, the others are overwritten.
@spread("seed", range(12), [0, 1, 2, 4])
def test_broken_bytes_cost_rows_and_nothing_else(seed: int, rank0: Path, tmp_path: Path) -> None:
    choice = random.Random(seed)  # noqa: S311 - damage
    text = bytearray(rank0.read_bytes())
    if seed % 3 == 0:
        del text[choice.randrange(4096, len(text)) :]
    else:
        for _ in range(choice.choice((1, 30, 300))):
            at = choice.randrange(100, len(text))
            text[at : at + choice.randrange(1, 64)] = choice.randbytes(8)
    file = tmp_path / "rank0.sqlite"
    file.write_bytes(text)
    try:
        run = ingest([file], tmp_path / "x.run")
    except TraceToolError as error:
        assert str(file) in error.message  # noqa: PT017 - either is right
        return
    assert run.rows("SELECT count(*) FROM events WHERE duration_ns < 0") == [(0,)]
    assert json.dumps(run.manifest)


def test_changes_in_a_write_ahead_log_are_read(rank0: Path, tmp_path: Path) -> None:
    """A database in WAL mode whose last rows are in the log only, as a killed export leaves it."""
    own = tmp_path / "open.sqlite"
    shutil.copy(rank0, own)
    connection = sqlite3.connect(own, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    connection.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL SELECT * FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid <= 100"
    )
    for suffix in ("", "-wal"):
        shutil.copy(f"{own}{suffix}", tmp_path / f"rank0.sqlite{suffix}")
    connection.close()
    own.unlink()
    counts = []
    for name in ("with", "without"):
        run = ingest([tmp_path / "rank0.sqlite"], tmp_path / f"{name}.run")
        counts.append(run.rows("SELECT count(*) FROM events WHERE category = 'kernel'")[0][0])
        (tmp_path / "rank0.sqlite-wal").unlink(missing_ok=True)
    assert counts == [900, 800]
    assert sorted(path.name for path in tmp_path.glob("rank0*")) == ["rank0.sqlite"]


def _kernel(tables: Tables, **cells: object) -> None:
    tables.add(KERNELS, **{"start": 5, "end": 9, "deviceId": 0, "streamId": 7, "correlationId": 1,
                           "globalPid": 7 << 24, **cells})  # fmt: skip


@pytest.mark.parametrize(
    "cells",
    [
        {"gridX": 2**31 - 1, "gridY": 2**31 - 1, "gridZ": 2**31 - 1}, {"streamId": "9" * 30}, {"deviceId": 2**40},
        {"correlationId": -(2**63)}, {"demangledName": 2**63 - 1}, {"streamId": 1.5},
    ],
)  # fmt: skip
def test_figures_that_nothing_has_are_unknown(cells: dict[str, object], tmp_path: Path) -> None:
    """The kernel itself is whole."""
    tables = Tables()
    _kernel(tables, **cells)
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.rows("SELECT start_ns, duration_ns, blocks FROM events") == [(5, 4, None)]


def test_memory_at_a_time_that_nothing_has_is_dropped(tmp_path: Path) -> None:
    tables = Tables()
    _kernel(tables)
    tables.add("CUDA_GPU_MEMORY_USAGE_EVENTS", start=2**63 - 1, globalPid=7 << 24, bytes=1, memoryOperationType=0)
    tables.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_779_787_126_655_288_414)
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.manifest["sources"][0]["dropped"] == {"memory usage without time, size or kind": 1}


def test_names_of_kernels_may_be_any_bytes(tmp_path: Path) -> None:
    """As JSON lines and as Arrow, whose texts ought to be UTF-8."""
    lines = tmp_path / "rank0.jsonl"
    lines.write_bytes(
        b'{"table": "StringIds", "id": 1, "value": "gemm_\xff"}\n'
        b'{"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": 5, "end": 9, "globalPid": 117440512, "demangledName": 1}\n'
    )
    folder = tmp_path / "rank0"
    folder.mkdir()
    name = pa.StringArray.from_buffers(1, pa.py_buffer(struct.pack("<2i", 0, 6)), pa.py_buffer(b"gemm_\xff"))
    tables = {
        "StringIds": pa.table({"id": [1], "value": name}),
        KERNELS: pa.table({"start": [5], "end": [9], "globalPid": [7 << 24], "demangledName": [1]}),
    }
    for table, rows in tables.items():
        with pa.ipc.new_stream(folder / f"{table}.arrow", rows.schema) as writer:
            writer.write_table(rows)
    for number, path in enumerate((lines, folder)):
        run = ingest([path], tmp_path / f"{number}.run")
        assert run.rows("SELECT name FROM events") == [("gemm_\ufffd",)]


@pytest.mark.parametrize("number", [10**30, 2**63, -(10**20)])
def test_correlations_beyond_any_number_are_none(number: int, tmp_path: Path) -> None:
    """JSON has no limit."""
    common = f'"start": 5, "end": 9, "globalPid": 117440512, "globalTid": 117440513, "correlationId": {number}'
    tables = (KERNELS, "CUPTI_ACTIVITY_KIND_RUNTIME")
    lines = "\n".join(f'{{"table": "{table}", {common}}}' for table in tables)
    (tmp_path / "rank0.jsonl").write_text(lines, encoding="utf-8")
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT category, correlation FROM events") == [("kernel", None)]


def test_offsets_of_texts_that_lead_nowhere_cost_the_table(tmp_path: Path) -> None:
    """What Arrow itself would read from anywhere in memory."""
    name = pa.StringArray.from_buffers(2, pa.py_buffer(struct.pack("<3i", 0, 900, 4)), pa.py_buffer(b"gemm"))
    rows = {
        "StringIds": pa.table({"id": [1, 2], "value": name}),
        KERNELS: pa.table({"start": [5], "end": [9], "globalPid": [7 << 24], "demangledName": [1]}),
    }
    for table, made in rows.items():
        with pa.ipc.new_stream(tmp_path / f"{table}.arrow", made.schema) as writer:
            writer.write_table(made)
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT name, duration_ns FROM events") == [("name lost", 4)]
    assert run.manifest["sources"][0]["dropped"] == {"rest of StringIds that cannot be read": 1}


@pytest.mark.parametrize("content", [b"", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"no stream at all"])
def test_a_file_without_streams_is_no_export(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "report.arrows").write_bytes(content)
    with pytest.raises(IngestError, match="no trace found"):
        discover([tmp_path])


def test_no_kernel_has_two_launches(tmp_path: Path) -> None:
    """A number of a process that was given again, or a row twice: each kernel is counted once all the same."""
    tables = Tables()
    process = 7 << 24
    for at in (1, 3):
        tables.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=at, end=at + 1, globalTid=process | 7, correlationId=1)
    _kernel(tables)
    run = ingest([tables.write(tmp_path / "rank0.sqlite")], tmp_path / "x.run")
    assert run.rows("SELECT category, start_ns FROM events ORDER BY 2") == [("launch", 1), ("kernel", 5)]
    assert run.manifest["sources"][0]["dropped"] == {"launch whose correlation an earlier one has": 1}


def test_numbers_of_processes_may_be_text_in_some_rows(tmp_path: Path) -> None:
    """Scripts of users add rows; a column without a type keeps what it is given."""
    tables = Tables()
    _kernel(tables)
    _kernel(tables, globalPid=str(7 << 24), start=6, correlationId=2)
    columns = "start, end, deviceId, streamId, correlationId, globalPid"
    run = ingest([tables.write(tmp_path / "rank0.sqlite", {KERNELS: columns})], tmp_path / "x.run")
    assert run.rows("SELECT start_ns FROM events ORDER BY 1") == [(5,), (6,)]


def test_cells_may_hold_lists(tmp_path: Path) -> None:
    """Of a table as JSON lines and of one as Arrow: such a cell is as good as empty."""
    (tmp_path / "rank0.jsonl").write_text(
        f'{{"table": "{KERNELS}", "start": 5, "end": 9, "globalPid": {7 << 24}, "deviceId": [1], "streamId": {{}}}}',
        encoding="utf-8",
    )
    folder = tmp_path / "rank1"
    folder.mkdir()
    rows = pa.table({"start": [5], "end": [9], "globalPid": [7 << 24], "deviceId": [[1]], "streamId": [[7]]})
    with pa.ipc.new_stream(folder / f"{KERNELS}.arrow", rows.schema) as writer:
        writer.write_table(rows)
    run = ingest([tmp_path / "rank0.jsonl", folder], tmp_path / "x.run")
    assert run.rows("SELECT rank, start_ns, stream FROM events ORDER BY 1") == [(0, 5, None), (1, 5, None)]
