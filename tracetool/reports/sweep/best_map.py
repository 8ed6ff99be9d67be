"""The map of a sweep: the best schedule over cross-DC bandwidth and latency, and what it gains."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from tracetool.errors import Option, ScenarioError, together
from tracetool.reports.gantt import MS
from tracetool.reports.picture import (
    GREY,
    PT,
    SERIES,
    PictureFormat,
    is_dark,
    legend,
    legend_columns,
    link_ticks,
    log_ticks,
    round_levels,
    save,
    text_width_pt,
    wrapped,
)
from tracetool.reports.sweep import (
    GBIT_BYTES,
    KNEE_TEXT,
    MOST_FACETS,
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
    series_of,
)
from tracetool.schedules import REFERENCE
from tracetool.sweeps.results import scenario_of
from tracetool.whatif.accuracy import format_error
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT, choose_best

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.sweeps import Best, Knee, Sweep, SweepPoint

WIDTH_IN = 9.5

Places = dict[tuple[int, int], tuple[int, int]]
"""Column and row of each link."""

_BLANK = "#EDEDED"
_LEFT_IN, _RIGHT_IN, _HEAD_IN, _FOOT_IN, _ROW_IN, _TITLE_IN, _LINE_IN = 0.95, 0.2, 0.28, 0.52, 0.17, 0.32, 0.18
_TEXT_PT = (8.0, 7.0, 6.0)
_CORNER_PT = 6
_MOST_NAMED = 8
"""So many bandwidths, and latencies, are named each; of more, round ones are."""

_KNEE: dict[str, Any] = {
    "linestyle": "none", "marker": "D", "markersize": 5, "markerfacecolor": "white", "markeredgecolor": "black",
    "markeredgewidth": 0.8, "zorder": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MapCell:
    """What is best over one link.

    Attributes:
        label: The schedule to run (``tracetool.whatif.best``), marked if it is unproven; None if none fits.
        step_ns: Its step.
        error_ratio: The largest error seen of such steps; None if none was like it.
        gain_ratio: Its step over that of the recorded order, minus one; None without one.
        is_limited: Whether one that does not fit is faster.
        is_unfit: Whether none fits, for lack of memory.
        is_unproven: Whether nothing like the schedule to run was ever measured.
    """

    label: str | None
    step_ns: int | None
    gain_ratio: float | None
    is_limited: bool
    is_unfit: bool
    is_unproven: bool = False
    error_ratio: float | None = None


Cells = dict[tuple[int, int], MapCell]


def render_sweep_map(sweep: Sweep, *, format: PictureFormat = "png", width_in: float = WIDTH_IN) -> bytes:  # noqa: A002
    """Draw which schedule is best over each link, one map per combination of other settings.

    Args:
        sweep: Points.
        format: File format.
        width_in: Width of the picture in inches at most, at least 3.5.

    Returns:
        The file; equal input gives equal bytes.

    Raises:
        ScenarioError: If bandwidth and latency were not both swept, or nothing could be replayed.
    """
    return save(lambda: sweep_map_figure(sweep, width_in), format)


def cells_of(facet: Facet, best: Sequence[Best] = ()) -> Cells:
    """What is best over each pair of bandwidth and latency: as the sweep says, else the shortest step that fits."""
    known = {scenario_of(each.among): each for each in best}
    there: dict[tuple[int, int], list[tuple[str, SweepPoint]]] = {}
    for series in series_of(facet):
        for point in series.points:
            if point.bandwidth_bytes_per_s is not None and point.latency_ns is not None:
                there.setdefault((point.bandwidth_bytes_per_s, point.latency_ns), []).append((series.label, point))
    return {link: _cell(points, known.get(scenario_of(points[0][1]))) for link, points in there.items()}


def _cell(points: Sequence[tuple[str, SweepPoint]], best: Best | None) -> MapCell:
    ran = [(label, point.step_ns, point.feasible) for label, point in points if point.step_ns is not None]
    unfit = [step for _, step, feasible in ran if feasible is False]
    chosen = _chosen(points, best)
    if chosen is None or chosen[1].step_ns is None:
        return MapCell(None, None, None, is_limited=False, is_unfit=bool(unfit))
    label, point = chosen
    step = point.step_ns or 0
    base = next((step for label, step, _ in ran if label == REFERENCE), None)
    base = best.now.step_ns if best is not None and best.now is not None else base
    gain = None if base is None else step / base - 1
    unproven = point.evidence == "unproven"
    marked = f"{label} {UNPROVEN_MARK}" if unproven else label
    limited = bool(unfit) and min(unfit) < step
    return MapCell(
        marked, step, gain, is_limited=limited, is_unfit=False, is_unproven=unproven, error_ratio=point.seen_error_ratio
    )


def _chosen(points: Sequence[tuple[str, SweepPoint]], best: Best | None) -> tuple[str, SweepPoint] | None:
    """The point to run, and its line's label."""
    usable = [(label, point) for label, point in points if point.is_usable]
    if best is None:
        # The first of those of equal step, in the order of the sweep.
        return min(usable, key=lambda one: one[1].step_ns or 0, default=None)
    wanted = best.point
    same = [label for label, p in usable if wanted is not None and (p.schedule, p.p2p) == (wanted.schedule, wanted.p2p)]
    if wanted is not None and wanted is best.now and not same:
        return wanted.schedule, wanted  # the recorded order, which was not asked for
    if wanted is not None and same:
        exact = next((one for one in usable if one[1] == wanted), None)
        return exact or (same[0], wanted)
    among = choose_best([point for _, point in usable], None)  # what is best has its transfers issued otherwise
    return next((one for one in usable if one[1] is among), None)


