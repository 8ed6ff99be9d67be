"""Forms of export of Nsight Systems, which of two captures is taken, and what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.nsys_export import NESTED, How, Tables, export
from helpers.recorded import ROOT
from helpers.thorough import spread

from tracetool.cli import run as command
from tracetool.errors import IngestError
from tracetool.ingestion import discover, ingest

if TYPE_CHECKING:
    from pathlib import Path


SMALL = ROOT / "tests" / "data" / "megatron-m4"
KERNELS, CALLS, NVTX = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"


@pytest.fixture(scope="module")
def small_export(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, pa.Table]]:
    """The first 2,000 rows of each table of one rank, as SQLite and as Arrow."""
    path = tmp_path_factory.mktemp("nsys") / "rank0.sqlite"
    tables: dict[str, pa.Table] = {}
    with sqlite3.connect(sorted(exported.iterdir())[0]) as connection:
        connection.execute("ATTACH ? AS small", [str(path)])
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            most = 2000 if name != "StringIds" else 10**6
            connection.execute(
                f'CREATE TABLE small."{name}" AS SELECT * FROM main."{name}" ORDER BY rowid LIMIT {most}'
            )
            cursor = connection.execute(f'SELECT * FROM small."{name}"')
            names = [column for column, *_ in cursor.description]
            rows = cursor.fetchall()
            # Unsigned where Arrow has it so.
            columns = [
                pa.array([row[n] for row in rows], pa.uint64() if names[n].startswith("global") else None)
                for n in range(len(names))
            ]
            tables[name] = pa.Table.from_arrays(columns, names=names)
        connection.commit()
    # Not in the columnar forms, as of 2023.4.
    tables.pop("META_DATA_CAPTURE")
    return path, tables


def _as_parquet(folder: Path, tables: dict[str, pa.Table]) -> Path:
    for name, table in tables.items():
        pq.write_table(table, folder / f"{name}.parquet")
    return folder


def _as_arrow(folder: Path, tables: dict[str, pa.Table]) -> Path:
    for name, table in tables.items():
        with pa.ipc.new_stream(folder / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table)
    return folder


def _as_streams(folder: Path, tables: dict[str, pa.Table]) -> Path:
    with (folder / "report.arrows").open("wb") as file:
        for name, table in tables.items():
            schema = table.schema.with_metadata({"table_name": name})
            with pa.ipc.new_stream(file, schema) as writer:
                writer.write_table(table.cast(schema))
    return folder


def _as_lines(folder: Path, tables: dict[str, pa.Table]) -> Path:
    with (folder / "report.jsonl").open("w", encoding="utf-8") as file:
        for name, table in tables.items():
            for row in table.to_pylist():
                shown = {key: value for key, value in row.items() if value is not None and key != "binaryData"}
                file.write(json.dumps({"table": name, **shown}) + "\n")
    return folder


# Streams are Arrow files of another frame.
@spread("write", [_as_parquet, _as_arrow, _as_streams, _as_lines], [_as_arrow, _as_lines])
def test_every_form_of_export_gives_the_same_events(
    write: Any, small_export: tuple[Path, dict[str, pa.Table]], tmp_path: Path
) -> None:
    path, tables = small_export
    folder = tmp_path / "report_dir"
    folder.mkdir()
    plain = ingest([path], tmp_path / "plain.run")
    other = ingest([write(folder, tables)], tmp_path / "other.run")
    for table in ("events", "steps", "memory"):
        assert other.table(table).equals(plain.table(table)), table
    if write is not _as_lines:
        assert other.table("comms").equals(plain.table("comms"))


@spread("write", [_as_parquet, _as_arrow], 1)
def test_payloads_are_whole_where_their_column_is_declared_as_text(
    write: Any, small_export: tuple[Path, dict[str, pa.Table]], tmp_path: Path
) -> None:
    """As it is in SQLite; their bytes are no UTF-8."""
    path, tables = small_export
    blobs = tables[NVTX]["binaryData"].combine_chunks()
    present, offsets, data_ = blobs.buffers()
    texts = pa.StringArray.from_buffers(len(blobs), offsets, data_, present)
    ranges = tables[NVTX].set_column(tables[NVTX].column_names.index("binaryData"), "binaryData", texts)
    plain = ingest([path], tmp_path / "plain.run")
    folder = tmp_path / "report_dir"
    folder.mkdir()
    other = ingest([write(folder, tables | {NVTX: ranges})], tmp_path / "other.run")
    for table in ("comms", "groups"):
        assert other.table(table).equals(plain.table(table)), table
    assert plain.rows("SELECT count(DISTINCT communicator) > 0, count(payload_bytes) > 0 FROM comms") == [(True, True)]


@pytest.mark.parametrize("suffix", [".nsys-rep", ".qdrep"])
def test_a_report_is_refused_with_the_command_that_exports_it(suffix: str, tmp_path: Path) -> None:
    report = tmp_path / f"my job{suffix}"
    report.write_bytes(b"\0" * 64)
    with pytest.raises(IngestError) as error:
        discover([report])
    assert f"nsys export -t sqlite --include-blobs=true --include-json=true '{report}'" in error.value.message
    Tables().write(tmp_path / "other.sqlite")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("report.h5", b"\x89HDF"),
        ("report.json", b'{"data": ["a", "ncclSend"]}\n{"Type": 59, "NvtxEvent": {"Timestamp": "12"}}\n'),
    ],
)
def test_forms_of_export_that_are_not_read_name_the_one_that_is(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(IngestError, match="a form of export of Nsight Systems that is not read") as error:
        discover([tmp_path / name])
    assert f"--include-json=true {tmp_path / 'report.nsys-rep'}" in error.value.message


def test_a_report_beside_its_export_is_left(small_export: tuple[Path, dict[str, pa.Table]], tmp_path: Path) -> None:
    shutil.copy(small_export[0], tmp_path / "rank0.sqlite")
    (tmp_path / "rank0.nsys-rep").write_bytes(b"\0" * 64)
    found = discover([tmp_path])
    assert [left.reason for left in found.left] == ["its export lies beside it"]
    assert (len(found.sources), found.failed) == (1, [])


@pytest.mark.parametrize(("write", "suffix"), [(_as_parquet, "_pqtdir"), (_as_arrow, "_arwdir")])
def test_a_report_beside_a_folder_of_its_tables_is_left(write: Any, suffix: str, tmp_path: Path) -> None:
    """As nsys calls the folder; of its tables two of older versions are not in capitals."""
    rows = pa.table({"start": [5], "end": [9], "globalPid": [7 << 24]})
    folder = tmp_path / f"rank0{suffix}"
    folder.mkdir()
    write(folder, {KERNELS: rows, "ProcessStreams": rows, "UnwindMethodType": rows})
    for report in ("rank0.nsys-rep", "rank1.nsys-rep"):
        (tmp_path / report).write_bytes(b"\0" * 64)
    found = discover([tmp_path])
    assert [(left.path.name, left.reason) for left in found.left] == [("rank0.nsys-rep", "its export lies beside it")]
    assert [left.path.name for left in found.failed] == ["rank1.nsys-rep"]
    (item,) = found.sources
    assert len(item.source.files) == 3


def test_tables_of_a_version_that_is_not_known_are_named(tmp_path: Path) -> None:
    """Tools of others expect such names (reference, section 4)."""
    tables = Tables()
    tables.add(KERNELS, start=1, end=2, globalPid=7 << 24)
    tables.add(NVTX, start=1, end=2, eventType=NESTED, text="aten::mm", globalTid=7 << 24 | 7, domainId=0)
    path = tables.write(tmp_path / "rank0.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(f"ALTER TABLE {NVTX} RENAME TO {NVTX}_V2")
        connection.execute(f"CREATE TABLE {KERNELS}_V2 AS SELECT * FROM {KERNELS}")
    notes = " ".join(map(str, ingest([path], tmp_path / "x.run").manifest["sources"][0]["notes"]))
    assert "tables of a later version are not read: NVTX_EVENTS_V2 its times" in notes


def test_of_two_captures_of_the_same_ranks_one_is_taken(exported: Path, tmp_path: Path) -> None:
    for file in (*exported.iterdir(), *SMALL.glob("rank*")):
        shutil.copy(file, tmp_path / file.name)
    found = discover([tmp_path])
    assert [(item.reader, item.rank) for item in found.sources] == [("kineto", 0), ("kineto", 1)]
    assert (
        Counter(left.reason for left in found.left)["a second capture of the same ranks: that of kineto is taken"] == 2
    )
    (tmp_path / "rank1.json.gz").unlink()
    found = discover([tmp_path])
    assert [(item.reader, item.rank) for item in found.sources] == [("nsys", 0), ("nsys", 1)]


@pytest.fixture(scope="module")
def in_one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of both ranks in one file, which does not tell them."""
    (file,) = export(SMALL, tmp_path_factory.mktemp("one"), How(payloads=False, together=True))
    return file


