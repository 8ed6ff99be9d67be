"""Advice: which schedule to run over these links within this memory, what binds, and what more of it would buy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.advice.plans import (
    Deepened,
    Gain,
    Plan,
    Resource,
    ScenarioPlans,
    layers_gains,
    more_of_each,
    plans_for,
    ways,
)
from tracetool.errors import ScenarioError, ScheduleError, checked
from tracetool.model.notice import Silent, unasked
from tracetool.registry import Pictured
from tracetool.schedules import parse_names
from tracetool.sweeps.grid import Grid
from tracetool.sweeps.run import sweep
from tracetool.units import format_duration
from tracetool.whatif.best import (
    TIERS,
    choose,
    choose_each,
    is_as_good,
    recorded_schedule,
    recorded_test,
    rows_of,
    unchecked,
)
from tracetool.whatif.decision import (
    Decision,
    Fee,
    Offer,
    PaysUntil,
    check_all_priced,
    check_fees,
    directions,
    offered_fee,
    parse_fee,
    split_fee,
    today_of,
    total_fee,
)
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.memory_limit import is_near_the_limit
from tracetool.whatif.results import step_change_error
from tracetool.whatif.wording import offered_links, way_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure

    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import LayerOverlap, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.reconstruction import Reconstruction
    from tracetool.whatif.best import Chosen
    from tracetool.whatif.decision import Fees
    from tracetool.whatif.layers import LayersGain
    from tracetool.whatif.results import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Pictured):
    """The answer to "what should we run, and what should we buy?".

    Attributes:
        asked: All that was tried.
        scenario: The links and limits that it is about.
        now: The recorded order over the same links; of other microbatches, the schedule that it is.
        best: What to run; None if nothing fits the memory.
        rivals: Plans as sure as the best whose steps do not differ from its by more than the error.
        unproven: Plans with shorter steps whose predictions rest on less, the shortest first.
        other_transfers: Plans shorter by more than can be told that take another way to issue transfers than the
            trace shows: a change of the runtime, not of the schedule alone. The shortest of each schedule.
        gains: What more of each resource buys, in the order of ``more_of_each``; empty if nothing fits.
        missing: Units whose gain cannot be told, and why.
        binds: The resource of which more would shorten the step most; compute if none would by ``RELEVANT_RATIO``.
    """

    asked: ScenarioPlans
    scenario: Scenario
    now: Result
    best: Plan | None
    rivals: tuple[Plan, ...]
    unproven: tuple[Plan, ...]
    other_transfers: tuple[Plan, ...]
    gains: tuple[Gain, ...]
    missing: tuple[tuple[str, str], ...]
    binds: Resource

    def __repr__(self) -> str:
        best = "nothing fits" if self.best is None else f"{self.best.label}, {format_duration(self.best.step_ns)}"
        return f"<Advice: {best}; {self.binds} binds>"

    @property
    def lead_is_certain(self) -> bool:
        """Whether the best plan's lead over the recorded order exceeds the error of their difference."""
        return self.best is not None and not is_as_good(self.best, self.now)

    @property
    def change_error_ratio(self) -> float | None:
        """Error of the best plan's change against the recorded order; None if nothing fits, or if it is not known."""
        return None if self.best is None else step_change_error(self.now, self.best.result)

    def gain_of(self, resource: Resource) -> Gain | None:
        """The largest gain of a resource's units; None if it has none."""
        return max(
            (gain for gain in self.gains if gain.more.resource == resource), key=lambda g: g.gained_ns, default=None
        )

    def offer(self, fee: Fee | None = None, first: Plan | None = None) -> Offer:
        """Its links as an offer of a decision: with what they cost, and beside the first offer's best plan."""
        there = [plan for plan in self.asked.plans if first is not None and plan.way == first.way]
        fitting = [plan for plan in there if plan.feasible is not False]
        is_best = first is None or self.best is None or self.best.way == first.way
        return Offer(
            name=way_text(self.scenario.topology),
            fee=fee,
            microbatches=self.now.microbatches,
            best=self.best,
            now=self.now,
            first_plan=None if is_best else min(fitting, key=lambda plan: plan.step_ns, default=None),
            hbm_bytes=self.scenario.hbm_bytes,
            is_lower_bound=self.scenario.activation_bytes is not None,
            is_near_the_limit=self.best is not None and is_near_the_limit(self.best.result.metrics, self.scenario),
            binds=self.binds,
            unchecked=unchecked(self.asked.plans),
        )


