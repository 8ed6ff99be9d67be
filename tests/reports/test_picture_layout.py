"""Pictures of small and large pipelines: no text leaves the picture or lies on another, wide or narrow."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from helpers.drawn import GBIT, GIB, MS, bend, laid_out, log_range, pipeline, sweep_of, swept, texts_of, untidy, what_if
from helpers.thorough import spread

from tracetool.reports.gantt.picture import gantt_figure
from tracetool.reports.sweep.best_map import sweep_map_figure
from tracetool.reports.sweep.lines import sweep_lines_figure

if TYPE_CHECKING:
    from tracetool.sweeps import Sweep
    from tracetool.whatif.results import Answer

SIZES = {4: (8, [2, 2]), 16: (16, [2] * 8), 64: (16, [16] * 4)}
"""Of pipelines of p ranks: microbatches, and ranks of each DC."""

PHONE_IN = 4.5


@cache
def answered(p: int) -> Answer:
    microbatches, dcs = SIZES[p]
    return what_if(p, microbatches, dcs)


@cache
def linked(p: int, bandwidths: int, latencies: int) -> Sweep:
    made = swept(
        pipeline(p, SIZES[p][0]),
        log_range(5 * GBIT, 800 * GBIT, bandwidths),
        log_range(MS // 10, 100 * MS, latencies),
        hbm_bytes=14 * GIB,
    )
    at = sorted({point.latency_ns for point in made.points if point.latency_ns})[latencies // 2]
    knees = [
        bend("1f1b", 100 * GBIT, 3 * MS, at_latency_ns=at),
        bend("geopipe", 30 * GBIT, 20 * MS, at_latency_ns=at),
    ]
    return sweep_of(made.points, knees)


# Few ranks have labels in their cells, which many have not, and pixels for cells: those between have some of both.
@spread("p", SIZES, [4])
def test_schedule_picture_is_tidy(p: int) -> None:
    figure = laid_out(lambda: gantt_figure(answered(p)))
    assert untidy(figure) == []
    assert any(text.get_text() == "idle: cross-DC latency" for text in texts_of(figure))


# More ranks in the same width have smaller labels, or none.
@spread("p", [4, 16], [16])
def test_schedule_picture_is_tidy_on_a_phone(p: int) -> None:
    assert untidy(laid_out(lambda: gantt_figure(answered(p), width_in=PHONE_IN))) == []


# The narrowest; the others have other numbers of lines and wider room.
@spread(("p", "width_in"), [(4, None), (16, PHONE_IN), (64, None)], [(16, PHONE_IN)])
def test_lines_are_tidy(p: int, width_in: float | None) -> None:
    figure = laid_out(lambda: sweep_lines_figure(linked(p, 12, 9), width_in=width_in))
    assert untidy(figure) == []
    assert any("(knee 100 Gbit/s, hides 3 ms)" in text.get_text() for text in texts_of(figure))


# Of a fine map labels are left out, for which there is room in a coarse one.
@spread(("p", "bandwidths", "latencies", "width_in"), [(4, 12, 9, PHONE_IN), (16, 12, 9, 9.5), (64, 30, 20, 9.5)], 1)
def test_map_is_tidy(p: int, bandwidths: int, latencies: int, width_in: float) -> None:
    assert untidy(laid_out(lambda: sweep_map_figure(linked(p, bandwidths, latencies), width_in))) == []
