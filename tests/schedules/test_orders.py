"""Orders of the schedules with split backwards and several stages per rank.

Totals at zero delay are those of CrossPipe's simulator tests (C-TC/Megatron-LM, branch crossdc, test_pp_sim.py: p=4,
m=8, T_F = T_B = T_W = 200, T_B the input gradient), closed forms those of the papers named; orders were written out by
hand or recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import equal_stages, places
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.schedules.names import best_fit, recognise

if TYPE_CHECKING:
    from tracetool.model.timeline import Timeline

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT
INPUT = ActionKind.BACKWARD_INPUT


def _window(schedule: Schedule, f: int, i: int, w: int) -> int:
    return measure(_replayed(schedule, f, i, w)).window_ns


def _replayed(schedule: Schedule, f: int, i: int, w: int) -> Timeline:
    shape = schedule.shape
    per_microbatch = {F: f, INPUT: i, W: w, B: i + w}
    costs = {kind: (ActionCost(duration),) * shape.microbatches for kind, duration in per_microbatch.items()}
    stages = tuple(StageProfile(s, costs, 0, 0) for s in range(shape.stages))
    ranks = tuple(RankProfile(rank=r) for r in range(shape.ranks))
    pipeline = Pipeline(stages, ranks, schedule, "posted-ahead", 0)
    return replay(pipeline, schedule, Scenario()).timeline


def test_zb_v_leaves_no_rank_idle_between_its_first_and_last_action() -> None:
    """The published 4800 is the span of each device: the last rank starts when three forwards have come down."""
    timeline = _replayed(build_schedule("zb-v", PipelineShape(4, 8, 2, "v")), 100, 100, 100)
    for rank in range(4):
        mine = [op for op in timeline.computes() if op.rank == rank]
        assert mine[-1].end_ns - mine[0].start_ns == 4800
        assert mine[0].start_ns == rank * 100


@given(p=st.integers(2, 6), rounds=st.integers(2, 4), f=st.integers(1, 9), b=st.integers(1, 9), v=st.integers(2, 3))
def test_interleaving_divides_the_bubble_of_1f1b_by_the_chunks(p: int, rounds: int, f: int, b: int, v: int) -> None:
    """(p - 1)(f + B) / v with f and B of a whole rank (arXiv 2104.04473, 2.2)."""
    shape = PipelineShape(p, p * rounds, v)
    assert _window(build_schedule("interleaved", shape), f, b, 0) == (p * rounds * v + p - 1) * (f + b)


@given(p=st.integers(2, 6), more=st.integers(0, 6), t=st.integers(1, 9))
def test_zb_h1_has_a_third_of_the_bubble_of_1f1b(p: int, more: int, t: int) -> None:
    """(p - 1)(f + i - w), i the input gradient, at f = i = w (arXiv 2401.10241)."""
    shape = PipelineShape(p, 2 * p + more)
    assert _window(build_schedule("zb-h1", shape), t, t, t) == (3 * shape.microbatches + p - 1) * t


@pytest.mark.parametrize(("p", "m"), [(4, 12), (8, 24)])
def test_zb_h1_holds_p_microbatches_on_every_stage(p: int, m: int) -> None:
    """As many as 1F1B's first stage (arXiv 2401.10241), counted in the order itself."""
    for order in build_schedule("zb-h1", PipelineShape(p, m)).orders:
        held = peak = 0
        for action in order:
            held += {F: 1, W: -1}.get(action.kind, 0)
            peak = max(peak, held)
        assert peak == p


