"""Kendall's tau-b against its definition, pair by pair."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.validation.rows import kendall_tau_b


def by_definition(first: list[int], second: list[int]) -> float | None:
    """Every pair looked at once: agreeing minus disagreeing, over the pairs untied in either ranking."""
    signs = [
        ((a > b) - (a < b), (c > d) - (c < d))
        for (a, c), (b, d) in combinations(list(zip(first, second, strict=True)), 2)
    ]
    untied_first, untied_second = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    if not untied_first or not untied_second:
        return None
    return sum(x * y for x, y in signs) / sqrt(untied_first * untied_second)


SMALL = st.integers(0, 6)


@given(st.lists(st.tuples(SMALL, SMALL), max_size=40))
def test_it_is_what_the_definition_says_with_many_ties(pairs: list[tuple[int, int]]) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    expected = by_definition(first, second)
    assert kendall_tau_b(first, second) == (None if expected is None else pytest.approx(expected, abs=1e-14))


@given(st.lists(st.integers(), unique=True, min_size=2, max_size=60))
def test_the_same_order_is_exactly_1_and_the_opposite_exactly_minus_1(values: list[int]) -> None:
    assert kendall_tau_b(values, values) == 1.0
    assert kendall_tau_b(values, [-v for v in values]) == -1.0


@pytest.mark.parametrize(
    ("first", "second", "tau"),
    [
        # One of three pairs disagrees: (2 - 1) / 3.
        ([1, 2, 3], [1, 3, 2], 1 / 3),
        # Of six pairs one is tied in the second; five agree: 5 / sqrt(6 * 5).
        ([1, 2, 3, 4], [1, 2, 2, 3], 5 / sqrt(30)),
        # Tied in both is tied in each: two pairs left, both agree.
        ([1, 1, 2], [5, 5, 7], 1.0),
    ],
)
def test_worked_out_by_hand(first: list[int], second: list[int], tau: float) -> None:
    assert kendall_tau_b(first, second) == pytest.approx(tau, abs=1e-15)


@pytest.mark.parametrize("values", [[], [1], [2, 2, 2]])
def test_without_two_different_values_there_is_no_ranking(values: list[int]) -> None:
    assert kendall_tau_b(values, list(range(len(values)))) is None