def sweep_map_figure(sweep: Sweep, width_in: float = WIDTH_IN) -> Figure:
    """The picture of ``render_sweep_map``, not yet written."""
    from matplotlib.figure import Figure

    bandwidths, latencies = bandwidths_of(sweep.points), latencies_of(sweep.points)
    if len(bandwidths) < 2 or len(latencies) < 2:
        raise ScenarioError(
            "a map needs several bandwidths and several latencies.",
            hint=f"sweep both, as in {together(Option.BANDWIDTH('10..800Gbit/s'), Option.LATENCY('1..50ms'))}",
        )
    facets = facets_of(sweep.points)
    maps = [(facet, cells_of(facet, sweep.best)) for facet in facets[:MOST_FACETS]]
    every_cell = [cell for _, cells in maps for cell in cells.values()]
    if all(cell.label is None and not cell.is_unfit for cell in every_cell):
        raise ScenarioError("nothing of this sweep could be replayed: there is nothing to draw.")
    order = list(dict.fromkeys(cell.label for cell in every_cell if cell.label is not None))
    knees = [_knee_places(facet, cells, sweep.knees, bandwidths, latencies) for facet, cells in maps]
    columns = 1 if len(maps) == 1 or width_in < 7 else 2
    rows = ceil(len(maps) / columns)
    cell_in = _cell_size(len(bandwidths), len(latencies), max(3.5, width_in) / columns - _LEFT_IN - _RIGHT_IN)
    axes_in = cell_in[0] * len(bandwidths), cell_in[1] * len(latencies)
    width = columns * (_LEFT_IN + axes_in[0] + _RIGHT_IN)
    marks = _marks(order, every_cell, has_knees=any(knees))
    abreast = legend_columns([str(mark.get_label()) for mark in marks], (width - 0.3) * PT)
    heads = wrapped(_heads(sweep, len(facets), every_cell, cell_in), (width - 0.3) * PT, 8)
    top_in = _TITLE_IN + _LINE_IN * len(heads)
    head_in = _HEAD_IN if any(facet.title for facet, _ in maps) else 0.12
    height = top_in + rows * (head_in + axes_in[1] + _FOOT_IN) + _ROW_IN * ceil(len(marks) / abreast) + 0.12
    figure = Figure(figsize=(width, height), dpi=150)
    tried = list(dict.fromkeys(point.schedule for point in sweep.points))
    title = f"Best of {', '.join(tried)} over the link"
    if text_width_pt(title, 10, bold=True) > (width - 0.3) * PT:
        title = f"Best of {len(tried)} schedules over the link"
    figure.text(0.15 / width, 1 - 0.1 / height, title, va="top", fontsize=10, weight="bold")
    for number, line in enumerate(heads):
        y = 1 - (_TITLE_IN + _LINE_IN * number) / height
        figure.text(0.15 / width, y, line, va="top", fontsize=8, color=GREY)
    for number, (facet, cells) in enumerate(maps):
        row, column = divmod(number, columns)
        left = _LEFT_IN + column * (width / columns)
        bottom = height - top_in - (row + 1) * (head_in + axes_in[1]) - row * _FOOT_IN
        axes = figure.add_axes((left / width, bottom / height, axes_in[0] / width, axes_in[1] / height))
        axes.set_title(facet.title, fontsize=8.5, loc="left", pad=5)
        _axes(axes, bandwidths, latencies, cell_in)
        places = {(b, a): (bandwidths.index(b), latencies.index(a)) for b, a in cells}
        _fill(axes, cells, order, places, cell_in)
        _numbers(axes, cells, order, places, _kept(every_cell, cell_in))
        axes.plot(*zip(*knees[number], strict=True), **_KNEE) if knees[number] else None
    legend(figure, marks, abreast, x=0.5, y_in=0.08, loc="lower center")
    return figure


