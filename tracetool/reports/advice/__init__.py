"""Advice as text and as JSON, and the decision between offers in words."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.model.schedule import OBSERVED
from tracetool.units import format_duration, format_size
from tracetool.whatif.accuracy import format_error
from tracetool.whatif.best import UNPROVEN_TEXT, error_text, is_as_good, nothing_fits, plan_name

if TYPE_CHECKING:
    from tracetool.whatif.best import Candidate
    from tracetool.whatif.decision import Bought, Decision, Offer

_RESOURCES = {"hbm": "HBM"}


_MOST_SENTENCES = 4


def sentences(decision: Decision, *, brief: bool = False) -> list[str]:
    """The decision as a person would say it: what to run over each offer, what the others buy, where more stops paying.

    Args:
        decision: What was found.
        brief: Whether offers beyond the first few are counted.
    """
    first, *others = decision.offers
    told = [_first(decision, first), *(_other(decision, offer) for offer in others)]
    told += [line for one, other in pairwise(others) if (line := _between(decision, one, other))]
    if (until := decision.pays_until) is not None:
        told.append(f"For {pays_text(until.schedule, until.bandwidth_bytes_per_s, until.latency_ns)}.")
    if brief and (more := len(told) - _MOST_SENTENCES) > 0:
        told[_MOST_SENTENCES:] = [f"{more} more: -v."]
    return told


def pays_text(schedule: str, bandwidth_bytes_per_s: int, latency_ns: int) -> str:
    """Where more stops paying: ``geopipe at 10 ms more bandwidth stops paying beyond 97.7 Gbit/s``."""
    name = "the recorded order" if schedule == OBSERVED else schedule
    gbit_per_s = float(f"{bandwidth_bytes_per_s * 8e-9:.3g}")
    return f"{name} at {latency_ns / 1e6:g} ms more bandwidth stops paying beyond {gbit_per_s:g} Gbit/s"


def offer_rows(decision: Decision) -> dict[str, list[str]]:
    """A table of the offers under what was recorded: cells by column, without columns that say nothing."""
    names = ("offer", "run", "transfers", "step", "±", "to today", "needs", "binds", "price")
    rows = [("as recorded", decision.today.schedule or "", decision.today.p2p, today_text(decision), *[""] * 5)]
    for offer in decision.offers:
        best, change, price = offer.best, decision.to_today(offer), str(offer.fee or "")
        if best is None:
            rows.append((offer.name, "none known to fit" if offer.unchecked else "nothing fits", *[""] * 6, price))
            continue
        to_today = "" if change is None else f"{change:+.0%}"
        unknown = "" if offer.hbm_bytes is None else "unknown"
        needs = unknown if best.needed_bytes is None else format_size(best.needed_bytes)
        step = format_duration(best.step_ns or 0)
        binds = _RESOURCES.get(offer.binds or "", offer.binds or "")
        rows.append((offer.name, plan_name(best), best.p2p, step, error_text(best), to_today, needs, binds, price))
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return {name: cells for name, cells in columns.items() if any(cells)}


def step_text(plan: Candidate) -> str:
    """A step with its error: ``315.2 ms (±4%)``."""
    known = f"±{error_text(plan)}" if plan.known_error is not None else f"± unknown, {UNPROVEN_TEXT}"
    return f"{format_duration(plan.step_ns or 0)} ({known})"


def today_text(decision: Decision) -> str:
    """The recorded step: ``261.3 ms``, with its microbatches where others are asked about."""
    took = format_duration(decision.today.step_ns)
    other = any(offer.microbatches != decision.today.microbatches for offer in decision.offers)
    return f"{took} of {decision.today.microbatches} microbatches" if other else took


def _first(decision: Decision, offer: Offer) -> str:
    best, now, change = offer.best, offer.now, decision.to_today(offer)
    if best is None or change is None:
        return f"Over {offer.name} {nothing_fits(offer.unchecked)}."
    per = " per microbatch" if offer.microbatches != decision.today.microbatches else ""
    word = "longer" if change >= 0 else "shorter"
    longer = f"{abs(change):.0%} {word}{per} than today's {today_text(decision)} as recorded"
    binds = "" if offer.binds is None else f"; {_RESOURCES.get(offer.binds, offer.binds)} binds"
    same = now is not None and best.order_digest == now.order_digest
    verb = "keep" if same else "run"
    step = f"{step_text(best)} a step{_memory(offer, best)}"
    days = decision.run_days(offer)
    run = "" if days is None else f"; {decision.steps:,} steps take {_time(days)}"
    plan = f"{verb} {_named(decision, best)}: {step}"
    return f"Over {offer.name} {plan}, {_to_now(best, now, same=same)}{longer}{binds}{run}."


def _memory(offer: Offer, best: Candidate) -> str:
    """What it needs; against a limit, whether it fits."""
    if best.needed_bytes is None:
        return "" if offer.hbm_bytes is None else f", not checked against {format_size(offer.hbm_bytes)} of HBM"
    if offer.is_near_the_limit:
        return f", if it fits: it needs {format_size(best.needed_bytes)} of {format_size(offer.hbm_bytes or 0)}"
    least = "at least " if offer.is_lower_bound else ""
    return f", {least}{format_size(best.needed_bytes)} of HBM"


def _named(decision: Decision, plan: Candidate) -> str:
    """A plan within a sentence, with its transfers where they are issued otherwise than was recorded."""
    name = "the recorded order" if plan.schedule == OBSERVED else plan_name(plan)
    return name + (f" ({plan.p2p} transfers)" if plan.p2p != decision.today.p2p else "")


def _to_now(best: Candidate, now: Candidate | None, *, same: bool) -> str:
    """How the plan compares with the recorded order over the same links."""
    if now is not None and now.feasible is False:
        return f"{plan_name(now)} does not fit there, "
    if same or now is None or not now.step_ns or not best.step_ns:
        return ""
    change = best.step_ns / now.step_ns - 1
    if is_as_good(best, now):
        return f"as good as {plan_name(now)} there, "
    return f"{abs(change):.1%} {'shorter' if change < 0 else 'longer'} than {plan_name(now)} there and "


def _other(decision: Decision, offer: Offer) -> str:
    if offer.best is None:
        return f"Over {offer.name} {nothing_fits(offer.unchecked)}."
    bought = decision.bought(offer)
    plan = f"{offer.name} with {_named(decision, offer.best)}: {step_text(offer.best)}{_memory(offer, offer.best)}"
    if bought is None:
        return f"{plan}."
    error = ", error unknown" if bought.error_ratio is None else f" ±{format_error(bought.error_ratio)}"
    paid = _paid(bought, is_beyond=decision.offers[0].fee is not None)
    if not bought.is_certain:
        told = f"{-bought.saved_ratio:+.1%}{error}{_first_plan(decision, offer)}"
        return f"{plan}, too near to tell what it buys{paid} ({told})."
    if bought.saved_ns < 0:
        longer = f"{format_duration(-bought.saved_ns)} longer ({-bought.saved_ratio:+.1%}{error}){paid}"
        return f"{plan}, {longer}; {_run(decision, offer, bought.steps_per_day)}."
    per_ms = ""
    if bought.fee_per_ms is not None and bought.fee is not None:
        per_ms = f", {replace(bought.fee, amount=bought.fee_per_ms)} per ms"
        per_ms += "" if decision.offers[0].fee is not None else " if the first costs nothing"
    work = (
        "a step" if offer.microbatches == decision.offers[0].microbatches else f"for {offer.microbatches} microbatches"
    )
    gain = f"{format_duration(bought.saved_ns)} {work} ({bought.saved_ratio:.1%}{error}){paid}{per_ms}"
    return f"{plan}, buys {gain}; {_run(decision, offer, bought.steps_per_day)}."


def _between(decision: Decision, one: Offer, other: Offer) -> str | None:
    """What the later of two further offers buys beyond the one before it: what each buys is told beyond the first."""
    bought = decision.bought(other, beyond=one)
    if bought is None:
        return None
    error = ", error unknown" if bought.error_ratio is None else f" ±{format_error(bought.error_ratio)}"
    paid = _paid(bought, is_beyond=one.fee is not None)
    if not bought.is_certain:
        return f"{other.name} and {one.name} are too near to tell apart{paid} ({-bought.saved_ratio:+.1%}{error})."
    if bought.saved_ns < 0:
        longer = f"{format_duration(-bought.saved_ns)} longer ({-bought.saved_ratio:+.1%}{error})"
        return f"Beyond {one.name}, {other.name} is {longer}{paid}."
    per_ms = ""
    if bought.fee_per_ms is not None and bought.fee is not None and one.fee is not None:
        per_ms = f", {replace(bought.fee, amount=bought.fee_per_ms)} per ms"
    gain = f"{format_duration(bought.saved_ns)} ({bought.saved_ratio:.1%}{error})"
    return f"Beyond {one.name}, {other.name} buys {gain}{paid}{per_ms}."


def _paid(bought: Bought, *, is_beyond: bool) -> str:
    """What is paid for it, beyond the first offer's price where that is known."""
    if bought.fee is None:
        return ""
    if bought.fee.amount < 0:
        return f" for {replace(bought.fee, amount=-bought.fee.amount)} less"
    return f" for {bought.fee}{' more' if is_beyond else ''}"


