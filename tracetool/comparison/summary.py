"""A comparison in one line: the change that matters most, its verdict, its causes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.comparison.limits import format_value
from tracetool.comparison.values import Key
from tracetool.comparison.verdict import is_goal
from tracetool.tables.metrics import OF_STEP
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.comparison import Comparison
    from tracetool.comparison.causes import ChangeCause
    from tracetool.comparison.verdict import Line

_ORDER = tuple(dict.fromkeys(("step_ns", "bubble_ratio", "window_ns", "peak_hbm_bytes", "bubble_ns", *OF_STEP)))
_PARTS = ("peak_hbm_bytes", "action_ns", "transfer_ns", "payload_bytes", "tail_ns", "static_bytes", "activation_bytes")
_WORTH_NAMING = Fraction(1, 5)
"""A cause is named in the summary if it makes up so much of the change that causes together explain."""
_MOST = 3


def summary(done: Comparison) -> str:
    """The line that a report begins with."""
    lines = chosen_lines(done)
    if not lines:
        return "nothing can be compared: the sides have no metric in common"
    if done.apart and not done.allow_inconclusive:
        # What closes the gate comes first; a figure of other work is no improvement.
        of_step = [line for line in done.headlines if line.key.metric == "step_ns"]
        return f"{done.apart[0]}; {_line_text(done, (of_step or lines)[0])}"
    sentences = [_line_text(done, line) for line in lines[:_MOST]]
    changed = [line for line in lines if line.verdict in ("regressed", "improved")]
    if len(changed) > _MOST:
        sentences.append(format_count(len(changed) - _MOST, "other change"))
    if lines[0].key.scope:
        step = next((line for line in done.lines if line.key == Key("step_ns")), None)
        if step is not None:
            # What parts do matters by what the step does: it comes first where it is another.
            sentences.insert(len(sentences) if step.verdict == "unchanged" else 0, _line_text(done, step))
    return "; ".join(sentences)


def _line_text(done: Comparison, line: Line) -> str:
    subject = done.subjects.get(line.key.text)
    shown = f" ({subject})" if subject and line.key.rank is None else ""
    text = f"{line.key.text}{shown} {from_to(line)} ({words(line)})"
    named = main_causes(done, line)
    return text + (f": {', '.join(f'{c.name} {signed(line.metric.unit, c.value)}' for c in named)}" if named else "")


def chosen_lines(done: Comparison) -> list[Line]:
    """The lines that a summary is about.

    The first metric of the step that regressed; else the parts that did; else the first metric of each replay that did;
    else the same of what improved; else the step. Where other ranks set the step, of these only what is a goal.
    """
    lines = [line for line in done.lines if is_goal(line.key) or not done.is_of_other_ranks]
    whole = sorted((line for line in done.headlines if line in lines), key=lambda line: _ORDER.index(line.key.metric))
    replays = [line for line in lines if line.key.is_of_replay and line.key.metric in _ORDER]
    replays.sort(key=lambda line: _ORDER.index(line.key.metric))
    parts = [line for line in lines if line.key.metric in _PARTS and line not in (*whole, *replays)]
    parts.sort(key=lambda line: _PARTS.index(line.key.metric))
    for verdict in ("regressed", "improved"):
        chosen = [line for line in whole if line.verdict == verdict][:1]
        chosen = chosen or [line for line in parts if line.verdict == verdict]
        chosen = chosen or _first_of_each([line for line in replays if line.verdict == verdict])
        if chosen:
            return chosen
    return (whole or list(done.lines))[:1]


def _first_of_each(lines: Sequence[Line]) -> list[Line]:
    """The first line of each schedule."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.key.scope, line)
    return list(first.values())


def main_causes(done: Comparison, line: Line) -> tuple[ChangeCause, ...]:
    """The causes of a line worth naming: those with a large part in the change, and the same sign as it."""
    if not line.change or line.verdict == "unchanged":
        return ()
    rises = [cause for cause in done.causes.get(line.key.text, ()) if cause.value * Fraction(line.change) > 0]
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
