"""Limits that a comparison is held to: ``bubble_ratio>+2%``, ``step_ns>400ms``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from tracetool.comparison.values import KNOWN
from tracetool.errors import BadQuantity, UnknownName
from tracetool.units import format_duration, format_size, parse_duration_ns, parse_share_ratio, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.comparison.verdict import Line

_LIMIT = re.compile(r"^\s*(?P<metric>[a-z_]+)(?:/(?P<scope>[^<>\s]+))?\s*(?P<side>[<>])\s*(?P<bound>\S.*?)\s*$")
_EXAMPLE = "write it as 'bubble_ratio>+2%', 'step_ns>+5ms' or 'step_ns>400ms'"

Outcome = Literal["held", "exceeded", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a metric.

    Attributes:
        text: As it was written.
        metric: Name of the metric.
        scope: Its scope; None for the metric of the step, and for every scope of one that has scopes only.
        above: Whether what lies above the bound exceeds it, else what lies below.
        bound: The bound: a ratio of change, a change, or a value, in the metric's unit.
        of: What is bound.
    """

    text: str
    metric: str
    scope: str | None
    above: bool
    bound: float
    of: Literal["change ratio", "change", "value"]


@dataclass(frozen=True, slots=True)
class Check:
    """How a limit fared.

    Attributes:
        limit: The limit.
        outcome: Whether it was held.
        detail: What was found.
        line: The line it is about; the worst of several.
    """

    limit: Limit
    outcome: Outcome
    detail: str
    line: Line | None


def parse_limit(text: str) -> Limit:
    """Read a limit. A signed bound is of the change from the base, one without a sign of the value itself.

    Raises:
        UnknownName: If there is no such metric.
        BadQuantity: If the bound cannot be read.
    """
    match = _LIMIT.match(text)
    if match is None:
        raise BadQuantity(f"{text!r} is no limit.", hint=_EXAMPLE)
    if match["bound"].startswith("="):
        raise BadQuantity(f"{text!r}: a limit has > or <.", hint=_EXAMPLE)
    name, bound = match["metric"], match["bound"]
    if name not in KNOWN:
        raise UnknownName("metric", name, KNOWN)
    signed = bound[0] in "+-"
    sign = -1 if bound[0] == "-" else 1
    amount = bound.lstrip("+-").strip()
    above = match["side"] == ">"
    if amount.endswith("%"):
        if not signed:
            raise BadQuantity(
                f"{text!r}: a share without a sign may be a change or a value.",
                hint=f"write +{amount} for a change from the base" + (", 0.15 for a value" if "ratio" in name else ""),
            )
        return Limit(text, name, match["scope"], above, sign * parse_share_ratio(amount), "change ratio")
    value = sign * _amount(text, name, amount)
    return Limit(text, name, match["scope"], above, value, "change" if signed else "value")


def _amount(text: str, name: str, amount: str) -> float:
    unit = KNOWN[name].unit
    if unit == "ns":
        return parse_duration_ns(amount)
    if unit == "bytes":
        return parse_size_bytes(amount)
    try:
        return float(Fraction(amount))
    except (ValueError, ZeroDivisionError) as error:
        raise BadQuantity(f"{amount!r} in {text!r} is no ratio.", hint=_EXAMPLE) from error


def check(limit: Limit, lines: Sequence[Line], alpha: float) -> Check:
    """Hold lines to a limit. What cannot be told for certain is inconclusive, never held.

    Args:
        limit: The limit.
        lines: All lines of the comparison.
        alpha: Chance at which a change beyond the limit may be one of steps that vary.

    Raises:
        UnknownName: If the metric is there, but not of what the limit names.
    """
    limited = [line for line in lines if _is_of(limit, line)]
    if not limited:
        where = limit.metric + (f"/{limit.scope}" if limit.scope else "")
        known = [line.key.text for line in lines if line.key.metric == limit.metric]
        if known and limit.scope:
            raise UnknownName("value", where, known)
        return Check(limit, "inconclusive", f"neither side has {where}", None)
    checked = [_check(limit, line, alpha) for line in limited]
    order: tuple[Outcome, ...] = ("exceeded", "inconclusive", "held")
    return min(checked, key=lambda one: order.index(one.outcome))


def _is_of(limit: Limit, line: Line) -> bool:
    if line.key.metric != limit.metric:
        return False
    has_whole = limit.metric not in {"action_ns", "transfer_ns", "tail_ns", "payload_bytes", "activation_bytes",
                                     "static_bytes"}  # fmt: skip
    return line.key.scope == (limit.scope or "") or (limit.scope is None and not has_whole)


def _check(limit: Limit, line: Line, alpha: float) -> Check:
    value = {"change ratio": line.change_ratio, "change": line.change, "value": line.new}[limit.of]
    if value is None:
        return Check(limit, "inconclusive", f"{line.key.text}: {line.why or 'the base is 0'}", line)
    over = value > limit.bound if limit.above else value < limit.bound
    words = f"{line.key.text} {'is' if limit.of == 'value' else 'changed by'} {_value_text(limit, line, value)}"
    if limit.of == "value":
        return Check(limit, "exceeded" if over else "held", words, line)
    if line.verdict == "inconclusive":
        return Check(limit, "inconclusive", f"{words}: {line.why}", line)
    if over and line.p is not None and line.p > alpha:
        return Check(limit, "inconclusive", f"{words}: steps vary as much", line)
    return Check(limit, "exceeded" if over else "held", words, line)


def _value_text(limit: Limit, line: Line, value: float) -> str:
    if limit.of == "change ratio":
        return f"{value:+.2%}"
    sign = "+" if limit.of == "change" and value >= 0 else ""
    return sign + format_value(line.metric.unit, value)


def format_value(unit: str, value: float) -> str:
    """A value of a metric for people."""
    return format_duration(value) if unit == "ns" else format_size(value) if unit == "bytes" else f"{value:.4f}"
