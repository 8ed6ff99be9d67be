"""Memory of a split backward, from a recording that ran it whole, against what splitting it really took."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from helpers.notices import codes, texts
from helpers.recorded import data, rebuilt

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.whatif.answer import answer

WHOLE, INPUT, WEIGHT = ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
RECORDED = "1f1b_m8_mem"


def _rows() -> dict[str, dict[str, Any]]:
    listed = json.loads(data("h100-pp4", "measured.json").read_text(encoding="utf-8"))["results"]
    return {row["name"]: row for row in listed}


def test_the_input_half_keeps_the_gradient_that_comes_into_every_weight() -> None:
    """Of the recorded model's sizes (README of the data): what the gradients are that W needs, in bytes.

    torch's allocator rounds each up to a block that may be 1 MiB larger (``kSmallSize``).
    """
    hidden, ffn, seq, layers, bf16 = 4096, 11008, 2048, 4, 2
    # Two norms, output and down projections give out h; queries, keys and values 3 h; gate and up ffn each.
    into_weights = layers * seq * bf16 * (4 * hidden + 3 * hidden + 2 * ffn)
    received = seq * hidden * bf16  # The topmost of them is the message from the next stage.
    for stage in rebuilt(RECORDED).pipeline.stages[1:-1]:
        for cost in stage.derived[INPUT]:
            assert 0 <= (cost.held_bytes or 0) - (into_weights - received) <= layers * 7 * 2**20


def test_the_halves_leave_what_the_whole_backward_leaves() -> None:
    for stage in rebuilt(RECORDED).pipeline.stages:
        halves = stage.derived
        for whole, first, second in zip(stage.costs[WHOLE], halves[INPUT], halves[WEIGHT], strict=True):
            assert None not in (whole.held_bytes, first.held_bytes, second.held_bytes)
            assert (first.held_bytes or 0) + (second.held_bytes or 0) == whole.held_bytes
            assert (first.peak_bytes or 0) >= max(0, first.held_bytes or 0)


def test_the_first_stage_does_its_whole_backward_as_w() -> None:
    stage = rebuilt(RECORDED).pipeline.stages[0]
    assert {(c.held_bytes, c.peak_bytes) for c in stage.derived[INPUT]} == {(0, 0)}
    assert [(c.held_bytes, c.peak_bytes) for c in stage.derived[WEIGHT]] == [
        (c.held_bytes, max(c.peak_bytes or 0, c.held_bytes or 0)) for c in stage.costs[WHOLE]
    ]


def test_only_a_schedule_whose_memory_is_unknown_says_so_and_why() -> None:
    found = rebuilt(RECORDED)
    ranks = tuple(replace(r, receive_buffer_bytes=None) for r in found.pipeline.ranks)
    found = replace(found, pipeline=replace(found.pipeline, ranks=ranks))
    done = answer(found, ["1f1b", "zb-h1", "zb-v"], Scenario(hbm_bytes=80 * 2**30))
    plain, split, moved = done.results
    assert [r.feasible for r in done.results] == [True, True, None]
    of_memory = {NoticeCode.MEMORY_OF_HALVES, NoticeCode.MEMORY_UNKNOWN}
    assert [of_memory.intersection(codes(r.remarks)) for r in (plain, split)] == [set(), {NoticeCode.MEMORY_OF_HALVES}]
    (why,) = texts(moved.remarks, NoticeCode.MEMORY_UNKNOWN)
    assert "embedding and head move to other ranks, and the trace does not tell buffers" in why
    (note,) = texts(done.notes, NoticeCode.HBM_UNCHECKED)
    assert "for zb-v (" in note
    assert "profile_memory" not in note


def test_without_recorded_memory_the_hint_is_to_record_it() -> None:
    done = answer(rebuilt("1f1b_m8"), ["zb-h1"], Scenario(hbm_bytes=80 * 2**30))
    assert done.results[0].feasible is None
    assert any("profile_memory=True" in note for note in texts(done.notes, NoticeCode.HBM_UNCHECKED))
