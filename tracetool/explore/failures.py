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
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tracetool.errors import BadQuantity, ScenarioError
from tracetool.explore.judge import Judge, Judged
from tracetool.explore.progress import SearchWork
from tracetool.explore.search import PlanSearch
from tracetool.network.placement import place
from tracetool.units import parse_share_ratio

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.estimates.stages import JobCosts
    from tracetool.estimates.transport import OverTiers
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.search import SearchResults
    from tracetool.explore.space import Space
    from tracetool.network.file import NetworkChoice
    from tracetool.network.tiers import Network

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

    def of(self, choice: NetworkChoice) -> NetworkChoice:
        """The fleet with its tiers narrowed."""
        network = choice.network
        left = dict(self.narrowed)
        tiers = tuple(tier.narrowed(1 / left[tier.name]) if tier.name in left else tier for tier in network.tiers)
        return replace(choice, network=replace(network, tiers=tiers))


_CHANGE = re.compile(r"^(?P<where>[^.=]+)\.(?P<what>bandwidth|links|speed)=(?P<left>\S+)$")
_GROUP = re.compile(r"^(?P<tier>.*?)(?P<number>\d+)$")


def parse_failure(text: str, network: Network) -> Failure:
    """Read ``wan.bandwidth=50%,dc1.speed=80%@2%``.

    Args:
        text: What fails.
        network: Whose tiers and groups are meant.

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
            slow.append(_slow(match["where"], left, network))
        else:
            tier = network.tiers[network.number(match["where"])]
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


def _slow(where: str, left: float, network: Network) -> SlowGroup:
    match = _GROUP.match(where)
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
        super().__init__(replace(workload, choice=failure.of(workload.choice)))
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


def slow_factors(network: Network, devices: Sequence[int], slow: Sequence[SlowGroup]) -> list[float]:
    """How many times as long actions of devices take."""
    sizes = {tier.name: tier.size for tier in network.tiers}
    return [
        max([1.0, *(1 / one.speed_ratio for one in slow if device // sizes[one.tier] == one.group)])
        for device in devices
    ]


def _slowness(
    workload: Workload, plan: JobPlan, slow: Sequence[SlowGroup]
) -> Iterator[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Of each pipeline, the tiers at which neighbours meet, and how many times as long each rank's actions take."""
    network, degrees = workload.choice.network, plan.training.degrees
    placed = place(degrees, network, plan.placement, all_used=False)
    factor_of = slow_factors(network, placed.devices, slow)
    each = degrees.tp * degrees.cp
    for first in range(0, degrees.dp * each, each):
        stages = [range(rank := first + stage * degrees.dp * each, rank + each) for stage in range(degrees.pp)]
        ahead = [placed.devices[ranks[0]] for ranks in stages]
        crossed = tuple(network.crossed(a, b) or 0 for a, b in zip(ahead, [*ahead[1:], ahead[0]], strict=True))
        # All ranks of a stage wait for each other.
        yield crossed, tuple(max(factor_of[rank] for rank in ranks) for ranks in stages)


class Ran(Protocol):
    """A plan that was replayed, of a model or of a recording."""

    @property
    def plan(self) -> Any:
        """What tells it from others."""

    @property
    def step_ns(self) -> int:
        """Its step; 0 if it cannot run."""

    @property
    def refusal(self) -> str:
        """Why it cannot run."""

    @property
    def runs(self) -> bool:
        """Whether it can."""


RanT = TypeVar("RanT", bound=Ran)


@dataclass(frozen=True)
class FailureOutcome(Generic[RanT]):
    """What a failure does.

    Attributes:
        failure: The failure.
        kept: The plan that is best while all is whole; refused if it cannot run then.
        best: The plan that is best then; None if none can run.
    """

    failure: Failure
    kept: RanT
    best: RanT | None


@dataclass(frozen=True, slots=True)
class Weighed(Generic[RanT]):
    """A plan over all failures.

    Attributes:
        judged: The plan while all is whole.
        worst_ns: Its longest step.
        expected_ns: Its mean step, each failure for its share of the time; None if no share was said.
    """

    judged: RanT
    worst_ns: int
    expected_ns: float | None

    @property
    def whole_ns(self) -> int:
        """Its step while all is whole."""
        return self.judged.step_ns


