"""Recorded traces with one thing changed: what must come out is known from the unchanged one, or from the change."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import codes, texts
from helpers.recorded import SAMPLES, looked_at, run_of
from helpers.thorough import spread
from msgspec.json import decode, encode

from tracetool.errors import NoPipeline, UnmatchedTransfer
from tracetool.ingestion import ingest
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import Metrics, measure
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.replays import replay
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

Trace = dict[str, Any]
Change = Callable[[list[Trace]], None]
GIB = 2**30
LAUNCHES = ("cuda_runtime", "cuda_driver")


def _traces(sample: str, ranks: Iterable[int] = range(4)) -> list[Trace]:
    return [decode(gzip.decompress((SAMPLES / sample / f"rank{r}.json.gz").read_bytes())) for r in ranks]


def _spoiled(tmp_path: Path, change: Change, sample: str = "h100-1f1b") -> Reconstruction:
    traces = _traces(sample)
    change(traces)
    for trace in traces:
        trace.pop("launches by correlation", None)
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank, trace in enumerate(traces):
        (folder / f"rank{rank}.json").write_bytes(encode(trace))
    return reconstruct(ingest([folder], tmp_path / "x.run"))


@pytest.fixture(scope="module")
def clean() -> Metrics:
    return measure(looked_at(run_of(SAMPLES / "h100-1f1b")).observed)


def _kernels(trace: Trace) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]


def _launch_of(trace: Trace, kernel: dict[str, Any]) -> dict[str, Any]:
    launches: dict[int, dict[str, Any]] = trace.setdefault("launches by correlation", {})
    if not launches:
        for event in trace["traceEvents"]:
            if event.get("cat") in LAUNCHES and "correlation" in event["args"]:
                launches.setdefault(event["args"]["correlation"], event)
    return launches[kernel["args"]["correlation"]]


def _named(trace: Trace, prefix: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["name"].startswith(prefix)]


def _memory(time: float, size: int, total: int, device: int) -> dict[str, Any]:
    args = {"Bytes": size, "Total Allocated": total, "Total Reserved": total, "Device Type": 1, "Device Id": device}
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "s": "t", "ts": time}
    return event | {"args": args}


def _reduce_beside_the_last_backward(traces: list[Trace]) -> None:
    """A 50 ms all-reduce on a stream of its own, launched by the last autograd node (data-parallel overlap)."""
    trace = traces[0]
    node = _named(trace, "autograd::engine::evaluate_function")[-1]
    at = node["ts"] + node["dur"] / 2
    ids = {"correlation": 99_999_999}
    start = max(k["ts"] for k in _kernels(trace) if "nccl" not in k["name"])
    where = {"ph": "X", "pid": node["pid"], "tid": node["tid"], "ts": at, "dur": 1}
    trace["traceEvents"] += [
        {**where, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "args": ids},
        {
            "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL()", "pid": 0, "tid": 99,
            "ts": start - 9_000, "dur": 50_000, "args": {**ids, "stream": 99},
        },
    ]  # fmt: skip


def _allocate_in_the_optimizer(traces: list[Trace]) -> None:
    """40 GiB inside Optimizer.step."""
    trace = traces[0]
    step = _named(trace, "Optimizer.step")[0]
    before = max((e for e in _named(trace, "[memory]") if e["ts"] < step["ts"]), key=lambda e: e["ts"])
    level = before["args"]["Total Allocated"]
    trace["traceEvents"] += [
        _memory(step["ts"] + 1, 40 * GIB, level + 40 * GIB, 0),
        _memory(step["ts"] + 2, -40 * GIB, level, 0),
    ]


def _mask_behind_messages(traces: list[Trace]) -> None:
    """Masks, positions and the like: 2 us on the compute stream of rank 1 behind each of its messages."""
    trace = traces[1]
    for number, message in enumerate([k for k in _kernels(trace) if "SendRecv" in k["name"]]):
        launch = _launch_of(trace, message)
        ids = {"correlation": 99_999_000 + number}
        name, category = (("cudaLaunchKernel", "kernel"), ("cudaMemcpyAsync", "gpu_memcpy"))[number % 2]
        trace["traceEvents"] += [
            {**launch, "name": name, "ts": launch["ts"] + launch["dur"] + 1, "dur": 1, "args": ids},
            {
                "ph": "X", "cat": category, "name": "arange", "pid": 1, "tid": 7, "ts": message["ts"] + 1,
                "dur": 2, "args": {**ids, "stream": 7, "bytes": 16_384},
            },
        ]  # fmt: skip


def _lose_kernels(traces: list[Trace]) -> None:
    """Every hundredth compute of rank 3."""
    launches = {e["args"]["correlation"]: e for e in traces[3]["traceEvents"] if e.get("cat") in LAUNCHES}
    known = [k for k in _kernels(traces[3]) if "LaunchKernel" in launches[k["args"]["correlation"]]["name"]]
    lost = {id(k) for k in known if "nccl" not in k["name"] and known.index(k) % 100 == 50}
    assert len(lost) > 5
    traces[3]["traceEvents"] = [e for e in traces[3]["traceEvents"] if id(e) not in lost]


def _free_before_the_first_forward(traces: list[Trace]) -> None:
    """4 GiB of rank 1, allocated and freed before the first launch of the step."""
    first = min(_named(traces[1], "[memory]"), key=lambda e: e["ts"])
    level = first["args"]["Total Allocated"] - first["args"]["Bytes"]
    traces[1]["traceEvents"] += [
        _memory(first["ts"] - 2, 4 * GIB, level + 4 * GIB, 1),
        _memory(first["ts"] - 1, -4 * GIB, level, 1),
    ]


def _allocate_elsewhere(traces: list[Trace]) -> None:
    """Ten times 2 GiB of rank 2, on another device."""
    since = sorted(e["ts"] for e in _named(traces[2], "[memory]"))[100]
    traces[2]["traceEvents"] += [_memory(since + i / 1000, 2 * GIB, 2 * GIB * i, 0) for i in range(1, 11)]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Reconstruction:
    """What the changes above leave, each of other ranks or tables."""

    def change(traces: list[Trace]) -> None:
        for each in (_reduce_beside_the_last_backward, _mask_behind_messages, _lose_kernels):
            each(traces)
        for each in (_allocate_in_the_optimizer, _free_before_the_first_forward, _allocate_elsewhere):
            each(traces)

    return _spoiled(tmp_path_factory.mktemp("together"), change)


def test_what_runs_beside_actions_or_behind_messages_is_no_compute(together: Reconstruction, clean: Metrics) -> None:
    assert measure(together.observed).window_ns == clean.window_ns
    assert measure(together.observed).rank_compute_ns[:3] == clean.rank_compute_ns[:3]


def test_memory_counts_where_the_step_holds_it(together: Reconstruction, clean: Metrics) -> None:
    """With the optimizer's it does not fit 40 GiB; what is freed before, or lies on another device, changes nothing."""
    peaks = measure(together.observed).peak_hbm_bytes
    assert (peaks[0] or 0) > 45 * GIB
    assert peaks[1:] == clean.peak_hbm_bytes[1:]
    assert answer(together, ["1f1b"], Scenario(hbm_bytes=40 * GIB)).results[0].feasible is False


