"""Idle time in the schedule picture: one tint and one hatch per cause, so that either is enough to tell them apart."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.causes.cause import Cause
from tracetool.reports.gantt.cells import draw_boxes, row_box
from tracetool.reports.gantt.looks import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from tracetool.causes.cause import Look
    from tracetool.causes.idle import Idle
    from tracetool.reports.gantt.layout import Place
    from tracetool.reports.gantt.panel import Panel


def draw_idle(axes: Axes, panel: Panel, place: Place) -> None:
    """The rows' idle time within the window: by cause, or plain where causes are not known."""
    rows = range(panel.ranks)
    if not panel.idles:
        _hatched(axes, PLAIN, [row_box(place, rank, 0, panel.metrics.window_ns) for rank in rows])
        return
    found: dict[Cause, list[Idle]] = defaultdict(list)
    for idle in panel.idles:
        found[idle.cause].append(idle)
    for cause in Cause:
        if cause in found:
            spans = _joined(found[cause])
            _hatched(axes, cause.look, [row_box(place, rank, start, end) for rank, start, end in spans])


def _hatched(axes: Axes, look: Look, boxes: Sequence[tuple[float, float, float, float]]) -> None:
    drawn = draw_boxes(axes, boxes, zorder=0.5, facecolor=look.tint, edgecolor=look.line)
    drawn.set_hatch(look.hatch)


def _joined(idles: Iterable[Idle]) -> list[tuple[int, int, int]]:
    """Rank, start and end of intervals, those that touch as one."""
    spans: list[tuple[int, int, int]] = []
    for idle in sorted(idles, key=lambda i: (i.rank, i.start_ns)):
        if spans and spans[-1][0] == idle.rank and spans[-1][2] == idle.start_ns:
            spans[-1] = (idle.rank, spans[-1][1], idle.end_ns)
        else:
            spans.append((idle.rank, idle.start_ns, idle.end_ns))
    return spans


def idle_marks(panels: Sequence[Panel]) -> list[Artist]:
    """Of the legend: the causes that occur, and plain idle time where a panel has none."""
    from matplotlib.patches import Patch

    causes = {idle.cause for panel in panels for idle in panel.idles}
    looks = [(f"idle: {cause.words.label}", cause.look) for cause in Cause if cause in causes]
    if any(not panel.idles for panel in panels):
        looks.append(("idle (bubble)", PLAIN))
    return [
        Patch(facecolor=look.tint, edgecolor=look.line, hatch=look.hatch, linewidth=0.4, label=name)
        for name, look in looks
    ]
