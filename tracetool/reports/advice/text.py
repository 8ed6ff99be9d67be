"""Advice for people: what to run, how sure that is, what binds, and what more would buy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import Option
from tracetool.model.schedule import OBSERVED
from tracetool.reports.advice import offer_rows, sentences, step_text
from tracetool.reports.advice.tables import gains_table, plans_table, sizes_table
from tracetool.reports.answer.notes import first_notes
from tracetool.reports.answer.text import columns_table, columns_with_room, title
from tracetool.reports.answer.verdict import gives_no_steps
from tracetool.reports.lines import Note, first_fitting, terminal_width, wrap, wrapped
from tracetool.units import format_duration, format_size
from tracetool.whatif.accuracy import format_error
from tracetool.whatif.best import (
    UNPROVEN_MARK,
    UNPROVEN_TEXT,
    nothing_fits,
    recorded_test,
    unchecked,
)
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.job import setting_text
from tracetool.whatif.layers import gain_text
from tracetool.whatif.memory_limit import PEAK_ERROR_RATIO, is_near_the_limit
from tracetool.whatif.results import step_change_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.advice import Advice, Decided
    from tracetool.advice.cotune import CoTuning
    from tracetool.advice.plans import Plan
    from tracetool.reports import RunFacts
    from tracetool.whatif.decision import Decision

_MOST_NAMED = 4
_INDENT = " " * 12
"""Where the text of a headline begins."""


def render_text(
    decided: Decided, facts: RunFacts, tuning: CoTuning | None = None, *,
    verbose: bool = False, after: str | None = None,
) -> bytes:  # fmt: skip
    """The decision in a sentence or two, the offers in a table, what more buys in another, and two notes: one screen.

    Args:
        decided: What to run over each offer.
        facts: Facts about the Run and the call.
        tuning: Other sizes of a microbatch, if that was asked for.
        verbose: Also everything about each offer, every plan, what was refused, and all notes.
        after: What to run next, where that is known.
    """
    advice, answer, width = decided.advice[0], decided.advice[0].asked.answer, terminal_width()
    lines = [f"warning: {text}" for text in answer.warnings]
    if gives_no_steps(answer) and not verbose:
        lines.append("No advice: step times of such a replay say nothing of links; tracetool replay shows its orders.")
        return ("\n".join(wrapped(lines, width)) + "\n").encode()
    lines += [*_tried(advice), *_setting(advice)]
    if not verbose:
        above = wrapped(lines, width)
        lines = first_fitting(([*above, *screen] for screen in _screens(decided, tuning, width)), width, after)
        extrapolated = () if tuning is None else tuning.assumptions
        notes = first_notes(answer.notes, width, lines, after, others=len(extrapolated))
        return ("\n".join([*lines, *notes]) + "\n").encode()
    lines += [*sentences(decided.decision), "", *_offers_table(decided.decision, width), ""]
    if tuning is not None:
        lines += [*sizes_table(tuning, advice.scenario, len(tuning.candidates), width), ""]
    for number, one in enumerate(decided.advice):
        lines += [*_in_full(one, facts, width), *_layers(decided, number, width)]
    lines += map(Note, (*_notes(decided.advice), *answer.notes))
    if tuning is not None:
        lines += [Note(f"extrapolated: {assumption}") for assumption in tuning.assumptions]
    return ("\n".join(wrapped(lines, width)) + "\n").encode()


def _screens(decided: Decided, tuning: CoTuning | None, width: int) -> Iterator[list[str]]:
    """The answer with less and less below its sentences, then with fewer of those."""
    advice, decision = decided.advice[0], decided.decision
    offers = [*_offers_table(decision, width), ""]
    every = len(sentences(decision))
    said = {most: wrapped([*sentences(decision, most), ""], width) for most in range(every, 0, -1)}
    if tuning is not None:
        sizes = range(len(tuning.candidates), min(_FEWEST_SIZES, len(tuning.candidates)) - 1, -1)
        for head, most in ((head, most) for head in ([*said[every], *offers], said[every]) for most in sizes):
            yield [*head, *wrapped(sizes_table(tuning, advice.scenario, most, width), width), ""]
        return
    near = [part for line in _near(advice) for part in wrap(line, width, _INDENT)] + _layers(decided, 0, width)
    resources = dict.fromkeys(gain.more.resource for gain in advice.gains) if len(decided.advice) == 1 else ()
    gains = [gain for gain in map(advice.gain_of, resources) if gain is not None and gain.gain_ratio >= RELEVANT_RATIO]
    for count in range(len(gains), 0, -1):
        yield [*said[every], *offers, *near, *gains_table(gains[:count], advice.best)]
    for below in (near, []):
        for most in range(every, min(every, len(decision.offers) + 1) - 1, -1):
            yield [*said[most], *offers, *below]
    for most in range(every, 0, -1):
        yield [*said[most], *offers]


def _offers_table(decision: Decision, width: int) -> list[str]:
    """A row per offer under one for what was recorded; columns that have no room are left out, the least first."""
    first, then = ("binds", "price", "to today"), ("transfers", "needs", "±")
    return columns_table(columns_with_room(offer_rows(decision), first, then, width), width)


def _tried(advice: Advice) -> list[str]:
    """Which schedules there were to choose from, where the recording has several stages per rank: few are."""
    if advice.asked.answer.pipeline.observed.shape.chunks == 1:
        return []
    recorded = advice.asked.answer.observed_schedule
    tried = dict.fromkeys(plan.schedule for plan in advice.asked.plans)
    names = ", ".join(f"{recorded} as recorded" if recorded and name == OBSERVED else name for name in tried)
    sentence = f"Only orders of several stages per rank were tried ({names})"
    return [f"{sentence}: a recording of one stage per rank tells of the others."]


def _setting(advice: Advice) -> list[str]:
    """What sets the step of what is to be run, where all pipelines are replayed together."""
    setting = (advice.now if advice.best is None else advice.best.result).slowest
    return [] if setting is None else [f"Of all pipelines {setting_text(setting)}."]


def _in_full(advice: Advice, facts: RunFacts, width: int) -> list[str]:
    """Everything about one offer."""
    answer = advice.asked.answer
    lines = [*title(answer, facts), ""]
    lines += [*(part for line in _headlines(advice) for part in wrap(line, width, _INDENT)), ""]
    if advice.gains:
        lines += [*gains_table(advice.gains, advice.best), ""]
    lines += [f"  {more}: cannot be told: {reason}" for more, reason in advice.missing]
    lines += [*plans_table(advice.asked.plans, advice.scenario), ""]
    return [*lines, *(f"  {r.schedule}: not replayed: {r.reason}" for r in advice.asked.refused)]


def _headlines(advice: Advice) -> list[str]:
    best = advice.best
    if best is None:
        return [
            _headline("best", nothing_fits(unchecked(advice.asked.plans), format_size(advice.scenario.hbm_bytes or 0))),
            *_near(advice),
        ]
    lines = [_headline("best", f"{_step(best)}; {_compared(advice, best)}"), *_near(advice)]
    if advice.other_transfers:
        plans = advice.other_transfers[:_MOST_NAMED]
        lines.append(_headline("transfers", f"issued otherwise it would be shorter: {listed(advice, plans)}"))
    return [*lines, _headline("binds", binds_text(advice)), _headline("memory", _memory(advice, best))]


def _near(advice: Advice) -> list[str]:
    """What comes near the best plan and what may be better; where nothing fits, what lacks least."""
    best = advice.best
    if best is None:
        return _nearest(advice)
    lines = []
    if advice.rivals:
        lines.append(_headline("as good", f"{', '.join(_rivals(advice, best))} ({_tie(advice, best)})"))
    if advice.unproven:
        rest = len(advice.unproven) - _MOST_NAMED
        more = f", {rest} more" if rest > 0 else ""
        rests = ", ".join(dict.fromkeys(reason for plan in advice.unproven for reason in plan.rests_on))
        sentence = f"may be better: {listed(advice, advice.unproven[:_MOST_NAMED])}{more}"
        lines.append(_headline("unproven", f"{sentence}{f' ({rests})' if rests and best.known_error is None else ''}"))
    return lines


def _layers(decided: Decided, offer: int, width: int) -> list[str]:
    """What layers that overlap make of the plan for an offer; the most gained first."""
    gains = sorted(decided.layers[offer] if decided.layers else (), key=lambda gain: (gain.is_bound, gain.step_ns))
    if not gains:
        return []
    gained = "; ".join(map(gain_text, gains))
    return wrap(_headline("layers", f"overlap inside layers would make this step: {gained}"), width, _INDENT)


def _rivals(advice: Advice, best: Plan) -> list[str]:
    """Plans as good as the best: of shorter ones what more memory they need, of longer ones that they are."""
    sentences = []
    for plan in advice.rivals:
        is_shorter = plan.step_ns < best.step_ns and (plan.needed_bytes or 0) > (best.needed_bytes or 0)
        needs = f" (needs {format_size(plan.needed_bytes or 0)})" if is_shorter else ""
        is_longer = plan.step_ns > (1 + RELEVANT_RATIO) * best.step_ns
        sentences.append(_named(advice, plan) + needs + (" (longer, not for certain)" if is_longer else ""))
    return sentences


def _headline(word: str, text: str) -> str:
    return f"  {word:<9} {text}"


def _step(plan: Plan) -> str:
    return f"{plan.label}, {plan.result.p2p} transfers: {step_text(plan)}"


def _compared(advice: Advice, best: Plan) -> str:
    now, observed = advice.now, advice.asked.answer.observed_schedule
    if recorded_test(advice.asked.answer.pipeline)(best):
        return "the recorded order"
    recorded = (observed or "order") if now.schedule == OBSERVED else now.schedule
    if now.p2p != advice.asked.answer.pipeline.p2p:
        recorded += f" with {now.p2p} transfers"
    change = best.step_ns / now.metrics.step_ns - 1
    within = "" if advice.lead_is_certain else ", which is within the error: that is as good"
    took = format_duration(now.metrics.step_ns)
    error = advice.change_error_ratio
    sure = "" if error is None else f" ±{format_error(error)}"
    return f"{change:+.1%}{sure} against the recorded {recorded} over these links ({took}){within}"


def _tie(advice: Advice, best: Plan) -> str:
    pairs = [sorted((best.result, rival.result), key=lambda r: -r.metrics.step_ns) for rival in advice.rivals]
    errors = [step_change_error(longer, shorter) for longer, shorter in pairs]
    known = [error for error in errors if error is not None]
    if len(known) < len(errors):
        return f"within {RELEVANT_RATIO:.0%}"
    return f"within the error of the difference, ±{format_error(max(known))}"


def listed(advice: Advice, plans: Sequence[Plan]) -> str:
    """Plans with what their steps differ by from the recorded order's."""
    return ", ".join(_named(advice, plan) for plan in plans)