def test_kernels_that_the_profiler_lost_are_counted(together: Reconstruction) -> None:
    traces: list[Trace] = [{}, {}, {}, _traces("h100-1f1b", ranks=(3,))[0]]
    count = len(_kernels(traces[3]))
    _lose_kernels(traces)
    (told,) = texts(together.notes, NoticeCode.KERNELS_LOST)
    assert told.startswith(f"rank 3: {count - len(_kernels(traces[3]))} kernels ")


# Tails in which ranks wait for each other are those of test_tails by default.
@pytest.mark.thorough
def test_ranks_meet_at_a_collective_before_the_optimizer(tmp_path: Path) -> None:
    """A global all-reduce after the last backward, then a rank that needs 60 ms more: the replayed step is the
    observed one, because nobody passes the all-reduce before the slowest has come."""

    def change(traces: list[Trace]) -> None:
        ends = []
        for trace in traces:
            optimizer = _named(trace, "Optimizer.step")[0]["ts"]
            computes = [k for k in _kernels(trace) if k["ts"] < optimizer + 10**9 and "nccl" not in k["name"]]
            ends.append(max(k["ts"] + k["dur"] for k in computes if _launch_of(trace, k)["ts"] < optimizer))
        meet = max(ends) + 100
        for trace, end in zip(traces, ends, strict=True):
            optimizer = _named(trace, "Optimizer.step")[0]
            inside = [
                k for k in _kernels(trace)
                if optimizer["ts"] <= _launch_of(trace, k)["ts"] <= optimizer["ts"] + optimizer["dur"]
            ]  # fmt: skip
            shift = meet + 600 - min(k["ts"] for k in inside)
            for kernel in inside:
                kernel["ts"] += shift
            if trace is traces[3]:
                max(inside, key=lambda k: k["ts"])["dur"] += 60_000
            barrier = next(e for e in trace["traceEvents"] if e.get("args", {}).get("Collective name") == "barrier")
            at = optimizer["ts"] - 20
            record = {**barrier, "ts": at, "dur": 10}
            record["args"] = {**barrier["args"], "Collective name": "allreduce", "External id": 88_888_888}
            ids = {"correlation": 99_999_999, "External id": 88_888_888}
            trace["traceEvents"] += [
                record,
                {**record, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": at + 2, "args": ids},
                {
                    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", "pid": 0, "tid": 7,
                    "ts": end + 50, "dur": meet + 500 - (end + 50), "args": {**ids, "stream": 7},
                },
            ]  # fmt: skip

    found = _spoiled(tmp_path, change)
    done = replay(found.pipeline, found.pipeline.observed, Scenario())
    observed = measure(found.observed).step_ns
    assert observed > 295_000_000
    assert measure(done.timeline).step_ns == pytest.approx(observed, rel=0.005)


def test_a_pipeline_whose_middle_edge_is_not_recorded_is_no_shorter_pipeline(tmp_path: Path) -> None:
    """Ranks 1 and 2 talk over another backend (TCP between data centres): no records between them."""

    def change(traces: list[Trace]) -> None:
        for rank, other in ((1, 2), (2, 1)):
            trace = traces[rank]
            trace["traceEvents"] = [
                e for e in trace["traceEvents"]
                if other not in (e.get("args", {}).get("Src Rank"), e.get("args", {}).get("Dst Rank"))
            ]  # fmt: skip

    with pytest.raises(NoPipeline, match=r"exchange no messages"):
        _spoiled(tmp_path, change)


# Messages alone tell the order of made jobs by default (test_coordinates).
@pytest.mark.thorough
@pytest.mark.parametrize("names", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_without_a_group_of_the_pipeline_its_order_is_inferred_and_said(
    tmp_path: Path, clean: Metrics, names: tuple[int, ...]
) -> None:
    """The ranks renamed, and all messages carried by one group with a fifth rank: the chain of peers remains."""

    def change(traces: list[Trace]) -> None:
        for trace, name in zip(traces, names, strict=True):
            trace["distributedInfo"] |= {"rank": name, "world_size": 5, "pg_config": []}
            for args in (e.get("args", {}) for e in trace["traceEvents"]):
                if args.get("Process Group Ranks") == "[0, 1, 2, 3]":
                    args |= {"Process Group Ranks": "[0, 1, 2, 3, 4]", "Group size": 5}
                for peer in {"Src Rank", "Dst Rank"} & set(args):
                    args[peer] = names[args[peer]]

    found = _spoiled(tmp_path, change)
    assert tuple(rank.rank for rank in found.pipeline.ranks) == names
    assert NoticeCode.STAGE_ORDER in codes(found.notes)
    assert measure(found.observed).step_ns == clean.step_ns


# Clocks are seconds off in test_other_clocks by default, of rows and not of a file.
@pytest.mark.thorough
def test_clocks_that_are_off_are_corrected_and_told(tmp_path: Path, clean: Metrics) -> None:
    """By less than a step, and by seconds, which leave less to go by."""

    def change(traces: list[Trace]) -> None:
        traces[2]["baseTimeNanoseconds"] += 8_000_000_000
        for event in traces[3]["traceEvents"]:
            if "ts" in event:
                event["ts"] -= 30_000

    found = _spoiled(tmp_path, change)
    told = {f.subject: f.value for f in found.findings if f.fact == "clocks"}
    assert told["rank 2"].startswith("-8.000 s added")
    assert told["rank 3"].startswith("+30.0 ms added")
    assert NoticeCode.MESSAGES_EARLY not in codes(found.notes)
    assert measure(found.observed).window_ns == pytest.approx(clean.window_ns, abs=5_000)
    assert abs(answer(found, ["1f1b"]).fidelity.error_ratio) < 0.02


def test_an_extra_message_inside_the_step_is_refused(tmp_path: Path) -> None:
    """One more send on rank 0 than rank 1 receives."""

    def change(traces: list[Trace]) -> None:
        events = traces[0]["traceEvents"]
        send = next(e for e in events if e.get("args", {}).get("Collective name") == "send")
        events.append({**send, "ts": send["ts"] - 0.5})

    with pytest.raises(UnmatchedTransfer, match="rank 0 sends 9 messages to rank 1, which receives 8"):
        _spoiled(tmp_path, change)


# Readers sort what they read, and are tried with other orders by default (tests/readers/test_kineto, test_soup).
@pytest.mark.thorough
def test_the_order_of_events_in_the_file_does_not_matter(tmp_path: Path) -> None:
    def change(traces: list[Trace]) -> None:
        for trace in traces:
            trace["traceEvents"].reverse()

    found = _spoiled(tmp_path, change)
    assert found.observed == looked_at(run_of(SAMPLES / "h100-1f1b")).observed


# Steps without marks are those with them in test_steps by default; here all figures are, memory among them.
@pytest.mark.thorough
def test_without_marks_steps_end_with_the_optimizer(tmp_path: Path, clean: Metrics) -> None:
    def change(traces: list[Trace]) -> None:
        for trace in traces:
            trace["traceEvents"] = [e for e in trace["traceEvents"] if not e["name"].startswith("ProfilerStep")]

    found = _spoiled(tmp_path, change)
    assert measure(found.observed) == clean
    assert any("where the optimizer ends" in note for note in texts(found.notes, NoticeCode.STEPS_CUT))


# Two unmarked steps of a recording are two in test_steps by default; these are equal to the nanosecond.
@pytest.mark.thorough
def test_two_unmarked_steps_are_two(tmp_path: Path, clean: Metrics) -> None:
    """The step once more, 300 ms later with new ids: either of the two is the recorded one."""

    def change(traces: list[Trace]) -> None:
        for trace in traces:
            events = [e for e in trace["traceEvents"] if not e["name"].startswith("ProfilerStep")]
            again = []
            for event in events:
                args = dict(event.get("args", {}))
                for key in ("correlation", "External id", "Sequence number"):
                    if key in args:
                        args[key] += 50_000_000
                again.append({**event, "ts": event["ts"] + 300_000, "args": args})
            trace["traceEvents"] = events + again

    found = _spoiled(tmp_path, change)
    assert measure(found.observed).window_ns == clean.window_ns
    assert found.pipeline.observed.shape.microbatches == 8


def _relabelled(tmp_path: Path, rename: Callable[[int, str], str]) -> Reconstruction:
    """The labelled sample with other labels: ``rename`` gets the rank and the label after ``PP:``."""

    def change(traces: list[Trace]) -> None:
        for rank, trace in enumerate(traces):
            for event in _named(trace, "PP:"):
                event["name"] = f"PP:{rename(rank, event['name'][3:])}"

    return _spoiled(tmp_path, change, "h100-1f1b-annotated")


# Backwards are held against their messages as forwards are.
@spread("kind", ["F", "B"], 1)
def test_actions_with_labels_that_their_messages_contradict_are_refused(tmp_path: Path, kind: str) -> None:
    """On rank 1 microbatches 2 and 3 change names, those of their messages stay: 2 is sent before it was made."""
    swapped = {f"1{kind}2": f"1{kind}3", f"1{kind}3": f"1{kind}2"}
    with pytest.raises(UnmatchedTransfer, match=rf"rank 1: what 1{kind}2 makes is sent .* before it begins"):
        _relabelled(tmp_path, lambda rank, label: swapped.get(label, label) if rank == 1 else label)


# Labels that contradict messages are refused by default (above).
@pytest.mark.thorough
def test_labels_of_stages_that_send_to_no_neighbour_are_refused(tmp_path: Path) -> None:
    """Ranks 1 and 2 take each other's labels, but rank 0 still sends to rank 1."""
    with pytest.raises(UnmatchedTransfer, match=r"stage 0 \(rank 0\) sends F0 to stage 2 \(rank 1\)"):
        _relabelled(tmp_path, lambda rank, label: f"{(0, 2, 1, 3)[rank]}{label[1:]}")


def test_a_collective_that_an_action_waits_for_is_told(tmp_path: Path, clean: Metrics) -> None:
    """A gather of 20 ms in the middle of a forward of the last rank; all that follows on any rank is 20 ms later."""
    length = 20_000

    def change(traces: list[Trace]) -> None:
        own = traces[3]
        computes = sorted((k for k in _kernels(own) if "nccl" not in k["name"]), key=lambda k: k["ts"])
        inside = next(k for k in computes if "sdpa" in k["name"])
        launch, at = _launch_of(own, inside), inside["ts"]
        for trace in traces:
            cut = at + (own["baseTimeNanoseconds"] - trace["baseTimeNanoseconds"]) / 1000
            for event in trace["traceEvents"]:
                if event.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
                    if event["ts"] >= cut:
                        event["ts"] += length
                    elif "nccl" in event["name"] and event["ts"] + event["dur"] > cut:
                        event["dur"] += length
        ids = {"correlation": 99_999_999}
        own["traceEvents"] += [
            {**launch, "name": "cudaLaunchKernelExC", "ts": launch["ts"] - 0.5, "dur": 0.1, "args": ids},
            {
                "ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL()", "pid": 3, "tid": 99, "ts": at,
                "dur": length, "args": {**ids, "stream": 99},
            },
        ]  # fmt: skip

    found = _spoiled(tmp_path, change)
    assert measure(found.observed).window_ns == pytest.approx(clean.window_ns + length * 1000, abs=5_000)
    (told,) = texts(found.notes, NoticeCode.COLLECTIVES_BARE)
    assert "20.0 ms" in told
    assert told.endswith("on rank 3")
