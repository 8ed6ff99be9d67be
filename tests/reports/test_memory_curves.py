"""Memory over time: the curve that is drawn, whose it is, and the limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.drawn import GIB, MS, figure_of, points_of, texts_of, what_if
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.timeline import measure
from tracetool.reports.gantt.margins import outline, worst_of
from tracetool.reports.gantt.picture import gantt_figure, panels_of


@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=20),
    rest=st.integers(0, 30),
    bin_ns=st.integers(1, 12),
)
def test_outline_is_the_highest_level_of_each_bin(steps: list[tuple[int, int]], rest: int, bin_ns: int) -> None:
    """Against the level of every single nanosecond; levels that hold for none count, as peaks may."""
    at = 0
    curve: list[tuple[int, int]] = []
    for gap, level in steps:
        at += gap if curve else 0
        curve.append((at, level))
    end = at + rest
    spans = [(start, until, level) for (start, level), (until, _) in pairwise([*curve, (end, 0)])]
    drawn = outline(tuple(curve), end, bin_ns)
    for first in range(0, end + 1, bin_ns):
        inside = [
            level
            for start, until, level in spans
            if first <= start < first + bin_ns or (start < first and until > first)
        ]
        shown = next(level for time, level in reversed(drawn) if time <= first)
        if inside and first < end:
            assert shown == max(inside)
    assert max(level for _, level in drawn) == max(level for _, level in curve)


def test_curve_is_that_of_the_rank_that_needs_most() -> None:
    """1F1B keeps p - r activations on rank r (arXiv 2104.04473): rank 0 has the highest peak, 8 + 4/2 + 1/4 GiB."""
    drawn = what_if(4, 8, [2, 2], causes=False)
    observed = panels_of(drawn, drawn.results[0])[0]
    worst = worst_of(observed)
    assert worst is not None
    assert (worst.rank, worst.peak_bytes) == (0, 10.25 * GIB)


def test_memory_beyond_allocations_counts() -> None:
    drawn = what_if(4, 8, [2, 2], causes=False)
    timeline = replace(drawn.observed, overhead_bytes=(0, 0, 0, 3 * GIB))
    told = replace(drawn, observed=timeline, observed_metrics=measure(timeline))
    worst = worst_of(panels_of(told, told.results[0])[0])
    assert worst is not None
    assert (worst.rank, worst.needed_bytes - worst.peak_bytes) == (3, 3 * GIB)
    labels = [text.get_text() for text in texts_of(figure_of(lambda: gantt_figure(told)))]
    assert "As recorded: rank 3, peak 8.75 GiB, occupied 11.75 GiB (○)" in labels


@pytest.mark.parametrize(("hbm", "words"), [(12, "HBM limit\n12.00 GiB"), (80, "HBM limit\n80.00 GiB\n(above)")])
def test_limit_is_drawn_to_scale_or_named(hbm: int, words: str) -> None:
    figure = figure_of(lambda: gantt_figure(what_if(4, 8, [2, 2], hbm_bytes=hbm * GIB, causes=False)))
    assert words in [text.get_text() for text in texts_of(figure)]
    lines = [line for line in figure.axes[-1].lines if [y for _, y in points_of(line)] == [hbm, hbm]]
    assert len(lines) == (hbm == 12)


def test_curves_begin_at_the_static_level() -> None:
    """The last rank computes nothing before the forwards of the three ahead of it: 3 x 5 ms at its static 8 GiB."""
    drawn = what_if(4, 8, [2, 2], causes=False)
    curve = panels_of(drawn, drawn.results[0])[0].timeline.memory[3]
    assert curve is not None
    (start, static), (first, _), *_ = curve
    assert (start, static) == (0, 8 * GIB)
    assert first == pytest.approx(15 * MS, rel=0.07)  # and the transfers between them
