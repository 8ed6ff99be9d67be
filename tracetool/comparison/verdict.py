"""Verdicts: what changed for certain, what did not, and what cannot be told.

Of the same traces every number must be the same: replay has no noise. Steps of other traces vary: a change counts if
the rank test tells the sets apart and the medians lie apart by a least effect. Too few values to tell are
inconclusive, never unchanged.

The Mann-Whitney U test: do two sets of measurements come from one distribution?

H. B. Mann, D. R. Whitney: On a test of whether one of two random variables is stochastically larger than the other.
Annals of Mathematical Statistics 18 (1947). Ties take their mean rank; the spread of the approximation is then as in
E. L. Lehmann, Nonparametrics (1975), 1.2.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from tracetool.comparison.values import KNOWN, Key, Values
from tracetool.tables.metrics import OF_STEP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.tables.metrics import Metric

_MOST_STRATA = 24
"""Sums over more strata are close to normal, and counting them out takes long."""
_MOST_EXACT = 50
"""With so many values in both sets together the distribution is counted out, beyond it is close to normal."""


def two_sided_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Chance of rank sums at least as uneven as these if both sets come from one distribution.

    Counted over all ways to deal the values out, ties and all, for up to 50 values; else the normal approximation with
    corrections for ties and continuity.

    Args:
        first: At least one value.
        second: At least one value.
    """
    ranks = _double_ranks([*first, *second])
    doubled = sum(ranks[: len(first)])
    if len(ranks) <= _MOST_EXACT:
        return _counted(tuple(sorted(ranks)), len(first), doubled)
    return _approximate(ranks, len(first), doubled)


