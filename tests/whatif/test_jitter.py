"""Spread of step times over resamples, where it can be worked out which steps are possible."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import pipeline
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.schedules import build_schedule
from tracetool.whatif.variation import RESAMPLES, Spread, spread

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline


def _spread(measured: Pipeline, seed: int, *, m: int | None = None, schedule: str = "1f1b") -> Spread:
    shape = measured.observed.shape
    order = build_schedule(schedule, PipelineShape(shape.ranks, m or shape.microbatches))
    return spread(measured, order, Scenario(), seed)


VARYING = pipeline(2, 4, [[5, 10, 11, 12], [6, 13, 17, 19]], [[30, 20, 21, 27], [31, 22, 25, 29]])


@given(
    seed=st.integers(-(2**63), 2**63),
    times=st.lists(st.integers(1, 1000), min_size=16, max_size=16),
)
@drawn(15, first=3)
def test_equal_seeds_are_equal_and_quantiles_in_order(seed: int, times: list[int]) -> None:
    measured = pipeline(2, 4, [times[:4], times[4:8]], [times[8:12], times[12:]])
    one = _spread(measured, seed)
    assert one == _spread(measured, seed)
    assert one.resamples == RESAMPLES
    # No step is shorter than its fastest microbatches one after the other on a rank, or longer than all in turn.
    assert 0 < one.p50_ns <= one.p95_ns <= 4 * (sum(map(max, (times[:4], times[4:8], times[8:12], times[12:]))))


def test_seeds_differ() -> None:
    assert len({_spread(VARYING, seed) for seed in range(3)}) > 1


@pytest.mark.parametrize("m", [1, 3, 8])
def test_equal_costs_have_no_spread(m: int) -> None:
    """(m + p - 1)(f + b) every time."""
    assert _spread(pipeline(3, 3, 10, 20), 7, m=m) == Spread(RESAMPLES, (m + 2) * 30, (m + 2) * 30)


def test_a_single_microbatch_is_always_the_first_one() -> None:
    """It keeps its own cost, so there is nothing to draw: 5 + 6 + 31 + 30."""
    assert _spread(VARYING, 1, m=1) == Spread(RESAMPLES, 72, 72)


def test_the_first_microbatch_is_neither_drawn_nor_left_out() -> None:
    """One rank: F0 of 1000 and B0 of 2000 once each, three times 1 and 2 besides."""
    measured = pipeline(1, 4, [[1000, 1, 1, 1]], [[2000, 2, 2, 2]])
    assert _spread(measured, 3) == Spread(RESAMPLES, 3009, 3009)
    assert _spread(measured, 3, m=10) == Spread(RESAMPLES, 3027, 3027)


def test_steps_are_sums_of_measured_costs() -> None:
    """One rank, two microbatches: the second one's forward is 1 or 2, and so many have each that both are seen.

    Of 40 fair draws, more than 95 % or fewer than 5 % equal ones have a chance of 10^-8.
    """
    found = _spread(pipeline(1, 3, [[0, 0, 1000]], [[0, 0, 0]]), 5, m=2)
    assert found.p95_ns == 1000
    assert 0 <= found.p50_ns <= 1000


def test_times_alone_are_drawn_with_their_times_beside() -> None:
    """On one rank nothing is beside: times alone count, not recorded ones."""
    measured = pipeline(1, 3, 50, 50)
    stages = tuple(
        replace(
            s, costs={k: tuple(replace(c, uncontended_ns=7, contended_ns=9) for c in of) for k, of in s.costs.items()}
        )
        for s in measured.stages
    )
    assert _spread(replace(measured, stages=stages), 0) == Spread(RESAMPLES, 6 * 7, 6 * 7)


def test_the_order_in_which_kinds_were_found_does_not_matter() -> None:
    turned = replace(
        VARYING, stages=tuple(replace(s, costs=dict(reversed(list(s.costs.items())))) for s in VARYING.stages)
    )
    assert [list(s.costs) for s in turned.stages] != [list(s.costs) for s in VARYING.stages]
    assert _spread(turned, 3) == _spread(VARYING, 3)
