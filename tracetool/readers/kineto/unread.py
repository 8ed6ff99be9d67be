"""Kinds of events in a Kineto trace that no table takes: those of devices and unknown ones are told by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.readers import HOST_MEMORY, OTHER_MEMORY
from tracetool.units import format_count

if TYPE_CHECKING:
    from tracetool.readers import SourceReport

_DEVICE = frozenset({"mtia_ccp_events", "mtia_insight", "hpu_op", "collective_comm"})
"""Categories of what runs on devices that are not read."""

_SPANS = ("ph B", "ph E", "ph b", "ph e", "ph n")
"""Spans whose ends are events of their own: no profiler of torch writes them."""

_ASIDE = frozenset({
    # The profiler's own, marks that repeat others, host calls that no action needs, and samples.
    "python_function", "overhead", "Trace", "gpu_user_annotation", "external_correlation", "cpu_instant_event",
    "cuda_sync", "cuda_event", "cuda_profiler_range", "xpu_sync", "xpu_scope_profiler", "hardware_counters",
    "mtia_counters", "ac2g", "fwdbwd", "async", "async_cpu_to_gpu", "async_gpu", "no category",
    # Reasons why events of kinds that are read were left.
    "instants", HOST_MEMORY, OTHER_MEMORY,
})  # fmt: skip


def record_unread(report: SourceReport) -> None:
    """Count the events of kinds that are not read and may hold what seems to be missing, and note them by name."""
    for kind, count in report.skipped.items():
        if count and (kind in _SPANS or (kind not in _ASIDE and not kind.startswith("ph "))):
            report.unread[kind] += count
    own = {kind: count for kind, count in report.unread.items() if kind in _DEVICE}
    others = {kind: count for kind, count in report.unread.items() if kind not in _DEVICE}
    for what, counts in (("of a device that is not read", own), ("of kinds that are not read", others)):
        if counts:
            kinds = ", ".join(sorted(counts, key=lambda kind: (-counts[kind], kind))[:6])
            report.notes.append(f"{format_count(sum(counts.values()), 'event')} {what} ({kinds})")