def _cell_size(wide: int, tall: int, axes_in: float) -> tuple[float, float]:
    """Large enough for two numbers where that many fit the width, never larger than need be."""
    return max(min(4.2, axes_in) / wide, min(0.72, axes_in / wide)), max(1.8 / tall, min(0.42, 5.0 / tall))


def _heads(sweep: Sweep, facets: int, cells: Sequence[MapCell], cell_in: tuple[float, float]) -> list[str]:
    said = common_settings(sweep.points)
    first, size = _kept(cells, cell_in)
    recorded = next((each.now.schedule for each in sweep.best if each.now is not None), REFERENCE)
    against = f"change against {recorded} over the same link"
    has_base = any(cell.gain_ratio is not None for cell in cells)
    errors = [cell.error_ratio for cell in cells if cell.error_ratio is not None]
    if size is None:
        said.append("lines: equal step")
        said += [f"errors up to ±{format_error(max(errors))}"] if errors else []
    elif first and has_base:
        said.append(f"in each cell: {against}")
    else:
        error = " ± its error" if errors else ""
        said.append(f"in each cell: step{error}" + (f", and its {against}" if has_base else ""))
    if any(cell.is_unproven for cell in cells):
        said.append(f"{UNPROVEN_MARK}: unproven, {UNPROVEN_TEXT}")
    return [*said, *left_undone(sweep, facets)]


def _knee_places(
    facet: Facet, cells: Cells, knees: Sequence[Knee], bandwidths: Sequence[int], latencies: Sequence[int]
) -> list[tuple[float, float]]:
    """Where on the map, in each row, the knee is of a schedule that is best there."""
    rows: dict[str, Series] = {series.label: series for series in series_of(facet)}
    places = []
    for row, latency in enumerate(latencies):
        for column, bandwidth in enumerate(bandwidths):
            cell = cells.get((bandwidth, latency))
            series = rows.get(((cell and cell.label) or "").removesuffix(f" {UNPROVEN_MARK}"))
            knee = None if series is None else knee_of(series, knees, latency_ns=latency)
            at = None if knee is None or knee.at_latency_ns != latency else knee.bandwidth_bytes_per_s
            if at is not None and abs((x := _across(at, bandwidths)) - column - 0.5) <= 0.5:
                places.append((x, row + 0.14))
    return places


