"""What ``tracetool explore`` prints for people: the answer first, one screen of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.explore.answer import speedup
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.fleets import price_of
from tracetool.explore.launch import launches
from tracetool.explore.search import RIVAL_RATIO
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.reports.answer.text import table
from tracetool.reports.estimate.text import overlap_text
from tracetool.reports.lines import Note, on_one_screen, wrapped
from tracetool.schedules import kind_of
from tracetool.units import format_count, format_duration, format_size
from tracetool.whatif.accuracy import format_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.explore.answer import Alternative, Exploration
    from tracetool.explore.failures import Failures, RanT
    from tracetool.explore.judge import Judged
    from tracetool.explore.plan import Workload
    from tracetool.explore.search import SearchResults

_MOST = 2
_MUCH_CHEAPER = 0.05
"""A plan that is as good and costs less by so much is named beside the fastest."""


def render_text(done: Exploration, failures: Failures[Judged] | None = None, *, verbose: bool = False) -> bytes:
    """The best plan, what each choice gives, who else comes near, and what was looked at."""
    best = done.best
    if best is None:
        return ("\n".join(wrapped([nothing(done), *searched(done)])) + "\n").encode()
    failing = [] if failures is None else failure_lines(failures, named_text)
    asked = [*_fleets(done, best, verbose=verbose), *failing]
    # What was asked for besides takes the room of choices that matter less.
    rows = choice_rows(done, is_short=bool(asked) and not verbose)
    listed = table([("choice", "step", "T0/T1-1", "1-T1/T0", "best alone"), *rows])
    head = [*wrapped([headline(done, best), *details(done, best), ""]), *listed, ""]
    after = [*asked, *other_lines(done, best, verbose=verbose), *idle_lines(done)]
    if verbose:
        shown = [*head, *wrapped([*after, *searched(done)]), "", *_launch(done, best)]
    else:
        shown = on_one_screen(head, after, cautions(done) if asked else searched(done))
    return ("\n".join(shown) + "\n").encode()


def failure_lines(failures: Failures[RanT], named: Callable[[RanT], str]) -> list[str]:
    """What each failure costs, and which plan is best at worst and over the time.

    Args:
        failures: What fails, and what comes of it.
        named: A plan in few words.
    """
    lines = []
    for one in failures.outcomes:
        share = "" if one.failure.weight_ratio is None else f" ({one.failure.weight_ratio:.0%} of the time)"
        took = format_duration(one.kept.step_ns) if one.kept.runs else one.kept.refusal
        line = f"  {one.failure.text}{share}: {took}"
        if one.best is not None and one.best.plan != one.kept.plan:
            line += f"; best then {named(one.best)}, {format_duration(one.best.step_ns)}"
        lines.append(line)
    for name, weighed, of in (
        ("at worst", failures.least_worst, "worst_ns"),
        ("on average", failures.least_expected, "expected_ns"),
    ):
        if weighed is not None:
            kept = failures.kept
            is_kept = kept is not None and kept.judged.plan == weighed.judged.plan
            which = "the same plan is best" if is_kept else f"best is {named(weighed.judged)}"
            before = "" if is_kept or kept is None else f", this one {format_duration(round(getattr(kept, of)))}"
            lines.append(f"  {name} {which}: {format_duration(round(getattr(weighed, of)))}{before}")
    if failures.cut:
        lines.append(
            f"  not searched to the end in time, and something better may be best then: {', '.join(failures.cut)}"
        )
    return lines


def named_text(judged: Judged) -> str:
    """A plan in few words."""
    plan = judged.plan
    issued = f", {plan.p2p_text} transfers" if plan.training.stages > 1 else ""
    return f"{plan.degrees_text} with {plan.order_text}{issued}, placed {plan.seats_rule}"


def _launch(done: Exploration, best: Judged) -> list[str]:
    """What each framework is told; commands stay whole, to be copied."""
    lines = []
    for made in launches(done.space.workload, best.plan):
        lines += [f"  {made.framework}: {made.text}"]
        lines += wrapped([f"    besides: {'; '.join(made.beside)}"] if made.beside else [])
        lines += wrapped([f"    not said by flags: {said}" for said in made.unsaid])
    return lines


def headline(done: Exploration, best: Judged) -> str:
    """The best plan, its step, and both ways to say how much faster it is."""
    sure = [] if done.error_ratio is None else [f"±{format_error(done.error_ratio)}"]
    if not kind_of(best.plan.training.order_name).is_compared:
        sure.append("unproven: its steps were never compared with recorded ones")
    text = f"Run {best.plan.degrees_text} with {best.plan.order_text}: {format_duration(best.step_ns)}"
    text += f" ({', '.join(sure)}) a step" if sure else " a step"
    if not done.base.runs:
        return f"{text}; the declared plan cannot run ({done.base.refusal})."
    gain = speedup(done.base.step_ns, best.step_ns)
    declared = f"the declared plan's {format_duration(done.base.step_ns)}"
    if best.step_ns == done.base.step_ns:
        return f"{text}, as the declared plan takes: nothing that was asked for is shorter."
    if best.step_ns > done.base.step_ns:
        return (
            f"Stay with {declared} a step: of what was asked for the best is {text.removeprefix('Run ')}, "
            f"{best.step_ns / done.base.step_ns - 1:.1%} more."
        )
    return (
        f"{text}, {gain.faster_ratio:.1%} faster than {declared} "
        f"(T0/T1 - 1), {gain.shorter_ratio:.1%} less time a step (1 - T1/T0).{_cheaper_text(done, best)}"
    )


def _cheaper_text(done: Exploration, best: Judged) -> str:
    """That a plan within the error of the best one costs much less; nothing if none does."""
    mine = price_of(done.space.workload, best)
    margin = RIVAL_RATIO if done.error_ratio is None else done.error_ratio
    near = [
        one
        for one in done.price_front
        if one.workload == done.space.workload and one.judged.step_ns <= best.step_ns * (1 + margin)
    ]
    cheapest = min(near, key=lambda one: one.price, default=None)
    if mine is None or cheapest is None or cheapest.price > mine * (1 - _MUCH_CHEAPER):
        return ""
    slower = cheapest.judged.step_ns / best.step_ns - 1
    return (
        f" For {1 - cheapest.price / mine:.0%} less money, within the error of it ({slower:.1%} more time): "
        f"{named_text(cheapest.judged)}."
    )


def details(done: Exploration, best: Judged) -> list[str]:
    """Where it runs and how, what it holds and what it moves."""
    plan, how = best.plan, best.plan.training
    outer = done.space.workload.choice.network.tiers[-1].name
    crossing = tier_bytes(done.space.workload, plan)[-1]
    gradients, most = "no gradients to sum", ""
    if how.data * how.context > 1:
        # Bytes are counted as rings carry them, and nothing carries more.
        most = "" if plan.collectives == "ring" else "at most "
        gradients = f"gradients reduced by {plan.collectives}"
        gradients += " beside the last backward" if how.overlap_reduction else ""
    turns = ", pipelines take turns on the link" if plan.sharing == "temporal" else ""
    sent = f"{plan.p2p_text} transfers, " if how.stages > 1 else ""
    return [
        f"  placed {plan.seats_rule}; {format_count(how.microbatches, 'microbatch')} of {how.batch}, recompute "
        f"{how.recompute}, {sent}{gradients}{turns}",
        f"  {format_size(best.peak_hbm_bytes)} of HBM on the fullest of {format_count(how.devices, 'device')}; "
        f"{most}{format_size(crossing)} over {outer} a step{_costs(done.space.workload, best, most)}",
        *([f"  {overlap_text(how)}"] if how.overlap != NO_OVERLAP else []),
    ]


def _costs(workload: Workload, judged: Judged, most: str = "") -> str:
    price = price_of(workload, judged)
    if price is None or workload.choice.price is None:
        return ""
    return f"; {most}{price:.4g} {workload.choice.price.currency} a step"


def _fleets(done: Exploration, best: Judged, *, verbose: bool) -> list[str]:
    """The best plans on other fleets, and those that cost less."""
    lines = []
    for one in done.others:
        there, name = one.results.best, one.workload.choice.network.name
        if there is None:
            lines.append(f"  on {name}: no plan can run")
            continue
        took = (
            f"{format_duration(there.step_ns)} ({there.step_ns / best.step_ns - 1:+.1%}){_costs(one.workload, there)}"
        )
        lines.append(f"  on {name}: {took}: {named_text(there)}")
    fleets = [done.space.workload, *(one.workload for one in done.others)]
    unpriced = [each.choice.network.name for each in fleets if each.choice.price is None]
    if 0 < len(unpriced) < len(fleets):
        lines.append(f"  no plan is named for its price: {', '.join(unpriced)} has none")
    shown = [best, *(one.results.best for one in done.others)]
    cheaper = [one for one in done.price_front if not any(one.judged is each for each in shown)]
    for each in cheaper if verbose else cheaper[-1:]:
        where = each.workload.choice.network.name if done.others else ""
        took = f"{format_duration(each.judged.step_ns)}{_costs(each.workload, each.judged)}"
        lines.append(f"  cheaper{f' on {where}' if where else ''}: {took}: {named_text(each.judged)}")
    return lines


def choice_rows(done: Exploration, *, is_short: bool = False) -> list[tuple[str, ...]]:
    """Choices that gain something alone, and all of them: step, both speed-ups, and what is chosen.

    Args:
        done: What was searched.
        is_short: Whether the one that gains most alone is enough.
    """
    every = [*done.alone, done.one_by_one]
    if is_short:
        every = sorted(
            (one for one in done.alone if one.judged is not None),
            key=lambda one: one.judged.step_ns if one.judged else 0,
        )[:1]
    rows = [_row(done, one) for one in every if not (_is_idle(done, one) or _is_unknown(one))]
    best = done.best
    if best is not None:
        rows.append((*_row_of(done, "all together", best), ""))
    return rows


def _is_idle(done: Exploration, one: Alternative) -> bool:
    return one.judged is not None and done.base.runs and one.judged.step_ns >= done.base.step_ns


def _is_unknown(one: Alternative) -> bool:
    return one.is_cut and one.judged is None


def _row(done: Exploration, one: Alternative) -> tuple[str, ...]:
    if one.judged is None:
        return one.name, "-", "", "", one.reason[:30]
    return (*_row_of(done, one.name, one.judged), _short(one.name, one.judged))


def _row_of(done: Exploration, name: str, judged: Judged) -> tuple[str, ...]:
    if not done.base.runs:
        return name, format_duration(judged.step_ns), "", ""
    gain = speedup(done.base.step_ns, judged.step_ns)
    return name, format_duration(judged.step_ns), f"{gain.faster_ratio:+.1%}", f"{gain.shorter_ratio:+.1%}"


def _short(name: str, judged: Judged) -> str:
    """What is chosen, in few words."""
    plan = judged.plan
    texts = {
        "degrees": plan.degrees_text,
        "placement": plan.seats_rule,
        "schedule": f"{plan.order_text}, {plan.p2p_text}" if plan.training.stages > 1 else plan.order_text,
        "microbatch": f"{plan.training.microbatches} of {plan.training.batch}",
        "recompute": plan.training.recompute,
        "overlap": plan.training.overlap,
        "network": f"{plan.collectives}{' beside' if plan.training.overlap_reduction else ''}, {plan.sharing}",
    }
    return texts.get(name, f"{plan.degrees_text}, {plan.order_text}")


def other_lines(done: Exploration, best: Judged, *, verbose: bool) -> list[str]:
    """What only the joint choice gives, other ways of choosing, rivals, and figures that would turn the answer."""
    lines = []
    joint = done.one_by_one.judged
    if joint is not None and done.base.runs and not done.one_by_one.is_cut:
        more = joint.step_ns / best.step_ns - 1
        if more > 0:
            lines.append(f"  only the joint choice gives {more:.1%} more than choosing one by one")
    lines += _rivals(done, best, verbose=verbose)
    if done.unproven.judged is not None and done.unproven.judged.step_ns < best.step_ns:
        other = done.unproven.judged
        lines.append(
            f"  unproven  may be better: {other.plan.order_text} {other.step_ns / best.step_ns - 1:+.1%} "
            f"({other.plan.degrees_text})"
        )
    took = (
        f"{one.name} {one.reason if one.judged is None else f'{one.judged.step_ns / best.step_ns - 1:+.1%}'}"
        for one in done.baselines
        if not _is_unknown(one)
    )
    if known := list(took):
        lines.append(f"  step against the best's: {', '.join(known)}")
    turned = done.turned if verbose else done.turned[:1]
    lines += [
        f"  with {each.figure} off by {each.change_ratio:+.0%} another plan is {each.lost_ratio:.1%} faster: "
        f"{each.judged.plan.degrees_text}, {each.judged.plan.order_text}, placed {each.judged.plan.seats_rule}"
        for each in turned
    ]
    if not (done.turned or done.cut):
        lines.append("  no figure that is off by 20 % would change the answer among the plans replayed")
    return [*lines, *_fronts(done)] if verbose else lines


def idle_lines(done: Exploration) -> list[str]:
    """Choices that gain nothing alone."""
    asked = done.space.values("overlap") != (NO_OVERLAP,)
    looked_at = [one for one in done.alone if not one.is_cut and (asked or one.name != "overlap")]
    idle = [one.name for one in looked_at if _is_idle(done, one)]
    return [f"  {', '.join(idle)}: alone nothing beats the declared"] if idle else []


def _fronts(done: Exploration) -> list[str]:
    """The fastest plans within less memory, and within fewer bytes over the outermost tier."""
    lines = [
        f"  with {format_size(one.peak_hbm_bytes)} of HBM: {format_duration(one.step_ns)}: {one.plan.text}"
        for one in done.front
    ]
    outer = done.space.workload.choice.network.tiers[-1].name
    return lines + [
        f"  with {format_size(tier_bytes(done.space.workload, one.plan)[-1])} over {outer}: "
        f"{format_duration(one.step_ns)}: {one.plan.text}"
        for one in done.crossing_front[1:]
    ]


def _rivals(done: Exploration, best: Judged, *, verbose: bool) -> list[str]:
    shown = done.rivals if verbose else done.rivals[:_MOST]
    measured = {id(each.judged): each for each in done.deciding}
    lines = []
    for rival in shown:
        unlike = rival.plan.text if verbose else f"{rival.plan.degrees_text}, {rival.plan.order_text}"
        text = f"  as good   {rival.step_ns / best.step_ns - 1:+.1%} {unlike}"
        each = measured.get(id(rival))
        if each is not None:
            what = f"{each.figure} ({format_count(each.devices, 'device')})" if each.figure else "a few steps of both"
            text += f"; measure {what}"
        lines.append(text)
    hidden = len(done.rivals) - len(shown)
    return [*lines, f"  {hidden} more within the error: -v"] if hidden else lines


def searched(done: Exploration) -> list[str]:
    """What was looked at, and what was not replayed and why."""
    results = done.results
    pruned = ", ".join(f"{count:,} by {name}" for name, count in results.pruned.items())
    refused = ""
    if results.refused:
        kinds = [f"{count:,} by {reason}" for reason, count in results.refused.most_common(_MOST)]
        others = results.refused.total() - sum(count for _, count in results.refused.most_common(_MOST))
        refused = f"; cannot run: {', '.join(kinds)}" + (f", {others:,} by other reasons" if others else "")
    counted = (
        f"  {results.candidates:,} candidates, {results.replayed:,} replayed; not replayed: {pruned or 'none'}{refused}"
    )
    return [counted + (f"; {_open(results)}" if results.open else ""), *cautions(done)]


def cautions(done: Exploration) -> list[str]:
    """What was not looked at in time, and what tells how far off steps may be."""
    lines = []
    if done.cut_short:
        lines.append(f"  ended when the time was up, and may be better: {', '.join(done.cut_short)}")
    workload = done.space.workload
    if workload.hbm_bytes > workload.device.hbm_bytes:
        has = f"{workload.device.name} has ({format_size(workload.device.hbm_bytes)})"
        lines.append(Note(f"the HBM limit is above what {has}"))
    if done.misfits:
        runs = f"measured runs that do not fit on this fleet tell nothing of the error: {', '.join(done.misfits)}"
        lines.append(Note(runs))
    elif done.error_ratio is None:
        lines.append(
            Note("no measured run of the model's file tells how far off a step may be: tracetool help estimate")
        )
    return lines


def _open(results: SearchResults) -> str:
    """What was not looked at, and how much better it may be."""
    text = f"{results.open:,} not looked at in time"
    if results.unbounded:
        return f"{text}, {results.unbounded:,} of these not even bounded: give it more of it"
    return f"{text}, none faster than {format_duration(results.bound_ns)}"


def nothing(done: Exploration) -> str:
    """Why no plan can run."""
    results = done.results
    why = results.refused + results.pruned or results.left_out
    reasons = ", ".join(f"{count:,} by {name}" for name, count in sorted(why.items(), key=lambda pair: -pair[1])[:3])
    if results.open:
        return f"No plan that can run was come upon in time, of {results.candidates:,}: {_open(results)}."
    return f"No plan of {results.candidates:,} can run: {reasons or 'the space is empty'}."