def test_a_dry_run_says_which_of_two_captures_is_taken(
    in_one_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ranks in one file, which does not tell them: a second capture only where the other one has all ranks."""
    traces = sorted(SMALL.glob("rank*"))
    for file in (in_one_file, *traces):
        shutil.copy(file, tmp_path / file.name)
    assert command(["ingest", str(tmp_path), "--dry-run"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 sources would be read" in said
    why = "report.sqlite: a capture that does not tell its ranks, beside one of all 2: that of kineto is taken"
    assert why in said
    (tmp_path / traces[1].name).unlink()
    assert command(["ingest", str(tmp_path), "--dry-run"]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("none of 3 sources would be read: 1 conflict ")
    assert "conflict: 2 sources do not say their rank: " in said


def test_tables_without_rows_are_as_if_they_were_not_there(tmp_path: Path) -> None:
    """``--lazy=false`` writes all of them: of graphs that nothing launched, and of kernels that there are none."""
    tables = Tables()
    tables.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=1, end=2, globalPid=7 << 24)
    tables.add(KERNELS, start=1, end=2, globalPid=7 << 24)
    tables.add(CALLS, start=1, end=2, globalTid=7 << 24 | 7, correlationId=1)
    name = tables.text("ncclSend")
    tables.add(NVTX, start=1, end=2, eventType=NESTED, textId=name, globalTid=7 << 24 | 7, domainId=3)
    path = tables.write(tmp_path / "rank0.sqlite")
    with sqlite3.connect(path) as connection:
        for table in ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", KERNELS):
            connection.execute(f"DELETE FROM {table}")
    notes = " ".join(map(str, ingest([path], tmp_path / "x.run").manifest["sources"][0]["notes"]))
    assert "CUDA graphs" not in notes
    assert "no kernels in the export" in notes


def test_digits_of_any_script_are_read_or_left(tmp_path: Path) -> None:
    """A raised two is a digit to Python, and no number; names may be anything."""
    row = '{"table": "CUPTI_ACTIVITY_KIND_KERNEL", "start": "5", "end": "9", "globalPid": 117440512, "streamId": "²"}'
    (tmp_path / "rank0.jsonl").write_text(row, encoding="utf-8")
    run = ingest([tmp_path], tmp_path / "x.run")
    assert run.rows("SELECT start_ns, duration_ns, stream FROM events") == [(5, 4, None)]


def test_hints_give_each_source_without_a_rank_another_one(in_one_file: Path, tmp_path: Path) -> None:
    """Of two exports of two processes each: as typed together, they are the ranks of one job."""
    for name in ("a", "b"):
        shutil.copy(in_one_file, tmp_path / f"{name}.sqlite")
    conflicts = discover([tmp_path / "a.sqlite", tmp_path / "b.sqlite"], keep_conflicts=True).conflicts
    assert [re.findall(r":\d+=(\d+)", error.hint or "") for error in conflicts] == [["0", "1", "2", "3"]]


@pytest.mark.parametrize("write", [_as_parquet, _as_arrow, _as_streams, _as_lines])
def test_texts_of_digits_are_texts_in_every_form(write: Any, tmp_path: Path) -> None:
    """Ranges that a program calls by the number of a layer; registered or not."""
    process = 7 << 24
    ranges = {"start": [0, 10], "end": [9, 19], "eventType": [NESTED] * 2, "globalTid": [process | 7] * 2}
    tables = {
        NVTX: pa.table({**ranges, "text": ["12", None], "textId": [None, 5]}),
        "StringIds": pa.table({"id": [5], "value": ["0013"]}),
        KERNELS: pa.table({"start": [5], "end": [9], "globalPid": [process], "demangledName": [5]}),
    }
    run = ingest([write(tmp_path, tables)], tmp_path / "x.run")
    assert run.rows("SELECT category, name FROM events ORDER BY 1, 2") == [
        ("annotation", "0013"), ("annotation", "12"), ("kernel", "0013"),
    ]  # fmt: skip
