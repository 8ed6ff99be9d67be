"""A history and its trends: text, JSON, and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.errors import Option
from tracetool.reports import as_json
from tracetool.reports.answer.text import table
from tracetool.reports.lines import wrapped
from tracetool.reports.picture import GREY, RED, SERIES, PictureFormat, save
from tracetool.tables.fields import SchemaId, Versioned, WithFigures, as_struct, doc, fields_of
from tracetool.tables.metrics import METRICS
from tracetool.tables.results import HISTORY
from tracetool.units import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.baselines import Value
    from tracetool.baselines.trends import Trend

_BARS = "▁▂▃▄▅▆▇█"
_MOST_DRAWN = 6
_LEAST_SPAN = 0.05
"""Bars are as high as that share of the value, so that what hardly varies looks so."""


class EntryInfo(WithFigures, kw_only=True):
    """A figure of one entry."""

    __annotations__ = fields_of("entry", "label", "at", "digest", "tool_version", "variant", "value", of=HISTORY)


class TrendStepInfo(msgspec.Struct, kw_only=True):
    """The last step of a series."""

    entry: Annotated[int, doc("First entry after it.")]
    label: Annotated[str, doc("What that is called.")]
    before: Annotated[float, doc("Mean before.")]
    after: Annotated[float, doc("Mean since.")]
    change_ratio: Annotated[float, doc("After over before, minus one.")]
    is_certain: Annotated[bool, doc("Whether entries on both sides, or a series without noise, make it so.")]
    is_regression: Annotated[bool, doc("Whether it is certain, and to the worse.")]


class TrendInfo(WithFigures, kw_only=True):
    """One metric of one schedule."""

    __annotations__ = fields_of("schedule", "scenario", "what_if", "metric", of=HISTORY)
    unit: Annotated[str, doc("Its unit.")]
    entries: Annotated[list[EntryInfo], doc("In order.")]
    step: Annotated[TrendStepInfo | None, doc("The last step they took.")]


class TrendsInfo(Versioned, kw_only=True):
    """Result of tracetool baseline show."""

    schema: SchemaId = "urn:tracetool:schema:1:trends"
    history: Annotated[str, doc("File of the history.")]
    trends: Annotated[list[TrendInfo], doc("In order of appearance.")]


def trends_info(trends: Sequence[Trend], history: str) -> TrendsInfo:
    """The trends as structs."""
    return TrendsInfo(history=history, trends=[_trend(trend) for trend in trends])


def _trend(trend: Trend) -> TrendInfo:
    step, values = trend.step, trend.values
    return as_struct(
        TrendInfo,
        trend,
        what_if=trend.values[-1].what_if,
        unit=METRICS[trend.metric].unit,
        entries=[as_struct(EntryInfo, value) for value in values],
        step=None
        if step is None
        else as_struct(TrendStepInfo, step, trend, entry=values[step.first].entry, label=values[step.first].label),
    )


def render_json(trends: Sequence[Trend], history: str) -> bytes:
    """The trends as JSON by ``schemas/trends.schema.json``."""
    return as_json(trends_info(trends, history))


def render_text(trends: Sequence[Trend], history: str) -> str:
    """A line per series with its values as bars, one per entry, and what step it took."""
    entries = sorted({value.entry for trend in trends for value in trend.values})
    numbers = _what_if_numbers(trends)
    rows = [["", "last", "", "step"]]
    for trend in trends:
        by_entry = {value.entry: value.value for value in trend.values}
        last = trend.values[-1]
        at = "" if last.entry == entries[-1] else f" at {_short(last.label)}"
        drawn = bars([by_entry.get(entry) for entry in entries])
        rows.append([_name(trend, numbers), shown(trend.metric, last.value) + at, drawn, _trend_text(trend)])
    head = f"{history}: {len(entries)} {'entry' if len(entries) == 1 else 'entries'} looked at"
    notes = [f"  [{number}] {words}" for words, number in numbers.items()]
    return "\n".join([*wrapped([head]), "", *table(rows), *wrapped(["", *notes] if notes else []), ""])


def _what_if_numbers(trends: Sequence[Trend]) -> dict[str, int]:
    """What-ifs in words with a number each, where one schedule was replayed in several; else none."""
    scenarios: dict[str, set[str]] = {}
    for trend in trends:
        scenarios.setdefault(trend.schedule, set()).add(trend.scenario)
    if all(len(of_schedule) == 1 for of_schedule in scenarios.values()):
        return {}
    words = dict.fromkeys(_words(trend) for trend in trends if trend.scenario)
    return {each: number for number, each in enumerate(words, 1)}


def _words(trend: Trend) -> str:
    return trend.values[-1].what_if or f"what-if {trend.scenario}"


def _name(trend: Trend, numbers: dict[str, int]) -> str:
    number = numbers.get(_words(trend)) if trend.scenario else None
    return f"{trend.schedule} {trend.metric}" + (f" [{number}]" if number else "")


def _trend_text(trend: Trend) -> str:
    step = trend.step
    if step is None:
        return "none"
    verdict = "regressed" if trend.is_regression else "improved" if step.is_certain else "one entry: inconclusive"
    before, after = (trend.values[at].variant for at in (step.first - 1, step.first))
    variant = f", {before} → {after}" if before != after else ""
    return f"{step.change_ratio:+.1%} at {trend.values[step.first].label} ({verdict}{variant})"


def list_text(values: Sequence[Value], history: str) -> str:
    """The entries of a history, a line each."""
    first = {value.entry: value for value in reversed(values)}
    rows = [["entry", "label", "at", "traces", "tracetool"]]
    for entry in sorted(first):
        value = first[entry]
        rows.append([str(entry), value.label, value.at or "", value.digest[:12], value.tool_version])
    return "\n".join([*wrapped([history]), "", *table(rows), ""])


def shown(metric: str, value: float) -> str:
    """A value with its unit, as people read it."""
    unit = METRICS[metric].unit
    return (
        format_duration(round(value))
        if unit == "ns"
        else format_size(round(value))
        if unit == "bytes"
        else f"{value:.1%}"
    )


def bars(values: Sequence[float | None]) -> str:
    """Values as a row of bars between their least and their greatest, which are 5 % apart at least; a dot for none."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    span = max(high - low, _LEAST_SPAN * abs(high)) or 1.0
    middle = low - (span - (high - low)) / 2
    return "".join(
        "·" if value is None else _BARS[min(len(_BARS) - 1, int((value - middle) / span * len(_BARS) + 1e-6))]
        for value in values
    )


