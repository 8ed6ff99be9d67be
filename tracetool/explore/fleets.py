"""The same job on other fleets, and what a step costs on fleets with a price: time, and bytes between regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ScenarioError
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.judge import Judge
from tracetool.explore.search import RIVAL_RATIO, PlanSearch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.explore.judge import Judged
    from tracetool.explore.plan import Workload
    from tracetool.explore.progress import SearchWork
    from tracetool.explore.search import SearchResults
    from tracetool.explore.space import Space
    from tracetool.network.file import NetworkChoice

_CHEAPER = 1e-3
"""Plans that cost less by less than this cost the same."""


class FleetPlan(NamedTuple):
    """The best plan on another fleet.

    Attributes:
        workload: What is trained, and there.
        results: What the search found.
    """

    workload: Workload
    results: SearchResults


class PricedPlan(NamedTuple):
    """A plan on a fleet with a price.

    Attributes:
        workload: What is trained, and where.
        judged: The plan.
        price: What a step costs, in the fleet's currency.
    """

    workload: Workload
    judged: Judged
    price: float


def check_currencies(choices: Sequence[NetworkChoice]) -> None:
    """Refuse fleets whose prices cannot be held against each other.

    Raises:
        ScenarioError: If they are in several currencies.
    """
    priced = [(each.network.name, each.price.currency) for each in choices if each.price is not None]
    if len({currency for _, currency in priced}) > 1:
        listed = ", ".join(f"{name} in {currency}" for name, currency in priced)
        raise ScenarioError(f"fleets have prices in several currencies: {listed}.", hint="give all prices in one")


def elsewhere(spaces: Sequence[Space], work: SearchWork, cut: list[str]) -> Iterator[FleetPlan]:
    """Search the same job on other fleets.

    Args:
        spaces: On each.
        work: How they are worked on.
        cut: Gets the names of fleets whose search ended when the time was up.
    """
    for space in spaces:
        results = PlanSearch(space, Judge(space.workload), work).run(rival_ratio=RIVAL_RATIO)
        if results.open:
            cut.append(space.workload.choice.network.name)
        yield FleetPlan(space.workload, results)


def price_of(workload: Workload, judged: Judged) -> float | None:
    """What a step of a plan costs; None where its fleet has no price.

    Args:
        workload: What is trained, and where.
        judged: The plan.
    """
    price = workload.choice.price
    return None if price is None else price.of_step(judged.step_ns, tier_bytes(workload, judged.plan))


def price_front(fleets: Sequence[FleetPlan]) -> Iterator[PricedPlan]:
    """Plans in the order of their steps, each cheaper than all before it; none where a fleet has no price.

    Args:
        fleets: With their plans that were replayed.
    """
    if any(fleet.workload.choice.price is None for fleet in fleets):
        return
    every = [(one.step_ns, number, one) for number, fleet in enumerate(fleets) for one in fleet.results.judged]
    least: float | None = None
    for _, number, judged in sorted(every, key=lambda each: each[:2]):
        workload = fleets[number].workload
        price = price_of(workload, judged)
        if price is not None and (least is None or price < least * (1 - _CHEAPER)):
            least = price
            yield PricedPlan(workload, judged, price)
