"""An exploration as one HTML file: the answer, what each choice reaches, the front, both timelines, how to launch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracetool.errors import TraceToolError
from tracetool.explore.launch import launches
from tracetool.reports.exploration.picture import overview_figure, timelines_figure
from tracetool.reports.exploration.text import (
    choice_rows,
    details,
    failure_lines,
    headline,
    nothing,
    other_lines,
    searched,
)
from tracetool.reports.html import Cell, PageTable, Row
from tracetool.reports.html.page import Picture, fitted, rendered
from tracetool.reports.picture import save
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from tracetool.explore.answer import Exploration
    from tracetool.explore.failures import Failures
    from tracetool.reports.exploration.json import ExplorationFacts

_MOST_PICTURE_BYTES = 600_000


def render_page(done: Exploration, facts: ExplorationFacts, failures: Failures | None = None) -> bytes:
    """The exploration as one HTML file, without network and scripts of its own."""
    best = done.best
    parts = {
        "headline": nothing(done) if best is None else headline(done, best),
        "details": [] if best is None else [line.strip() for line in details(done, best)],
        "overview": _picture(
            "overview", "What was found", "Step against memory of all plans that were replayed, what each choice "
            "reaches, and bytes over each tier. The tables have the figures.",
            "Left: a dot is a plan. Middle: the shortest step of each way to choose.", partial(overview_figure, done),
        ),
        "timelines": _picture(
            "timelines", "The declared plan and the best one on one time axis",
            "Timelines of a step of the declared plan and of the best one.",
            "A row is a pipeline rank of the slowest pipeline, the axis is time.", partial(timelines_figure, done),
        ),
        "choices": PageTable(
            "What each choice reaches", ("Choice", "Step", "T0/T1 - 1", "1 - T1/T0", "Best of it"),
            tuple(Row(Cell(name), tuple(map(Cell, cells))) for name, *cells in choice_rows(done)), remarked=True,
        ),
        "front": PageTable(
            "The fastest plan for each budget of memory", ("HBM", "Step", "Plan"),
            tuple(
                Row(
                    Cell(format_size(one.peak_hbm_bytes), one.peak_hbm_bytes),
                    (Cell(format_duration(one.step_ns), one.step_ns), Cell(one.plan.text)),
                )
                for one in done.front
            ), remarked=True,
        ),
        "failures": [] if failures is None else [line.strip() for line in failure_lines(failures)],
        "others": [] if best is None else [line.strip() for line in other_lines(done, best, verbose=True)],
        "launches": [] if best is None else launches(done.space.workload, best.plan),
        "searched": [str(line).strip() for line in searched(done)],
        "facts": facts,
    }  # fmt: skip
    return rendered("explore.html.jinja", parts)


def _picture(name: str, title: str, alt: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    plain = Picture(name, title, alt, caption)
    try:
        return fitted(plain, lambda form: save(draw, form), _MOST_PICTURE_BYTES)
    except TraceToolError as error:
        return Picture(name, title, alt, caption, left_out=error.message)
