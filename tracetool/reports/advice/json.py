"""Advice as text for people and as JSON for scripts (``schemas/advice.schema.json``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from tracetool.comparison.report import (
    FidelityInfo,
    LinkInfo,
    RefusedInfo,
    ResultInfo,
    RunInfo,
    ScenarioInfo,
    ShortageInfo,
    StepInfo,
    TakenInfo,
)
from tracetool.reports import as_json
from tracetool.reports.advice import sentences
from tracetool.reports.answer.json import link_infos, report_info, scenario_info, shortage_info
from tracetool.tables.fields import Head, SchemaId, WithFigures, as_struct, doc, fields_of, per_rank
from tracetool.tables.results import GAINS
from tracetool.whatif.decision import PERIOD_DAYS
from tracetool.whatif.depth import RELEVANT_RATIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.advice import Advice, Decided
    from tracetool.advice.cotune import CoTuning
    from tracetool.advice.plans import Gain, Plan
    from tracetool.reports import RunFacts
    from tracetool.whatif.decision import Decision, Offer
    from tracetool.whatif.layers import LayersGain


class PlanInfo(WithFigures, kw_only=True):
    """One schedule that could be run."""

    __annotations__ = fields_of("schedule", "extra_forwards", "p2p", "microbatches", "step_ns", "feasible")
    shortage: Annotated[ShortageInfo | None, doc("Where it does not fit.")]
    __annotations__.update(per_rank("needed_hbm_bytes"))
    __annotations__.update(fields_of("seen_error_ratio", "evidence", "rests_on", "remark"))


class GainInfo(WithFigures, kw_only=True):
    """What one more unit of a resource buys."""

    resource: Annotated[str, doc("bandwidth, latency, hbm, compute or microbatches.")]
    more: Annotated[str, doc("How much more, for people.")]
    link: Annotated[str | None, doc("The pair of data centres whose link alone is better; null if all are.")]
    scenario: Annotated[ScenarioInfo, doc("The what-if with it.")]
    plan: Annotated[PlanInfo, doc("What would be run then.")]
    __annotations__.update(fields_of("same_plan_ns", "gained_ns", "gain_ratio", of=GAINS))


class UntoldInfo(msgspec.Struct, kw_only=True):
    """A unit whose gain cannot be told."""

    more: Annotated[str, doc("How much more of what.")]
    reason: Annotated[str, doc("Why.")]


class SizesInfo(WithFigures, kw_only=True):
    """One choice of micro-batch size and sequence length, replayed with geopipe."""

    mbs: Annotated[int, doc("Sequences of a microbatch.")]
    seq: Annotated[int, doc("Tokens of a sequence.")]
    __annotations__.update(fields_of("microbatches"))
    extra_forwards: Annotated[list[int], doc("Warm-up forwards per rank beyond 1F1B's.")]
    __annotations__.update(fields_of("p2p", "step_ns"))
    step_per_token_ns: Annotated[float, doc("step_ns over the tokens of a step.")]
    __annotations__.update(per_rank("needed_hbm_bytes") | fields_of("feasible"))
    extrapolated: Annotated[bool, doc("Whether its costs are; those of the recorded sizes are measured.")]


class CoTuningInfo(msgspec.Struct, kw_only=True):
    """Depths of geopipe with micro-batch size and sequence length, at equal tokens per step (--co-tune)."""

    mbs: Annotated[int, doc("Sequences of a recorded microbatch.")]
    seq: Annotated[int, doc("Tokens of a recorded sequence.")]
    hidden: Annotated[int, doc("Hidden size of the model.")]
    tokens: Annotated[int, doc("Tokens of a step, in one pipeline.")]
    candidates: Annotated[list[SizesInfo], doc("The shortest step first; those that do not fit the memory last.")]
    extrapolation_error_ratio: Annotated[
        float | None, doc("Largest error of a forward and backward extrapolated so; null where that was not tried.")
    ]
    assumptions: Annotated[list[str], doc("What the extrapolation rests on.")]


class FeeInfo(msgspec.Struct, kw_only=True):
    """What links cost for a time."""

    amount: Annotated[float, doc("How much.")]
    currency: Annotated[str, doc("Of what, as it was written.")]
    period: Annotated[str, doc(f"For which time: {', '.join(PERIOD_DAYS)}.")]


class BoughtInfo(msgspec.Struct, kw_only=True):
    """What an offer buys beyond the first one: the best plan over each."""

    __annotations__.update(fields_of("saved_ns", "saved_ratio"))
    error_ratio: Annotated[float | None, doc("Error of that share; null if it is not known.")]
    __annotations__.update(fields_of("is_certain"))
    fee: Annotated[
        FeeInfo | None, doc("What is paid beyond the first offer's price, or all where that is unknown; null without.")
    ]
    __annotations__.update(fields_of("fee_per_ms", "steps_per_day"))


class LayersGainInfo(WithFigures, kw_only=True):
    """What layers that overlap make of a plan's step."""

    overlap: Annotated[str, doc("How they overlap: slice:4, p2p, ...")]
    __annotations__.update(fields_of("step_ns"))
    plain_ns: Annotated[int, doc("The step with layers as they are.")]
    gain_ratio: Annotated[float, doc("How much shorter the step is, over plain_ns.")]
    gain_error_ratio: Annotated[float | None, doc("How far off that may be; null if that is not known.")]
    is_bound: Annotated[bool, doc("Whether nothing like it was measured: the step is the least that it could take.")]
    pays: Annotated[bool | None, doc("Whether it is shorter by more than its error; null if that is open.")]


