"""Ways to overlap inside the actions of a pipeline: megatron's all-reduces behind products, of tp2pp2_1f1b_m8.

It was recorded without shapes of operators: where a test needs them, they are those of its attention's output (tokens
2048, h 4096, tensor parallel 2), for every product.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data, derived, looked_at

from tracetool.errors import ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.overlap import actions
from tracetool.overlap.actions import with_overlap
from tracetool.overlap.calibration import calibrate
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.overlap.machine import Machine
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

ROWS, COLUMNS, DEPTH = 2048, 4096, 2048


def recorded() -> Run:
    return derived(data("h100-pp4", "traces", "tp2pp2_1f1b_m8"))


def with_shapes() -> Run:
    shapes = f'{{"Input Dims": [[{ROWS}, {DEPTH}], [{DEPTH}, {COLUMNS}]]}}'
    return recorded().overlay(
        {"events": f"SELECT * REPLACE (CASE WHEN name = 'aten::mm' THEN '{shapes}' END AS args) FROM {{recorded}}"}
    )


@pytest.fixture(scope="module")
def found() -> Reconstruction:
    return looked_at(recorded())


def times_ns(of: Reconstruction, stage: int, kind: ActionKind) -> list[int]:
    return [cost.duration_ns for cost in of.pipeline.stages[stage].costs[kind]]


def test_none_changes_nothing(found: Reconstruction) -> None:
    assert with_overlap(found, recorded(), "none") is found


def test_actions_take_what_their_layers_take_more(found: Reconstruction) -> None:
    """Eight layers with two all-reduces each: every forward by the same time, whatever it took."""
    run = with_shapes()
    changed = with_overlap(found, run, "slice:8")
    for stage in (0, 1):
        before, after = times_ns(found, stage, ActionKind.FORWARD), times_ns(changed, stage, ActionKind.FORWARD)
        (by,) = {late - early for early, late in zip(before, after, strict=True)}
        assert by > 0
        assert by % 1 == 0
        layers = [
            of.pipeline.stages[stage].layers.layers[3][ActionKind.FORWARD][0].duration_ns  # type: ignore[union-attr]
            for of in (found, changed)
        ]
        assert layers[1] - layers[0] == pytest.approx(by / 8, abs=1)
    (note,) = [note for note in changed.notes if note.code is NoticeCode.OVERLAP_CHANGED]
    assert "left alone" in str(note)
    assert changed.observed is found.observed


def test_the_step_takes_longer_by_it(found: Reconstruction) -> None:
    """Eight slices of a product of 100 us launch eight times as much: the pipeline's window grows by all forwards."""
    changed = with_overlap(found, with_shapes(), "slice:8")
    steps = [answer(each, ("1f1b",)).results[0].metrics.step_ns for each in (found, changed)]
    by = times_ns(changed, 0, ActionKind.FORWARD)[0] - times_ns(found, 0, ActionKind.FORWARD)[0]
    assert steps[1] - steps[0] > by


def test_all_reduces_are_not_sent_peer_to_peer(found: Reconstruction) -> None:
    with pytest.raises(ReconstructError, match="p2p is no way for the collectives"):
        with_overlap(found, with_shapes(), "p2p")


@pytest.mark.parametrize(("blocks", "refusal"), [(4, "did not run over NVLink"), (24, "is no way for the collectives")])
def test_copy_engines_need_the_link_that_they_were_timed_over(
    found: Reconstruction, monkeypatch: pytest.MonkeyPatch, blocks: int, refusal: str
) -> None:
    """NCCL ran collectives of two H200 with 4 blocks through host memory, and with 24 over NVLink."""

    def with_blocks(*words: Any, **named: Any) -> Machine:
        machine = calibrate(*words, **named)
        return replace(machine, gather=replace(machine.gather, blocks=blocks))

    monkeypatch.setattr(actions, "calibrate", with_blocks)
    with pytest.raises(ReconstructError, match=refusal):
        with_overlap(found, with_shapes(), "async-tp")


def test_without_shapes_it_is_said(found: Reconstruction) -> None:
    with pytest.raises(ReconstructError, match="no action holds a collective beside a matrix product"):
        with_overlap(found, recorded(), "slice:2")


def test_it_takes_a_fraction_of_a_second(found: Reconstruction) -> None:
    """Layers and microbatches of one size are worked out once, however many there are."""
    run = with_shapes()
    began = time.process_time()
    with_overlap(found, run, "slice:4")
    assert time.process_time() - began < 3