@checked
def advise(recording: Reconstruction, scenario: Scenario, schedules: str | Sequence[str] | None = None) -> Advice:
    """Find the best schedule that fits, and what holds it back.

    Every schedule is replayed over the links, with transfers as the trace shows them and, if the scenario leaves
    that open, per edge. Recommended is one of the former, by the rule of ``tracetool.whatif.best``.

    Args:
        recording: A reconstructed Run.
        scenario: The links, and the memory limit if there is one.
        schedules: Those to choose among, in a list or with commas between them; by default all that need no search.

    Raises:
        ScenarioError: If there are no links, or they do not fit the pipeline.
        ScheduleError: If none of the schedules can be replayed.

    Example:
        >>> advice = tt.advise(found, scenario, "1f1b,geopipe")
        >>> advice.best.label, advice.best.step_ns, advice.binds
        ('geopipe +2,2,0,0', 319617225, 'latency')
    """
    return _advise(recording, [scenario], schedules, Silent())[0]


def _advise(
    recording: Reconstruction, scenarios: Sequence[Scenario], schedules: str | Sequence[str] | None, progress: Progress
) -> list[Advice]:
    """Advice on each of several scenarios that are compared."""
    names = None if schedules is None else parse_names(schedules)
    asked, usual = [], []
    baseline = recorded_schedule(recording.pipeline.observed, scenarios[0].microbatches)
    is_recorded = recorded_test(recording.pipeline)
    for scenario in scenarios:
        plans = plans_for(recording, scenario, ways(recording, scenario, names), baseline=baseline)
        progress.advance(1)
        usual.append([plan for plan in plans.plans if plan.way.p2p is None])
        asked.append(plans._replace(plans=tuple(rows_of(plans.plans, baseline, is_recorded))))
    every = choose_each([(plans, baseline) for plans in usual], is_recorded)
    return [_advised(recording, *one, progress) for one in zip(scenarios, asked, usual, every, strict=True)]


def _advised(
    recording: Reconstruction,
    scenario: Scenario,
    asked: ScenarioPlans,
    usual: Sequence[Plan],
    chosen: Chosen[Plan],
    progress: Progress,
) -> Advice:
    best, now = chosen.best, asked.answer.baseline
    if best is None:
        return Advice(
            asked=asked, scenario=scenario, now=now, best=None, rivals=(), unproven=(), other_transfers=(), gains=(),
            missing=(), binds="hbm",
        )  # fmt: skip
    sure = [plan for plan in usual if TIERS.index(plan.evidence) <= TIERS.index(best.evidence)]
    gains, missing = _gains(recording, scenario, best, sure, progress)
    return Advice(
        asked=asked, scenario=scenario, now=now, best=best, rivals=chosen.as_good, unproven=chosen.unproven,
        other_transfers=_other_transfers(asked.plans, best), gains=gains, missing=missing, binds=_binding(gains),
    )  # fmt: skip


class Decided(NamedTuple):
    """A decision between offers, and for each of them the advice and what overlap inside layers makes of its plan."""

    decision: Decision
    advice: tuple[Advice, ...]
    layers: tuple[tuple[LayersGain, ...], ...] = ()

    def plot(self) -> Figure:
        """The picture of the decision."""
        return self.decision.plot()

    def _repr_html_(self) -> str:
        """What a notebook shows of the decision."""
        return self.decision._repr_html_()


