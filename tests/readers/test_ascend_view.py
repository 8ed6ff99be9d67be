"""trace_view.json of torch_npu, against kernel_details.csv and an independent parse of the real captures."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from helpers.notices import texts
from helpers.recorded import data
from readers.ascend_reading import Read, read_only

from tracetool.readers.ascend import READER

DDP = "ascend/Ascend+msinsight/test/data/pytorch/text/level1"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
# Both ranks have the same kinds of rows.
RANKS = [0, pytest.param(1, marks=pytest.mark.thorough)]


def real(rank: int) -> Path:
    return data(DDP) / f"rank{rank}_ascend_pt"


def parsed(folder: Path) -> list[dict[str, Any]]:
    """Spans by the standard library, each with the names of its process and thread; times as decimals."""
    events = json.loads((folder / OUTPUT / "trace_view.json").read_text(), parse_float=Decimal)
    names = {
        (e["name"], e["pid"], e["tid"] if e["name"] == "thread_name" else None): e["args"]["name"]
        for e in events
        if e["ph"] == "M" and "name" in e["args"]
    }
    return [
        e | {
            "process": names.get(("process_name", e["pid"], None)),
            "thread": names.get(("thread_name", e["pid"], e["tid"])),
            "start_ns": Decimal(e["ts"]) * 1000,
            "duration_ns": Decimal(e["dur"]) * 1000,
        }
        for e in events
        if e["ph"] == "X"
    ]  # fmt: skip


def records(folder: Path) -> list[dict[str, str]]:
    with (folder / OUTPUT / "kernel_details.csv").open(newline="", encoding="utf-8") as stream:
        return [{k: v.strip() for k, v in r.items()} for r in csv.DictReader(stream)]


@pytest.fixture(params=RANKS)
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a real rank, to be changed."""
    rank = request.param
    folder = tmp_path / f"rank{rank}_ascend_pt"
    shutil.copytree(real(rank), folder, copy_function=shutil.copyfile)
    for place, _, _ in os.walk(folder):
        Path(place).chmod(0o755)
    return folder


@pytest.mark.parametrize("rank", RANKS)
def test_what_the_host_did_is_read_from_it(rank: int) -> None:
    found = read_only(READER, real(rank))
    spans = parsed(real(rank))
    marks = [e for e in spans if e["name"].startswith("ProfilerStep#")]
    ops = [e for e in spans if e.get("cat") == "cpu_op" and e not in marks]
    launches = [e for e in spans if e["process"] == "CANN"]
    for category, expected in (("op", ops), ("launch", launches), ("annotation", marks)):
        rows = found.events(category)
        key = [(e["name"], e["tid"], e["start_ns"], round(e["duration_ns"])) for e in expected]
        assert expected
        assert Counter((r["name"], r["thread"], r["start_ns"], r["duration_ns"]) for r in rows) == Counter(key)
    sequences = [e["args"]["Sequence number"] for e in ops]
    assert Counter(r["sequence_number"] for r in found.events("op")) == Counter(None if n < 0 else n for n in sequences)
    assert [r["correlation"] for r in found.events("launch")] == [e["args"]["connection_id"] for e in launches]
    assert found.report.skipped["python_function"] == sum(e.get("cat") == "python_function" for e in spans)
    assert found.report.skipped["enqueue"] == sum(e.get("cat") == "enqueue" for e in spans)
    assert found.report.dropped.total() == 0
    assert found.advanced == found.source.size_bytes
    events = [row["event"] for row in found.tables["events"]]
    assert events == list(range(len(events)))


@pytest.mark.parametrize("rank", RANKS)
def test_kernels_stay_those_of_kernel_details(rank: int) -> None:
    found = read_only(READER, real(rank))
    listed = [r for r in records(real(rank)) if r["Accelerator Core"] != "HCCL"]
    rows = found.events("kernel")
    assert [r["start_ns"] for r in rows] == [Decimal(r["Start Time(us)"]) * 1000 for r in listed]
    assert [r["kernel_class"] for r in rows] == [r["Type"] for r in listed]
    assert not any("trace_view" in note for note in texts(found.report.notes))


