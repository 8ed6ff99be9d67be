"""What ranks hold at rest where the ends of the model sit elsewhere: sums by hand, and the recorded model's sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.notices import texts
from helpers.recorded import rebuilt
from helpers.synthetic import pipeline

from tracetool.costs.recut import ranks_at_rest
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.replays import replay
from tracetool.replays.evaluation import stages_for
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline

LAYERS, EMBEDDING, HEAD, MESSAGES = 400, 100, 130, 16
V, LOOP = PipelineShape(4, 2, 2, "v"), PipelineShape(4, 2, 2)


def _recorded(ranks: int = 4, *, buffers: bool = True) -> Pipeline:
    """Layers on every rank, the embedding on the first, the head on the last; ends receive from one side only."""
    base = pipeline(ranks, 2, 1, 1)
    last = ranks - 1
    profiles = []
    for rank, profile in enumerate(base.ranks):
        received = MESSAGES * (1 if rank in (0, last) else 2)
        static = LAYERS + EMBEDDING * (rank == 0) + HEAD * (rank == last) + received
        known = received if buffers else None
        tail = 7 + 3 * (rank == last)
        profiles.append(replace(profile, static_bytes=static, receive_buffer_bytes=known, tail_peak_bytes=tail))
    return replace(base, ranks=tuple(profiles))


def test_in_a_v_the_first_rank_holds_both_ends() -> None:
    got = ranks_at_rest(_recorded(), V)
    net = [(r.static_bytes or 0) - (r.receive_buffer_bytes or 0) for r in got]
    assert net == [LAYERS + EMBEDDING + HEAD, LAYERS, LAYERS, LAYERS]
    assert [r.tail_peak_bytes for r in got] == [10, 7, 7, 7]


@pytest.mark.parametrize("shape", [LOOP, PipelineShape(4, 2, 3, "v"), PipelineShape(4, 2)])
def test_nothing_changes_where_the_ends_stay(shape: PipelineShape) -> None:
    """A loop, and a V of an odd number of stages per rank, end on the last rank."""
    assert ranks_at_rest(_recorded(), shape) == _recorded().ranks


@pytest.mark.parametrize(
    ("of", "shape"),
    [(_recorded(2), PipelineShape(2, 2, 2, "v")), (_recorded(buffers=False), V), (pipeline(4, 2, 1, 1), V)],
)
def test_what_cannot_be_told_is_unknown(of: Pipeline, shape: PipelineShape) -> None:
    """No rank between the ends, unknown buffers, unknown memory."""
    assert {r.static_bytes for r in ranks_at_rest(of, shape)} == {None}


def test_the_recorded_head_moves_to_the_first_rank() -> None:
    """h100-pp4: a head of 32000 x 4096 bf16 weights has twice as much again in AdamW: 750 MiB; beside it the last rank
    keeps the logits of one microbatch (2048 x 32000 bf16, 125 MiB) and lacks one 16 MiB gradient."""
    before = rebuilt("1f1b_m8_mem").pipeline
    after, _, _ = stages_for(before, "hanayo", None, 8)
    moved = [
        ((b.static_bytes or 0) - (a.static_bytes or 0)) / 2**20 for a, b in zip(before.ranks, after.ranks, strict=True)
    ]
    assert moved[0] == pytest.approx(750 + 125 - 16, abs=2)
    assert moved[1:3] == [0, 0]
    assert moved[3] == -moved[0]


def test_memory_of_a_wave_is_known_and_said_to_be_derived() -> None:
    """Every byte that forwards keep is freed again, and ranks end with weights, optimizer and gradients as before."""
    base = rebuilt("1f1b_m8_mem")
    result = answer(base, ["hanayo"]).results[0]
    assert None not in result.metrics.peak_hbm_bytes
    (told,) = texts(result.remarks, NoticeCode.ENDS_MOVED)
    assert "ranks 0 and 0" in told
    cut, shape, _ = stages_for(base.pipeline, "hanayo", None, 8)
    ends = [
        sum(curve[-1][1] for curve in replay(of, order, Scenario()).timeline.memory if curve)
        for of, order in ((base.pipeline, base.pipeline.observed), (cut, build_schedule("hanayo", shape)))
    ]
    # Seven hops instead of three, both ways, 8 microbatches: the one within rank 3 has buffers like the others.
    received = 8 * 8 * MESSAGES * 2**20
    assert ends[1] - ends[0] == pytest.approx(received, abs=2**20)
