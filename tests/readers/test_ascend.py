"""The Ascend reader on a real capture, on the committed synthetic one and on changed copies of it."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from helpers.notices import texts
from helpers.recorded import run_of
from helpers.thorough import spread

from tracetool.ingestion import discover
from tracetool.readers import Identity, SourceReport
from tracetool.readers.ascend import READER
from tracetool.readers.cann.comms import group_hash

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_traces" / "ascend-1f1b"
DATA = Path(os.environ.get("TRACETOOL_DATA", ROOT.parent / "shared" / "data")) / "ascend"
LEVEL2 = "Ascend+msinsight/test/st/level2"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
MESSAGE = 8_388_608


def data(path: str) -> Path:
    """A folder of the public captures, or a skip."""
    folder = DATA / path
    if not folder.is_dir():
        pytest.skip(f"no {path} below {DATA.name}: set TRACETOOL_DATA to the folder of public traces")
    return folder


@dataclass
class Read:
    """What the reader made of one rank's folder."""

    identity: Identity
    tables: dict[str, list[dict[str, Any]]]
    report: SourceReport
    size_bytes: int
    advanced: int

    def messages(self) -> list[dict[str, Any]]:
        return [row for row in self.tables["comms"] if row["operation"] in ("send", "recv")]


def read(folder: Path) -> Read:
    (source,) = READER.find(sorted(f for f in folder.rglob("*") if f.is_file())).sources
    identity = READER.identify(source)
    assert identity.rank is not None
    report = SourceReport()
    advanced: list[int] = []
    batches: dict[str, list[pa.Table]] = {}
    for name, rows in READER.read(source, identity.rank, identity, frozenset(), report, advanced.append):
        batches.setdefault(name, []).append(rows)
    tables = {name: pa.concat_tables(parts).to_pylist() for name, parts in batches.items()}
    return Read(identity, tables, report, source.size_bytes, sum(advanced))


def level2(rank: int) -> Path:
    return data(LEVEL2) / f"rank_{rank}_ascend_pt"


@cache
def read_level2(rank: int) -> Read:
    """A rank of the public capture, which no test changes: once per worker."""
    return read(level2(rank))


