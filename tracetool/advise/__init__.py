"""Advice: which schedule to run over these links within this memory, what binds, and what more of it would buy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.advise.more import More, Resource, more_of_each
from tracetool.advise.plans import Asked, Plan, plans_for, ways
from tracetool.depth import RELEVANT_RATIO
from tracetool.errors import ScenarioError, ScheduleError
from tracetool.schedules import parse_names
from tracetool.schedules.recognise import recognise
from tracetool.units import format_duration
from tracetool.whatif import is_as_good, step_change_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.scenario import Scenario
    from tracetool.reconstruct import Reconstruction
    from tracetool.whatif import Answer, Result

_TIERS = ("recorded", "measured", "unproven")


@dataclass(frozen=True, slots=True)
class Gain:
    """What one more unit buys, replayed.

    Attributes:
        more: The unit.
        plan: What would be run then.
        same_plan_ns: Step of the plan that is best now; None if it does not fit then.
        gained_ns: How much less time the work of a step takes, against the best plan now.
        gain_ratio: The same as a share of that plan's step.
    """

    more: More
    plan: Plan
    same_plan_ns: int | None
    gained_ns: int
    gain_ratio: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer to "what should we run, and what should we buy?".

    Attributes:
        asked: All that was tried.
        scenario: The links and limits that it is about.
        now: The recorded order over the same links; of other microbatches, the schedule that it is.
        best: What to run; None if nothing fits the memory.
        rivals: Plans as sure as the best whose steps do not differ from its by more than the error.
        unproven: Plans with shorter steps whose predictions rest on less, the shortest first.
        gains: What more of each resource buys, in the order of ``more_of_each``; empty if nothing fits.
        missing: Units whose gain cannot be told, and why.
        binds: The resource of which more would shorten the step most; compute if none would by ``RELEVANT_RATIO``.
    """

    asked: Asked
    scenario: Scenario
    now: Result
    best: Plan | None
    rivals: tuple[Plan, ...]
    unproven: tuple[Plan, ...]
    gains: tuple[Gain, ...]
    missing: tuple[tuple[str, str], ...]
    binds: Resource

    def __repr__(self) -> str:
        best = "nothing fits" if self.best is None else f"{self.best.label}, {format_duration(self.best.step_ns)}"
        return f"<Advice: {best}; {self.binds} binds>"

    @property
    def lead_is_certain(self) -> bool:
        """Whether the best plan's lead over the recorded order exceeds the error of their difference."""
        return self.best is not None and not is_as_good(self.best.result, self.now)

    @property
    def change_error_ratio(self) -> float | None:
        """Error of the best plan's change against the recorded order; None if nothing fits, or if it is not known."""
        return None if self.best is None else step_change_error(self.now, self.best.result)

    def gain_of(self, resource: Resource) -> Gain | None:
        """The largest gain of a resource's units; None if it has none."""
        return max(
            (gain for gain in self.gains if gain.more.resource == resource), key=lambda g: g.gained_ns, default=None
        )


