"""Memory over time as a picture of its own: all ranks thin, the one that needs most bold, a panel per timeline."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.reports.gantt.margins import label_time
from tracetool.reports.gantt.memory import OTHERS, WORST, draw_ranks, finish_axis, known_panels
from tracetool.reports.gantt.panel import MS
from tracetool.reports.gantt.picture import drawn_result, panels_of
from tracetool.reports.picture import PictureFormat, legend, save
from tracetool.units import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracetool.reports.gantt.memory import Worst
    from tracetool.reports.gantt.panel import Panel
    from tracetool.whatif.results import Answer, Result

_WIDTH_IN, _LEFT_IN, _RIGHT_IN = 7.2, 0.62, 0.82
_HEAD_IN, _AXES_IN, _BETWEEN_IN, _FOOT_IN = 0.3, 1.2, 0.16, 0.66

_MOST_CURVES = 11
"""More would run into one."""


def render_memory(answer: Answer, result: Result | None = None, *, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """Draw what every rank has allocated over the step, observed and replayed on one axis.

    Args:
        answer: What to draw.
        result: The result to draw; by default what to run of those asked for.
        format: File format.

    Returns:
        The file; equal input gives equal bytes.

    Raises:
        ScenarioError: If memory of no rank is known.
    """
    return save(lambda: memory_figure(answer, result), format)


def memory_figure(answer: Answer, result: Result | None = None) -> Figure:
    """The picture of ``render_memory``, not yet written."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    found = known_panels(panels_of(answer, result or drawn_result(answer)))
    if not found:
        raise ScenarioError(
            "memory of no rank is known: there is nothing to draw.",
            hint="record with profile_memory=True, or give --activation and --static",
        )
    end_ns = ceil(max(panel.metrics.step_ns for panel, _ in found) * 1.005)
    needed = [worst.needed_bytes for _, worst in found]
    height = len(found) * (_HEAD_IN + _AXES_IN + _BETWEEN_IN) + _FOOT_IN
    figure = Figure(figsize=(_WIDTH_IN, height), dpi=150)
    wide = (_WIDTH_IN - _LEFT_IN - _RIGHT_IN) / _WIDTH_IN
    every = ceil(max(panel.ranks for panel, _ in found) / _MOST_CURVES)
    for number, (panel, worst) in enumerate(found):
        bottom = height - (number + 1) * (_HEAD_IN + _AXES_IN) - number * _BETWEEN_IN
        axes = figure.add_axes((_LEFT_IN / _WIDTH_IN, bottom / height, wide, _AXES_IN / height))
        axes.set_xlim(0, end_ns / MS)
        draw_ranks(axes, panel, every)
        finish_axis(axes, needed, answer.scenario.hbm_bytes)
        axes.set_title(_title(panel, worst), fontsize=8.5, loc="left", pad=4)
        axes.tick_params(axis="x", labelsize=7.5, width=0.6, length=3, labelbottom=number == len(found) - 1)
    label_time(axes)
    marks = [
        Line2D([], [], label="rank that needs most", **WORST),
        Line2D([], [], label="other ranks" if every == 1 else f"every {every}th rank", **OTHERS),
    ]
    legend(figure, marks, len(marks), x=0.5, y_in=0.06, loc="lower center")
    return figure


def _title(panel: Panel, worst: Worst) -> str:
    text = f"{panel.name}  ·  rank {panel.timeline.global_ranks[worst.rank]}: peak {format_size(worst.peak_bytes)}"
    if worst.needed_bytes > worst.peak_bytes:
        text += f", occupied {format_size(worst.needed_bytes)}"
    if panel.complaint and not panel.fits:
        text += "  ·  does not fit"
    return text
