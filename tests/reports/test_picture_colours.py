"""Colours stay apart for people with deuteranopia and protanopia, and causes of idle time without any colour.

The matrices are those of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision
Deficiency" (2009), severity 1.0, over linear RGB; distances are CIE 1976 in L*a*b* (D65), where about 2.3 is just seen.
"""

from __future__ import annotations

from itertools import combinations, product
from math import dist

import pytest
from matplotlib.colors import to_rgb

from tracetool.causes.cause import Cause
from tracetool.reports.gantt.cells import COLOURS, LINK_BUSY, LINK_FLIGHT
from tracetool.reports.picture import SERIES

Rows = tuple[tuple[float, float, float], ...]

SIGHTS: dict[str, Rows] = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
}
XYZ: Rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.9505, 1.0, 1.089)


def times(rows: Rows, values: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, values, strict=True)) for row in rows]


def lab(colour: str, sight: str) -> tuple[float, float, float]:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    seen = [min(1.0, max(0.0, c)) for c in times(SIGHTS[sight], linear)]
    x, y, z = (
        t ** (1 / 3) if t > 216 / 24389 else 841 / 108 * t + 4 / 29
        for t in (value / white for value, white in zip(times(XYZ, seen), WHITE, strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def apart(one: str, other: str, sight: str) -> float:
    return dist(lab(one, sight), lab(other, sight))


TINTS = [cause.look.tint for cause in Cause]
SETS = {
    "what runs": ([*COLOURS.values(), LINK_BUSY], 10),
    "links": ([LINK_BUSY, LINK_FLIGHT, "#FFFFFF"], 10),
    "schedules": (list(SERIES), 15),
    "causes": (TINTS, 9),
}


def test_distances_are_those_of_the_definition() -> None:
    """White against black is 100 by the definition of L*; red and green draw near without the middle cone."""
    assert apart("#FFFFFF", "#000000", "usual") == pytest.approx(100, abs=0.01)
    assert apart("#808000", "#A06000", "deuteranopia") < 0.6 * apart("#808000", "#A06000", "usual")


@pytest.mark.parametrize("sight", SIGHTS)
@pytest.mark.parametrize("name", SETS)
def test_colours_are_apart(name: str, sight: str) -> None:
    colours, least = SETS[name]
    near = {pair: d for pair in combinations(colours, 2) if (d := apart(*pair, sight)) < least}
    assert near == {}


@pytest.mark.parametrize("sight", SIGHTS)
def test_idle_time_is_not_taken_for_what_runs(sight: str) -> None:
    near = {pair: d for pair in product(TINTS, COLOURS.values()) if (d := apart(*pair, sight)) < 6}
    assert near == {}


def test_every_cause_has_a_hatch_of_its_own() -> None:
    assert len({cause.look.hatch for cause in Cause}) == len(Cause)
    assert all(apart(cause.look.tint, cause.look.line, "deuteranopia") > 20 for cause in Cause)
