"""One measured configuration and what was predicted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.metrics import Metrics
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.validation.measured import MeasuredStep


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one row's configuration would take.

    Attributes:
        schedule: The order that was replayed.
        p2p: How its transfers were issued.
        metrics: Metrics of the replay.
        outside_ns: Host time around the device's work, as the Run's own step had it: measured steps include theirs.
        remarks: How costs or memory came about.
        left_over_microbatches: For how many more microbatches the row's process had receive buffers.
        left_over_bytes: What these take on each pipeline rank; empty if there are none.
    """

    schedule: Schedule
    p2p: P2PMode
    metrics: Metrics
    outside_ns: int = 0
    remarks: tuple[str, ...] = ()
    left_over_microbatches: int = 0
    left_over_bytes: tuple[int, ...] = ()

    @property
    def step_ns(self) -> int:
        """Wall time of the whole step."""
        return self.metrics.step_ns + self.outside_ns

    @property
    def peak_bytes(self) -> tuple[int | None, ...]:
        """Peak of each pipeline rank in a process that holds what the row's did."""
        more = self.left_over_bytes or (0,) * len(self.metrics.peak_hbm_bytes)
        return tuple(
            None if peak is None else peak + left for peak, left in zip(self.metrics.peak_hbm_bytes, more, strict=True)
        )


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One measured configuration and its prediction.

    Attributes:
        measured: The row of the file.
        prediction: What was predicted; None if it could not be.
        peak_bytes: Predicted peaks, in the order of the row's own peaks where it has some.
        reason: Why nothing was predicted.
    """

    measured: MeasuredStep
    prediction: Prediction | None = None
    peak_bytes: tuple[int | None, ...] = ()
    reason: str | None = None

    @property
    def error_ratio(self) -> float | None:
        """Predicted over measured step time, minus one; None without either."""
        if self.prediction is None or self.measured.step_ms is None:
            return None
        return self.prediction.step_ns / (self.measured.step_ms * 1e6) - 1

    @property
    def peak_error_ratios(self) -> tuple[float | None, ...]:
        """Predicted over measured peak, minus one, of each rank; None where one of them is unknown.

        Empty if the row has peaks of another number of ranks than was predicted for.
        """
        if len(self.measured.peak_bytes) != len(self.peak_bytes):
            return ()
        pairs = zip(self.measured.peak_bytes, self.peak_bytes, strict=True)
        return tuple(None if a is None or b is None else b / a - 1 for a, b in pairs)
