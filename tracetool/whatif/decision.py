"""Offers of links side by side: what to run over each, what the dearer one buys, and where more stops paying."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError
from tracetool.model.topology import parse_link
from tracetool.registry import Pictured
from tracetool.schedules.names import recognise
from tracetool.whatif.accuracy import change_error_ratio, is_within_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.network.link import Link
    from tracetool.whatif.best import Candidate

PERIOD_DAYS = {"hour": 1 / 24, "day": 1.0, "month": 365.25 / 12, "year": 365.25}
"""What a fee may be for, in days (Julian year)."""

# Three digits behind a point may be thousands or thousandths: neither is taken.
_FEE = re.compile(
    rf"\s*([0-9][0-9_]*(?:\.(?![0-9]{{3}}\D)[0-9]+)?)\s*([A-Za-z]{{3}}|[€$£¥])\s*/\s*({'|'.join(PERIOD_DAYS)})\s*"
)
Direction = tuple[str, str]
"""From which DC to which."""
_NS_PER_DAY = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Fee:
    """What links cost for a time.

    Attributes:
        amount: How much.
        currency: Of what, as it was written.
        period: For which time: one of ``PERIOD_DAYS``.
    """

    amount: float
    currency: str
    period: str

    def __str__(self) -> str:
        return f"{self.amount:,.{0 if self.amount >= 100 or self.amount.is_integer() else 2}f} {self.unit}"

    @property
    def unit(self) -> str:
        """As in ``EUR/month``."""
        return f"{self.currency}/{self.period}"

    @property
    def per_day(self) -> float:
        """The amount for a day."""
        return self.amount / PERIOD_DAYS[self.period]

    def beyond(self, other: Fee | None) -> Fee:
        """What is paid beyond another fee in the same currency, for the time that this one is for."""
        paid = 0.0 if other is None else other.per_day * PERIOD_DAYS[self.period]
        return Fee(self.amount - paid, self.currency, self.period)


def parse_fee(text: str) -> Fee:
    """Read what links cost, as in ``9000EUR/month``.

    Raises:
        ScenarioError: If it is no amount, currency and time.
    """
    read = _FEE.fullmatch(text)
    if read is None:
        raise ScenarioError(
            f"{text!r} is no price of an offer.",
            hint="an amount without separators, a currency of three letters and a time "
            f"({', '.join(PERIOD_DAYS)}), as in 9000EUR/month",
        )
    return Fee(float(read[1].replace("_", "")), read[2].upper(), read[3])


def split_fee(text: str) -> tuple[str, Fee | None]:
    """An offer without its fee, and the fee behind its last ``=`` if there is one: ``dc0-dc1=25Gbit/s,10ms=9EUR/day``.

    Raises:
        ScenarioError: If what stands there is neither figures of links nor a fee.
    """
    rest, equals, last = text.rpartition("=")
    has_figures = "," in rest
    return (rest, parse_fee(last)) if equals and has_figures else (text, None)


Fees = Mapping[frozenset[Direction], Fee]
"""What links cost, by the directions that each price is for."""


def without_fees(links: Sequence[str]) -> tuple[tuple[str, ...], Fees]:
    """Links as they are written without what they cost, and that by itself.

    Raises:
        BadTopology: If a link has no such form.
        ScenarioError: If a price cannot be read, or prices are of several currencies.
    """
    parts = [split_fee(text) for text in links]
    check_fees([fee for _, fee in parts])
    fees = {directions(parse_link(text)): fee for text, fee in parts if fee is not None}
    return tuple(text for text, _ in parts), fees


def directions(links: Iterable[Link]) -> frozenset[Direction]:
    """Between which DCs links go, and which way."""
    return frozenset((link.src_dc, link.dst_dc) for link in links)


def total_fee(fees: Iterable[Fee]) -> Fee | None:
    """The sum, for the time of the first; None of none."""
    every = [*fees]
    if not every:
        return None
    return replace(every[0], amount=sum(fee.per_day for fee in every) * PERIOD_DAYS[every[0].period])


def offered_fee(price: Fee | None, replaced: frozenset[Direction], fees: Fees) -> Fee | None:
    """What all links cost where some are replaced: the price of those, and what the others did.

    Args:
        price: Of what is replaced; None if that was not said.
        replaced: Which links.
        fees: What links cost before.

    Raises:
        ScenarioError: If one price is for links that are replaced and others that are not.
    """
    if price is None:
        return None
    for priced in fees:
        if priced & replaced and not priced <= replaced:
            names = ", ".join(sorted(f"{src}->{dst}" for src, dst in priced))
            raise ScenarioError(
                f"one price is for {names}, of which an offer replaces a part.",
                hint=f"say what each costs, as in {Option.LINK('dc0->dc1=25Gbit/s,10ms=1000EUR/month')}",
            )
    return total_fee([price, *(fee for priced, fee in fees.items() if not priced & replaced)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Links that can be had, and what to run over them.

    Attributes:
        name: Their figures, as in ``25 Gbit/s, 10 ms``.
        fee: What they cost; None if that was not said.
        microbatches: Microbatches of the steps.
        best: The plan to run; None if none fits the memory.
        now: The recorded order over these links; None if it could not be replayed.
        first_plan: The first offer's best plan over these links, its depth chosen anew; None if it is the best one here
            too, does not fit, or was not asked for.
        hbm_bytes: Memory limit per rank; None for none.
        is_near_the_limit: Whether the best plan fits, but so closely that the error of peaks may decide.
        is_lower_bound: Whether it may need more, as activations were given and not measured.
        binds: The resource of which more would shorten the best plan's step most; None if that was not asked.
        unchecked: Schedules of which it is unknown whether they fit.
    """

    name: str
    fee: Fee | None = None
    microbatches: int
    best: Candidate | None
    now: Candidate | None
    first_plan: Candidate | None = None
    hbm_bytes: int | None = None
    is_near_the_limit: bool = False
    is_lower_bound: bool = False
    binds: str | None = None
    unchecked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bought:
    """What another offer buys, compared with the first: the best plan over each.

    Attributes:
        saved_ns: How much less time the step's work takes; negative if it takes longer.
        saved_ratio: The same as a share of what it takes over the first offer.
        error_ratio: Error of that share; None if it is not known.
        is_certain: Whether the steps differ by more than the error of predictions; where that is unknown, by more than
            steps that are repeated scatter.
        fee: What is paid for it beyond the first offer's fee, or all of it where that is unknown; None if the other has
            no fee.
        fee_per_ms: That fee for each millisecond of the step, in its unit; None if nothing is certain to be saved,
            or nothing more is paid.
        steps_per_day: How many more such steps a day has, each with what was around the recorded one.
    """

    saved_ns: int
    saved_ratio: float
    error_ratio: float | None
    is_certain: bool
    fee: Fee | None
    fee_per_ms: float | None
    steps_per_day: float


