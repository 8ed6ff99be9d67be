"""The rank test against published critical values, and against dealing values out one way after the other."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.comparison import verdict
from tracetool.comparison.verdict import (
    further_apart_than_steps,
    least_p,
    least_stratified_p,
    stratified_p,
    two_sided_p,
)

CRITICAL = {(5, 5): 2, (6, 6): 5, (8, 8): 13, (10, 10): 23, (5, 8): 6, (12, 12): 37, (20, 20): 127, (4, 10): 5}
"""Largest U that is significant at 5 %, two-sided: tables of Mann-Whitney U, as in Siegel, Nonparametric Statistics."""


def with_u(first: int, second: int, u: int) -> tuple[list[float], list[float]]:
    """Two sets without ties of which the first exceeds the second u times."""
    values = [float(i) for i in range(second)]
    mine: list[float] = []
    for _ in range(first):
        below = min(u, second)
        mine.append(below - 0.5 + 0.001 * len(mine))
        u -= below
    return mine, values


@pytest.mark.parametrize(("sizes", "critical"), CRITICAL.items())
def test_critical_values_are_those_of_the_tables(sizes: tuple[int, int], critical: int) -> None:
    assert two_sided_p(*with_u(*sizes, critical)) <= 0.05 < two_sided_p(*with_u(*sizes, critical + 1))


def doubled_ranks(values: list[float]) -> list[int]:
    return [2 * sum(v < w for v in values) + sum(v == w for v in values) + 1 for w in values]


def by_dealing(first: list[float], second: list[float]) -> float:
    ranks = doubled_ranks([*first, *second])
    sums = [sum(chosen) for chosen in combinations(ranks, len(first))]
    expected = len(first) * (len(ranks) + 1)
    seen = abs(sum(ranks[: len(first)]) - expected)
    return sum(abs(total - expected) >= seen for total in sums) / len(sums)


few = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=5)


@given(few, few)
@drawn(60)
def test_every_way_to_deal_values_out_counts_ties_and_all(first: list[float], second: list[float]) -> None:
    assert two_sided_p(first, second) == pytest.approx(by_dealing(first, second))
    assert two_sided_p(first, second) == pytest.approx(two_sided_p(second, first))
    assert stratified_p([(first, second)]) == pytest.approx(two_sided_p(first, second))
    assert two_sided_p(first, second) >= least_p(len(first), len(second)) or len({*first, *second}) < len(
        first + second
    )


pair = st.tuples(
    st.lists(st.integers(0, 3).map(float), min_size=2, max_size=2),
    st.lists(st.integers(0, 3).map(float), min_size=2, max_size=2),
)


@given(st.lists(pair, min_size=1, max_size=3))
@drawn(30)
def test_values_are_dealt_out_within_their_stratum_only(strata: list[tuple[list[float], list[float]]]) -> None:
    ranks = [doubled_ranks([*a, *b]) for a, b in strata]
    sums = [sum(map(sum, dealt)) for dealt in product(*(combinations(r, 2) for r in ranks))]
    expected, seen = 10 * len(strata), sum(sum(r[:2]) for r in ranks)
    uneven = sum(abs(total - expected) >= abs(seen - expected) for total in sums) / len(sums)
    assert stratified_p(strata) == pytest.approx(uneven)


def test_the_approximation_is_close_to_what_is_counted_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [i * 1.0 for i in range(25)], [i // 2 + 6.0 for i in range(25)]
    counted = [two_sided_p(first, second), two_sided_p(first, first[:20])]
    monkeypatch.setattr(verdict, "_MOST_EXACT", 0)
    assert [two_sided_p(first, second), two_sided_p(first, first[:20])] == pytest.approx(counted, rel=0.05)
    same = [1.0] * 30
    assert two_sided_p(same, same) == 1.0


def test_the_least_chance_is_that_of_sets_apart() -> None:
    low, high = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]
    assert two_sided_p(low, high) == least_p(5, 5) == 2 / math.comb(10, 5)
    assert stratified_p([(low, high)] * 3) == least_stratified_p([(5, 5)] * 3)
    assert least_p(1, 1) == 1


@pytest.mark.parametrize("size", [2, 3])
def test_one_pair_in_twenty_of_few_values_lies_further_apart(size: int) -> None:
    """Lord's bounds, by drawing 20,000 pairs of sets from one normal distribution: 5 % +- 4 standard errors."""
    draws = np.random.default_rng(7).normal(size=(20_000, 2, size)).tolist()
    apart = sum(further_apart_than_steps(first, second) for first, second in draws)
    assert apart / 20_000 == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 20_000))


def test_single_values_count_as_apart_and_overlapping_sets_do_not() -> None:
    assert further_apart_than_steps([1.0], [1.1])
    assert not further_apart_than_steps([1.0], [1.0])
    assert not further_apart_than_steps([1.0, 2.0, 3.0, 4.0], [2.0, 3.0, 4.0, 5.0])
    assert further_apart_than_steps([1.0, 1.1, 1.2, 1.3], [1.7, 1.8, 1.9, 2.0])
