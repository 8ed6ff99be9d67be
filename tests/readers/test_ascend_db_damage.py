"""Databases of Ascend profilers that are damaged, half written, hostile or strange; nothing is written beside them."""

from __future__ import annotations

import shutil
import sqlite3
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from helpers.ascend_capture import OUTPUT, SCHEMA, Capture, simple
from helpers.notices import texts
from helpers.recorded import SAMPLES, data
from helpers.thorough import some
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import MalformedTrace
from tracetool.ingestion import discover
from tracetool.readers import SourceReport
from tracetool.readers.ascend import READER
from tracetool.readers.cann.db import opened, whole

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "ascend_pytorch_profiler_0.db"
MANY = 3000


def read(path: Path) -> tuple[list[dict[str, Any]], SourceReport]:
    """The kernels and the report of one source."""
    (found,) = discover([path]).sources
    report = SourceReport()
    advanced: list[int] = []
    rows = [
        row
        for name, table in READER.read(
            found.source, found.stored_rank, found.identity, frozenset(), report, advanced.append
        )
        if name == "events"
        for row in table.to_pylist()
    ]
    return [row for row in rows if row["category"] == "kernel"], report


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in [folder, *folder.rglob("*")]}


def page_bytes(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:18], "big")


# --- Nothing beside the user's files


