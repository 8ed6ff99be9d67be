"""What ``tracetool explore`` answers of a recording: one screen for people, and JSON.

The structs are the schema: ``schemas/recorded-exploration.schema.json`` is made from them. Keys may be added within a
major version; none is renamed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.explore.answer import speedup
from tracetool.explore.recorded import tier_bytes
from tracetool.reports import as_json
from tracetool.reports.answer.notes import weightiest
from tracetool.reports.answer.text import table
from tracetool.reports.exploration.text import failure_lines
from tracetool.reports.lines import Note, on_one_screen, wrapped
from tracetool.tables.fields import Head, SchemaId, WithFigures, as_struct, doc, fields_of
from tracetool.tables.results import POINTS
from tracetool.units import format_bits, format_count, format_duration, format_size, parse_bandwidth_bytes_per_s
from tracetool.whatif.best import UNPROVEN_MARK, error_text, nothing_fits, unchecked

if TYPE_CHECKING:
    from tracetool.explore.failures import Failures, Weighed
    from tracetool.explore.recorded import ChoiceAlone, RecordedExploration, RecordedFleet
    from tracetool.explore.recorded_search import RecordedPlan
    from tracetool.explore.recorded_space import RecordedSpace, RecordedWay
    from tracetool.reports import CallFacts


class RecordedPlanInfo(WithFigures, kw_only=True):
    """A plan of a recorded job, replayed."""

    __annotations__ = fields_of(
        *("schedule", "extra_forwards", "microbatches", "p2p", "step_ns", "window_ns", "bubble_ratio", "needed_bytes"),
        *("feasible", "seen_error_ratio", "evidence", "rests_on", "overlap"),
        of=POINTS,
    )
    chunks: Annotated[int | None, doc("Stages per rank that it was cut into; null for as few as its schedule takes.")]
    microbatch: Annotated[int | None, doc("Sequences of a microbatch, where that is another number than recorded.")]
    placement: Annotated[str, doc("Rule by which ranks are put on devices.")]
    collectives: Annotated[str, doc("How collectives of data-parallel groups run.")]
    sharing: Annotated[str, doc("How pipelines share links: in turns (temporal), or each its part (spatial).")]
    routing_ratio: Annotated[float, doc("Share of the outermost tier's bandwidth that routing reaches.")]
    compression_ratio: Annotated[float, doc("Bytes over the outermost tier, of what was to be sent.")]
    tier_bytes: Annotated[
        list[int] | None, doc("Bytes of a step over each tier; null where they are unknown, or stages are cut anew.")
    ]
    price: Annotated[float | None, doc("What a step costs; null without a price, or where bytes are not known.")]
    faster_ratio: Annotated[float | None, doc("Step of the recorded order there over its, less 1; null in failures.")]
    shorter_ratio: Annotated[float | None, doc("1 less its step over the recorded order's there; null in failures.")]


class ChoiceAloneInfo(msgspec.Struct, kw_only=True):
    """What a choice reaches."""

    name: Annotated[
        str, doc("What is chosen, all else as the start has it: as recorded, as the fleet's file has it, and as fixed.")
    ]
    best: Annotated[RecordedPlanInfo | None, doc("The best of it; null if nothing of it can run.")]


class RecordedFleetInfo(msgspec.Struct, kw_only=True):
    """The best plan on another fleet."""

    network: Annotated[str, doc("Name of the fleet.")]
    best: Annotated[RecordedPlanInfo | None, doc("The best plan there; null if none fits.")]
    open: Annotated[int, doc("Ways to run that were not looked at when the time was up.")]


class RecordedFailureInfo(msgspec.Struct, kw_only=True):
    """What a failure of the fleet does."""

    failure: Annotated[str, doc("What fails, as it was written.")]
    weight_ratio: Annotated[float | None, doc("For which share of the time; null if that was not said.")]
    kept: Annotated[RecordedPlanInfo, doc("The plan that is named while all is whole.")]
    best: Annotated[RecordedPlanInfo | None, doc("The plan that is best then; null if none can run.")]


class RecordedWeighedInfo(msgspec.Struct, kw_only=True):
    """A plan over all failures."""

    plan: Annotated[RecordedPlanInfo, doc("The plan, while all is whole.")]
    worst_ns: Annotated[int, doc("Its longest step.")]
    expected_ns: Annotated[float | None, doc("Its mean step over the time; null if no share of it was said.")]


class RecordedFailuresInfo(msgspec.Struct, kw_only=True):
    """What failures of the fleet do."""

    outcomes: Annotated[list[RecordedFailureInfo], doc("One per failure.")]
    kept: Annotated[RecordedWeighedInfo | None, doc("The plan named while all is whole; null if it fails in one.")]
    least_worst: Annotated[RecordedWeighedInfo | None, doc("The one whose longest step is the shortest.")]
    least_expected: Annotated[
        RecordedWeighedInfo | None, doc("The one with the shortest mean step; null without shares.")
    ]
    cut: Annotated[list[str], doc("Failures in which the space was not searched to its end in time.")]


class RecordedExplorationInfo(Head, kw_only=True):
    """Result of tracetool explore over a recording."""

    schema: SchemaId = "urn:tracetool:schema:1:recorded-exploration"
    network: Annotated[str, doc("Name of the network.")]
    tiers: Annotated[list[str], doc("Its tiers, from the inside out.")]
    hbm_bytes: Annotated[int | None, doc("Memory of a rank; null for no limit.")]
    base: Annotated[RecordedPlanInfo, doc("The recorded order on the fleet.")]
    start: Annotated[RecordedPlanInfo, doc("The same with what was fixed: what choices alone are compared with.")]
    best: Annotated[RecordedPlanInfo | None, doc("The best of what was asked for; null if nothing fits.")]
    as_good: Annotated[list[RecordedPlanInfo], doc("As sure, with steps that differ by no more than the error.")]
    unproven: Annotated[list[RecordedPlanInfo], doc("Shorter, but predictions rest on less.")]
    alone: Annotated[list[ChoiceAloneInfo], doc("Each choice alone.")]
    one_by_one: Annotated[ChoiceAloneInfo, doc("All choices, one after another, each kept.")]
    front: Annotated[
        list[RecordedPlanInfo], doc("Than which none is as good in step, memory and bytes over the outermost tier.")
    ]
    plans: Annotated[list[RecordedPlanInfo], doc("All that were replayed.")]
    refused: Annotated[dict[str, int], doc("Plans that cannot run, by reason.")]
    left_out: Annotated[dict[str, int], doc("What was not taken up, by reason.")]
    open: Annotated[int, doc("Ways to run that were not looked at when the time was up, each of all schedules.")]
    notes: Annotated[list[str], doc("What holds of all plans.")]
    others: Annotated[list[RecordedFleetInfo], doc("The best plans on other fleets.")]
    failures: Annotated[RecordedFailuresInfo | None, doc("What failures of the fleet do; null if none was asked for.")]


def render_recorded_json(done: RecordedExploration, facts: CallFacts) -> bytes:
    """Indented JSON, with a final newline."""
    network = done.space.choice.network
    return as_json(
        as_struct(
            RecordedExplorationInfo,
            facts,
            network=network.name,
            tiers=[tier.name for tier in network.tiers],
            hbm_bytes=done.space.hbm_bytes,
            base=_info(done, done.base),
            start=_info(done, done.start),
            best=None if done.best is None else _info(done, done.best),
            as_good=[_info(done, plan) for plan in done.as_good],
            unproven=[_info(done, plan) for plan in done.unproven],
            alone=[_alone(done, one) for one in done.alone],
            one_by_one=_alone(done, done.one_by_one),
            front=[_info(done, plan) for plan in done.front],
            plans=[_info(done, plan) for plan in done.plans],
            refused=dict(done.refused),
            left_out=dict(done.left_out),
            open=done.open,
            notes=[str(note) for note in done.notes],
            others=[
                RecordedFleetInfo(
                    network=one.space.choice.network.name,
                    open=one.open,
                    best=None if one.best is None else _info(one, one.best),
                )
                for one in done.others
            ],
            failures=None if done.failures is None else _failures(done, done.failures),
        )
    )


def _failures(done: RecordedExploration, failures: Failures[RecordedPlan]) -> RecordedFailuresInfo:
    def weighed(one: Weighed[RecordedPlan] | None) -> RecordedWeighedInfo | None:
        return None if one is None else as_struct(RecordedWeighedInfo, one, plan=_info(done, one.judged))

    return RecordedFailuresInfo(
        outcomes=[
            as_struct(
                RecordedFailureInfo, one, failure=one.failure.text, weight_ratio=one.failure.weight_ratio,
                kept=_failing(done, one.kept), best=None if one.best is None else _failing(done, one.best),
            )
            for one in failures.outcomes
        ],
        kept=weighed(failures.kept),
        least_worst=weighed(failures.least_worst),
        least_expected=weighed(failures.least_expected),
        cut=list(failures.cut),
    )  # fmt: skip


def _info(done: RecordedExploration | RecordedFleet, plan: RecordedPlan) -> RecordedPlanInfo:
    """A plan as the struct of the schema, on the fleet that was asked about or on another one."""
    gain = speedup(done.base.step_ns, plan.step_ns) if plan.step_ns else (None, None)
    moved = tier_bytes(done.space, plan)
    return as_struct(
        RecordedPlanInfo, plan.point, plan.way, faster_ratio=gain[0], shorter_ratio=gain[1],
        routing_ratio=plan.way.routing, compression_ratio=plan.way.compression, p2p=plan.point.p2p,
        price=done.space.price_of(plan.step_ns, moved) if plan.step_ns else None,
        tier_bytes=None if moved is None else list(moved),
    )  # fmt: skip


def _failing(done: RecordedExploration, plan: RecordedPlan) -> RecordedPlanInfo:
    """A plan in a failure, in which the recorded order was not replayed."""
    return msgspec.structs.replace(_info(done, plan), faster_ratio=None, shorter_ratio=None)


def _alone(done: RecordedExploration, one: ChoiceAlone) -> ChoiceAloneInfo:
    return ChoiceAloneInfo(name=one.name, best=None if one.best is None else _info(done, one.best))


def render_recorded_text(done: RecordedExploration, *, verbose: bool = False) -> bytes:
    """The best plan, what each choice gives, who else comes near, and what was tried."""
    best = done.best
    if best is None:
        return ("\n".join(wrapped([nothing(done), *tried(done, verbose=verbose)])) + "\n").encode()
    rows = table([("choice", "step", "T0/T1-1", "1-T1/T0", "best alone"), *choice_rows(done, best)])
    head = [*wrapped([headline(done, best), *details(done, best), ""]), *rows, ""]
    after = other_lines(done, best, verbose=verbose)
    if verbose:
        return ("\n".join([*head, *wrapped([*front_lines(done), *after])]) + "\n").encode()
    return ("\n".join(on_one_screen(head, after)) + "\n").encode()


def nothing(done: RecordedExploration) -> str:
    """Why no plan fits."""
    points = [plan.point for plan in done.plans]
    least = min((point.needed_bytes for point in points if point.needed_bytes is not None), default=None)
    needs = "" if least is None else f": the least needs {format_size(least)} on its fullest rank"
    return f"Of the plans of this recording {nothing_fits(unchecked(points))}{needs}."


def choice_rows(done: RecordedExploration, best: RecordedPlan) -> list[tuple[str, ...]]:
    """What was fixed, choices that gain something alone, and all of them: step, both speed-ups, and what is chosen."""
    rows: list[tuple[str, ...]] = []
    if done.start.step_ns != done.base.step_ns:
        rows.append((*_figures(done, "as fixed", done.start), f"{done.start.order_text}, {done.start.point.p2p}"))
    rows += [_row(done, one) for one in done.alone if _gains(done, one)]
    joint = done.one_by_one.best
    if joint is not None and joint.step_ns > best.step_ns:
        rows.append(_row(done, done.one_by_one))
    return [*rows, (*_figures(done, "all together", best), "")]


def other_lines(done: RecordedExploration, best: RecordedPlan, *, verbose: bool) -> list[str]:
    """What only the joint choice gives, who else comes near, what was tried, and choices that gain nothing."""
    joint = done.one_by_one.best
    lines = []
    if joint is not None and joint.step_ns > best.step_ns:
        more = joint.step_ns / best.step_ns - 1
        lines.append(f"  only the joint choice gives {more:.1%} more than choosing one by one")
    lines += [*_fleets(done, best), *failure_text(done), *_near(done, best, verbose=verbose)]
    idle = [one.name for one in done.varied if not _gains(done, one)]
    beaten = "the recorded" if done.start.step_ns == done.base.step_ns else "what is fixed"
    lines += [f"  {', '.join(idle)}: alone nothing beats {beaten}"] if idle else []
    return [*lines, *tried(done, verbose=verbose)]


def failure_text(done: RecordedExploration) -> list[str]:
    """What each failure costs, and which plan is best at worst and over the time."""
    return [] if done.failures is None else failure_lines(done.failures, lambda plan: f"{plan.text}, {plan.way.text}")


def _fleets(done: RecordedExploration, best: RecordedPlan) -> list[str]:
    """The best plans on other fleets."""
    lines = []
    for one in done.others:
        there, name = one.best, one.space.choice.network.name
        cut = "; ended when the time was up" if one.open else ""
        if there is None:
            lines.append(f"  on {name}: no plan fits{cut}")
            continue
        took = f"{format_duration(there.step_ns)} ({there.step_ns / best.step_ns - 1:+.1%}){_costs(one.space, there)}"
        lines.append(f"  on {name}: {took}: {there.text}, {there.way.text}{cut}")
    return lines


def _costs(space: RecordedSpace, plan: RecordedPlan) -> str:
    """What a step costs, where fleet and bytes are known."""
    price = space.choice.price
    cost = space.price_of(plan.step_ns, tier_bytes(space, plan))
    return "" if cost is None or price is None else f"; {cost:.4g} {price.currency} a step"


def front_lines(done: RecordedExploration) -> list[str]:
    """The fastest plans within ever less memory and ever fewer bytes over the outermost tier."""
    lines = []
    for plan in done.front:
        needed = plan.point.needed_bytes
        holds = "unknown HBM" if needed is None else f"{format_size(needed)} of HBM"
        took = f"{format_duration(plan.step_ns)}{_costs(done.space, plan)}"
        lines.append(f"  with {holds} and {crossing_text(done, plan)}: {took}: {plan.text}, {plan.way.text}")
    return lines


def crossing_text(done: RecordedExploration, plan: RecordedPlan) -> str:
    """What a plan moves over the outermost tier."""
    moved = tier_bytes(done.space, plan)
    size = "unknown bytes" if moved is None else format_size(moved[-1])
    return f"{size} over {done.space.choice.network.tiers[-1].name}"


def headline(done: RecordedExploration, best: RecordedPlan) -> str:
    """The best plan, its step, and both ways to say how much faster it is."""
    error = error_text(best.point)
    gain = speedup(done.base.step_ns, best.step_ns)
    short = " (which does not fit)" if done.base.point.feasible is False else ""
    text = f"Run {best.text}: {format_duration(best.step_ns)}{f' (±{error})' if error else ''} a step"
    recorded = f"the recorded order's {format_duration(done.base.step_ns)} there{short}"
    if best.step_ns == done.base.step_ns:
        return f"{text}, as the recorded order takes there{short}: nothing that is as sure is shorter."
    if done.named is done.base:
        return (
            f"Stay with the recorded order, {format_duration(done.base.step_ns)} there: of what was asked for the best "
            f"is {text.removeprefix('Run ')}, {best.step_ns / done.base.step_ns - 1:.1%} more."
        )
    if best.step_ns > done.base.step_ns:
        return f"{text}, {best.step_ns / done.base.step_ns - 1:.1%} more than {recorded}."
    return (
        f"{text}, {gain.faster_ratio:.1%} faster than {recorded} (T0/T1 - 1), "
        f"{gain.shorter_ratio:.1%} less time a step (1 - T1/T0)."
    )


def details(done: RecordedExploration, best: RecordedPlan) -> list[str]:
    """Where it runs and how, what it holds and what it moves."""
    needed, limit = best.point.needed_bytes, done.space.hbm_bytes
    holds = "memory is unknown" if needed is None else f"{format_size(needed)} of HBM on the fullest rank"
    if limit is not None and best.point.feasible is None:
        holds += ", the limit was not checked"
    derived = f"; derived: {', '.join(best.point.rests_on)}" if best.point.rests_on else "; all costs as measured"
    moved = tier_bytes(done.space, best)
    crosses = (
        "" if moved is None else f"; {format_size(moved[-1])} over {done.space.choice.network.tiers[-1].name} a step"
    )
    crosses += _costs(done.space, best)
    lines = [f"  {best.way.text}; {holds}{crosses}{derived}"]
    changes = [] if done.named is not best else fleet_changes(done.space, best.way)
    return [*lines, f"  to replay it, put into the fleet's file: {', '.join(changes)}"] if changes else lines


def fleet_changes(space: RecordedSpace, way: RecordedWay) -> list[str]:
    """What the fleet's file would have to say for replay to have the fleet as a way uses it; empty if it says so."""
    changes = [f'placement = "{way.placement}"'] if way.placement != space.base.placement else []
    outer, used = space.choice.network.tiers[-1], way.choice(space.choice).network.tiers[-1]
    if used == outer:
        return changes
    if outer.times:
        return [*changes, f"times of tier {outer.name} × {way.compression / way.routing:g}"]
    exact, short = f"{used.bandwidth_bytes_per_s}B/s", format_bits(used.bandwidth_bytes_per_s)
    written = short if parse_bandwidth_bytes_per_s(short) == used.bandwidth_bytes_per_s else exact
    return [*changes, f'bandwidth = "{written}" of tier {outer.name}']


