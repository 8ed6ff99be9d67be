"""What ``tracetool sweep`` found, in tables for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.errors import Option
from tracetool.reports.answer.notes import first_notes
from tracetool.reports.answer.text import Cells, fitted_table
from tracetool.reports.lines import Note, first_fitting, table_width, wrapped
from tracetool.reports.sweep import best_sentences, trouble_counted, trouble_lines
from tracetool.reports.sweep.axes import (
    AXES,
    FIGURES,
    PointAxis,
    axis_value,
    cells_along,
    has_several_links,
    head_of,
    key_of,
    shown_keys,
    spread,
    varying,
)
from tracetool.reports.sweep.layers import layers_sentences, layers_table
from tracetool.units import format_count
from tracetool.whatif.accuracy import change_error_ratio, format_error
from tracetool.whatif.best import UNPROVEN_MARK, error_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.reports import RunFacts
    from tracetool.sweeps import Knee, Price, Sweep, SweepPoint

_ROWS = 16
"""So many rows of a table are printed; files have all."""
_SCREEN_ROWS = 4

_ALL_RANKS = 8
"""Up to so many ranks, extra forwards are listed rank by rank."""


def render_text(
    swept: Sweep, facts: RunFacts, price: Price | None, *,
    verbose: bool = True, kept: str = "-o sweep.parquet", after: str | None = None,
) -> bytes:  # fmt: skip
    """Tables of 80 columns at most: what to run per scenario, knees, the Pareto front; what did not fit and why.

    Args:
        swept: The sweep.
        facts: About the Run and the call.
        price: What links cost, if that was said.
        verbose: Everything; else one screen.
        kept: What has all points.
        after: What to run next, where that is known.
    """
    if verbose:
        sentences = [*layers_sentences(swept), *best_sentences(swept)]
        lines = [*wrapped(sentences, table_width()), "", facts.name, *_summary(swept), ""]
        lines += [*_best(swept, _ROWS, kept), *_knees(swept, verbose=True), *layers_table(swept)]
        lines += [*(_pareto(swept, price, _ROWS, kept) if price else []), *wrapped(trouble_lines(swept))]
        notes = wrapped([*map(Note, swept.notes)])
    else:
        lines = first_fitting(_screens(swept, price, kept), None, after)
        notes = first_notes(swept.notes, None, lines, after)
    return ("\n".join([*lines, *notes]).rstrip() + "\n").encode()


def _screens(swept: Sweep, price: Price | None, kept: str) -> Iterator[list[str]]:
    """The answer with less and less of what stands below its sentences: with prices the front is the table.

    The sentences say where more bandwidth stops paying, so that table goes first.
    """
    layers, every = layers_sentences(swept), best_sentences(swept)
    lines = [*wrapped([*layers, *every], table_width()), ""]
    points = [_summary(swept)[0], ""]
    trouble, counted = wrapped(trouble_lines(swept)), wrapped(trouble_counted(swept))
    priced = price if any(point.is_pareto for point in swept.points) else None

    def rows(most: int) -> list[str]:
        return _best(swept, most, kept) if priced is None else _pareto(swept, priced, most, kept)

    if priced is None:
        yield [*lines, *points, *rows(_SCREEN_ROWS), *_knees(swept, verbose=False), *layers_table(swept), *trouble]
    if layers:
        yield from ([*lines, *points, *rows(most), *layers_table(swept), *counted] for most in (_SCREEN_ROWS, 2, 1))
    for most in range(_SCREEN_ROWS, 0, -1):
        table = rows(most)
        yield from (
            [*lines, *points, *table, *trouble],
            [*lines, *points, *table, *counted],
            [*lines, *table, *counted],
        )
    for most in range(len(every), 0, -1):
        yield [*wrapped([*layers, *best_sentences(swept, most)], table_width()), "", *rows(1), *counted]


def _summary(swept: Sweep) -> list[str]:
    points = swept.points
    states = [f"{number:,} {state}" for state, number in Counter(map(_state, points)).items()]
    names = dict.fromkeys(point.schedule for point in points)
    lines = [f"{format_count(len(points), 'point')}: {', '.join(states)}", f"schedules tried: {', '.join(names)}"]
    for axis in AXES:
        values = [v for v in dict.fromkeys(getattr(point, axis.name) for point in points) if v not in (None, ())]
        if values:
            texts = [value if isinstance(value, str) else axis_value(axis.name, value) for value in values]
            are_few = len(texts) <= _LISTED
            listed = ("; " if axis.name == "dcs" else ", ").join(texts) if are_few else f"{texts[0]} to {texts[-1]}"
            many = "" if are_few else f" ({len(texts)} values)"
            others = (
                "; scenarios whose links differ: see notes"
                if any(has_several_links(p, axis.name) for p in points)
                else ""
            )
            lines.append(f"{axis.word}: {listed} {axis.unit}".rstrip() + many + others)
    modes: dict[str, list[str]] = {}
    for point in points:
        modes.setdefault(point.p2p, []).append(point.schedule)
    issued = [f"{', '.join(dict.fromkeys(names))} {mode}" for mode, names in modes.items()]
    lines.append(f"transfers: {next(iter(modes))}" if len(modes) == 1 else f"transfers: {'; '.join(issued)}")
    return [f"  {line}" for line in wrapped(lines, table_width() - 2)]


_LISTED = 4


def _state(point: SweepPoint) -> str:
    if point.step_ns is None:
        return "not replayed"
    if point.feasible is None:
        return "fit or not: memory is unknown"
    return ("fit" if point.hbm_bytes is not None else "replayed") if point.feasible else "do not fit"


_MOST_AXES = 3
"""With more of them there is no room for the error of a change."""

_EXPENDABLE = ("bubble", "needs\nGiB", f"maybe\n{UNPROVEN_MARK}", "per m\nms")


def _best(swept: Sweep, most: int, kept: str) -> list[str]:
    """Few points each in its row, best first in each scenario; of many the best of each scenario."""
    usable = swept.best_first()
    if not usable:
        return ["  No point fits.", ""]
    axes = varying(swept.points, AXES)
    # A scenario's name says the rest, if there is no room for it.
    expendable = [*_EXPENDABLE, *_said_by_the_name(axes)]
    cells = _Results(swept, axes)
    winners = {key_of(each.among, axes): each for each in swept.best if each.point is not None}
    if len(swept.points) <= most or len(swept.best) == 1:
        turns = {key: turn for turn, key in enumerate(dict.fromkeys(key_of(point, axes) for point in swept.points))}
        listed = [*(each.point for each in winners.values() if each.point not in swept.points), *usable]
        best = {id(each.point) for each in winners.values()}
        rows = sorted(
            (point for point in listed if point is not None),
            key=lambda p: (turns[key_of(p, axes)], id(p) not in best, p.evidence == "unproven"),
        )
        listed_rows = [{"best first": cells.name(p)} | cells_along(p, axes) | cells.of(p) for p in rows[:most]]
        hidden = [f"  ... {format_count(len(rows) - most, 'point')} more: -v"] if len(rows) > most else []
        return [*fitted_table(listed_rows, expendable), *hidden, ""]
    keys = [key for key in dict.fromkeys(key_of(point, axes) for point in swept.points) if key in winners]
    shown = shown_keys(keys, most)
    winners_shown = [winners[key] for key in keys if key in shown]
    more = len(keys) - len(winners_shown)
    after = [f"  ... {format_count(more, 'scenario')} more: {kept} has all", ""] if more else [""]
    rows_of = [
        {"best schedule": cells.name(each.point)}
        | cells_along(each.point, axes)
        | cells.of(each.point)
        | {f"maybe\n{UNPROVEN_MARK}": cells.name(each.unproven[0]) if each.unproven else ""}
        for each in winners_shown
        if each.point is not None
    ]
    return [*fitted_table(rows_of, expendable), *after]


def _said_by_the_name(axes: Sequence[PointAxis]) -> list[str]:
    """Heads of what the name of a scenario says, what a link is last; none where scenarios have no names."""
    named = [axis for axis in axes[1:] if axes[0].name == "scenario"]
    return [head_of(axis) for axis in sorted(named, key=lambda axis: axis.name in FIGURES)]


class _Results:
    """Cells of what a point takes, beside the recorded order in the same scenario."""

    def __init__(self, swept: Sweep, axes: Sequence[PointAxis]) -> None:
        self._axes = axes
        self._base = {key_of(each.among, axes): each.now for each in swept.best}
        names = [each.now.schedule for each in swept.best if each.now is not None]
        self._first = names[0] if names else swept.points[0].schedule
        self._several = len({p.microbatches for p in swept.points}) > 1
        self._modes = {p.schedule: {q.p2p for q in swept.points if q.schedule == p.schedule} for p in swept.points}

    def name(self, point: SweepPoint) -> str:
        """Name of its schedule, with how transfers are issued where that differs."""
        return _name(point) + (f" {point.p2p}" if len(self._modes.get(point.schedule, ())) > 1 else "")

    def of(self, point: SweepPoint, *, alone: bool = False) -> Cells:
        """The cells; alone those that hold it against no other one and no limit."""
        base = self._base.get(key_of(point, self._axes))
        change = None if base is None or base is point or not base.step_ns else (point.step_ns or 0) / base.step_ns - 1
        against = "" if change is None or base is None else self._change(base, point, change)
        fits = ""
        if point.hbm_bytes is not None:
            fits = {True: "maybe" if point.is_near_the_limit else "yes", None: "unknown", False: "NO"}[point.feasible]
        return {
            "step\nms": _ms(point.step_ns),
            "±": error_text(point),
            "per m\nms": _ms(point.step_ns_per_microbatch) if self._several else "",
            **({} if alone else {f"vs\n{self._first}": against}),
            "bubble": "" if point.bubble_ratio is None else f"{point.bubble_ratio:.1%}",
            "needs\nGiB": "" if point.needed_bytes is None else f"{point.needed_bytes / 2**30:.2f}",
            **({} if alone else {"fits": fits}),
        }

    def _change(self, base: SweepPoint, point: SweepPoint, change: float) -> str:
        """A change of step time, marked where it is within its error, which stands behind it where there is room."""
        error = change_error_ratio(base.known_error, point.known_error, change)
        text = f"{change:+.1%}".replace("-0.0%", "+0.0%")
        if error is None:
            return text
        behind = f" ±{format_error(error)}" if len(self._axes) <= _MOST_AXES else ""
        return f"{'~' * (abs(change) <= error)}{text}{behind}"


def _ms(time_ns: float | None) -> str:
    return "" if time_ns is None else f"{time_ns / 1e6:.1f}"


def _name(row: SweepPoint | Knee) -> str:
    extra = row.extra_forwards
    return row.schedule + ("" if extra is None else f" +{_forwards(extra)}")


def _forwards(extra: Sequence[int]) -> str:
    return ",".join(map(str, extra)) if len(extra) <= _ALL_RANKS else "/".join(map(str, dict.fromkeys(extra)))


def _knees(swept: Sweep, *, verbose: bool) -> list[str]:
    """Of each schedule; rows that differ in the memory limit alone are one."""
    if not swept.knees:
        return []
    axes = [
        *varying(swept.knees, [axis for axis in AXES if axis.name not in FIGURES]),
        PointAxis("at_latency_ns", "latency", "at", "ms"),
    ]
    names_of = _RowNames(swept.knees, axes)
    rows: dict[tuple[object, ...], tuple[Knee, bool]] = {}
    for knee in swept.knees:
        figures = knee.bandwidth_bytes_per_s, knee.hidden_latency_ns, knee.hbm_bytes_per_hidden_ms
        same = (_name(knee), knee.p2p, *key_of(knee, (a for a in axes if a.name != "hbm_bytes")), figures)
        rows[same] = (rows[same][0], True) if same in rows else (knee, False)
    names = len({(knee.schedule, knee.extra_forwards, knee.p2p) for knee, _ in rows.values()})
    shown = shown_keys(
        [key_of(knee, axes) for knee, _ in rows.values()], max(1, (_ROWS if verbose else _SCREEN_ROWS) // names)
    )
    cells = []
    for knee, is_any in rows.values():
        if key_of(knee, axes) in shown:
            along = cells_along(knee, axes)
            along |= {"HBM\nGiB": "any"} if is_any and "HBM\nGiB" in along else {}
            cells.append({"more stops paying at": names_of.name(knee)} | along | _bends(knee))
    explained = (
        "knee: above it, twice the bandwidth never shortens the step by 1 %. hides: the largest latency at which "
        "the step is within 1 % of its floor (free links and one way down and back), where bandwidth costs nothing. "
        "per hidden ms: what a rank holds more for each further ms."
    )
    more = len(rows) - len(cells)
    remarks = names_of.remarks([knee for knee, _ in rows.values()])
    lines = [f"... {format_count(more, 'row')} more: {Option.JSON} has all"] if more else []
    lines += [explained, *remarks[:_REMARKS]] if verbose else []
    return [*fitted_table(cells, ()), *wrapped([f"  {line}" for line in lines]), ""]


_REMARKS = 4


class _RowNames:
    """Names of knees: with how transfers are issued where that differs, and of remarks the rows that they are about."""

    def __init__(self, knees: Sequence[Knee], axes: Sequence[PointAxis]) -> None:
        self._axes = axes
        modes: dict[str, set[str | None]] = {}
        for knee in knees:
            modes.setdefault(knee.schedule, set()).add(knee.p2p)
        self._several = any(len(of_schedule) > 1 for of_schedule in modes.values())

    def name(self, knee: Knee) -> str:
        return _name(knee) + (f" {knee.p2p}" if self._several else "")

    def remarks(self, knees: Sequence[Knee]) -> list[str]:
        """Each remark once, with the rows that it is about: by name, and where not all of that name by the rest."""
        about: dict[str, list[Knee]] = {}
        for knee in knees:
            if knee.remark:
                about.setdefault(knee.remark, []).append(knee)
        of_name = Counter(map(self.name, knees))
        lines = []
        for remark, rows in about.items():
            counts = Counter(map(self.name, rows))
            named = [
                self.name(k) + ("" if counts[self.name(k)] == of_name[self.name(k)] else self._rest(k)) for k in rows
            ]
            names = [*dict.fromkeys(named)]
            more = f" and {format_count(len(names) - _LISTED, 'row')} more" if len(names) > _LISTED else ""
            lines.append(f"{', '.join(names[:_LISTED])}{more}: {remark}")
        return lines

    def _rest(self, knee: Knee) -> str:
        cells = [
            f"{axis.head} {axis_value(axis.name, getattr(knee, axis.name))} {axis.unit}".rstrip() for axis in self._axes
        ]
        return f" ({', '.join(cells)})"


def _bends(knee: Knee) -> Cells:
    per_ms = knee.hbm_bytes_per_hidden_ms
    return {
        "knee\nGbit/s": "-" if knee.bandwidth_bytes_per_s is None else f"{knee.bandwidth_bytes_per_s * 8e-9:.3g}",
        "hides\nms": "-" if knee.hidden_latency_ns is None else f"{knee.hidden_latency_ns / 1e6:.3g}",
        "per hidden ms\nGiB": "" if per_ms is None else f"{per_ms / 2**30:.2f}",
    }


def _pareto(swept: Sweep, price: Price, most: int, kept: str) -> list[str]:
    axes = [a for a in varying(swept.points, AXES) if a.name != "hbm_bytes"]
    cells = _Results(swept, varying(swept.points, AXES))
    front = [point for point in swept.points if point.is_pareto]
    front.sort(key=lambda p: (p.latency_ns or 0, p.link_cost or 0, p.step_ns_per_microbatch or 0, p.needed_bytes or 0))
    # A limit that is higher than needed changes nothing.
    unique = list({(cells.name(p), p.link_cost, p.needed_bytes, p.step_ns, key_of(p, axes)): p for p in front}.values())
    shown = spread(list(range(len(unique))), min(most, len(unique)))
    rows = [
        {"no point beats": cells.name(p)}
        | cells_along(p, axes)
        | {"link cost": f"{p.link_cost or 0:,.0f}"}
        | cells.of(p, alone=True)
        for p in (unique[place] for place in shown)
    ]
    more = len(unique) - len(shown)
    about = (
        f"Pareto front of link cost ({price.per_gbit:g} {price.currency} per Gbit/s), memory and step per microbatch, "
        "for each map of DCs and latency."
    )
    remarks = [*([f"... {format_count(more, 'point')} more: {kept} has all"] if more else []), about]
    lines = fitted_table(rows, ("bubble", "per m\nms", *_said_by_the_name(axes))) if rows else []
    return [*lines, *wrapped([f"  {line}" for line in remarks]), ""]
