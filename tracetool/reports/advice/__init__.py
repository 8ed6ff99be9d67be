"""Advice as text and as JSON, and the decision between offers in words.

Plans as bars: one per offer, scenario or schedule, as long as its step.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import ScenarioError
from tracetool.model.schedule import OBSERVED
from tracetool.reports import marked_text
from tracetool.reports.picture import GREY, PT, RED, SERIES, legend, legend_columns, text_width_pt, wrapped
from tracetool.units import format_count, format_duration, format_size
from tracetool.whatif.accuracy import change_error_ratio, format_error
from tracetool.whatif.best import (
    UNPROVEN_MARK,
    UNPROVEN_TEXT,
    error_text,
    evidence_of,
    is_as_good,
    nothing_fits,
    plan_name,
)
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tracetool.whatif.best import Candidate
    from tracetool.whatif.decision import Bought, Decision, Offer

_RESOURCES = {"hbm": "HBM"}


def sentences(decision: Decision, most: int | None = None) -> list[str]:
    """The decision as a person would say it: what to run over each offer, what the others buy, where more stops paying.

    Args:
        decision: What was found.
        most: So many of them, the most important ones; the others are counted.
    """
    first, *others = decision.offers
    offers = [_first(decision, first), *(_other(decision, offer) for offer in others)]
    apart = [line for other in others[:1] if (line := _apart(first, other))]
    between = [line for one, other in pairwise(others) if (line := _between(decision, one, other))]
    until = decision.pays_until
    pays = [] if until is None else [f"For {pays_text(until.schedule, until.bandwidth_bytes_per_s, until.latency_ns)}."]
    paragraphs = [*offers, *apart, *between, *pays]
    if most is None or len(paragraphs) <= most:
        return paragraphs
    kept = {*[*offers, *pays, *apart, *between][:most]}
    more = f"{format_count(len(paragraphs) - most, 'sentence')} more: -v."
    return [*(line for line in paragraphs if line in kept), more]


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
        run = decision.today.schedule if best.schedule == OBSERVED else None
        rows.append(
            (offer.name, run or plan_name(best), best.p2p, step, error_text(best), to_today, needs, binds, price)
        )
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return {name: cells for name, cells in columns.items() if any(cells)}


def step_text(plan: Candidate) -> str:
    """A step with its error: ``315.2 ms (±4%)``."""
    costs = "costs unproven" if plan.rests_on else "costs as measured"
    known = f"±{error_text(plan)}" if plan.known_error is not None else f"± unknown, {costs}, {UNPROVEN_TEXT}"
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
    longer = f"{abs(change):.0%} {word}{per} than today's {today_text(decision)} as recorded{_marked(decision)}"
    binds = "" if offer.binds is None else f"; {_RESOURCES.get(offer.binds, offer.binds)} binds"
    same = now is not None and best.order_digest == now.order_digest
    verb = "keep" if same else "run"
    step = f"{step_text(best)} a step{_memory(offer, best)}"
    days = decision.run_days(offer)
    cost_of_run = decision.run_fee(offer)
    cost = (
        ""
        if cost_of_run is None or offer.fee is None
        else f" and cost {cost_of_run:,.0f} {offer.fee.currency} for links"
    )
    run = "" if days is None else f"; {decision.steps:,} steps take {_time(days)}{cost}"
    price = "" if offer.fee is None else f" for {offer.fee}"
    plan = f"{verb} {_named(decision, best)}: {step}"
    return f"Over {offer.name}{price} {plan}, {_to_now(best, now, same=same)}{longer}{binds}{run}."


def _marked(decision: Decision) -> str:
    """The whole step, by which runs and days are counted, where it is another figure."""
    marked = marked_text(decision.today.step_ns, decision.today.whole_ns)
    return f" ({marked})" if marked else ""


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
    known = f" ({decision.today.schedule})" if decision.today.schedule else ""
    name = f"the recorded order{known}" if plan.schedule == OBSERVED else plan_name(plan)
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
    paid = _paid(bought, offer, beyond=decision.offers[0])
    if not bought.is_certain:
        saving = f"{-bought.saved_ratio:+.1%}{error}{_first_plan(decision, offer)}"
        run = "" if decision.steps is None else f"; {_run(decision, offer, bought.steps_per_day)}"
        near = "too near to tell what it buys"
        if bought.error_ratio is None:
            near = f"within the scatter of repeated steps, {RELEVANT_RATIO:.0%}{',' if paid else ''}"
        return f"{plan}, {near}{paid} ({saving}){run}."
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
    paid = _paid(bought, other, beyond=one)
    if not bought.is_certain:
        near = "are too near to tell apart"
        if bought.error_ratio is None:
            near = f"are within the scatter of repeated steps, {RELEVANT_RATIO:.0%}{',' if paid else ''}"
        return f"{other.name} and {one.name} {near}{paid} ({-bought.saved_ratio:+.1%}{error})."
    if bought.saved_ns < 0:
        longer = f"{format_duration(-bought.saved_ns)} longer ({-bought.saved_ratio:+.1%}{error})"
        return f"Over {other.name} a step is {longer} than over {one.name}{paid}."
    per_ms = ""
    if bought.fee_per_ms is not None and bought.fee is not None and one.fee is not None:
        per_ms = f", {replace(bought.fee, amount=bought.fee_per_ms)} per ms"
    gain = f"{format_duration(bought.saved_ns)} ({bought.saved_ratio:.1%}{error})"
    return f"Beyond {one.name}, {other.name} buys {gain}{paid}{per_ms}."


def _apart(first: Offer, other: Offer) -> str | None:
    """What the schedule changes over the first links, what other links change under the recorded order, and both."""
    now, there = first.now, other.now
    if now is None or there is None or first.best is None or other.best is None or not now.step_ns:
        return None
    if now.feasible is False or there.feasible is False or first.microbatches != other.microbatches:
        return None
    if first.best.order_digest == now.order_digest or other.best.order_digest == there.order_digest:
        return None
    kept = "the recorded order" if now.schedule == OBSERVED else now.schedule
    plan, link, both = (_changed(now, to) for to in (first.best, there, other.best))
    alone = f"{plan_name(first.best)} there {plan}, {other.name} with {kept} {link}"
    return f"Schedule or link, against {kept} over {first.name}: {alone}, both {both}."


def _changed(now: Candidate, other: Candidate) -> str:
    """By how much a step differs: ``-27.6 ms (-8.0% ±5%)``."""
    before, after = now.step_ns or 0, other.step_ns or 0
    change = after / before - 1
    error = change_error_ratio(now.known_error, other.known_error, change)
    sure = ", error unknown" if error is None else f" ±{format_error(error)}"
    return f"{'-' if after < before else '+'}{format_duration(abs(after - before))} ({change:+.1%}{sure})"


def _paid(bought: Bought, offer: Offer, *, beyond: Offer) -> str:
    """What is paid for it, beyond the other's price where that is known."""
    if bought.fee is None:
        return "" if beyond.fee is None else ", its price not given"
    if beyond.fee is not None and not round(bought.fee.amount, 2):
        return f" for the same {offer.fee}"
    if bought.fee.amount < 0:
        return f" for {replace(bought.fee, amount=-bought.fee.amount)} less"
    return f" for {bought.fee}{' more' if beyond.fee is not None else ''}"


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
        fee = f"{cost_of_run:,.0f}" if before is None else f"{cost_of_run - before:+,.0f}"
        cost = f" and cost {fee} {offer.fee.currency} for links"
    return f"{decision.steps:,} steps take {_time(days)} instead of {_time(first)}{cost}"