class OfferInfo(msgspec.Struct, kw_only=True):
    """Links that can be had, and what to run over them."""

    name: Annotated[str, doc("Their figures.")]
    links: Annotated[list[LinkInfo], doc("The links.")]
    fee: Annotated[FeeInfo | None, doc("What they cost; null if that was not said.")]
    best: Annotated[PlanInfo | None, doc("What to run over them; null if nothing fits the memory.")]
    first_plan: Annotated[
        PlanInfo | None, doc("The first offer's plan over these links; null if it is best here too, or does not fit.")
    ]
    __annotations__.update(fields_of("to_today_ratio", "binds"))
    bought: Annotated[BoughtInfo | None, doc("Null for the first offer, and where nothing fits one of both.")]
    __annotations__.update(fields_of("run_days", "run_fee"))
    layers: Annotated[list[LayersGainInfo], doc("What ways to overlap inside layers make of best; empty if not asked.")]


class PaysUntilInfo(msgspec.Struct, kw_only=True):
    """From where on twice the bandwidth shortens the step by less than 1 %."""

    bandwidth_bytes_per_s: Annotated[int, doc("Bandwidth of each link.")]
    latency_ns: Annotated[int, doc("Their one-way latency meanwhile.")]
    schedule: Annotated[str, doc("Whose step it is: that of the best plan over the widest offer.")]


class AdviceInfo(Head, kw_only=True):
    """Result of tracetool advise."""

    schema: SchemaId = "urn:tracetool:schema:1:advice"
    headline: Annotated[str, doc("The decision as a person would say it.")]
    today_ns: Annotated[int, doc("The recorded step.")]
    offers: Annotated[list[OfferInfo], doc("What to run over each offer of links; the rest is about the first.")]
    pays_until: Annotated[PaysUntilInfo | None, doc("Where more bandwidth stops paying; null if unknown, or nowhere.")]
    run: RunInfo
    step: StepInfo
    fidelity: FidelityInfo
    scenario: ScenarioInfo
    taken: TakenInfo
    now: Annotated[
        ResultInfo,
        doc("The recorded order over the same links; of other microbatches, the schedule that it is."),
    ]
    best: Annotated[PlanInfo | None, doc("What to run; null if nothing fits the memory.")]
    __annotations__.update(fields_of("change_ratio", "change_error_ratio"))
    lead_is_certain: Annotated[bool, doc("Whether its lead over the recorded order exceeds that error.")]
    as_good: Annotated[
        list[PlanInfo], doc("As sure, with steps that differ by no more than the error of the difference.")
    ]
    unproven: Annotated[list[PlanInfo], doc("Shorter, but predictions rest on less; the shortest of each schedule.")]
    other_transfers: Annotated[
        list[PlanInfo],
        doc("Shorter by more than can be told, with transfers issued otherwise than as scenario or trace say."),
    ]
    binds: Annotated[str, doc("bandwidth, latency, hbm or compute: more of it would shorten the step most.")]
    relevant_ratio: Annotated[
        float, doc("Steps that differ by less count as equal, and what gains less does not bind.")
    ]
    gains: Annotated[list[GainInfo], doc("What one more unit of each resource buys, replayed.")]
    untold: Annotated[list[UntoldInfo], doc("Units whose gain cannot be told, and why.")]
    co_tuning: Annotated[CoTuningInfo | None, doc("Other sizes of a microbatch; null if not asked for.")]
    plans: Annotated[list[PlanInfo], doc("All that was tried, the shortest step first.")]
    refused: Annotated[list[RefusedInfo], doc("Schedules that cannot be replayed, and why.")]
    warnings: Annotated[list[str], doc("Why not to trust any of it.")]
    notes: Annotated[list[str], doc("What was inferred, is missing or not modelled.")]


