"""Pictures of sweeps: lines with knees, maps of the best schedule, and which of them is drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product
from math import log
from typing import TYPE_CHECKING, get_args

import pytest
from helpers.drawn import (
    GBIT,
    GIB,
    MS,
    bend,
    figure_of,
    laid_out,
    log_range,
    pipeline,
    point,
    points_of,
    sweep_of,
    swept,
    texts_of,
    untidy,
)
from helpers.thorough import spread
from matplotlib.patches import Rectangle

from tracetool.errors import ScenarioError
from tracetool.model.topology import Topology
from tracetool.reports.picture import PictureFormat
from tracetool.reports.sweep import facets_of, series_of
from tracetool.reports.sweep.best_map import cells_of, render_sweep_map, sweep_map_figure
from tracetool.reports.sweep.lines import render_sweep, render_sweep_lines, sweep_figure, sweep_lines_figure
from tracetool.sweeps import Best, Sweep
from tracetool.whatif.accuracy import KnownError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracetool.sweeps import SweepPoint

BANDWIDTHS = [5 * GBIT, 10 * GBIT, 20 * GBIT, 40 * GBIT, 80 * GBIT]
LATENCIES = [MS, 2 * MS, 4 * MS, 8 * MS, 16 * MS]
FEW = [MS, 4 * MS, 16 * MS]
FORMATS: tuple[PictureFormat, ...] = get_args(PictureFormat)


@cache
def over_both(hbm_bytes: int | None = None) -> Sweep:
    return swept(pipeline(4, 8), BANDWIDTHS, LATENCIES, hbm_bytes=hbm_bytes)


@cache
def over_bandwidth(hbm_bytes: int | None = None) -> Sweep:
    return swept(pipeline(4, 8), BANDWIDTHS, [16 * MS], hbm_bytes=hbm_bytes)


def words(figure: object) -> list[str]:
    return [text.get_text() for text in texts_of(figure)]  # type: ignore[arg-type]


# A date or a number that is drawn could be in one of them alone.
@spread("name", FORMATS, ["svg"])
def test_equal_sweeps_give_equal_bytes(name: PictureFormat) -> None:
    """And it is lines where one figure of the link was swept, a map where both were."""
    assert render_sweep(over_both(), name) == render_sweep_map(over_both(), format=name)
    assert render_sweep(over_bandwidth(), name) == render_sweep_lines(over_bandwidth(), format=name)


def test_lines_run_through_the_steps() -> None:
    sweep = over_bandwidth()
    axes = figure_of(lambda: sweep_lines_figure(sweep)).axes[0]
    drawn = {(round(x), round(y, 6)) for line in axes.lines if len(points_of(line)) == 2 for x, y in points_of(line)}
    steps = {(p.bandwidth_bytes_per_s, p.step_ns) for p in sweep.points}
    assert drawn == {(round((b or 0) / GBIT), round((step or 0) / MS, 6)) for b, step in steps}


def test_both_figures_get_a_panel_each() -> None:
    figure = figure_of(lambda: sweep_lines_figure(over_both()))
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "cross-DC bandwidth (Gbit/s)",
        "one-way cross-DC latency (ms)",
    ]


def test_a_few_latencies_are_panels_on_one_axis() -> None:
    """Each panel has the steps of its latency; one scale of steps, so that panels are read side by side."""
    sweep = swept(pipeline(4, 8), BANDWIDTHS, FEW)
    figure = figure_of(lambda: sweep_figure(sweep))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [f"latency {ns / MS:.1f} ms" for ns in FEW]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, latency in zip(figure.axes, FEW, strict=True):
        drawn = {round(y, 6) for line in axes.lines if len(points_of(line)) == 2 for _, y in points_of(line)}
        assert drawn == {round((p.step_ns or 0) / MS, 6) for p in sweep.points if p.latency_ns == latency}
    across = swept(pipeline(4, 8), BANDWIDTHS[:2], LATENCIES)
    figure = figure_of(lambda: sweep_figure(across))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["5 Gbit/s", "10 Gbit/s"]


@pytest.mark.parametrize("count", [3, 26])
def test_ticks_are_bandwidths_that_people_use(count: int) -> None:
    bandwidths = log_range(10 * GBIT, 800 * GBIT, count)
    points = [point("1f1b", bandwidth_bytes_per_s=b, latency_ns=MS, step_ns=10**9 - b // 10**4) for b in bandwidths]
    (axes,) = laid_out(lambda: sweep_figure(sweep_of(points))).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "25", "50", "100", "200", "400", "800"]


def test_a_fine_map_has_round_ticks_where_their_values_are() -> None:
    """A cell is about its value: 41 of them from 10 to 800 Gbit/s, so that 25 is log(2.5) / log(80) of 40 cells on."""
    bandwidths, latencies = log_range(10 * GBIT, 800 * GBIT, 41), log_range(MS, 40 * MS, 21)
    points = [
        point("1f1b", bandwidth_bytes_per_s=b, latency_ns=a, step_ns=200 * MS + 2 * a + 2**26 * 10**9 // b)
        for b, a in product(bandwidths, latencies)
    ]
    figure = laid_out(lambda: sweep_figure(sweep_of(points)))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "25", "50", "100", "200", "400", "800"]
    assert list(axes.get_xticks()) == pytest.approx(
        [0.5 + 40 * log(x / 10) / log(80) for x in (10, 25, 50, 100, 200, 400, 800)], abs=1e-3
    )
    assert [text.get_text() for text in axes.get_yticklabels()] == ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]
    said = words(figure)
    assert any("lines: equal step" in text for text in said)
    assert len([text for text in said if re.fullmatch(r"\d+ ms", text)]) > len(axes.get_yticklabels())


def test_a_map_of_a_dozen_bandwidths_has_round_ticks_too() -> None:
    """Its own values (14.9, 22.2 ...) would have room, and nobody sells them."""
    bandwidths = log_range(10 * GBIT, 800 * GBIT, 12)
    points = [
        point("1f1b", bandwidth_bytes_per_s=b, latency_ns=a, step_ns=200 * MS + 2 * a + 2**26 * 10**9 // b)
        for b, a in product(bandwidths, LATENCIES)
    ]
    (axes,) = laid_out(lambda: sweep_figure(sweep_of(points))).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "25", "50", "100", "200", "400", "800"]
    assert axes.get_xticks()[1] == pytest.approx(0.5 + 11 * log(2.5) / log(80), abs=1e-3)


def test_the_map_marks_the_knee_of_what_is_best_there() -> None:
    """Only where the schedule of the knee is the one to run: that of another is none of the map's."""
    sweep = over_both()
    (facet,) = facets_of(sweep.points)
    best = {link: cell.label or "" for link, cell in cells_of(facet).items()}
    latency = LATENCIES[3]
    at = BANDWIDTHS[2]
    other = next(name for name in ("1f1b", "gpipe", "geopipe") if name != best[at, latency])
    knees = [bend(best[at, latency], at, at_latency_ns=latency), bend(other, at, at_latency_ns=latency)]
    figure = figure_of(lambda: sweep_map_figure(sweep_of(sweep.points, knees)))
    (mark,) = [line for line in figure.axes[0].lines if line.get_marker() == "D"]
    ((x, y),) = points_of(mark)
    assert x == pytest.approx(2.5)
    assert 3 < y < 4
    assert any(text.startswith("knee: ") for text in words(figure))


