"""Idle time in the schedule picture: one tint and one hatch per cause, so that either is enough to tell them apart."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.idle import CAUSE_NAMES, Cause
from tracetool.reports.gantt.cells import draw_boxes, row_box

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from tracetool.model.idle import Idle
    from tracetool.reports.gantt.layout import Place
    from tracetool.reports.gantt.panel import Panel


class Look(NamedTuple):
    """How idle time of one cause looks."""

    tint: str
    line: str
    hatch: str


LOOKS = {
    Cause.FILL: Look("#FFFFFF", "#BDBDBD", "/////"),
    Cause.DRAIN: Look("#CFCFCF", "#8F8F8F", "\\\\\\\\\\"),
    Cause.DEPENDENCY: Look("#E0D8C0", "#8A7A4E", "----"),
    Cause.CROSS_DC_LATENCY: Look("#EAD9F2", "#A679B8", "--//"),
    Cause.CROSS_DC_BANDWIDTH: Look("#D99CCB", "#8A3D78", "xxxxx"),
    Cause.CHANNEL: Look("#B4D3F7", "#3F74B5", "||||"),
    Cause.MEMORY: Look("#F5AD98", "#B5482A", "xx++"),
    Cause.PROFILER_OVERHEAD: Look("#B8B8F8", "#5454A8", "\\\\--"),
    Cause.HOST: Look("#EEF0B0", "#8F9228", "++++"),
}
"""Tints apart for people with colour-blindness too, paler than what runs. Hatches of straight lines alone: dots and
circles take 300 kB each in SVG."""

PLAIN = Look("#FFFFFF", "#CFCFCF", "///")
"""Of idle time whose cause is not known."""


def draw_idle(axes: Axes, panel: Panel, place: Place) -> None:
    """The rows' idle time within the window: by cause, or plain where causes are not known."""
    rows = range(panel.ranks)
    if not panel.idles:
        _hatched(axes, PLAIN, [row_box(place, rank, 0, panel.metrics.window_ns) for rank in rows])
        return
    found: dict[Cause, list[Idle]] = defaultdict(list)
    for idle in panel.idles:
        found[idle.cause].append(idle)
    for cause, look in LOOKS.items():
        if cause in found:
            spans = _joined(found[cause])
            _hatched(axes, look, [row_box(place, rank, start, end) for rank, start, end in spans])


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


def idle_shares(panel: Panel) -> list[str]:
    """What the bubble is made of, as shares of ranks times window, largest first; those below 0.05 % are left out."""
    total = panel.ranks * panel.metrics.window_ns
    sums: dict[Cause, int] = defaultdict(int)
    for idle in panel.idles:
        sums[idle.cause] += idle.duration_ns
    order = sorted(sums, key=lambda cause: (-sums[cause], list(LOOKS).index(cause)))
    return [f"{CAUSE_NAMES[cause]} {sums[cause] / total:.1%}" for cause in order if sums[cause] / total >= 0.0005]


def idle_marks(panels: Sequence[Panel]) -> list[Artist]:
    """Of the legend: the causes that occur, and plain idle time where a panel has none."""
    from matplotlib.patches import Patch

    causes = {idle.cause for panel in panels for idle in panel.idles}
    looks = [(f"idle: {CAUSE_NAMES[cause]}", look) for cause, look in LOOKS.items() if cause in causes]
    if any(not panel.idles for panel in panels):
        looks.append(("idle (bubble)", PLAIN))
    return [
        Patch(facecolor=look.tint, edgecolor=look.line, hatch=look.hatch, linewidth=0.4, label=name)
        for name, look in looks
    ]
