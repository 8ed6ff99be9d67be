"""What a sweep found: one point per scenario and schedule, and the knees between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.pipeline import NO_OVERLAP
from tracetool.registry import Pictured
from tracetool.tables.results import KNEES, POINTS
from tracetool.units import format_count
from tracetool.whatif.accuracy import LayersStep, change_error_ratio, layers_gain
from tracetool.whatif.best import choose, choose_each, evidence_of, recorded_schedule, recorded_test, rows_of, unchecked
from tracetool.whatif.decision import Decision, Offer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pyarrow as pa

    from tracetool.model.notice import Notice
    from tracetool.model.pipeline import LayerOverlap, Pipeline
    from tracetool.whatif.accuracy import KnownError
    from tracetool.whatif.best import Evidence, Way
    from tracetool.whatif.decision import Today
    from tracetool.whatif.layers import LayersError, LayersGain


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One schedule in one scenario.

    Attributes:
        schedule: Name of the schedule.
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's; None for schedules without any.
        microbatches: Microbatches per step.
        p2p: How transfers were issued.
        bandwidth_bytes_per_s: Bandwidth of every link that was swept; where none was of all links, None if they differ
            in it or there is none.
        latency_ns: One-way latency, likewise.
        hbm_bytes: Memory limit per rank; None for no limit.
        dcs: DC of each pipeline rank; empty for one DC.
        step_ns: Step; None if it could not be replayed.
        window_ns: Pipeline window; None if it could not be replayed.
        bubble_ratio: Idle share of the window; None if it could not be replayed.
        peak_bytes: Highest allocation of any rank; None if unknown.
        feasible: Whether it fits the memory limit; None if memory is unknown or it could not be replayed.
        remarks: Why it does not fit, or could not be replayed; how near the limit it is.
        needed_bytes: What the rank that needs most needs, with what it occupies beyond its allocations: this is
            compared with the limit. None if unknown.
        scenario: Name of the scenario, where it has one.
        link_cost: Price of its links, where a price is given.
        known_error: How far off such predictions were on recorded runs; None if nothing was like it.
        rests_on: Of an unproven prediction, what nothing recorded was like.
        unlimited_ns: Of a tuned schedule, the step with the warm-up that it would have without the memory limit; None
            if that cuts nothing.
        closer: A tuned schedule with a warm-up closer to its shortest step, where the chosen one is not the closest:
            what runs best may need it.
        order_digest: What its order is, whatever its name; None if it could not be built.
        is_near_the_limit: Whether it fits, but so closely that the error of peaks may decide.
        is_pareto: Whether no other point is as good in link cost, memory and step time and better in one of them;
            None without a price. See ``pareto``.
        overlap: How layers overlap their collectives and products; none as recorded.
        tensor_bandwidth_bytes_per_s: Of the links between the ranks of a group inside layers; None as recorded.
    """

    schedule: str
    extra_forwards: tuple[int, ...] | None
    microbatches: int
    p2p: str
    bandwidth_bytes_per_s: int | None = None
    latency_ns: int | None = None
    hbm_bytes: int | None = None
    dcs: tuple[str, ...] = ()
    step_ns: int | None = None
    window_ns: int | None = None
    bubble_ratio: float | None = None
    peak_bytes: int | None = None
    feasible: bool | None = None
    remarks: tuple[Notice, ...] = ()
    needed_bytes: int | None = None
    scenario: str | None = None
    link_cost: float | None = None
    is_pareto: bool | None = None
    known_error: KnownError | None = None
    rests_on: tuple[str, ...] = ()
    unlimited_ns: int | None = None
    closer: SweepPoint | None = None
    order_digest: str | None = None
    is_near_the_limit: bool = False
    overlap: str = NO_OVERLAP
    tensor_bandwidth_bytes_per_s: int | None = None

    @property
    def reason(self) -> str | None:
        """Its remarks in words; None without any."""
        return "; ".join(map(str, self.remarks)) or None

    @property
    def seen_error_ratio(self) -> float | None:
        """Largest error of the step time that such predictions had on recorded runs; None if none was like it."""
        return None if self.known_error is None else self.known_error.step_ratio

    @property
    def evidence(self) -> Evidence:
        """What the prediction rests on."""
        return evidence_of(self)

    @property
    def step_ns_per_microbatch(self) -> float | None:
        """Step over microbatches: compares steps of different size at equal tokens."""
        return None if self.step_ns is None else self.step_ns / self.microbatches

    @property
    def is_usable(self) -> bool:
        """Whether it ran and nothing says that it does not fit."""
        return self.step_ns is not None and self.feasible is not False


