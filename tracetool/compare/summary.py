"""A comparison in one line: the change that matters most, its verdict, its causes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.compare.limits import format_value
from tracetool.compare.values import Key
from tracetool.compare.verdict import is_headline
from tracetool.units import format_count

if TYPE_CHECKING:
    from tracetool.compare import Comparison
    from tracetool.compare.causes import Cause
    from tracetool.compare.verdict import Line

_ORDER = ("step_ns", "bubble_ratio", "window_ns", "peak_hbm_bytes", "bubble_ns", "compute_ns")
_WORTH_NAMING = Fraction(1, 5)
"""A cause is named in the summary if it makes up so much of the change that causes together explain."""
_MOST = 3


def summary(done: Comparison) -> str:
    """The line that a report begins with."""
    line = chosen_line(done)
    if line is None:
        return "nothing can be compared: the sides have no metric in common"
    text = f"{line.key.text} {from_to(line)} ({words(line)})"
    named = main_causes(done, line.key.metric) if not line.key.scope else ()
    if named:
        text += ": " + ", ".join(f"{cause.name} {signed(line.metric.unit, cause.value)}" for cause in named)
    if is_headline(line.key) and line.verdict in ("unchanged", "inconclusive"):
        parts = [each for each in done.lines if each.verdict == "regressed" and each is not line]
        parts += [each for each in done.lines if each.verdict == "improved"]
        text += "".join(f"; {each.key.text} {from_to(each)} ({words(each)})" for each in parts[:2])
        if len(parts) > 2:
            text += f"; {format_count(len(parts) - 2, 'other change')}"
    return text


def chosen_line(done: Comparison) -> Line | None:
    """The line that a summary is about: the first metric of the step that regressed, else that improved, else step."""
    ranked = sorted(done.headlines, key=lambda line: _ORDER.index(line.key.metric))
    for verdict in ("regressed", "improved"):
        found = next((line for line in ranked if line.verdict == verdict), None)
        if found is not None:
            return found
    return next(iter(ranked), next(iter(done.lines), None))


def main_causes(done: Comparison, metric: str) -> tuple[Cause, ...]:
    """The causes worth naming: those with a large part in the change, and the same sign as it."""
    found = done.causes.get(metric, ())
    line = next((line for line in done.lines if line.key == Key(metric)), None)
    if line is None or not line.change or (line.verdict == "unchanged"):
        return ()
    rises = [cause for cause in found if cause.value * Fraction(line.change) > 0]
    total = sum((abs(cause.value) for cause in rises), Fraction(0))
    return tuple(cause for cause in rises if abs(cause.value) >= _WORTH_NAMING * total)[:_MOST]


def from_to(line: Line) -> str:
    """Both values, as ``0.118 → 0.141``."""
    before, after = ("none" if v is None else format_value(line.metric.unit, v) for v in (line.base, line.new))
    return f"{before} → {after}"


def words(line: Line) -> str:
    """Change and verdict, as ``+2.30%, regressed``."""
    change = "" if line.change_ratio is None else f"{percent(line.change_ratio)}, "
    why = f": {line.why}" if line.why else ""
    return f"{change}{line.verdict}{why}"


def percent(ratio: float) -> str:
    """A change in per cent with its sign."""
    return f"{ratio:+.2%}".replace("-0.00%", "+0.00%")


def signed(unit: str, value: Fraction) -> str:
    """A contribution with its sign."""
    text = format_value(unit, float(value))
    return text if text.startswith("-") else f"+{text}"
