"""Layers by repeating kernels, against the model the recordings are of, and against patterns made up here."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import data, h100, looked_at, rebuilt, run_of
from helpers.thorough import spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import Kernel, Segment
from tracetool.reconstruction.closeup.layers import AFTER, AHEAD, find_layers, longest_repeat

if TYPE_CHECKING:
    from tracetool.reconstruction import Reconstruction

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


@cache
def _found(name: str) -> Reconstruction:
    return rebuilt(name)


def _layers_told(found: Reconstruction) -> dict[str, tuple[str, float]]:
    return {f.subject: (f.value, f.confidence) for f in found.findings if f.fact == "layers"}


# In each of the others layers are cut otherwise, or lie beside other kernels.
@spread(
    ("name", "stages", "layers"),
    [
        ("1f1b_m8", 4, 4),
        ("1f1b_m8_mem", 4, 4),
        ("rt1f1b_m8", 4, 4),
        ("gpipe_m8", 4, 4),
        ("zbh1_m8", 4, 4),
        ("interleaved_m8", 8, 2),
        ("tp2pp2_1f1b_m8", 2, 8),
    ],
    [("1f1b_m8", 4, 4), ("rt1f1b_m8", 4, 4)],
)
def test_the_recorded_model_has_16_layers_in_every_cut(name: str, stages: int, layers: int) -> None:
    """README of the shared data: 16 layers; every check of every microbatch, forward and backward, agrees."""
    assert _layers_told(_found(name)) == {f"stage {s}": (f"{layers} layers", 1.0) for s in range(stages)}


def test_ascend_kernels_tell_14_layers_per_stage() -> None:
    """Golden number of the Ascend capture (README of the shared data)."""
    found = looked_at(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")))
    assert _layers_told(found) == {"stage 0": ("14 layers", 1.0), "stage 1": ("14 layers", 1.0)}


def _placed_names(name: str, stage: int, kind: str, layer: str) -> Counter[str]:
    """Kernels of microbatch 2 in a part of a stage, by name, from the rows that go into the Run."""
    names = _kernel_names(name)
    found: Counter[str] = Counter()
    for rank, event, of_stage, of_kind, microbatch, _, at in _found(name).tables["kernel_actions"]:
        if (of_stage, of_kind, microbatch, str(at)) == (stage, kind, 2, layer):
            found[names.get((rank, event), "")] += 1
    return found


@cache
def _kernel_names(name: str) -> dict[object, str]:
    rows = h100(name).rows("SELECT rank, event, name FROM events WHERE category = 'kernel'")
    return {(rank, event): text for rank, event, text in rows}


def _count(names: Counter[str], part: str) -> int:
    return sum(count for name, count in names.items() if part in name)


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("layer", ["0", "1", "2", "3"])
def test_every_layer_holds_one_attention_and_its_own_products(stage: int, layer: str) -> None:
    """The model: one attention, two norms and five products (qkv, out, three of the MLP) a layer; the backward
    has two products for each and as many accumulations of weight gradients as there are weights (seven)."""
    forward = _placed_names("rt1f1b_m8", stage, "F", layer)
    assert (_count(forward, "flash_fprop"), _count(forward, "layer_norm"), _count(forward, "nvjet")) == (1, 2, 5)
    backward = _placed_names("rt1f1b_m8", stage, "B", layer)
    assert (_count(backward, "flash_bprop"), _count(backward, "GammaBeta"), _count(backward, "nvjet")) == (1, 2, 10)


def test_embedding_and_head_are_in_no_layer() -> None:
    first = _placed_names("rt1f1b_m8", 0, "F", "None")
    assert [_count(first, "gather"), first.total()] == [1, 1]
    last = _placed_names("rt1f1b_m8", 3, "F", "None")
    assert [_count(last, part) for part in ("layer_norm", "nvjet", "SoftMax", "nll_loss", "flash")] == [1, 1, 1, 1, 0]
    opened = _placed_names("rt1f1b_m8", 3, "B", "None")
    assert [_count(opened, part) for part in ("nll_loss", "SoftMax", "nvjet", "GammaBeta", "flash")] == [1, 1, 2, 1, 0]
    closed = _placed_names("rt1f1b_m8", 0, "B", "None")
    assert _count(closed, "embedding_backward") == 1
    assert _count(closed, "nvjet") == 0


def test_hiding_the_labels_changes_no_layer_and_no_gradient() -> None:
    names = _kernel_names("rt1f1b_m8")
    hidden = rebuilt("rt1f1b_m8", use_labels=False)
    # Only a label tells the action of the fill with which autograd starts from the loss.
    kept = [
        [row for row in found.tables["kernel_actions"] if "FillFunctor" not in names.get((row[0], row[1]), "")]
        for found in (_found("rt1f1b_m8"), hidden)
    ]
    assert kept[0] == kept[1]


def test_layers_of_a_stage_sum_to_its_actions() -> None:
    for stage in _found("rt1f1b_m8").pipeline.stages:
        layers = stage.layers
        assert layers is not None
        for kind in (F, B):
            for m, whole in enumerate(stage.costs[kind]):
                parts = [block[kind][m] for block in (layers.ahead, *layers.layers, layers.after)]
                assert sum(c.duration_ns for c in parts) == whole.duration_ns
                assert sum(c.uncontended_ns or 0 for c in parts) == whole.uncontended_ns


def test_memory_of_layers_sums_to_that_of_their_stage() -> None:
    """The stage's own bytes come from the same log, counted by action (reconstruct/memory.py).

    A layer keeps for its backward, by the model (README): norm inputs 2 x 16 MiB and their outputs 2 x 16, qkv 48,
    attention's output 16 and its log-sum-exp 0.25, three tensors of the MLP 3 x 43, silu's output 43: 300 to 310 MiB.
    """
    for stage in _found("1f1b_m8_mem").pipeline.stages:
        layers = stage.layers
        assert layers is not None
        for kind in (F, B):
            for m, whole in enumerate(stage.costs[kind]):
                parts = [block[kind][m].held_bytes for block in (layers.ahead, *layers.layers, layers.after)]
                assert sum(p or 0 for p in parts) == whole.held_bytes
        for layer in layers.layers:
            assert 295 < (layer[F][3].held_bytes or 0) / 2**20 < 310


@given(
    prefix=st.lists(st.integers(0, 9), max_size=5, unique=True),
    unit=st.lists(st.integers(10, 19), min_size=2, max_size=7, unique=True),
    times=st.integers(2, 6),
    suffix=st.lists(st.integers(20, 29), max_size=5, unique=True),
)
def test_a_repetition_is_found_between_what_is_ahead_and_after(
    prefix: list[int], unit: list[int], times: int, suffix: list[int]
) -> None:
    tokens = prefix + unit * times + suffix
    found = longest_repeat(tokens)
    if len(unit) * times * 2 < len(tokens):
        return
    assert found == (len(prefix), len(unit), times, 0)


@given(st.lists(st.integers(0, 2), max_size=14))
def test_no_repetition_covers_more_than_the_one_found(tokens: list[int]) -> None:
    """Against all ways there are to repeat a part of the sequence."""
    n = len(tokens)
    longest = 0
    for period in range(1, n // 2 + 1):
        for start in range(n - 2 * period + 1):
            times = 1
            while tokens[start + times * period : start + (times + 1) * period] == tokens[start : start + period]:
                times += 1
            longest = max(longest, times * period if times > 1 else 0)
    found = longest_repeat(tokens)
    assert (found.length if found else 0) == (longest if 2 * longest >= n else 0)


def _segment(stage: int, kind: ActionKind, microbatch: int, names: str) -> Segment:
    """An action of kernels named by single letters, 10 ns each."""
    kernels = tuple(Kernel(10 * i, 10 * i + 10, i, name=name, blocks=1) for i, name in enumerate(names))
    return Segment(
        kind=kind,
        microbatch=microbatch,
        stage=stage,
        start_ns=0,
        end_ns=10 * len(names),
        issue_ns=0,
        issued_ns=len(names),
        kernels=kernels,
    )


def _layers(segment: Segment, others: list[Segment]) -> list[int]:
    found = find_layers([segment, *others])[segment.stage]
    assert found is not None
    return [place.layer for place in found.places[segment.kind, segment.microbatch]]


def test_a_stage_of_layers_alone_tells_where_a_layer_begins() -> None:
    """A norm ahead of the first layer (n) looks like the one that closes each layer (ABn)."""
    middle = _segment(1, F, 0, "ABnABnABn")
    assert _layers(_segment(0, F, 0, "EnABnABn"), [middle]) == [AHEAD, AHEAD, 0, 0, 0, 1, 1, 1]
    # Without such a stage, the first that fits is a layer's.
    assert _layers(_segment(0, F, 0, "EnABnABn"), []) == [AHEAD, 0, 0, 0, 1, 1, 1, AFTER]


def test_a_backward_goes_from_the_last_layer_to_the_first() -> None:
    """What opens a backward is the head's, though its norm (n) looks like that of a layer (BAn)."""
    assert _layers(_segment(0, B, 0, "HnBAnBAn"), []) == [AFTER, AFTER, 1, 1, 1, 0, 0, 0]


def test_a_recomputation_goes_the_forwards_way() -> None:
    assert _layers(_segment(0, ActionKind.RECOMPUTE, 0, "EABAB"), []) == [AHEAD, 0, 0, 1, 1]


def test_a_stage_of_one_layer_is_found_by_those_of_others() -> None:
    assert _layers(_segment(0, F, 0, "EABn"), [_segment(1, F, 0, "ABnABn")]) == [AHEAD, 0, 0, 0]


def test_kernels_without_repetition_tell_no_layers() -> None:
    assert find_layers([_segment(0, F, 0, "ABCDEFG")]) == {0: None}


def test_actions_that_disagree_lower_the_confidence() -> None:
    segments = [_segment(0, F, m, "ABAB") for m in range(3)] + [_segment(0, F, 3, "ABABAB")]
    found = find_layers(segments)[0]
    assert found is not None
    assert (found.count, found.confidence) == (2, 0.75)
    assert found.remarks == ("1 of 4 actions do not repeat 2 times",)
