"""Where things go in the schedule picture. Within a panel the vertical unit is the inch.

Texts are of one size whatever the width: rows and cells shrink as they become more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING

from tracetool.reports.gantt.titles import LINE_IN, title_of
from tracetool.reports.picture import PT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reports.gantt import Panel

WIDTH_IN = 9.2
"""Of a page on its side."""

NARROWEST_IN = 4.0

LEFT_IN = 0.9
_RIGHT_IN = 1.34
_RIGHT_WITHOUT_MEMORY_IN = 0.6
_HEADS_IN = 0.16
"""Above the rows, for the heads of the columns on the right."""
_ARROW_IN = 0.2
"""The same, where the arrow needs room as well."""
_TITLE_IN = 0.22
_GAP_IN = 0.14
_AXIS_IN = 0.42
LEGEND_IN = 0.17
SCENARIO_IN = 0.16
_MEMORY_IN = 1.25
_MEMORY_GAP_IN = 0.12
"""Between the last panel and what is written above the memory curves."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a panel is.

    Attributes:
        bottom_in: Lower edge of its axes, from the bottom of the picture.
        height_in: Height of its axes.
        row_in: Height of a row.
        tops_in: Upper edge of each rank's row, from the top of the axes.
        lane_in: Height of the lane for a link.
        lanes_in: Upper edge of each lane by the rank above it.
    """

    bottom_in: float
    height_in: float
    row_in: float
    tops_in: tuple[float, ...]
    lane_in: float
    lanes_in: dict[int, float]

    def middle_in(self, rank: int) -> float:
        """Middle of a rank's row."""
        return self.tops_in[rank] + self.row_in / 2

    def every(self, pitch_pt: float = 8.5) -> int:
        """Of how many rows one is labelled, so that labels stand ``pitch_pt`` apart."""
        need = ceil(pitch_pt / (self.row_in * PT))
        return next((n for n in (1, 2, 4, 8, 16, 32) if n >= need), need)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The whole picture.

    Attributes:
        width_in: Its width.
        height_in: Its height.
        left_in: Width of the margin on the left.
        right_in: Width of the margin on the right.
        end_ns: End of the time axis.
        dpi: Resolution of the picture as pixels.
        places: One per panel, from the top.
        full_bytes: What bars of memory are drawn against: the limit, or else the highest need of any rank.
        memory: Place of the memory curves as ``box`` gives it; None without them.
    """

    width_in: float
    height_in: float
    left_in: float
    right_in: float
    end_ns: int
    dpi: int
    places: tuple[Place, ...]
    full_bytes: int
    memory: tuple[float, float, float, float] | None = None

    @property
    def axes_in(self) -> float:
        """Width of every panel's axes."""
        return self.width_in - self.left_in - self.right_in

    @property
    def pt_per_ns(self) -> float:
        """Points that a nanosecond takes."""
        return self.axes_in * PT / self.end_ns

    def box(self, place: Place) -> tuple[float, float, float, float]:
        """Left, bottom, width, height of a panel's axes, as shares of the picture."""
        return (
            self.left_in / self.width_in,
            place.bottom_in / self.height_in,
            self.axes_in / self.width_in,
            place.height_in / self.height_in,
        )


def lay_out(panels: Sequence[Panel], width_in: float, *, head_lines: int, legend_rows: int, memory_rows: int) -> Layout:
    """Give each panel its place below the one before, and the memory curves theirs below the last.

    Args:
        panels: From the top.
        width_in: Width of the picture.
        head_lines: Lines about the scenario above them.
        legend_rows: Lines of the legends at the bottom.
        memory_rows: Lines of the legend of the memory curves; 0 for no curves.
    """
    row_in = _row_in(sum(panel.ranks for panel in panels))
    sizes = [_rows(panel, row_in) for panel in panels]
    titles = [title_of(panel, (width_in - LEFT_IN) * PT) for panel in panels]
    heads = [_GAP_IN + _TITLE_IN + LINE_IN * len(title.lines) for title in titles]
    foot = _AXIS_IN + LEGEND_IN * legend_rows + 0.1
    memory_in = _MEMORY_IN + _MEMORY_GAP_IN + LEGEND_IN * memory_rows if memory_rows else 0
    top = foot + memory_in + sum(heads) + sum(size.height_in for size in sizes)
    height = top + (0.04 + SCENARIO_IN * head_lines if head_lines else 0)
    places = []
    for head, size in zip(heads, sizes, strict=True):
        top -= head + size.height_in
        places.append(replace(size, bottom_in=top))
    longest = max(panel.metrics.step_ns for panel in panels)
    dpi = 150 if row_in > 0.2 else 200
    right_in = _RIGHT_IN if any(panel.knows_memory for panel in panels) else _RIGHT_WITHOUT_MEMORY_IN
    limits = [panel.hbm_bytes for panel in panels if panel.hbm_bytes is not None]
    needs = [need for panel in panels for need in panel.metrics.needed_hbm_bytes if need is not None]
    full = max(limits or needs, default=0)
    layout = Layout(
        width_in=width_in, height_in=height, left_in=LEFT_IN, right_in=right_in, end_ns=ceil(longest * 1.005),
        dpi=dpi, places=tuple(places), full_bytes=full,
    )  # fmt: skip
    curves = Place(foot, _MEMORY_IN, 0.0, (), 0.0, {})
    return replace(layout, memory=layout.box(curves)) if memory_rows else layout


def _row_in(rows: int) -> float:
    """Rows shrink slower than they grow in number, down to where only the pattern is left to see."""
    return min(0.28, 1 / sqrt(rows), max(9 / rows, 0.025))


def _rows(panel: Panel, row_in: float) -> Place:
    borders = panel.topology.boundaries()
    lane_in = min(max(row_in, 0.16), 0.24, 3 / max(1, len(borders)))
    at = _HEADS_IN if panel.compared_ns is None else _ARROW_IN
    tops, lanes = [], {}
    for rank in range(panel.ranks):
        tops.append(at)
        at += row_in
        if rank in borders:
            lanes[rank] = at
            at += lane_in
    return Place(0.0, at + 0.03, row_in, tuple(tops), lane_in, lanes)
