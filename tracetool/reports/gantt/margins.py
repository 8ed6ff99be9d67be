"""Round a panel: time axis, rank labels, DCs, idle share and memory, the time saved, what the legend says."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from tracetool.model.action import ActionKind
from tracetool.reports.gantt.cells import COLOURS, LINK_BUSY, LINK_FLIGHT, Box, chunks_of, draw_boxes, shade
from tracetool.reports.gantt.panel import MS, Panel
from tracetool.reports.picture import GREY, PT, RED, text_width_pt
from tracetool.units import format_duration, format_size
from tracetool.whatif.accuracy import format_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

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
    if any(t.link for panel in panels for t in panel.timeline.transfers):
        halves = "downstream above, upstream below" if wraps else "activations above, gradients below"
        marks.append(Patch(color=LINK_BUSY, label=f"link busy ({halves})"))
        marks.append(Patch(color=LINK_FLIGHT, label="in flight (latency)"))
    marks.append(Line2D([], [], color="black", linewidth=0.9, dashes=(4, 2), label="window end"))
    return marks
