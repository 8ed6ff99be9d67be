"""Where published figures arise in a sweep: at which microbatches and distances, under which definition of a bubble."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from tracetool.studies.geopipe import BUBBLE_REDUCTION, ITERATION_REDUCTION, TOLERANCE
from tracetool.studies.geopipe.sweep import BASELINES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.model.pipeline import P2PMode
    from tracetool.studies.geopipe.sweep import PaperSweep

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

Definition = Literal["bubble_ratio", "bubble_ns", "cross_dc_bubble_ns"]
DEFINITIONS: tuple[Definition, ...] = ("bubble_ratio", "bubble_ns", "cross_dc_bubble_ns")
"""Idle share of the window; idle time; window minus the window of the same order over free links."""


def bubble_reduction(swept: PaperSweep, baseline: P2PMode, definition: Definition) -> Floats:
    """1 - bubble with extra forwards / bubble of 1F1B, at every point; 0 where 1F1B has none."""
    import numpy as np

    before, after = swept.window_ns[baseline], swept.deeper_ns
    if definition == "cross_dc_bubble_ns":
        before_bubble: Floats = (before - swept.free_ns[baseline]).astype(float)
        after_bubble: Floats = (after - swept.deeper_free_ns).astype(float)
    else:
        before_bubble, after_bubble = before - swept.compute_ns, after - swept.compute_ns
    if definition == "bubble_ratio":
        before_bubble, after_bubble = before_bubble / before, after_bubble / after
    return 1 - np.divide(after_bubble, before_bubble, out=np.ones_like(before_bubble), where=before_bubble > 0)


def iteration_reduction(swept: PaperSweep, baseline: P2PMode) -> Floats:
    """1 - window with extra forwards / window of 1F1B, at every point."""
    return 1 - swept.deeper_ns / swept.window_ns[baseline]


def arises(values: Floats, target: float, tolerance: float = TOLERANCE) -> Bools:
    """Where a figure arises: at a point within the tolerance, or between it and the point of the next distance.

    Reductions are continuous in the distance, so one that passes the figure between two distances takes it there.
    """
    import numpy as np

    is_near: Bools = np.abs(values - target) <= tolerance
    passes = (values[..., :-1] - target) * (values[..., 1:] - target) < 0
    is_near[..., :-1] |= passes
    return is_near


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the sweep and what replay gives there.

    Attributes:
        efficiency_ratio: See Grid, as the next ones.
        microbatches: As above.
        split: As above.
        sharing: As above.
        bandwidth_gbit_per_s: As above.
        distance_km: As above.
        depth: Extra forwards per boundary.
        bubble_reduction: Under the definition looked at; None if none was.
        iteration_reduction: Of the window.
    """

    efficiency_ratio: float
    microbatches: int
    split: tuple[int, ...]
    sharing: int
    bandwidth_gbit_per_s: int
    distance_km: int
    depth: int
    bubble_reduction: float | None
    iteration_reduction: float


@dataclass(frozen=True, slots=True)
class FigureOrigin:
    """Where a figure arises for one model, one baseline and one definition.

    Attributes:
        baseline: How 1F1B, which it is compared with, issues its transfers.
        definition: Definition of the bubble; None for the iteration.
        least: Smallest reduction of the sweep.
        most: Largest.
        points: Points at which it arises.
        total: Points looked at: those that fit the memory limit.
        shares: Per number of microbatches and distance, the share of the other settings at which it arises.
        nearest: The point closest to it; None if no point fits the memory limit.
        highest: The point of the largest reduction; None likewise.
        left_ratio: There, the share of the idle time left that free links would leave as well: fill, drain and
            unequal stages.
    """

    baseline: P2PMode
    definition: Definition | None
    least: float
    most: float
    points: int
    total: int
    shares: tuple[tuple[float, ...], ...]
    nearest: Point | None
    highest: Point | None
    left_ratio: float


def least_idle_ratio(swept: PaperSweep) -> float:
    """Smallest idle share of any point over free links: fill, drain and unequal stages; 1 if no point fits memory."""
    idle = 1 - swept.compute_ns / swept.deeper_free_ns
    return float(idle[swept.feasible].min(initial=1.0))


def bubble_findings(swept: PaperSweep) -> tuple[FigureOrigin, ...]:
    """Where the published reduction of bubbles arises, by baseline and definition."""
    return tuple(
        _finding(swept, baseline, definition, bubble_reduction(swept, baseline, definition), BUBBLE_REDUCTION)
        for definition in DEFINITIONS
        for baseline in BASELINES
    )


def iteration_findings(swept: PaperSweep) -> tuple[FigureOrigin, ...]:
    """Where the published reduction of the iteration arises, by baseline."""
    return tuple(
        _finding(swept, baseline, None, iteration_reduction(swept, baseline), ITERATION_REDUCTION)
        for baseline in BASELINES
    )


