"""Clocks of the ranks against each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clock against the reference rank's.

    Attributes:
        time_ns: Time on the rank's own clock at which the offset holds.
        offset_ns: What to add to the rank's times there.
        drift_ppm: Growth of the offset with time, in parts per million.
        residual_ns: Median distance of the anchors from the alignment; None without anchors.
        anchors: Messages and collectives that were used.
        applied: Whether times are moved by it.
    """

    time_ns: int
    offset_ns: int | None
    drift_ppm: float | None
    residual_ns: int | None
    anchors: int
    applied: bool


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all recorded ranks; without an entry a rank's times are taken as they are."""

    reference_rank: int | None = None
    by_rank: Mapping[int, Clock] = field(default_factory=dict)

    def aligned_ns(self, rank: int, time_ns: int) -> int:
        """A time on a rank's own clock, on the reference rank's clock."""
        clock = self.by_rank.get(rank)
        if clock is None or not clock.applied or clock.offset_ns is None:
            return time_ns
        drift = round((time_ns - clock.time_ns) * (clock.drift_ppm or 0.0) / 1e6)
        return time_ns + clock.offset_ns + drift
