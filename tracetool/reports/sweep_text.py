"""What ``tracetool sweep`` found, in tables for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reports.text import aligned, wrapped
from tracetool.units import format_count, format_duration, format_ranges, format_size

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tracetool.reports import RunFacts
    from tracetool.sweep import Knee, Price, Sweep, SweepPoint

_ROWS = 16
"""So many rows of a table are printed; files have all."""

_ALL_RANKS = 8
"""Up to so many ranks, extra forwards are listed rank by rank."""


class _Axis(NamedTuple):
    """A figure that points differ in."""

    name: str
    head: str


_AXES = (
    _Axis("scenario", "scenario"),
    _Axis("dcs", "DCs"),
    _Axis("microbatches", "m"),
    _Axis("hbm_bytes", "HBM"),
    _Axis("latency_ns", "latency"),
    _Axis("bandwidth_bytes_per_s", "Gbit/s"),
)


def render_text(found: Sweep, facts: RunFacts, price: Price | None) -> bytes:
    """Tables of 80 columns: the best schedule per scenario, knees, the Pareto front; then what did not fit and why."""
    lines = [facts.name, *_summary(found), "", *_best(found), *_knees(found)]
    if price is not None:
        lines += _pareto(found, price)
    trouble = [*_trouble(found), *(f"note: {note}" for note in found.notes)]
    return ("\n".join([*lines, *wrapped(trouble)]).rstrip() + "\n").encode()


def _summary(found: Sweep) -> list[str]:
    points = found.points
    count = Counter(_state(point) for point in points)
    states = [f"{number:,} {state}" for state, number in count.items()]
    lines = [f"{format_count(len(points), 'point')}: {', '.join(states)}"]
    for axis in _AXES:
        values = list(dict.fromkeys(getattr(point, axis.name) for point in points))
        told = [value for value in values if value not in (None, ())]
        if told:
            ends = [_value(axis.name, value) for value in (told[0], told[-1])]
            several = f" to {ends[1]} ({len(told)})" if len(told) > 1 and axis.name != "dcs" else ""
            lines.append(f"{_WORDS[axis.name]} {ends[0]}{several}" + (_many_maps(told) if axis.name == "dcs" else ""))
    return [f"  {line}" for line in wrapped(lines)]


_WORDS = {
    "scenario": "scenarios",
    "dcs": "DCs by pipeline rank",
    "microbatches": "microbatches",
    "hbm_bytes": "HBM limit",
    "latency_ns": "latency, one way",
    "bandwidth_bytes_per_s": "bandwidth in Gbit/s",
}


def _many_maps(maps: Sequence[tuple[str, ...]]) -> str:
    return f" and {len(maps) - 1} more" if len(maps) > 1 else ""


def _state(point: SweepPoint) -> str:
    if point.step_ns is None:
        return "not replayed"
    return {True: "fit" if point.hbm_bytes is not None else "replayed", False: "do not fit", None: "unknown memory"}[
        point.feasible
    ]


def _value(name: str, value: object) -> str:
    if value is None or value == ():
        return "-"
    if name == "dcs" and isinstance(value, tuple):
        return map_of(value)
    if isinstance(value, int):
        if name == "latency_ns":
            return format_duration(value)
        if name == "bandwidth_bytes_per_s":
            return f"{value * 8 / 1e9:.4g}"
        if name == "hbm_bytes":
            return format_size(value)
    return str(value)


def map_of(dcs: Sequence[str]) -> str:
    """A map of DCs as ``--dc`` takes it: ``0-1,2-3``."""
    ranks: dict[str, list[int]] = {}
    for rank, dc in enumerate(dcs):
        ranks.setdefault(dc, []).append(rank)
    return ",".join(format_ranges(of_dc).replace(", ", "+") for of_dc in ranks.values())


def _varying(rows: Sequence[object], axes: Iterable[_Axis]) -> list[_Axis]:
    return [axis for axis in axes if len({getattr(row, axis.name) for row in rows}) > 1]


def _key(row: object, axes: Iterable[_Axis]) -> tuple[Hashable, ...]:
    return tuple(getattr(row, axis.name) for axis in axes)


def _shown(keys: Sequence[tuple[Hashable, ...]], most: int) -> set[tuple[Hashable, ...]]:
    """Some of the keys: on each axis values spread from end to end, so that not too many rows are left."""
    values = [list(dict.fromkeys(key[place] for key in keys)) for place in range(len(keys[0]))]
    while True:
        kept = [set(of_axis) for of_axis in values]
        left = {key for key in keys if all(part in kept[place] for place, part in enumerate(key))}
        longest = max(range(len(values)), key=lambda place: len(values[place]), default=None)
        if len(left) <= most or longest is None or len(values[longest]) <= 1:
            return left
        fewer = max(1, len(values[longest]) - 1)
        values[longest] = _spread(values[longest], fewer)


def _spread(values: list[Hashable], count: int) -> list[Hashable]:
    if count == 1:
        return values[:1]
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns without any cell are left out."""
    columns = [i for i in range(len(rows[0])) if i == 0 or any(row[i] for row in rows[1:])]
    widths = [max(len(row[i]) for row in rows) for i in columns]
    return [aligned([row[i] for i in columns], widths) for row in rows]


