"""Axes of pictures of sweeps: bandwidth and latency, step and bubble ratio, and where nothing fits."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reports.picture import RED
from tracetool.reports.sweep.facets import GBIT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from tracetool.reports.sweep.facets import Series
    from tracetool.sweeps import SweepPoint

LINK_LABELS = {"bandwidth": "cross-DC bandwidth ({unit})", "latency": "one-way cross-DC latency ({unit})"}

UNFIT_TINT = "#F7E3E6"


class Scale(NamedTuple):
    """Where points are on an axis, and in what unit."""

    of: Callable[[SweepPoint], float]
    unit: str


def link_axis(axes: Axes, over: str, points: Sequence[SweepPoint]) -> Scale:
    """The x axis: bandwidth on a logarithmic scale, latency on one where it spans more than a factor of ten."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    scale = Scale(_gbit, "Gbit/s") if over == "bandwidth" else Scale(_ms, "ms")
    xs = sorted({scale.of(point) for point in points})
    if xs[0] > 0 and (over == "bandwidth" or xs[-1] > 10 * xs[0]):
        axes.set_xscale("log")
        axes.set_xlim(xs[0] / (xs[-1] / xs[0]) ** 0.03, xs[-1] * (xs[-1] / xs[0]) ** 0.03)
        axes.xaxis.set_major_locator(FixedLocator(log_ticks(xs)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}" if x < 1000 else f"{x:.0f}"))
    return scale


def _gbit(point: SweepPoint) -> float:
    return (point.bandwidth_bytes_per_s or 0) / GBIT_BYTES


def _ms(point: SweepPoint) -> float:
    return (point.latency_ns or 0) / 1e6


def log_ticks(xs: Sequence[float]) -> list[float]:
    """At most nine round numbers within a range, or a few of the values where it holds too few."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**e for e in range(-9, 10) for s in steps if xs[0] * 0.999 <= s * 10.0**e <= xs[-1] * 1.001]
        if len(ticks) <= 9:
            break
    return ticks if len(ticks) > 2 else list(xs[:: max(1, len(xs) // 5)])


def label_value_axis(axes: Axes, figured: str, values: Sequence[float]) -> float:
    """The y axis, logarithmic where values span more than a factor of eight.

    Returns:
        By what values are divided.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    axes.tick_params(labelsize=8, width=0.6, length=3)
    axes.grid(visible=True, color="#D0D0D0", linewidth=0.5, linestyle=":")
    axes.set_axisbelow(True)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
    low, high = min(values), max(values)
    if figured == "bubble_ratio":
        axes.set_ylabel("bubble_ratio", fontsize=8.5)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(0, min(1.0, high * 1.1) or 1.0)
        return 1.0
    factor, unit = (1e9, "s") if low >= 1e9 else (1e6, "ms")
    axes.set_ylabel(f"step ({unit})", fontsize=8.5)
    if high > 8 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(log_ticks([low / factor, high / factor])))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.set_ylim(low / factor / 1.15, high / factor * 1.15)
    else:
        axes.set_ylim(0, high / factor * 1.08)
    return factor


def shade_unfit(axes: Axes, series: Sequence[Series], x_of: Callable[[SweepPoint], float]) -> None:
    """Where every schedule lacks memory: hatched, half way to the next points where one does not."""
    fits: dict[float, bool] = {}
    for point in (point for line in series for point in line.points):
        fits[x_of(point)] = fits.get(x_of(point), False) or point.feasible is not False
    xs = sorted(fits)
    is_log = axes.get_xscale() == "log"
    low, high = axes.get_xlim()
    edges = [low, *((a * b) ** 0.5 if is_log else (a + b) / 2 for a, b in pairwise(xs)), high]
    for place, x in enumerate(xs):
        if not fits[x]:
            span = edges[place], edges[place + 1]
            axes.axvspan(*span, facecolor=UNFIT_TINT, edgecolor=RED, hatch="///", linewidth=0, alpha=0.5, zorder=0.5)
