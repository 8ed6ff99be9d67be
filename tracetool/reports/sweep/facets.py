"""What pictures of sweeps take, and how points are sorted: facets of equal settings, and in them lines of schedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.units import format_duration, format_ranges, format_size

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tracetool.sweeps import Knee, SweepPoint


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