def bars_in(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_scenarios_are_bars_as_long_as_their_steps() -> None:
    """The plan of each scenario with its error, and the recorded order; of one scenario, a bar per schedule."""
    names = ("leased line", "dark fibre", "no link that fits")
    error = KnownError(0.04, 0.03, Topology(), 8)
    plans = [
        point("geopipe", (2, 0), step_ns=320 * MS, scenario=names[0], known_error=error),
        point("1f1b", step_ns=280 * MS, scenario=names[1]),
    ]
    now = [point("1f1b", step_ns=350 * MS, scenario=names[0]), plans[1]]
    best = [Best(plan, plan, there) for plan, there in zip(plans, now, strict=True)]
    unfit = point("1f1b", step_ns=300 * MS, scenario=names[2], feasible=False)
    sweep = Sweep((*plans, unfit), (), best=(*best, Best(unfit, None, unfit)))
    figure = laid_out(lambda: sweep_figure(sweep))
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == list(names[:2])
    assert [bar.get_width() for bar in bars_in(axes)] == [320, 280]
    assert {"geopipe +2,0  320.0 ms ±4%", "1f1b  280.0 ms"} <= set(words(figure))
    ticks = [points_of(line)[0][0] for line in axes.lines if len(points_of(line)) == 2]
    assert ticks == [350, 280]
    assert untidy(figure) == []
    alone = replace(sweep, points=(plans[0], now[0]), best=tuple(best[:1]))
    (axes,) = laid_out(lambda: sweep_figure(alone)).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["geopipe +2,0", "1f1b"]
    assert [bar.get_width() for bar in bars_in(axes)] == [320, 350]


def test_bubble_ratio_instead_of_the_step() -> None:
    figure = figure_of(lambda: sweep_lines_figure(over_bandwidth(), "bubble_ratio"))
    assert figure.axes[0].get_ylabel() == "bubble"
    top = max(y for line in figure.axes[0].lines for _, y in points_of(line))
    assert top == pytest.approx(max(p.bubble_ratio or 0 for p in over_bandwidth().points))


def test_knee_lies_on_its_line() -> None:
    """Half way between two points on the logarithmic axis: the mean of their steps, as the line is straight there."""
    sweep = over_bandwidth()
    knee = bend("1f1b", round(BANDWIDTHS[1] * 2**0.5), at_latency_ns=16 * MS)
    other = replace(knee, at_latency_ns=4 * MS, bandwidth_bytes_per_s=BANDWIDTHS[3])
    figure = figure_of(lambda: sweep_lines_figure(sweep_of(sweep.points, [other, knee])))
    marks = [line for line in figure.axes[0].lines if line.get_marker() == "D" and line.get_markersize() == 8]
    steps = [p.step_ns or 0 for p in sweep.points if p.schedule == "1f1b"]
    assert len(marks) == 1
    assert points_of(marks[0])[0] == pytest.approx((10 * 2**0.5, (steps[1] + steps[2]) / 2 / MS), rel=1e-4)
    assert "1f1b (knee 14.1 Gbit/s)" in words(figure)


def test_what_does_not_fit_is_dashed_and_where_nothing_fits_is_hatched() -> None:
    """1F1B needs 10.25 GiB here, geopipe with two forwards more 11.25, gpipe 12.25."""
    for hbm, dashed, hatched in ((13, 0, False), (11, 2, False), (9, 3, True)):
        sweep = over_bandwidth(hbm * GIB)
        figure = figure_of(lambda sweep=sweep: sweep_lines_figure(sweep))  # type: ignore[misc]
        styles = [line.is_dashed() for line in figure.axes[0].lines if len(points_of(line)) == 2]
        assert styles.count(True) == dashed * (len(BANDWIDTHS) - 1)
        assert ("where no schedule fits" in words(figure)) is hatched
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
    figure = figure_of(lambda: sweep_map_figure(over_both(11 * GIB)))
    found = words(figure)
    (facet,) = facets_of(over_both(11 * GIB).points)
    cells = cells_of(facet)
    assert sum("\n" in text for text in found) == len(cells)
    assert "corner: a faster one does not fit the HBM limit" in found
    corners = [patch for patch in figure.axes[0].patches if type(patch).__name__ == "Polygon"]
    assert len(corners) == sum(cell.is_limited for cell in cells.values())


def test_where_nothing_fits_there_is_no_number() -> None:
    figure = figure_of(lambda: sweep_map_figure(over_both(9 * GIB)))
    assert "where no schedule fits" in words(figure)
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
    assert len(figure_of(lambda: sweep_lines_figure(sweep_of(points))).axes) == 4


def test_depths_chosen_for_each_link_are_one_line() -> None:
    points = [point("geopipe", (n, 0), bandwidth_bytes_per_s=b, latency_ns=MS) for n, b in enumerate(BANDWIDTHS)]
    (facet,) = facets_of(points)
    assert [s.label for s in series_of(facet)] == ["geopipe"]


def test_what_could_not_be_replayed_is_counted() -> None:
    points = [replace(p, step_ns=None, feasible=None) if p.schedule == "gpipe" else p for p in over_both().points]
    text = f"{len(points) // 3} of {len(points)} points could not be replayed"
    for figure in (sweep_lines_figure, sweep_map_figure):
        drawn = figure_of(lambda figure=figure: figure(sweep_of(points)))  # type: ignore[misc]
        assert any(text in line for line in words(drawn))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([point("1f1b")], "nothing of this could be replayed, or nothing fits"),
        ([point("1f1b", bandwidth_bytes_per_s=b, latency_ns=1) for b in BANDWIDTHS], "nothing of this sweep"),
        ([point("1f1b", bandwidth_bytes_per_s=b, latency_ns=a) for b, a in product(BANDWIDTHS, LATENCIES)], "nothing"),
    ],
)
def test_nothing_to_draw_is_said(points: list[SweepPoint], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        render_sweep(sweep_of(points))


def test_pictures_say_whose_transfers_are_issued_otherwise() -> None:
    """Whose step is longer for that reason looks like a worse schedule."""
    modes = {"1f1b": "grouped", "geopipe": "in-order", "zb-h1": "in-order"}
    points = [
        point(name, p2p=mode, bandwidth_bytes_per_s=b, latency_ns=MS, step_ns=10**9 - b // 10**4)
        for name, mode in modes.items()
        for b in BANDWIDTHS
    ]
    said = " ".join(words(figure_of(lambda: sweep_figure(sweep_of(points)))))
    assert "in-order transfers, but 1f1b grouped" in said
    alike = [each for each in points if each.p2p == "in-order"]
    assert "in-order transfers" in (said := " ".join(words(figure_of(lambda: sweep_figure(sweep_of(alike))))))
    assert ", but" not in said


def test_the_legend_says_what_is_in_the_way_and_the_map_what_was_tried() -> None:
    """A schedule that fixed links keep above its floor hides no latency that could be named."""
    sweep = over_both()
    knee = bend("1f1b", None, at_latency_ns=4 * MS)
    said = words(figure_of(lambda: sweep_lines_figure(sweep_of(sweep.points, [knee]))))
    assert "1f1b (over 1 % above its floor by links that stay as given)" in said
    assert not any("hides none" in text for text in said)
    tried = ", ".join(dict.fromkeys(point.schedule for point in sweep.points))
    assert f"Best of {tried} over the link" in words(figure_of(lambda: sweep_map_figure(sweep)))
