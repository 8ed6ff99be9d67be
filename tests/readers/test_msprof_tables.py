"""The reader of the msprof command's output on synthetic trees of new releases: tables, slices, devices, groups.

Rows follow the headers and rows of real files of those releases; what a test expects is what was written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import texts
from readers.ascend_reading import find, read_only, read_source

from tracetool.readers.cann.comms import group_hash
from tracetool.readers.msprof import READER

if TYPE_CHECKING:
    from pathlib import Path

T0 = 1780676244313289000
OUTPUT = "mindstudio_profiler_output"
SUMMARY = (
    "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,OP State,Task Type,Task Start Time(us),"
    "Task Duration(us),Task Wait Time(us),Block Num,Input Shapes,aicore_time(us)"
)
TASK_TIME = "Device_id,kernel_name,kernel_type,stream_id,task_id,task_time(us),task_start(us),task_stop(us)"
PID = 2731529 << 10
HARDWARE, COMMUNICATION, HOST = (PID | sort << 5 for sort in (13, 16, 7))


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def kernel(number: int, device: int = 0) -> str:
    return (
        f"{device},4294967295,{number},2,k{number},MatMulV3,dynamic,AI_CORE,{us(T0 + 1000 * number)}\t,"
        f'0.{number:03},0,24,"""151936,1024;1,4096;1""",12.5'
    )


def operation(name: str, start: int) -> str:
    return f"0,4294967295,N/A,N/A,{name},hcom_send_,N/A,COMMUNICATION,{us(start)}\t,87.000,0,0,N/A,N/A"


def write(folder: Path, name: str, *lines: str, end: str = "\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(end.join([*lines, ""]).encode())
    return path


@pytest.fixture
def prof(tmp_path: Path) -> Path:
    """A tree of one device with its configuration."""
    folder = tmp_path / "PROF_000001_20260605161708478_ABCDEFGHIJKLMNOP"
    info: dict[str, Any] = {"hostname": "node1", "devices": "0", "DeviceInfo": [{"id": 0}], "rank_id": -1}
    write(folder / "device_0", "info.json.0", json.dumps(info))
    write(folder / "host", "info.json", json.dumps({"hostname": "node1", "devices": "", "pid": "7", "hwtype": "x"}))
    start = {"collectionTimeBegin": "1780676244000000", "clockMonotonicRaw": "1000"}
    write(folder / "host", "start_info", json.dumps(start))
    write(
        folder / "host",
        "end_info",
        json.dumps({"collectionTimeEnd": "1780676245000000", "clockMonotonicRaw": "1000001000"}),
    )
    return folder


def names(sort: int, pid: int, process: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": process}},
        {"name": "process_sort_index", "ph": "M", "pid": pid, "tid": 0, "args": {"sort_index": sort}},
        *({"name": "thread_name", "ph": "M", "pid": pid, "tid": t, "args": {"name": n}} for t, n in threads.items()),
    ]


def task(number: int, device: int = 0, kind: str = "AI_CORE") -> dict[str, Any]:
    args = {"Task Type": kind, "connection_id": number}
    at = {"ts": us(T0 + 1000 * number), "dur": number / 1000, "pid": HARDWARE | device, "tid": 2}
    return {"name": f"k{number}", "ph": "X", **at, "args": args}


def timeline(path: Path, events: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(events))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_op_summary(prof: Path, end: str) -> None:
    nameless = f"0,4294967295,9,2,N/A,N/A,N/A,EVENT_RECORD,{us(T0)}\t,0.000,0,0,N/A,N/A"
    write(prof / OUTPUT, "op_summary_20260605161900.csv", SUMMARY, kernel(1), nameless, kernel(2), end=end)
    write(
        prof / OUTPUT,
        "op_statistic_20260605161900.csv",
        "Device_id,OP Type,Core Type,Count,Total Time(us)",
        "0,a,b,1,1",
    )
    found = read_only(READER, prof)
    assert [
        (r["name"], r["kernel_class"], r["stream"], r["start_ns"], r["duration_ns"]) for r in found.events("kernel")
    ] == [("k1", "MatMulV3", 2, T0 + 1000, 1), ("k2", "MatMulV3", 2, T0 + 2000, 2)]
    assert dict(found.report.skipped) == {"device task EVENT_RECORD": 1, "file of statistics": 1}
    assert (found.identity.rank, found.identity.host, found.identity.device) == (None, "node1", 0)
    assert found.advanced == found.source.size_bytes
    assert texts(found.report.notes) == []


def test_damaged_records_are_placed(prof: Path) -> None:
    late = kernel(3).replace(us(T0 + 3000), "1.78067E+15")
    path = write(prof / OUTPUT, "op_summary_1.csv", SUMMARY, kernel(1), kernel(2)[:40], late, kernel(4))
    found = read_only(READER, prof)
    assert [r["name"] for r in found.events("kernel")] == ["k1", "k4"]
    lines = {reason: place.at for reason, place in found.report.places.items() if place.file == str(path)}
    assert lines == {
        "record with another number of fields than the header": 3,
        "time in E notation: its digits are lost": 4,
    }


def test_task_time_is_for_trees_without_op_summary(prof: Path) -> None:
    rows = [
        f"0,N/A,EVENT_RECORD,2,6,0.000,{us(T0)}\t,{us(T0)}\t",
        f"0,main,MIX_AIC,2,0,87.960,{us(T0)}\t,{us(T0 + 87960)}\t",
    ]
    rows.append(f"0,PROFILING_ENABLE,PLACE_HOLDER_SQE,2,1,0.020,{us(T0)}\t,{us(T0 + 20)}\t")
    write(prof / OUTPUT, "task_time_20260605161900.csv", TASK_TIME, *rows)
    found = read_only(READER, prof)
    (row,) = found.events("kernel")
    assert (row["name"], row["kernel_class"], row["start_ns"], row["duration_ns"]) == ("main", "MIX_AIC", T0, 87960)
    assert dict(found.report.skipped) == {"device task EVENT_RECORD": 1, "device task PLACE_HOLDER_SQE": 1}
    assert any("their class is the type of their task" in note for note in texts(found.report.notes))
    write(prof / OUTPUT, "op_summary_20260605161901.csv", SUMMARY, kernel(1))
    found = read_only(READER, prof)
    assert [r["name"] for r in found.events("kernel")] == ["k1"]
    assert found.advanced == found.source.size_bytes


def test_slices_are_joined_and_older_exports_left(prof: Path) -> None:
    folder = prof / OUTPUT
    write(folder, "op_summary_20260605160000.csv", SUMMARY, kernel(1), kernel(2))
    write(folder, "op_summary_slice_1_20260605160003.csv", SUMMARY, kernel(3))
    write(folder, "op_summary_20260605161900.csv", SUMMARY, kernel(1), kernel(2))
    write(folder, "op_summary_slice_1_20260605161903.csv", SUMMARY, kernel(2), kernel(3), kernel(4))
    write(folder, "op_summary_slice_2_20260605161903.csv", SUMMARY, kernel(5))
    found = read_only(READER, prof)
    assert [r["name"] for r in found.events("kernel")] == ["k1", "k2", "k3", "k4", "k5"]
    assert dict(found.report.skipped) == {"repeated from the slice before": 1}
    assert texts(found.report.notes) == [
        "older exports left out: op_summary_20260605160000.csv, op_summary_slice_1_20260605160003.csv"
    ]
    assert found.advanced == found.source.size_bytes
    (folder / "op_summary_slice_1_20260605161903.csv").unlink()
    assert "slices [1] of op_summary are missing: what they held is unknown" in texts(
        read_only(READER, prof).report.notes
    )


def test_slices_of_a_timeline(prof: Path) -> None:
    header = names(13, HARDWARE, "Ascend Hardware", {2: "Stream 2"})
    for number, tasks in enumerate([[1, 2, 2], [2, 3], [4]]):
        timeline(prof / OUTPUT / f"msprof_slice_{number}_2026060516190{number}.json", header + [task(n) for n in tasks])
    found = read_only(READER, prof)
    assert [r["name"] for r in found.events("kernel")] == ["k1", "k2", "k2", "k3", "k4"]
    assert found.report.skipped["repeated from the slice before"] == 1


def test_one_source_per_device(prof: Path) -> None:
    other = {"hostname": "node1", "devices": "1", "DeviceInfo": [{"id": 1}], "rank_id": 9}
    write(prof / "device_1", "info.json.1", json.dumps(other))
    write(prof / OUTPUT, "op_summary_1.csv", SUMMARY, kernel(1), kernel(2, device=1), kernel(3, device=1))
    both = [
        e for device in (0, 1) for e in names(16, COMMUNICATION | device, "Communication", {0: "Group 5 Communication"})
    ]
    big = [
        {"ph": "X", "tid": 0, "ts": us(T0), "dur": 1, "pid": COMMUNICATION | d, "name": f"hcom_allReduce__{d}00_0_1"}
        for d in (0, 1)
    ]
    timeline(prof / OUTPUT / "msprof_1.json", both + big)
    first, second = (read_source(READER, s) for s in find(READER, prof).sources)
    assert (first.source.member, first.identity.device, first.identity.rank) == ("device 0", 0, None)
    assert (second.source.member, second.identity.device, second.identity.rank) == ("device 1", 1, 9)
    assert [r["name"] for r in first.events("kernel")] == ["k1"]
    assert [r["name"] for r in second.events("kernel")] == ["k2", "k3"]
    assert [r["group"] for r in first.tables["comms"]] == ["000"]
    assert [r["group"] for r in second.tables["comms"]] == ["100"]


def test_devices_are_known_from_a_table_without_configuration(tmp_path: Path) -> None:
    write(tmp_path / "x", "anything.csv", SUMMARY, kernel(1), kernel(2, device=3))
    sources = find(READER, tmp_path).sources
    assert [(s.path.name, s.member) for s in sources] == [("x", "device 0"), ("x", "device 3")]
    assert [len(read_source(READER, s).events("kernel")) for s in sources] == [1, 1]


def test_iterations_memory_and_ranges(prof: Path) -> None:
    folder = prof / OUTPUT
    header = (
        "Device_id,Iteration ID,FP Start(us),BP End(us),Iteration End(us),Iteration Time(us),FP to BP Time(us),"
        "Iteration Refresh(us),Data Aug Bound(us),Model ID,Reduce Start(us),Reduce Duration(us),"
        "Reduce Start(us),Reduce Duration(us)"
    )
    end = us(T0 + 5_000_000)
    rows = [f"0,1,{us(T0)}\t,{us(T0)}\t,{end}\t,4000.500,1,N/A,0,2,N/A,N/A,N/A,N/A"]
    rows += [f"0,2,1,1,{us(T0 + 9_000_000)}\t,4000.000,1,0.1,0,2,1,1,1,1", f"0,1,1,1,{end}\t,1.000,1,N/A,0,7,1,1,1,1"]
    write(folder, "step_trace_1.csv", header, *rows, "0,3,1,1,N/A,1.000,1,N/A,0,2,1,1,1,1")
    write(
        folder, "memory_record_1.csv",
        "Device_id,Component,Timestamp(us),Total Allocated(KB),Total Reserved(KB),Device",
        f"0,PTA,{us(T0)}\t,2.5,4,NPU:0", f"0,GE,{us(T0)}\t,,8,NPU:0",
    )  # fmt: skip
    write(
        folder, "npu_mem_1.csv", "Device_id,event,ddr(KB),hbm(KB),memory(KB),timestamp(us)",
        f"0,app,0,2160232,2160232,{us(T0)}\t", f"0,device,0,3,3,{us(T0)}\t",
    )  # fmt: skip
    write(
        folder, "msprof_tx_1.csv",
        "Device_id,pid,tid,category,event_type,payload_type,payload_value,Start_time(us),End_time(us),message_type,message,domain,"
        "Device Start_time(us),Device End_time(us)",
        f"0,1,77,0,start/end,0,0,{us(T0)}\t,{us(T0 + 500)}\t,0,forward_step,default,{us(T0)}\t,{us(T0 + 9)}\t",
        f"0,1,77,0,marker,0,0,{us(T0)}\t,{us(T0)}\t,0,here,default,N/A,N/A",
    )  # fmt: skip
    write(folder, "op_summary_1.csv", SUMMARY, kernel(1))
    found = read_only(READER, prof)
    assert [(s["step"], s["start_ns"], s["end_ns"]) for s in found.tables["steps"]] == [
        (1, T0 + 999_500, T0 + 5_000_000), (2, T0 + 5_000_000, T0 + 9_000_000),
    ]  # fmt: skip
    assert dict(found.report.dropped) == {"iteration without times": 1}
    assert found.report.places["iteration without times"].at == 5
    assert found.report.skipped["iteration of another model"] == 1
    memory = [(m["component"], m["allocated_bytes"], m["reserved_bytes"]) for m in found.tables["memory"]]
    assert memory == [
        ("PTA", 2560, 4096), ("GE", None, 8192), ("APP", None, 2160232 * 1024), ("Device", None, 3072),
    ]  # fmt: skip
    (named,) = found.events("annotation")
    assert (named["name"], named["start_ns"], named["duration_ns"], named["thread"]) == ("forward_step", T0, 500, 77)
    assert [row["event"] for row in found.tables["events"]] == [0, 1]


def test_memory_in_mb_is_told_by_the_header(prof: Path) -> None:
    header = "Device_id,Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Device"
    write(prof / OUTPUT, "memory_record_1.csv", header, f"0,PTA,{us(T0)}\t,2.5,4,NPU:0")
    (row,) = read_only(READER, prof).tables["memory"]
    assert (row["allocated_bytes"], row["reserved_bytes"]) == (2_621_440, 4_194_304)


def sends(group: str, size: int) -> list[dict[str, Any]]:
    """A send and a receive over RDMA: the sender logs the link, the receiver its copy."""
    threads = {0: f"Group {group} Communication", 1: "Plane 0", 2: "Group 77 Communication", 3: "Plane 0"}
    args = {
        "src rank": 0,
        "dst rank": 1,
        "transport type": "RDMA",
        "link type": "ROCE",
        "size(Byte)": size,
        "stream id": 9,
    }
    hccs = args | {"link type": "HCCS", "transport type": "SDMA"}
    local = args | {"dst rank": 0, "transport type": "SDMA", "link type": "ON_CHIP"}
    wait = args | {"size(Byte)": 0, "transport type": "LOCAL", "link type": "INVALID_TYPE", "dst rank": 4294967295}
    spans = [
        ("hcom_send__822_0_1", 0, 0, 50, None), ("RDMASend", 1, 10, 20, args), ("Memcpy", 1, 1, 2, local),
        ("Notify_Wait", 1, 3, 4, wait), ("hcom_receive__822_1_1", 0, 60, 30, None), ("Memcpy", 1, 70, 2, local),
        ("Memcpy", 1, 95, 2, local), ("hcom_allReduce__111_0_1", 2, 0, 40, None), ("Memcpy", 3, 10, 1, hccs),
    ]  # fmt: skip
    return names(16, COMMUNICATION, "Communication", threads) + [
        {"ph": "X", "name": n, "pid": COMMUNICATION, "tid": t, "ts": us(T0 + 1000 * s), "dur": d, "args": a}
        for n, t, s, d, a in spans
    ]


def test_ranks_inside_an_unknown_group_stay_unmapped(prof: Path) -> None:
    timeline(prof / OUTPUT / "msprof_1.json", sends("0", 4096))
    found = read_only(READER, prof)
    rows = {r["operation"]: r for r in found.tables["comms"]}
    assert {o: (r["peer"], r["evidence"], r["group"]) for o, r in rows.items() if o != "allreduce"} == {
        "send": (None, "unknown", "822"),
        "recv": (None, "unknown", "822"),
    }
    assert {o: r["payload_bytes"] for o, r in rows.items()} == {"send": 4096, "recv": 4096, "allreduce": 4096}
    assert (rows["send"]["start_ns"], rows["send"]["end_ns"]) == (T0, T0 + 50_000)
    assert rows["send"]["stream"] == 9
    assert dict(found.report.dropped) == {"communication subtask outside of every operation": 1}
    assert found.report.skipped["communication subtask that moves nothing"] == 1


@pytest.mark.parametrize("named", ["name", "hash"])
def test_ranks_of_a_known_group_are_mapped(prof: Path, named: str) -> None:
    communicator = "group_name_19"
    group = communicator if named == "name" else str(group_hash(communicator))
    timeline(prof / OUTPUT / "msprof_1.json", sends(group, 4096))
    about = {communicator: {"group_name": "pp", "group_rank": 0, "global_ranks": [4, 12]}}
    metadata = {"distributed_args": {"rank": 4, "world_size": 16}, "parallel_group_info": about}
    (prof.parent / "profiler_metadata.json").write_text(json.dumps(metadata))
    found = read_only(READER, prof.parent)
    assert (found.identity.rank, found.identity.world_size) == (4, 16)
    rows = {r["operation"]: r for r in found.tables["comms"]}
    assert {o: (r["peer"], r["group"], r["group_ranks"]) for o, r in rows.items() if o != "allreduce"} == {
        "send": (12, communicator, [4, 12]),
        "recv": (12, communicator, [4, 12]),
    }


def test_operations_of_op_summary_fill_in(prof: Path) -> None:
    timeline(prof / OUTPUT / "msprof_1.json", sends("0", 4096))
    lines = [operation("hcom_send__822_0_1", T0), operation("hcom_send__822_2_1", T0 + 500_000), kernel(1)]
    write(prof / OUTPUT, "op_summary_1.csv", SUMMARY, *lines)
    found = read_only(READER, prof)
    assert [(r["operation"], r["start_ns"]) for r in found.tables["comms"]] == [
        ("allreduce", T0), ("send", T0), ("recv", T0 + 60_000), ("send", T0 + 500_000),
    ]  # fmt: skip
    assert "1 communication operations are in op_summary only: their links are unknown" in texts(found.report.notes)
    assert len(found.events("kernel")) == 1


def test_timelines_that_lie_alone_are_one_source_each(tmp_path: Path) -> None:
    op = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 5,
        "tid": 6,
        "ts": us(T0),
        "dur": 2,
        "args": {"Sequence number": 3},
    }
    for rank in (0, 1):
        events = [*names(13, HARDWARE, "Ascend Hardware", {2: "Stream 2"}), task(1 + rank), op]
        timeline(tmp_path / f"trace_rank{rank}.json", events)
    found = [read_source(READER, s) for s in find(READER, tmp_path).sources]
    assert [r.source.path.name for r in found] == ["trace_rank0.json", "trace_rank1.json"]
    assert [[e["name"] for e in r.events("kernel")] for r in found] == [["k1"], ["k2"]]
    assert [[e["sequence_number"] for e in r.events("op")] for r in found] == [[3], [3]]


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b"{}", b"a,b\n1,2\n", b'{"traceEvents": []}', b"\0\1\2,"])
def test_other_files_are_nobodys(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "op_summary_1.csv").write_bytes(content)
    (tmp_path / "msprof_1.json").write_bytes(content)
    found = find(READER, tmp_path)
    assert (found.sources, found.left) == ([], [])