def _across(value: float, values: Sequence[int]) -> float:
    """Where a bandwidth, or latency, is on the map: cells are about their values, and logarithmic in between."""
    import numpy as np

    middles = np.arange(len(values)) + 0.5
    return float(np.interp(np.log(value), np.log(values), middles, left=-1.0, right=-1.0))


def _axes(axes: Axes, bandwidths: Sequence[int], latencies: Sequence[int], cell_in: tuple[float, float]) -> None:
    axes.set_xlim(0, len(bandwidths))
    axes.set_ylim(0, len(latencies))
    across, up = [format_gbit(b) for b in bandwidths], [format_short(a) for a in latencies]
    need_in = max(text_width_pt(text, 8) for text in across) / PT + 0.08
    if len(across) > _MOST_NAMED or need_in > cell_in[0]:
        used = link_ticks([bandwidths[0] / GBIT_BYTES, bandwidths[-1] / GBIT_BYTES])
        axes.set_xticks([_across(x * GBIT_BYTES, bandwidths) for x in used], [f"{x:g}" for x in used])
    else:
        axes.set_xticks([n + 0.5 for n in range(len(across))], across)
    if len(up) > _MOST_NAMED and latencies[0] > 0:
        used = log_ticks([latencies[0] / MS, latencies[-1] / MS])
        axes.set_yticks([_across(x * MS, latencies) for x in used], [f"{x:.3g} ms" for x in used])
    else:
        axes.set_yticks([n + 0.5 for n in range(len(up))], up)
    axes.tick_params(labelsize=8, length=2, width=0.6)
    axes.set_xlabel("cross-DC bandwidth (Gbit/s)", fontsize=8.5)
    axes.set_ylabel("one-way latency", fontsize=8.5)


def _fill(axes: Axes, cells: Cells, order: Sequence[str], places: Places, cell_in: tuple[float, float]) -> None:
    """Cells by schedule, a corner cut off where one that does not fit would be faster."""
    from matplotlib.patches import Polygon

    from tracetool.reports.gantt.cells import draw_boxes

    boxes: dict[str | None, list[tuple[float, float, float, float]]] = {}
    for link, cell in cells.items():
        if cell.label is not None or cell.is_unfit:
            x, y = places[link]
            boxes.setdefault(cell.label, []).append((x, x + 1, y, y + 1))
    edge_pt = min(0.6, 0.03 * min(cell_in) * PT)
    for label, group in sorted(boxes.items(), key=lambda labelled: str(labelled[0])):
        face, line, hatch = _fill_style(label, order)
        drawn = draw_boxes(axes, group, zorder=1, facecolor=face, edgecolor=line, linewidth=0)
        drawn.set_hatch(hatch)
        draw_boxes(axes, group, zorder=1.5, facecolor="none", edgecolor="white", linewidth=edge_pt)
    leg_in = min(_CORNER_PT / PT, 0.45 * min(cell_in))
    across, up = leg_in / cell_in[0], leg_in / cell_in[1]
    for link in (link for link, cell in cells.items() if cell.is_limited):
        x, y = places[link]
        corner = [(x + 1, y + 1), (x + 1 - across, y + 1), (x + 1, y + 1 - up)]
        axes.add_patch(Polygon(corner, facecolor="white", edgecolor="black", linewidth=0.3, zorder=2))


def _fill_style(label: str | None, order: Sequence[str]) -> tuple[str, str, str]:
    """Face, colour of the hatch, and hatch."""
    if label is None:
        return _BLANK, "#8A8A8A", "xxx"
    place = order.index(label)
    return SERIES[place % len(SERIES)], "white", "" if place < len(SERIES) else "..."


