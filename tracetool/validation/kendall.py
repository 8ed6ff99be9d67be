"""Kendall's rank correlation: do predictions put configurations in the measured order?"""

from __future__ import annotations

from collections import Counter
from math import isqrt, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things.

    tau_b = (C - D) / sqrt((n0 - n1)(n0 - n2)), with C and D the pairs both rank alike and the other way round, n0 all
    pairs, n1 and n2 those tied in the first and in the second (Kendall, Biometrika 33, 1945). Pairs are counted in
    whole numbers, by Knight's merge sort (JASA 61, 1966) in n log n.

    Returns:
        -1 to 1; None if either holds no two different values.
    """
    pairs = sorted(zip(first, second, strict=True))
    every = _pairs([len(pairs)])
    tied_first = _pairs(Counter(a for a, _ in pairs).values())
    tied_second = _pairs(Counter(b for _, b in pairs).values())
    tied_both = _pairs(Counter(pairs).values())
    if every in (tied_first, tied_second):
        return None
    discordant = _inversions([b for _, b in pairs])[1]
    difference = every - tied_first - tied_second + tied_both - 2 * discordant
    product = (every - tied_first) * (every - tied_second)
    root = isqrt(product)
    return difference / (root if root * root == product else sqrt(product))


def _pairs(sizes: Iterable[int]) -> int:
    return sum(n * (n - 1) // 2 for n in sizes)


def _inversions(values: list[float]) -> tuple[list[float], int]:
    """The values sorted, and how many pairs stood the wrong way round."""
    if len(values) < 2:
        return values, 0
    middle = len(values) // 2
    (left, a), (right, b) = _inversions(values[:middle]), _inversions(values[middle:])
    merged: list[float] = []
    count, at = a + b, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            merged.append(left[at])
            at += 1
        count += len(left) - at
        merged.append(value)
    return merged + left[at:], count