def decide(
    recording: Reconstruction,
    scenario: Scenario,
    offers: str | Sequence[str] = (),
    schedules: str | Sequence[str] | None = None,
    *,
    fee: str | Fee | Fees | None = None,
    steps: int | None = None,
    overlaps: Sequence[LayerOverlap] = (),
    progress: Progress | None = None,
) -> Decided:
    """Find what to run over each of several offers of links, what the others buy, and where more stops paying.

    Args:
        recording: A reconstructed Run.
        scenario: The first offer's links, and the memory limit if there is one.
        offers: The others, as in ``100Gbit/s,10ms`` (all links) or ``dc0-dc1=100Gbit/s,10ms``, with what they cost
            behind them where that is known: ``100Gbit/s,10ms=9000EUR/month``.
        schedules: As ``advise`` takes them.
        fee: What the first offer costs, as in ``2000EUR/month``; or what each of its links does
            (``tracetool.whatif.decision.Fees``): an offer that names some of them keeps the price of the others.
        steps: Steps of the run that is planned.
        overlaps: Ways to run layers (``tracetool.overlap.actions``), for what is to be run over each offer.
        progress: Told in how many scenarios all schedules are replayed, and how many are done.

    Raises:
        BadTopology: If an offer is about other links.
        ScenarioError: As ``advise``, and if a price cannot be read or compared.
        ScheduleError: As ``advise``.

    Example:
        >>> decision = tt.decide(found, scenario, "100Gbit/s,10ms=9000EUR/month", "1f1b,geopipe").decision
        >>> [(offer.name, offer.best.schedule, offer.best.step_ns) for offer in decision.offers]
        [('25 Gbit/s, 10 ms', 'geopipe', 319617225), ('100 Gbit/s, 10 ms', 'geopipe', 295920800)]
    """
    links = scenario.topology.links
    if offers and scenario.topology.seating is not None:
        outer = scenario.topology.seating.network.tiers[-1].name
        raise ScenarioError(
            "an offer is of links between DCs, and a network says what lies between ranks.",
            hint=f"compare figures of its tiers: tt.sweep(found, tt.over_tiers(tt.grid(found), network, "
            f"'{outer}.bandwidth=25Gbit/s,100Gbit/s', found))",
        )
    price = parse_fee(fee) if isinstance(fee, str) else fee
    fees: Fees = {} if price is None else {directions(links): price} if isinstance(price, Fee) else price
    check_all_priced(fees, links)
    asked = [(scenario, total_fee(fees.values()))]
    for text in [offers] if isinstance(offers, str) else offers:
        figures, price = split_fee(text)
        check_fees([price, *fees.values()])
        every, replaced = offered_links(figures, links)
        total = offered_fee(price, directions(replaced), fees)
        asked.append((replace(scenario, topology=replace(scenario.topology, links=every)), total))
    check_fees([price for _, price in asked])
    progress = progress or unasked()
    more = (more_of_each(recording.pipeline, one, memory_known=True) for one, _ in asked if one.topology.is_joined)
    progress.start(sum(1 + len(units) for units in more) + 1)
    advice = tuple(_advise(recording, [one for one, _ in asked], schedules, progress))
    made = tuple(each.offer(price, advice[0].best) for each, (_, price) in zip(advice, asked, strict=True))
    answer = advice[0].asked.answer
    decision = Decision(
        today=today_of(answer.pipeline, answer.observed_metrics.step_ns),
        offers=made,
        steps=steps,
        pays_until=_pays_until(recording, advice),
    )
    progress.advance(1)
    layers = (layers_gains(recording, each.best, each.scenario, overlaps) for each in advice)
    return Decided(decision, advice, tuple(layers))


def _pays_until(recording: Reconstruction, advice: Sequence[Advice]) -> PaysUntil | None:
    """The knee of the best plan over the widest offer, where all its links are alike and join all DCs."""
    widest = max(
        advice, key=lambda one: min((link.bandwidth_bytes_per_s for link in one.scenario.topology.links), default=0)
    )
    topology, best = widest.scenario.topology, widest.best
    alike = {(link.bandwidth_bytes_per_s, link.latency_ns) for link in topology.links}
    places = {*topology.dcs, *(dc for _, dc in topology.rank_dcs)}
    if (
        best is None
        or topology.seating is not None
        or len(alike) > 1
        or len(topology.links) < len(places) * (len(places) - 1)
    ):
        return None
    ((bandwidth, latency),) = alike
    grid = Grid(
        (best.way.schedule,),
        replace(widest.scenario, topology=replace(topology, links=())),
        bandwidths_bytes_per_s=(bandwidth,),
        latencies_ns=(latency,),
        dcs=(replace(topology, links=()),),
    )
    knees = sweep(recording, grid, progress=Silent(), knees="bandwidth").knees
    known = [PaysUntil(k.bandwidth_bytes_per_s, latency, best.schedule) for k in knees if k.bandwidth_bytes_per_s]
    return known[0] if known else None