@dataclass(frozen=True)
class Failures(Generic[RanT]):
    """What failures of the fleet do to the plans of a space.

    Attributes:
        outcomes: Of each failure.
        kept: The plan that is best while all is whole; None if it cannot run in one of them.
        least_worst: The plan whose longest step is the shortest; None if no plan runs in all.
        least_expected: The one with the shortest mean step; None without shares of the time.
        cut: Failures in which the space was not searched to its end when the time was up.
    """

    outcomes: tuple[FailureOutcome[RanT], ...]
    kept: Weighed[RanT] | None
    least_worst: Weighed[RanT] | None
    least_expected: Weighed[RanT] | None
    cut: tuple[str, ...] = ()


def weigh_failures(
    space: Space, results: SearchResults, failures: Sequence[Failure], *, ends: float | None = None
) -> Failures[Judged]:
    """Judge plans in every failure, and search the space in each.

    Args:
        space: The space that was searched.
        results: What the search found while all is whole.
        failures: What may fail.
        ends: When the time is up, of ``time.monotonic``: then plans found so far alone are judged.

    Raises:
        ScenarioError: If shares of the time are more than all of it, or some failures have one and others have none.
    """
    check_weights(failures)
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
    return weighed(plans, failures, [judge.judge(list(plans)) for judge in judges], tuple(cut))


def weighed(
    plans: Mapping[Any, RanT], failures: Sequence[Failure], in_each: Sequence[Sequence[RanT]], cut: tuple[str, ...]
) -> Failures[RanT]:
    """Plans over all failures.

    Args:
        plans: While all is whole, the one first that is best then.
        failures: What may fail.
        in_each: The same plans in each failure.
        cut: Failures in which the space was not searched to its end when the time was up.
    """
    outcomes = tuple(
        FailureOutcome(failure, done[0], min((one for one in done if one.runs), key=_step_ns, default=None))
        for failure, done in zip(failures, in_each, strict=True)
    )
    every = [
        None if any(not one.runs for one in steps) else _weighed(whole, steps, failures)
        for whole, steps in zip(plans.values(), zip(*in_each, strict=True), strict=True)
    ]
    run = [one for one in every if one is not None]
    is_weighted = bool(run) and run[0].expected_ns is not None
    return Failures(
        outcomes=outcomes,
        kept=every[0],
        least_worst=min(run, key=lambda one: one.worst_ns, default=None),
        least_expected=min(run, key=lambda one: one.expected_ns or 0) if is_weighted else None,
        cut=cut,
    )


def _step_ns(judged: Ran) -> int:
    return judged.step_ns


def _weighed(whole: RanT, steps: Sequence[RanT], failures: Sequence[Failure]) -> Weighed[RanT]:
    weights = [failure.weight_ratio for failure in failures]
    expected = None
    if all(weight is not None for weight in weights):
        rest = 1 - sum(weight or 0.0 for weight in weights)
        failing = zip(weights, steps, strict=True)
        expected = rest * whole.step_ns + sum((weight or 0.0) * one.step_ns for weight, one in failing)
    return Weighed(whole, max(whole.step_ns, *map(_step_ns, steps)), expected)


def check_weights(failures: Sequence[Failure]) -> None:
    """Refuse shares of the time that do not go together.

    Raises:
        ScenarioError: If they are more than all of it, or some failures have one and others have none.
    """
    weights = [failure.weight_ratio for failure in failures if failure.weight_ratio is not None]
    if weights and len(weights) < len(failures):
        unsaid = next(failure.text for failure in failures if failure.weight_ratio is None)
        raise ScenarioError(
            f"for which share of the time {unsaid} holds is not said.", hint="add @2% to it, or to none"
        )
    if sum(weights) > 1 + 1e-9:
        raise ScenarioError(f"failures hold {sum(weights):.0%} of the time.", hint="at most 100% together")
