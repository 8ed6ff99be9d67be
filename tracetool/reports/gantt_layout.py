"""Where things go in the schedule picture. Within a panel the vertical unit is the inch.

The width is always that of a page, and so are the texts: only rows and cells shrink as they become more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING

from tracetool.model.topology import Topology
from tracetool.reports.picture import PT, text_width_pt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.metrics import Metrics
    from tracetool.model.idle import Idle
    from tracetool.model.timeline import Timeline

MS = 1_000_000
WIDTH_IN = 10.5
LEFT_IN = 0.9
BAR = 0.86
"""Share of a row that its cells fill."""

NAME_PT, DETAILS_PT = 9.5, 8.5
"""Sizes of a panel's title."""

_RIGHT_IN = 1.34
_RIGHT_WITHOUT_MEMORY_IN = 0.6
_HEADS_IN = 0.16
"""Above the rows, for the heads of the columns on the right."""
_ARROW_IN = 0.2
"""The same, where the arrow needs room as well."""
_TITLE_IN = 0.22
LINE_IN = 0.17
"""Of each further line above a panel."""
_GAP_IN = 0.14
_AXIS_IN = 0.42
LEGEND_IN = 0.17
SCENARIO_IN = 0.16
_MEMORY_IN = 1.25
_MEMORY_GAP_IN = 0.12
"""Between the last panel and what is written above the memory curves."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One timeline of the picture, with what is said about it.

    Attributes:
        name: Its name, set in bold.
        details: The rest of its title.
        timeline: What to draw.
        metrics: Metrics of the timeline.
        microbatches: Microbatches per step.
        topology: DCs of its rows; of the observed panel none, as the links are the scenario's.
        complaint: What is wrong with its memory.
        fits: Whether it fits the memory limit as far as is known.
        hbm_bytes: Memory limit per rank.
        compared_ns: Step time of the baseline, if the difference is to be drawn here.
        error_ratio: Known error of the step time; a smaller difference says so.
        idles: Its idle time by cause; empty where causes are not known.
    """

    name: str
    details: str
    timeline: Timeline
    metrics: Metrics
    microbatches: int
    topology: Topology = field(default_factory=Topology)
    complaint: str | None = None
    fits: bool = True
    hbm_bytes: int | None = None
    compared_ns: int | None = None
    error_ratio: float | None = None
    idles: Sequence[Idle] = ()

    @property
    def details_below(self) -> bool:
        """Whether the title is too long for one line."""
        width = text_width_pt(self.name, NAME_PT, bold=True) + text_width_pt(self.details, DETAILS_PT) + 8
        return width > (WIDTH_IN - LEFT_IN) * PT

    @property
    def lines(self) -> int:
        """Lines of text above its rows, below its title."""
        return self.details_below + (self.complaint is not None) + bool(self.idles)

    @property
    def ranks(self) -> int:
        """Number of rows."""
        return len(self.timeline.global_ranks)

    @property
    def knows_memory(self) -> bool:
        """Whether a peak is known of any rank."""
        return any(peak is not None for peak in self.metrics.peak_hbm_bytes)


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


@dataclass(frozen=True, slots=True)
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


def lay_out(panels: Sequence[Panel], *, head_lines: int, legend_rows: int, memory_rows: int) -> Layout:
    """Give each panel its place below the one before, and the memory curves theirs below the last.

    Args:
        panels: From the top.
        head_lines: Lines about the scenario above them.
        legend_rows: Lines of the legends at the bottom.
        memory_rows: Lines of the legend of the memory curves; 0 for no curves.
    """
    row_in = _row_in(sum(panel.ranks for panel in panels))
    sizes = [_rows(panel, row_in) for panel in panels]
    heads = [_GAP_IN + _TITLE_IN + LINE_IN * panel.lines for panel in panels]
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
    layout = Layout(WIDTH_IN, height, LEFT_IN, right_in, ceil(longest * 1.005), dpi, tuple(places), full)
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
