"""Sweeps as text, JSON, tables and pictures.

What pictures of sweeps take, and how points are sorted: facets of equal settings, and in them lines of schedules.

Axes of pictures of sweeps: bandwidth and latency, and where nothing fits.

Bars of what is no axis: named scenarios, maps, limits, or schedules in one scenario.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.model.pipeline import NO_OVERLAP
from tracetool.model.schedule import OBSERVED
from tracetool.reports.advice import PlanBar, bars_figure, pays_text, sentences
from tracetool.reports.picture import RED, link_ticks, log_ticks
from tracetool.sweeps.results import scenario_of
from tracetool.units import format_bandwidth, format_bits, format_count, format_duration, format_ranges, format_size
from tracetool.whatif.accuracy import change_error_ratio, format_error
from tracetool.whatif.best import nothing_fits, plan_name, unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.sweeps import Knee, Sweep, SweepPoint

GBIT_BYTES = 125_000_000

MOST_FACETS = 12
"""Combinations of settings that are drawn; further ones are counted."""

_HELD = ("scenario", "dcs", "microbatches", "hbm_bytes", "p2p", "overlap", "tensor_bandwidth_bytes_per_s")
_LONG = 24
_MOST_OFFERS = 6
"""Of more named scenarios, such as an axis of a tier's figures, there is a summary instead of a sentence on each."""


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
        if len(values) == 1 and (value := values.pop()) not in (None, (), NO_OVERLAP):
            shared.append(_setting(name, value))
        elif name == "p2p" and len(values) > 1 and not _varies(points, name):
            modes = {point.schedule: point.p2p for point in points}
            usual, _ = Counter(modes.values()).most_common(1)[0]
            others = [f"{schedule} {mode}" for schedule, mode in modes.items() if mode != usual]
            shared.append(f"{_setting(name, usual)}, but {', '.join(others)}")
    return shared


def left_undone(sweep: Sweep, facets: int) -> list[str]:
    """What a picture of so many facets does not show, in words."""
    said = []
    lost = sum(point.step_ns is None for point in sweep.points)
    if lost:
        said.append(f"{lost} of {len(sweep.points)} points could not be replayed")
    if any(point.feasible is None and point.hbm_bytes is not None and point.step_ns for point in sweep.points):
        said.append("memory is unknown: HBM limit not checked")
    if facets > MOST_FACETS:
        said.append(f"{facets - MOST_FACETS} further combinations of settings not drawn")
    return said


def _varies(points: Iterable[SweepPoint], name: str) -> bool:
    """Whether a setting differs; the p2p mode belongs to a schedule unless it differs among the points of one."""
    value_of: dict[str, Hashable] = {}
    return any(
        value_of.setdefault(point.schedule if name == "p2p" else "", getattr(point, name)) != getattr(point, name)
        for point in points
    )


def _places(dcs: Sequence[str]) -> str:
    places: dict[str, list[int]] = defaultdict(list)
    for rank, dc in enumerate(dcs):
        places[dc].append(rank)
    if len(places) > 6:
        return f"{len(dcs)} ranks in {len(places)} DCs"
    return ", ".join(f"{dc}: {format_ranges(ranks)}" for dc, ranks in places.items()) or "one DC"


_SETTINGS: dict[str, Callable[[Any], str]] = {
    "microbatches": lambda value: f"m = {value}",
    "hbm_bytes": lambda value: "no HBM limit" if value is None else f"HBM limit {format_size(value)}",
    "p2p": lambda value: f"{value} transfers",
    "overlap": lambda value: "layers as they are" if value == NO_OVERLAP else f"layers by {value}",
    "tensor_bandwidth_bytes_per_s": lambda value: (
        "links inside layers as they are" if value is None else f"{format_bandwidth(value)} inside layers"
    ),
    "dcs": _places,
}


def _setting(name: str, value: object) -> str:
    if name in _SETTINGS:
        return _SETTINGS[name](value)
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