def test_orders_of_the_first_and_last_rank() -> None:
    """Torch's own labels on the recorded gloo and H100 runs, up to where they repeat."""
    order = build_schedule("zb-v", PipelineShape(4, 8, 2, "v")).orders[0]
    assert " ".join(map(str, order[:16])) == "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2"
    order = build_schedule("interleaved", PipelineShape(4, 8, 2)).orders[0]
    assert " ".join(map(str, order[:14])) == "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1"
    order = build_schedule("zb-h1", PipelineShape(4, 8)).orders[1]
    assert " ".join(map(str, order[:10])) == "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1"


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("interleaved", PipelineShape(4, 8), "at least 2 stages per rank"),
        ("interleaved", PipelineShape(4, 9, 2), "multiple of 4"),
        ("zb-v", PipelineShape(4, 8, 2), "v placement"),
        ("zb-h1", PipelineShape(4, 8, 2), "one stage per rank"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_what_would(name: str, shape: PipelineShape, wanted: str) -> None:
    with pytest.raises(UnsupportedShape) as caught:
        build_schedule(name, shape)
    assert wanted in f"{caught.value.message} {caught.value.hint}"


_V, _COPIES = PipelineShape(4, 8, 2, "v"), PipelineShape(4, 8, 2, "bidirectional")
_SHAPES = {
    "1f1b": PipelineShape(4, 8), "gpipe": PipelineShape(4, 8), "zb-h1": PipelineShape(4, 8),
    "interleaved": PipelineShape(4, 8, 2), "zb-v": _V, "eager-1f1b": PipelineShape(4, 8), "zb-h2": PipelineShape(4, 8),
    "looped-bfs": PipelineShape(4, 8, 2), "interleaved-zero-bubble": PipelineShape(4, 8, 2), "v-half": _V, "v-min": _V,
    "hanayo": _V, "dualpipev": _V, "dualpipe": _COPIES, "chimera": _COPIES,
}  # fmt: skip


def test_zb_v_over_a_dc_boundary_is_the_published_5400() -> None:
    """The same with a delay of 100 between two DCs of two ranks each: the longest span of a device."""
    schedule = build_schedule("zb-v", PipelineShape(4, 8, 2, "v"))
    costs = {F: 100, INPUT: 100, W: 100}
    what_if = Scenario(topology=places([2, 2], latency_ns=100), p2p="posted-ahead")
    ops = replay(equal_stages(schedule, costs), schedule, what_if).timeline.computes()
    ranks = [[op for op in ops if op.rank == rank] for rank in range(4)]
    assert max(max(op.end_ns for op in mine) - min(op.start_ns for op in mine) for mine in ranks) == 5400


@pytest.mark.parametrize("name", _SHAPES)
def test_every_order_is_recognised_as_itself(name: str) -> None:
    known = recognise(build_schedule(name, _SHAPES[name]))
    assert known is not None
    assert known.name == name


def test_megatrons_groups_are_recognised() -> None:
    """Groups of 5 and 4 microbatches on four ranks, where torch has no equal groups for 9."""
    built = build_schedule("interleaved", PipelineShape(4, 9, 2), group=5)
    assert recognise(built) == built


@pytest.mark.parametrize("name", _SHAPES)
def test_an_order_with_two_actions_swapped_is_unknown_and_the_nearest_is_named(name: str) -> None:
    schedule = build_schedule(name, _SHAPES[name])
    order = list(schedule.orders[2])
    at = next(i for i in range(len(order) - 1) if {order[i].kind, order[i + 1].kind} in ({F, B}, {F, INPUT}, {F, W}))
    order[at], order[at + 1] = order[at + 1], order[at]
    shuffled = Schedule("observed", schedule.shape, (*schedule.orders[:2], tuple(order), *schedule.orders[3:]))
    assert recognise(shuffled) is None
    fit = best_fit(shuffled)
    assert fit is not None
    assert (fit.schedule.name, fit.mismatches <= 2) == (name, True)
    assert fit.first is not None
    assert "rank 2" in fit.first


def test_a_merged_backward_and_torchs_first_stage_are_the_same_order() -> None:
    """Torch runs I and W as one B where they are neighbours, and the first stage's whole backward as W."""
    schedule = build_schedule("zb-h1", _SHAPES["zb-h1"])
    first = tuple(a for a in schedule.orders[0] if a.kind is not INPUT)
    last: list[Action] = []
    for action in schedule.orders[3]:
        previous = last[-1] if last else None
        if action.kind is W and previous == Action(3, INPUT, action.microbatch):
            last[-1] = Action(3, B, action.microbatch)
        else:
            last.append(action)
    merged = Schedule("observed", schedule.shape, (first, *schedule.orders[1:3], tuple(last)))
    known = recognise(merged)
    assert known is not None
    assert known.name == "zb-h1"