def render_picture(trends: Sequence[Trend], picture_format: PictureFormat) -> bytes:
    """Each series over the entries, with the means before and after its last step; of many those that took one."""

    def weight(trend: Trend) -> int:
        return 0 if trend.is_regression else 1 if trend.step and trend.step.is_certain else 2 if trend.step else 3

    chosen = sorted(trends, key=weight)[:_MOST_DRAWN]
    kept = [trend for trend in trends if trend in chosen]
    return save(lambda: _figure(kept, len(trends) - len(kept), _what_if_numbers(trends)), picture_format)


def _figure(trends: Sequence[Trend], left_out: int, numbers: dict[str, int]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 0.5 + 1.9 * len(trends)), dpi=150, layout="constrained")
    panels = figure.subplots(len(trends), 1, squeeze=False)[:, 0]
    for axes, trend in zip(panels, trends, strict=True):
        _draw(axes, trend, _name(trend, numbers))
    remarks = ["dashed: mean before and after the last step"] if any(trend.step for trend in trends) else []
    remarks += [f"[{number}] {words}" for words, number in numbers.items()]
    remarks += [f"{left_out} more series: name a metric or {Option.SCHEDULE}"] if left_out > 0 else []
    figure.supxlabel("\n".join(remarks), fontsize=7, color=GREY)
    return figure


def _draw(axes: Axes, trend: Trend, name: str) -> None:
    from matplotlib.ticker import FuncFormatter

    values = [value.value for value in trend.values]
    places = range(len(values))
    axes.plot(places, values, marker="o", markersize=3.5, linewidth=1, color=SERIES[0])
    axes.set_title(name, loc="left", fontsize=8.5, fontweight="bold")
    axes.set_xticks(
        list(places), [_short(value.label) for value in trend.values], rotation=45, ha="right", fontsize=6.5
    )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(trend.metric, value)))
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.5)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    step = trend.step
    if step is not None:
        colour = RED if trend.is_regression else SERIES[2] if step.is_certain else GREY
        axes.hlines(
            [step.before, step.after], [0, step.first], [step.first - 1, len(values) - 1], colour, linestyles="--"
        )
        axes.set_title(_trend_text(trend), loc="right", fontsize=7.5, color=colour)


def _short(label: str) -> str:
    return label if len(label) <= 10 else label[:9] + "…"
