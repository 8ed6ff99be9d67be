"""DeepSpeed's pipeline engine and stages in FSDP, against steps and peaks measured without a profiler (tests/data)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes
from helpers.recorded import ROOT, looked_at, small

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.beside_autograd import join_accumulation
from tracetool.reconstruction.actions.pieces import Piece
from tracetool.validation import Sources, validate
from tracetool.validation.measured import read_measurements

if TYPE_CHECKING:
    from tracetool.validation import Validation

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def _validated(name: str) -> Validation:
    return validate(
        Sources(looked_at(small(name))), read_measurements(ROOT / "tests" / "data" / name / "measured.json")
    )


def _errors(name: str) -> dict[str, float]:
    return {row.measured.name: row.error_ratio for row in _validated(name).rows if row.error_ratio is not None}


def test_transfers_that_no_kernel_runs_beside_block() -> None:
    """Its ``dist.send`` and ``dist.recv`` hold the compute stream up; torch's action runtime does not wait so."""
    blocking = looked_at(small("deepspeed"))
    assert blocking.pipeline.p2p == "blocking"
    assert [f.evidence for f in blocking.findings if f.fact == "p2p"] == ["inferred"]
    assert looked_at(small("h200-pp2")).pipeline.p2p == "in-order"


def test_deepspeed_steps_are_predicted_from_four_microbatches() -> None:
    """Without blocking transfers, those over the emulated link came out 14 to 30 % too short."""
    errors = _errors("deepspeed")
    assert len(errors) == 7
    assert max(map(abs, errors.values())) <= 0.04
    assert sum(map(abs, errors.values())) / len(errors) <= 0.02


def test_deepspeed_peaks_are_the_same_for_any_number_of_microbatches() -> None:
    """As measured, within the allocator's rounding: buffers are used again, those of outputs by the next step."""
    rows = [row for row in _validated("deepspeed").rows if not row.measured.links]
    assert sorted(row.measured.microbatches for row in rows) == [4, 8, 16]
    for row in rows:
        assert len(row.peak_error_ratios) == 2
        for error in row.peak_error_ratios:
            assert error == pytest.approx(0, abs=0.0005)


def test_what_follows_every_backward_belongs_to_it() -> None:
    """The engine adds each microbatch's gradients to its own in fp32: 29 and 30 parameters, by hand from the model."""
    found = looked_at(small("deepspeed"))
    for rank, parameters in ((0, 29), (1, 30)):
        for segment in found.segments[rank]:
            if segment.kind is B:
                behind = segment.kernels[-parameters - 1 :]
                assert [k.op_name == "aten::add_" and not k.in_backward for k in behind] == [False] + [
                    True
                ] * parameters
    assert NoticeCode.KERNELS_STRAY not in codes(found.notes)


def test_sums_behind_backwards_hide_neither_layers_nor_halves() -> None:
    """Four layers a stage, as recorded; sums are of weight gradients."""
    for stage in looked_at(small("deepspeed")).pipeline.stages:
        assert stage.layers is not None
        assert len(stage.layers.layers) == 4
        assert set(stage.derived) == {ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT}
        halves = [sum(cost.duration_ns for cost in costs) for costs in stage.derived.values()]
        assert sum(halves) == pytest.approx(sum(cost.duration_ns for cost in stage.costs[B]), rel=0.01)


def test_fsdp_steps_are_predicted() -> None:
    errors = _errors("fsdp")
    assert len(errors) == 7
    assert max(map(abs, errors.values())) <= 0.04
    assert sum(map(abs, errors.values())) / len(errors) <= 0.016


def _kernel(at: int, op: str, *, backward: bool = False) -> Kernel:
    return Kernel(at, at + 1, at, op_name=op, in_backward=backward)


def _backwards(count: int) -> list[Piece]:
    kernels = [[_kernel(100 * n + i, "mm", backward=True) for i in range(3)] for n in range(count)]
    return [Piece(B, n, of_one).place(0, n) for n, of_one in enumerate(kernels)]


def _behind(*ops: tuple[int, str]) -> list[Kernel]:
    return [_kernel(at, op) for at, op in ops]


@pytest.mark.parametrize("count", [3, 5])
def test_what_follows_one_backward_alone_does_not(count: int) -> None:
    sums = _behind(*((100 * n + 10 + i, "aten::add_") for n in range(count) for i in range(2)))
    scaled = _behind((100 * count - 50, "aten::div_"), (100 * count - 49, "aten::div_"))
    backwards = _backwards(count)
    assert join_accumulation(backwards, [*sums, *scaled], []) == scaled
    assert [len(piece.kernels) for piece in backwards] == [5] * count


def test_what_comes_after_a_post_does_not() -> None:
    backwards = _backwards(4)
    sums = _behind(*((100 * n + 10, "aten::add_") for n in range(4)))
    assert join_accumulation(backwards, sums, [100 * n + 5 for n in range(4)]) == sums


def test_two_backwards_do_not_show_what_follows_each() -> None:
    sums = _behind((10, "aten::add_"), (110, "aten::add_"))
    assert join_accumulation(_backwards(2), sums, []) == sums
