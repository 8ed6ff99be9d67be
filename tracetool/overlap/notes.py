"""What is said of layers that run otherwise than recorded: what changes, and what stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.units import format_bandwidth, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.pipeline import LayerOverlap


def overlap_notes(overlaps: Iterable[LayerOverlap]) -> list[Notice]:
    """What of the layers stays as it is, and of which ways no error is known; once for each way."""
    notices: dict[str, Notice] = {}
    for overlap in overlaps:
        remarks = _remarks(overlap)
        if overlap.way != NO_OVERLAP and remarks:
            text = f"layers that overlap by {overlap.way}: {'; '.join(remarks)}"
            notices.setdefault(text, Notice(NoticeCode.OVERLAP_CHANGED, text))
    return list(notices.values())


def overlap_note(overlap: LayerOverlap) -> Notice:
    """What a way changes of every action, how far off that may be, and what stays as it is."""
    over = overlap.bandwidth_bytes_per_s
    changes = ", ".join(
        f"{change.stage}{change.kind.value} {'+' if change.change_ns > 0 else '-'}"
        f"{format_duration(abs(change.change_ns))}"
        + (f" ±{format_duration(change.error_ns + change.link_error_ns)}" if overlap.is_measured else "")
        for change in sorted(overlap.actions, key=lambda change: (change.stage, change.kind.value))
    )
    where = "" if over is None else f" over {format_bandwidth(over)}"
    text = "; ".join([f"layers overlap by {overlap.way}{where}: an action takes {changes}", *_remarks(overlap)])
    return Notice(NoticeCode.OVERLAP_CHANGED, text)


def _remarks(overlap: LayerOverlap) -> list[str]:
    remarks = []
    if overlap.untouched:
        left = format_count(overlap.untouched, "collective")
        remarks.append(f"{left} an action with no product to run beside left alone")
    if not overlap.is_measured:
        remarks.append("all-reduces over other links were never compared with measured ones")
    if overlap.is_bound:
        remarks.append(
            "a bound: one kernel in which tiles cross as they are done, holding no SM for it; none was measured"
        )
    return remarks
