"""Reconstruction of the recorded H100 runs, against their labels and against what the schedule dictates.

The runs: 4 ranks, one stage each, 8 microbatches, 16,777,216 bytes per message (README of the shared data).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.notices import texts
from helpers.recorded import SAMPLES, h100, looked_at, rebuilt, run_of
from helpers.thorough import spread

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.actions.labels import parse_label
from tracetool.schedules.names import recognise

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
MESSAGE_BYTES = 16_777_216


def _one_f_one_b(stage: int, p: int = 4, m: int = 8) -> list[str]:
    """The order by hand: p - stage - 1 forwards, then F and B in turn, then the Bs that are left."""
    order = [f"F{i}" for i in range(p - stage - 1)]
    for i in range(m):
        order += [f"F{p - stage - 1 + i}"] if p - stage - 1 + i < m else []
        order.append(f"B{i}")
    return order


def _orders(found: Reconstruction) -> list[list[str]]:
    return [[f"{a.kind.value}{a.microbatch}" for a in order] for order in found.pipeline.observed.orders]


# The recording with memory, that of Torch's runtime and the first step are other captures of the same order.
@spread("name", ["1f1b_m8", "1f1b_m8_mem", "rt1f1b_m8"], 1)
@spread("step", [2, 1], 1)
def test_without_labels_1f1b_is_found_with_its_stages_and_microbatches(name: str, step: int) -> None:
    found = rebuilt(name, step=step, use_labels=False)
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.stages, shape.microbatches) == (4, 4, 8)
    assert _orders(found) == [_one_f_one_b(stage) for stage in range(4)]
    assert {s.evidence for s in found.pipeline.stages} == {"autograd"}
    named = recognise(found.pipeline.observed)
    assert named is not None
    assert named.name == "1f1b"


# The first step is another one of the same order.
@spread("step", [2, 1], 1)
def test_without_labels_transfers_are_matched_pairs_of_the_right_size(step: int) -> None:
    found = rebuilt("1f1b_m8", step=step, use_labels=False)
    transfers = found.observed.transfers
    assert Counter(t.kind for t in transfers) == {F: 24, B: 24}
    assert {t.payload_bytes for t in transfers} == {MESSAGE_BYTES}
    expected = {(F, i, s, s + 1) for s in range(3) for i in range(8)}
    expected |= {(B, i, s + 1, s) for s in range(3) for i in range(8)}
    assert {(t.kind, t.microbatch, t.src_stage, t.dst_stage) for t in transfers} == expected
    for t in transfers:
        # A message cannot be usable before its sender was ready, and moves only when both sides are.
        assert max(t.send_posted_ns, t.recv_posted_ns) <= t.end_ns
        assert t.start_ns <= t.end_ns


def test_a_message_follows_its_producer_and_precedes_its_consumer() -> None:
    found = rebuilt("1f1b_m8", use_labels=False)
    ops = {(o.stage, o.kind, o.microbatch): o for o in found.observed.computes()}
    for t in found.observed.transfers:
        assert ops[t.src_stage, t.kind, t.microbatch].end_ns <= t.end_ns
        assert t.end_ns <= ops[t.dst_stage, t.kind, t.microbatch].start_ns


# GPipe's labels leave the stage to the rank.
@spread("name", ["rt1f1b_m8", "gpipe_m8"], 1)
def test_hiding_the_labels_changes_no_segment_and_no_transfer(name: str) -> None:
    labelled = rebuilt(name)
    hidden = rebuilt(name, use_labels=False)
    assert {s.evidence for s in labelled.pipeline.stages} == {"label"}
    assert {s.evidence for s in hidden.pipeline.stages} == {"autograd"}
    assert _orders(labelled) == _orders(hidden)

    def messages(found: Reconstruction) -> list[tuple[object, ...]]:
        return [(t.kind, t.microbatch, t.src_stage, t.dst_stage, t.end_ns) for t in found.observed.transfers]

    assert messages(labelled) == messages(hidden)
    one = {(o.stage, o.kind, o.microbatch): o for o in labelled.observed.computes()}
    for o in hidden.observed.computes():
        # The initial loss gradient (a fill of about 1 us, launched with the backward) carries a label only.
        assert abs(o.duration_ns - one[o.stage, o.kind, o.microbatch].duration_ns) <= 5_000


def test_every_labelled_send_and_receive_is_what_its_label_says() -> None:
    run = h100("rt1f1b_m8")
    found = looked_at(run, use_labels=False)
    for rank, ops in found.p2p_ops.items():
        expected = _labelled_operations(run, rank, found.pipeline.step)
        got = [(f"{'SEND' if o.op.is_send else 'RECV'}_{o.kind.value}", o.stage, o.microbatch) for o in ops]
        assert got == expected


def _labelled_operations(run: Run, rank: int, step: int) -> list[tuple[str, int, int]]:
    """The labels of sends and receives themselves, in order, straight from the trace."""
    names = run.rows(
        "SELECT e.name FROM events AS e JOIN steps AS s ON s.rank = e.rank AND s.step = ? "
        "WHERE e.rank = ? AND e.category = 'annotation' AND (e.name LIKE 'PP:%SEND%' OR e.name LIKE 'PP:%RECV%') "
        "AND e.start_ns BETWEEN s.start_ns AND s.end_ns ORDER BY e.start_ns",
        [step, rank],
    )
    labels = [parse_label(name) for (name,) in names]
    return [(n.kind.value, n.stage or 0, n.microbatch) for n in labels if n is not None and n.microbatch is not None]


# GPipe issues as the recording before it does.
@spread(
    ("name", "p2p"),
    [("1f1b_m8", "grouped"), ("rt1f1b_m8", "in-order"), ("gpipe_m8", "in-order")],
    [("1f1b_m8", "grouped"), ("rt1f1b_m8", "in-order")],
)
def test_how_transfers_were_issued_is_recognised(name: str, p2p: str) -> None:
    """The table of the shared data's README: Schedule1F1B is grouped, the other two issue one by one."""
    assert rebuilt(name).pipeline.p2p == p2p