def _numbers(axes: Axes, cells: Cells, order: Sequence[str], places: Places, kept: tuple[int, float | None]) -> None:
    """Step and gain, or the gain alone, or where cells are too small lines of equal step."""
    first, size = kept
    if size is None:
        _contours(axes, cells, places)
        return
    for link, cell in cells.items():
        if cell.label is not None:
            x, y = places[link]
            colour = "white" if is_dark(_fill_style(cell.label, order)[0]) else "black"
            text = "\n".join(_lines(cell)[first:])
            look: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 1.1, "zorder": 3, "color": colour}
            axes.text(x + 0.5, y + 0.5, text, fontsize=size, **look)


def _contours(axes: Axes, cells: Cells, places: Places) -> None:
    import numpy as np

    known = {places[link]: cell.step_ns for link, cell in cells.items() if cell.step_ns is not None}
    if not known:
        return
    wide, tall = 1 + max(x for x, _ in places.values()), 1 + max(y for _, y in places.values())
    steps = np.full((tall, wide), np.nan)
    for (x, y), step in known.items():
        steps[y, x] = step / MS
    low, high = float(np.nanmin(steps)), float(np.nanmax(steps))
    levels = round_levels(low, high)
    if levels and min(steps.shape) > 1:
        across, up = np.arange(wide) + 0.5, np.arange(tall) + 0.5
        drawn = axes.contour(across, up, steps, levels=levels, colors="black", linewidths=0.9)
        for text in axes.clabel(drawn, fmt=lambda level: format_short(round(level * MS)), fontsize=7, inline=True):
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8})


def _kept(cells: Sequence[MapCell], cell_in: tuple[float, float]) -> tuple[int, float | None]:
    """From which line on cells show their text, and in what size; None if none fits."""
    texts = [_lines(cell) for cell in cells if cell.label is not None]
    for first in (0, -1):
        shown = [lines[first:] for lines in texts]
        size = next((size for size in _TEXT_PT if _fits(shown, size, cell_in)), None)
        if size is not None:
            return first, size
    return 0, None


def _lines(cell: MapCell) -> tuple[str, ...]:
    error = "" if cell.error_ratio is None else f" ±{format_error(cell.error_ratio)}"
    step = format_short(cell.step_ns or 0, even=True) + error
    if cell.gain_ratio is None:
        return (step,)
    percent = round(100 * cell.gain_ratio)
    return step, f"{percent:+d}%".replace("-", "−") if percent else "0%"


def _fits(texts: Iterable[tuple[str, ...]], size: float, cell_in: tuple[float, float]) -> bool:
    lines = list(texts)
    wide = max((text_width_pt(line, size) for text in lines for line in text), default=0)
    tall = max(map(len, lines), default=0) * size * 1.25
    return wide + _CORNER_PT + 3 <= cell_in[0] * PT and tall + 2 <= cell_in[1] * PT


def _marks(order: Sequence[str], cells: Sequence[MapCell], *, has_knees: bool) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    best = {cell.label for cell in cells}
    marks: list[Artist] = []
    for label in (label for label in order if label in best):
        face, line, hatch = _fill_style(label, order)
        marks.append(Patch(facecolor=face, edgecolor=line, hatch=hatch, linewidth=0, label=label))
    if has_knees:
        marks.append(Line2D([], [], label=KNEE_TEXT, **_KNEE))
    if any(cell.is_limited for cell in cells):
        look: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white", "markeredgecolor": "black"}
        text = "corner: a faster one does not fit the HBM limit"
        marks.append(Line2D([], [], marker=[(-1, 1), (1, 1), (1, -1), (-1, 1)], markersize=6, label=text, **look))
    if any(cell.is_unfit for cell in cells):
        face, line, hatch = _fill_style(None, order)
        marks.append(Patch(facecolor=face, edgecolor=line, hatch=hatch, linewidth=0, label="where no schedule fits"))
    return marks
