"""The schedule picture: observed, baseline and result on one time axis, rows are pipeline ranks.

matplotlib is imported where it draws, so that importing this module stays cheap.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import TYPE_CHECKING

from tracetool.model.schedule import OBSERVED
from tracetool.reports import Report, RunFacts
from tracetool.reports.gantt import MS, Panel
from tracetool.reports.gantt.layout import LEFT_IN, LEGEND_IN, NARROWEST_IN, SCENARIO_IN, WIDTH_IN, lay_out
from tracetool.reports.gantt.titles import scenario_parts
from tracetool.reports.picture import (
    PICTURE_SUFFIXES,
    PT,
    RASTER_ABOVE,
    PictureFormat,
    legend,
    legend_columns,
    save,
    wrapped,
)
from tracetool.units import format_duration, format_size
from tracetool.whatif.best import choose_best, error_text, recorded_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from tracetool.causes.cause import Idle
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.timeline import Metrics, Timeline
    from tracetool.whatif.results import Answer, Result

_HEAD_PT = 8
_LONG = 40
"""Letters of a schedule's name that are shown: the path of a file may be longer than a title."""


def render_gantt(
    answer: Answer,
    result: Result | None = None,
    *,
    format: PictureFormat = "png",  # noqa: A002
    width_in: float = WIDTH_IN,
) -> bytes:
    """Draw one result below what was observed and what it is compared with.

    Args:
        answer: What to draw.
        result: The result to draw; by default what to run of those asked for.
        format: File format.
        width_in: Width of the picture in inches, at least 4; texts keep their size, so that 4.5 suits a phone.

    Returns:
        The file; equal input gives equal bytes.
    """
    return save(lambda: gantt_figure(answer, result, width_in), format)


def gantt_figure(answer: Answer, result: Result | None = None, width_in: float = WIDTH_IN) -> Figure:
    """The picture of ``render_gantt``, not yet written."""
    heads, hbm = scenario_parts(answer.scenario), answer.scenario.hbm_bytes
    return panels_figure(panels_of(answer, result or drawn_result(answer)), heads, width_in, hbm_bytes=hbm)


def pair_figure(answer: Answer, result: Result, width_in: float = WIDTH_IN) -> Figure:
    """A result below what was recorded and nothing else: small, for a first look.

    Args:
        answer: What to draw.
        result: The result to draw.
        width_in: Width of the picture in inches, at least 4.
    """
    first, *_, last = panels_of(answer, result)
    return panels_figure([first, replace(last, role="Plan", compared_ns=None)], [], width_in, has_curves=False)


def result_figure(result: Result) -> Figure:
    """One result by itself."""
    panel = _panel("Replayed", result.schedule, result.timeline, result.metrics, result.p2p, idles=result.idles)
    return panels_figure([replace(panel, topology=result.replayed.topology)], [], has_curves=False)


def _report(answer: Answer, _facts: RunFacts, suffix: str) -> bytes:
    return render_gantt(answer, format=PICTURE_SUFFIXES[suffix.lower()])


def drawn_result(answer: Answer) -> Result:
    """The result to draw: what to run of those asked for (``tracetool.whatif.best``), else the shortest step."""
    best = choose_best(answer.results, recorded_test(answer.pipeline))
    return min(answer.results, key=lambda r: r.step_ns) if best is None else best


REPORT = Report(tuple(PICTURE_SUFFIXES), _report)


def panels_of(answer: Answer, result: Result) -> list[Panel]:
    """Panels from the top: observed, baseline, and the result where that is another order."""
    base = answer.baseline
    known = answer.observed_schedule or "unknown schedule"
    without = ["measured without these links"] if answer.scenario.topology.links else []
    observed = _panel(
        "As recorded",
        known,
        answer.observed,
        answer.observed_metrics,
        answer.pipeline.p2p,
        after=without,
        idles=answer.observed_idles,
    )
    if result.timeline.ops == base.timeline.ops:
        role = "Baseline" if result.schedule == base.schedule else f"Same as the {base.schedule} baseline"
        return [observed, _replayed(answer, result, role)]
    shown = replace(
        _replayed(answer, result, "Result"),
        compared_ns=base.metrics.step_ns,
        error_ratio=answer.step_change_error(result),
    )
    return [observed, _replayed(answer, base, "Baseline"), shown]


def _replayed(answer: Answer, result: Result, role: str) -> Panel:
    hbm = answer.scenario.hbm_bytes
    schedule = "recorded order" if result.schedule == OBSERVED else result.schedule
    if len(schedule) > _LONG:
        schedule = "…" + schedule[-_LONG:]
    extra = [] if result.extra_forwards is None else [_extra_text(result.extra_forwards)]
    return replace(
        _panel(
            role,
            schedule,
            result.timeline,
            result.metrics,
            result.p2p,
            before=extra,
            error=f" ±{text}" if (text := error_text(result)) else "",
            idles=result.idles,
        ),
        topology=answer.scenario.topology,
        complaint=_complaint(result, hbm),
        fits=result.feasible is not False,
        hbm_bytes=hbm,
    )


