"""What the messages and collectives of two ranks say of their clocks."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Anchor = tuple[int, int, int]
"""Time on the first rank, difference of the ends (second rank minus first), how long the receive lasted (ns)."""

_MOST_ANCHORS = 512
_LOW_QUANTILE = 0.05
_BUFFERED_NS = 1_000_000
_LAG_NS = 200_000
_COLLECTIVE_NS = 2_000.0  # ends of a collective differ by its topology, whatever their number
_MIXED_NS = 30_000.0
_LEAST_FOR_SLOPE = 4
_SLOPE_NOISE_NS = 500.0


class Anchors(NamedTuple):
    """Differences of ends between two ranks (second minus first), by how they came about.

    Attributes:
        there: Of receives on the second rank and their sends on the first.
        back: Of sends on the second rank and their receives on the first.
        both: Of kernels that carried messages both ways: which one ended last is not known.
        together: Of collectives.
    """

    there: list[Anchor]
    back: list[Anchor]
    both: list[Anchor]
    together: list[Anchor]


class _Columns(NamedTuple):
    """Anchors of one kind: times from the middle of the capture, differences of ends, how long receives lasted."""

    times: Array
    differences: Array
    lasted: Array


class Slope(NamedTuple):
    """Growth of the difference of two clocks (second minus first) by one kind of anchors, and its standard error."""

    value: float
    sd: float


class Edge(NamedTuple):
    """What the anchors of two ranks say of the second one's clock against the first's.

    Attributes:
        offset_ns: Difference of the clocks at the middle of the capture.
        offset_sd: Its standard error, ns.
        residuals: Distances of the anchors from what is usual for their kind, ns.
        anchors: Number of anchors.
    """

    offset_ns: float
    offset_sd: float
    residuals: Array
    anchors: int


def tells_offset(anchors: Anchors) -> bool:
    """Whether messages went both ways, or collectives say what one way alone cannot."""
    return bool((anchors.there and anchors.back) or anchors.both or anchors.together)


def slopes_of(anchors: Anchors, middle: int) -> list[Slope]:
    """How the difference of two clocks grows, by each kind of anchors that holds enough of them."""
    import numpy as np

    return [
        _slope(t, d) for t, d, _ in _prompt_columns(anchors, middle) if len(t) >= _LEAST_FOR_SLOPE and np.ptp(t) > 0
    ]


def join_pair(anchors: Anchors, middle: int, drift: float) -> Edge | None:
    """Offset of two clocks; None if messages went one way only.

    Args:
        anchors: The two ranks' anchors.
        middle: Middle of the capture, where the offset holds.
        drift: Growth of the difference, ns per ns.
    """
    there, back, both, together = (
        a._replace(differences=a.differences - drift * a.times) for a in _prompt_columns(anchors, middle)
    )
    there, back = _prompt(there, 1, _LAG_NS), _prompt(back, -1, _LAG_NS)
    return _offset(there, back, both.differences, together.differences, sum(map(len, anchors)))


def _prompt_columns(anchors: Anchors, middle: int) -> tuple[_Columns, _Columns, _Columns, _Columns]:
    """Anchors by kind; a send that was buffered ends long before its receive: it shows no lag, and is left out."""
    there, back, both, together = (_columns(a, middle) for a in anchors)
    return _prompt(there, 1, _BUFFERED_NS), _prompt(back, -1, _BUFFERED_NS), both, together


def _offset(there: _Columns, back: _Columns, both: Array, together: Array, anchors: int) -> Edge | None:
    import numpy as np

    estimates: list[tuple[float, float]] = []
    residuals = []
    if len(there.times) and len(back.times):
        estimates.append(_halfway(there, back))
        residuals += [
            np.abs(c.differences - np.quantile(c.differences, q))
            for c, q in ((there, _LOW_QUANTILE), (back, 1 - _LOW_QUANTILE))
        ]
    if len(together):
        level = float(np.median(together))
        estimates.append((level, max(_COLLECTIVE_NS, _error(together, level))))
        residuals.append(np.abs(together - level))
    if len(both) and not any(error < _MIXED_NS for _, error in estimates):
        # Unknown by half a lag: which side ended last is the same in all of them, or random.
        estimates.append((float(np.median(both)), _MIXED_NS))
        residuals.append(np.abs(both - np.median(both)))
    if not estimates:
        return None
    weights = np.array([1 / error**2 for _, error in estimates])
    offset = float(np.dot(weights, [value for value, _ in estimates]) / weights.sum())
    return Edge(offset, float(weights.sum() ** -0.5), np.concatenate(residuals), anchors)


def _halfway(there: _Columns, back: _Columns) -> tuple[float, float]:
    """The offset for which the lag is the same both ways, and its error.

    The two lags add up to the same whatever the clocks. If half of that is more than a receive lasted, the receive
    began after its send had ended: a buffered send, whose lag says nothing. The offset lies somewhere between the
    two bounds then.
    """
    import numpy as np

    out = float(np.quantile(there.differences, _LOW_QUANTILE))
    home = float(np.quantile(-back.differences, _LOW_QUANTILE))
    error = max(_error(there.differences, out), _error(-back.differences, home))
    lag = (out + home) / 2
    if lag > min(float(np.median(there.lasted)), float(np.median(back.lasted))):
        error = max(error, lag)
    return (out - home) / 2, error


def _columns(anchors: Sequence[Anchor], middle: int) -> _Columns:
    """Anchors in columns; evenly chosen if there are very many."""
    import numpy as np

    step = max(1, len(anchors) // _MOST_ANCHORS)
    rows = np.array(sorted(anchors)[::step], dtype=np.int64).reshape(-1, 3)
    return _Columns((rows[:, 0] - middle).astype(float), rows[:, 1].astype(float), rows[:, 2].astype(float))


def _prompt(columns: _Columns, sign: int, within_ns: int) -> _Columns:
    """The anchors with nearly the shortest lag seen."""
    if not len(columns.times):
        return columns
    lags = sign * columns.differences
    near = lags <= lags.min() + within_ns
    return _Columns(*(column[near] for column in columns))


def _error(values: Array, middle: float) -> float:
    """Standard error of a middle value, from the median distance to it; never below half a microsecond."""
    import numpy as np

    return max(500.0, 1.48 * float(np.median(np.abs(values - middle))) / math.sqrt(len(values)))


def _slope(t: Array, d: Array) -> Slope:
    """Slope of one kind of anchors and its standard error, by iteratively reweighted least squares."""
    import numpy as np

    weights = np.ones(len(t))
    slope, spread = 0.0, 1.0
    for _ in range(20):
        whole = weights.sum()
        tc, dc = t - (t * weights).sum() / whole, d - (d * weights).sum() / whole
        slope = float(np.sum(weights * tc * dc) / np.sum(weights * tc * tc))
        residuals = np.abs(dc - slope * tc)
        spread = max(1.48 * float(np.median(residuals)), _SLOPE_NOISE_NS)
        weights = 1 / np.maximum(residuals, spread / 10)
    scatter: float = ((t - t.mean()) ** 2).sum()
    return Slope(slope, spread / math.sqrt(scatter))


_MANY = 64
_WELL_JOINED = 1e-6


def least_squares(matrix: Array, measured: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    """What fits measurements best, and its error; of least length where they leave it open.

    Args:
        matrix: A row per measurement.
        measured: Value and standard deviation of each.
    """
    import numpy as np

    if not matrix.size:
        return np.zeros(matrix.shape[1]), np.ones(matrix.shape[1])
    values, errors = (np.array(column) for column in zip(*measured, strict=True))
    scaled = matrix / errors[:, None]
    if matrix.shape[1] > _MANY:
        # Singular values of a thousand ranks take ten seconds; where all are joined normal equations do.
        normal = scaled.T @ scaled
        with suppress(np.linalg.LinAlgError):
            pivots = np.diag(np.linalg.cholesky(normal))
            if pivots.min() > _WELL_JOINED * pivots.max():
                covariance, solution = np.linalg.inv(normal), np.zeros(len(normal))
                for _ in range(3):  # once, and what rounding left over
                    solution += covariance @ (scaled.T @ (values / errors - scaled @ solution))
                return solution, np.sqrt(np.maximum(np.diag(covariance), 0))
    solution, *_ = np.linalg.lstsq(scaled, values / errors, rcond=None)
    covariance = np.linalg.pinv(scaled.T @ scaled)
    return solution, np.sqrt(np.maximum(np.diag(covariance), 0))