@pytest.mark.parametrize("mode", [0o755, 0o555])
def test_reading_leaves_the_folder_as_it_was(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "a folder with ?, # and %41"
    path = simple().write(folder / NAME)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert path.read_bytes()[18:20] == b"\2\2", "the database is in WAL mode"
    folder.chmod(mode)
    before = listing(folder)
    kernels, _ = read(folder)
    assert len(kernels) == 3
    assert listing(folder) == before
    folder.chmod(0o755)


def test_reading_a_real_one_left_by_a_viewer_leaves_it_as_it_was(tmp_path: Path) -> None:
    real = data("ascend/Ascend+msinsight/test/data/pytorch/db/level1/rank0_ascend_pt")
    folder = Path(shutil.copytree(real, tmp_path / "copy"))
    assert (folder / OUTPUT / NAME).read_bytes()[18:20] == b"\2\2"
    before = listing(folder)
    assert len(read(folder)[0]) == 187
    assert listing(folder) == before


def test_changes_in_a_log_left_beside_it_are_read(tmp_path: Path) -> None:
    path = simple(3).write(tmp_path / "work" / NAME)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA wal_autocheckpoint=0")
    connection.execute("UPDATE TASK SET endNs = endNs + 7")
    connection.execute("DELETE FROM TASK WHERE globalTaskId = 0")
    (tmp_path / "left").mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", tmp_path / "left")
    connection.close()
    before = listing(tmp_path / "left")
    kernels, report = read(tmp_path / "left")
    assert [k["duration_ns"] for k in kernels] == [507, 507]
    assert report.dropped.total() == 0
    assert listing(tmp_path / "left") == before
    (tmp_path / "left" / f"{NAME}-wal").unlink()
    assert [k["duration_ns"] for k in read(tmp_path / "left")[0]] == [500, 500, 500], "the log was needed"


def test_unfinished_changes_are_undone_in_a_copy(tmp_path: Path) -> None:
    path = simple(MANY).write(tmp_path / "work" / NAME)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size=1")
    connection.execute("BEGIN")
    connection.execute("UPDATE TASK SET endNs = endNs + 7")
    (tmp_path / "left").mkdir()
    for suffix in ("", "-journal"):
        shutil.copy(f"{path}{suffix}", tmp_path / "left")
    connection.execute("ROLLBACK")
    connection.close()
    before = listing(tmp_path / "left")
    kernels, _ = read(tmp_path / "left")
    assert {k["duration_ns"] for k in kernels} == {500}
    assert listing(tmp_path / "left") == before
    (tmp_path / "left" / f"{NAME}-journal").unlink()
    assert {k["duration_ns"] for k in read(tmp_path / "left")[0]} == {500, 507}, "the journal was needed"


# --- Truncated and overwritten


# Other damage is done to databases by default (below); here files are cut at many places.
@pytest.mark.thorough
def test_truncated_anywhere_gives_true_rows_or_names_the_file(tmp_path: Path) -> None:
    path = simple(200).write(tmp_path / NAME)
    whole_bytes, size = path.read_bytes(), page_bytes(path)
    expected = {(k["start_ns"], k["duration_ns"]) for k in read(path)[0]}
    assert len(expected) == 200
    counts = []
    for length in some(range(100, len(whole_bytes), size // 2), 3):
        path.write_bytes(whole_bytes[:length])
        kernels, report = read_or_none(path)
        assert {(k["start_ns"], k["duration_ns"]) for k in kernels} <= expected
        assert report.dropped or len(kernels) == 200
        assert all(place.file.endswith(NAME) for reason, place in report.places.items() if "cannot be read" in reason)
        counts.append(len(kernels))
    assert counts[0] == 0
    assert max(counts) > 0


def read_or_none(path: Path) -> tuple[list[dict[str, Any]], SourceReport]:
    """The same; nothing, if the error says so and names the file."""
    try:
        return read(path)
    except MalformedTrace as error:
        if path.name not in error.message:
            raise
    report = SourceReport()
    report.dropped["all of it"] += 1
    return [], report


def test_what_a_truncated_one_still_holds_is_read(tmp_path: Path) -> None:
    path = simple(MANY).write(tmp_path / NAME)
    # Written last, hence at the end of the file: the kernels are whole.
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE MEMORY_RECORD(component TEXT, timestamp INTEGER, totalAllocated INTEGER)")
        connection.executemany("INSERT INTO MEMORY_RECORD VALUES ('PTA', ?, 1)", [(10**18 + i,) for i in range(MANY)])
    connection.close()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 4 * page_bytes(path)])
    kernels, report = read(path)
    assert len(kernels) == MANY
    (lost,) = (reason for reason in report.dropped if "MEMORY_RECORD" in reason)
    unknown = "stretch of MEMORY_RECORD that cannot be read, of how many rows is unknown"
    assert lost.startswith(f"{unknown}; the file has {len(content) - 4 * page_bytes(path):,} ")
    assert any(f"of {len(content):,} bytes" in note and "MEMORY_RECORD" in note for note in texts(report.notes))


def test_rows_after_an_overwritten_page_are_read(tmp_path: Path) -> None:
    path = simple(MANY).write(tmp_path / NAME)
    size = page_bytes(path)
    content = bytearray(path.read_bytes())
    # The leaf that holds kernel 1500's start as an 8-byte integer.
    start = (1_700_000_000_000_000_000 + 1500 * 1000).to_bytes(8, "big")
    page = content.index(start) // size
    cells = int.from_bytes(content[page * size + 3 : page * size + 5], "big")  # rows on a leaf, by the file format
    content[page * size : (page + 1) * size] = b"\xff" * size
    path.write_bytes(content)
    kernels, report = read(path)
    starts = [k["start_ns"] for k in kernels]
    assert MANY - len(starts) == cells > 0
    assert starts[-1] == 1_700_000_000_000_000_000 + (MANY - 1) * 1000
    assert starts == sorted(set(starts))
    assert report.dropped["stretch of TASK that cannot be read, of how many rows is unknown"] == 1


def test_lost_names_cost_no_kernels(tmp_path: Path) -> None:
    capture = simple(3)
    capture.rows["STRING_IDS"] = [row for row in capture.rows["STRING_IDS"] if row["value"] != "kernel1"]
    kernels, report = read(capture.write(tmp_path / NAME))
    assert [k["name"] for k in kernels] == ["kernel0", "name lost", "kernel2"]
    assert report.repaired == {"no text for a name in STRING_IDS: called 'name lost'": 1}


def test_unreadable_database_names_itself(tmp_path: Path) -> None:
    path = simple().write(tmp_path / NAME)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(MalformedTrace, match=NAME):
        read(path)


@pytest.mark.parametrize("name", [NAME, "analysis.db"])
def test_unreadable_database_costs_the_text_beside_it_nothing(tmp_path: Path, name: str) -> None:
    sample = SAMPLES / "ascend-1f1b" / "rank_0_ascend_pt"
    expected, _ = read(sample)
    folder = Path(shutil.copytree(sample, tmp_path / "rank"))
    content = simple().write(tmp_path / "x.db").read_bytes()
    (folder / OUTPUT / name).write_bytes(content[:200])
    kernels, report = read(folder)
    assert kernels == expected
    assert report.dropped == {"database that cannot be read": 1}
    assert any(name in note and "200 of" in note for note in texts(report.notes))


# --- Strange and hostile


def test_views_virtual_tables_and_damaged_declarations_are_passed_over(tmp_path: Path) -> None:
    path = simple(3).write(tmp_path / NAME)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE VIEW STEP_TIME AS SELECT 7 AS id, 1 AS startNs, 2 AS endNs")
        connection.execute("CREATE TABLE OVERLAP_ANALYSIS(id INTEGER PRIMARY KEY, x)")
        connection.execute("CREATE TABLE _COMPUTE_TASK_INFO_old_1(name, globalTaskId)")
        connection.execute("ALTER TABLE TASK ADD COLUMN depth INTEGER")
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("INSERT INTO sqlite_master VALUES ('table', 'NEW', 'NEW', 2, 'CREATE TABLE NEW(x, ((')")
    connection.close()
    with pytest.raises(sqlite3.Error):
        sqlite3.connect(path).execute("SELECT * FROM TASK")
    kernels, report = read(path)
    assert len(kernels) == 3
    assert report.dropped.total() == 0
    with opened(path) as database:
        assert "STEP_TIME" not in database.tables
        with pytest.raises(sqlite3.Error):
            database._connection.execute("CREATE TABLE x(y)")


def test_a_string_larger_than_memory_should_hold_is_left(tmp_path: Path) -> None:
    path = simple(3).write(tmp_path / NAME)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE META_DATA(name TEXT, value TEXT)")
        connection.execute("INSERT INTO META_DATA VALUES ('huge', zeroblob(40000000))")
        connection.execute("INSERT INTO META_DATA VALUES ('distributed_args', '{\"world_size\": 8}')")
    connection.close()
    kernels, report = read(path)
    assert len(kernels) == 3
    assert report.dropped == {"stretch of META_DATA that cannot be read, of how many rows is unknown": 1}
    assert discover([path]).sources[0].identity.world_size == 8


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("startNs", "not a time", "time is no whole number"),
        ("startNs", None, "time is no whole number"),
        ("startNs", 1.7e18, "time is no whole number"),
        ("startNs", 0, "time is zero"),
        ("endNs", 2**62, "time is no whole number"),
    ],
)
def test_unusable_times_are_counted(tmp_path: Path, column: str, value: object, reason: str) -> None:
    capture = simple(3)
    capture.rows["TASK"][1][column] = value
    kernels, report = read(capture.write(tmp_path / NAME, {"TASK": SCHEMA["TASK"].replace("Ns INTEGER", "Ns BLOB")}))
    assert [k["name"] for k in kernels] == ["kernel0", "kernel2"]
    assert report.dropped == {reason: 1}
    assert (report.places[reason].at, report.places[reason].unit) == (1, "row")