def _panel(
    role: str,
    schedule: str,
    timeline: Timeline,
    metrics: Metrics,
    p2p: P2PMode,
    *,
    before: Sequence[str] = (),
    after: Sequence[str] = (),
    error: str = "",
    idles: Sequence[Idle] = (),
) -> Panel:
    microbatches = 1 + max(op.microbatch for op in timeline.computes())
    details = (
        *before,
        f"p = {len(timeline.global_ranks)}, m = {microbatches}",
        f"{p2p} transfers",
        f"step {format_duration(metrics.step_ns)}{error}",
        f"bubble {metrics.bubble_ratio:.1%}",
        *after,
    )
    return Panel(role, schedule, details, timeline, metrics, microbatches, idles=idles)


def _complaint(result: Result, hbm_bytes: int | None) -> str | None:
    if result.feasible is None:
        return "HBM limit not checked: memory is unknown"
    if result.feasible:
        return None
    text = "Does not fit the HBM limit" + (f" of {format_size(hbm_bytes)}" if hbm_bytes is not None else "")
    if result.shortage is not None:
        text += f": rank {result.shortage.global_rank} lacks {format_size(result.shortage.missing_bytes)}"
    return text


def _extra_text(extra: tuple[int, ...]) -> str:
    """Extra forwards by runs of ranks, as 64 numbers would fill the title."""
    if not any(extra):
        return "no extra forwards"
    runs = [(value, list(ranks)) for value, ranks in groupby(range(len(extra)), key=lambda rank: extra[rank])]
    (value, ranks), *others = [run for run in runs if run[0]]
    if len(others) > 1:
        return f"up to +{max(extra)} forwards"
    first = f"+{value} forward{'s' if value > 1 else ''} on {_span(ranks[0], ranks[-1])}"
    return ", ".join([first, *(f"+{n} on {_span(more[0], more[-1])}" for n, more in others)])


def _span(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"ranks {first}–{last}"


def panels_figure(
    panels: Sequence[Panel],
    heads: Sequence[str],
    width_in: float = WIDTH_IN,
    *,
    hbm_bytes: int | None = None,
    has_curves: bool = True,
) -> Figure:
    """Panels on one time axis, from the top.

    Args:
        panels: At least one.
        heads: What is said above them.
        width_in: Width of the picture in inches, at least 4.
        hbm_bytes: Memory limit per rank, for the curves.
        has_curves: Whether memory over time is drawn below, where it is known.
    """
    from matplotlib.figure import Figure

    from tracetool.reports.gantt import cells, margins
    from tracetool.reports.gantt.cells import draw_idle, idle_marks
    from tracetool.reports.gantt.titles import draw_title

    width_in = max(NARROWEST_IN, width_in)
    wide_pt, title_pt = (width_in - 0.2) * PT, (width_in - LEFT_IN) * PT
    heads = wrapped(heads, title_pt, _HEAD_PT)
    legends = [marks for marks in (margins.legend_marks(panels), idle_marks(panels)) if marks]
    columns = [legend_columns([str(mark.get_label()) for mark in marks], wide_pt) for marks in legends]
    rows = [ceil(len(marks) / n) for marks, n in zip(legends, columns, strict=True)]
    curves = margins.curve_marks(panels) if has_curves else []
    abreast = legend_columns([str(mark.get_label()) for mark in curves], title_pt)
    memory_rows = ceil(len(curves) / abreast)
    layout = lay_out(panels, width_in, head_lines=len(heads), legend_rows=sum(rows), memory_rows=memory_rows)
    figure = Figure(figsize=(layout.width_in, layout.height_in), dpi=layout.dpi)
    for number, line in enumerate(heads):
        y_in = layout.height_in - 0.1 - SCENARIO_IN * number
        figure.text(layout.left_in / layout.width_in, y_in / layout.height_in, line, va="top", fontsize=_HEAD_PT)
    coarse = sum(cells.cell_count(panel) for panel in panels) > RASTER_ABOVE
    for panel, place in zip(panels, layout.places, strict=True):
        axes = figure.add_axes(layout.box(place))
        axes.set_xlim(0, layout.end_ns / MS)
        axes.set_ylim(place.height_in, 0)
        axes.set_rasterization_zorder(2 if coarse else None)
        margins.draw_axis(axes, last=panel is panels[-1] and layout.memory is None)
        draw_idle(axes, panel, place)
        cells.draw_cells(axes, panel, place, layout)
        cells.draw_links(axes, panel, place, layout)
        margins.draw_margins(axes, panel, place, layout)
        draw_title(axes, panel, title_pt)
        margins.draw_saved(axes, panel, place, layout)
    if layout.memory is not None:
        axes = figure.add_axes(layout.memory)
        margins.draw_worst(axes, panels, hbm_bytes, layout.end_ns)
        margins.label_time(axes)
        top_in = (layout.memory[1] + layout.memory[3]) * layout.height_in + 0.05
        legend(figure, curves, abreast, x=layout.left_in / layout.width_in, y_in=top_in, loc="lower left")
    y_in = 0.05
    for marks, n, count in reversed(list(zip(legends, columns, rows, strict=True))):
        legend(figure, marks, n, x=0.5, y_in=y_in, loc="lower center")
        y_in += LEGEND_IN * count
    return figure