KNEE_TEXT = "knee: from here on twice the bandwidth gains less than 1 %"

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
        axes.xaxis.set_major_locator(FixedLocator(link_ticks(xs) if over == "bandwidth" else log_ticks(xs)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}" if x < 1000 else f"{x:.0f}"))
    return scale


def _gbit(point: SweepPoint) -> float:
    return (point.bandwidth_bytes_per_s or 0) / GBIT_BYTES


def _ms(point: SweepPoint) -> float:
    return (point.latency_ns or 0) / 1e6


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


def bars_of(sweep: Sweep) -> list[PlanBar]:
    """What to run in each scenario; of one scenario alone every schedule, the shortest first."""
    if len(sweep.best) != 1:
        facets = facets_of([each.among for each in sweep.best])
        titles = {scenario_of(p): "  ·  ".join(_figures(p, facet)) for facet in facets for p in facet.points}
        return [
            PlanBar(each.among.scenario or titles[scenario_of(each.among)], each.point, each.now)
            for each in sweep.best
            if each.point is not None
        ]
    every = [point for point in sweep.points if point.step_ns is not None]
    return [PlanBar(plan_name(point), point, None) for point in sorted(every, key=lambda p: p.step_ns or 0)]


def _figures(point: SweepPoint, among: Facet) -> list[str]:
    """What tells a scenario from others: the settings in its title, and the figures of its links."""
    said = [among.title] if among.title else []
    if len(bandwidths_of(among.points)) > 1:
        said.append(format_bits(point.bandwidth_bytes_per_s or 0))
    return [*said, format_duration(point.latency_ns or 0)] if len(latencies_of(among.points)) > 1 else said


def sweep_bars_figure(sweep: Sweep) -> Figure:
    """A bar per scenario, as long as the step of what to run there, with its error; of one scenario a bar per schedule.

    Args:
        sweep: What was swept.

    Raises:
        ScenarioError: If nothing could be replayed.
    """
    several = len(sweep.best) != 1
    heads = common_settings(sweep.points)
    return bars_figure(bars_of(sweep), heads, None if sweep.today is None else sweep.today.step_ns, named=several)


def trouble_lines(swept: Sweep) -> list[str]:
    """What could not be replayed or does not fit, and why: each once."""
    lines = []
    refused = Counter((p.schedule, p.reason) for p in swept.points if p.step_ns is None)
    for (schedule, reason), count in refused.items():
        lines.append(f"  {schedule}: {format_count(count, 'point')} not replayed: {reason}")
    over: dict[str, list[SweepPoint]] = {}
    for point in swept.points:
        if point.step_ns is not None and point.feasible is False:
            over.setdefault(point.schedule, []).append(point)
    for schedule, points in over.items():
        needs = [point.needed_bytes for point in points if point.needed_bytes is not None]
        least = f": the least needs {format_size(min(needs))}" if needs else ""
        lines.append(f"  {schedule}: {format_count(len(points), 'point')} over the HBM limit{least}")
    return lines


def trouble_counted(swept: Sweep) -> list[str]:
    """The same in one line."""
    lost = sum(point.step_ns is None or point.feasible is False for point in swept.points)
    return [f"  {format_count(lost, 'point')} not replayed or over the HBM limit: -v says why"] if lost else []


def map_of(dcs: Sequence[str]) -> str:
    """A map of DCs as ``--dc`` takes it: ``0-1,2-3``."""
    ranks: dict[str, list[int]] = {}
    for rank, dc in enumerate(dcs):
        ranks.setdefault(dc, []).append(rank)
    return ",".join(format_ranges(of_dc).replace(", ", "+") for of_dc in ranks.values())


def best_sentences(swept: Sweep, most: int | None = None) -> list[str]:
    """What to run in each of a few named scenarios; else what is best in how many, and from where more stops paying.

    Args:
        swept: The sweep.
        most: As ``sentences`` takes it.
    """
    decision = swept.decision
    if decision is not None and len(decision.offers) <= _MOST_OFFERS:
        return sentences(decision, most)
    count = Counter(each.point.schedule for each in swept.best if each.point is not None)
    if not count:
        return [f"In every scenario {nothing_fits(unchecked(swept.points))}."]
    often = ", ".join(_over(swept, name) for name, _ in count.most_common())
    best = f"Best of {format_count(len(swept.best), 'scenario')}: {often}"
    knees = [knee for knee in swept.knees if knee.bandwidth_bytes_per_s and count[knee.schedule]]
    if knees:
        far = max(knees, key=lambda knee: (count[knee.schedule], knee.at_latency_ns or 0))
        return [f"{best}; for {pays_text(far.schedule, far.bandwidth_bytes_per_s or 0, far.at_latency_ns or 0)}."]
    return [f"{best}.", *([] if decision is None else _first_as_good(swept))]


def _first_as_good(swept: Sweep) -> list[str]:
    """The first of named scenarios than which none is faster by more than the error of the difference."""
    named = [(each.among.scenario or "", each.point) for each in swept.best if each.point is not None]
    fastest = min((point for _, point in named), key=lambda point: point.step_ns or 0)
    for name, point in named:
        change = (fastest.step_ns or 0) / (point.step_ns or 1) - 1
        error = change_error_ratio(point.known_error, fastest.known_error, change)
        if error is None:
            break
        if -change <= error:
            took = f"{format_duration(point.step_ns or 0)} with {point.schedule}"
            sure = f"the error of the difference (±{format_error(error)})"
            return [f"{name} is the first that none beats by more than {sure}: {took}."]
    return []


def _over(swept: Sweep, name: str) -> str:
    """In how many scenarios a schedule is best, its steps there, and what they differ by from the recorded order's."""
    there = [each for each in swept.best if each.point is not None and each.point.schedule == name]
    steps = [each.point.step_ns or 0 for each in there if each.point is not None]
    least, most = (format_duration(of(steps)) for of in (min, max))
    sentence = f"{name} in {len(there):,} ({least}{'' if least == most else f' to {most}'} a step"
    now = next((each.now.schedule for each in there if each.now is not None), None)
    changes = [each.change_ratio for each in there if each.change_ratio is not None]
    if now is None or now == name or not changes:
        return f"{sentence})"
    low, high = (f"{of(changes):+.1%}" for of in (max, min))
    base = "the recorded order" if now == OBSERVED else now
    return f"{sentence}, {low}{'' if low == high else f' to {high}'} against {base})"
