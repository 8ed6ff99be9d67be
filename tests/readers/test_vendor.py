"""Figures of the vendor's cluster analyses, against the real files read by the standard library."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data
from readers.ascend_reading import find, read_only, read_source

from tracetool.errors import MalformedTrace
from tracetool.readers.vendor import READER

if TYPE_CHECKING:
    from pathlib import Path

TEST_DATA = "ascend/Ascend+msinsight/server/src/test/test_data"
GPT_2023 = f"{TEST_DATA}/cluster_analysis_output"
ADVISOR = "ascend/Ascend+msprof-analyze/test/resource/advisor/cluster_analysis_output"

Key = tuple[str, str, int | None, int | None, str]


def figures(rows: list[dict[str, Any]]) -> Counter[tuple[Key, float]]:
    return Counter(((r["subject"], r["name"], r["rank"], r["step"], r["metric"]), r["value"]) for r in rows)


def step(text: str) -> int | None:
    digits = text.removeprefix("step")
    return int(digits) if digits else None


def listed_steps(folder: Path) -> Counter[tuple[Key, float]]:
    found: Counter[tuple[Key, float]] = Counter()
    with (folder / "cluster_step_trace_time.csv").open(newline="") as stream:
        for r in csv.DictReader(stream):
            rank = int(r["Index"]) if r["Type"] == "rank" else None
            for column in set(r) - {"Step", "Type", "Index"}:
                found[(r["Type"], r["Index"], rank, step(r["Step"]), f"{column}(us)"), float(r[column])] += 1
    return found


def listed_operations(folder: Path) -> Counter[tuple[Key, float]]:
    found: Counter[tuple[Key, float]] = Counter()
    content = json.loads((folder / "cluster_communication.json").read_text())
    for group, steps in content.items():
        for number, operations in steps.items():
            for operation, ranks in operations.items():
                name = operation if "@" in operation else f"{operation} {group}"
                for rank, about in ranks.items():
                    key = ("operation", name, int(rank), step(number))
                    for metric, value in about["Communication Time Info"].items():
                        found[(*key, metric), value] += 1
                    for transport, traffic in about["Communication Bandwidth Info"].items():
                        for metric, value in traffic.items():
                            if not isinstance(value, dict):
                                found[(*key, f"{transport} {metric}"), value] += 1
    return found


@pytest.mark.parametrize("folder", [GPT_2023, ADVISOR])
def test_real_analysis(folder: str) -> None:
    found = read_only(READER, data(folder))
    rows = found.tables["vendor_figures"]
    expected = listed_steps(data(folder)) + listed_operations(data(folder))
    assert figures([r for r in rows if r["subject"] in ("rank", "stage", "operation")]) == expected
    assert {r["source"] for r in rows} == {-1}
    assert not found.source.ranked
    assert found.identity.rank is None
    assert found.advanced == found.source.size_bytes
    assert found.report.dropped.total() == 0
    assert len(expected) > 100


def test_real_figures_by_hand() -> None:
    """Numbers read off the files of the job of 2023 by hand."""
    rows = read_only(READER, data(GPT_2023)).tables["vendor_figures"]
    known = {(r["subject"], r["name"], r["rank"], r["step"], r["metric"]): r["value"] for r in rows}
    assert known["rank", "8", 8, 2, "Bubble(us)"] == 178320.2648359375
    send = "hcom_send__822_0@13337953553061386822"
    assert known["link", f"0-8 {send}", None, 2, "RDMA Transit Size(MB)"] == 20.97152
    assert known["link", f"0-8 {send}", None, 2, "RDMA Bandwidth(GB/s)"] == 24.2778
    assert known["operation", send, 0, 2, "Elapse Time(ms)"] == 0.89648691015625
    assert known["link", "8-8 hcom_receive__822_0@13337953553061386822", None, 2, "LOCAL Transit Size(MB)"] == 20.97152
    stages = {r["name"] for r in rows if r["name"].startswith("p2p ")}
    assert stages == {"p2p (0, 1, 2, 3, 4, 5, 6, 7)", "p2p (8, 9, 10, 11, 12, 13, 14, 15)"}


def test_real_groups() -> None:
    folder = data(f"{TEST_DATA}/communication_group")
    sources = find(READER, folder).sources
    assert [s.path.name for s in sources] == ["communication_group", "communication_group_old.json"]
    new, old = (read_source(READER, s) for s in sources)
    content = json.loads((folder / "communication_group.json").read_text())
    infos = content["comm_group_parallel_info"]
    rows = new.tables["vendor_figures"]
    for info in infos:
        ranks = f"({', '.join(map(str, info['rank_set']))})"
        name = " ".join(filter(None, (info["pg_name"], info["group_id"], info["group_name"], ranks)))
        assert [r["rank"] for r in rows if r["name"] == name] == info["rank_set"]
        assert [r["value"] for r in rows if r["name"] == name] == list(range(len(info["rank_set"])))
    assert len({r["name"] for r in rows}) == len(infos) + len(content["p2p"])
    distinct = {
        tuple(ranks) for ranks in json.loads((folder / "communication_group_old.json").read_text())["collective"]
    }
    assert sum(r["name"].startswith("collective ") for r in old.tables["vendor_figures"]) == sum(map(len, distinct))
    assert old.report.skipped["group listed twice"] > 0


def test_what_ranks_write_is_not_taken() -> None:
    assert find(READER, data("ascend/Ascend+msinsight/test/st/level2")).sources == []
    assert find(READER, data("ascend/Ascend+msinsight/test/data")).sources == []
    assert find(READER, data("ascend/mindspore-ai+mindinsight")).sources == []


def test_columns_of_new_releases(tmp_path: Path) -> None:
    header = "Step,Type,Index,Computing,Bubble,Preparing,DP Index,PP Index,TP Index"
    lines = [header, "13,rank,0,231290.09999999995\t,0,206.25,0,1,2", '13,stage,"(0, 1)",5.5,0,7,NA,NA,NA', ",rank,1,1"]
    (tmp_path / "renamed.csv").write_bytes("\r\n".join(lines).encode())
    found = read_only(READER, tmp_path)
    assert figures(found.tables["vendor_figures"]) == Counter(
        {
            (("rank", "0", 0, 13, "Computing(us)"), 231290.09999999995): 1,
            (("rank", "0", 0, 13, "Bubble(us)"), 0.0): 1,
            (("rank", "0", 0, 13, "Preparing(us)"), 206.25): 1,
            (("rank", "0", 0, 13, "DP Index"), 0.0): 1,
            (("rank", "0", 0, 13, "PP Index"), 1.0): 1,
            (("rank", "0", 0, 13, "TP Index"), 2.0): 1,
            (("stage", "(0, 1)", None, 13, "Computing(us)"), 5.5): 1,
            (("stage", "(0, 1)", None, 13, "Bubble(us)"), 0.0): 1,
            (("stage", "(0, 1)", None, 13, "Preparing(us)"), 7.0): 1,
        }
    )
    assert dict(found.report.skipped) == {"figure that is no number": 3}
    assert dict(found.report.dropped) == {"record with another number of fields than the header": 1}


def test_a_damaged_file_costs_no_other(tmp_path: Path) -> None:
    for file in data(GPT_2023).iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    whole = read_only(READER, tmp_path).tables["vendor_figures"]
    path = tmp_path / "cluster_communication.json"
    path.write_bytes(path.read_bytes()[:-500])
    found = read_only(READER, tmp_path)
    assert figures(found.tables["vendor_figures"]) == figures([r for r in whole if r["subject"] != "operation"])
    assert dict(found.report.dropped) == {"file with damaged text": 1}
    assert found.report.places["file with damaged text"].file == str(path)
    for file in tmp_path.iterdir():
        if file != path:
            file.unlink()
    with pytest.raises(MalformedTrace, match=r"cluster_communication\.json: file with damaged text at byte"):
        read_only(READER, tmp_path)


TABLES: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
    "ClusterStepTraceTime": (
        'step, type, "index", computing, communication_not_overlapped, bubble, preparing, dp_index',
        [("13", "rank", "0", 231290.1, 420174.26, 0, 206.25, 1), ("13", "stage", "(0, 1)", 5.5, 6.5, 0, 7, None)],
    ),
    "ClusterCommunicationTime": (
        "step, rank_id, hccl_op_name, group_name, start_timestamp, elapsed_time, wait_time_ratio",
        [("step13", 2, "hcom_send__1_2_3", "77", 1764246877228630.0, 1.5, 0.25)],
    ),
    "ClusterCommunicationBandwidth": (
        "step, rank_id, hccl_op_name, group_name, band_type, transit_size, transit_time, bandwidth, package_size, n",
        [("step13", 2, "hcom_send__1_2_3", "77", "HCCS", 8.5, 0.5, 17.0, size, 1) for size in (4.25, 4.0)],
    ),
    "ClusterCommunicationMatrix": (
        "step, hccl_op_name, group_name, src_rank, dst_rank, transport_type, op_name, transit_size, bandwidth",
        [("step13", "send-top1", "77", "0", "2", "HCCS", "hcom_send__1_2_3", 8.5, 17.0)],
    ),
    "CommunicationGroupMapping": (
        "type, rank_set, group_name, group_id, pg_name",
        [("p2p", "(0, 2)", "77", "group_name_19", "pp")],
    ),
    "HostInfo": ("hostUid, hostName", [("1", "a")]),
}
OF_DATABASE: list[tuple[Key, float]] = [
    (("rank", "0", 0, 13, "computing(us)"), 231290.1),
    (("rank", "0", 0, 13, "communication_not_overlapped(us)"), 420174.26),
    (("rank", "0", 0, 13, "bubble(us)"), 0.0),
    (("rank", "0", 0, 13, "preparing(us)"), 206.25),
    (("rank", "0", 0, 13, "dp_index"), 1.0),
    (("stage", "(0, 1)", None, 13, "computing(us)"), 5.5),
    (("stage", "(0, 1)", None, 13, "communication_not_overlapped(us)"), 6.5),
    (("stage", "(0, 1)", None, 13, "bubble(us)"), 0.0),
    (("stage", "(0, 1)", None, 13, "preparing(us)"), 7.0),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "start_timestamp(us)"), 1764246877228630.0),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "elapsed_time(ms)"), 1.5),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "wait_time_ratio"), 0.25),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "HCCS transit_size(MB)"), 8.5),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "HCCS transit_time(ms)"), 0.5),
    (("operation", "hcom_send__1_2_3@77", 2, 13, "HCCS bandwidth(GB/s)"), 17.0),
    (("link", "0-2 send-top1@77", None, 13, "HCCS transit_size(MB)"), 8.5),
    (("link", "0-2 send-top1@77", None, 13, "HCCS bandwidth(GB/s)"), 17.0),
    (("group", "pp group_name_19 77 (0, 2)", 0, None, "position in rank_set"), 0.0),
    (("group", "pp group_name_19 77 (0, 2)", 2, None, "position in rank_set"), 1.0),
]


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_database(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "cluster_analysis.db"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal}")
    for table, (columns, rows) in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({columns})")
        connection.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)
    connection.commit()
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.suffix != ".db-shm"}
    assert len(before) == (2 if journal == "wal" else 1)
    found = read_only(READER, tmp_path)
    assert figures(found.tables["vendor_figures"]) == Counter(OF_DATABASE)
    assert dict(found.report.skipped) == {"figure that is no number": 1, "package size of a transport": 1}
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.suffix != ".db-shm"} == before
    connection.close()


def test_other_databases_are_nobodys(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "cluster_analysis.db") as connection:
        connection.execute("CREATE TABLE TASK (startNs, endNs)")
    connection.close()
    (tmp_path / "x.db").write_bytes(b"SQLite format 3\0 and nothing else")
    assert find(READER, tmp_path).sources == []
