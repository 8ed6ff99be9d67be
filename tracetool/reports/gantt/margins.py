"""Round a panel: time axis, rank labels, DCs, idle share and memory, the time saved, what the legend says.

Device memory over time of the rank that needs most, with the limit.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.reports.gantt import MS, Panel
from tracetool.reports.gantt.cells import COLOURS, LINK_BUSY, LINK_FLIGHT, MARK_PT, Box, chunks_of, draw_boxes, shade
from tracetool.reports.picture import GREY, PT, RED, text_width_pt
from tracetool.units import format_duration, format_size
from tracetool.whatif.accuracy import format_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from tracetool.model.timeline import MemoryCurve
    from tracetool.reports.gantt.layout import Layout, Place

_LINK_TEXT = "#A0517D"
_SMALL = 7.0
_BAR_IN = (0.42, 0.72)
"""Length of the bars for all of the window, and all of the memory."""

_NAMES = {
    ActionKind.FORWARD: "forward (F)",
    ActionKind.BACKWARD: "backward (B)",
    ActionKind.BACKWARD_INPUT: "input gradient (I)",
    ActionKind.BACKWARD_WEIGHT: "weight gradient (W)",
    ActionKind.RECOMPUTE: "recompute (R)",
    ActionKind.REDUCE_GRAD: "gradient reduction",
    ActionKind.OPTIMIZER: "optimizer",
}


def draw_axis(axes: Axes, *, last: bool) -> None:
    """The time axis; its numbers stand below the last panel only."""
    axes.set_yticks([])
    axes.grid(visible=True, axis="x", color="#D0D0D0", linewidth=0.5, linestyle=":", zorder=0.6)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="x", labelbottom=last, labelsize=_SMALL + 0.5, width=0.6, length=3)
    if last:
        label_time(axes)


def label_time(axes: Axes) -> None:
    """What the time axis counts."""
    axes.set_xlabel("time since the first forward (ms)", fontsize=8, labelpad=2)


def draw_margins(axes: Axes, panel: Panel, place: Place, layout: Layout) -> None:
    """Ranks and DCs on the left, numbers per rank on the right."""
    step = place.every()
    inch = 1 / layout.axes_in
    # Thin rows put the first number close to the edge.
    heads_in = place.middle_in(0) - max(0.14, place.row_in / 2 + 0.08)
    ends = (1 + 0.47 * inch, 1 + 1.26 * inch)
    for x, head in zip(ends, ("idle", "peak HBM")[: 1 + panel.knows_memory], strict=False):
        _beside(axes, x, heads_in, head, colour=GREY)
    _bars(axes, panel, place, ends, layout)
    for rank in range(0, panel.ranks, step):
        y = place.middle_in(rank)
        _beside(axes, -0.07 * inch, y, f"rank {panel.timeline.global_ranks[rank]}")
        idle = 1 - panel.metrics.rank_compute_ns[rank] / panel.metrics.window_ns
        _beside(axes, ends[0], y, f"{idle:.1%}")
        peak = panel.metrics.peak_hbm_bytes[rank]
        if peak is not None:
            needed = panel.metrics.needed_hbm_bytes[rank] or peak
            over = panel.hbm_bytes is not None and needed > panel.hbm_bytes
            _beside(axes, ends[1], y, format_size(peak), colour=RED if over else "black", bold=over)
    _dcs(axes, panel, place, inch)


def _bars(axes: Axes, panel: Panel, place: Place, ends: tuple[float, float], layout: Layout) -> None:
    """Behind the numbers a bar per rank: of the window, and of the limit or else the highest need."""
    window, pad, inch = panel.metrics.window_ns, 0.12 * place.row_in, 1 / layout.axes_in
    needed, full = panel.metrics.needed_hbm_bytes, layout.full_bytes
    idle: list[Box] = []
    within: list[Box] = []
    over: list[Box] = []
    for rank, top in enumerate(place.tops_in):
        rows = top + pad, top + place.row_in - pad
        left, share = ends[0] - _BAR_IN[0] * inch, 1 - panel.metrics.rank_compute_ns[rank] / window
        idle.append((left, left + share * _BAR_IN[0] * inch, *rows))
        need = needed[rank]
        if need is not None and full:
            left, share = ends[1] - _BAR_IN[1] * inch, min(1.0, need / full)
            exceeds = panel.hbm_bytes is not None and need > panel.hbm_bytes
            (over if exceeds else within).append((left, left + share * _BAR_IN[1] * inch, *rows))
    for boxes, colour in ((idle, "#DEDEDE"), (within, "#D3E6F3"), (over, "#F3CFD4")):
        draw_boxes(axes, boxes, zorder=0.4, facecolor=colour, transform=axes.get_yaxis_transform())


def _beside(axes: Axes, x: float, y: float, text: str, *, colour: str = "black", bold: bool = False) -> None:
    axes.text(
        x,
        y,
        text,
        transform=axes.get_yaxis_transform(),
        fontsize=_SMALL,
        color=colour,
        fontweight="bold" if bold else "normal",
        ha="right",
        va="center_baseline",
    )


def _dcs(axes: Axes, panel: Panel, place: Place, inch: float) -> None:
    """A bracket and the name beside each DC's rows, a rule through each border, ``link`` at its lane."""
    across = axes.get_yaxis_transform()
    x = -0.54 * inch
    for name, group in groupby(range(len(panel.topology.dcs)), key=lambda rank: panel.topology.dcs[rank]):
        ranks = list(group)
        top = place.tops_in[ranks[0]] + 0.1 * place.row_in
        bottom = place.tops_in[ranks[-1]] + 0.9 * place.row_in
        axes.plot([x, x], [top, bottom], transform=across, color=GREY, linewidth=1.2, clip_on=False)
        tall_pt = (bottom - top) * PT
        if tall_pt + place.lane_in * PT >= 9:
            axes.text(
                x - 0.05 * inch,
                (top + bottom) / 2,
                name,
                transform=across,
                rotation=90 if tall_pt > 6 * len(name) else 0,
                fontsize=7.5,
                fontweight="bold",
                ha="right",
                va="center",
            )
    for top in place.lanes_in.values():
        y = top + place.lane_in / 2
        # Beside thin lanes stand labels of rows.
        is_tall = place.lane_in * PT >= 7
        for start, end in ((x, -0.34 * inch), (-0.06 * inch, 1)) if is_tall else ((0, 1),):
            axes.plot([start, end], [y, y], transform=across, color=GREY, linewidth=0.6, clip_on=False, zorder=0.7)
        if is_tall:
            _beside(axes, -0.07 * inch, y, "link", colour=_LINK_TEXT)


