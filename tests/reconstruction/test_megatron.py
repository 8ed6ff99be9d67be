"""Recordings of megatron-core without labels, against the configuration that was run (README of the data, code)."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.notices import codes
from helpers.recorded import ROOT, data, looked_at, rebuilt, run_of, small
from helpers.thorough import spread

from tracetool.errors import NoPipeline
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.memory import adds_at_once
from tracetool.schedules.names import recognise
from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements


# Four ranks in batches by default (below); two ranks, one neighbour on both sides, are another question to messages.
@pytest.mark.thorough
def test_interleaved_stages_whose_loss_is_scaled_apart_from_its_forward_are_read() -> None:
    """2 ranks, 2 chunks, 8 microbatches; 3 hops between 4 stages, there and back: 2 x 3 x 8 messages."""
    found = looked_at(run_of(data("megatron", "vpp2_overlap_m8")))
    shape = found.pipeline.observed.shape
    assert (shape.ranks, shape.chunks, shape.microbatches, shape.placement) == (2, 2, 8, "loop")
    known = recognise(found.pipeline.observed)
    assert known is not None
    assert known.name == "interleaved"
    assert len(found.observed.transfers) == 2 * 3 * 8
    actions = Counter((s.stage, s.kind.value) for of_rank in found.segments.values() for s in of_rank)
    assert actions == {(stage, kind): 8 for stage in range(4) for kind in "FB"}
    assert [f.confidence for f in found.findings if f.fact == "transfers"] == [1]


def test_interleaved_stages_in_batches_for_two_neighbours_are_read() -> None:
    """4 ranks, 2 chunks, 4 microbatches: a batch ends with its last message, which says nothing of when another did."""
    found = looked_at(small("megatron-vpp2"))
    assert found.pipeline.p2p == "grouped"
    known = recognise(found.pipeline.observed)
    assert known is not None
    assert (known.name, known.shape.ranks, known.shape.chunks, known.shape.microbatches) == ("interleaved", 4, 2, 4)
    assert len(found.observed.transfers) == 2 * 7 * 4
    assert [f.confidence for f in found.findings if f.fact == "transfers"] == [1]


def test_interleaved_steps_in_batches_and_overlapped_are_predicted() -> None:
    """Steps without a profiler. Over sockets messages take 0.04 to 4 ms, which holds batches of neighbours up.

    Figures as seen, rounded up.
    """
    done = validate(
        Sources(looked_at(small("megatron-vpp2"))),
        read_measurements(ROOT / "tests" / "data" / "megatron-vpp2" / "measured.json"),
    )
    errors = {(row.measured.p2p, row.measured.microbatches): row.error_ratio for row in done.rows}
    grouped, overlapped = ([errors[mode, m] or 0.0 for m in (4, 8, 16)] for mode in ("grouped", "per-edge"))
    assert max(map(abs, grouped)) <= 0.055
    assert max(map(abs, overlapped)) <= 0.015


def test_four_microbatches_predict_more_and_other_orders() -> None:
    """Steps without a profiler, from one of 4 microbatches to 16, and of stages cut in two."""
    done = validate(
        Sources(looked_at(small("megatron-m4"))),
        read_measurements(ROOT / "tests" / "data" / "megatron-m4" / "measured.json"),
    )
    errors = [row.error_ratio for row in done.rows if row.error_ratio is not None]
    assert len(errors) == 6
    assert max(map(abs, errors)) <= 0.06
    assert sum(map(abs, errors)) / len(errors) <= 0.03


# Within Megatron's layer a forward does some things twice, a backward nothing.
@spread("name", ["zbv", "vpp2_overlap_m8"], 1)
def test_layers_that_half_of_the_actions_speak_against_are_unknown(name: str) -> None:
    """Each of the four stages has one layer."""
    found = looked_at(small(name) if name == "zbv" else run_of(data("megatron", name)))
    assert all(stage.layers is None for stage in found.pipeline.stages)
    assert not [f for f in found.findings if f.fact == "layers"]
    assert NoticeCode.LAYERS_UNKNOWN in codes(found.notes)


def test_gradients_are_static_where_the_first_backward_adds_to_them() -> None:
    """Megatron keeps a buffer of gradients; torch makes them in the first backward, and later ones add."""

    def backwards(found: object, stage: int) -> list[object]:
        segments = [s for of_rank in found.segments.values() for s in of_rank]  # type: ignore[attr-defined]
        return [s for s in segments if s.stage == stage and s.kind is ActionKind.BACKWARD]

    megatron, torch = looked_at(run_of(data("megatron", "1f1b_m8"))), rebuilt("1f1b_m8")
    assert all(adds_at_once(backwards(megatron, stage)) for stage in range(2))  # type: ignore[arg-type]
    assert not any(adds_at_once(backwards(torch, stage)) for stage in range(4))  # type: ignore[arg-type]


# Reentrant ones record their forward by another node.
@spread("name", ["ckpt_nonreentrant", "ckpt_reentrant"], 1)
def test_what_backwards_repeat_of_their_forwards_is_named_and_timed(name: str) -> None:
    """Both recompute their two blocks; a second count of the kernels around which ops of a graph are launched."""
    found = looked_at(small(name), use_labels=False)
    told = {f.subject: f.value for f in found.findings if f.fact == "recompute"}
    assert set(told) == {"stage 0", "stage 1"}
    assert all("each backward repeats" in value and "mm" in value for value in told.values())
    plain = looked_at(run_of(data("megatron", "1f1b_m8")))
    assert not [f for f in plain.findings if f.fact == "recompute"]


def test_a_job_without_pipeline_parallelism_is_not_asked_for_another_torch() -> None:
    """Tensor parallelism alone, over eight ranks: all of its communication kernels are all-reduces."""
    run = run_of(data("torch", "astra-sim+astra-sim", "megatron-tp8"))
    with pytest.raises(NoPipeline) as caught:
        reconstruct(run)
    assert "allreduce" in str(caught.value.hint)
    assert "torch 2" not in str(caught.value.hint)
