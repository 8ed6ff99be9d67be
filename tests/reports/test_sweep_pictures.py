"""Pictures of sweeps: lines with knees, maps of the best schedule, and which of them is drawn."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, get_args

import pytest
from helpers.drawn import GBIT, GIB, MS, bend, laid_out, pipeline, point, points_of, sweep_of, swept, texts_of

from tracetool.errors import ScenarioError
from tracetool.reports.picture import PictureFormat
from tracetool.reports.sweep import facets_of, series_of
from tracetool.reports.sweep.best_map import cells_of, render_sweep_map, sweep_map_figure
from tracetool.reports.sweep.lines import render_sweep, render_sweep_lines, sweep_lines_figure

if TYPE_CHECKING:
    from tracetool.sweeps import Sweep, SweepPoint

BANDWIDTHS = [5 * GBIT, 10 * GBIT, 20 * GBIT, 40 * GBIT, 80 * GBIT]
LATENCIES = [MS, 4 * MS, 16 * MS]
FORMATS: tuple[PictureFormat, ...] = get_args(PictureFormat)


@cache
def over_both(hbm_bytes: int | None = None) -> Sweep:
    return swept(pipeline(4, 8), BANDWIDTHS, LATENCIES, hbm_bytes=hbm_bytes)


@cache
def over_bandwidth(hbm_bytes: int | None = None) -> Sweep:
    return swept(pipeline(4, 8), BANDWIDTHS, [16 * MS], hbm_bytes=hbm_bytes)


def words(figure: object) -> list[str]:
    return [text.get_text() for text in texts_of(figure)]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMATS)
def test_equal_sweeps_give_equal_bytes(name: PictureFormat) -> None:
    """And it is lines where one figure of the link was swept, a map where both were."""
    assert render_sweep(over_both(), name) == render_sweep_map(over_both(), format=name)
    assert render_sweep(over_bandwidth(), name) == render_sweep_lines(over_bandwidth(), format=name)


def test_lines_run_through_the_steps() -> None:
    sweep = over_bandwidth()
    axes = laid_out(lambda: sweep_lines_figure(sweep)).axes[0]
    drawn = {(round(x), round(y, 6)) for line in axes.lines if len(points_of(line)) == 2 for x, y in points_of(line)}
    steps = {(p.bandwidth_bytes_per_s, p.step_ns) for p in sweep.points}
    assert drawn == {(round((b or 0) / GBIT), round((step or 0) / MS, 6)) for b, step in steps}


def test_both_figures_get_a_panel_each() -> None:
    figure = laid_out(lambda: sweep_lines_figure(over_both()))
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "cross-DC bandwidth (Gbit/s)",
        "one-way cross-DC latency (ms)",
    ]


def test_bubble_ratio_instead_of_the_step() -> None:
    figure = laid_out(lambda: sweep_lines_figure(over_bandwidth(), "bubble_ratio"))
    assert figure.axes[0].get_ylabel() == "bubble_ratio"
    top = max(y for line in figure.axes[0].lines for _, y in points_of(line))
    assert top == pytest.approx(max(p.bubble_ratio or 0 for p in over_bandwidth().points))


def test_knee_lies_on_its_line() -> None:
    """Half way between two points on the logarithmic axis: the mean of their steps, as the line is straight there."""
    sweep = over_bandwidth()
    knee = bend("1f1b", round(BANDWIDTHS[1] * 2**0.5), at_latency_ns=16 * MS)
    other = replace(knee, at_latency_ns=4 * MS, bandwidth_bytes_per_s=BANDWIDTHS[3])
    figure = laid_out(lambda: sweep_lines_figure(sweep_of(sweep.points, [other, knee])))
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "D" and line.get_markersize() == 8]
    steps = [p.step_ns or 0 for p in sweep.points if p.schedule == "1f1b"]
    assert len(marks) == 1
    assert points_of(marks[0])[0] == pytest.approx((10 * 2**0.5, (steps[1] + steps[2]) / 2 / MS), rel=1e-4)
    assert "1f1b (knee 14.1 Gbit/s)" in words(figure)


def test_what_does_not_fit_is_dashed_and_where_nothing_fits_is_hatched() -> None:
    """1F1B needs 10.25 GiB here, geopipe with two forwards more 11.25, gpipe 12.25."""
    for hbm, dashed, hatched in ((13, 0, False), (11, 2, False), (9, 3, True)):
        sweep = over_bandwidth(hbm * GIB)
        figure = laid_out(lambda sweep=sweep: sweep_lines_figure(sweep))  # type: ignore[misc]
        styles = [line.is_dashed() for line in figure.axes[0].lines if len(points_of(line)) == 2]
        assert styles.count(True) == dashed * (len(BANDWIDTHS) - 1)
        assert ("no schedule fits" in words(figure)) is hatched
        assert ("does not fit the HBM limit" in words(figure)) is (dashed > 0)


def test_cells_hold_the_shortest_that_fits() -> None:
    sweep = over_both(12 * GIB)
    (facet,) = facets_of(sweep.points)
    for (bandwidth, latency), cell in cells_of(facet).items():
        there = {
            p.schedule: p
            for p in sweep.points
            if (p.bandwidth_bytes_per_s, p.latency_ns) == (bandwidth, latency) and p.step_ns
        }
        fitting = {name: p.step_ns or 0 for name, p in there.items() if p.feasible is not False}
        assert cell.step_ns == min(fitting.values())
        assert fitting[cell.label or ""] == cell.step_ns
        assert cell.gain_ratio == (cell.step_ns or 0) / (there["1f1b"].step_ns or 0) - 1
        assert cell.is_limited == (min(p.step_ns or 0 for p in there.values()) < (cell.step_ns or 0))
    # Over slow links gpipe, which does not fit, is not the faster one.
    assert {cell.is_limited for cell in cells_of(facet).values()} == {True, False}


def test_map_says_step_and_gain_and_what_limits() -> None:
    figure = laid_out(lambda: sweep_map_figure(over_both(11 * GIB)))
    found = words(figure)
    (facet,) = facets_of(over_both(11 * GIB).points)
    cells = cells_of(facet)
    assert sum("\n" in text for text in found) == len(cells)
    assert "corner: a faster one does not fit the HBM limit" in found
    corners = [patch for patch in figure.axes[0].patches if type(patch).__name__ == "Polygon"]
    assert len(corners) == sum(cell.is_limited for cell in cells.values())


def test_where_nothing_fits_there_is_no_number() -> None:
    figure = laid_out(lambda: sweep_map_figure(over_both(9 * GIB)))
    assert "no schedule fits" in words(figure)
    assert not any("\n" in text for text in words(figure))


def test_settings_become_facets_and_warm_ups_lines() -> None:
    points = [
        point(
            name, extra, m, bandwidth_bytes_per_s=b, latency_ns=MS, step_ns=m * MS + b // GBIT, hbm_bytes=h,
            p2p="grouped" if name == "1f1b" else "in-order",
        )
        for m, h, (name, extra), b in product(
            (8, 16), (None, 8 * GIB), (("1f1b", None), ("geopipe", (1, 0)), ("geopipe", (2, 0))), BANDWIDTHS
        )
    ]  # fmt: skip
    facets = facets_of(points)
    assert [facet.title for facet in facets] == [
        "m = 8  ·  no HBM limit",
        "m = 8  ·  HBM limit 8.00 GiB",
        "m = 16  ·  no HBM limit",
        "m = 16  ·  HBM limit 8.00 GiB",
    ]
    assert [s.label for s in series_of(facets[0])] == ["1f1b", "geopipe +1,0", "geopipe +2,0"]
    assert len(laid_out(lambda: sweep_lines_figure(sweep_of(points))).axes) == 4


def test_depths_chosen_for_each_link_are_one_line() -> None:
    points = [point("geopipe", (n, 0), bandwidth_bytes_per_s=b, latency_ns=MS) for n, b in enumerate(BANDWIDTHS)]
    (facet,) = facets_of(points)
    assert [s.label for s in series_of(facet)] == ["geopipe"]


def test_what_could_not_be_replayed_is_counted() -> None:
    points = [replace(p, step_ns=None, feasible=None) if p.schedule == "gpipe" else p for p in over_both().points]
    text = f"{len(points) // 3} of {len(points)} points could not be replayed"
    for figure in (sweep_lines_figure, sweep_map_figure):
        drawn = laid_out(lambda figure=figure: figure(sweep_of(points)))  # type: ignore[misc]
        assert any(text in line for line in words(drawn))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([point("1f1b", step_ns=5)], "neither bandwidth nor latency varies"),
        ([point("1f1b", bandwidth_bytes_per_s=b, latency_ns=1) for b in BANDWIDTHS], "nothing of this sweep"),
        ([point("1f1b", bandwidth_bytes_per_s=b, latency_ns=a) for b, a in product(BANDWIDTHS, LATENCIES)], "nothing"),
    ],
)
def test_nothing_to_draw_is_said(points: list[SweepPoint], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        render_sweep(sweep_of(points))


def test_the_legend_says_what_is_in_the_way_and_the_map_what_was_tried() -> None:
    """A schedule that fixed links keep above its floor hides no latency that could be named."""
    sweep = over_both()
    knee = bend("1f1b", None, at_latency_ns=4 * MS)
    said = words(laid_out(lambda: sweep_lines_figure(sweep_of(sweep.points, [knee]))))
    assert "1f1b (over 1 % above its floor by links that stay as given)" in said
    assert not any("hides none" in text for text in said)
    tried = ", ".join(dict.fromkeys(point.schedule for point in sweep.points))
    assert f"Best of {tried} over the link" in words(laid_out(lambda: sweep_map_figure(sweep)))
