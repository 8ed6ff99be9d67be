"""What hides products: CUDA graphs, compiled kernels, kernels with their communication. It is said and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.layered import with_all_reduces, without_shapes
from helpers.thorough import spread

from tracetool.errors import ReconstructError
from tracetool.overlap.actions import layer_overlaps, read_layers, with_overlap
from tracetool.overlap.answer import answer_for
from tracetool.overlap.hidden import hidden_work
from tracetool.overlap.recording import read_recording
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.store.run import Run

_OUTPUTS = "SELECT (rank, external_id) FROM {recorded} WHERE args LIKE '%[5504, 4096]%'"
"""Operators of the larger product of every layer."""


def _with_events(query: str) -> Run:
    return with_all_reduces().overlay({"events": query})


def in_graphs(which: str = _OUTPUTS) -> Run:
    """Those products launched with a CUDA graph, which has another operator around it."""
    return _with_events(
        f"SELECT * REPLACE (CASE WHEN category = 'launch' AND (rank, external_id) IN ({which}) THEN 'cudaGraphLaunch' "
        f"ELSE name END AS name, CASE WHEN category IN ('launch', 'kernel') AND (rank, external_id) IN ({which}) "
        "THEN -1 ELSE external_id END AS external_id) FROM {recorded}"
    )


def named(name: str) -> Run:
    """Those products under another kernel's name, in an operator of its own."""
    return _with_events(
        f"SELECT * REPLACE (CASE WHEN category = 'kernel' AND (rank, external_id) IN ({_OUTPUTS}) THEN '{name}' "
        "ELSE name END AS name, CASE WHEN category = 'kernel' AND "
        f"(rank, external_id) IN ({_OUTPUTS}) THEN -1 ELSE external_id END AS external_id) FROM {{recorded}}"
    )


# Of the actions' kernels it is one in each of eight layers and microbatches, on two stages: 128.
# Kernels whose names are looked up in one table: what graphs hold is told by launches.
@spread(
    ("run", "told"),
    [
        (in_graphs, "128 kernels came from CUDA graphs, which name no operator"),
        (lambda: named("triton_red_fused_mm_7"), "128 compiled kernels (triton_...) may hold any"),
        (lambda: named("MatmulAllReduce"), "already one kernel with their communication: MatmulAllReduce (128)"),
        (
            lambda: named("aclnnAllGatherMatmul"),
            "already one kernel with their communication: aclnnAllGatherMatmul (128)",
        ),
    ],
    1,
)
def test_it_is_said_and_left_alone(run: Callable[[], Run], told: str) -> None:
    hidden = run()
    assert str(hidden_work(hidden, of_actions=True)) == told
    whole, part = read_layers(with_all_reduces()), read_layers(hidden)
    # Of two pairs in each layer one is left; its all-reduce stands alone now.
    assert {pair.shape.ffn_per_rank for of in whole.pairs.values() for pair in of} == {2048, 5504}
    assert {pair.shape.ffn_per_rank for of in part.pairs.values() for pair in of} == {2048}
    assert part.left == whole.left + 2 * 8
    overlaps, notes = layer_overlaps(hidden, ("none", "slice:2"))
    assert f"left as it was inside actions: {told}" in map(str, notes)
    assert overlaps[1].untouched == part.left
    changed = with_overlap(reconstruct(without_shapes()), hidden, "slice:2")
    assert f"left as it was inside actions: {told}" in map(str, changed.notes)


def test_nothing_is_hidden_in_a_recording_without_any() -> None:
    run = with_all_reduces()
    assert str(hidden_work(run, of_actions=True)) == str(hidden_work(run, of_actions=False)) == ""
    assert not any("left as it was" in str(note) for note in layer_overlaps(run, ("none", "slice:2")).notes)


def test_where_graphs_hold_all_of_it_the_refusal_says_so() -> None:
    run = in_graphs("SELECT (rank, external_id) FROM {recorded} WHERE name = 'aten::mm'")
    with pytest.raises(ReconstructError, match="kernels came from CUDA graphs, which name no operator") as refused:
        read_layers(run)
    assert "without CUDA graphs" in (refused.value.hint or "")
    recording = read_recording(run)
    assert "came from CUDA graphs" in recording.hidden
    with pytest.raises(ReconstructError, match="came from CUDA graphs"):
        answer_for([recording])