def test_compute_holds_no_waits() -> None:
    """Stage times by an independent look at the trace, kernels summed by action: 11.8 to 13.3 ms
    for a backward of a middle stage with nothing beside it; a grouped run never has anything beside it."""
    stage = rebuilt("1f1b_m8", use_labels=False).pipeline.stages[1]
    backward = [c.duration_ns / 1e6 for c in stage.costs[B]]
    assert 11 < backward[0] < 12  # the first one makes the gradients instead of adding to them
    assert all(12.8 < t < 14.2 for t in backward[1:])
    assert all(5 < c.duration_ns / 1e6 < 5.6 for c in stage.costs[F])


def test_memory_of_the_observed_order_is_the_measured_peak() -> None:
    """``peak_allocated_gib`` and ``static_allocated_gib`` of measured.json for 1f1b_m8, to the last digit given."""
    found = rebuilt("1f1b_m8_mem")
    peaks = [max(level for _, level in curve or ()) / 2**30 for curve in found.observed.memory]
    assert [round(p, 2) for p in peaks] == [12.15, 10.08, 8.89, 9.40]
    static = [(r.static_bytes or 0) / 2**30 for r in found.pipeline.ranks]
    assert [round(s, 3) for s in static] == [5.459, 4.868, 4.868, 5.582]


# Small recordings of several stages and split backwards by default (test_hidden_labels); here torch names the whole
# first backward W.
@pytest.mark.thorough
def test_labelled_schedules_with_split_backwards_and_several_stages_are_read() -> None:
    zero_bubble = rebuilt("zbh1_m8").pipeline
    assert {k.value for k in zero_bubble.stages[1].costs} == {"F", "I", "W"}
    assert {k.value for k in zero_bubble.stages[0].costs} == {"F", "W"}  # torch's first stage: all of it is W
    interleaved = rebuilt("interleaved_m8").pipeline
    assert (interleaved.observed.shape.ranks, interleaved.observed.shape.stages) == (4, 8)


# Two pipelines of a made job by default (test_coordinates).
@pytest.mark.thorough
def test_two_pipelines_side_by_side_are_told_apart_and_said() -> None:
    found = rebuilt("tp2pp2_1f1b_m8")
    assert found.observed.global_ranks == (0, 2)
    assert any("left out: [1, 3]" in note for note in texts(found.notes, NoticeCode.PIPELINES_LEFT_OUT))


# The samples were cut from the recordings once; what they give is in many tests.
@pytest.mark.thorough
def test_the_samples_give_what_the_recordings_give() -> None:
    """But for the profiler's own work, which was trimmed from them."""
    for sample, source in (("h100-1f1b", "1f1b_m8_mem"), ("h100-1f1b-annotated", "rt1f1b_m8")):
        trimmed, whole = looked_at(run_of(SAMPLES / sample)), rebuilt(source, step=1)
        assert trimmed.observed == replace(whole.observed, profiler=trimmed.observed.profiler)
        assert trimmed.pipeline == whole.pipeline
