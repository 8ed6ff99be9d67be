"""Sweeps as text, JSON, tables and pictures.

What pictures of sweeps take, and how points are sorted: facets of equal settings, and in them lines of schedules.

Axes of pictures of sweeps: bandwidth and latency, step and bubble ratio, and where nothing fits.

Tables of a sweep within 80 columns, whatever they have to say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reports.answer.text import aligned, terminal_width
from tracetool.reports.picture import RED
from tracetool.units import format_count, format_duration, format_ranges, format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from matplotlib.axes import Axes

    from tracetool.sweeps import Knee, Sweep, SweepPoint

GBIT_BYTES = 125_000_000

MOST_FACETS = 12
"""Combinations of settings that are drawn; further ones are counted."""

_HELD = ("scenario", "dcs", "microbatches", "hbm_bytes", "p2p")
_LONG = 24


@dataclass(frozen=True, slots=True)
class Facet:
    """Points that differ in schedule, warm-up and link only.

    Attributes:
        title: In what the facet differs from the others; empty if there is one.
        points: Its points.
    """

    title: str
    points: tuple[SweepPoint, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of a facet of one schedule, and one warm-up where several were asked for.

    Attributes:
        schedule: Name of the schedule.
        label: The same for people.
        extra_forwards: The warm-up, where several were asked for.
        points: Its points.
    """

    schedule: str
    label: str
    extra_forwards: tuple[int, ...] | None
    points: tuple[SweepPoint, ...]


def bandwidths_of(points: Iterable[SweepPoint]) -> list[int]:
    """Swept bandwidths, lowest first."""
    return sorted({p.bandwidth_bytes_per_s for p in points if p.bandwidth_bytes_per_s is not None})


def latencies_of(points: Iterable[SweepPoint]) -> list[int]:
    """Swept latencies, lowest first."""
    return sorted({p.latency_ns for p in points if p.latency_ns is not None})


def facets_of(points: Sequence[SweepPoint]) -> list[Facet]:
    """Points by the settings in which they differ, in the order of the sweep."""
    varied = [name for name in _HELD if _varies(points, name)]
    groups: dict[Hashable, list[SweepPoint]] = defaultdict(list)
    for point in points:
        groups[tuple(getattr(point, name) for name in varied)].append(point)
    return [
        Facet("  ·  ".join(_setting(name, getattr(group[0], name)) for name in varied), tuple(group))
        for group in groups.values()
    ]


def common_settings(points: Sequence[SweepPoint]) -> list[str]:
    """What all points share, in words."""
    shared = []
    for name in _HELD:
        values = {getattr(point, name) for point in points}
        if len(values) == 1 and (value := values.pop()) not in (None, ()):
            shared.append(_setting(name, value))
    return shared


def _varies(points: Iterable[SweepPoint], name: str) -> bool:
    """Whether a setting differs; the p2p mode belongs to a schedule unless it differs among the points of one."""
    seen: dict[str, Hashable] = {}
    return any(
        seen.setdefault(point.schedule if name == "p2p" else "", getattr(point, name)) != getattr(point, name)
        for point in points
    )


def _setting(name: str, value: object) -> str:
    if name == "microbatches":
        return f"m = {value}"
    if name == "hbm_bytes":
        return f"HBM limit {format_size(value)}" if isinstance(value, int) else "no HBM limit"
    if name == "p2p":
        return f"{value} p2p"
    if name == "dcs" and isinstance(value, tuple):
        places: dict[str, list[int]] = defaultdict(list)
        for rank, dc in enumerate(value):
            places[dc].append(rank)
        if len(places) > 6:
            return f"{len(value)} ranks in {len(places)} DCs"
        return ", ".join(f"{dc}: {format_ranges(ranks)}" for dc, ranks in places.items()) or "one DC"
    return str(value if value is not None else "the command line's own")


def series_of(facet: Facet) -> list[Series]:
    """The lines of a facet, in the order of the sweep."""
    links = Counter((p.schedule, p.bandwidth_bytes_per_s, p.latency_ns) for p in facet.points)
    several = {schedule for (schedule, _, _), count in links.items() if count > 1}
    groups: dict[tuple[str, tuple[int, ...] | None], list[SweepPoint]] = defaultdict(list)
    for point in facet.points:
        groups[point.schedule, point.extra_forwards if point.schedule in several else None].append(point)
    return [
        Series(schedule, _label(schedule, extra), extra, tuple(points)) for (schedule, extra), points in groups.items()
    ]


