"""Costs of actions and memory of ranks from what was measured: worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.recorded import rebuilt
from helpers.synthetic import pipeline

from tracetool.costs.measured import MeasuredCosts
from tracetool.costs.recut import recut
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import build_schedule

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def _costs(measured: Pipeline, schedule: Schedule | None = None, scenario: Scenario | None = None) -> MeasuredCosts:
    return MeasuredCosts(measured, scenario or Scenario(), schedule or measured.observed)


def _split(measured: Pipeline, *, derived: bool) -> Pipeline:
    """Halves of 100 (alone 80, beside 120) and 200 (160, 240), told apart by kernels or run apart."""
    halves = {
        INPUT: (ActionCost(100, 3, 5, 80, 120),) * 2,
        WEIGHT: (ActionCost(200, -7, 6, 160, 240),) * 2,
    }
    stages = tuple(
        replace(s, derived=halves) if derived else replace(s, costs={F: s.costs[F], **halves}) for s in measured.stages
    )
    return replace(measured, stages=stages)


def _zero_bubble() -> Schedule:
    return build_schedule("zb-h1", PipelineShape(2, 2))


def test_derived_weight_gradients_cost_the_sums_that_torch_adds() -> None:
    """9 % more of all times, memory as derived; nothing is added to input gradients or where they ran apart."""
    costs = _costs(_split(pipeline(2, 2, 50, 300), derived=True), _zero_bubble())
    assert costs.action(Action(1, WEIGHT, 0)) == ActionCost(218, -7, 6, 174, 262)
    assert costs.action(Action(1, INPUT, 0)) == ActionCost(100, 3, 5, 80, 120)
    apart = _costs(_split(pipeline(2, 2, 50, 300), derived=False), _zero_bubble())
    assert apart.action(Action(1, WEIGHT, 0)) == ActionCost(200, -7, 6, 160, 240)


def test_the_first_stage_runs_its_backward_whole_and_sums_nothing() -> None:
    """Where an order has no I of its first stage, as torch's have none, W is all; else both are halves, as derived."""
    measured = _split(pipeline(2, 2, 50, 300), derived=True)
    order = _zero_bubble()
    costs = _costs(measured, order)
    assert costs.action(Action(0, INPUT, 0)) == ActionCost(100, 3, 5, 80, 120)
    assert costs.action(Action(0, WEIGHT, 0)) == ActionCost(200, -7, 6, 160, 240)
    first = tuple(a for a in order.orders[0] if a.kind is not INPUT)
    torch_s = replace(order, orders=(first, *order.orders[1:]))
    assert _costs(measured, torch_s).action(Action(0, WEIGHT, 0)) == measured.stages[0].costs[B][0]


def test_a_whole_backward_of_halves_is_their_sum() -> None:
    costs = _costs(_split(pipeline(2, 2, 50, 300), derived=False), build_schedule("1f1b", PipelineShape(2, 2)))
    assert costs.action(Action(1, B, 1)) == ActionCost(300, -4, 6, 240, 360)


def test_microbatches_beyond_the_recorded_cost_the_median_without_the_first() -> None:
    base = pipeline(1, 4, 1, 1)
    forwards = tuple(ActionCost(10 * i, i, 2 * i, 9 * i, 12 * i) for i in (100, 1, 2, 3))
    measured = replace(base, stages=(replace(base.stages[0], costs={**base.stages[0].costs, F: forwards}),))
    costs = _costs(measured, build_schedule("gpipe", PipelineShape(1, 9)))
    assert [costs.action(Action(0, F, m)) for m in range(4)] == list(forwards)
    assert {costs.action(Action(0, F, m)) for m in range(4, 9)} == {ActionCost(20, 2, 4, 18, 24)}


def test_memory_of_a_scenario_replaces_memory_alone() -> None:
    given = Scenario(activation_bytes=1000, static_bytes=7)
    costs = _costs(_split(pipeline(2, 2, 50, 300), derived=False), _zero_bubble(), given)
    assert costs.action(Action(1, WEIGHT, 0)) == ActionCost(200, -1000, 0, 160, 240)
    assert costs.action(Action(1, INPUT, 0)) == ActionCost(100, 0, 0, 80, 120)
    assert costs.action(Action(1, F, 0)) == ActionCost(50, 1000, 1000)
    assert costs.static_bytes(1) == 7


def _with_buffers(measured: Pipeline, *standing: int | None) -> Pipeline:
    ranks = tuple(
        replace(rank, receive_buffer_bytes=of_rank) for rank, of_rank in zip(measured.ranks, standing, strict=True)
    )
    return replace(measured, ranks=ranks)


def test_standing_receive_buffers_grow_with_the_messages() -> None:
    """Three ranks, messages of 10 bytes down and 1 up: per microbatch they receive 1, 10 + 1 and 10 bytes."""
    measured = pipeline(3, 4, 1, 1, payload_bytes=10, backward_payload_bytes=1, static_bytes=[1000, 2000, 3000])
    standing = _with_buffers(measured, 4, 44, 40)
    for m in (1, 4, 9):
        costs = _costs(standing, build_schedule("1f1b", PipelineShape(3, m)))
        assert [costs.static_bytes(r) for r in range(3)] == [1000 + m - 4, 2000 + 11 * (m - 4), 3000 + 10 * (m - 4)]
    for coming in (_with_buffers(measured, 0, 0, 0), _with_buffers(measured, None, None, None)):
        costs = _costs(coming, build_schedule("1f1b", PipelineShape(3, 9)))
        assert [costs.static_bytes(r) for r in range(3)] == [1000, 2000, 3000]


def test_memory_is_unknown_where_the_size_of_buffers_is() -> None:
    measured = pipeline(2, 4, 1, 1, payload_bytes=[10, None], static_bytes=1000)
    costs = _costs(_with_buffers(measured, 40, 40))
    assert [costs.static_bytes(rank) for rank in range(2)] == [None, 1040 - 40]
    assert _costs(_with_buffers(measured, 0, 0)).static_bytes(0) == 1000


def test_the_recorded_buffers_stand_and_double_with_the_chunks() -> None:
    """1f1b_m8_mem: 8 messages of 16 MiB each way. Two chunks per rank, eight stages: every rank receives from both
    sides in both of its stages but the first stage (no activation) and the last one (no gradient)."""
    whole = rebuilt("1f1b_m8_mem").pipeline
    unit = 8 * 2**24
    assert [rank.receive_buffer_bytes for rank in whole.ranks] == [unit, 2 * unit, 2 * unit, unit]
    cut = recut(whole, 2)
    costs = _costs(cut)
    grown = [(costs.static_bytes(r) or 0) - (whole.ranks[r].static_bytes or 0) for r in range(4)]
    assert grown == [2 * unit] * 4


@pytest.mark.parametrize("mode", ["grouped", "in-order"])
def test_static_memory_is_the_recorded_one_in_the_recorded_order(mode: str) -> None:
    whole = rebuilt("1f1b_m8_mem").pipeline
    costs = _costs(whole, None, Scenario(p2p="grouped" if mode == "grouped" else "in-order"))
    assert [costs.static_bytes(r) for r in range(4)] == [rank.static_bytes for rank in whole.ranks]