def both_findings(swept: PaperSweep) -> tuple[FigureOrigin, ...]:
    """Where one configuration shows both published figures, by baseline and definition."""
    import numpy as np

    findings = []
    for definition in DEFINITIONS:
        for baseline in BASELINES:
            bubbles = bubble_reduction(swept, baseline, definition)
            iterations = iteration_reduction(swept, baseline)
            hits = arises(bubbles, BUBBLE_REDUCTION) & arises(iterations, ITERATION_REDUCTION)
            off = np.maximum(np.abs(bubbles - BUBBLE_REDUCTION), np.abs(iterations - ITERATION_REDUCTION))
            findings.append(_origin(swept, baseline, definition, bubbles, hits, off))
    return tuple(findings)


@dataclass(frozen=True, slots=True)
class Joint:
    """What one configuration with both published figures would have to be, whatever its links and costs.

    Attributes:
        before_ratio: Idle share with 1F1B.
        after_ratio: Idle share with extra forwards.
        least_microbatches: Fewest microbatches at which fill and drain of equal stages alone are no more than that.
    """

    before_ratio: float
    after_ratio: float
    least_microbatches: int


def joint(stages: int, definition: Literal["bubble_ratio", "bubble_ns"]) -> Joint:
    """Both figures in one configuration, with all idle time counted (derived; schedules with the same compute).

    With x the iteration's reduction and r that of the bubble, and b0, b1 the idle shares of windows T0 and
    T1 = (1 - x) T0: (1 - b0) / (1 - b1) = 1 - x. As a share of the window b1 = (1 - r) b0, so
    b0 = x / (1 - (1 - r)(1 - x)); as time b1 T1 = (1 - r) b0 T0, so b0 = x / r. Fill and drain alone are
    (p - 1) / (m + p - 1) of the window.
    """
    x, r = ITERATION_REDUCTION, BUBBLE_REDUCTION
    if definition == "bubble_ratio":
        before = x / (1 - (1 - r) * (1 - x))
        after = (1 - r) * before
    else:
        before = x / r
        after = (1 - r) * before / (1 - x)
    return Joint(before, after, ceil((stages - 1) * (1 / after - 1)))


def _finding(
    swept: PaperSweep, baseline: P2PMode, definition: Definition | None, values: Floats, target: float
) -> FigureOrigin:
    import numpy as np

    return _origin(swept, baseline, definition, values, arises(values, target), np.abs(values - target))


def _origin(
    swept: PaperSweep, baseline: P2PMode, definition: Definition | None, values: Floats, hits: Bools, off: Floats
) -> FigureOrigin:
    import numpy as np

    fit = swept.feasible
    hits = hits & fit
    known = values[fit]
    per_cell = fit.sum(axis=(0, 2, 3, 4))
    shares = np.divide(hits.sum(axis=(0, 2, 3, 4)), per_cell, out=np.zeros(per_cell.shape), where=per_cell > 0)
    nearest, highest, left = None, None, 0.0
    if known.size:
        nearest = point_at(swept, _where(np.where(fit, off, np.inf)), baseline, definition)
        most = _where(np.where(fit, -values, np.inf))
        highest = point_at(swept, most, baseline, definition)
        idle = swept.deeper_ns[most] - swept.compute_ns[most]
        left = float((swept.deeper_free_ns[most] - swept.compute_ns[most]) / idle) if idle else 0.0
    return FigureOrigin(
        baseline=baseline,
        definition=definition,
        least=float(known.min(initial=1)) if known.size else 0.0,
        most=float(known.max(initial=0)) if known.size else 0.0,
        points=int(hits.sum()),
        total=int(fit.sum()),
        shares=tuple(tuple(row) for row in shares.tolist()),
        nearest=nearest,
        highest=highest,
        left_ratio=left,
    )


def _where(off: Floats) -> tuple[int, ...]:
    import numpy as np

    return tuple(int(i) for i in np.unravel_index(int(off.argmin()), off.shape))


def point_at(swept: PaperSweep, at: Sequence[int], baseline: P2PMode, definition: Definition | None) -> Point:
    """A point of the sweep by its place on the axes."""
    grid, place = swept.grid, tuple(at)
    e, m, s, n, bandwidth, km = place
    bubbles = None if definition is None else float(bubble_reduction(swept, baseline, definition)[place])
    return Point(
        efficiency_ratio=grid.efficiency_ratios[e],
        microbatches=grid.microbatches[m],
        split=grid.splits[s],
        sharing=grid.sharing[n],
        bandwidth_gbit_per_s=grid.bandwidths_gbit_per_s[bandwidth],
        distance_km=grid.distances_km[km],
        depth=int(swept.depth[place]),
        bubble_reduction=bubbles,
        iteration_reduction=float(iteration_reduction(swept, baseline)[place]),
    )