def advice_info(decided: Decided, facts: RunFacts, tuning: CoTuning | None = None) -> AdviceInfo:
    """The decision, and the advice for the first offer, as the structs of the schema."""
    advice, decision = decided.advice[0], decided.decision
    asked = advice.asked
    report = report_info(asked.answer, facts)
    return as_struct(
        AdviceInfo,
        report,
        advice,
        facts,
        headline=" ".join(sentences(decision)),
        today_ns=decision.today.step_ns,
        offers=[
            _offer(decision, offer, one, decided.layers[number] if decided.layers else ())
            for number, (offer, one) in enumerate(zip(decision.offers, decided.advice, strict=True))
        ],
        pays_until=None if decision.pays_until is None else as_struct(PaysUntilInfo, decision.pays_until),
        run=report.run,
        scenario=scenario_info(advice.scenario),
        now=report.baseline,
        best=None if advice.best is None else _plan(advice.best),
        change_ratio=None if advice.best is None else advice.best.step_ns / advice.now.metrics.step_ns - 1,
        as_good=[_plan(plan) for plan in advice.rivals],
        unproven=[_plan(plan) for plan in advice.unproven],
        other_transfers=[_plan(plan) for plan in advice.other_transfers],
        relevant_ratio=RELEVANT_RATIO,
        gains=[_gain(gain) for gain in advice.gains],
        untold=[UntoldInfo(more=more, reason=reason) for more, reason in advice.missing],
        co_tuning=None if tuning is None else _co_tuning(tuning),
        plans=[_plan(plan) for plan in sorted(asked.plans, key=lambda p: p.step_ns)],
        refused=[as_struct(RefusedInfo, r) for r in asked.refused],
    )


def _offer(decision: Decision, offer: Offer, advice: Advice, layers: Sequence[LayersGain]) -> OfferInfo:
    bought = decision.bought(offer)
    return as_struct(
        OfferInfo,
        links=link_infos(advice.scenario.topology),
        name=offer.name,
        fee=None if offer.fee is None else as_struct(FeeInfo, offer.fee),
        best=None if advice.best is None else _plan(advice.best),
        first_plan=next((_plan(plan) for plan in advice.asked.plans if plan is offer.first_plan), None),
        to_today_ratio=decision.to_today(offer),
        binds=advice.binds,
        bought=None
        if bought is None
        else as_struct(BoughtInfo, bought, fee=None if bought.fee is None else as_struct(FeeInfo, bought.fee)),
        run_days=decision.run_days(offer),
        run_fee=decision.run_fee(offer),
        layers=[
            as_struct(LayersGainInfo, gain, overlap=gain.way, gain_error_ratio=gain.error_ratio) for gain in layers
        ],
    )


def _plan(plan: Plan) -> PlanInfo:
    result = plan.result
    lacks = result.shortage
    return as_struct(PlanInfo, result, plan, result.metrics, shortage=None if lacks is None else shortage_info(lacks))


def _gain(gain: Gain) -> GainInfo:
    return as_struct(
        GainInfo,
        gain.more,
        gain,
        more=gain.more.text,
        scenario=scenario_info(gain.more.scenario),
        plan=_plan(gain.plan),
    )


def _co_tuning(tuning: CoTuning) -> CoTuningInfo:
    return as_struct(
        CoTuningInfo,
        tuning,
        mbs=tuning.recorded.sequences,
        seq=tuning.recorded.length,
        candidates=[
            as_struct(
                SizesInfo,
                tried,
                tried.metrics,
                mbs=tried.batch.sequences,
                seq=tried.batch.length,
                step_per_token_ns=tried.metrics.step_ns / tuning.tokens,
            )
            for tried in tuning.candidates
        ],
        extrapolation_error_ratio=tuning.error_ratio,
    )


def render_json(decided: Decided, facts: RunFacts, tuning: CoTuning | None = None) -> bytes:
    """Indented JSON, with a final newline."""
    return as_json(advice_info(decided, facts, tuning))
