"""Each metric once: its name, unit, which way is better, what it means, and where it stands.

JSON, the tables of a Run and of results, views of SQL, comparison and histories all follow from here; what a figure of
a step is computed by stands in ``tracetool.model.timeline``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tracetool.tables import Column


@dataclass(frozen=True, slots=True)
class Metric:
    """What a metric means.

    Attributes:
        name: Its name; the unit is its suffix.
        unit: Its unit.
        better: Which way is better.
        doc: What it is.
        of: What has it: a whole step, observed or replayed; a replayed step alone; each rank; or a part of a step.
        in_reports: Whether a report has it; else only what every step of a recording measured.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"]
    doc: str
    of: Literal["step", "replay", "rank", "part"] = "part"
    in_reports: bool = True

    @property
    def column(self) -> Column:
        """It as a column of a table."""
        return Column(self.name, "float64" if self.unit == "1" else "int64", self.doc)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("step_ns", "ns", "lower", "First forward to the end of gradient reduction and optimizer.", "step"),
        Metric("window_ns", "ns", "lower", "First forward on any rank to last backward on any rank.", "step"),
        Metric("compute_ns", "ns", "lower", "Compute of all ranks in the window.", "step", in_reports=False),
        Metric("bubble_ns", "ns", "lower", "Idle time within the window, mean over ranks.", "step"),
        Metric("bubble_ratio", "1", "lower", "Idle share of the window.", "step"),
        Metric("cross_dc_bubble_ns", "ns", "lower", "Window minus the window with free cross-DC links.", "replay"),
        Metric(
            "peak_hbm_bytes", "bytes", "lower",
            "Highest allocation of a rank within the step, as its allocator counts it; overhead_bytes is not in it.",
            "rank",
        ),
        Metric(
            "overhead_bytes", "bytes", "lower",
            "Device memory a rank needs beyond its highest allocation, as measured: highest reservation of the "
            "allocator minus highest allocation in the recorded step, plus what else the process held.",
            "rank",
        ),
    )
}  # fmt: skip


OF_STEP = tuple(name for name, metric in METRICS.items() if metric.of == "step")
"""Figures of a whole step."""
IN_REPORTS = tuple(name for name in OF_STEP if METRICS[name].in_reports)
"""Those of them that reports have."""
OF_REPLAY = (*IN_REPORTS, *(name for name, metric in METRICS.items() if metric.of == "replay"))
"""What reports have of a replayed step."""
OF_RANK = tuple(name for name, metric in METRICS.items() if metric.of == "rank")
"""Figures of each rank."""