def _named(advice: Advice, plan: Plan) -> str:
    way = "" if plan.way.p2p is None else f" {plan.result.p2p}"
    known = advice.best is not None and advice.best.result.feasible is not None
    unknown = " (HBM unknown)" if plan.result.feasible is None and known else ""
    mark = f" {UNPROVEN_MARK}" if way and plan.evidence == "unproven" else ""
    return f"{plan.label}{way} {plan.step_ns / advice.now.metrics.step_ns - 1:+.1%}{mark}{unknown}"


def binds_text(advice: Advice) -> str:
    """What binds, and what more of it would save."""
    if advice.binds == "compute":
        hbm = " or more HBM" if advice.gain_of("hbm") is not None else ""
        unsaid = "; what more HBM would is unknown" if advice.scenario.hbm_bytes is not None and not hbm else ""
        links = f"more bandwidth{',' if hbm else ' or'} less latency{hbm}"
        return f"compute: {links} would each gain less than {RELEVANT_RATIO:.0%}{unsaid}"
    gain = advice.gain_of(advice.binds)
    if gain is None:
        return advice.binds
    resource = "HBM" if advice.binds == "hbm" else advice.binds
    return (
        f"{resource}: {gain.more.text} would save {format_duration(gain.gained_ns)} ({gain.gain_ratio:.1%}) of the step"
    )


