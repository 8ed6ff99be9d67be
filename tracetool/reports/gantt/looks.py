"""The look of each cause of idle time, and what share of a panel each takes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.idle import CAUSE_NAMES, Cause

if TYPE_CHECKING:
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


def idle_shares(panel: Panel) -> list[str]:
    """What the bubble is made of, as shares of ranks times window, largest first; those below 0.05 % are left out."""
    total = panel.ranks * panel.metrics.window_ns
    sums: dict[Cause, int] = defaultdict(int)
    for idle in panel.idles:
        sums[idle.cause] += idle.duration_ns
    order = sorted(sums, key=lambda cause: (-sums[cause], list(LOOKS).index(cause)))
    return [f"{CAUSE_NAMES[cause]} {sums[cause] / total:.1%}" for cause in order if sums[cause] / total >= 0.0005]
