"""Pipelines that share links: worked out by hand, and against one pipeline alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.synthetic import pipeline, places, scenario
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.scenario import LinkSharing
    from tracetool.model.timeline import Timeline


_F, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def _window_ns(pipelines: int, sharing: LinkSharing = "temporal", **costs: Any) -> int:
    measured = pipeline(2, costs.pop("m", 1), 10, 10, payload_bytes=5)
    what_if = replace(scenario(places([1, 1]), "posted-ahead"), pipelines=pipelines, link_sharing=sharing)
    done = replay(measured, build_schedule("1f1b", measured.observed.shape), what_if)
    return measure(done.timeline).window_ns


def test_messages_take_turns_or_share_the_bandwidth() -> None:
    """f = b = 10, occupancy 5, one microbatch on two ranks, three pipelines.

    In turn: activations are ready at 10 and move 10-15, 15-20, 20-25; the last pipeline's F and B on rank 1 end at 45,
    its gradient arrives at 50 with nobody ahead, its B ends at 60. Shared: a third of the bandwidth, so 15 per message:
    10, 25, 45, 60, 70.
    """
    assert _window_ns(1) == 50
    assert _window_ns(3) == 60
    assert _window_ns(3, "spatial") == 70


@drawn(40)
@given(st.integers(1, 4), st.integers(1, 6), st.sampled_from(["1f1b", "gpipe", "zb-v"]), st.integers(0, 30))
def test_in_turn_is_no_slower_than_shared_and_no_faster_than_alone(n: int, m: int, name: str, payload: int) -> None:
    """Every message of one pipeline is served no later in turn than with a share of the bandwidth (one boundary)."""
    chunks = 2 if name == "zb-v" else 1
    measured = pipeline(2 * chunks, m, 10, 20, payload_bytes=payload)
    shape = PipelineShape(2, m, chunks, "v" if chunks == 2 else "loop")
    if chunks == 2:
        halves = {
            k: tuple(replace(c, duration_ns=10) for c in measured.stages[0].costs[next(iter(measured.stages[0].costs))])
            for k in (_I, _W)
        }
        stages = tuple(replace(s, derived=halves) for s in measured.stages)
        measured = replace(measured, stages=stages, ranks=measured.ranks[:2])
    schedule = build_schedule(name, shape)
    what_if = scenario(places([1, 1], latency_ns=3), "posted-ahead")

    def step(pipelines: int, sharing: LinkSharing) -> int:
        done = replay(measured, schedule, replace(what_if, pipelines=pipelines, link_sharing=sharing))
        _check_one(done.timeline, 2, shape.stages, m)
        return measure(done.timeline).step_ns

    assert step(n, "temporal") >= step(1, "temporal")
    assert step(n, "spatial") >= step(1, "spatial")
    assert step(1, "spatial") == step(1, "temporal")


def _check_one(timeline: Timeline, ranks: int, stages: int, m: int) -> None:
    """It is one pipeline: its own ranks, every stage's microbatches once."""
    assert len(timeline.memory) == len(timeline.global_ranks) == ranks
    computes = [(op.stage, op.kind, op.microbatch) for op in timeline.computes()]
    assert len(computes) == len(set(computes))
    assert {stage for stage, _, _ in computes} == set(range(stages))
    assert {op.rank for op in timeline.computes()} == set(range(ranks))
    assert {mb for _, _, mb in computes} == set(range(m))


@pytest.mark.parametrize("placement", ["loop", "v"])
def test_copies_have_ranks_and_stages_of_their_own(placement: Any) -> None:
    one = PipelineShape(3, 4, 2, placement)
    many = replace(one, ranks=9, copies=3)
    assert many.stages == 18
    for stage in range(many.stages):
        copy, own = divmod(stage, 6)
        assert many.rank_of(stage) == 3 * copy + one.rank_of(own)
        for way in ("previous", "next"):
            neighbour = getattr(one, way)(own)
            assert getattr(many, way)(stage) == (None if neighbour is None else neighbour + 6 * copy)
    for rank in range(9):
        assert many.stages_of(rank) == tuple(s for s in range(18) if many.rank_of(s) == rank)


def test_opposed_pipelines_are_refused() -> None:
    measured = pipeline(4, 8, 10, 20, payload_bytes=5)
    schedule = build_schedule("chimera", PipelineShape(4, 8, 2, "bidirectional"))
    with pytest.raises(UnsupportedShape, match="two opposed pipelines already"):
        replay(measured, schedule, replace(scenario(places([2, 2]), "posted-ahead"), pipelines=2))


def test_copies_cost_what_one_does() -> None:
    """Over links that nobody waits for, n pipelines take what one takes: halves of derived backwards included."""
    measured = pipeline(3, 4, 10, 20, payload_bytes=1)
    halves = {kind: tuple(replace(c, duration_ns=1000) for c in measured.stages[0].costs[_F]) for kind in (_I, _W)}
    measured = replace(measured, stages=tuple(replace(s, derived=halves) for s in measured.stages))
    schedule = build_schedule("zb-h1", measured.observed.shape)
    free = scenario(places([1, 2], bandwidth_bytes_per_s=10**30), "posted-ahead")
    one, three = (replay(measured, schedule, replace(free, pipelines=n)) for n in (1, 3))
    assert one.timeline == three.timeline
    weights = {op.stage: op.duration_ns for op in one.timeline.computes() if op.kind is _W}
    # Run apart, weight gradients take 9 % more; the first stage has no input gradient to run ahead of them.
    assert weights == {0: 1000, 1: 1090, 2: 1090}
