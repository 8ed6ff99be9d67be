"""What share of a panel each cause of idle time takes, and the look of idle time without a cause."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.causes.cause import Cause, Look

if TYPE_CHECKING:
    from tracetool.reports.gantt.panel import Panel


PLAIN = Look("#FFFFFF", "#CFCFCF", "///", 135)
"""Of idle time whose cause is not known."""


def idle_shares(panel: Panel) -> list[str]:
    """What the bubble is made of, as shares of ranks times window, largest first; those below 0.05 % are left out."""
    total = panel.ranks * panel.metrics.window_ns
    sums: dict[Cause, int] = defaultdict(int)
    for idle in panel.idles:
        sums[idle.cause] += idle.duration_ns
    order = sorted(sums, key=lambda cause: (-sums[cause], list(Cause).index(cause)))
    return [f"{cause.words.label} {sums[cause] / total:.1%}" for cause in order if sums[cause] / total >= 0.0005]