@dataclass(frozen=True, slots=True)
class Knee:
    """Where a schedule stops gaining from its links; see ``knee`` for exact definitions.

    Attributes:
        schedule: Name of the schedule.
        bandwidth_bytes_per_s: From it on, twice the bandwidth shortens the step by less than 1 %, at ``at_latency_ns``.
        hidden_latency_ns: Largest one-way latency that the schedule hides, over links whose bandwidth costs nothing;
            None where links that stay as given keep the step more than 1 % above its floor.
        hbm_bytes_per_hidden_ms: Of tuned schedules, memory of a rank per further hidden millisecond of latency.
        remarks: What is special about it, or why it is not known.
        extra_forwards: Of tuned schedules, the warm-up asked for; None if it is chosen for every link.
        microbatches: Held meanwhile.
        p2p: Held meanwhile.
        hbm_bytes: Held meanwhile.
        dcs: Held meanwhile.
        at_latency_ns: The latency at which the bandwidth was sought.
        at_bandwidth_bytes_per_s: The bandwidth at which the latency was sought: so large that it costs nothing.
        scenario: Name of the scenario, where it has one.
        overlap: Held meanwhile.
        tensor_bandwidth_bytes_per_s: Held meanwhile.
    """

    schedule: str
    bandwidth_bytes_per_s: int | None
    hidden_latency_ns: int | None
    hbm_bytes_per_hidden_ms: int | None
    remarks: tuple[Notice, ...]
    extra_forwards: tuple[int, ...] | None = None
    microbatches: int | None = None
    p2p: str | None = None
    hbm_bytes: int | None = None
    dcs: tuple[str, ...] = ()
    at_latency_ns: int | None = None
    at_bandwidth_bytes_per_s: int | None = None
    scenario: str | None = None
    overlap: str = NO_OVERLAP
    tensor_bandwidth_bytes_per_s: int | None = None

    @property
    def remark(self) -> str | None:
        """Its remarks in words; None without any."""
        return "; ".join(map(str, self.remarks)) or None


ScenarioKey = tuple[object, ...]
"""What tells the scenarios of a sweep apart."""


def scenario_of(point: SweepPoint) -> ScenarioKey:
    """The scenario of a point: its name, places, links, memory limit and microbatches, and how its layers run."""
    return *_around_layers(point), point.overlap


def _around_layers(point: SweepPoint) -> ScenarioKey:
    """The same, however its layers overlap."""
    figures = point.latency_ns, point.bandwidth_bytes_per_s, point.tensor_bandwidth_bytes_per_s
    return point.scenario, point.dcs, point.microbatches, point.hbm_bytes, *figures


@dataclass(frozen=True, slots=True)
class Best:
    """What to run in one scenario; see ``tracetool.whatif.best``.

    Attributes:
        among: A point of the scenario.
        point: The schedule to run; None if none fits.
        now: The recorded order over the same links; None if it could not be replayed.
        as_good: As sure, and not longer by more than the error of the difference.
        unproven: Shorter, but predictions rest on less; the shortest of each schedule.
        unchecked: Schedules of which it is unknown whether they fit.
    """

    among: SweepPoint
    point: SweepPoint | None
    now: SweepPoint | None
    as_good: tuple[SweepPoint, ...] = ()
    unproven: tuple[SweepPoint, ...] = ()
    unchecked: tuple[str, ...] = ()

    @property
    def change_ratio(self) -> float | None:
        """Its step over the recorded order's, minus one."""
        if self.point is None or self.now is None or not self.point.step_ns or not self.now.step_ns:
            return None
        return self.point.step_ns / self.now.step_ns - 1

    @property
    def change_error_ratio(self) -> float | None:
        """Error of that change; None if it is not known."""
        if self.point is None or self.now is None or self.change_ratio is None:
            return None
        return change_error_ratio(self.now.known_error, self.point.known_error, self.change_ratio)

    def offer(self, name: str) -> Offer:
        """The scenario as an offer of a decision, under a name."""
        return Offer(
            name=name,
            microbatches=self.among.microbatches,
            best=self.point,
            now=self.now,
            hbm_bytes=self.among.hbm_bytes,
            is_near_the_limit=self.point is not None and self.point.is_near_the_limit,
            unchecked=self.unchecked,
        )


def best_of_each(
    points: Sequence[SweepPoint],
    now: Sequence[SweepPoint],
    pipeline: Pipeline,
    beside: Collection[Way] | None = None,
) -> tuple[Best, ...]:
    """What to run in each scenario, in the order of the grid.

    Args:
        points: Of all scenarios.
        now: The recorded order in each, where it is not among them.
        pipeline: What was measured.
        beside: As ``sweep`` takes it.
    """
    scenarios: dict[ScenarioKey, list[SweepPoint]] = {}
    for point in (*points, *now):
        scenarios.setdefault(scenario_of(point), []).extend(filter(None, (point, point.closer)))
    names = {m: recorded_schedule(pipeline.observed, m) for m in {point.microbatches for point in points}}
    best = []
    is_recorded = recorded_test(pipeline)
    asked = [(candidates, names[candidates[0].microbatches]) for candidates in scenarios.values()]
    if beside is None:
        alike = [(candidates[0].microbatches, candidates[0].hbm_bytes) for candidates, _ in asked]
        every = choose_each(asked, is_recorded, alike)
    else:
        every = [choose(candidates, is_recorded, name, beside) for candidates, name in asked]
    for (candidates, name), chosen in zip(asked, every, strict=True):
        recorded = next((one for one in candidates if one.schedule == name and one.step_ns), None)
        best.append(
            Best(
                among=candidates[0],
                point=chosen.best,
                now=recorded,
                as_good=chosen.as_good,
                unproven=chosen.unproven,
                unchecked=unchecked(candidates),
            )
        )
    return tuple(best)