def kernel_records(folder: Path) -> list[dict[str, str]]:
    with (folder / OUTPUT / "kernel_details.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of rank 1 of the sample, to be changed."""
    return Path(shutil.copytree(SAMPLE / "rank_1_ascend_pt", tmp_path / "rank_1_ascend_pt"))


# --- Group hash


@pytest.mark.parametrize(
    ("name", "halves", "whole"),
    [
        ("group_name_19", (927902386, 3723387872), 3985310405473756128),
        ("group_name_22", (927902408, 3723387996), 3985310499963036764),
        ("group_name_5", (1364917521, 257924881), 5862276114690318097),
    ],
)
def test_group_hash_as_in_real_operation_names(name: str, halves: tuple[int, int], whole: int) -> None:
    assert divmod(group_hash(name), 2**32) == halves
    assert group_hash(name) == whole


# --- The real capture: PP2 x DP2

# Per rank: its peer, and per batch operation what it carries: of HCCS links the receiver logs one per message.
DIRECTIONS = {
    0: (2, [["send"], ["send", "recv"], ["recv"]]),
    1: (3, [["send"], ["send", "recv"], ["recv"]]),
    2: (0, [["recv"], ["send", "recv"], ["send"]]),
    3: (1, [["recv"], ["send", "recv"], ["send"]]),
}


# Ranks of one capture: another one has other messages in the same files.
@spread("rank", range(4), [0])
def test_real_messages(rank: int) -> None:
    peer, expected = DIRECTIONS[rank]
    messages = read_level2(rank).messages()
    batches = [list(rows) for _, rows in groupby(messages, key=lambda row: row["batch"])]
    assert [[row["operation"] for row in rows] for rows in batches] == expected
    assert {row["peer"] for row in messages} == {peer}
    assert {row["payload_bytes"] for row in messages} == {MESSAGE}
    assert {row["evidence"] for row in messages} == {"matrix"}
    assert {row["group"] for row in messages} == {"group_name_19" if rank % 2 == 0 else "group_name_22"}
    assert all(row["group_ranks"] == sorted([rank, peer]) for row in messages)


# Ranks of one capture: another one has other messages in the same files.
@spread("rank", range(4), [1])
def test_real_messages_without_the_matrix_are_inferred_the_same(rank: int, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(level2(rank), tmp_path / "rank"))
    with_matrix = read(folder)
    (folder / OUTPUT / "communication_matrix.json").unlink()
    assert read(folder).tables["comms"] == with_matrix.tables["comms"], "analysis.db has the links too"
    (folder / OUTPUT / "analysis.db").unlink()
    without = read(folder)

    def facts(found: Read) -> list[tuple[Any, ...]]:
        return [(r["operation"], r["peer"], r["payload_bytes"], r["start_ns"]) for r in found.messages()]

    assert facts(without) == facts(with_matrix)
    assert {row["evidence"] for row in without.messages()} == {"inferred"}
    assert any("inferred" in note for note in texts(without.report.notes))


# Ranks of one capture.
@spread(
    ("rank", "starts"),
    [
        (0, [1764246877147674500, 1764246877228630040, 1764246877470477740]),
        (2, [1764246877076689680, 1764246877386327440, 1764246877624879160]),
    ],
    1,
)
def test_real_starts_are_exact(rank: int, starts: list[int]) -> None:
    messages = read_level2(rank).messages()
    assert list(dict.fromkeys(row["start_ns"] for row in messages)) == starts
    assert all(row["posted_ns"] == row["start_ns"] for row in messages)


@pytest.mark.parametrize(("rank", "records"), [(0, 2463), (2, 2587)])
def test_real_kernels_agree_with_an_independent_count(rank: int, records: int) -> None:
    found = read_level2(rank)
    listed = kernel_records(level2(rank))
    kernels = [r for r in listed if r["Accelerator Core"] != "COMMUNICATION"]
    assert len(listed) == records
    events = found.tables["events"]
    assert len(events) == len(kernels)
    assert len({row["batch"] for row in found.tables["comms"]}) == records - len(kernels)
    for column, field in (("start_ns", "Start Time(us)"), ("duration_ns", "Duration(us)")):
        expected = sum((Decimal(r[field].strip()) * 1000 for r in kernels), Decimal(0))
        assert sum(row[column] for row in events) == expected
    assert [row["kernel_class"] for row in events] == [r["Type"] for r in kernels]
    assert [row["stream"] for row in events] == [int(r["Stream ID"]) for r in kernels]
    assert found.report.dropped.total() == found.report.repaired.total() == 0
    assert found.advanced == found.size_bytes


# Ranks of one capture.
@spread(("rank", "computing_ns"), [(0, 231_290_100), (1, 230_903_720), (2, 400_448_260), (3, 401_131_700)], 2)
def test_real_steps(rank: int, computing_ns: int) -> None:
    found = read_level2(rank)
    (step,) = found.tables["steps"]
    assert (step["step"], step["vendor_bubble_ns"], step["vendor_computing_ns"]) == (13, 0, computing_ns)
    if rank in (0, 2):
        first = min(row["start_ns"] for row in found.tables["events"])
        assert step["start_ns"] == first
        assert 809_000_000 < step["end_ns"] - step["start_ns"] < 811_000_000


@pytest.mark.parametrize("rank", [1, 3])
def test_real_ranks_without_kernels_say_so(rank: int) -> None:
    found = read_level2(rank)
    assert "events" not in found.tables
    assert "no kernel_details.csv: compute of this rank is unknown" in texts(found.report.notes)
    assert "no memory_record.csv: memory of this rank is unknown" in texts(found.report.notes)
    assert sum("rounded there to 0.25 us" in note for note in texts(found.report.notes)) == 1


def test_real_memory() -> None:
    rows = read_level2(0).tables["memory"]
    reserved = {c: [r["reserved_bytes"] for r in rows if r["component"] == c] for c in ("PTA", "PTA+GE", "APP")}
    assert max(reserved["PTA"]) == 10_372 * 2**20
    assert max(reserved["APP"]) == Decimal("11925.015625") * 2**20
    assert [len(values) for values in reserved.values()] == [9309, 9309, 41]
    assert {r["allocated_bytes"] for r in rows if r["component"] == "APP"} == {None}


def test_real_set_is_ingested() -> None:
    run = run_of(data(LEVEL2))
    assert run.rows("SELECT rank, device, world_size FROM ranks ORDER BY rank") == [
        (0, 0, 4), (1, 1, 4), (2, 4, 4), (3, 5, 4),
    ]  # fmt: skip
    pipelines = run.rows("SELECT DISTINCT name, ranks FROM groups WHERE description = 'pp' ORDER BY name")
    assert pipelines == [("group_name_19", [0, 2]), ("group_name_22", [1, 3])]


def test_every_other_capture_reads_despite_other_headers() -> None:
    folders = sorted(f.parent.parent for f in data("").rglob("kernel_details.csv"))
    others = [f for f in folders if LEVEL2 not in f.as_posix()]
    assert others
    for folder in others:
        found = read(folder)
        listed = kernel_records(folder)
        kernels = [row for row in found.tables["events"] if row["category"] == "kernel"]
        assert len(kernels) == sum(not r["Name"].startswith("hcom_") for r in listed)
        assert found.report.dropped.total() == 0
        assert found.advanced == found.size_bytes


# --- The committed sample

# 1F1B by hand: per rank, its operations; s and r with the rank at the other side.
ORDERS = {
    0: "s1|s1|s1|s1 r1|r1|r1|r1",
    1: "r0|s2|r0|s2|r0|s2 r2|s0 r0|s2 r2|s0|r2|s0|r2|s0",
    2: "r1|s3|r1|s3 r3|s1 r1|s3 r3|s1 r1|s3 r3|s1|r3|s1",
    3: "r2|s2 r2|s2 r2|s2 r2|s2",
}


def order(found: Read) -> str:
    batches = groupby(found.messages(), key=lambda row: row["batch"])
    return "|".join(" ".join(f"{r['operation'][0]}{r['peer']}" for r in rows) for _, rows in batches)


def test_generator_writes_the_committed_bytes(tmp_path: Path) -> None:
    script = ROOT / "sample_traces" / "make_ascend_sample.py"
    subprocess.run([sys.executable, "-B", script, tmp_path], check=True, capture_output=True)
    written = {f.relative_to(tmp_path): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    committed = {f.relative_to(SAMPLE): f.read_bytes() for f in SAMPLE.rglob("*") if f.is_file()}
    assert written.keys() == committed.keys()
    assert [name for name in written if written[name] != committed[name]] == []
    assert sum(map(len, committed.values())) < 300_000


def test_sample_lasts_as_long_as_its_readme_and_script_say() -> None:
    steps = [read(SAMPLE / f"rank_{rank}_ascend_pt").tables["steps"][0] for rank in range(4)]
    step = max(s["end_ns"] for s in steps) - min(s["start_ns"] for s in steps)
    for text in (SAMPLE / "README.md", ROOT / "sample_traces" / "make_ascend_sample.py"):
        assert f"{step:,} ns" in text.read_text(encoding="utf-8")
        assert "206,367,330 ns" in text.read_text(encoding="utf-8")


@pytest.mark.parametrize("rank", range(4))
def test_sample_messages_follow_1f1b(rank: int) -> None:
    found = read(SAMPLE / f"rank_{rank}_ascend_pt")
    assert order(found) == ORDERS[rank]
    assert {row["payload_bytes"] for row in found.messages()} == {MESSAGE}
    evidence = {(row["operation"], row["evidence"]) for row in found.messages()}
    # Nobody logs the receiver of a message over HCCS in a group of more than two.
    assert evidence == {("recv", "matrix"), ("send", "inferred")}
    assert not any("add up to" in note for note in texts(found.report.notes))


def test_sample_messages_without_the_matrix(copy: Path) -> None:
    (copy / OUTPUT / "communication_matrix.json").unlink()
    found = read(copy)
    assert order(found) == ORDERS[1]
    assert {row["evidence"] for row in found.messages()} == {"inferred"}


def test_peer_stays_unknown_without_kernels_between_two_neighbours(copy: Path) -> None:
    (copy / OUTPUT / "kernel_details.csv").unlink()
    found = read(copy)
    sends = [row for row in found.messages() if row["operation"] == "send"]
    assert {(row["peer"], row["evidence"]) for row in sends} == {(None, "unknown")}
    assert any("8 messages are unknown" in note for note in texts(found.report.notes))


def test_matrix_totals_contradicting_the_messages_are_noted(copy: Path) -> None:
    path = copy / OUTPUT / "communication_matrix.json"
    content = json.loads(path.read_text())
    total = next(v for k, v in content["step7"]["p2p"].items() if k.startswith("batchsendrecv-total"))
    total["1-1"]["Transit Size(MB)"] *= 2
    path.write_text(json.dumps(content))
    assert any("add up to" in note for note in texts(read(copy).report.notes))


# --- What else comes along


def test_folders_may_be_renamed_and_wrapped(tmp_path: Path) -> None:
    for rank in range(4):
        shutil.copytree(SAMPLE / f"rank_{rank}_ascend_pt", tmp_path / "copied" / f"host{rank}" / "capture (1)")
    assert [(f.rank, f.source.path.parent.name) for f in discover([tmp_path]).sources] == [
        (0, "host0"), (1, "host1"), (2, "host2"), (3, "host3"),
    ]  # fmt: skip


def test_rank_is_found_in_turn(copy: Path) -> None:
    (copy / "profiler_info_1.json").unlink()
    found = read(copy)
    assert (found.identity.rank, found.identity.world_size) == (1, 4)
    assert any(note.startswith("no profiler_info_{rank}.json") for note in texts(found.report.notes))
    (copy / "profiler_info_3.json").write_text('{"config": {}}')
    (copy / "profiler_metadata.json").unlink()
    assert read(copy).identity.rank == 3
    (copy / "profiler_info_3.json").write_text('{"rank_id": 2}')
    assert read(copy).identity.rank == 2


def test_columns_are_found_by_name(copy: Path) -> None:
    expected = read(copy)
    path = copy / OUTPUT / "kernel_details.csv"
    records = kernel_records(copy)
    names = [n for n in reversed(records[0]) if n not in ("Device_id", "OP State", "Step Id")]
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(r | {"Accelerator Core": "HCCL"} if "hcom" in r["Name"] else r for r in records)
    found = read(copy)
    assert found.tables["events"] == expected.tables["events"]
    assert found.tables["comms"] == expected.tables["comms"]
    assert found.identity.device == 1, "taken from step_trace_time.csv"


def test_groups_whose_hashes_end_alike_are_told_apart_by_time(copy: Path) -> None:
    path = copy / OUTPUT / "communication.json"
    content = json.loads(path.read_text())
    operations = content["step7"]["p2p"]
    name = next(iter(operations))
    other = json.loads(json.dumps(operations[name]))
    other["Communication Time Info"]["Start Timestamp(us)"] += 5000.0
    content["step7"]["p2p"] = {f"{name.partition('@')[0]}@123": other, **operations}
    path.write_text(json.dumps(content))
    rows = read(copy).tables["comms"]
    assert order(read(copy)).startswith("r0|")
    assert [row["group"] for row in rows if row["group"] != "group_name_17"] == ["123", "group_name_6"]


def test_over_rdma_the_sender_logs_the_link(tmp_path: Path) -> None:
    output = tmp_path / "rank" / OUTPUT
    output.mkdir(parents=True)
    groups = {"group_name_3": {"group_name": "pp", "group_rank": 0, "global_ranks": [0, 8]}}
    (tmp_path / "rank" / "profiler_metadata.json").write_text(
        json.dumps({"distributed_args": {"rank": 0, "world_size": 16}, "parallel_group_info": groups})
    )
    hashed = group_hash("group_name_3")
    name = f"hcom_send__{hashed % 1000:03}_0"
    time = {
        "Start Timestamp(us)": 1695115378810042.5,
        "Elapse Time(ms)": 0.89648691015625,
        "Wait Time(ms)": 0,
    }
    entry = {
        "Communication Time Info": time,
        "Communication Bandwidth Info": {"RDMA": {"Transit Size(MB)": 20.97152}},
    }
    local = {"Transport Type": "LOCAL", "Transit Size(MB)": 20.97152}
    link = {"Transport Type": "RDMA", "Transit Size(MB)": 20.97152}
    (output / "communication.json").write_text(json.dumps({"step2": {"p2p": {f"{name}@{hashed}": entry}}}))
    matrix = {"step2": {"p2p": {f"{name}@{hashed}": {"0-0": local, "0-1": link}}}}
    (output / "communication_matrix.json").write_text(json.dumps(matrix))
    found = read(tmp_path)
    (row,) = found.tables["comms"]
    assert (row["operation"], row["peer"], row["payload_bytes"]) == ("send", 8, 20_971_520)
    assert row["end_ns"] - row["start_ns"] == 896_487
    assert row["evidence"] == "matrix"
    assert found.tables["steps"][0]["step"] == 2


def test_blank_step_is_left_out_and_said(copy: Path) -> None:
    path = copy / OUTPUT / "step_trace_time.csv"
    path.write_text(path.read_text().replace("\n1,7,", "\n1,,"))
    found = read(copy)
    assert found.report.skipped.total() == 1
    assert any("name no step" in note for note in texts(found.report.notes))
    assert [(s["step"], s["vendor_bubble_ns"]) for s in found.tables["steps"]] == [(7, None)]
