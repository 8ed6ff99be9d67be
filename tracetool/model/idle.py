"""Idle time of a Timeline, each interval of it with the one cause that it has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.timeline import Op, Transfer


class Cause(StrEnum):
    """Why a rank idled within the pipeline window."""

    FILL = "fill"
    DRAIN = "drain"
    DEPENDENCY = "dependency"
    CROSS_DC_LATENCY = "cross_dc_latency"
    CROSS_DC_BANDWIDTH = "cross_dc_bandwidth"
    CHANNEL = "channel"
    MEMORY = "memory"
    PROFILER_OVERHEAD = "profiler_overhead"
    HOST = "host"


CAUSE_NAMES: dict[Cause, str] = {
    Cause.FILL: "fill",
    Cause.DRAIN: "drain",
    Cause.DEPENDENCY: "dependency",
    Cause.CROSS_DC_LATENCY: "cross-DC latency",
    Cause.CROSS_DC_BANDWIDTH: "cross-DC bandwidth",
    Cause.CHANNEL: "channel",
    Cause.MEMORY: "memory",
    Cause.PROFILER_OVERHEAD: "profiler overhead",
    Cause.HOST: "host",
}
"""Causes as people read them."""

CAUSES: dict[Cause, str] = {
    Cause.FILL: "Computes of other ranks ahead of the rank's first backward: the pipeline fills.",
    Cause.DRAIN: "Computes of other ranks after the rank's last forward: the pipeline drains.",
    Cause.DEPENDENCY: "Computes of other ranks in between: stages or microbatches are unequal, or too few in flight.",
    Cause.CROSS_DC_LATENCY: "The latency of a link between data centres, however far from the rank.",
    Cause.CROSS_DC_BANDWIDTH: "A message that occupied a link between data centres, or queued for it.",
    Cause.CHANNEL: "A message inside a data centre, or behind another one on the same communicator.",
    Cause.MEMORY: "No room for another forward that was ready to run.",
    Cause.PROFILER_OVERHEAD: "The profiler's own overhead (buffers and the like) held the host up: no part of the job.",
    Cause.HOST: "Nothing else held the action back: the host launched it late.",
}


LATE = frozenset((Cause.PROFILER_OVERHEAD, Cause.HOST))
"""Causes that a replay has none of: actions launched later than what they waited for."""


@dataclass(frozen=True, slots=True)
class Idle:
    """An interval in which a pipeline rank computed nothing, within the pipeline window.

    Attributes:
        rank: Pipeline rank.
        start_ns: From when.
        end_ns: Until when.
        cause: Why.
        held: The action of the rank that came next; None after its last one.
        transfer: The message whose way caused it, where one did.
    """

    rank: int
    start_ns: int
    end_ns: int
    cause: Cause
    held: Op | None = None
    transfer: Transfer | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns
