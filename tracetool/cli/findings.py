"""Findings for people: what is known how, the least sure first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

_SHOWN = 6
_RANK = re.compile(r"^rank (\d+)$")


def finding_lines(findings: Sequence[dict[str, Any]]) -> list[str]:
    """One line for findings that differ in nothing but the rank, at most a few for one fact and evidence.

    Args:
        findings: Rows of the table ``findings``, in order.
    """
    ranks: dict[tuple[Any, ...], list[int]] = {}
    for row in findings:
        match = _RANK.match(row["subject"])
        subject = None if match else row["subject"]
        key = (row["fact"], subject, row["value"], row["evidence"], row["confidence"], row["detail"])
        members = ranks.setdefault(key, [])
        if match:
            members.append(int(match[1]))
    lines: list[str] = []
    shown: dict[tuple[str, str], int] = {}
    # Sorting is stable: of equally sure ones the order stays that in which they were found.
    for key in sorted(ranks, key=lambda k: k[4]):
        fact, subject, value, evidence, confidence, detail = key
        shown[fact, evidence] = shown.get((fact, evidence), 0) + 1
        if shown[fact, evidence] > _SHOWN:
            continue
        about = format_ranks(ranks[key]) if subject is None else subject
        named = fact if about == "all" else about if about.startswith(fact) else f"{fact}, {about}"
        sure = "" if confidence == 1 else f", confidence {confidence:.2f}"
        lines.append(f"    {named}: {value} ({evidence}{sure}){f': {detail}' if detail else ''}")
    for (fact, evidence), count in shown.items():
        if count > _SHOWN:
            lines.append(f"    {count - _SHOWN} more of {fact} by {evidence} (--json has all)")
    return ["  findings, the least sure first:", *lines] if lines else []