def test_both_files_show_the_same_kernels(copy: Path) -> None:
    """trace_view.json has more digits of durations than kernel_details.csv: no kernel differs by more than 1 ns."""
    with_table = read_only(READER, copy).events("kernel")
    listed = records(copy)
    (copy / OUTPUT / "kernel_details.csv").unlink()
    found = read_only(READER, copy)
    rows = found.events("kernel")
    assert len(rows) == len(with_table) == sum(r["Accelerator Core"] != "HCCL" for r in listed)
    pairs = list(zip(sorted(rows, key=by_start), sorted(with_table, key=by_start), strict=True))
    for column in ("start_ns", "duration_ns"):
        assert max(abs(row[column] - other[column]) for row, other in pairs) <= 1
    assert all(row["name"] == other["name"] and row["stream"] == other["stream"] for row, other in pairs)
    total, other_total = (sum(r["duration_ns"] for r in kernels) for kernels in (rows, with_table))
    assert abs(total - other_total) <= len(rows)
    # Exact against the file itself: the sum of its decimals, each rounded once.
    spans = [e for e in parsed(copy) if e["process"] == "Ascend Hardware"]
    names = {r["Name"] for r in listed}
    assert total == sum(round(e["duration_ns"]) for e in spans if e["name"] in names)
    correlations = {row["correlation"] for row in found.events("launch")}
    assert sum(row["correlation"] in correlations for row in rows) == len(rows)
    assert f"{len(rows)} kernels are in trace_view.json only: taken from there" in texts(found.report.notes)


def by_start(row: dict[str, Any]) -> tuple[int, int]:
    return row["start_ns"], row["stream"]


def test_only_what_the_table_lacks_is_added(copy: Path) -> None:
    whole = read_only(READER, copy)
    gone = records(copy)[:49]
    path = copy / OUTPUT / "kernel_details.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[50:]))
    found = read_only(READER, copy)

    def tasks(read: Read) -> list[tuple[Any, ...]]:
        kernels = sorted(read.events("kernel"), key=by_start)
        return [(r["name"], round(r["start_ns"], -1), r["stream"]) for r in kernels]

    assert tasks(found) == tasks(whole)
    assert len(found.tables["comms"]) == len(whole.tables["comms"]) == 4
    lost = [r for r in gone if r["Accelerator Core"] != "HCCL"]
    assert f"{len(lost)} kernels are in trace_view.json only: taken from there" in texts(found.report.notes)


def test_operations_and_steps_come_from_it_where_nothing_else_has_them(copy: Path) -> None:
    for name in ("kernel_details.csv", "communication.json", "communication_matrix.json"):
        (copy / OUTPUT / name).unlink()
    found = read_only(READER, copy)
    spans = parsed(copy)
    big = [e for e in spans if e["process"] == "HCCL" and e["thread"] == "Group 0 Communication"]
    assert [r["start_ns"] for r in found.tables["comms"]] == [e["start_ns"] for e in big]
    assert [r["end_ns"] - r["start_ns"] for r in found.tables["comms"]] == [round(e["duration_ns"]) for e in big]
    assert {r["operation"] for r in found.tables["comms"]} == {"allreduce"}
    (mark,) = [e for e in spans if e["name"].startswith("ProfilerStep#")]
    (step,) = found.tables["steps"]
    assert mark["name"] == f"ProfilerStep#{step['step']}"
    assert (step["start_ns"], step["end_ns"]) == (mark["start_ns"], mark["start_ns"] + mark["duration_ns"])


def test_a_folder_with_nothing_else_is_a_rank(copy: Path) -> None:
    for file in (copy / OUTPUT).iterdir():
        if file.name != "trace_view.json":
            file.unlink()
    found = read_only(READER, copy)
    assert found.identity.rank == int(copy.name[4])
    assert len(found.events("kernel")) == 187


def test_names_may_stand_behind_the_events(copy: Path) -> None:
    expected = read_only(READER, copy)
    path = copy / OUTPUT / "trace_view.json"
    events = json.loads(path.read_text())
    path.write_text(json.dumps([e for e in events if e["ph"] != "M"] + [e for e in events if e["ph"] == "M"]))
    assert read_only(READER, copy).tables == expected.tables
