"""The series of a history, each with the last step it took.

Whether a series has taken a step: the best fit of constant pieces, as asv looks at benchmarks.

The fit minimises the sum of squares plus a price for each piece (Killick, Fearnhead and Eckley, "Optimal detection of
changepoints with a linear computational cost", 2012; here the plain optimal partitioning of Jackson et al. 2005, for
series are short). The price is ``PRICE`` x variance x log(n); the variance comes from the median difference of
neighbours, which a few steps do not move.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf, log, sqrt
from statistics import fmean, median
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError, UnknownName
from tracetool.model.schedule import OBSERVED
from tracetool.tables.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.baselines import Value

PRICE = 6.0
"""Of noise alone (20 entries that scatter by 2.7 %, 1,000 series) 3 % have a certain step, either way."""

_LEAST_NOISE_RATIO = 1e-6
"""Of the level: replay has no noise, and rounding is none."""


@dataclass(frozen=True, slots=True)
class SeriesStep:
    """The last step of a series.

    Attributes:
        first: Position of the first value after it.
        before: Mean of the piece before it.
        after: Mean of the piece after it.
        is_certain: Whether more than one value lies in the pieces before and after it, or the series has no noise
            otherwise.
    """

    first: int
    before: float
    after: float
    is_certain: bool

    @property
    def change_ratio(self) -> float:
        """After over before, minus one."""
        return self.after / self.before - 1 if self.before else inf


def pieces(values: Sequence[float], *, is_exact: bool = False) -> list[int]:
    """Where the pieces of the best fit begin, 0 first.

    Args:
        values: The series.
        is_exact: Whether values have no noise.
    """
    count = len(values)
    if count < 2:
        return [0] * bool(count)
    # Squares of large numbers that differ little lose their digits: what is fitted is the distance from the first.
    level = max(map(abs, values)) or 1.0
    values = [(value - values[0]) / level for value in values]
    price = PRICE * _noise(values, is_exact=is_exact) ** 2 * log(count)
    sums, squares = [0.0, *accumulate(values)], [0.0, *accumulate(v * v for v in values)]

    def cost(start: int, end: int) -> float:
        total = sums[end] - sums[start]
        return max(0.0, squares[end] - squares[start] - total * total / (end - start))

    best, begins = [-price], [0]
    for end in range(1, count + 1):
        cost_of, start = min((best[start] + cost(start, end) + price, start) for start in range(end))
        best.append(cost_of)
        begins.append(start)
    cuts, at = [], count
    while at:
        at = begins[at]
        cuts.append(at)
    return cuts[::-1]


def _noise(values: Sequence[float], *, is_exact: bool) -> float:
    """Standard deviation of the noise of values near 1, from the differences of neighbours.

    By their median, which a few steps do not move; where most neighbours are equal that says nothing, and their mean
    stands in (of normal noise 1.128 standard deviations).
    """
    if is_exact:
        return _LEAST_NOISE_RATIO
    apart = [abs(b - a) for a, b in pairwise(values)]
    return max(median(apart) * 1.4826 / sqrt(2), 0 if median(apart) else fmean(apart) / 1.128, _LEAST_NOISE_RATIO)


def last_step(values: Sequence[float], least_change_ratio: float, *, is_exact: bool) -> SeriesStep | None:
    """The last step of a series that changes its level by so much at least; None if there is none.

    Args:
        values: The series, in order.
        least_change_ratio: Smaller steps do not count.
        is_exact: Whether values have no noise, as those of replay: then a single one after a step is certain.
    """
    starts = pieces(values, is_exact=is_exact)
    bounds = [*starts, len(values)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    for number in range(len(starts) - 1, 0, -1):
        before, after, first = means[number - 1], means[number], starts[number]
        if abs(after - before) >= least_change_ratio * abs(before):
            # One value alone, before it or after it, may be an outlier.
            several = min(len(values) - first, first - starts[number - 1]) > 1
            is_certain = several or (is_exact and len(set(values[:first])) == 1)
            return SeriesStep(first, before, after, is_certain)
    return None


@dataclass(frozen=True, slots=True)
class Trend:
    """One metric of one schedule over the entries.

    Attributes:
        schedule: ``observed``, or what was replayed.
        scenario: Digest of the what-if; empty for what was observed.
        metric: Its name.
        values: Those of the last entries that have it, in order.
        step: The last step they took, if any.
    """

    schedule: str
    scenario: str
    metric: str
    values: tuple[Value, ...]
    step: SeriesStep | None

    @property
    def is_regression(self) -> bool:
        """Whether the step is certain, and to the worse."""
        if self.step is None or not self.step.is_certain:
            return False
        grew = self.step.after > self.step.before
        return grew == (METRICS[self.metric].better == "lower")


def trends(
    values: Sequence[Value],
    *,
    metric: str | None = None,
    schedule: str | None = None,
    last: int = 20,
    least_change_ratio: float = 0.02,
) -> list[Trend]:
    """Every series of a history, in order of appearance.

    Args:
        values: The history.
        metric: Only this one.
        schedule: Only this one.
        last: So many entries are looked at.
        least_change_ratio: Smaller steps do not count.

    Raises:
        ScenarioError: If the history has nothing of the kind.
        UnknownName: If no metric is called so.
    """
    if metric is not None and metric not in METRICS:
        raise UnknownName("metric", metric, METRICS)
    series: dict[tuple[str, str, str], list[Value]] = {}
    recent = set(sorted({value.entry for value in values})[-last:])
    for value in values:
        wanted = value.entry in recent and metric in (None, value.metric) and schedule in (None, value.schedule)
        if wanted:
            series.setdefault((value.schedule, value.scenario, value.metric), []).append(value)
    if not series:
        known = ", ".join(dict.fromkeys(value.schedule for value in values)) or "nothing"
        raise ScenarioError(
            f"the history has no such figures; it is about {known}.", hint=f"leave {Option.SCHEDULE} out"
        )
    every = []
    for (name, scenario, of), of_series in series.items():
        kept = tuple(of_series)
        # Replays have no noise, but those of other recordings vary as these do.
        is_exact = name != OBSERVED and len({one.digest for one in kept}) == 1
        step = last_step([one.value for one in kept], least_change_ratio, is_exact=is_exact)
        every.append(Trend(name, scenario, of, kept, step))
    return every
