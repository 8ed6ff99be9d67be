"""Device memory over time of the rank that needs most, with the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.reports.gantt.panel import MS, Panel
from tracetool.reports.picture import GREY, RED
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from tracetool.model.timeline import MemoryCurve

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
        marks.append(Line2D([], [], label=text, **_look(panel, panels)))
    return marks


def draw_worst(axes: Axes, panels: Sequence[Panel], hbm_bytes: int | None, end_ns: int) -> None:
    """One curve per panel, of the rank that needs most; an open circle stands at what it occupies at its peak."""
    found = _known_panels(panels)
    axes.set_xlim(0, end_ns / MS)
    for panel, worst in found:
        curve = panel.timeline.memory[worst.rank] or ()
        look = _look(panel, panels)
        _curve(axes, curve, panel.metrics.step_ns, zorder=2, **look)
        if worst.needed_bytes > worst.peak_bytes:
            when = next(time for time, level in curve if level == worst.peak_bytes) / MS
            ends = [worst.peak_bytes / GIB, worst.needed_bytes / GIB]
            axes.plot([when, when], ends, color=look["color"], linewidth=0.6, zorder=3)
            axes.plot(when, ends[1], "o", color=look["color"], fillstyle="none", markersize=3.5, zorder=3)
    _finish_axis(axes, [worst.needed_bytes for _, worst in found], hbm_bytes)


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


def _look(panel: Panel, panels: Sequence[Panel]) -> dict[str, Any]:
    """The first is what was observed, the last what was asked for."""
    place = panels.index(panel)
    return CURVES[-1 if place and place == len(panels) - 1 else place]


def _curve(axes: Axes, curve: MemoryCurve, step_ns: int, **look: Any) -> None:
    points = outline(curve, step_ns, max(1, round(axes.get_xlim()[1] * MS / _BINS)))
    axes.plot([t / MS for t, _ in points], [b / GIB for _, b in points], drawstyle="steps-post", **look)


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