@dataclass(frozen=True, slots=True)
class SweptLayers:
    """What layers that overlap buy in one scenario.

    Attributes:
        plain: What to run there with layers as they are.
        point: What to run with layers that overlap.
        gain: How much shorter its step is.
    """

    plain: SweepPoint
    point: SweepPoint
    gain: LayersGain


def layers_of_each(best: Sequence[Best], layered: Mapping[LayerOverlap, LayersError | None]) -> tuple[SweptLayers, ...]:
    """What each way to overlap buys in each scenario; nothing where layers as they are were not tried there.

    Args:
        best: What to run in each.
        layered: How far off steps may be for their layers; None where that is not known.
    """
    overlaps = {(one.way, one.bandwidth_bytes_per_s): one for one in layered}

    def step(point: SweepPoint) -> tuple[LayerOverlap, LayersStep]:
        overlap = overlaps[point.overlap, point.tensor_bandwidth_bytes_per_s]
        return overlap, LayersStep(point.step_ns or 0, point.known_error, layered[overlap])

    run = [each.point for each in best if each.point is not None]
    plain = {_around_layers(point): point for point in run if point.overlap == NO_OVERLAP}
    layers = []
    for point in run:
        base = plain.get(_around_layers(point))
        if base is not None and point.overlap != NO_OVERLAP:
            overlap, mine = step(point)
            layers.append(SweptLayers(base, point, layers_gain(overlap, step(base)[1], mine)))
    return tuple(layers)


def without_twins(points: Sequence[SweepPoint], pipeline: Pipeline) -> list[SweepPoint]:
    """Points without those that have another's order, transfers and scenario under another name."""
    scenarios: dict[ScenarioKey, list[SweepPoint]] = {}
    for point in points:
        scenarios.setdefault(scenario_of(point), []).append(point)
    names = {m: recorded_schedule(pipeline.observed, m) for m in {point.microbatches for point in points}}
    is_recorded = recorded_test(pipeline)
    kept = {
        id(point) for group in scenarios.values() for point in rows_of(group, names[group[0].microbatches], is_recorded)
    }
    return [point for point in points if id(point) in kept]


@dataclass(frozen=True, slots=True)
class Sweep(Pictured):
    """All points of a grid, in its order, what to run in each scenario, and the knees of its schedules.

    Attributes:
        points: One per scenario and schedule.
        knees: One per schedule, swept latency and what else was held; empty where no link was swept.
        notes: What was inferred, is missing or not modelled.
        best: What to run in each scenario; schedules whose error is known go ahead.
        today: The recorded step; None where a pipeline alone was swept.
        layers: What ways to overlap inside layers buy, where several were swept.
    """

    points: tuple[SweepPoint, ...]
    knees: tuple[Knee, ...]
    notes: tuple[Notice, ...] = ()
    best: tuple[Best, ...] = ()
    today: Today | None = None
    layers: tuple[SweptLayers, ...] = ()

    @property
    def decision(self) -> Decision | None:
        """What to run in each of the named scenarios; None where they have no names, or there is no recording."""
        if self.today is None or self.layers or not all(each.among.scenario for each in self.best):
            return None
        first = self.best[0].point if self.best else None
        offers = [
            replace(each.offer(each.among.scenario or ""), first_plan=self._plan_there(first, each))
            for each in self.best
        ]
        return Decision(today=self.today, offers=tuple(offers))

    def _plan_there(self, plan: SweepPoint | None, best: Best) -> SweepPoint | None:
        """A plan in another scenario, its depth chosen anew; None where it is the best one there, or does not fit."""
        if plan is None or best.point is None or best.point.schedule == plan.schedule:
            return None
        there = [point for point in self.points if scenario_of(point) == scenario_of(best.among)]
        every = [one for point in there for one in (point, point.closer) if one is not None and one.is_usable]
        alike = [one for one in every if (one.schedule, one.p2p) == (plan.schedule, plan.p2p)]
        return min(alike, key=lambda one: one.step_ns or 0, default=None)

    def __repr__(self) -> str:
        return f"<Sweep: {format_count(len(self.points), 'point')}, {format_count(len(self.knees), 'knee')}>"

    def best_first(self) -> tuple[SweepPoint, ...]:
        """Points that ran and fit, shortest step per microbatch first, whatever predictions rest on (see ``best``)."""
        usable = [p for p in self.points if p.is_usable]
        return tuple(sorted(usable, key=lambda p: p.step_ns_per_microbatch or 0.0))

    def table(self) -> pa.Table:
        """The points as an Arrow table; ``polars.from_arrow`` takes it."""
        return POINTS.arrow([({} if point.step_ns is not None else {"evidence": None}, point) for point in self.points])

    def knee_table(self) -> pa.Table:
        """The knees as an Arrow table."""
        return KNEES.arrow([(knee,) for knee in self.knees])