def _best(found: Sweep) -> list[str]:
    """Few points each in its row, of many the best of each scenario."""
    best = found.best_first()
    if not best:
        return ["  No point fits.", ""]
    axes = _varying(found.points, _AXES)
    if len(found.points) <= _ROWS:
        head = ("best first", *(axis.head for axis in axes), *_HEAD)
        rows = [(_name(p), *(_value(a.name, getattr(p, a.name)) for a in axes), *_cells(p, found)) for p in best]
        return [*_table([head, *rows]), ""]
    winners = {_key(point, axes): point for point in reversed(best)}
    keys = [key for key in dict.fromkeys(_key(point, axes) for point in found.points) if key in winners]
    shown = _shown(keys, _ROWS)
    head = ("best schedule", *(axis.head for axis in axes), *_HEAD)
    rows = [
        (
            _name(winners[key]),
            *(_value(a.name, part) for a, part in zip(axes, key, strict=True)),
            *_cells(winners[key], found),
        )
        for key in keys
        if key in shown
    ]
    more = len(keys) - len(rows)
    after = [f"  ... {format_count(more, 'scenario')} more: -o sweep.parquet has all", ""] if more else [""]
    return [*_table([head, *rows]), *after]


_HEAD = ("step", "per m", "bubble", "needs", "fits")


def _cells(point: SweepPoint, found: Sweep) -> tuple[str, ...]:
    counts = {p.microbatches for p in found.points}
    each = format_duration(point.step_ns_per_microbatch or 0) if len(counts) > 1 else ""
    fits = ""
    if point.hbm_bytes is not None:
        fits = {True: "maybe" if point.reason and "within" in point.reason else "yes", None: "unknown"}.get(
            point.feasible, "NO"
        )
    return (
        format_duration(point.step_ns or 0),
        each,
        f"{point.bubble_ratio or 0:.1%}",
        "" if point.needed_bytes is None else format_size(point.needed_bytes),
        fits,
    )


def _name(row: SweepPoint | Knee) -> str:
    extra = row.extra_forwards
    return row.schedule + ("" if extra is None else f" +{_forwards(extra)}")


def _forwards(extra: Sequence[int]) -> str:
    return ",".join(map(str, extra)) if len(extra) <= _ALL_RANKS else "/".join(map(str, dict.fromkeys(extra)))


def _knees(found: Sweep) -> list[str]:
    knees = found.knees
    if not knees:
        return []
    axes = _varying(knees, _AXES[:4])
    at = _Axis("at_latency_ns", "at latency")
    keys = [_key(knee, (*axes, at)) for knee in knees]
    names = len({_name(knee) for knee in knees})
    shown = _shown(list(dict.fromkeys(keys)), max(1, _ROWS // names))
    top = max(knee.at_bandwidth_bytes_per_s or 0 for knee in knees)
    head = ("where more stops paying", *(a.head for a in axes), "at latency", "knee", "hides", "HBM per ms")
    rows = [
        (
            _name(knee) + (" *" if knee.remark else ""),
            *(_value(a.name, getattr(knee, a.name)) for a in axes),
            format_duration(knee.at_latency_ns or 0),
            "-" if knee.bandwidth_bytes_per_s is None else f"{knee.bandwidth_bytes_per_s * 8 / 1e9:.3g} Gbit/s",
            "-" if knee.hidden_latency_ns is None else format_duration(knee.hidden_latency_ns),
            "" if knee.hbm_bytes_per_hidden_ms is None else format_size(knee.hbm_bytes_per_hidden_ms),
        )
        for knee, key in zip(knees, keys, strict=True)
        if key in shown
    ]
    remarks = dict.fromkeys(f"* {_name(knee)}: {knee.remark}" for knee in knees if knee.remark)
    explained = (
        "knee: above it, twice the bandwidth shortens the step by less than 1 %. hides: the latency up to which the "
        f"step is within 1 % of what no order can beat, at {top * 8 / 1e9:.4g} Gbit/s. HBM per ms: what a rank holds "
        "more for each further millisecond hidden."
    )
    more = len(knees) - len(rows)
    told = [*([f"... {format_count(more, 'row')} more: --json has all"] if more else []), explained, *remarks]
    return [*_table([head, *rows]), *wrapped([f"  {line}" for line in told]), ""]


def _pareto(found: Sweep, price: Price) -> list[str]:
    front = [point for point in found.points if point.is_pareto]
    axes = [a for a in _varying(found.points, _AXES) if a.name != "hbm_bytes"]
    front.sort(key=lambda p: (p.latency_ns or 0, p.link_cost or 0, p.step_ns_per_microbatch or 0, p.needed_bytes or 0))
    unique = list({(_name(p), p.link_cost, p.needed_bytes, p.step_ns, _key(p, axes)): p for p in front}.values())
    kept = _spread(list(unique), _ROWS) if len(unique) > _ROWS else unique
    shown = [point for point in unique if point in kept]
    head = ("no point beats", *(a.head for a in axes), "link cost", *_HEAD[:-1])
    rows = [
        (
            _name(point),
            *(_value(a.name, getattr(point, a.name)) for a in axes),
            f"{point.link_cost or 0:,.0f}",
            *_cells(point, found)[:-1],
        )
        for point in shown
    ]
    more = len(unique) - len(shown)
    about = (
        f"Pareto front of link cost ({price.per_gbit:g} {price.currency} per Gbit/s), memory and step, for each map "
        "of DCs and latency."
    )
    told = [*([f"... {format_count(more, 'point')} more: -o sweep.parquet has all"] if more else []), about]
    return [*(_table([head, *rows]) if rows else []), *wrapped([f"  {line}" for line in told]), ""]


def _trouble(found: Sweep) -> list[str]:
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
