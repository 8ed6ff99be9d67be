"""What Ascend captures say of memory: records of allocators joined to allocations of operators, sizes of libraries."""

from __future__ import annotations

import csv
from decimal import Decimal
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest
from helpers.ascend_capture import OUTPUT, simple
from helpers.notices import texts
from helpers.recorded import data
from helpers.thorough import spread
from readers.ascend_reading import Read, read_capture, read_only

from tracetool.readers.ascend import READER

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1_764_000_000_000_000_000
MIB = 2**20


def level2(rank: int) -> Path:
    return data("ascend", "Ascend+msinsight", "test", "st", "level2", f"rank_{rank}_ascend_pt")


def read(folder: Path) -> Read:
    return read_only(READER, folder)


def read_level2(rank: int) -> Read:
    return read_capture(READER, level2(rank))


# The other rank with kernels has other allocations of the same operators.
@spread("rank", [0, 2], 1)
def test_real_changes_of_memory_join_allocations(rank: int) -> None:
    """operator_memory.csv against the levels of memory_record.csv: a change it explains is the step between them."""
    rows = sorted((r for r in read_level2(rank).tables["memory"] if r["component"] == "PTA"), key=itemgetter("time_ns"))
    folder = level2(rank) / OUTPUT
    with (folder / "operator_memory.csv").open() as file:
        listed = list(csv.DictReader(file))
    made = [r for r in rows if (r["delta_bytes"] or 0) > 0]
    assert sorted(r["delta_bytes"] for r in made) == sorted(int(Decimal(o["Size(KB)"]) * 1024) for o in listed)
    for before, after in pairwise(rows):
        if after["delta_bytes"] is not None:
            assert after["allocated_bytes"] - before["allocated_bytes"] == after["delta_bytes"]
    size = {r["block"]: r["delta_bytes"] for r in made}
    freed = [r for r in rows if (r["delta_bytes"] or 0) < 0]
    assert len(freed) == len({r["block"] for r in freed}) == sum(bool(o["Release Time(us)"].strip()) for o in listed)
    assert all(size[r["block"]] == -r["delta_bytes"] for r in freed)


def test_real_sizes_of_libraries_are_kept_where_they_change() -> None:
    """npu_module_mem.csv of rank 0: 45 samples of 77 libraries, four of which hold anything, all of the time."""
    rows = [r for r in read_level2(0).tables["memory"] if r["component"].startswith("module ")]
    assert {r["component"]: Decimal(r["reserved_bytes"]) / 2**20 for r in rows} == {
        "module SLOG": Decimal("158.65234375"), "module HCCL": Decimal("1241.69921875"),
        "module RUNTIME": Decimal("58.24609375"), "module APP": Decimal(10372),
    }  # fmt: skip
    assert len(rows) == 4


# --- Made up, where real captures hold nothing of the kind

_OPERATORS = (
    "Name,Size(KB),Allocation Time(us),Release Time(us),Active Release Time(us),Allocation Total Allocated(MB),"
    "Allocation Total Reserved(MB),Release Total Allocated(MB),Release Total Reserved(MB),Device Type"
)
_RECORDS = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device Type"
_MODULES = "Device_id,Component,Timestamp(us),Total Reserved(MB),Device"


def us(offset_ns: int) -> str:
    """As the profiler writes it: microseconds with three digits, and a TAB."""
    return f"{Decimal(T0 + offset_ns) / 1000:.3f}\t"