def _gains(done: RecordedExploration, one: ChoiceAlone) -> bool:
    return one.best is not None and one.best.step_ns < done.start.step_ns


def _figures(done: RecordedExploration, name: str, plan: RecordedPlan) -> tuple[str, ...]:
    gain = speedup(done.base.step_ns, plan.step_ns)
    return name, format_duration(plan.step_ns), f"{gain.faster_ratio:+.1%}", f"{gain.shorter_ratio:+.1%}"


def _row(done: RecordedExploration, one: ChoiceAlone) -> tuple[str, ...]:
    if one.best is None:
        return one.name, "-", "", "", ""
    way, point = one.best.way, one.best.point
    chosen = {
        "placement": way.placement, "network": way.text, "overlap": point.overlap,
        "microbatch": f"{point.microbatches} of {way.microbatch}",
    }  # fmt: skip
    return (*_figures(done, one.name, one.best), chosen.get(one.name, f"{one.best.order_text}, {one.best.point.p2p}"))


def _near(done: RecordedExploration, best: RecordedPlan, *, verbose: bool) -> list[str]:
    lines = []
    for plans, head, most in ((done.as_good, "as good", 2), (done.unproven, f"maybe {UNPROVEN_MARK}", 1)):
        for plan in plans if verbose else plans[:most]:
            bound = "at most " if plan.point.overlap in done.space.bounds else ""
            text = f"  {head}   {bound}{plan.step_ns / best.step_ns - 1:+.1%} {plan.text}"
            text += f", {plan.way.text}" if plan.way.text != best.way.text else ""
            rests = plan.point.rests_on
            lines.append(f"{text}; rests on {', '.join(rests)}" if rests and plans is done.unproven else text)
    hidden = len(done.as_good) + len(done.unproven) - len(lines)
    return [*lines, f"  {hidden} more of both: -v"] if hidden else lines


def tried(done: RecordedExploration, *, verbose: bool) -> list[str]:
    """What was replayed, and what was not and why."""
    ways = format_count(len({plan.way for plan in done.plans}), "way")
    lines = [f"  {format_count(len(done.plans), 'plan')} replayed, in {ways} to place them and to issue transfers"]
    if done.open:
        lines[0] += f"; {format_count(done.open, 'way')} not looked at in time"
    lines[0] += "".join(f"; {reason}: {count:,}" for reason, count in done.left_out.items())
    lines += [f"  {reason} ({count})" for reason, count in done.refused.items()] if verbose else []
    if done.refused and not verbose:
        lines.append(f"  {format_count(done.refused.total(), 'plan')} cannot run, and why: -v")
    sized = "" if done.space.sizes is not None else " microbatches,"
    kept = f"degrees,{sized} recomputation: as recorded (a model's file has others)"
    notes: list[str] = [*map(Note, weightiest(done.notes))]
    if len(notes) > 1 and not verbose:
        notes[1:] = [f"{format_count(len(notes) - 1, 'note')} more: -v"]
    return [*lines, f"  {kept}", *notes]