def draw_saved(axes: Axes, panel: Panel, place: Place, layout: Layout) -> None:
    """An arrow from the end of the baseline's step to the end of this one, above the rows."""
    step, base = panel.metrics.step_ns, panel.compared_ns
    if base is None or step == base:
        return
    y = place.tops_in[0] - 0.08
    shown = abs(step - base) * layout.pt_per_ns >= 6
    if shown:
        style = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "linewidth": 1.2, "color": "black"}
        axes.annotate("", (step / MS, y), (base / MS, y), arrowprops=style)
    rows = [y - 0.05, place.tops_in[-1] + place.row_in]
    axes.plot([base / MS] * 2, rows, color=GREY, linewidth=0.8, linestyle=":")
    change = f"{(step - base) / base:+.1%}".replace("-", "−")
    if panel.error_ratio is not None:
        within = abs(step - base) <= panel.error_ratio * base
        change += ", within the error" if within else f" ±{format_error(panel.error_ratio)}"
    time = format_duration(abs(base - step))
    texts = f"{time} {'saved' if step < base else 'lost'} per step ({change})", f"{'−' if step < base else '+'}{time}"
    text, x, side = _room_for(texts, min(step, base), max(step, base), layout)
    shadow = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
    look: dict[str, Any] = {"fontsize": 8, "fontweight": "bold", "ha": side, "va": "center", "bbox": shadow}
    axes.annotate(
        text, (x / MS, y), ({"left": 5, "right": -5, "center": 0}[side], 0), textcoords="offset points", **look
    )


