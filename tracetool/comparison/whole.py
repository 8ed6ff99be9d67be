"""Contributions in whole nanoseconds and bytes whose sum is kept."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.comparison.values import KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence


def whole_contributions(name: str, values: Sequence[Fraction]) -> list[float]:
    """The values as they are written: of times and sizes whole ones, each off by less than one.

    What rounding takes from one it gives to the next, so that the sum is that of the values, rounded down once.
    Ratios stay as they are.
    """
    if KNOWN[name.partition("/")[0]].unit == "1":
        return [float(value) for value in values]
    told: list[float] = []
    exact, given = Fraction(0), 0
    for value in values:
        exact += value
        told.append(math.floor(exact) - given)
        given = math.floor(exact)
    return told
