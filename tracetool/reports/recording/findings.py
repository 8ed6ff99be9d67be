"""Findings for people: what is known how, the least sure first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import Option
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 6
_RANK = re.compile(r"^rank (\d+)$")


class MergedFinding(NamedTuple):
    """Findings that differ in nothing but the rank, as one.

    Attributes:
        fact: What kind of fact it is.
        about: Ranks or other subjects; ``all`` for the whole recording.
        value: What was found.
        evidence: How it is known.
        confidence: How sure it is, 0 to 1.
        detail: What disagrees, or what the evidence leaves open.
    """

    fact: str
    about: str
    value: str
    evidence: str
    confidence: float
    detail: str | None


def merged(findings: Sequence[dict[str, Any]]) -> tuple[list[MergedFinding], list[str]]:
    """Findings of equal ranks as one, the least sure first, at most a few for one fact and evidence.

    Args:
        findings: Rows of the table ``findings``, in order.

    Returns:
        Those to show, and in words what is left out.
    """
    ranks: dict[tuple[Any, ...], list[int]] = {}
    for row in findings:
        match = _RANK.match(row["subject"])
        subject = None if match else row["subject"]
        key = (row["fact"], subject, row["value"], row["evidence"], row["confidence"], row["detail"])
        members = ranks.setdefault(key, [])
        if match:
            members.append(int(match[1]))
    found: list[MergedFinding] = []
    shown: dict[tuple[str, str], int] = {}
    # Sorting is stable: of equally sure ones the order stays that in which they were found.
    for key in sorted(ranks, key=lambda k: k[4]):
        fact, subject, value, evidence, confidence, detail = key
        shown[fact, evidence] = shown.get((fact, evidence), 0) + 1
        if shown[fact, evidence] <= _SHOWN:
            about = format_ranks(ranks[key]) if subject is None else subject
            found.append(MergedFinding(fact, about, value, evidence, confidence, detail))
    left = [
        f"{count - _SHOWN} more of {fact} by {evidence}" for (fact, evidence), count in shown.items() if count > _SHOWN
    ]
    return found, left


def finding_lines(findings: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each of the merged findings.

    Args:
        findings: Rows of the table ``findings``, in order.
    """
    found, left = merged(findings)
    lines: list[str] = []
    for fact, about, value, evidence, confidence, detail in found:
        named = fact if about == "all" else about if about.startswith(fact) else f"{fact}, {about}"
        sure = "" if confidence == 1 else f", confidence {confidence:.2f}"
        lines.append(f"    {named}: {value} ({evidence}{sure}){f': {detail}' if detail else ''}")
    lines += [f"    {more} ({Option.JSON} has all)" for more in left]
    return ["  findings, the least sure first:", *lines] if lines else []