def _time(days: float) -> str:
    """Days, hours or minutes."""
    unit, scale = next((unit, scale) for unit, scale in _TIMES if days * scale >= 2 or unit == "minutes")
    return f"{days * scale:,.1f} {unit}"


_TIMES = (("days", 1), ("hours", 24), ("minutes", 1440))


MOST_BARS = 40
"""Plans that get a bar; further ones are counted."""

_UNFIT_BAR: dict[str, Any] = {"facecolor": "white", "edgecolor": RED, "hatch": "///", "linewidth": 0.6}


class PlanBar(NamedTuple):
    """A bar: what it is of, the plan whose step it is, and the recorded order there."""

    label: str
    plan: Candidate
    now: Candidate | None

    @property
    def error_ratio(self) -> float:
        """Error of its step; 0 where that is not known."""
        return 0 if self.plan.known_error is None else self.plan.known_error.step_ratio

    def text(self, *, named: bool) -> str:
        """Its step and the error of that, behind the plan's name where the label is of something else."""
        error = f" ±{text}" if (text := error_text(self.plan)) else ""
        step = f"{format_duration(self.plan.step_ns or 0)}{error}"
        return f"{plan_name(self.plan)}  {step}" if named else step


def decision_figure(decision: Decision) -> Figure:
    """A bar per offer, as long as the step of what to run over it.

    Raises:
        ScenarioError: If nothing fits.
    """
    bars = [PlanBar(offer.name, offer.best, offer.now) for offer in decision.offers if offer.best is not None]
    return bars_figure(bars, [], decision.today.step_ns, named=True)