def _room_for(texts: Sequence[str], low_ns: int, high_ns: int, layout: Layout) -> tuple[str, float, str]:
    """Which text stands where beside an arrow, and which of its sides is there: left of it, right, or over it."""
    for text in texts:
        need_ns = (text_width_pt(text, 8, bold=True) + 8) / layout.pt_per_ns
        if need_ns <= low_ns:
            return text, low_ns, "right"
        if need_ns <= layout.end_ns - high_ns:
            return text, high_ns, "left"
    text = next((t for t in texts if text_width_pt(t, 8, bold=True) <= layout.axes_in * PT), texts[-1])
    half_ns = text_width_pt(text, 8, bold=True) / layout.pt_per_ns / 2
    return text, max(half_ns, min((low_ns + high_ns) / 2, layout.end_ns - half_ns)), "center"


def legend_marks(panels: Sequence[Panel]) -> list[Artist]:
    """What colours and lines mean, of what is in the picture."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {op.kind for panel in panels for op in panel.timeline.ops}
    marks: list[Artist] = [Patch(color=COLOURS[k], label=_NAMES[k]) for k in COLOURS if k in kinds]
    wraps = any(chunk for panel in panels for chunk in chunks_of(panel).values())
    if wraps:
        darker = shade(ActionKind.FORWARD, 1, 2)
        marks.append(Patch(color=darker, label="darker: further stages of the rank"))
    timelines = [panel.timeline for panel in panels]
    if any(t.link for of in timelines for t in of.transfers) or any(
        c.links for of in timelines for c in of.collectives
    ):
        halves = "downstream above, upstream below" if wraps else "activations above, gradients below"
        marks.append(Patch(color=LINK_BUSY, label=f"link busy ({halves})"))
        marks.append(Patch(color=LINK_FLIGHT, label="in flight (latency)"))
    marks.append(Line2D([], [], color="black", linewidth=0.9, dashes=(4, 2), label="window end"))
    outlined = {mark.name: mark for panel in panels for mark in panel.marks}.values()
    marks += [
        Patch(facecolor="none", edgecolor=m.colour, linestyle=m.style, linewidth=MARK_PT, label=m.name)
        for m in outlined
    ]
    return marks


GIB = 2**30

CURVES: tuple[dict[str, Any], ...] = (
    {"color": "#707070", "linewidth": 1.0, "linestyle": "-"},
    {"color": "#0072B2", "linewidth": 1.2, "linestyle": (0, (4, 1.5))},
    {"color": "#000000", "linewidth": 1.5, "linestyle": "-"},
)
"""Observed, baseline, result: apart by weight and dashes, in grey as well."""

_BINS = 600
"""Over the width of the axes, about one per point."""

_HEADROOM = 2.2
"""Limits beyond so many times the highest need are named instead of drawn to scale: the curves would be flat."""


class Worst(NamedTuple):
    """The rank of a panel that needs most.

    Attributes:
        rank: Pipeline rank.
        needed_bytes: Its peak, and what it occupied beyond that as measured.
        peak_bytes: Its highest allocation.
    """

    rank: int
    needed_bytes: int
    peak_bytes: int


def worst_of(panel: Panel) -> Worst | None:
    """The rank that needs most among those whose memory is known; None if that is none."""
    metrics = panel.metrics
    both = enumerate(zip(metrics.needed_hbm_bytes, metrics.peak_hbm_bytes, strict=True))
    known = [Worst(rank, needed, peak) for rank, (needed, peak) in both if needed is not None and peak is not None]
    return max(known, key=lambda w: (w.needed_bytes, -w.rank), default=None)


def _known_panels(panels: Sequence[Panel]) -> list[tuple[Panel, Worst]]:
    """Panels with a known peak, and the rank that needs most in each."""
    return [(panel, worst) for panel in panels if (worst := worst_of(panel)) is not None]


def curve_marks(panels: Sequence[Panel]) -> list[Artist]:
    """Of the legend: whose curve each is, and its peak."""
    from matplotlib.lines import Line2D

    marks: list[Artist] = []
    for panel, worst in _known_panels(panels):
        text = f"{panel.role}: rank {panel.timeline.global_ranks[worst.rank]}, "
        text += f"peak {format_size(worst.peak_bytes)}"
        if worst.needed_bytes > worst.peak_bytes:
            text += f", occupied {format_size(worst.needed_bytes)} (○)"
        marks.append(Line2D([], [], label=text, **_line_style(panel, panels)))
    return marks


def draw_worst(axes: Axes, panels: Sequence[Panel], hbm_bytes: int | None, end_ns: int) -> None:
    """One curve per panel, of the rank that needs most; an open circle stands at what it occupies at its peak."""
    known = _known_panels(panels)
    axes.set_xlim(0, end_ns / MS)
    for panel, worst in known:
        curve = panel.timeline.memory[worst.rank] or ()
        style = _line_style(panel, panels)
        _curve(axes, curve, panel.metrics.step_ns, zorder=2, **style)
        if worst.needed_bytes > worst.peak_bytes:
            when = next(time for time, level in curve if level == worst.peak_bytes) / MS
            ends = [worst.peak_bytes / GIB, worst.needed_bytes / GIB]
            axes.plot([when, when], ends, color=style["color"], linewidth=0.6, zorder=3)
            axes.plot(when, ends[1], "o", color=style["color"], fillstyle="none", markersize=3.5, zorder=3)
    _finish_axis(axes, [worst.needed_bytes for _, worst in known], hbm_bytes)


def _finish_axis(axes: Axes, needed_bytes: Sequence[int], hbm_bytes: int | None) -> None:
    """Scale from 0, the limit as a line where the scale reaches it, else in words."""
    from matplotlib.ticker import MaxNLocator

    highest = max(needed_bytes)
    top = highest * 1.12
    if hbm_bytes is not None:
        inside = hbm_bytes <= _HEADROOM * highest
        top = max(top, hbm_bytes * 1.12) if inside else top
        if inside:
            axes.axhline(hbm_bytes / GIB, color=RED, linewidth=1.0, dashes=(6, 2), zorder=4)
        words = f"HBM limit\n{format_size(hbm_bytes)}" + ("" if inside else "\n(above)")
        axes.annotate(
            words,
            (1, hbm_bytes / top if inside else 1),
            (5, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=7,
            color=RED,
            va="center" if inside else "top",
            annotation_clip=False,
        )
    axes.set_ylim(0, top / GIB)
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 8, 10]))
    axes.tick_params(axis="y", labelsize=7, width=0.6, length=3)
    axes.set_ylabel("GiB allocated", fontsize=7.5, color=GREY)
    axes.grid(visible=True, color="#D0D0D0", linewidth=0.5, linestyle=":", zorder=0.6)
    axes.set_axisbelow(True)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)


def _line_style(panel: Panel, panels: Sequence[Panel]) -> dict[str, Any]:
    """The first is what was observed, the last what was asked for."""
    place = panels.index(panel)
    return CURVES[-1 if place and place == len(panels) - 1 else place]


def _curve(axes: Axes, curve: MemoryCurve, step_ns: int, **style: Any) -> None:
    points = outline(curve, step_ns, max(1, round(axes.get_xlim()[1] * MS / _BINS)))
    axes.plot([t / MS for t, _ in points], [b / GIB for _, b in points], drawstyle="steps-post", **style)


def outline(curve: MemoryCurve, end_ns: int, bin_ns: int) -> MemoryCurve:
    """The highest level within each bin of time, up to an end: what dips for less than a pixel stays out, peaks do not.

    Args:
        curve: Levels from their times on.
        end_ns: Until when the last level holds.
        bin_ns: Width of a bin.
    """
    highest: dict[int, int] = {}
    spans = zip(curve, (*curve[1:], (end_ns, 0)), strict=True)
    for (start, level), (until, _) in spans:
        last = max(start, until - 1) // bin_ns
        for number in {start // bin_ns, last}:
            highest[number] = max(highest.get(number, 0), level)
        if last - start // bin_ns > 1:
            highest[start // bin_ns + 1] = level
    points: list[tuple[int, int]] = []
    for number, level in sorted(highest.items()):
        if not points or points[-1][1] != level:
            points.append((number * bin_ns, level))
    return (*points, (end_ns, points[-1][1])) if points else ()