def _other_transfers(plans: Iterable[Plan], best: Plan) -> tuple[Plan, ...]:
    """Plans shorter by more than can be told whose transfers are issued otherwise: the shortest of each schedule."""
    by_name: dict[str, Plan] = {}
    for plan in sorted(plans, key=lambda p: p.step_ns):
        is_shorter = plan.step_ns < best.step_ns and not is_as_good(best, plan)
        if plan.way.p2p is not None and plan.feasible is not False and is_shorter:
            by_name.setdefault(plan.schedule, plan)
    return tuple(by_name.values())


def _gains(
    recording: Reconstruction, scenario: Scenario, best: Plan, sure: Sequence[Plan], progress: Progress
) -> tuple[tuple[Gain, ...], tuple[tuple[str, str], ...]]:
    """What each unit buys: the plan chosen anew with it, or the same plan where that is shorter."""
    gains: list[Gain] = []
    missing: list[tuple[str, str]] = []
    tried = list(dict.fromkeys(plan.way for plan in sure))
    depth = best.result.extra_forwards
    also = None if depth is None else Deepened(best.way.schedule, depth)
    now = scenario.microbatches or recording.pipeline.observed.shape.microbatches
    for more in more_of_each(recording.pipeline, scenario, memory_known=bool(best.result.feasible)):
        there = replace(recording, pipeline=more.pipeline)
        try:
            asked = plans_for(
                there,
                more.scenario,
                tried,
                baseline=recorded_schedule(recording.pipeline.observed, more.scenario.microbatches),
                also=also,
            )
        except ScheduleError as error:
            missing.append((more.text, error.message))
            continue
        finally:
            progress.advance(1)
        plans = asked.plans
        if more.resource == "compute":
            # No recording was of faster compute, nor is what it misses of the recorded step an error of replay.
            plans = tuple(replace(plan, result=replace(plan.result, known_error=None)) for plan in plans)
        same = next((p for p in plans if _is_the_same(p, best) and p.feasible is not False), None)
        anew = _chosen_anew([plan for plan in plans if not plan.is_extra], best, more.resource, recording.pipeline)
        chosen = min(filter(None, (same, anew)), key=lambda p: p.step_ns, default=None)
        if chosen is None:
            missing.append((more.text, "nothing that is as sure fits"))
            continue
        # The work of a step is that of its microbatches.
        gained = best.step_ns - round(chosen.step_ns * now / chosen.result.microbatches)
        gains.append(Gain(more, chosen, None if same is None else same.step_ns, gained, gained / best.step_ns))
    return tuple(gains), tuple(missing)


def _chosen_anew(plans: Sequence[Plan], best: Plan, resource: Resource, pipeline: Pipeline) -> Plan | None:
    """What the rule chooses with more of a resource."""
    baseline = recorded_schedule(pipeline.observed, next((plan.result.microbatches for plan in plans), None))
    if resource == "hbm":
        return choose(plans, recorded_test(pipeline), baseline).best
    # What is known of the errors does not change with what is bought: all ways tried are as sure as before.
    known = None if resource == "compute" else best.known_error
    rests = () if resource == "compute" else best.rests_on
    as_sure = [
        replace(plan, result=replace(plan.result, known_error=plan.known_error or known, rests_on=rests))
        for plan in plans
    ]
    chosen = choose(as_sure, recorded_test(pipeline), baseline).best
    return None if chosen is None else plans[as_sure.index(chosen)]


def _is_the_same(plan: Plan, best: Plan) -> bool:
    return plan.way == best.way and plan.result.extra_forwards == best.result.extra_forwards


def _binding(gains: Iterable[Gain]) -> Resource:
    links_and_memory = [g for g in gains if g.more.resource in {"bandwidth", "latency", "hbm"}]
    top = max(links_and_memory, key=lambda g: g.gain_ratio, default=None)
    return top.more.resource if top is not None and top.gain_ratio > RELEVANT_RATIO else "compute"
