"""One measured configuration and what was predicted of it.

Kendall's rank correlation: do predictions put configurations in the measured order?
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isqrt, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.notice import Notice
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Metrics
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
    remarks: tuple[Notice, ...] = ()
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


def kendall_tau_b(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings of the same things.

    tau_b = (C - D) / sqrt((n0 - n1)(n0 - n2)), with C and D the pairs both rank alike and the other way round, n0 all
    pairs, n1 and n2 those tied in the first and in the second (Kendall, Biometrika 33, 1945). Pairs are counted in
    whole numbers, by Knight's merge sort (JASA 61, 1966) in n log n.

    Returns:
        -1 to 1; None if either holds no two different values.
    """
    pairs = sorted(zip(first, second, strict=True))
    every = _pairs([len(pairs)])
    tied_first = _pairs(Counter(a for a, _ in pairs).values())
    tied_second = _pairs(Counter(b for _, b in pairs).values())
    tied_both = _pairs(Counter(pairs).values())
    if every in (tied_first, tied_second):
        return None
    discordant = _inversions([b for _, b in pairs])[1]
    difference = every - tied_first - tied_second + tied_both - 2 * discordant
    product = (every - tied_first) * (every - tied_second)
    root = isqrt(product)
    return difference / (root if root * root == product else sqrt(product))


def _pairs(sizes: Iterable[int]) -> int:
    return sum(n * (n - 1) // 2 for n in sizes)


def _inversions(values: list[float]) -> tuple[list[float], int]:
    """The values sorted, and how many pairs stood the wrong way round."""
    if len(values) < 2:
        return values, 0
    middle = len(values) // 2
    (left, a), (right, b) = _inversions(values[:middle]), _inversions(values[middle:])
    merged: list[float] = []
    count, at = a + b, 0
    for value in right:
        while at < len(left) and left[at] <= value:
            merged.append(left[at])
            at += 1
        count += len(left) - at
        merged.append(value)
    return merged + left[at:], count
