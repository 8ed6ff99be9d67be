"""Failures of a fleet as scenarios: what a step takes in each, at worst and on average, and which plan is best then.

A failure is a change of figures: ``wan.bandwidth=50%`` leaves a tier half of its bandwidth, ``rail.links=7/8`` loses
one of eight rails or links, whose messages go over the others evenly, and in ``dc1.speed=80%`` every forward and
backward of a device in that group takes a fourth longer. Several hold at once with commas. ``@2%`` says for which share
of the time; for the rest of it the fleet is whole.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import BadQuantity, ScenarioError
from tracetool.explore.judge import Judge, Judged
from tracetool.explore.progress import SearchWork
from tracetool.explore.search import PlanSearch
from tracetool.network.placement import place
from tracetool.units import parse_share_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.stages import JobCosts
    from tracetool.estimates.transport import OverTiers
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.search import SearchResults
    from tracetool.explore.space import Space

_RECHECKED = 100
"""So many of the fastest plans of the whole fleet are judged in each failure."""


class SlowGroup(NamedTuple):
    """Devices that compute more slowly.

    Attributes:
        tier: The tier whose group they are.
        group: Its number.
        speed_ratio: What is left of their speed.
    """

    tier: str
    group: int
    speed_ratio: float


@dataclass(frozen=True, slots=True)
class Failure:
    """One way in which a fleet is not whole.

    Attributes:
        text: As it was written, without its share of the time.
        narrowed: By tier, what is left of its bandwidth.
        slow: Groups of devices that compute more slowly.
        weight_ratio: For which share of the time; None if that was not said.
    """

    text: str
    narrowed: tuple[tuple[str, float], ...]
    slow: tuple[SlowGroup, ...]
    weight_ratio: float | None = None

    def of(self, workload: Workload) -> Workload:
        """The workload on the fleet with its tiers narrowed."""
        network = workload.choice.network
        left = dict(self.narrowed)
        tiers = tuple(tier.narrowed(1 / left[tier.name]) if tier.name in left else tier for tier in network.tiers)
        return replace(workload, choice=replace(workload.choice, network=replace(network, tiers=tiers)))


_CHANGE = re.compile(r"^(?P<where>[^.=]+)\.(?P<what>bandwidth|links|speed)=(?P<left>\S+)$")
_GROUP = re.compile(r"^(?P<tier>.*?)(?P<number>\d+)$")


def parse_failure(text: str, workload: Workload) -> Failure:
    """Read ``wan.bandwidth=50%,dc1.speed=80%@2%``.

    Args:
        text: What fails.
        workload: Whose tiers and groups are meant.

    Raises:
        ScenarioError: If it cannot be read, or leaves nothing.
        UnknownName: If there is no such tier.
    """
    changes, _, weight = text.partition("@")
    narrowed: dict[str, float] = {}
    slow = []
    for part in changes.split(","):
        match = _CHANGE.match(part.strip())
        if match is None:
            raise ScenarioError(
                f"{part.strip()!r} is no failure.",
                hint="as in wan.bandwidth=50%, rail.links=7/8 or dc1.speed=80%; several with commas, @2% of the time",
            )
        left = _left(match["left"], part.strip())
        if match["what"] == "speed":
            slow.append(_slow(match["where"], left, workload))
        else:
            tier = workload.choice.network.tiers[workload.choice.network.number(match["where"])]
            narrowed[tier.name] = narrowed.get(tier.name, 1.0) * left
    share = parse_share_ratio(weight.strip()) if weight else None
    if share is not None and not 0 <= share <= 1:
        raise ScenarioError(f"{weight.strip()!r} is no share of the time.", hint="from 0% to 100%")
    return Failure(changes.strip(), tuple(narrowed.items()), tuple(slow), share)


def _left(text: str, part: str) -> float:
    """What is left, as ``50%`` or ``7/8``."""
    over, slash, whole = text.partition("/")
    if slash and over.isdecimal() and whole.isdecimal() and int(whole):
        left = int(over) / int(whole)
    else:
        try:
            left = parse_share_ratio(text)
        except BadQuantity as error:
            raise ScenarioError(f"{part!r}: {error.message}", hint="50% or 7/8 of what it was") from error
    if not 0 < left <= 1:
        raise ScenarioError(
            f"{part!r} leaves {left:.0%}.", hint="more than nothing, at most all; what is gone, leave out"
        )
    return left


def _slow(where: str, left: float, workload: Workload) -> SlowGroup:
    match, network = _GROUP.match(where), workload.choice.network
    if match is None:
        raise ScenarioError(f"{where!r} is no group of devices.", hint="a tier and a number, as in dc1.speed=80%")
    level, number = network.number(match["tier"]), int(match["number"])
    if level and level == len(network.tiers) - 1:
        # Of the outermost tier those that it joins are meant, as its links are called: dc0-dc1.
        level -= 1
    tier = network.tiers[level]
    groups = network.devices // tier.size
    if number >= groups:
        named = match["tier"]
        raise ScenarioError(f"{network.name} has no {where}.", hint=f"{named}0 to {named}{groups - 1}")
    return SlowGroup(tier.name, number, left)


class FailureJudge(Judge):
    """Replays plans of a workload on a fleet that is not whole.

    Args:
        workload: What is to be trained, and on what, while all is whole.
        failure: What fails.

    Attributes:
        failure: The same.
    """

    def __init__(self, workload: Workload, failure: Failure) -> None:
        super().__init__(failure.of(workload))
        self.failure = failure

    def costs(self, plan: JobPlan) -> list[tuple[OverTiers, JobCosts]]:
        """What carries a plan, and its costs, of each sort of its pipelines: those with slow devices apart.

        Raises:
            BadTopology: If it does not fit on the network.
        """
        known = super().costs(plan)
        if not self.failure.slow:
            return known
        sorts = set(_slowness(self.workload, plan, self.failure.slow))
        return [
            (over, costs.slowed(factors))
            for over, costs in known
            for crossed, factors in sorts
            if crossed == tuple(hop.crossed for hop in over.line.hops)
        ]


def _slowness(
    workload: Workload, plan: JobPlan, slow: Sequence[SlowGroup]
) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Of each pipeline, the tiers at which neighbours meet, and how many times as long each rank's actions take."""
    network, degrees = workload.choice.network, plan.training.degrees
    placed = place(degrees, network, plan.placement, all_used=False)
    sizes = {tier.name: tier.size for tier in network.tiers}
    factor_of = [
        max([1.0, *(1 / one.speed_ratio for one in slow if device // sizes[one.tier] == one.group)])
        for device in placed.devices
    ]
    each = degrees.tp * degrees.cp
    for first in range(0, degrees.dp * each, each):
        stages = [range(rank := first + stage * degrees.dp * each, rank + each) for stage in range(degrees.pp)]
        ahead = [placed.devices[ranks[0]] for ranks in stages]
        crossed = tuple(network.crossed(a, b) or 0 for a, b in zip(ahead, [*ahead[1:], ahead[0]], strict=True))
        # All ranks of a stage wait for each other.
        yield crossed, tuple(max(factor_of[rank] for rank in ranks) for ranks in stages)


@dataclass(frozen=True)
class FailureOutcome:
    """What a failure does.

    Attributes:
        failure: The failure.
        kept: The plan that is best while all is whole; refused if it cannot run then.
        best: The plan that is best then; None if none can run.
    """

    failure: Failure
    kept: Judged
    best: Judged | None


class Weighed(NamedTuple):
    """A plan over all failures.

    Attributes:
        plan: The plan.
        whole_ns: Its step while all is whole.
        worst_ns: Its longest step.
        expected_ns: Its mean step, each failure for its share of the time; None if no share was said.
    """

    plan: JobPlan
    whole_ns: int
    worst_ns: int
    expected_ns: float | None


@dataclass(frozen=True)
class Failures:
    """What failures of the fleet do to the plans of a space.

    Attributes:
        outcomes: Of each failure.
        kept: The plan that is best while all is whole; None if it cannot run in one of them.
        least_worst: The plan whose longest step is the shortest; None if no plan runs in all.
        least_expected: The one with the shortest mean step; None without shares of the time.
        cut: Failures in which the space was not searched to its end when the time was up.
    """

    outcomes: tuple[FailureOutcome, ...]
    kept: Weighed | None
    least_worst: Weighed | None
    least_expected: Weighed | None
    cut: tuple[str, ...] = ()


def weigh_failures(
    space: Space, results: SearchResults, failures: Sequence[Failure], *, ends: float | None = None
) -> Failures:
    """Judge plans in every failure, and search the space in each.

    Args:
        space: The space that was searched.
        results: What the search found while all is whole.
        failures: What may fail.
        ends: When the time is up, of ``time.monotonic``: then plans found so far alone are judged.

    Raises:
        ScenarioError: If shares of the time are more than all of it, or some failures have one and others have none.
    """
    _check_weights(failures)
    if results.best is None:
        return Failures((), None, None, None)
    judges = [FailureJudge(space.workload, failure) for failure in failures]
    plans = {judged.plan: judged for judged in results.judged[:_RECHECKED]}
    bests, cut = [], []
    for judge in judges:
        again = None
        if ends is None or time.monotonic() < ends:
            failing = replace(space, workload=judge.workload)
            again = PlanSearch(failing, judge, SearchWork(ends=ends)).run()
        if again is None or again.open:
            cut.append(judge.failure.text)
        bests.append(None if again is None else again.best)
    others = [judged.plan for judged in bests if judged is not None and judged.plan not in plans]
    plans |= {judged.plan: judged for judged in Judge(space.workload).judge(list(dict.fromkeys(others))) if judged.runs}
    in_each = [judge.judge(list(plans)) for judge in judges]
    outcomes = tuple(
        FailureOutcome(failure, done[0], min((one for one in done if one.runs), key=_step_ns, default=None))
        for failure, done in zip(failures, in_each, strict=True)
    )
    weighed = [
        None if any(not one.runs for one in steps) else _weighed(whole, steps, failures)
        for whole, steps in zip(plans.values(), zip(*in_each, strict=True), strict=True)
    ]
    run = [one for one in weighed if one is not None]
    is_weighted = bool(run) and run[0].expected_ns is not None
    return Failures(
        outcomes,
        weighed[0],
        min(run, key=lambda one: one.worst_ns, default=None),
        min(run, key=lambda one: one.expected_ns or 0) if is_weighted else None,
        tuple(cut),
    )


def _step_ns(judged: Judged) -> int:
    return judged.step_ns


def _weighed(whole: Judged, steps: Sequence[Judged], failures: Sequence[Failure]) -> Weighed:
    weights = [failure.weight_ratio for failure in failures]
    expected = None
    if all(weight is not None for weight in weights):
        rest = 1 - sum(weight or 0.0 for weight in weights)
        failing = zip(weights, steps, strict=True)
        expected = rest * whole.step_ns + sum((weight or 0.0) * one.step_ns for weight, one in failing)
    return Weighed(whole.plan, whole.step_ns, max(whole.step_ns, *map(_step_ns, steps)), expected)


def _check_weights(failures: Sequence[Failure]) -> None:
    weights = [failure.weight_ratio for failure in failures if failure.weight_ratio is not None]
    if weights and len(weights) < len(failures):
        unsaid = next(failure.text for failure in failures if failure.weight_ratio is None)
        raise ScenarioError(
            f"for which share of the time {unsaid} holds is not said.", hint="add @2% to it, or to none"
        )
    if sum(weights) > 1 + 1e-9:
        raise ScenarioError(f"failures hold {sum(weights):.0%} of the time.", hint="at most 100% together")
