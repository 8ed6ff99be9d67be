"""Traces of several ranks in one file: read rank by rank where the events tell whose they are, else refused.

The same ranks in files of their own are the oracle. The ways of merging are those of public tools and scripts:
lists put one behind the other, numbers of processes shifted or made texts with the place in the job, a process per
rank, the rank in the arguments of the events.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import SAMPLES, data
from helpers.thorough import spread
from msgspec.json import decode, encode

from tracetool.errors import IngestError
from tracetool.ingestion import discover, ingest
from tracetool.readers.kineto.census import label_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tracetool.store.run import Run

Event = dict[str, Any]
Trace = dict[str, Any]

FIRST_DEVICE, OTHER_PROCESS = 0, 4000
FIRST_US = 30_000


@cache
def _whole() -> list[bytes]:
    """The first part of the sample's step: enough messages to tell the ranks by."""
    traces = []
    for rank in range(4):
        text = gzip.decompress((SAMPLES / "h100-1f1b" / f"rank{rank}.json.gz").read_bytes())
        trace = decode(text)
        events = [e for e in trace["traceEvents"] if e.get("ph") in ("X", "M", "i")]
        begin = min(e["ts"] for e in events if e["ph"] == "X")
        trace["traceEvents"] = [e for e in events if e.get("ts", 0) < begin + FIRST_US]
        traces.append(encode(trace))
    return traces


def _ranks(count: int = 4) -> list[Trace]:
    return list(map(decode, _whole()[:count]))


def _is_device(event: Event) -> bool:
    return event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def _merged(traces: list[Trace], *, keep: bool = True) -> Trace:
    """One trace: what stands around the events of the first, and the events of all behind each other."""
    around = {key: value for key, value in traces[0].items() if key != "traceEvents"} if keep else {}
    around.setdefault("baseTimeNanoseconds", traces[0].get("baseTimeNanoseconds", 0))
    return around | {"traceEvents": [event for trace in traces for event in trace["traceEvents"]]}


def _changed(change: Callable[[int, Event], None], *, keep: bool = True) -> Trace:
    traces = _ranks()
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            change(rank, event)
    return _merged(traces, keep=keep)


def _one_behind_the_other() -> Trace:
    return _merged(_ranks())


def _all_on_the_first_device() -> Trace:
    def change(_rank: int, event: Event) -> None:
        if _is_device(event):
            event["pid"] = FIRST_DEVICE
            event["args"]["device"] = FIRST_DEVICE

    return _changed(change)


def _sorted_by_time() -> Trace:
    trace = _merged(_ranks())
    trace["traceEvents"].sort(key=lambda event: event.get("ts", 0))
    return trace


def _rank_in_the_arguments() -> Trace:
    def change(rank: int, event: Event) -> None:
        event.setdefault("args", {})["rank"] = rank
        if isinstance(event.get("pid"), int):
            event["pid"] += rank * 10**8
        if "correlation" in event["args"]:
            event["args"]["correlation"] += rank * 10**7

    return _changed(change, keep=False)


def _place_in_the_process() -> Trace:
    def change(rank: int, event: Event) -> None:
        event["pid"] = f"[TP00-PP{rank:02d}] {event.get('pid')}"

    return _changed(change)


def _rank_in_the_process() -> Trace:
    def change(rank: int, event: Event) -> None:
        event["pid"] = f"rank{rank}_pid{event.get('pid')}"

    return _changed(change, keep=False)


def _a_process_per_rank_with_names() -> Trace:
    traces = _ranks()
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            event["pid"] = rank + 1
        trace["traceEvents"].append(
            {"name": "process_name", "ph": "M", "pid": rank + 1, "tid": 0, "args": {"name": f"Rank {rank}"}}
        )
    return _merged(list(reversed(traces)), keep=False)


def _a_process_per_rank() -> Trace:
    def change(rank: int, event: Event) -> None:
        event["pid"] = 7 + rank

    return _changed(change)


READ: dict[str, tuple[Callable[[], Trace], str]] = {
    "one behind the other": (_one_behind_the_other, "communication"),
    "all on the first device": (_all_on_the_first_device, "communication"),
    "sorted by time": (_sorted_by_time, "communication"),
    "the rank in the arguments": (_rank_in_the_arguments, "labels"),
    "the place in the process": (_place_in_the_process, "communication"),
    "the rank in the process": (_rank_in_the_process, "labels"),
    "a process per rank, with names": (_a_process_per_rank_with_names, "labels"),
    "a process per rank": (_a_process_per_rank, "communication"),
}