def advise(found: Reconstruction, scenario: Scenario, schedules: str | Sequence[str] | None = None) -> Advice:
    """Find the best schedule that fits, and what holds it back.

    Every schedule is replayed over the links, with transfers as the trace shows them and, if the scenario leaves
    that open, per edge. Recommended is the shortest step among the plans whose predictions rest on most (see
    ``plans.Evidence``); of steps that differ by less than ``RELEVANT_RATIO``, the one that needs least memory; and
    the recorded order where its step differs by no more than the error of the predictions.

    Args:
        found: A reconstructed Run.
        scenario: The links, and the memory limit if there is one.
        schedules: Those to choose among, in a list or with commas between them; by default all but optimal.

    Raises:
        ScenarioError: If there are no links, or they do not fit the pipeline.
        ScheduleError: If none of the schedules can be replayed.

    Example:
        >>> advice = tt.advise(found, scenario, "1f1b,geopipe")
        >>> advice.best.label, advice.best.step_ns, advice.binds
        ('geopipe +2,2,0,0', 319606081, 'latency')
    """
    if not scenario.topology.links:
        raise no_links()
    tried = ways(found, scenario, None if schedules is None else parse_names(schedules))
    asked = plans_for(found, scenario, tried, baseline=_baseline(found, scenario))
    best = best_of(asked.plans, asked.answer)
    now = asked.answer.baseline
    if best is None:
        return Advice(asked, scenario, now, None, (), (), (), (), "hbm")
    sure = _at_least_as_sure(asked.plans, best)
    rivals = [
        p
        for p in sure
        if p is not best
        and p.way.p2p in {None, best.way.p2p}
        and p.result.feasible is not False
        and is_as_good(best.result, p.result)
    ]
    better = [p for p in asked.plans if p not in sure and p.result.feasible is not False and p.step_ns < best.step_ns]
    gains, missing = _gains(found, scenario, best, sure)
    return Advice(
        asked=asked,
        scenario=scenario,
        now=now,
        best=best,
        rivals=tuple(sorted(rivals, key=lambda p: p.step_ns)),
        unproven=_shortest_of_each(better),
        gains=gains,
        missing=missing,
        binds=_binding(gains),
    )


def no_links() -> ScenarioError:
    """The refusal to advise on links that were not given."""
    return ScenarioError(
        "advice is about the links between data centres, and none is given.",
        hint="add --dc and --link, as in --dc 0-1,2-3 --link dc0-dc1=25Gbit/s,10ms; inside one data centre, "
        "'tracetool replay --schedule 1f1b,zb-h1,interleaved' compares schedules",
    )


def best_of(plans: Iterable[Plan], answer: Answer) -> Plan | None:
    """The plan to run: of the surest that fit, the shortest, or what needs less memory and is as short.

    As short is what comes within ``RELEVANT_RATIO`` of the shortest whether that fits or not; where nothing so short
    fits, memory holds the step back, and the shortest that fits is taken. More memory then never means a longer step.
    Transfers are issued as the trace shows them, and the recorded order is kept, where the lead over that is within the
    error.

    Whether a plan fits may be unknown only where it is unknown of every one: what is known then decides nothing.
    """
    plans = list(plans)
    shown, changed = ([p for p in plans if (p.way.p2p is None) is is_shown] for is_shown in (True, False))
    chosen, other = _best_of(shown), _best_of(changed)
    if chosen is None or (other is not None and _beats(other, chosen)):
        chosen = other
    if chosen is None:
        return None
    checked = any(plan.result.feasible is not None for plan in plans)
    kept = next((p for p in plans if is_recorded(p, answer) and p.evidence == chosen.evidence), None)
    if kept is not None and checked and not kept.result.feasible:
        return chosen
    return kept if kept is not None and is_as_good(chosen.result, kept.result) else chosen


def _beats(other: Plan, chosen: Plan) -> bool:
    """Whether a plan that issues transfers in another way is surer, or as sure and shorter by more than the error."""
    tiers = _TIERS.index(other.evidence), _TIERS.index(chosen.evidence)
    if tiers[0] != tiers[1]:
        return tiers[0] < tiers[1]
    return other.step_ns < chosen.step_ns and not is_as_good(other.result, chosen.result)


def _best_of(plans: Sequence[Plan]) -> Plan | None:
    """The plan to run of those that issue transfers in the same way."""
    checked = any(plan.result.feasible is not None for plan in plans)
    fitting = [plan for plan in plans if plan.result.feasible or not checked]
    tier = next((e for e in _TIERS if any(plan.evidence == e for plan in fitting)), None)
    fitting = [plan for plan in fitting if plan.evidence == tier]
    if not fitting:
        return None
    least = min(plan.step_ns for plan in plans if plan.evidence == tier)
    shortest = min(fitting, key=lambda p: (p.step_ns, p.highest_bytes or 0))
    near = [plan for plan in fitting if plan.step_ns - least <= RELEVANT_RATIO * plan.step_ns] or [shortest]
    if all(plan.highest_bytes is not None for plan in near):
        return min(near, key=lambda p: (p.highest_bytes or 0, p.step_ns))
    # Fewer extra forwards need less memory, whatever an activation takes.
    same = [plan for plan in near if plan.way == shortest.way]
    return min(same, key=lambda p: (sum(p.result.extra_forwards or ()), p.step_ns))


