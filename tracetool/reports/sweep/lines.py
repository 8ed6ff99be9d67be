"""Lines of a sweep: step time, or bubble ratio, over cross-DC bandwidth and over latency, one line per schedule.

The picture of a sweep: lines over bandwidth or latency, a map over many of both, bars over anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

from tracetool.errors import Option, ScenarioError
from tracetool.reports.gantt import MS
from tracetool.reports.picture import (
    GREY,
    PT,
    RED,
    SERIES,
    PictureFormat,
    label_value_axis,
    legend,
    legend_columns,
    save,
    wrapped,
)
from tracetool.reports.sweep import (
    GBIT_BYTES,
    KNEE_TEXT,
    LINK_LABELS,
    MOST_FACETS,
    UNFIT_TINT,
    Facet,
    Series,
    bandwidths_of,
    common_settings,
    facets_of,
    format_gbit,
    format_short,
    knee_of,
    latencies_of,
    left_undone,
    link_axis,
    series_of,
    shade_unfit,
    sweep_bars_figure,
)
from tracetool.reports.sweep.best_map import sweep_map_figure
from tracetool.units import format_bits, format_duration
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.reports.picture import PictureFormat
    from tracetool.sweeps import Knee, Sweep, SweepPoint

Figured = Literal["step", "bubble_ratio"]
Over = Literal["bandwidth", "latency"]

FEW = 4
"""So many latencies, or bandwidths, get a panel of lines each; more of both make a map."""

_MARKERS = "os^vDP"
_UNFIT = (0, (3, 2))
_TITLE_IN, _LINE_IN, _HEAD_IN, _FOOT_IN, _ROW_IN = 0.32, 0.18, 0.3, 0.5, 0.17
_LEFT_IN, _RIGHT_IN, _BETWEEN_IN = 0.72, 0.18, 0.75


@dataclass(frozen=True, slots=True)
class _Panel:
    """One pair of axes.

    Attributes:
        title: What is held in it.
        over: What its x axis is.
        series: Its lines, the points in order of x.
        at: The latency or bandwidth that is held; None if there is none.
    """

    title: str
    over: Over
    series: tuple[Series, ...]
    at: int | None


def render_sweep_lines(
    sweep: Sweep,
    *,
    format: PictureFormat = "png",  # noqa: A002
    figured: Figured = "step",
    width_in: float | None = None,
) -> bytes:
    """Draw a line per schedule over cross-DC bandwidth, and over latency where that was swept too.

    Args:
        sweep: Points and knees.
        format: File format.
        figured: What the lines are of.
        width_in: Width of the picture in inches, at least 3.5; by default as wide as one or two panels look well.

    Returns:
        The file; equal input gives equal bytes.

    Raises:
        ScenarioError: If neither bandwidth nor latency was swept, or nothing could be replayed.
    """
    return save(lambda: sweep_lines_figure(sweep, figured, width_in), format)


def sweep_lines_figure(sweep: Sweep, figured: Figured = "step", width_in: float | None = None) -> Figure:
    """The picture of ``render_sweep_lines``, not yet written."""
    from matplotlib.figure import Figure

    left_out = _left_out(sweep)
    facets = facets_of([point for point in sweep.points if point.schedule not in left_out])
    panels = [panel for facet in facets[:MOST_FACETS] for panel in _panels(facet, sweep.knees)]
    if not any(value_of(p, figured) is not None for panel in panels for s in panel.series for p in s.points):
        raise ScenarioError("nothing of this sweep could be replayed: there is nothing to draw.")
    labels = list(dict.fromkeys(s.label for panel in panels for s in panel.series))
    over = list(dict.fromkeys(panel.over for panel in panels))
    all_values = [
        v for panel in panels for s in panel.series for p in s.points if (v := value_of(p, figured)) is not None
    ]
    most = 3 if len(panels) % 3 == 0 else 2
    width = max(3.5, width_in or (7.2 if len(panels) == 1 else 9.6 if most == 2 else 12))
    columns = min(most, len(panels), max(1, int(width // 3.4)))
    rows = ceil(len(panels) / columns)
    axes_in = (width - _LEFT_IN - _RIGHT_IN - (columns - 1) * _BETWEEN_IN) / columns, 3.1 if rows == 1 else 2.4
    heads = wrapped(_heads(sweep, len(facets), left_out), (width - 0.3) * PT, 8)
    marks = _marks(labels, panels, sweep, alone=len(panels) == len(over))
    abreast = legend_columns([str(mark.get_label()) for mark in marks], (width - 0.3) * PT)
    head_in = _HEAD_IN if any(panel.title for panel in panels) else 0.12
    below = _ROW_IN * ceil(len(marks) / abreast) + 0.12
    top_in = _TITLE_IN + _LINE_IN * len(heads)
    height = top_in + rows * (head_in + axes_in[1] + _FOOT_IN) + below
    figure = Figure(figsize=(width, height), dpi=150)
    name = "Step time" if figured == "step" else "Bubble ratio"
    title = f"{name} over cross-DC {' and '.join(over)}"
    figure.text(0.15 / width, 1 - 0.1 / height, title, va="top", fontsize=10, weight="bold")
    for number, line in enumerate(heads):
        y = 1 - (_TITLE_IN + _LINE_IN * number) / height
        figure.text(0.15 / width, y, line, va="top", fontsize=8, color=GREY)
    for number, panel in enumerate(panels):
        row, column = divmod(number, columns)
        left = _LEFT_IN + column * (axes_in[0] + _BETWEEN_IN)
        bottom = height - top_in - (row + 1) * (head_in + axes_in[1]) - row * _FOOT_IN
        box = left / width, bottom / height, axes_in[0] / width, axes_in[1] / height
        # Panels over the same are read side by side: they share the axis of what they show.
        _draw(figure.add_axes(box), panel, sweep.knees, labels, figured, all_values if len(over) == 1 else None)
    legend(figure, marks, abreast, x=0.5, y_in=0.08, loc="lower center")
    return figure


def value_of(point: SweepPoint, figured: Figured) -> float | None:
    """What is drawn of a point; None if it could not be replayed."""
    return point.step_ns if figured == "step" else point.bubble_ratio


def _panels(facet: Facet, knees: Sequence[Knee]) -> list[_Panel]:
    bandwidths, latencies = bandwidths_of(facet.points), latencies_of(facet.points)
    panels = []
    if 1 < len(latencies) <= min(FEW, len(bandwidths)):
        return [_panel(facet, "bandwidth", at) for at in latencies]
    if 1 < len(bandwidths) <= min(FEW, len(latencies)):
        return [_panel(facet, "latency", at) for at in bandwidths]
    if len(bandwidths) > 1:
        # Knees are sought at some of the latencies only.
        sought = [a for a in latencies if any(a == knee.at_latency_ns for knee in knees)] or latencies
        at = sought[len(sought) // 2] if sought else None
        panels.append(_panel(facet, "bandwidth", at))
    if len(latencies) > 1:
        # Hidden latencies are about links whose bandwidth costs nothing.
        at = bandwidths[-1] if bandwidths else None
        panels.append(_panel(facet, "latency", at))
    if not panels:
        raise ScenarioError(
            "neither bandwidth nor latency varies in this sweep: there is nothing to draw over.",
            hint=f"sweep one of them, as in {Option.BANDWIDTH('10..800Gbit/s')}",
        )
    return panels


def _panel(facet: Facet, over: Over, at: int | None) -> _Panel:
    """The panel over one figure of the link at a value of the other one; None where there is one value."""
    said = [facet.title] if facet.title else []
    if at is not None:
        said.append(f"latency {format_duration(at)}" if over == "bandwidth" else format_bits(at))
    held = "latency_ns" if over == "bandwidth" else "bandwidth_bytes_per_s"
    return _Panel("  ·  ".join(said), over, _cut(facet, held, at), at)


def _cut(facet: Facet, held: str, at: int | None) -> tuple[Series, ...]:
    """Lines at one value of the other figure of the link."""
    kept = tuple(point for point in facet.points if at is None or getattr(point, held) == at)
    return tuple(series_of(Facet(facet.title, kept)))


def _left_out(sweep: Sweep) -> set[str]:
    """Of more schedules than there are colours, those that are nowhere best, nor may be, nor are recorded."""
    names = {point.schedule for point in sweep.points}
    named = {p.schedule for each in sweep.best for p in (each.point, each.now, *each.unproven[:1]) if p is not None}
    return names - named if len(names) > len(SERIES) and named & names else set()


def _heads(sweep: Sweep, facets: int, left_out: set[str]) -> list[str]:
    said = common_settings(sweep.points)
    if left_out:
        said.append(f"{len(left_out)} schedules that are nowhere best are not drawn")
    if any(point.step_ns and point.evidence == "unproven" and point.schedule not in left_out for point in sweep.points):
        said.append(f"{UNPROVEN_MARK}: unproven, {UNPROVEN_TEXT}")
    return [*said, *left_undone(sweep, facets)]


def _draw(
    axes: Axes,
    panel: _Panel,
    knees: Sequence[Knee],
    labels: Sequence[str],
    figured: Figured,
    shared: Sequence[float] | None,
) -> None:
    scale = link_axis(axes, panel.over, [p for s in panel.series for p in s.points])
    values = [value for s in panel.series for p in s.points if (value := value_of(p, figured)) is not None]
    factor = label_value_axis(axes, figured, shared or values)
    widths = 2.6, 1.2
    for number, series in enumerate(panel.series):
        place = labels.index(series.label)
        # Lines that coincide stay visible one on the other.
        width = widths[0] - (widths[0] - widths[1]) * number / max(1, len(panel.series) - 1)
        look: dict[str, Any] = {"color": SERIES[place % len(SERIES)], "linewidth": width, "zorder": 2 + number / 50}
        points = sorted(series.points, key=scale.of)
        for first, second in pairwise(points):
            ends = value_of(first, figured), value_of(second, figured)
            if ends[0] is not None and ends[1] is not None:
                style = _style(first, second)
                xs = scale.of(first), scale.of(second)
                axes.plot(xs, [end / factor for end in ends if end is not None], linestyle=style, **look)
        _dots(axes, [p for p in points if value_of(p, figured) is not None], scale.of, figured, factor, place)
        _mark_knee(axes, panel, series, knees, lambda p: (scale.of(p), value_of(p, figured)), factor)
    shade_unfit(axes, panel.series, scale.of)
    axes.set_title(panel.title, fontsize=8.5, loc="left", pad=5)
    axes.set_xlabel(LINK_LABELS[panel.over].format(unit=scale.unit), fontsize=8.5)


def _style(first: SweepPoint, second: SweepPoint) -> Any:
    if first.feasible is False or second.feasible is False:
        return _UNFIT
    unknown = any(point.feasible is None and point.hbm_bytes is not None for point in (first, second))
    return ":" if unknown else "-"


def _dots(axes: Axes, points: Sequence[SweepPoint], x_of: Any, figured: Figured, factor: float, place: int) -> None:
    """Points of a line, those that do not fit as crosses; of many points the lines alone."""
    colour, marker = SERIES[place % len(SERIES)], _MARKERS[place % len(_MARKERS)]
    every = max(1, len(points) // 16)
    for fits, kept in ((True, points[::every]), (False, points[::every])):
        shown = [p for p in kept if (p.feasible is not False) is fits]
        xs, ys = [x_of(p) for p in shown], [(value_of(p, figured) or 0) / factor for p in shown]
        look: dict[str, Any] = {"marker": marker, "markersize": 4.5} if fits else {"marker": "x", "markersize": 5}
        axes.plot(xs, ys, linestyle="none", color=colour, markeredgewidth=0.8 if fits else 1.3, zorder=3, **look)


def _mark_knee(
    axes: Axes,
    panel: _Panel,
    series: Series,
    knees: Sequence[Knee],
    place_of: Callable[[SweepPoint], tuple[float, float | None]],
    factor: float,
) -> None:
    x = _knee_x(panel, series, knees)
    if x is None:
        return
    known = sorted((left, value / factor) for left, value in map(place_of, series.points) if value is not None)
    y = _between(axes, known, x)
    if y is not None:
        marker = "D" if panel.over == "bandwidth" else "v"
        look: dict[str, Any] = {"marker": marker, "markersize": 8, "markeredgewidth": 1.4, "zorder": 5}
        axes.plot([x], [y], color="none", markerfacecolor="none", markeredgecolor="black", **look)


def _knee(panel: _Panel, series: Series, knees: Sequence[Knee]) -> Knee | None:
    return knee_of(series, knees, latency_ns=panel.at if panel.over == "bandwidth" else None)


def _knee_x(panel: _Panel, series: Series, knees: Sequence[Knee]) -> float | None:
    """Where the line's knee, or its hidden latency, is on the x axis; None if it is not, or beyond the line."""
    knee = _knee(panel, series, knees)
    if knee is None:
        return None
    if panel.over == "bandwidth":
        at, swept, unit = knee.bandwidth_bytes_per_s, bandwidths_of(series.points), GBIT_BYTES
    else:
        at, swept, unit = knee.hidden_latency_ns, latencies_of(series.points), MS
    return None if at is None or not swept[0] <= at <= swept[-1] else at / unit