def _tables(run: Run) -> list[list[tuple[Any, ...]]]:
    return [
        run.rows(f"SELECT * EXCLUDE ({without}) FROM {name} ORDER BY ALL")
        for name, without in (
            ("events", "event, correlation"),
            ("comms", "communicator"),
            ("steps", "vendor_bubble_ns"),
        )
    ]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("apart")
    for rank, trace in enumerate(_ranks()):
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return ingest([folder], folder / "x.run")


# Each form tells ranks by something else: what one of them alone tells wrongly is found by all.
@spread("form", READ, ["sorted by time"])
def test_merged_ranks_are_read_as_those_in_files_of_their_own(form: str, apart: Run, tmp_path: Path) -> None:
    make, told_by = READ[form]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(make()))
    run = ingest([path], tmp_path / "x.run")
    assert run.rows("SELECT rank FROM ranks ORDER BY rank") == [(0,), (1,), (2,), (3,)]
    assert run.manifest["world_size"] == 4
    assert _tables(run) == _tables(apart)
    notes = [note for source in run.manifest["sources"] for note in source["notes"]]
    assert sum(told_by in note and "of a file of several ranks" in note for note in notes) == 4
    assert [item.rank for item in discover([path], keep_conflicts=True).sources] == [0, 1, 2, 3]


def _one_process(device: Callable[[int], int]) -> Trace:
    def change(rank: int, event: Event) -> None:
        if _is_device(event):
            event["pid"] = event["args"]["device"] = device(rank)
        elif isinstance(event.get("pid"), int):
            event["pid"] = OTHER_PROCESS

    return _changed(change)


def _several_devices() -> Trace:
    """One process that drives two devices: a model cut over both, each kernel launched once."""
    (trace,) = _ranks(1)
    for number, event in enumerate(trace["traceEvents"]):
        if _is_device(event) and number % 2:
            event["pid"] = event["args"]["device"] = 1
    return trace


def test_names_that_speak_of_ranks() -> None:
    said = {
        "Rank 3": "rank 3", "python rank_12": "rank 12", "node0:rank3 (CPU)": "rank 3", "global_rank=7": "rank 7",
        "[TP00-PP01] 4000": "TP00-PP01", "[pp2] 0": "PP2", "rank0_pid40": "rank 0",
        "local_rank 1": None, "pp_rank=2": None, "GPU 3": None, "python": None, "4000": None, "ranking 5": None,
    }  # fmt: skip
    assert {text: label_of(text) for text in said} == said


def test_containers_whose_processes_have_numbers_of_devices_are_not_mixed_up(tmp_path: Path) -> None:
    """Process 1 of a container runs on device 0, process 0 on device 1: no kernel follows launches of its number."""
    traces = _ranks(2)
    for rank, trace in enumerate(traces):
        for event in trace["traceEvents"]:
            if _is_device(event):
                event["pid"] = event["args"]["device"] = rank
            elif isinstance(event.get("pid"), int):
                event["pid"] = 1 - rank
    events = [event for pair in zip(*(t["traceEvents"] for t in traces), strict=False) for event in pair]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(traces[0] | {"traceEvents": events}))
    with pytest.raises(IngestError, match="holds the events of several ranks"):
        ingest([path], tmp_path / "x.run")


REFUSED: dict[str, tuple[Callable[[], Trace], str]] = {
    "one process number, several devices": (
        lambda: _one_process(lambda rank: rank),
        "kernels run on devices 0, 1, 2, 3",
    ),
    "one process number, one device": (lambda: _one_process(lambda _: 0), "posted by ranks 0, 1, 2, 3"),
    "one process, several devices": (_several_devices, "kernels run on devices"),
}


@spread("form", REFUSED, 1)
def test_ranks_that_nothing_tells_apart_are_refused(form: str, tmp_path: Path) -> None:
    make, why = REFUSED[form]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(make()))
    with pytest.raises(IngestError, match=r"holds the events of several ranks") as error:
        ingest([path], tmp_path / "x.run")
    assert why in str(error.value)
    assert "args.rank" in (error.value.hint or "")
    assert discover([path], keep_conflicts=True).conflicts