def is_recorded(plan: Plan, answer: Answer) -> bool:
    """Whether it is the recorded order, with transfers as they were issued."""
    result, pipeline = plan.result, answer.pipeline
    if result.p2p != pipeline.p2p:
        return False
    known = recognise(pipeline.observed)
    if known is None:
        return result.schedule == "observed"
    return (result.schedule, result.extra_forwards) in {(known.name, known.extra_forwards), ("observed", None)}


def _at_least_as_sure(plans: Iterable[Plan], best: Plan) -> list[Plan]:
    return [plan for plan in plans if _TIERS.index(plan.evidence) <= _TIERS.index(best.evidence)]


def _shortest_of_each(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The shortest plan of every schedule."""
    found: dict[str, Plan] = {}
    for plan in sorted(plans, key=lambda p: p.step_ns):
        found.setdefault(plan.way.schedule, plan)
    return tuple(found.values())


def _baseline(found: Reconstruction, scenario: Scenario) -> str:
    """The recorded order, or the schedule that it is where the microbatches are others."""
    observed = found.pipeline.observed
    if scenario.microbatches in {None, observed.shape.microbatches}:
        return "observed"
    known = recognise(observed)
    return known.name if known is not None else "1f1b"


def _gains(
    found: Reconstruction, scenario: Scenario, best: Plan, sure: Sequence[Plan]
) -> tuple[tuple[Gain, ...], tuple[tuple[str, str], ...]]:
    """What each unit buys: the plan chosen anew with it, or the same plan where that is shorter."""
    gains: list[Gain] = []
    missing: list[tuple[str, str]] = []
    tried = list(dict.fromkeys(plan.way for plan in sure))
    depths = [] if best.result.extra_forwards is None else [best.result.extra_forwards]
    now = scenario.microbatches or found.pipeline.observed.shape.microbatches
    for more in more_of_each(found.pipeline, scenario, memory_known=bool(best.result.feasible)):
        there = replace(found, pipeline=more.pipeline)
        try:
            asked = plans_for(
                there,
                more.scenario,
                tried,
                baseline=_baseline(found, more.scenario),
                depths=depths,
            )
        except ScheduleError as error:
            missing.append((more.text, error.message))
            continue
        # What is known of the errors does not change with what is bought: all ways tried are as sure as before.
        plans = list(asked.plans)
        if more.resource != "hbm":
            plans = [replace(plan, evidence=best.evidence) for plan in plans]
        if more.resource == "compute":
            # No recording was of faster compute, nor is what it misses of the recorded step an error of replay.
            plans = [replace(plan, result=replace(plan.result, known_error=None)) for plan in plans]
        same = next((p for p in plans if _is_the_same(p, best) and p.result.feasible is not False), None)
        anew = best_of([plan for plan in plans if not plan.is_extra], asked.answer)
        chosen = min(filter(None, (same, anew)), key=lambda p: p.step_ns, default=None)
        if chosen is None:
            missing.append((more.text, "nothing that is as sure fits"))
            continue
        # The work of a step is that of its microbatches.
        gained = best.step_ns - round(chosen.step_ns * now / chosen.result.microbatches)
        gains.append(Gain(more, chosen, None if same is None else same.step_ns, gained, gained / best.step_ns))
    return tuple(gains), tuple(missing)


def _is_the_same(plan: Plan, best: Plan) -> bool:
    return plan.way == best.way and plan.result.extra_forwards == best.result.extra_forwards


def _binding(gains: Iterable[Gain]) -> Resource:
    links_and_memory = [g for g in gains if g.more.resource in {"bandwidth", "latency", "hbm"}]
    top = max(links_and_memory, key=lambda g: g.gain_ratio, default=None)
    return top.more.resource if top is not None and top.gain_ratio > RELEVANT_RATIO else "compute"
