"""Slowdown taken from another recording: ratios by hand, and errors as users read them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import rebuilt
from helpers.synthetic import pipeline

from tracetool.costs.borrowed import with_factors_of
from tracetool.errors import ScenarioError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, LayerCosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import Costs, Pipeline

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


def _costs(times: Mapping[ActionKind, Sequence[tuple[int, int | None]]]) -> Costs:
    """Costs of (alone, beside) ns that were recorded as 7 ns."""
    return {
        kind: tuple(ActionCost(7, uncontended_ns=alone, contended_ns=beside) for alone, beside in of_kind)
        for kind, of_kind in times.items()
    }


def _pipeline(costs: Costs, derived: Costs | None = None, layers: LayerCosts | None = None) -> Pipeline:
    base = pipeline(2, 2, 1, 1)
    stages = tuple(replace(s, costs=costs, derived=derived or {}, layers=layers) for s in base.stages)
    return replace(base, stages=stages)


def _beside(costs: Costs) -> dict[ActionKind, list[int | None]]:
    return {kind: [c.contended_ns for c in of_kind] for kind, of_kind in costs.items()}


MINE = _costs({F: [(100, 100), (200, 200)], B: [(300, None), (301, None)]})


def test_every_action_slows_down_as_all_of_its_kind_do_there() -> None:
    """Forwards by (15 + 45) / (10 + 30), backwards by 1.2; recorded times and times alone stay what they are."""
    theirs = _pipeline(_costs({F: [(10, 15), (30, 45)], B: [(10, 12), (10, 12)]}))
    got = with_factors_of(_pipeline(MINE), theirs)
    for stage in got.stages:
        assert _beside(stage.costs) == {F: [150, 300], B: [360, 361]}
        assert [(c.duration_ns, c.uncontended_ns) for c in stage.costs[F]] == [(7, 100), (7, 200)]
    assert replace(got, stages=()) == replace(_pipeline(MINE), stages=())


def test_actions_whose_time_alone_is_unknown_stay_as_they_are() -> None:
    costs = {**MINE, F: (ActionCost(7), ActionCost(8))}
    theirs = _pipeline(_costs({F: [(10, 15)], B: [(10, 12)]}))
    assert with_factors_of(_pipeline(costs), theirs).stages[0].costs[F] == costs[F]


def test_a_backward_and_its_halves_stand_for_one_another() -> None:
    """I and W of 1.1 and 1.9 over 100 and 300 ns: 680 / 400. And the other way round, 1.2 for both of them."""
    split = _costs({F: [(10, 10)], INPUT: [(100, 110)], WEIGHT: [(300, 570)]})
    whole = _costs({F: [(10, 10)], B: [(10, 12)]})
    assert _beside(with_factors_of(_pipeline(MINE), _pipeline(split)).stages[1].costs)[B] == [510, 512]
    got = _beside(with_factors_of(_pipeline(split), _pipeline(whole)).stages[1].costs)
    assert (got[INPUT], got[WEIGHT]) == ([120], [360])
    # Halves that were told apart are better than the whole.
    derived = _costs({INPUT: [(10, 11)], WEIGHT: [(10, 19)]})
    got = _beside(with_factors_of(_pipeline(split), _pipeline(whole, derived)).stages[1].costs)
    assert (got[INPUT], got[WEIGHT]) == ([110], [570])


def test_layers_and_derived_halves_slow_down_too() -> None:
    layers = LayerCosts(MINE, (MINE, MINE), MINE)
    mine = _pipeline(MINE, _costs({INPUT: [(100, 100)]}), layers)
    got = with_factors_of(mine, _pipeline(_costs({F: [(10, 15)], B: [(10, 12)]}))).stages[0]
    assert got.layers is not None
    assert [_beside(c)[F] for c in (got.layers.ahead, *got.layers.layers, got.layers.after)] == [[150, 300]] * 4
    assert _beside(got.derived) == {INPUT: [120]}


def test_other_stages_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"costs_from: that recording has 4 stages, this one 2\.") as error:
        with_factors_of(pipeline(2, 2, 1, 1), pipeline(4, 2, 1, 1))
    assert error.value.hint == "take a recording of the same model, cut into the same stages"


def test_stages_of_other_layers_are_refused() -> None:
    one, two = (_pipeline(MINE, None, LayerCosts(MINE, (MINE,) * n, MINE)) for n in (1, 2))
    with pytest.raises(ScenarioError, match=r"stage 0 of that recording has 2 layers, here it has 1\."):
        with_factors_of(one, two)


@pytest.mark.parametrize("costs", [{}, {F: [(10, None)]}, {F: [(0, 0)]}])
def test_a_recording_that_does_not_tell_is_refused(costs: Mapping[ActionKind, list[tuple[int, int | None]]]) -> None:
    with pytest.raises(ScenarioError, match="does not tell by how much F of stage 0 slows down") as error:
        with_factors_of(_pipeline(MINE), _pipeline(_costs(costs)))
    assert "not grouped" in (error.value.hint or "")


def test_a_grouped_recording_slows_down_as_the_one_in_order_does() -> None:
    """1f1b_m8 shows no compute beside communication, rt1f1b_m8 of the same stages does."""
    grouped, other = rebuilt("1f1b_m8").pipeline, rebuilt("rt1f1b_m8").pipeline
    got = with_factors_of(grouped, other)
    for mine, theirs, before in zip(got.stages, other.stages, grouped.stages, strict=True):
        for kind in (F, B):
            ratios = [
                sum(c.contended_ns or 0 for c in s.costs[kind]) / sum(c.uncontended_ns or 0 for c in s.costs[kind])
                for s in (mine, theirs)
            ]
            assert ratios[0] == pytest.approx(ratios[1], rel=1e-6)
            assert [c.uncontended_ns for c in mine.costs[kind]] == [c.uncontended_ns for c in before.costs[kind]]
