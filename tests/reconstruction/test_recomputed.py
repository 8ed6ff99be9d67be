"""What backwards repeat of their forwards: said on evidence alone. Recordings that do recompute: test_megatron."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from helpers.notices import codes
from helpers.recorded import data, run_of
from helpers.thorough import spread
from msgspec.json import decode, encode

from tracetool.ingestion import ingest
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.actions import Kernel, Segment
from tracetool.reconstruction.actions.kernels import autograd_kernels
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.closeup.action_view import ActionView, record_recompute
from tracetool.reconstruction.steps import Step
from tracetool.reconstruction.steps.reading import StepEvidence, StepReading

if TYPE_CHECKING:
    from pathlib import Path

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
GEMM, GELU = "nvjet_tst_128x256_TNT", "vectorized_elementwise_kernel<gelu>"
UNDOING = ["gelu_backward", "dgrad", "wgrad"]


def _check_nothing_is_repeated(found: Reconstruction) -> None:
    segments = [s for of_rank in found.segments.values() for s in of_rank]
    forward = {k.name for s in segments if s.kind is F for k in s.kernels if k.is_compute}
    backward = [k for s in segments if s.kind is B for k in s.kernels if k.is_compute]
    assert backward
    assert not forward & {k.name for k in backward}, "none of the backward's kernels is one of the forward's"
    assert not [k for k in backward if k.is_recompute]
    assert not [f for f in found.findings if f.fact == "recompute"]


# Each is of another job, whose nodes launch other kernels.
@spread(
    "case",
    ["two-tensors-per-hop", "merged-ranks-own-pids", "microbatches-ramp-up", "ring-attention-pp2-cp2"],
    ["ring-attention-pp2-cp2"],
)
def test_kernels_that_nodes_launch_themselves_repeat_no_forward(case: str) -> None:
    """Their kernels name the autograd node as their op, whose number is that of the forward op it undoes.

    Nor is a backward split whose products are hidden in them: its weight gradients are unknown, not nothing.
    """
    found = reconstruct(run_of(data("cases", case)))
    _check_nothing_is_repeated(found)
    assert not [f for f in found.findings if f.fact == "split"]
    assert all(not stage.derived for stage in found.pipeline.stages)
    assert NoticeCode.SPLIT_UNKNOWN in codes(found.notes)


def test_kernels_of_the_call_within_a_node_repeat_no_forward(tmp_path: Path) -> None:
    """A Function of the user launches kernels inside an op of its node's name and number, as torch records them."""
    called = 10**6
    for path in data("cases", "two-tensors-per-hop").glob("*.json.gz"):
        trace = decode(gzip.decompress(path.read_bytes()))
        calls: list[dict[str, Any]] = []
        moved = {}
        for event in trace["traceEvents"]:
            name, number = str(event.get("name")), event.get("args", {}).get("External id")
            if name.startswith("autograd::engine::evaluate_function: "):
                moved[number] = called + number
                call = {**event, "ts": event["ts"] + 0.1, "dur": event["dur"] - 0.2, "name": name.split(": ")[1]}
                calls.append({**call, "args": {**event["args"], "External id": moved[number]}})
        assert calls
        for event in trace["traceEvents"]:
            if event.get("cat") == "kernel" and event["args"].get("External id") in moved:
                event["args"]["External id"] = moved[event["args"]["External id"]]
        trace["traceEvents"] += calls
        (tmp_path / path.name).write_bytes(gzip.compress(encode(trace), 1))
    _check_nothing_is_repeated(reconstruct(ingest([tmp_path], tmp_path / "x.run")))


def _action(kind: ActionKind, names: list[str], again: list[str], run_ns: int = 100) -> ActionView:
    """One of the kernels named; those of ``again`` are of ops with nodes of their own, 100 ns each unless said."""
    kernels, at = [], 0
    for name in again + names:
        repeats = name in again and kind is B
        length = run_ns if repeats else 100
        kernels.append(
            Kernel(
                at, at + length, at, name=name, in_backward=kind is B,
                sequence_number=7 if repeats or kind is F else None, op_name=f"aten::{name}",
            )
        )  # fmt: skip
        at += length
    times = [k.end_ns - k.start_ns for k in kernels]
    segment = Segment(
        kind=kind, microbatch=0, stage=0, start_ns=0, end_ns=at, issue_ns=0, issued_ns=at, kernels=tuple(kernels)
    )
    return ActionView(0, segment, times, times, times, [0] * len(times), [0] * len(times), [0] * len(times))


def _told(names: list[str], again: list[str], run_ns: int = 100) -> list[str]:
    account = Account()
    record_recompute([_action(F, [GEMM, GELU, GEMM, GELU], []), _action(B, names, again, run_ns)], account)
    return [finding.value for finding in account.findings]


def test_a_repeated_forward_is_told_with_its_share_of_the_backward() -> None:
    """Four kernels of 100 ns of a forward of four; and two of them, in a backward of three others of 100 ns."""
    (whole,) = _told(UNDOING, [GEMM, GELU, GEMM, GELU])
    assert whole == "each backward repeats its whole forward for 400.0 ns, 57% of its time"
    (half,) = _told(UNDOING, [GEMM, GELU])
    assert half.startswith("each backward repeats 50% of its forward's kernels")
    assert half.endswith("for 200.0 ns, 40% of its time")


@pytest.mark.parametrize(
    ("names", "again", "run_ns"),
    [
        (UNDOING, ["dgrad", "wgrad", "dgrad", "wgrad"], 100),
        (UNDOING, [GEMM, "dgrad", "wgrad"], 100),
        (UNDOING, [GEMM] * 5, 100),
        (UNDOING, [GEMM, GELU, GEMM, GELU], 200),
        ([], [GEMM, GELU, GEMM, GELU], 100),
    ],
    ids=["not the forward's", "mostly not the forward's", "more often than it", "longer than it", "nothing left"],
)
def test_what_cannot_be_the_forward_again_is_not_called_so(names: list[str], again: list[str], run_ns: int) -> None:
    assert _told(names, again, run_ns) == []


@pytest.mark.parametrize("inner_first", [True, False])
def test_of_nodes_that_begin_together_the_shorter_is_inside(inner_first: bool, tmp_path: Path) -> None:
    """Whole us, as traces of older torch have: a node runs another one, which begins in the same us."""
    nodes = [("CheckpointBackward", 5, 100, 7), ("MmBackward0", 6, 40, 3)]
    events: list[dict[str, Any]] = [
        {
            "ph": "X", "cat": "cpu_op", "name": f"autograd::engine::evaluate_function: {name}", "pid": 1, "tid": 9,
            "ts": 1000, "dur": took, "args": {"External id": external, "Sequence number": number},
        }
        for name, external, took, number in (reversed(nodes) if inner_first else nodes)
    ]  # fmt: skip
    for correlation, at in ((1, 1010), (2, 1060)):
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 9, "ts": at, "dur": 2,
             "args": {"correlation": correlation}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 5, "dur": 5,
             "args": {"correlation": correlation, "stream": 7, "device": 0}},
        ]  # fmt: skip
    trace = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    (tmp_path / "rank0.json").write_bytes(encode(trace))
    run = ingest([tmp_path], tmp_path / "x.run")
    span = (0, 2**62)
    reading = StepReading(run, [Step(0, {0: span})], [0], StepEvidence(True, True, False, False))
    inside, behind = autograd_kernels(reading, 0, span)
    assert (inside.node_name, inside.backward_of, inside.root_of) == ("MmBackward0", 3, 7)
    assert (behind.node_name, behind.backward_of, behind.root_of) == ("CheckpointBackward", 7, 7)