def _between(axes: Axes, known: Sequence[tuple[float, float]], x: float) -> float | None:
    """Height of the line, as it is drawn, between its points; None outside of them."""
    for left, right in pairwise(known):
        if left[0] <= x <= right[0]:
            (x0, y0), (x1, y1) = axes.transScale.transform([left, right])
            ((across, _),) = axes.transScale.transform([(x, left[1])])
            height = y0 + (y1 - y0) * (across - x0) / (x1 - x0)
            return float(axes.transScale.inverted().transform([(across, height)])[0][1])
    return None


def _marks(labels: Sequence[str], panels: Sequence[_Panel], sweep: Sweep, *, alone: bool) -> list[Artist]:
    """The legend: schedules, with knee and hidden latency where there is one of each, then what marks mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks: list[Artist] = []
    for place, label in enumerate(labels):
        colour, marker = SERIES[place % len(SERIES)], _MARKERS[place % len(_MARKERS)]
        mark = f" {UNPROVEN_MARK}" if _is_unproven(label, panels) else ""
        text = label + mark + (_knee_text(label, panels, sweep.knees) if alone else "")
        marks.append(Line2D([], [], color=colour, marker=marker, markersize=4.5, linewidth=1.8, label=text))
    points = [p for panel in panels for s in panel.series for p in s.points]
    marked = {panel.over for panel in panels for s in panel.series if _knee_x(panel, s, sweep.knees) is not None}
    hollow: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none", "markeredgecolor": "black"}
    if "bandwidth" in marked:
        marks.append(Line2D([], [], marker="D", markersize=6, label=KNEE_TEXT, **hollow))
    if "latency" in marked:
        marks.append(
            Line2D([], [], marker="v", markersize=6, label="latency hidden up to here, bandwidth aside", **hollow)
        )
    if any(p.feasible is False for p in points):
        unfit = Line2D(
            [], [], color=GREY, linestyle=_UNFIT, marker="x", markersize=5, label="does not fit the HBM limit"
        )
        shaded = Patch(facecolor=UNFIT_TINT, edgecolor=RED, hatch="///", linewidth=0, label="where no schedule fits")
        marks += [unfit, shaded] if any(_all_unfit(panel) for panel in panels) else [unfit]
    return marks


def _is_unproven(label: str, panels: Sequence[_Panel]) -> bool:
    points = [p for panel in panels for s in panel.series if s.label == label for p in s.points]
    return any(point.step_ns and point.evidence == "unproven" for point in points)


def _all_unfit(panel: _Panel) -> bool:
    ways: dict[tuple[int | None, int | None], bool] = {}
    for point in (p for s in panel.series for p in s.points):
        link = point.bandwidth_bytes_per_s, point.latency_ns
        ways[link] = ways.get(link, True) and point.feasible is False
    return any(ways.values())


def _knee_text(label: str, panels: Sequence[_Panel], knees: Sequence[Knee]) -> str:
    said = []
    for panel in panels:
        for series in (s for s in panel.series if s.label == label):
            knee = _knee(panel, series, knees)
            if knee is None:
                continue
            if panel.over == "bandwidth" and knee.bandwidth_bytes_per_s is not None:
                said.append(f"knee {format_gbit(knee.bandwidth_bytes_per_s)} Gbit/s")
            if panel.over == "latency":
                said.append(_hidden_text(knee, latencies_of(series.points)[-1]))
    return f" ({', '.join(said)})" if said else ""


def _hidden_text(knee: Knee, longest_ns: int) -> str:
    hidden_ns = knee.hidden_latency_ns
    if hidden_ns is None:
        return "over 1 % above its floor by links that stay as given"
    return f"hides all {format_short(longest_ns)}" if hidden_ns > longest_ns else f"hides {format_short(hidden_ns)}"


def render_sweep(sweep: Sweep, format: PictureFormat = "png") -> bytes:  # noqa: A002
    """Draw a sweep as what it varies asks for: lines, or a map of many links; bars where no figure of a link varies.

    Args:
        sweep: Points and knees.
        format: File format.

    Returns:
        The file; equal input gives equal bytes.

    Raises:
        ScenarioError: If nothing could be replayed.
    """
    return save(lambda: sweep_figure(sweep), format)


def sweep_figure(sweep: Sweep) -> Figure:
    """The picture of ``render_sweep``, not yet written."""
    swept = [(len(bandwidths_of(facet.points)), len(latencies_of(facet.points))) for facet in facets_of(sweep.points)]
    if max(map(max, swept), default=0) < 2:
        return sweep_bars_figure(sweep)
    return sweep_map_figure(sweep) if any(min(each) > FEW for each in swept) else sweep_lines_figure(sweep)
