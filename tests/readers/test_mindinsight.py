"""The MindInsight reader on a published job (2 stages x 2 ranks), and on damaged copies of it.

Expectations come from an independent parse in this file (csv.DictReader, whole numbers times 10) and from
the vendor's own figures beside the step traces.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections import Counter, defaultdict
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import ROOT, data, run_of

from tracetool.errors import MalformedTrace, MissingRank
from tracetool.ingestion import discover
from tracetool.readers import READERS, SourceReport
from tracetool.readers.mindinsight import READER

if TYPE_CHECKING:
    from pathlib import Path

RESOURCE = ("ascend", "mindspore-ai+mindinsight", "tests", "utils", "resource")
JOB = (*RESOURCE, "cluster_propose")
OPERATIONS = {"Receive": "recv", "Send": "send", "AllReduce": "allreduce"}


def records(rank: int) -> list[dict[str, str]]:
    """The steps of a rank's trace, without their average."""
    with data(*JOB, f"step_trace_raw_{rank}_detail_time.csv").open() as stream:
        return [row for row in csv.DictReader(stream) if row["step_num"] != "-"]


def read(source: Any) -> tuple[dict[str, list[dict[str, Any]]], SourceReport]:
    identity = READER.identify(source)
    assert identity.rank is not None
    report = SourceReport()
    advanced: list[int] = []
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, rows in READER.read(source, identity.rank, identity, frozenset(), report, advanced.append):
        tables[name] += rows.to_pylist()
    assert sum(advanced) == source.size_bytes
    return tables, report


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files of rank 0, to be damaged."""
    for file in data(*JOB).iterdir():
        if re.search(r"_0(_detail_time)?\.csv$", file.name):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def only(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], SourceReport]:
    (source,) = READER.find(sorted(folder.iterdir())).sources
    return read(source)


def edit(path: Path, line: int, column: str, text: str) -> None:
    """Replace one cell; lines count from 1, the header is the first."""
    with path.open(newline="") as stream:
        rows = list(csv.reader(stream))
    rows[line - 1][rows[0].index(column)] = text
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def test_each_rank_is_a_source_with_its_files() -> None:
    finding = READER.find(sorted(data(*JOB).iterdir()))
    for rank, source in enumerate(finding.sources):
        assert READER.identify(source).rank == rank
        assert {file.name for file in source.files} == {
            f"step_trace_raw_{rank}_detail_time.csv", f"hccl_raw_{rank}.csv",
            f"ascend_cluster_analyse_pipeline-parallel_2_4_{rank}.csv",
        }  # fmt: skip
    assert len(finding.sources) == 4
    assert {one.path.name for one in finding.left} == {f"flops_summary_{rank}.json" for rank in range(4)}
    assert all("neither steps nor transfers" in one.reason for one in finding.left)


def test_ranks_and_groups() -> None:
    run = run_of(data(*JOB))
    assert run.rows("SELECT rank, world_size, pp_rank FROM ranks ORDER BY rank") == [
        (0, 4, 0), (1, 4, 0), (2, 4, 1), (3, 4, 1),
    ]  # fmt: skip


def test_every_operation_of_every_step() -> None:
    run = run_of(data(*JOB))
    for rank in range(4):
        expected: Counter[tuple[str, int, int, int]] = Counter()
        for row in records(rank):
            for name in row:
                if match := re.fullmatch(r"stream_(\d+)_\d+_([A-Z]\w+)-op\d+", name):
                    start, end = (int(row[f"{name}_{side}_point"]) * 10 for side in ("start", "end"))
                    assert end - start == int(row[name]) * 10
                    expected[OPERATIONS[match[2]], int(match[1]), start, end] += 1
        rows = run.rows("SELECT operation, stream, start_ns, end_ns FROM comms WHERE rank = ?", [rank])
        assert Counter(rows) == expected
        steps = run.rows("SELECT step, start_ns, end_ns FROM steps WHERE rank = ? ORDER BY step", [rank])
        assert steps == [
            (int(r["step_num"]), int(r["start_point"]) * 10, int(r["end_point"]) * 10) for r in records(rank)
        ]
    assert all(source["dropped"] == source["repaired"] == {} for source in run.manifest["sources"])
    assert all(source["skipped"] == {"average of the steps": 1} for source in run.manifest["sources"])


def test_sends_and_receives_match() -> None:
    """First in, first out: both sides of a message end together, if the ticks are those of one clock."""
    run = run_of(data(*JOB))
    queues: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for rank, peer, operation, end, payload in run.rows(
        "SELECT rank, peer, operation, end_ns, payload_bytes FROM comms "
        "WHERE operation IN ('send', 'recv') ORDER BY rank, position"
    ):
        sent = operation == "send"
        assert payload in ((None,) if sent else (None, 12_845_568))
        queues[(rank, peer) if sent else (peer, rank)][not sent].append(end)
    assert queues.keys() == {(0, 2), (2, 0), (1, 3), (3, 1)}
    for sends, recvs in queues.values():
        assert len(sends) == len(recvs) == 4 * 5
        assert all(abs(send - recv) < 300_000 for send, recv in zip(sends, recvs, strict=True))


def test_received_bytes_and_unit_of_ticks() -> None:
    """HCCL gives cost and wait of a receive in ms: together they are its ticks of 10 ns, within 0.3 ms."""
    run = run_of(data(*JOB))
    with data(*JOB, "hccl_raw_0.csv").open() as stream:
        costs = {row["step_num"]: json.loads(row["communication_operator_cost"]) for row in csv.DictReader(stream)}
    compared = 0
    for row in records(0):
        for name in row:
            if "Receive" in name and not name.endswith("_point"):
                _, cost, wait, links = costs[row["step_num"]][name]
                start = int(row[f"{name}_start_point"]) * 10
                ((end, payload),) = run.rows(
                    "SELECT end_ns, payload_bytes FROM comms WHERE rank = 0 AND operation = 'recv' AND start_ns = ?",
                    [start],
                )
                assert abs((cost + wait) * 10**6 - (end - start)) < 300_000
                assert payload == round(next(iter(links.values()))["SDMA"][1] * 1000)
                compared += 1
    assert compared == 4 * 5


def test_vendor_figures() -> None:
    """As they stand in the file; computing and communication alone are the step, within 1.5 %."""
    for source in READER.find(sorted(data(*JOB).iterdir())).sources:
        tables, _ = read(source)
        rank = READER.identify(source).rank
        with data(*JOB, f"ascend_cluster_analyse_pipeline-parallel_2_4_{rank}.csv").open() as stream:
            listed = list(csv.DictReader(stream))
        figures = {(row["step"], row["metric"]): row["value"] for row in tables["vendor_figures"]}
        assert {row["source"] for row in tables["vendor_figures"]} == {-1}
        assert figures == {
            (step, f"{'average ' if step is None else ''}{name}(ms)"): float(text)
            for step, line in zip([1, 2, 3, 4, 5, None], listed, strict=True)
            for name, text in line.items()
        }
        for step in tables["steps"]:
            total = sum(Decimal(listed[step["step"] - 1][f"{n}_time"]) for n in ("computation", "communication_alone"))
            length = step["end_ns"] - step["start_ns"]
            assert abs(total * 10**6 - length) < Decimal("0.015") * length


def test_other_files_of_the_profiler_are_left() -> None:
    folder = data(*RESOURCE, "profiler")
    finding = READER.find([file for file in sorted(folder.rglob("*")) if file.is_file()])
    assert [READER.identify(source).rank for source in finding.sources] == [0, 10]
    beside = {file for file in folder.iterdir() if file.is_file()}
    assert {one.path for one in finding.left} == beside - {source.path for source in finding.sources}
    tables, report = read(finding.sources[0])
    with finding.sources[0].path.open() as stream:
        listed = [row for row in csv.DictReader(stream) if row["step_num"] != "-"]
    assert [row["step"] for row in tables["steps"]] == [int(row["step_num"]) for row in listed]
    assert not tables["comms"]
    spans = sum(f"{name}_start_point" in listed[0] for name in listed[0])
    assert report.skipped["span of a stream that names no operation"] == spans * len(listed)


def test_nobody_takes_the_others_files() -> None:
    own = [file for file in data(*RESOURCE).rglob("*") if file.is_file() and "PROF_" not in str(file)]
    for name in READERS.names():
        assert bool(READERS.get(name).find(own).sources) == (name == "mindinsight")
    finding = READER.find([file for file in (ROOT / "sample_traces").rglob("*") if file.is_file()])
    assert not finding.sources
    assert not finding.left


@pytest.mark.parametrize(
    ("column", "text", "reason", "lost"),
    [
        ("stream_48_1_Receive-op794_start_point", "N/A", "operation without times", 1),
        ("stream_48_1_Receive-op794_end_point", "1", "operation without times", 1),
        ("stream_48_1_Receive-op794_start_point", "-5", "operation without times", 1),
        ("start_point", "", "step without number or times", 97),
        ("end_point", "9" * 30, "step without number or times", 97),
        ("step_num", "two", "step without number or times", 97),
    ],
)
def test_damaged_cell_is_counted_with_its_line(copy: Path, column: str, text: str, reason: str, lost: int) -> None:
    trace = copy / "step_trace_raw_0_detail_time.csv"
    whole, _ = only(copy)
    edit(trace, 3, column, text)
    tables, report = only(copy)
    assert report.dropped == {reason: 1}
    place = report.places[reason]
    assert (place.file, place.at, place.unit) == (str(trace), 3, "line")
    assert len(tables["comms"]) == len(whole["comms"]) - lost


def test_duration_at_odds_is_counted(copy: Path) -> None:
    edit(copy / "step_trace_raw_0_detail_time.csv", 3, "stream_48_1_Receive-op794", "7")
    assert only(copy)[1].repaired == {"duration that is not end less start: left out": 1}


@pytest.mark.parametrize("share", [0.7, 0.9])
def test_truncated_trace_keeps_its_whole_steps(copy: Path, share: float) -> None:
    trace = copy / "step_trace_raw_0_detail_time.csv"
    text = trace.read_bytes()[: int(trace.stat().st_size * share)]
    trace.write_bytes(text)
    tables, report = only(copy)
    assert len(tables["steps"]) == text.count(b"\n") - 1
    assert report.dropped["record with more or fewer fields than the header"] == 1
    # The vendor's rows name no steps: with some lost nothing tells which are which.
    assert not tables["vendor_figures"]
    assert report.dropped["vendor's analysis with other steps than the step trace"] == 6


def test_damaged_costs_leave_the_bytes_unknown(copy: Path) -> None:
    edit(copy / "hccl_raw_0.csv", 3, "communication_operator_cost", '{"stream_48_0')
    tables, report = only(copy)
    assert report.dropped == {"costs of operations that are no JSON": 1}
    received = [row for row in tables["comms"] if row["operation"] == "recv"]
    assert Counter(row["payload_bytes"] for row in received) == {12_845_568: 16, None: 4}


def test_without_the_vendors_files_peers_are_unknown(copy: Path) -> None:
    for file in copy.glob("ascend_cluster*"):
        file.unlink()
    tables, _ = only(copy)
    messages = [row for row in tables["comms"] if row["operation"] in ("send", "recv")]
    assert {(row["peer"], row["evidence"]) for row in messages} == {(None, "unknown")}
    assert not tables["vendor_figures"]


def test_no_step_at_all(copy: Path) -> None:
    trace = copy / "step_trace_raw_0_detail_time.csv"
    trace.write_bytes(trace.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(MalformedTrace, match="no step"):
        only(copy)


def test_name_without_a_rank(copy: Path) -> None:
    shutil.move(copy / "step_trace_raw_0_detail_time.csv", copy / "trace.csv")
    shutil.copy(copy / "trace.csv", copy / "other.csv")
    with pytest.raises(MissingRank):
        discover([copy / "trace.csv", copy / "other.csv"])
