"""Opposed pipelines: what a rank holds, and what its stages cost, where there are two copies of every stage."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.notices import codes
from helpers.synthetic import found, pipeline

from tracetool.errors import InvalidSchedule, UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.model.timeline import RankOp, measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.whatif.answer import answer

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
SHAPE = PipelineShape(4, 8, 2, "bidirectional")


def test_where_stages_sit_and_who_feeds_whom() -> None:
    """Stage 4 + s is the second copy of stage s, on rank 3 - s; the copies do not meet."""
    assert [SHAPE.rank_of(s) for s in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [SHAPE.stages_of(r) for r in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [SHAPE.previous(s) for s in range(8)] == [None, 0, 1, 2, None, 4, 5, 6]
    assert [SHAPE.next(s) for s in range(8)] == [1, 2, 3, None, 5, 6, 7, None]
    assert [SHAPE.profile_of(s) for s in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [list(SHAPE.microbatches_of(s)) for s in (0, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_ranks_hold_and_run_the_stages_of_both_copies() -> None:
    """Stage s takes s + 1 and twice that; weights 100, 200, 400, 800; a microbatch keeps 1, 10, 100, 1000."""
    measured = pipeline(
        4, 8, [10, 20, 30, 40], [20, 40, 60, 80],
        activation_bytes=[1, 10, 100, 1000], static_bytes=[100, 200, 400, 800], tail_ns=7,
    )  # fmt: skip
    done = replay(measured, build_schedule("chimera", SHAPE), Scenario(p2p="posted-ahead"))
    ops = {(op.stage, op.kind, op.microbatch): op for op in done.timeline.computes()}
    for stage in range(8):
        for j in SHAPE.microbatches_of(stage):
            assert ops[stage, F, j].duration_ns == 10 * (stage % 4 + 1)
            assert ops[stage, B, j].duration_ns == 20 * (stage % 4 + 1)
    curves = [curve for curve in done.timeline.memory if curve is not None]
    assert [curve[0][1] for curve in curves] == [900, 600, 600, 900]
    assert [curve[-1][1] for curve in curves] == [900, 600, 600, 900]
    # By Chimera's slots rank 0 has the forwards of stage 0 in slots 0, 2, 8, 10, their backwards in 7, 9, 15, 17; those
    # of stage 7, the copy of 3, in 3, 5, 11, 13, backwards one slot later: at most two of stage 0 and one of stage 7.
    assert max(level for _, level in curves[0]) == 900 + 2 * 1 + 1000
    tails = [op for op in done.timeline.ops if isinstance(op, RankOp)]
    assert [(op.rank, op.duration_ns) for op in tails] == [(r, 7) for r in range(4) for _ in range(2)]


def test_the_second_copys_first_microbatch_costs_what_the_first_ones_does() -> None:
    """The first backward of a step makes the gradients: both copies have one."""
    measured = pipeline(2, 4, [[9, 1, 1, 1]] * 2, [[9, 2, 2, 2]] * 2)
    done = replay(measured, build_schedule("chimera", PipelineShape(2, 4, 2, "bidirectional")), Scenario())
    long = {(op.stage, op.kind, op.microbatch) for op in done.timeline.computes() if op.duration_ns == 9}
    assert long == {(s, kind, 0 if s < 2 else 2) for s in range(4) for kind in (F, B)}


def test_what_if_replays_opposed_pipelines_from_one_stage_per_rank() -> None:
    """Chimera's window at f = b: 2m + p - 2 slots (arXiv 2107.06925)."""
    result = answer(found(pipeline(4, 8, 5, 5, p2p="posted-ahead")), ["chimera"]).results[0]
    assert result.metrics.window_ns == (2 * 8 + 4 - 2) * 5
    assert NoticeCode.STAGES_COPIED in codes(result.remarks)
    assert result.seen_error_ratio is None


def test_a_trace_of_several_stages_per_rank_has_no_second_copy() -> None:
    looped = replace(pipeline(4, 4, 1, 1), observed=build_schedule("interleaved", PipelineShape(2, 4, 2)))
    with pytest.raises(UnsupportedShape, match="two copies"):
        replay(looped, build_schedule("chimera", PipelineShape(2, 4, 2, "bidirectional")), Scenario())


def test_a_copy_runs_its_own_half_of_the_microbatches_only() -> None:
    built = build_schedule("chimera", PipelineShape(2, 4, 2, "bidirectional"))
    order = tuple(Action(a.stage, a.kind, 3 - a.microbatch) for a in built.orders[0])
    with pytest.raises(InvalidSchedule, match=r"this copy of the stage runs microbatches \d\.\.\d only"):
        replace(built, orders=(order, built.orders[1])).validate()


@pytest.mark.parametrize("starts", [{0}, {1, 2}, {7}])
def test_only_a_forward_and_a_backward_that_are_neighbours_run_as_one(starts: set[int]) -> None:
    """0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3: no two forwards, no three actions, nothing behind the last."""
    built = build_schedule("1f1b", PipelineShape(3, 4))
    assert replace(built, overlaps=(frozenset({2}), frozenset(), frozenset())).validate().cells(0)[2] == (
        "(0F2;0B0)OVERLAP_F_B"
    )
    with pytest.raises(InvalidSchedule, match="cannot run as one"):
        Schedule(
            "by-hand", built.shape, built.orders, overlaps=(frozenset(starts), frozenset(), frozenset())
        ).validate()


def test_dualpipe_takes_what_the_overlap_ratio_says() -> None:
    """All of a middle rank's time but its first pair's, the outer steps and the split backwards runs as one."""
    measured = pipeline(4, 8, 10, 20)
    split = {
        ActionKind.BACKWARD_INPUT: measured.stages[0].costs[F],
        ActionKind.BACKWARD_WEIGHT: measured.stages[0].costs[F],
    }
    measured = replace(measured, stages=tuple(replace(s, costs={**s.costs, **split}) for s in measured.stages))
    schedule = build_schedule("dualpipe", SHAPE)
    as_one = [sum(len(unit) == 2 for unit in schedule.units(rank)) for rank in range(4)]
    whole, less = (
        measure(replay(measured, schedule, Scenario(overlap_ratio=ratio)).timeline).rank_compute_ns
        for ratio in (1, 0.5)
    )
    assert [a - b for a, b in zip(whole, less, strict=True)] == [15 * n for n in as_one]