def test_ranks_whose_numbers_nothing_tells_are_refused(tmp_path: Path) -> None:
    """Without any communication two processes may be any two ranks."""
    trace = _merged(_ranks(2))
    trace["traceEvents"] = [
        e for e in trace["traceEvents"] if "nccl" not in e["name"] and e["name"] != "record_param_comms"
    ]
    path = tmp_path / "merged.json"
    path.write_text(json.dumps(trace))
    with pytest.raises(IngestError, match="nothing tells which rank each is"):
        ingest([path], tmp_path / "x.run")


# Other ways of putting whole traces into a file.
@spread("form", ["list", "object", "lines"], 1)
def test_whole_traces_in_one_file_are_never_one_rank(form: str, tmp_path: Path) -> None:
    traces = _ranks(2)
    path = tmp_path / "merged.json"
    if form == "lines":
        path.write_text("\n".join(map(json.dumps, traces)))
    else:
        path.write_text(json.dumps(traces if form == "list" else {f"rank{n}": t for n, t in enumerate(traces)}))
    try:
        run = ingest([path], tmp_path / "x.run")
    except IngestError as error:
        assert "trace" in str(error) or "several ranks" in str(error)  # noqa: PT017 - either answer is right
    else:
        assert run.rows("SELECT rank FROM ranks ORDER BY rank") == [(0,), (1,)]


def test_the_published_form_is_read_as_four_ranks(tmp_path: Path) -> None:
    run = ingest([data("cases", "merged-ranks-own-pids")], tmp_path / "x.run")
    assert run.rows("SELECT rank, count(*) FROM events WHERE category = 'kernel' GROUP BY ALL ORDER BY ALL") == [
        (0, 48), (1, 54), (2, 52), (3, 46),
    ]  # fmt: skip
    assert run.rows("SELECT count(*) FROM comms WHERE peer IS NOT NULL") == [(48,)]


def test_a_merged_file_beside_a_rank_it_holds_is_a_conflict(tmp_path: Path) -> None:
    (tmp_path / "merged.json").write_text(json.dumps(_merged(_ranks())))
    (tmp_path / "rank2.json").write_text(json.dumps(_ranks()[2]))
    with pytest.raises(IngestError, match="both say rank 2"):
        ingest([tmp_path], tmp_path / "x.run")


def test_a_capture_that_comes_again_later_is_of_one_rank(tmp_path: Path) -> None:
    """Two windows of one process, one behind the other: nothing in them happens at the same time."""
    (first,), (again,) = _ranks(1), _ranks(1)
    last = max(e["ts"] + e.get("dur", 0) for e in first["traceEvents"] if e["ph"] == "X")
    begin = min(e["ts"] for e in first["traceEvents"] if e["ph"] == "X")
    for event in again["traceEvents"]:
        event["ts"] = event.get("ts", begin) + last - begin + 1000
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(_merged([first, again])))
    run = ingest([path], tmp_path / "x.run")
    assert run.rows("SELECT rank FROM ranks") == [(0,)]


# One file of four ranks by default (above), and files that claim one rank are refused (above).
@pytest.mark.thorough
# Where nothing stands around the events, no file claims another one's rank.
@spread("keep", [True, False], 1)
def test_two_files_of_two_ranks_each_are_four_ranks(keep: bool, apart: Run, tmp_path: Path) -> None:
    """What stands around the events says nothing, or the rank of the first: both files would claim it."""
    for node in range(2):
        traces = _ranks()[2 * node : 2 * node + 2]
        traces[0]["distributedInfo"] = traces[0]["distributedInfo"] | {"rank": 0}
        (tmp_path / f"node-{node}.json").write_text(json.dumps(_merged(traces, keep=keep)))
    assert [item.rank for item in discover([tmp_path]).sources] == [0, 1, 2, 3]
    run = ingest([tmp_path], tmp_path / "x.run")
    assert _tables(run) == _tables(apart)


def test_files_of_one_rank_each_without_a_rank_are_refused_as_before(tmp_path: Path) -> None:
    for rank in range(2):
        trace = _merged([_ranks()[rank]], keep=False)
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] != "record_param_comms"]
        (tmp_path / f"trace-{'ab'[rank]}.json").write_text(json.dumps(trace))
    with pytest.raises(IngestError, match=r"2 sources do not say their rank: .*trace-a\.json, .*trace-b\.json\."):
        ingest([tmp_path], tmp_path / "x.run")