def _memory(advice: Advice, best: Plan) -> str:
    needed = best.result.metrics.needed_hbm_bytes
    limit = advice.scenario.hbm_bytes
    of = f"no limit given ({Option.HBM})" if limit is None else f"limit {format_size(limit)}"
    if best.needed_bytes is None:
        return f"unknown, {of}: not checked"
    rank = best.result.timeline.global_ranks[needed.index(best.needed_bytes)]
    near = ": so close to it that it may not fit" if is_near_the_limit(best.result.metrics, advice.scenario) else ""
    return f"needs {format_size(best.needed_bytes)} on rank {rank}, {of}{near}"


def _nearest(advice: Advice) -> list[str]:
    lacking = [(p.result.shortage.missing_bytes, p) for p in advice.asked.plans if p.result.shortage is not None]
    if not lacking:
        return []
    missing, plan = min(lacking, key=lambda plan_lacking: (plan_lacking[0], plan_lacking[1].step_ns))
    shortage = plan.result.shortage
    rank = shortage.global_rank if shortage is not None else 0
    return [
        _headline("nearest", f"{plan.label}: rank {rank} lacks {format_size(missing)} ({missing:,} bytes)"),
        _headline("binds", "HBM"),
    ]


_FEWEST_SIZES = 2


def _notes(offers: Sequence[Advice]) -> list[str]:
    notes = [
        f"best: the shortest step among those whose predictions rest on most; of steps within {RELEVANT_RATIO:.0%} of "
        "it (recorded ones scatter so much) the one that needs least memory, and the recorded order where the lead "
        "over it is within the error",
        "percentages: of schedules, the step against that of the recorded order over these links; of gains, the share "
        "of the best's step",
        "gains are replayed, with schedule and depth chosen anew (with: where others are best); of a microbatch more, "
        "per microbatch",
    ]
    marked = [
        plan for advice in offers for plan in (*advice.unproven, *advice.other_transfers) if plan.evidence == "unproven"
    ]
    if marked:
        reasons = dict.fromkeys(reason for plan in marked for reason in plan.rests_on)
        why = f" ({', '.join(reasons)})" if reasons else ""
        notes.append(f"unproven (± {UNPROVEN_MARK}): {UNPROVEN_TEXT}{why}; record one before you rely on it")
    notes.append(
        "rests on: recorded, predictions like it were compared with recorded steps, so ± is known; measured, all "
        "its costs are measured, but nothing like it was compared; unproven, costs are derived or transfers issued "
        "as the trace does not show"
    )
    tried = offers[0].asked.answer
    are_near = (r.feasible and is_near_the_limit(r.metrics, tried.scenario) for r in (tried.baseline, *tried.results))
    if tried.scenario.hbm_bytes is not None and not any(are_near):
        notes.append(f"maybe: needs within {PEAK_ERROR_RATIO:.0%} of the limit, which is the error of predictions")
    return notes
