"""The Mann-Whitney U test: do two sets of measurements come from one distribution?

H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger than the other.
Annals of Mathematical Statistics 18 (1947). Ties take their mean rank; the spread of the approximation is then as in
E. L. Lehmann, Nonparametrics (1975), 1.2.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_STRATA = 24
"""Sums over more strata are close to normal, and counting them out takes long."""
_MOST_EXACT = 50
"""With so many values in both sets together the distribution is counted out, beyond it is close to normal."""


def two_sided_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Chance of rank sums at least as uneven as these if both sets come from one distribution.

    Counted over all ways to deal the values out, ties and all, for up to 50 values; else the normal approximation with
    corrections for ties and continuity.

    Args:
        first: At least one value.
        second: At least one value.
    """
    ranks = _double_ranks([*first, *second])
    doubled = sum(ranks[: len(first)])
    if len(ranks) <= _MOST_EXACT:
        return _counted(tuple(sorted(ranks)), len(first), doubled)
    return _approximate(ranks, len(first), doubled)


def stratified_p(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The same of values that are only comparable within their stratum: rank sums within each, added up.

    Counted over all ways to deal the values out within strata (P. van Elteren: On the combination of independent two
    sample tests of Wilcoxon. Bulletin de l'Institut International de Statistique 37, 1960; strata of equal sizes); of
    more than 24 strata the normal approximation.

    Args:
        pairs: Per stratum the values of both sets, at least one each.
    """
    if len(pairs) > _MOST_STRATA:
        return _approximate_strata(pairs)
    together = {0: 1}
    doubled = expected = 0
    for first, second in pairs:
        ranks = _double_ranks([*first, *second])
        doubled += sum(ranks[: len(first)])
        expected += len(first) * (len(ranks) + 1)
        ways = _ways(tuple(sorted(ranks)), len(first))
        added: dict[int, int] = {}
        for before, many in together.items():
            for total, more in ways.items():
                added[before + total] = added.get(before + total, 0) + many * more
        together = added
    count = sum(together.values())
    uneven = sum(many for total, many in together.items() if abs(total - expected) >= abs(doubled - expected))
    return uneven / count


def _approximate_strata(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    distance = variance = 0.0
    for first, second in pairs:
        ranks, size, total = _double_ranks([*first, *second]), len(first), len(first) + len(second)
        distance += sum(ranks[:size]) / 2 - size * (total + 1) / 2
        variance += _variance(ranks, size)
    if variance <= 0:
        return 1.0
    return math.erfc(max(0.0, abs(distance) - 0.5) / math.sqrt(2 * variance))


def least_stratified_p(sizes: Sequence[tuple[int, int]]) -> float:
    """The smallest value that ``stratified_p`` can give for strata of such sizes, none of their values alike."""
    return min(1.0, 2 / math.prod(math.comb(first + second, first) for first, second in sizes))


_LORD = {2: 3.427, 3: 1.272}
"""Distance of two means over the mean range of both sets that one in twenty exceeds, for sets of two and of three of
one normal distribution: E. Lord, The use of range in place of standard deviation in the t-test. Biometrika 34 (1947).
"""


def further_apart_than_steps(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two sets, too small for a rank test, lie further apart than their own values do.

    Of two and three values Lord's range test decides, at 5 %; of more, the larger range (his bound is below it). Of
    single values nothing is known: they count as apart.

    Args:
        first: At least one value.
        second: At least one value.
    """
    ranges = [max(values) - min(values) for values in (first, second)]
    few = min((len(values) for values in (first, second) if len(values) > 1), default=1)
    bound = _LORD[few] * sum(ranges) / sum(map(bool, ranges)) if few in _LORD and any(ranges) else max(ranges)
    return abs(sum(first) / len(first) - sum(second) / len(second)) > bound


def least_p(first: int, second: int) -> float:
    """The smallest value that ``two_sided_p`` can give for sets of such sizes, none of their values alike."""
    return min(1.0, 2 / math.comb(first + second, first)) if first and second else 1.0


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 2; values that are alike have their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    below = 0
    for _, group in groupby(order, key=values.__getitem__):
        alike = list(group)
        for place in alike:
            ranks[place] = 2 * below + len(alike) + 1
        below += len(alike)
    return ranks


@lru_cache(maxsize=256)
def _ways(ranks: tuple[int, ...], size: int) -> dict[int, int]:
    """Per sum of doubled ranks, in how many ways so many of them are chosen that have it."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] = ways[chosen].get(total + rank, 0) + count
    return ways[size]


def _counted(ranks: tuple[int, ...], size: int, doubled: int) -> float:
    expected = size * (len(ranks) + 1)
    ways = _ways(ranks, size)
    uneven = sum(count for total, count in ways.items() if abs(total - expected) >= abs(doubled - expected))
    return uneven / math.comb(len(ranks), size)


def _approximate(ranks: Sequence[int], size: int, doubled: int) -> float:
    total, variance = len(ranks), _variance(ranks, size)
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(doubled - size * (total + 1)) / 2 - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


def _variance(ranks: Sequence[int], size: int) -> float:
    """Variance of the sum of so many of them, ties and all."""
    total, other = len(ranks), len(ranks) - size
    ties = sum((n := len(list(group))) ** 3 - n for _, group in groupby(sorted(ranks)))
    return size * other / 12 * (total + 1 - ties / (total * (total - 1)))