def bars_figure(every: Sequence[PlanBar], heads: Sequence[str], today_ns: int | None, *, named: bool) -> Figure:
    """Bars below each other.

    Args:
        every: What to draw; the first ``MOST_BARS`` are.
        heads: What is said above them.
        today_ns: The recorded step; None without one.
        named: Whether bars are of scenarios, so that each says its plan; else each is of a schedule.

    Raises:
        ScenarioError: If there are none.
    """
    from matplotlib.figure import Figure

    bars = every[:MOST_BARS]
    if not bars:
        raise ScenarioError("nothing of this could be replayed, or nothing fits: there is nothing to draw.")
    left = 0.25 + max(text_width_pt(bar.label, 8) for bar in bars) / PT
    room = 0.3 + max(text_width_pt(bar.text(named=named), 8) for bar in bars) / PT
    width = max(7.2, left + room + 2.5)
    said = [*heads, *[f"{len(every) - len(bars)} further bars not drawn"] * (len(every) > len(bars))]
    said += [f"{UNPROVEN_MARK}: unproven, {UNPROVEN_TEXT}"] * any(evidence_of(bar.plan) == "unproven" for bar in bars)
    lines = wrapped(said, (width - 0.3) * PT, 8)
    names = list(dict.fromkeys(bar.plan.schedule for bar in bars))
    colours = {name: SERIES[number % len(SERIES)] if named else SERIES[0] for number, name in enumerate(names)}
    marks = _bar_marks(bars, colours if named else {}, has_today=today_ns is not None)
    abreast = legend_columns([str(mark.get_label()) for mark in marks], (width - 0.3) * PT) if marks else 1
    below, tall = 0.55 + 0.17 * -(-len(marks) // abreast), 0.3 * len(bars)
    height = 0.42 + 0.18 * len(lines) + tall + below
    figure = Figure(figsize=(width, height), dpi=150)
    title = "What to run, and its step" if named else "Step of each schedule"
    figure.text(0.15 / width, 1 - 0.1 / height, title, va="top", fontsize=10, weight="bold")
    for number, line in enumerate(lines):
        y = 1 - (0.32 + 0.18 * number) / height
        figure.text(0.15 / width, y, line, va="top", fontsize=8, color=GREY)
    across = width - left - 0.15
    axes = figure.add_axes((left / width, below / height, across / width, tall / height))
    _draw_bars(axes, bars, colours, today_ns or 0, across / (across - room), named=named)
    if marks:
        legend(figure, marks, abreast, x=0.5, y_in=0.08, loc="lower center")
    return figure


def _draw_bars(
    axes: Axes, bars: Sequence[PlanBar], colours: Mapping[str, str], today_ns: int, beyond: float, *, named: bool
) -> None:
    """The bars, with room for their texts behind them: so many times as wide as the longest."""
    longest = max(today_ns, *(one.step_ns or 0 for bar in bars for one in (bar.plan, bar.now) if one is not None))
    factor, unit = (1e9, "s") if longest >= 10e9 else (1e6, "ms")
    axes.set_xlim(0, longest / factor * beyond)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.tick_params(labelsize=8, length=2, width=0.6)
    axes.set_xlabel(f"step ({unit})", fontsize=8.5)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
    if today_ns:
        axes.axvline(today_ns / factor, color="black", linewidth=1, linestyle=":", zorder=0.5)
    for number, bar in enumerate(bars):
        step, error = (bar.plan.step_ns or 0) / factor, bar.error_ratio
        look: dict[str, Any] = {"color": colours[bar.plan.schedule]}
        axes.barh(number, step, height=0.6, **(_UNFIT_BAR if bar.plan.feasible is False else look))
        axes.errorbar([step] * bool(error), [number] * bool(error), xerr=error * step, color="black", capsize=3)
        now = 0.0 if bar.now is None else (bar.now.step_ns or 0) / factor
        if now:
            axes.plot([now, now], [number - 0.4, number + 0.4], color=GREY, linewidth=2)
        look = {"textcoords": "offset points", "fontsize": 8, "va": "center"}
        axes.annotate(bar.text(named=named), (max(step * (1 + error), now), number), (5, 0), **look)


def _bar_marks(bars: Sequence[PlanBar], colours: Mapping[str, str], *, has_today: bool) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks: list[Artist] = [Patch(color=colour, label=name) for name, colour in colours.items()]
    now = next((bar.now.schedule for bar in bars if bar.now is not None), None)
    if now is not None:
        name = "the recorded order" if now == OBSERVED else f"{now}, as recorded,"
        marks.append(Line2D([], [], color=GREY, linewidth=2, label=f"{name} over the same link"))
    if any(bar.plan.feasible is False for bar in bars):
        marks.append(Patch(label="does not fit the HBM limit", **_UNFIT_BAR))
    if has_today:
        marks.append(Line2D([], [], color="black", linestyle=":", label="today, as recorded"))
    return marks
