"""What a recording does not hold is not said to be absent from the run: unread, unrecorded and unknown are told."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data
from helpers.small_pipeline import Job, write

from tracetool.cli.facts import summary_lines
from tracetool.errors import NoDeviceActivity, NoPipeline
from tracetool.ingestion import ingest
from tracetool.ingestion.runs import ingest as ingest_whole
from tracetool.reconstruction import reconstruct
from tracetool.reports.recording.findings import find_gaps
from tracetool.reports.recording.summary import run_summary

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

START = 1732300000000000
MATRIX = "ASCEND_PROFILER_OUTPUT/communication_matrix.json"


def _said(run: Run) -> str:
    return "\n".join(summary_lines(run_summary(run), run))


def _two_of_eight(folder: Path) -> Path:
    return shutil.copytree(data("cases", "ascend-two-of-eight"), folder, copy_function=shutil.copyfile)


def test_two_of_eight_sides_give_upper_bounds_and_a_job_of_eight(tmp_path: Path) -> None:
    run = ingest_whole([data("cases", "ascend-two-of-eight")], tmp_path / "x.run")
    assert run.rows("SELECT DISTINCT upper_bound FROM waits") == [(True,)]
    assert run.manifest["world_size"] == 8
    assert run.manifest["missing_ranks"] == [2, 3, 4, 5, 6, 7]
    assert run.rows("SELECT DISTINCT confidence FROM findings WHERE fact = 'communication'") == [(0.0,)]
    assert "2 of 8 ranks" in _said(run)
    with pytest.raises(NoPipeline, match="6 ranks of the job missing"):
        reconstruct(run)


@pytest.mark.parametrize(
    ("links", "members", "is_bound"),
    [(("0-1", "1-0"), 2, False), (("0-1", "0-2", "1-0", "1-2"), 3, True), (None, 2, False)],
)
def test_members_of_a_group_are_those_that_the_links_name(
    links: tuple[str, ...] | None, members: int, *, is_bound: bool, tmp_path: Path
) -> None:
    folder = _two_of_eight(tmp_path / "traces")
    for rank in (0, 1):
        path = folder / f"rank_{rank}_ascend_pt" / MATRIX
        if links is None:
            path.unlink()
            continue
        matrix = json.loads(path.read_text())
        for operations in matrix["step50"]["collective"].values():
            cell = next(iter(operations.values()))
            operations.clear()
            operations |= {ends: cell for ends in links if ends.startswith(f"{rank}-")}
        path.write_text(json.dumps(matrix))
    run = ingest_whole([folder], tmp_path / "x.run")
    assert run.manifest["world_size"] == members
    assert run.rows("SELECT DISTINCT upper_bound FROM waits") == [(is_bound,)]


def _trace(path: Path, events: list[dict[str, Any]], **around: Any) -> Path:
    host = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 10, "tid": 10, "ts": START, "dur": 9}
    path.write_text(json.dumps({"schemaVersion": 1, **around, "traceEvents": [host, *events]}))
    return path


def test_device_events_of_another_kind_are_named(tmp_path: Path) -> None:
    run = ingest([data("cases", "mtia-device-events")], tmp_path / "x.run")
    said = _said(run)
    assert "20 events of a device that is not read (mtia_ccp_events)" in said
    assert "the host only" not in said
    assert "ProfilerActivity.CUDA" not in said
    with pytest.raises(NoDeviceActivity, match=r"20 events of kinds that are not read \(mtia_ccp_events\)"):
        reconstruct(run)


@pytest.mark.parametrize("kind", ["hpu_op", "collective_comm", "npu_kernel_of_a_later_version"])
def test_events_of_any_unread_kind_are_counted_and_named(kind: str, tmp_path: Path) -> None:
    events = [{"ph": "X", "cat": kind, "name": "gemm", "pid": 1, "tid": 1, "ts": START + n, "dur": 1} for n in range(7)]
    run = ingest([_trace(tmp_path / "rank0.json", events)], tmp_path / "x.run")
    assert run.manifest["sources"][0]["unread"] == {kind: 7}
    assert f"7 events of kinds that are not read ({kind})" in _said(run)
    assert any(f"({kind})" in gap.lacks for gap in find_gaps(run))


def test_what_the_profiler_writes_aside_is_no_missing_device(tmp_path: Path) -> None:
    aside = ["python_function", "gpu_user_annotation", "cuda_sync", "Trace"]
    events = [{"ph": "X", "cat": kind, "name": "x", "pid": 1, "tid": 1, "ts": START, "dur": 1} for kind in aside]
    events += [{"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "args": {"name": "python"}}]
    events += [{"ph": "f", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 1, "tid": 1, "ts": START, "bp": "e"}]
    run = ingest([_trace(tmp_path / "rank0.json", events)], tmp_path / "x.run")
    assert run.manifest["sources"][0]["unread"] == {}
    assert "a trace of the host only" in _said(run)


def test_sends_and_receives_without_a_peer_are_counted_as_such(tmp_path: Path) -> None:
    run = ingest([data("cases", "records-without-peers")], tmp_path / "x.run")
    assert "48 of them sends and receives (48 without a peer)" in _said(run)
    with pytest.raises(NoPipeline, match="48 sends and receives without a peer"):
        reconstruct(run)


@pytest.mark.parametrize("said", [{}, {"Src Rank": -1, "Dst Rank": -1}])
def test_a_peer_that_is_no_other_rank_is_none(said: dict[str, int], tmp_path: Path) -> None:
    """Records of older torch name the rank itself, where later ones name the peer."""

    def change(_: int, trace: dict[str, Any]) -> None:
        for event in trace["traceEvents"]:
            if event["name"] == "record_param_comms":
                kept = {k: v for k, v in event["args"].items() if k not in {"Src Rank", "Dst Rank"}}
                event["args"] = kept | said

    run = ingest([write(tmp_path / "traces", Job(3), change)], tmp_path / "x.run")
    assert run.rows("SELECT count(*), count(peer) FROM comms") == [(32, 0)]
    with pytest.raises(NoPipeline, match="32 sends and receives without a peer"):
        reconstruct(run)


def test_records_of_other_memory_are_told(tmp_path: Path) -> None:
    memory = {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "s": "t",
        "pid": 10,
        "tid": 10,
        "ts": START + 1,
    }
    events = [{**memory, "args": {"Bytes": 8, "Device Type": 0, "Device Id": -1}}] * 3
    run = ingest([_trace(tmp_path / "rank0.json", events)], tmp_path / "x.run")
    assert "no memory records of its device, but 3 records (host memory) that are not read" in _said(run)
    run = ingest([_trace(tmp_path / "rank0.json", [])], tmp_path / "y.run")
    assert "no memory records in it" in _said(run)


@pytest.mark.parametrize(
    ("around", "world"),
    [
        ({}, 6),
        ({"distributedInfo": {"rank": 0, "world_size": 8}}, 8),
        ({"distributedInfo": {"rank": 0, "world_size": 1}}, 6),
        ({"distributedInfo": {"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 5, 11]}]}}, 12),
    ],
)
def test_the_job_is_as_large_as_the_highest_rank_named(around: dict[str, Any], world: int, tmp_path: Path) -> None:
    record = {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 10, "tid": 10, "ts": START + 1, "dur": 1,
        "args": {"Collective name": "send", "dtype": "Float", "In msg nelems": 4, "Dst Rank": 5,
                 "Process Group Name": "1", "Process Group Ranks": "[0, 5]"},
    }  # fmt: skip
    run = ingest([_trace(tmp_path / "rank0.json", [record], **around)], tmp_path / "x.run")
    assert run.manifest["world_size"] == world
    assert run.manifest["missing_ranks"] == list(range(1, world))
    assert run.rows("SELECT world_size FROM ranks") == [(world,)]


def test_no_communication_that_is_read_is_no_proof_of_none(tmp_path: Path) -> None:
    run = ingest([data("cases", "ascend-npu-op-mem")], tmp_path / "x.run")
    assert "no communication operations were read" in _said(run)
    with pytest.raises(NoPipeline, match="whether ranks exchanged messages is unknown"):
        reconstruct(run)