def _first_plan(decision: Decision, offer: Offer) -> str:
    """What the first offer's plan takes over these links, where another is best there."""
    plan, first = offer.first_plan, decision.offers[0].best
    if plan is None or first is None or not plan.step_ns or not first.step_ns:
        return ""
    return f"; {plan_name(plan)} there {format_duration(plan.step_ns)}, {plan.step_ns / first.step_ns - 1:+.1%}"


def _run(decision: Decision, offer: Offer, steps_per_day: float) -> str:
    """What it is for a day, or for the run that is planned."""
    first, days = decision.run_days(decision.offers[0]), decision.run_days(offer)
    if first is None or days is None:
        return f"a day has {abs(steps_per_day):,.0f} steps {'more' if steps_per_day >= 0 else 'fewer'}"
    before, cost_of_run, cost = decision.run_fee(decision.offers[0]), decision.run_fee(offer), ""
    if cost_of_run is not None and offer.fee is not None:
        told = f"{cost_of_run:,.0f}" if before is None else f"{cost_of_run - before:+,.0f}"
        cost = f" and cost {told} {offer.fee.currency} for links"
    return f"{decision.steps:,} steps take {_time(days)} instead of {_time(first)}{cost}"


def _time(days: float) -> str:
    """Days, hours or minutes."""
    unit, scale = next((unit, scale) for unit, scale in _TIMES if days * scale >= 2 or unit == "minutes")
    return f"{days * scale:,.1f} {unit}"


_TIMES = (("days", 1), ("hours", 24), ("minutes", 1440))
