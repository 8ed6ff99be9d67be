"""What ``tracetool explore --json`` prints.

The structs are the schema: ``schemas/exploration.schema.json`` is made from them. Keys may be added within a major
version; none is renamed or removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.explore.answer import speedup
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.file import PlanTable, table_of
from tracetool.explore.fleets import price_of
from tracetool.explore.launch import launches
from tracetool.reports import as_json
from tracetool.tables.fields import Head, SchemaId, as_struct, doc

if TYPE_CHECKING:
    from tracetool.explore.answer import Alternative, Exploration
    from tracetool.explore.failures import Failures, Weighed
    from tracetool.explore.fleets import FleetPlan
    from tracetool.explore.judge import Judged
    from tracetool.explore.launch import PlanLaunch
    from tracetool.explore.plan import Workload


class JudgedInfo(msgspec.Struct, kw_only=True):
    """A plan, replayed."""

    text: Annotated[str, doc("The plan in one line.")]
    plan: Annotated[PlanTable, doc("The plan, as a baseline file has it.")]
    step_ns: Annotated[int | None, doc("First forward to the end of the optimizer; null if it cannot run.")]
    window_ns: Annotated[int | None, doc("First forward to last backward; null if it cannot run.")]
    reduction_ns: Annotated[int | None, doc("Gradient reduction after the last backward; null if it cannot run.")]
    peak_hbm_bytes: Annotated[int | None, doc("Highest allocation of any device; null if it is unknown.")]
    tier_bytes: Annotated[
        list[int] | None,
        doc(
            "Bytes of a step over each tier, from the inside out; of collectives what rings carry, the most of any way."
        ),
    ]
    refusal: Annotated[str | None, doc("Why it cannot run.")]


class PricedInfo(msgspec.Struct, kw_only=True):
    """A plan on a fleet with a price."""

    network: Annotated[str, doc("Name of the fleet.")]
    price: Annotated[float, doc("What a step costs.")]
    currency: Annotated[str, doc("In which currency.")]
    best: Annotated[JudgedInfo, doc("The plan.")]


class FleetInfo(msgspec.Struct, kw_only=True):
    """The best plan on another fleet."""

    network: Annotated[str, doc("Name of the fleet.")]
    best: Annotated[JudgedInfo | None, doc("The fastest plan there; null if none can run.")]
    price: Annotated[float | None, doc("What a step of it costs; null without a price.")]


class AlternativeInfo(msgspec.Struct, kw_only=True):
    """What another way of choosing reaches."""

    name: Annotated[str, doc("What is chosen, or by whom.")]
    best: Annotated[JudgedInfo | None, doc("The best of it; null if nothing of it can run.")]
    faster_ratio: Annotated[float | None, doc("Step of the base over its step, minus one.")]
    shorter_ratio: Annotated[float | None, doc("One minus its step over the base's.")]
    reason: Annotated[str | None, doc("Why nothing of it can run.")]
    is_cut: Annotated[bool, doc("Whether the time was up before all of it was looked at.")]


class TurnedInfo(msgspec.Struct, kw_only=True):
    """A figure that would change the answer if it were off."""

    figure: Annotated[str, doc("Which.")]
    change_ratio: Annotated[float, doc("By how much it was taken to be off.")]
    lost_ratio: Annotated[float, doc("By how much longer the best plan would take than the best one then.")]
    best: Annotated[JudgedInfo, doc("The best plan then.")]


class FailureInfo(msgspec.Struct, kw_only=True):
    """What a failure of the fleet does."""

    failure: Annotated[str, doc("What fails, as it was written.")]
    weight_ratio: Annotated[float | None, doc("For which share of the time; null if that was not said.")]
    kept: Annotated[JudgedInfo, doc("The plan that is best while all is whole.")]
    best: Annotated[JudgedInfo | None, doc("The plan that is best then; null if none can run.")]


class WeighedInfo(msgspec.Struct, kw_only=True):
    """A plan over all failures."""

    text: Annotated[str, doc("The plan in one line.")]
    plan: Annotated[PlanTable, doc("The plan, as a baseline file has it.")]
    whole_ns: Annotated[int, doc("Its step while all is whole.")]
    worst_ns: Annotated[int, doc("Its longest step.")]
    expected_ns: Annotated[float | None, doc("Its mean step over the time; null if no share of it was said.")]


class FailuresInfo(msgspec.Struct, kw_only=True):
    """What failures of the fleet do."""

    outcomes: Annotated[list[FailureInfo], doc("One per failure.")]
    kept: Annotated[WeighedInfo | None, doc("The plan that is best while all is whole; null if it fails in one.")]
    least_worst: Annotated[WeighedInfo | None, doc("The plan whose longest step is the shortest; null if none runs.")]
    least_expected: Annotated[WeighedInfo | None, doc("The one with the shortest mean step; null without shares.")]
    cut: Annotated[list[str], doc("Failures in which the space was not searched to its end in time.")]


class LaunchInfo(msgspec.Struct, kw_only=True):
    """How a framework is told to run the best plan."""

    framework: Annotated[str, doc("Which, with the version that has these flags.")]
    flags: Annotated[list[str], doc("Flags and their values, word by word.")]
    beside: Annotated[list[str], doc("What it is given otherwise than by flags.")]
    unsaid: Annotated[list[str], doc("What of the plan it cannot be told, or does otherwise.")]


class DecidingInfo(msgspec.Struct, kw_only=True):
    """The cheapest measurement that tells whether a rival is faster than the best plan."""

    plan: Annotated[str, doc("The rival in one line.")]
    figure: Annotated[str | None, doc("The figure to measure; null: a few steps of both plans.")]
    devices: Annotated[int, doc("Devices that it takes.")]


class ExplorationInfo(Head, kw_only=True):
    """Result of tracetool explore."""

    schema: SchemaId = "urn:tracetool:schema:1:exploration"
    model: Annotated[str, doc("Name of the model.")]
    network: Annotated[str, doc("Name of the network.")]
    tiers: Annotated[list[str], doc("Its tiers, from the inside out.")]
    devices: Annotated[int, doc("Devices of the job.")]
    sequences: Annotated[int, doc("Sequences per step.")]
    hbm_bytes: Annotated[int, doc("Memory that a device may use.")]
    error_ratio: Annotated[float | None, doc("How far off a step may be; null if nothing tells.")]
    best: Annotated[JudgedInfo | None, doc("The fastest plan; null if none can run.")]
    launch: Annotated[list[LaunchInfo], doc("How the best plan is launched; empty if none can run.")]
    base: Annotated[JudgedInfo, doc("The plan that it is compared with.")]
    faster_ratio: Annotated[float | None, doc("Step of the base over the best one's, minus one.")]
    shorter_ratio: Annotated[float | None, doc("One minus the best step over the base's.")]
    alone: Annotated[list[AlternativeInfo], doc("Each choice alone, all else as in the base.")]
    one_by_one: Annotated[AlternativeInfo, doc("All choices, one after another.")]
    baselines: Annotated[list[AlternativeInfo], doc("Other plans, and other ways of choosing.")]
    unproven: Annotated[AlternativeInfo, doc("The best of schedules that were never compared with a recorded step.")]
    rivals: Annotated[list[JudgedInfo], doc("Plans unlike the best one and within its error.")]
    deciding: Annotated[list[DecidingInfo], doc("For the nearest rivals, what to measure to decide.")]
    front: Annotated[list[JudgedInfo], doc("The fastest plan for each budget of memory, the fastest first.")]
    crossing_front: Annotated[
        list[JudgedInfo], doc("The fastest plan for each budget of bytes over the outermost tier, the fastest first.")
    ]
    price: Annotated[
        float | None, doc("What a step of the best plan costs, by its `tier_bytes`; null without a price.")
    ]
    currency: Annotated[str | None, doc("In which currency.")]
    price_front: Annotated[
        list[PricedInfo],
        doc("Of plans replayed on all fleets, each cheaper than all that are faster; the fastest first."),
    ]
    others: Annotated[list[FleetInfo], doc("The best plans on other fleets.")]
    turned: Annotated[list[TurnedInfo], doc("Figures that would change the answer.")]
    failures: Annotated[FailuresInfo | None, doc("What failures of the fleet do; null if none was asked for.")]
    candidates: Annotated[int, doc("Plans of the space.")]
    replayed: Annotated[int, doc("Of these, replayed.")]
    pruned: Annotated[dict[str, int], doc("Of these, not replayed, by the bound that says why.")]
    refused: Annotated[dict[str, int], doc("Of these, those that cannot run, by reason.")]
    left_out: Annotated[dict[str, int], doc("What was not taken up as a candidate, by reason.")]
    open: Annotated[int, doc("Plans not looked at when the time was up.")]
    unbounded: Annotated[int, doc("Of these, those of which no bound is known.")]
    bound_ns: Annotated[int, doc("No plan of the space is faster; 0 if some have no bound.")]
    cut: Annotated[list[str], doc("Of what stands beside the search, what ended when the time was up.")]
    misfits: Annotated[list[str], doc("Measured runs that do not fit on the fleet, and tell nothing of the error.")]


@dataclass(frozen=True, slots=True)
class ExplorationFacts:
    """What the output says about the call.

    Attributes:
        tool_version: Version of this tool.
        command: The command line.
    """

    tool_version: str
    command: str


def exploration_info(
    done: Exploration, facts: ExplorationFacts, failures: Failures[Judged] | None = None
) -> ExplorationInfo:
    """An exploration as the structs of the schema."""
    workload, results = done.space.workload, done.results
    best = _gain(done, results.best)
    return as_struct(
        ExplorationInfo,
        done,
        facts,
        model=workload.model.name,
        network=workload.choice.network.name,
        tiers=[tier.name for tier in workload.choice.network.tiers],
        devices=done.space.base.training.devices,
        sequences=done.space.base.training.sequences,
        hbm_bytes=workload.hbm_bytes,
        best=None if results.best is None else _plan(done, results.best),
        launch=[] if results.best is None else list(map(_launch, launches(workload, results.best.plan))),
        base=_plan(done, done.base),
        faster_ratio=best[0],
        shorter_ratio=best[1],
        alone=[_alternative(done, one) for one in done.alone],
        one_by_one=_alternative(done, done.one_by_one),
        baselines=[_alternative(done, one) for one in done.baselines],
        unproven=_alternative(done, done.unproven),
        rivals=[_plan(done, one) for one in done.rivals],
        deciding=[
            DecidingInfo(plan=each.judged.plan.text, figure=each.figure or None, devices=each.devices)
            for each in done.deciding
        ],
        front=[_plan(done, one) for one in done.front],
        crossing_front=[_plan(done, one) for one in done.crossing_front],
        price=None if results.best is None else price_of(workload, results.best),
        currency=None if workload.choice.price is None else workload.choice.price.currency,
        price_front=[
            PricedInfo(
                network=one.workload.choice.network.name,
                price=one.price,
                currency="" if one.workload.choice.price is None else one.workload.choice.price.currency,
                best=judged_info(one.workload, one.judged),
            )
            for one in done.price_front
        ],
        others=[_fleet(one) for one in done.others],
        turned=[as_struct(TurnedInfo, each, best=_plan(done, each.judged)) for each in done.turned],
        failures=None if failures is None else _failures(done, failures),
        candidates=results.candidates,
        replayed=results.replayed,
        pruned=dict(results.pruned),
        refused=dict(results.refused),
        left_out=dict(results.left_out),
        open=results.open,
        unbounded=results.unbounded,
        cut=list(done.cut_short),
        bound_ns=results.bound_ns,
    )


def _fleet(one: FleetPlan) -> FleetInfo:
    best = one.results.best
    return FleetInfo(
        network=one.workload.choice.network.name,
        best=None if best is None else judged_info(one.workload, best),
        price=None if best is None else price_of(one.workload, best),
    )


def _plan(done: Exploration, judged: Judged) -> JudgedInfo:
    return judged_info(done.space.workload, judged)


def judged_info(workload: Workload, judged: Judged) -> JudgedInfo:
    """A plan as the structs of the schema.

    Args:
        workload: What is trained, and where.
        judged: The plan.
    """
    runs = judged.runs
    return JudgedInfo(
        text=judged.plan.text,
        plan=table_of(judged.plan),
        step_ns=judged.step_ns if runs else None,
        window_ns=judged.window_ns if runs else None,
        reduction_ns=judged.reduction_ns if runs else None,
        peak_hbm_bytes=judged.peak_hbm_bytes or None,
        tier_bytes=list(tier_bytes(workload, judged.plan)) if runs else None,
        refusal=judged.refusal or None,
    )


def _failures(done: Exploration, failures: Failures[Judged]) -> FailuresInfo:
    return FailuresInfo(
        outcomes=[
            FailureInfo(
                failure=one.failure.text,
                weight_ratio=one.failure.weight_ratio,
                kept=_plan(done, one.kept),
                best=None if one.best is None else _plan(done, one.best),
            )
            for one in failures.outcomes
        ],
        kept=_weighed(failures.kept),
        least_worst=_weighed(failures.least_worst),
        least_expected=_weighed(failures.least_expected),
        cut=list(failures.cut),
    )


def _weighed(one: Weighed[Judged] | None) -> WeighedInfo | None:
    if one is None:
        return None
    return as_struct(WeighedInfo, one, text=one.judged.plan.text, plan=table_of(one.judged.plan), whole_ns=one.whole_ns)


def _launch(made: PlanLaunch) -> LaunchInfo:
    return LaunchInfo(
        framework=made.framework, flags=list(chain(*made.flags)), beside=list(made.beside), unsaid=list(made.unsaid)
    )


def _gain(done: Exploration, judged: Judged | None) -> tuple[float | None, float | None]:
    if judged is None or not judged.runs or not done.base.runs:
        return None, None
    return speedup(done.base.step_ns, judged.step_ns)


def _alternative(done: Exploration, one: Alternative) -> AlternativeInfo:
    faster, shorter = _gain(done, one.judged)
    return AlternativeInfo(
        name=one.name,
        best=None if one.judged is None else _plan(done, one.judged),
        faster_ratio=faster,
        shorter_ratio=shorter,
        reason=one.reason or None,
        is_cut=one.is_cut,
    )


def render_json(done: Exploration, facts: ExplorationFacts, failures: Failures[Judged] | None = None) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(exploration_info(done, facts, failures))