def test_tables_without_keys_or_with_other_orders_are_joined_alike(tmp_path: Path) -> None:
    capture = simple(50)
    expected, _ = read(capture.write(tmp_path / "one" / NAME))
    capture.rows["COMPUTE_TASK_INFO"].reverse()
    capture.rows["COMPUTE_TASK_INFO"].append(capture.rows["COMPUTE_TASK_INFO"][0])
    schema = {t: SCHEMA[t].replace(" PRIMARY KEY", "") for t in ("COMPUTE_TASK_INFO", "STRING_IDS", "CANN_API")}
    assert read(capture.write(tmp_path / "two" / NAME, schema))[0] == expected


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([str, int, lambda n: f" {n}.000 ", Decimal]))
def test_whole_numbers_are_exact(number: int, spelled: Callable[[int], object]) -> None:
    value = spelled(number)
    assert whole(str(value) if isinstance(value, Decimal) else value) == number


@pytest.mark.parametrize("value", [None, b"1", "", "x", "1.5", "nan", "inf", 1.5, 2.0**53, float("nan"), "9" * 41])
def test_other_values_are_no_whole_numbers(value: object) -> None:
    assert whole(value) is None


def test_other_sqlite_files_are_no_captures(tmp_path: Path) -> None:
    capture = Capture()
    capture.rows["TASK"] = [{"id": 1}]
    capture.write(tmp_path / "todo.db", {"TASK": "id INTEGER, title TEXT"})
    simple().write(tmp_path / "renamed.sqlite")
    (found,) = discover([tmp_path]).sources
    assert found.source.path.name == "renamed.sqlite"