def capture(folder: Path, **files: list[str]) -> Read:
    """A rank with one kernel, and the given CSV files."""
    output = folder / "x_ascend_pt" / OUTPUT
    output.mkdir(parents=True)
    (output / "kernel_details.csv").write_text(f"Name,Start Time(us),Duration(us)\nk,{us(0)},2\n")
    (folder / "x_ascend_pt" / "profiler_info_0.json").write_text("{}")
    for name, lines in files.items():
        (output / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return read(folder)


def changes(found: Read) -> list[tuple[Any, ...]]:
    names = ("component", "time_ns", "delta_bytes", "allocated_bytes", "reserved_bytes", "block")
    return [tuple(row[n] - T0 if n == "time_ns" else row[n] for n in names) for row in found.tables.get("memory", ())]


def test_operators_alone_are_a_log_of_changes(tmp_path: Path) -> None:
    """Without records of the allocators; CANN's own operators take memory of the graph engine."""
    found = capture(
        tmp_path,
        operator_memory=[
            _OPERATORS,
            f"aten::mm,1024.0,{us(10)},{us(40)},{us(30)},5,8,4,8,NPU:0",
            f"cann::Cast,0.5,{us(20)},,,1,2,,,NPU:0",
        ],
    )
    assert changes(found) == [
        ("PTA", 10, MIB, 5 * MIB, 8 * MIB, 0),
        ("GE", 20, 512, MIB, 2 * MIB, 1),
        ("PTA", 30, -MIB, 4 * MIB, 8 * MIB, 0),
    ]
    assert found.advanced == found.source.size_bytes


def test_records_and_operators_of_one_time_are_one_row(tmp_path: Path) -> None:
    """Of the allocator whose level agrees; a record that no operator explains keeps an unknown change."""
    found = capture(
        tmp_path,
        operator_memory=[_OPERATORS, f"aten::mm,1024.0,{us(10)},{us(40)},{us(30)},5,8,4,8,NPU:0"],
        memory_record=[
            _RECORDS,
            *(f"{component},{us(10)},{level},8,NPU:0" for component, level in (("GE", 7), ("PTA", 5), ("PTA+GE", 12))),
            *(f"PTA,{us(at)},4,8,NPU:0" for at in (30, 40)),
        ],
    )
    assert [(row[0], row[1], row[2], row[5]) for row in changes(found)] == [
        ("GE", 10, None, None), ("PTA", 10, MIB, 0), ("PTA+GE", 10, None, None),
        ("PTA", 30, -MIB, 0), ("PTA", 40, None, None),
    ]  # fmt: skip


def test_allocations_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    lines = [
        f"a,-4.0,{us(10)},{us(20)},,1,2,1,2,NPU:0", f"b,x,{us(10)},{us(20)},,1,2,1,2,NPU:0",
        f"c,4.0,{us(30)},{us(20)},,1,2,1,2,NPU:0", f"d,4.0,N/A,{us(20)},,1,2,1,2,NPU:0",
        "e,4.0,1.76431E+15,,,1,2,,,NPU:0",
    ]  # fmt: skip
    found = capture(tmp_path, operator_memory=[_OPERATORS, *lines])
    assert changes(found) == []
    assert found.report.skipped["release without its allocation"] == 1
    assert found.report.skipped["allocation at an unknown time"] == 2
    assert found.report.dropped == {
        "allocation of unknown size": 1, "allocation that is released before it is made": 1,
        "memory time is no number": 1, "time in E notation: its digits are lost": 1,
    }  # fmt: skip


def test_libraries_are_listed_when_they_change(tmp_path: Path) -> None:
    samples = [("HCCL", 0, 3), ("RUNTIME", 0, 0), ("HCCL", 20, 3), ("HCCL", 40, 5), ("HCCL", 60, 0), ("HCCL", 80, "x")]
    found = capture(
        tmp_path, npu_module_mem=[_MODULES, *(f"0,{name},{us(at)},{size},NPU:0" for name, at, size in samples)]
    )
    assert [(row[0], row[1], row[4]) for row in changes(found)] == [
        ("module HCCL", 0, 3 * MIB), ("module HCCL", 40, 5 * MIB), ("module HCCL", 60, 0),
    ]  # fmt: skip
    assert found.report.skipped["size of a library that did not change"] == 2
    assert found.report.dropped["size of a library is no number"] == 1


@pytest.mark.parametrize("name", ["operator_memory", "npu_module_mem"])
def test_a_damaged_table_beside_others_is_left_out(name: str, tmp_path: Path) -> None:
    found = capture(tmp_path, **{name: ["nonsense", "1,2"]}, memory_record=[_RECORDS, f"PTA,{us(10)},4,8,NPU:0"])
    assert changes(found) == [("PTA", 10, None, 4 * MIB, 8 * MIB, None)]
    assert any(name in note for note in texts(found.report.notes))


def test_databases_name_libraries_by_number(tmp_path: Path) -> None:
    """NPU_MODULE_MEM and ENUM_MODULE, OP_MEMORY and MEMORY_RECORD as a release of 2025 has them."""
    import sqlite3

    path = simple().write(tmp_path / "ascend_pytorch_profiler_0.db")
    with sqlite3.connect(path) as connection:
        connection.executescript(
            f"""
            CREATE TABLE ENUM_MODULE(id INTEGER, name TEXT);
            INSERT INTO ENUM_MODULE VALUES (3, 'HCCL');
            CREATE TABLE NPU_MODULE_MEM(moduleId, timestampNs, totalReserved NUMERIC, deviceId);
            INSERT INTO NPU_MODULE_MEM
                VALUES (3, {T0}, 4096, 0), (3, {T0 + 5}, 4096, 0), (99, {T0}, 7, 0), (3, 0, 1, 0);
            CREATE TABLE IF NOT EXISTS MEMORY_RECORD(component, timestamp, totalAllocated, totalReserved, deviceId);
            INSERT INTO MEMORY_RECORD(component, timestamp, totalAllocated, totalReserved, deviceId)
                VALUES ('PTA', {T0 + 1}, 512, 1024, 0), ('PTA', {T0 + 2}, 0, 1024, 0);
            CREATE TABLE OP_MEMORY(name, size, allocationTime, releaseTime, activeReleaseTime,
                allocationTotalAllocated, allocationTotalReserved, releaseTotalAllocated, releaseTotalReserved,
                deviceId);
            INSERT INTO OP_MEMORY VALUES ('aten::mm', 512, {T0 + 1}, {T0 + 3}, {T0 + 2}, 512, 1024, 0, 1024, 0);
            """
        )
    connection.close()
    found = read(tmp_path)
    rows = {(row[0], row[1]): row[2:] for row in changes(found)}
    assert rows["PTA", 1] == (512, 512, 1024, 0)
    assert rows["PTA", 2] == (-512, 0, 1024, 0)
    assert rows["module HCCL", 0] == (None, None, 4096, None)
    assert rows["module 99", 0] == (None, None, 7, None)
    assert found.report.dropped["size of a library without its name or time"] == 1
