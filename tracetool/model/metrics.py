"""The formula of each metric over a Timeline; ``tracetool.tables.metrics`` says what each means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.tables.metrics import IN_REPORTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one Timeline; ``METRICS`` says what each means.

    Attributes:
        step_ns: See METRICS.
        window_ns: See METRICS.
        compute_ns: See METRICS.
        bubble_ns: See METRICS: window - compute / ranks; rounded down to whole ns.
        bubble_ratio: See METRICS: 1 - compute / (ranks x window).
        rank_compute_ns: Compute of each pipeline rank.
        peak_hbm_bytes: Peak of each pipeline rank; None where memory is unknown.
        overhead_bytes: See METRICS, of each pipeline rank; None where it is unknown.
    """

    step_ns: int
    window_ns: int
    compute_ns: int
    bubble_ns: int
    bubble_ratio: float
    rank_compute_ns: tuple[int, ...]
    peak_hbm_bytes: tuple[int | None, ...]
    overhead_bytes: tuple[int | None, ...] = ()

    def of_step(self, names: Iterable[str] = IN_REPORTS) -> dict[str, Any]:
        """Figures of the whole step by their names."""
        return {name: getattr(self, name) for name in names}

    @property
    def needed_hbm_bytes(self) -> tuple[int | None, ...]:
        """Device memory of each rank: peak and overhead; without the overhead where that is unknown."""
        extra = self.overhead_bytes or (None,) * len(self.peak_hbm_bytes)
        return tuple(
            None if peak is None else peak + (beyond or 0)
            for peak, beyond in zip(self.peak_hbm_bytes, extra, strict=True)
        )


def measure(timeline: Timeline) -> Metrics:
    """Compute the metrics of an observed or replayed Timeline.

    Example:
        >>> tt.measure(found.observed).step_ns
        246370042
    """
    computes = timeline.computes()
    ranks = len(timeline.global_ranks)
    start = min(op.start_ns for op in computes)
    window = max(op.end_ns for op in computes) - start
    busy = [0] * ranks
    for op in computes:
        busy[op.rank] += op.duration_ns
    return Metrics(
        step_ns=max(op.end_ns for op in timeline.ops) - start,
        window_ns=window,
        compute_ns=sum(busy),
        bubble_ns=(ranks * window - sum(busy)) // ranks,
        bubble_ratio=1 - sum(busy) / (ranks * window) if window else 0.0,
        rank_compute_ns=tuple(busy),
        peak_hbm_bytes=tuple(None if curve is None else max(level for _, level in curve) for curve in timeline.memory),
        overhead_bytes=timeline.overhead_bytes or (None,) * ranks,
    )