def stratified_p(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The same of values that are only comparable within their stratum: rank sums within each, added up.

    Counted over all ways to deal the values out within strata (P. van Elteren: On the combination of independent two
    sample tests of Wilcoxon. Bulletin de l'Institut International de Statistique 37, 1960; strata of equal sizes); of
    more than 24 strata the normal approximation.

    Args:
        pairs: Per stratum the values of both sets, at least one each.
    """
    if len(pairs) > _MOST_STRATA:
        return _approximate_strata(pairs)
    together = {0: 1}
    doubled = expected = 0
    for first, second in pairs:
        ranks = _double_ranks([*first, *second])
        doubled += sum(ranks[: len(first)])
        expected += len(first) * (len(ranks) + 1)
        ways = _ways(tuple(sorted(ranks)), len(first))
        added: dict[int, int] = {}
        for before, many in together.items():
            for total, more in ways.items():
                added[before + total] = added.get(before + total, 0) + many * more
        together = added
    count = sum(together.values())
    uneven = sum(many for total, many in together.items() if abs(total - expected) >= abs(doubled - expected))
    return uneven / count


def _approximate_strata(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    distance = variance = 0.0
    for first, second in pairs:
        ranks, size, total = _double_ranks([*first, *second]), len(first), len(first) + len(second)
        distance += sum(ranks[:size]) / 2 - size * (total + 1) / 2
        variance += _variance(ranks, size)
    if variance <= 0:
        return 1.0
    return math.erfc(max(0.0, abs(distance) - 0.5) / math.sqrt(2 * variance))


def least_stratified_p(sizes: Sequence[tuple[int, int]]) -> float:
    """The smallest value that ``stratified_p`` can give for strata of such sizes, none of their values alike."""
    return min(1.0, 2 / math.prod(math.comb(first + second, first) for first, second in sizes))


_LORD = {2: 3.427, 3: 1.272}
"""Distance of two means over the mean range of both sets that one in twenty exceeds, for sets of two and of three of
one normal distribution: E. Lord, The use of range in place of standard deviation in the t-test. Biometrika 34 (1947).
"""


def further_apart_than_steps(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether two sets, too small for a rank test, lie further apart than their own values do.

    Of two and three values Lord's range test decides, at 5 %; of more, the larger range (his bound is below it). Of
    single values nothing is known: they count as apart.

    Args:
        first: At least one value.
        second: At least one value.
    """
    ranges = [max(values) - min(values) for values in (first, second)]
    few = min((len(values) for values in (first, second) if len(values) > 1), default=1)
    bound = _LORD[few] * sum(ranges) / sum(map(bool, ranges)) if few in _LORD and any(ranges) else max(ranges)
    return abs(sum(first) / len(first) - sum(second) / len(second)) > bound


def least_p(first: int, second: int) -> float:
    """The smallest value that ``two_sided_p`` can give for sets of such sizes, none of their values alike."""
    return min(1.0, 2 / math.comb(first + second, first)) if first and second else 1.0


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Twice the rank of each value, from 2; values that are alike have their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0] * len(values)
    below = 0
    for _, group in groupby(order, key=values.__getitem__):
        alike = list(group)
        for place in alike:
            ranks[place] = 2 * below + len(alike) + 1
        below += len(alike)
    return ranks


@lru_cache(maxsize=256)
def _ways(ranks: tuple[int, ...], size: int) -> dict[int, int]:
    """Per sum of doubled ranks, in how many ways so many of them are chosen that have it."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] = ways[chosen].get(total + rank, 0) + count
    return ways[size]


def _counted(ranks: tuple[int, ...], size: int, doubled: int) -> float:
    expected = size * (len(ranks) + 1)
    ways = _ways(ranks, size)
    uneven = sum(count for total, count in ways.items() if abs(total - expected) >= abs(doubled - expected))
    return uneven / math.comb(len(ranks), size)


def _approximate(ranks: Sequence[int], size: int, doubled: int) -> float:
    total, variance = len(ranks), _variance(ranks, size)
    if variance <= 0:
        return 1.0
    distance = max(0.0, abs(doubled - size * (total + 1)) / 2 - 0.5)
    return math.erfc(distance / math.sqrt(2 * variance))


def _variance(ranks: Sequence[int], size: int) -> float:
    """Variance of the sum of so many of them, ties and all."""
    total, other = len(ranks), len(ranks) - size
    ties = sum((n := len(list(group))) ** 3 - n for _, group in groupby(sorted(ranks)))
    return size * other / 12 * (total + 1 - ties / (total * (total - 1)))


Verdict = Literal["improved", "unchanged", "regressed", "inconclusive"]
Sampled = Literal["steps", "actions", "exact"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When a change counts.

    Attributes:
        alpha: Chance at which the rank test calls equal sets different; shared among the parts of a step that are
            tested alike (Bonferroni).
        least_ratio: Least change of a median, as a ratio.
        least_share_ratio: Least change of an action, message or tail, times how often a step has it, as a share of
            the step.
    """

    alpha: float = 0.01
    least_ratio: float = 0.02
    least_share_ratio: float = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One value side by side.

    Attributes:
        key: What it is of.
        base: Median of the base; None if it has none.
        new: Median of the new side; None if it has none.
        base_count: Values that the base's median is of.
        new_count: Values that the new median is of.
        sampled: What the values are of: steps, single actions (of steps too few to test), or figures that are exact.
        p: Chance of the rank test; None if nothing was tested.
        verdict: The verdict.
        why: Why nothing can be told, or why a change does not count; None where the verdict says all.
    """

    key: Key
    base: float | None
    new: float | None
    base_count: int
    new_count: int
    sampled: Sampled
    p: float | None
    verdict: Verdict
    why: str | None = None

    @property
    def metric(self) -> Metric:
        """What it measures."""
        return KNOWN[self.key.metric]

    @property
    def change(self) -> float | None:
        """New minus base."""
        return None if self.base is None or self.new is None else self.new - self.base

    @property
    def change_ratio(self) -> float | None:
        """New over base, minus one; None if the base is 0 or one is unknown."""
        return None if self.change is None or not self.base else self.change / abs(self.base)


def judge(
    base: Mapping[Key, Values], new: Mapping[Key, Values], rules: Rules, *, same_traces: bool
) -> tuple[Line, ...]:
    """A line for every key of either side.

    Args:
        base: Values of the base.
        new: Values of the new side.
        rules: When a change counts.
        same_traces: Whether both sides are of the same traces: then values must be the same.
    """
    keys = [*base, *(key for key in new if key not in base)]
    families = Counter(key.metric for key in keys if key in base and key in new and is_part(key))
    step = base[Key("step_ns")].typical if Key("step_ns") in base else 0
    lines = []
    for key in keys:
        b, n = base.get(key), new.get(key)
        if b is None or n is None:
            lines.append(_one_sided(key, b, n))
        elif same_traces:
            lines.append(_exact(key, b, n, 0.0))
        else:
            # Replays by the same steps vary together, as the metrics of a step do: they share no alpha.
            alpha = rules.alpha / (families[key.metric] if is_part(key) else 1)
            lines.append(_tested(key, b, n, alpha, rules, step))
    return tuple(lines)


def _one_sided(key: Key, base: Values | None, new: Values | None) -> Line:
    known = base or new
    side = "base" if base is None else "new side"
    return Line(
        key=key, base=None if base is None else base.typical, new=None if new is None else new.typical,
        base_count=len(base.per_step) if base else 0, new_count=len(new.per_step) if new else 0,
        sampled="steps" if known and len(known.per_step) > 1 else "exact", p=None, verdict="inconclusive",
        why=f"the {side} has none",
    )  # fmt: skip


def _exact(key: Key, base: Values, new: Values, least_ratio: float) -> Line:
    before, after = base.typical, new.typical
    verdict: Verdict = "unchanged"
    if not least_ratio and base != new:
        # Where medians agree and values do not, the tool measures otherwise: no better, so worse.
        verdict = _direction(key, after - before or 1)
    elif abs(after - before) > least_ratio * abs(before):
        verdict = _direction(key, after - before)
    return Line(
        key=key, base=before, new=after, base_count=len(base.all), new_count=len(new.all), sampled="exact", p=None,
        verdict=verdict,
    )  # fmt: skip


def _direction(key: Key, change: float) -> Verdict:
    worse = change > 0 if KNOWN[key.metric].better == "lower" else change < 0
    return "regressed" if worse else "improved"


def _tested(key: Key, base: Values, new: Values, alpha: float, rules: Rules, step_ns: float) -> Line:
    is_size = KNOWN[key.metric].unit == "bytes"
    if is_size and len(set(base.per_step)) == 1 == len(set(new.per_step)):
        return _exact(key, base, new, rules.least_ratio)
    b, n = base.typical, new.typical
    sampled, p = _chance(base, new, alpha)
    least = rules.least_ratio * abs(b)
    of_step = 0.0
    if key.metric in {"action_ns", "transfer_ns", "tail_ns"}:
        of_step = rules.least_share_ratio * step_ns / max(1, len(base.by_microbatch))
    verdict, why = _verdict(key, n - b, max(least, of_step), p, alpha)
    if verdict == "unchanged" and least <= abs(n - b) < of_step:
        why = f"less than {rules.least_share_ratio:.1%} of the step"
    counts = [len(base.per_step), len(new.per_step)]
    if p is None:
        why = f"{counts[0]} and {counts[1]} steps are too few to tell"
    elif sampled == "actions":
        counts = [len(base.all), len(new.all)]
    return Line(
        key=key, base=b, new=n, base_count=counts[0], new_count=counts[1], sampled=sampled, p=p, verdict=verdict,
        why=why,
    )  # fmt: skip


def _chance(base: Values, new: Values, alpha: float) -> tuple[Sampled, float | None]:
    """Chance that both are alike: of steps, else of microbatch against microbatch, else of all actions together.

    Actions tell only where the sides lie further apart than the steps of either.
    """
    if least_p(len(base.per_step), len(new.per_step)) <= alpha:
        return "steps", two_sided_p(base.per_step, new.per_step)
    before, after = base.by_microbatch, new.by_microbatch
    if not before or not after:
        return "steps", None
    if not further_apart_than_steps(base.per_step, new.per_step):
        # Microbatches of one step vary together: where steps vary as much, their number proves nothing.
        return "steps", two_sided_p(base.per_step, new.per_step)
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
        if least_stratified_p([(len(b), len(n)) for b, n in pairs]) <= alpha:
            return "actions", stratified_p(pairs)
    if least_p(len(base.all), len(new.all)) <= alpha:
        return "actions", two_sided_p(base.all, new.all)
    return "steps", None


def _verdict(key: Key, change: float, least: float, p: float | None, alpha: float) -> tuple[Verdict, str | None]:
    if p is None:
        return "inconclusive", None
    if abs(change) < least or not change:
        return "unchanged", None
    if p > alpha:
        return "inconclusive", "steps vary as much"
    return _direction(key, change), None


def is_part(key: Key) -> bool:
    """Whether a key is about a part of a step: a stage, a message, a rank."""
    return bool(key.scope) and not key.is_of_replay


def is_headline(key: Key) -> bool:
    """Whether a key is about the whole step."""
    return not key.scope and (key.metric in OF_STEP or key.metric == "peak_hbm_bytes")


def is_goal(key: Key) -> bool:
    """Whether a key is of what is to be small, of the job or in a replay; the rest says how that comes about."""
    return key.metric in ("step_ns", "peak_hbm_bytes") and not is_part(key)