@dataclass(frozen=True, slots=True)
class PaysUntil:
    """From where on more bandwidth does not pay: twice as much shortens the step by less than 1 %.

    Attributes:
        bandwidth_bytes_per_s: The bandwidth of each link.
        latency_ns: Their one-way latency meanwhile.
        schedule: The schedule whose step it is.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int
    schedule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """The recorded step, where the ranks sat then.

    Attributes:
        step_ns: What it took.
        schedule: Its order; None if that has no name.
        p2p: How its transfers were issued.
        microbatches: Its microbatches.
        around_ns: What the step's mark spans besides: ahead of the first forward and after the optimizer. Runs and
            days are of whole steps; 0 where steps are not marked, or marks end before the device does.
    """

    step_ns: int
    schedule: str | None
    p2p: str
    microbatches: int
    around_ns: int = 0

    @property
    def whole_ns(self) -> int:
        """The step as it was marked."""
        return self.step_ns + self.around_ns


def today_of(pipeline: Pipeline, step_ns: int) -> Today:
    """What was recorded.

    Args:
        pipeline: What was measured.
        step_ns: What its step took.
    """
    known = recognise(pipeline.observed)
    return Today(
        step_ns=step_ns,
        schedule=known.name if known else None,
        p2p=pipeline.p2p,
        microbatches=pipeline.observed.shape.microbatches,
        around_ns=max(0, (pipeline.marked_ns or 0) - step_ns),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Pictured):
    """Which offer to take and what to run over it, as far as numbers tell.

    Attributes:
        today: The recorded step.
        offers: The first is what the others are compared with.
        steps: Steps of the run that is planned; None if that was not said.
        pays_until: Where more bandwidth stops paying, of the best plan over the widest offer; None if unknown, or if it
            never does.
    """

    today: Today
    offers: tuple[Offer, ...]
    steps: int | None = None
    pays_until: PaysUntil | None = None

    def to_today(self, offer: Offer) -> float | None:
        """Time per microbatch of the best plan over that of the recorded step, minus one; None if nothing fits."""
        if offer.best is None or offer.best.step_ns is None:
            return None
        return offer.best.step_ns / offer.microbatches / (self.today.step_ns / self.today.microbatches) - 1

    def bought(self, offer: Offer, beyond: Offer | None = None) -> Bought | None:
        """What an offer buys beyond another, by default the first; None for itself, and where nothing fits one of them.

        Args:
            offer: The one.
            beyond: The other.
        """
        first = self.offers[0] if beyond is None else beyond
        base, other = first.best, offer.best
        if offer is first or base is None or other is None or not base.step_ns or not other.step_ns:
            return None
        # The work of a step is that of its microbatches.
        base_ns, other_ns = round(base.step_ns * offer.microbatches / first.microbatches), other.step_ns
        around_ns = self.today.around_ns
        change = other_ns / base_ns - 1
        certain = not is_within_error(base.known_error, other.known_error, change)
        fee = None if offer.fee is None else offer.fee.beyond(first.fee)
        saved = base_ns - other_ns
        is_paid = fee is not None and fee.amount > 0 and certain and saved > 0
        return Bought(
            saved_ns=saved,
            saved_ratio=-change,
            error_ratio=change_error_ratio(base.known_error, other.known_error, change),
            is_certain=certain,
            fee=fee,
            fee_per_ms=fee.amount / (saved / 1e6) if fee is not None and is_paid else None,
            steps_per_day=_NS_PER_DAY / (other_ns + around_ns) - _NS_PER_DAY / (base_ns + around_ns),
        )

    def run_days(self, offer: Offer) -> float | None:
        """How long the planned run takes with an offer's best plan, of whole steps; None if that is unknown."""
        if self.steps is None or offer.best is None or offer.best.step_ns is None:
            return None
        return self.steps * (offer.best.step_ns + self.today.around_ns) / _NS_PER_DAY

    def run_fee(self, offer: Offer) -> float | None:
        """What an offer costs while the planned run takes, in its currency; None if either is unknown."""
        days = self.run_days(offer)
        return None if days is None or offer.fee is None else offer.fee.per_day * days


def check_all_priced(fees: Fees, links: Iterable[Link]) -> None:
    """Check that prices are known of all links or of none: a sum of some would be too little.

    Raises:
        ScenarioError: If some links have a price and others none.
    """
    unpriced = directions(links) - frozenset().union(*fees)
    if fees and unpriced:
        raise ScenarioError(
            f"prices are given, but none of {', '.join(sorted(f'{src}->{dst}' for src, dst in unpriced))}.",
            hint=f"give each {Option.LINK} its price (0EUR/month if it is free), or none",
        )


def check_fees(fees: Sequence[Fee | None]) -> None:
    """Check that fees can be compared.

    Raises:
        ScenarioError: If they are of several currencies.
    """
    currencies = list(dict.fromkeys(fee.currency for fee in fees if fee is not None))
    if len(currencies) > 1:
        raise ScenarioError(
            f"offers have prices in {' and '.join(currencies)}, which cannot be compared.",
            hint=f"give the prices of {Option.LINK} and {Option.OFFERS} in one currency",
        )
