"""What a search is worth: the best plan beside others, what each choice alone would have reached, how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import TraceToolError
from tracetool.explore.crossing import tier_bytes
from tracetool.explore.fleets import FleetPlan, check_currencies, elsewhere, price_front
from tracetool.explore.judge import Judge
from tracetool.explore.progress import SearchWork
from tracetool.explore.search import EXHAUSTIVE, RIVAL_RATIO, PlanSearch
from tracetool.explore.space import DEGREES, schedules
from tracetool.schedules import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.explore.fleets import PricedPlan
    from tracetool.explore.judge import Judged
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.search import SearchResults
    from tracetool.explore.space import AxisName, Space

CHOICES: Mapping[str, tuple[AxisName, ...]] = {
    "degrees": DEGREES,
    "placement": ("placement",),
    "schedule": ("schedule", "depth", "chunks", "p2p"),
    "microbatch": ("microbatch",),
    "recompute": ("recompute",),
    "overlap": ("overlap",),
    "network": ("collectives", "beside", "sharing", "routing", "compression"),
}
"""What people decide, each with the axes it is made of."""
_OFF = 0.2
"""By how much each figure is taken to be off, either way."""
_BUDGETS = 8
_LESS_MEMORY = 0.85
_NEAREST = 3
_SEARCHED = 2 / 3
"""Share of the time that the search itself may take; the rest is for what it is compared with."""
_LATE = "not looked at in time"
_RECHECKED = 100
"""So many of the fastest plans are judged anew where a figure is off."""


class Alternative(NamedTuple):
    """What another way of choosing reaches.

    Attributes:
        name: What is chosen, or by whom.
        judged: The best of it; None if nothing of it can run.
        reason: Why not.
        is_cut: Whether the time was up before all of it was looked at: something of it may be better.
    """

    name: str
    judged: Judged | None
    reason: str = ""
    is_cut: bool = False


class Deciding(NamedTuple):
    """A rival, and the figure whose measurement would tell whether it is the faster one.

    Attributes:
        judged: The rival.
        figure: The figure which, off by a fifth, puts the rival ahead; empty if none does: then a few steps of both.
        devices: So many are needed to measure it.
    """

    judged: Judged
    figure: str
    devices: int


class Turned(NamedTuple):
    """A figure which, if it were off, would change the answer.

    Attributes:
        figure: Which, as ``wan bandwidth``.
        change_ratio: By how much it was taken to be off.
        judged: The plan that is best then.
        lost_ratio: What today's best plan would take longer than that one.
    """

    figure: str
    change_ratio: float
    judged: Judged
    lost_ratio: float


@dataclass(frozen=True)
class Exploration:
    """The answer to a search.

    Attributes:
        space: What was searched.
        results: What the search found.
        base: The plan that it is compared with.
        alone: Each choice alone, everything else as the base has it.
        one_by_one: All of them, one after another, each kept.
        baselines: What other ways of choosing reach.
        rivals: Plans that are unlike the best one, and within the error of it.
        deciding: For the nearest of them, the cheapest measurement that would decide.
        unproven: The best of schedules that were never compared with a recorded step.
        front: The fastest plan, and the fastest ones within less and less memory.
        crossing_front: The fastest plan, and the fastest ones that move less and less over the outermost tier.
        price_front: Of the plans replayed on all fleets, those than which none is as fast and as cheap a step; the
            fastest first. Empty where fleets have no price.
        others: The best plans on other fleets.
        turned: Figures that would change the answer.
        error_ratio: How far off a step may be; None if nothing tells.
        cut: Of what stands beside the search, what ended when the time was up.
        misfits: Measured runs that do not fit on the fleet, and so tell nothing of the error.
    """

    space: Space
    results: SearchResults
    base: Judged
    alone: tuple[Alternative, ...]
    one_by_one: Alternative
    baselines: tuple[Alternative, ...]
    unproven: Alternative
    rivals: tuple[Judged, ...]
    deciding: tuple[Deciding, ...]
    front: tuple[Judged, ...]
    crossing_front: tuple[Judged, ...]
    price_front: tuple[PricedPlan, ...]
    others: tuple[FleetPlan, ...]
    turned: tuple[Turned, ...]
    error_ratio: float | None = None
    cut: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()

    @property
    def best(self) -> Judged | None:
        """The fastest plan that can run."""
        return self.results.best

    @property
    def cut_short(self) -> tuple[str, ...]:
        """All that ended when the time was up, but for the search itself: of what was looked at, the best stands."""
        every = (*self.alone, self.one_by_one, *self.baselines, self.unproven)
        return (*(one.name for one in every if one.is_cut), *self.cut)


class Speedup(NamedTuple):
    """Both ways to say how much faster something is.

    Attributes:
        faster_ratio: T0 / T1 - 1: so many more steps in the same time.
        shorter_ratio: 1 - T1 / T0: so much less time for a step.
    """

    faster_ratio: float
    shorter_ratio: float


def speedup(base_ns: int, other_ns: int) -> Speedup:
    """Of a step over another one.

    Args:
        base_ns: T0.
        other_ns: T1.
    """
    return Speedup(base_ns / other_ns - 1, 1 - other_ns / base_ns)


def explore(
    space: Space,
    *,
    compared: Mapping[str, JobPlan] | None = None,
    others: Sequence[Space] = (),
    error_ratio: float | None = None,
    misfits: Sequence[str] = (),
    work: SearchWork | None = None,
) -> Exploration:
    """Search a space, and tell what its best plan is worth.

    Args:
        space: The space.
        compared: Plans to compare with, by name.
        others: The same job on other fleets.
        error_ratio: How far off a step may be, if that is known.
        misfits: Measured runs that do not fit on the fleet.
        work: How it is worked on; when two thirds of its time are up, the best plan so far is the answer, and when all
            of it is, what stands beside it is cut.

    Raises:
        BadTopology: If the job does not fit on the network.
        ScenarioError: If the space holds no plan, or fleets have prices in several currencies.
    """
    check_currencies([each.workload.choice for each in (space, *others)])
    judge = Judge(space.workload)
    margin = RIVAL_RATIO if error_ratio is None else error_ratio
    work = work or SearchWork()
    whole = PlanSearch(space, judge, work.until(_SEARCHED))
    results = whole.run(exhaustive=EXHAUSTIVE, rival_ratio=margin)
    whole.work, beside = work, work.beside()
    (base,) = judge.judge([space.base])
    best, cut = results.best, list[str]()
    rivals = () if best is None else tuple(_rivals(results, best, margin))
    unlike = replace(space, given={**space.given, "schedule": schedules(compared=False)})
    front = () if best is None else tuple(_front(whole, best, cut))
    crossing_front = () if best is None else tuple(_crossing_front(space.workload, whole, best, cut))
    there = tuple(elsewhere(others, beside, cut))
    here = FleetPlan(space.workload, replace(results, judged=(*results.judged, *front, *crossing_front)))
    return Exploration(
        space=space,
        results=results,
        base=base,
        alone=tuple(_alternative(name, space.only(*axes), judge, beside) for name, axes in CHOICES.items()),
        one_by_one=_one_by_one(space, base, judge, beside),
        baselines=tuple(_baselines(space, judge, compared or {}, beside)),
        unproven=_alternative("unproven schedules", unlike, judge, beside),
        rivals=rivals,
        deciding=() if best is None else tuple(_deciding(space.workload, best, rivals[:_NEAREST], beside, cut)),
        front=front,
        crossing_front=crossing_front,
        price_front=tuple(price_front([here, *there])),
        others=there,
        turned=() if best is None else tuple(_turned(space.workload, results, beside, cut)),
        error_ratio=error_ratio,
        cut=tuple(cut),
        misfits=tuple(misfits),
    )


def _alternative(name: str, space: Space, judge: Judge, work: SearchWork) -> Alternative:
    if work.is_over:
        return Alternative(name, None, _LATE, is_cut=True)
    try:
        results = PlanSearch(space, judge, work).run()
    except TraceToolError as error:
        return Alternative(name, None, error.message)
    why = [_LATE] if results.open else list(results.refused | results.pruned) or list(results.left_out)
    reason = "" if results.best else ", ".join(why) or "nothing fits"
    return Alternative(name, results.best, reason, is_cut=bool(results.open))


def _one_by_one(space: Space, base: Judged, judge: Judge, work: SearchWork) -> Alternative:
    """Choices made one after another in the order of ``CHOICES``, each the best for what was chosen before."""
    now, is_cut = base, False
    for axes in CHOICES.values():
        chosen = _alternative("", replace(space, base=now.plan).only(*axes), judge, work)
        is_cut = is_cut or chosen.is_cut
        if chosen.judged is not None and (not now.runs or chosen.judged.step_ns < now.step_ns):
            now = chosen.judged
    return Alternative("one by one", now if now.runs else None, now.refusal, is_cut)


def _baselines(space: Space, judge: Judge, compared: Mapping[str, JobPlan], work: SearchWork) -> Iterator[Alternative]:
    """What people or systems choose that leave an axis out; as far as these axes say it."""
    for name, plan in compared.items():
        (judged,) = judge.judge([plan])
        yield Alternative(name, judged if judged.runs else None, judged.refusal)
    scheduled = space.only(*CHOICES["schedule"])
    yield _alternative("schedule only (CrossPipe)", scheduled, judge, work)
    placed = space.only(*DEGREES, "placement", "microbatch", "recompute")
    yield _alternative("placement only (Sailor)", placed, judge, work)
    outer = space.workload.choice.network.tiers[-1].name
    turns = space.only(*DEGREES, "microbatch")
    turns = replace(
        turns,
        given={**turns.given, "placement": (f"pp across {outer}",), "schedule": (REFERENCE,), "sharing": ("temporal",)},
    )
    yield _alternative("stages in turns (Atlas)", turns, judge, work)


def _rivals(results: SearchResults, best: Judged, margin: float) -> Iterator[Judged]:
    """Of each sort of plans that are within the error of the best one, the fastest."""
    known = {_sort(best.plan)}
    for judged in results.judged:
        if judged.step_ns > best.step_ns * (1 + margin):
            return
        if _sort(judged.plan) not in known:
            known.add(_sort(judged.plan))
            yield judged


def _sort(plan: JobPlan) -> tuple[object, ...]:
    training = plan.training
    return (
        training.degrees,
        training.order_name,
        training.chunks,
        plan.placement,
        training.recompute,
        training.batch,
        training.overlap,
    )


def _front(whole: PlanSearch, best: Judged, cut: list[str]) -> Iterator[Judged]:
    """The fastest plan, then the fastest within ever less memory."""
    now: Judged | None = best
    for _ in range(_BUDGETS):
        if now is None:
            return
        yield now
        now = _within(whole, "less memory", cut, hbm_bytes=int(now.peak_hbm_bytes * _LESS_MEMORY))


def _crossing_front(workload: Workload, whole: PlanSearch, best: Judged, cut: list[str]) -> Iterator[Judged]:
    """The fastest plan, then the fastest that moves a half of that over the outermost tier, and so on down to none."""
    now: Judged | None = best
    for _ in range(_BUDGETS):
        if now is None:
            return
        yield now
        crossing = tier_bytes(workload, now.plan)[-1]
        if not crossing:
            return
        now = _within(whole, "fewer bytes", cut, crossing_bytes=crossing // 2)


def _within(whole: PlanSearch, what: str, cut: list[str], **budget: int) -> Judged | None:
    """The fastest plan within a budget; none where the time is up."""
    results = None if whole.work.is_over else whole.run(**budget)
    if results is None or results.open:
        cut.append(what)
        return None
    return results.best


def figures_off(workload: Workload) -> Iterator[tuple[str, float, Workload]]:
    """The workload with one figure off by a fifth, either way."""
    choice, device = workload.choice, workload.device
    for change in (-_OFF, _OFF):
        for tier in choice.network.tiers:
            with_bandwidth = choice.with_figure(tier.name, "bandwidth", tier.bandwidth_bytes_per_s * (1 + change))
            yield f"{tier.name} bandwidth", change, replace(workload, choice=with_bandwidth)
            if tier.latency_ns:
                with_latency = choice.with_figure(tier.name, "latency", tier.latency_ns * (1 + change))
                yield f"{tier.name} latency", change, replace(workload, choice=with_latency)
        faster = replace(device, peak_flops=round(device.peak_flops * (1 + change)))
        yield f"{device.name} speed", change, replace(workload, device=faster)
        if device.hbm_bandwidth_bytes_per_s:
            moved = replace(device, hbm_bandwidth_bytes_per_s=round(device.hbm_bandwidth_bytes_per_s * (1 + change)))
            yield f"{device.name} memory bandwidth", change, replace(workload, device=moved)


def _deciding(
    workload: Workload, best: Judged, rivals: Sequence[Judged], work: SearchWork, cut: list[str]
) -> Iterator[Deciding]:
    """Figures of one device are measured on one, those of a tier between two, and a plan on all that it has."""
    plans = [best.plan, *(rival.plan for rival in rivals)]
    turning: dict[int, Deciding] = {}
    for figure, _, other in figures_off(workload) if rivals else ():
        if work.is_over:
            cut.append("what decides between rivals")
            return
        mine, *theirs = Judge(other).judge(plans)
        devices = 1 if figure.startswith(workload.device.name) else 2
        for number, (rival, then) in enumerate(zip(rivals, theirs, strict=True)):
            ahead = then.runs and mine.runs and then.step_ns < mine.step_ns
            if ahead and (number not in turning or devices < turning[number].devices):
                turning[number] = Deciding(rival, figure, devices)
    for number, rival in enumerate(rivals):
        yield turning.get(number, Deciding(rival, "", rival.plan.training.devices))


def _turned(workload: Workload, results: SearchResults, work: SearchWork, cut: list[str]) -> Iterator[Turned]:
    plans = [judged.plan for judged in results.judged[:_RECHECKED]]
    for figure, change, other in figures_off(workload):
        if work.is_over:
            cut.append("figures that are off")
            return
        done = Judge(other).judge(plans)
        winner = min((one for one in done if one.runs), key=lambda one: one.step_ns, default=done[0])
        if winner.step_ns < done[0].step_ns and _sort(winner.plan) != _sort(plans[0]):
            yield Turned(figure, change, winner, done[0].step_ns / winner.step_ns - 1)
