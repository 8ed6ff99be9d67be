"""What a job and measured runs take, as bars of their parts beside what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.picture import RED, SERIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tracetool.estimates.asked import Estimated


def estimate_figure(estimated: Estimated) -> Figure:
    """A bar for the job and each measured run; a mark where a run was measured."""
    from matplotlib.figure import Figure

    bars = (estimated.job, *estimated.measured)
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(bars)), layout="constrained")
    axes = figure.subplots()
    parts = {
        "compute": [one.compute_ns for one in bars],
        "pipeline idle": [one.window_ns - one.compute_ns for one in bars],
        "gradient reduction, optimizer": [one.step_ns - one.window_ns for one in bars],
    }
    left = [0] * len(bars)
    for (name, spent), colour in zip(parts.items(), SERIES, strict=False):
        axes.barh(
            range(len(bars)), [ns / 1e9 for ns in spent], 0.6, [ns / 1e9 for ns in left], color=colour, label=name
        )
        left = [so_far + ns for so_far, ns in zip(left, spent, strict=True)]
    measured = [(number, one.measured_s) for number, one in enumerate(bars) if one.measured_s is not None]
    if measured:
        places, seconds = zip(*measured, strict=True)
        axes.scatter(seconds, places, marker="|", s=200, color=RED, label="measured", zorder=3)
    axes.set_yticks(range(len(bars)), [one.name for one in bars])
    axes.invert_yaxis()
    axes.set_xlabel("step in s")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