def _label(schedule: str, extra: tuple[int, ...] | None) -> str:
    name = schedule if len(schedule) <= _LONG else "…" + schedule[-_LONG:]
    if extra is None:
        return name
    if not any(extra):
        return f"{name} +0"
    return f"{name} +{','.join(map(str, extra))}" if len(extra) <= 8 else f"{name} up to +{max(extra)}"


def knee_of(series: Series, knees: Iterable[Knee], *, latency_ns: int | None) -> Knee | None:
    """The knee found for a line: at a latency, or at any, other settings being the line's."""
    for knee in knees:
        point = series.points[0]
        held = ((getattr(knee, name), getattr(point, name)) for name in _HELD)
        if (
            knee.schedule == series.schedule
            and all(mine in (None, ()) or mine == its for mine, its in held)
            and (latency_ns is None or knee.at_latency_ns in (None, latency_ns))
            and (series.extra_forwards is None or knee.extra_forwards in (None, series.extra_forwards))
        ):
            return knee
    return None


def format_gbit(bandwidth_bytes_per_s: int) -> str:
    """A bandwidth in Gbit/s, to three digits and without the unit."""
    return f"{bandwidth_bytes_per_s / GBIT_BYTES:.3g}"


def format_short(value_ns: int, *, even: bool = False) -> str:
    """A duration to three digits, as ``206 ms``; evenly so, as ``1.30 s``, in columns of them."""
    number, unit = format_duration(value_ns).split()
    value = float(number)
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:{'#' if even else ''}.3g} {unit}"


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


_WIDEST = 80


def table_width() -> int:
    """Columns of the terminal, of wide ones no more than texts have."""
    return min(_WIDEST, terminal_width())


Cells = dict[str, str]
"""Cells of a row by the head of their column; in a head of two lines the second follows a line break."""


def table(rows: Sequence[Cells], expendable: Sequence[str]) -> list[str]:
    """Columns without any cell are left out, and expendable ones, first to last, as long as the rest is too wide.

    What is too wide even so gets single blanks between columns, then its first cells in lines of their own.
    """
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    while True:
        top = [head.partition("\n") for head in heads]
        lines = [[part[0] for part in top], [part[2] for part in top], *([row[head] for head in heads] for row in rows)]
        lines = [line for number, line in enumerate(lines) if number != 1 or any(line)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        drop = next((head for head in expendable if head in heads), None)
        if sum(widths) + 2 * len(widths) <= table_width():
            return [aligned(line, widths) for line in lines]
        if drop is None:
            return _squeezed(lines, widths)
        heads.remove(drop)


def _squeezed(lines: Sequence[Sequence[str]], widths: list[int]) -> list[str]:
    def narrow(line: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  " + " ".join([line[0].ljust(widths[0]), *cells]).rstrip()

    if sum(widths) + len(widths) + 1 <= table_width():
        return [narrow(line) for line in lines]
    widths = [max(2, table_width() - sum(widths[1:]) - len(widths) - 1), *widths[1:]]
    parted = [[f"  {line[0]}", narrow(["", *line[1:]])] for line in lines]
    return [text.rstrip() for pair in parted for text in pair if text.strip()]


def trouble_lines(found: Sweep) -> list[str]:
    """What could not be replayed or does not fit, and why: each once."""
    lines = []
    refused = Counter((p.schedule, p.reason) for p in found.points if p.step_ns is None)
    for (schedule, reason), count in refused.items():
        lines.append(f"  {schedule}: {format_count(count, 'point')} not replayed: {reason}")
    over: dict[str, list[SweepPoint]] = {}
    for point in found.points:
        if point.step_ns is not None and point.feasible is False:
            over.setdefault(point.schedule, []).append(point)
    for schedule, points in over.items():
        needs = [point.needed_bytes for point in points if point.needed_bytes is not None]
        least = f": the least needs {format_size(min(needs))}" if needs else ""
        lines.append(f"  {schedule}: {format_count(len(points), 'point')} over the HBM limit{least}")
    return lines


def map_of(dcs: Sequence[str]) -> str:
    """A map of DCs as ``--dc`` takes it: ``0-1,2-3``."""
    ranks: dict[str, list[int]] = {}
    for rank, dc in enumerate(dcs):
        ranks.setdefault(dc, []).append(rank)
    return ",".join(format_ranges(of_dc).replace(", ", "+") for of_dc in ranks.values())
