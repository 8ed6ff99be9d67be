"""An exploration as one HTML file: the answer, what each choice reaches, the front, both timelines, how to launch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tracetool.errors import TraceToolError
from tracetool.explore.launch import launches
from tracetool.reports.exploration import recorded
from tracetool.reports.exploration.picture import overview_figure, timelines_figure
from tracetool.reports.exploration.text import (
    choice_rows,
    details,
    failure_lines,
    headline,
    idle_lines,
    named_text,
    nothing,
    other_lines,
    searched,
)
from tracetool.reports.html import Cell, PageTable, Row
from tracetool.reports.html.page import Picture, fitted, rendered
from tracetool.reports.picture import save
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from tracetool.explore.answer import Exploration
    from tracetool.explore.failures import Failures
    from tracetool.explore.judge import Judged
    from tracetool.explore.recorded import RecordedExploration
    from tracetool.reports import CallFacts
    from tracetool.reports.exploration.json import ExplorationFacts

_MOST_PICTURE_BYTES = 600_000


def render_page(done: Exploration, facts: ExplorationFacts, failures: Failures[Judged] | None = None) -> bytes:
    """The exploration as one HTML file, without network and scripts of its own."""
    best = done.best
    front = [
        Row(
            Cell(format_size(one.peak_hbm_bytes), one.peak_hbm_bytes),
            (Cell(format_duration(one.step_ns), one.step_ns), Cell(one.plan.text)),
        )
        for one in done.front
    ]
    parts = {
        "headline": nothing(done) if best is None else headline(done, best),
        "details": [] if best is None else _stripped(details(done, best)),
        "choices": _choices(choice_rows(done)),
        "front": PageTable("The fastest plan for each budget of memory", _FRONT, tuple(front), remarked=True),
        "failures": [] if failures is None else _stripped(failure_lines(failures, named_text)),
        "others": [] if best is None else _stripped([*other_lines(done, best, verbose=True), *idle_lines(done)]),
        "launches": [] if best is None else launches(done.space.workload, best.plan),
        "searched": _stripped(searched(done)),
    }
    return _page(done, "declared", facts, parts)


def render_recorded_page(done: RecordedExploration, facts: CallFacts) -> bytes:
    """What was explored of a recording as one HTML file, without network and scripts of its own."""
    best = done.best
    front = [
        Row(
            Cell("unknown" if (need := plan.point.needed_bytes) is None else format_size(need), need),
            (
                Cell(format_duration(plan.step_ns), plan.step_ns),
                Cell(f"{plan.text}, {plan.way.text}; {recorded.crossing_text(done, plan)}"),
            ),
        )
        for plan in done.front
    ]
    title = "The fastest plans for less memory and for fewer bytes over the outermost tier"
    parts = {
        "headline": recorded.nothing(done) if best is None else recorded.headline(done, best),
        "details": [] if best is None else _stripped(recorded.details(done, best)),
        "choices": _choices([] if best is None else recorded.choice_rows(done, best)),
        "front": PageTable(title, _FRONT, tuple(front), remarked=True),
        "failures": _stripped(recorded.failure_text(done)),
        "others": [] if best is None else _stripped(recorded.other_lines(done, best, verbose=True)),
        "launches": [],
        "searched": _stripped(recorded.tried(done, verbose=True)) if best is None else [],
    }
    return _page(done, "recorded", facts, parts)


_FRONT = ("HBM", "Step", "Plan")


def _page(
    done: Exploration | RecordedExploration, base: str, facts: ExplorationFacts | CallFacts, parts: dict[str, object]
) -> bytes:
    parts["overview"] = _picture(
        "overview", "What was found", "Step against memory of all plans that were replayed, what each choice "
        "reaches, and bytes over each tier. The tables have the figures.",
        "Left: a dot is a plan. Middle: the shortest step of each way to choose.", partial(overview_figure, done),
    )  # fmt: skip
    parts["timelines"] = _picture(
        "timelines", f"The {base} plan and the best one on one time axis",
        f"Timelines of a step of the {base} plan and of the best one.",
        "A row is a pipeline rank of the slowest pipeline, the axis is time.", partial(timelines_figure, done),
    )  # fmt: skip
    return rendered("explore.html.jinja", {**parts, "facts": facts})


def _stripped(lines: Sequence[str]) -> list[str]:
    return [str(line).strip() for line in lines]


def _choices(rows: Sequence[tuple[str, ...]]) -> PageTable:
    return PageTable(
        "What each choice reaches", ("Choice", "Step", "T0/T1 - 1", "1 - T1/T0", "Best of it"),
        tuple(Row(Cell(name), tuple(map(Cell, cells))) for name, *cells in rows), remarked=True,
    )  # fmt: skip


def _picture(name: str, title: str, alt: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    plain = Picture(name, title, alt, caption)
    try:
        return fitted(plain, lambda form: save(draw, form), _MOST_PICTURE_BYTES)
    except TraceToolError as error:
        return Picture(name, title, alt, caption, left_out=error.message)
