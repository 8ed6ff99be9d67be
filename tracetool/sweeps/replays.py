"""One schedule family over many links: every order is compiled once, and every depth searched for all links at once.

What a schedule needs in memory. It hangs on the order on each rank alone, not on when things run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScheduleDeadlock
from tracetool.model.timeline import Metrics, memory_curve
from tracetool.replays.evaluation import evaluate
from tracetool.replays.scenarios import Replayer
from tracetool.whatif.depth import Tried, WarmUps, search_warm_ups, shortest_cycle_ns
from tracetool.whatif.memory_limit import all_fit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.model.topology import Topology
    from tracetool.replays.scenarios import StepTimes
    from tracetool.schedules import Tuning
    from tracetool.sweeps.grid import WarmUp
    from tracetool.whatif.depth import Depth


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of each pipeline rank, whatever the links.

    Attributes:
        peak_bytes: Highest allocation; None if unknown.
        overhead_bytes: What it occupies beyond that, as measured; None if unknown.
    """

    peak_bytes: tuple[int | None, ...]
    overhead_bytes: tuple[int | None, ...]


def memory_need(pipeline: Pipeline, schedule: Schedule, scenario: Scenario) -> MemoryNeed:
    """What ``measure`` finds in the memory curves of a replay, without one.

    Args:
        pipeline: What was measured.
        schedule: The order.
        scenario: May replace activation and static bytes.

    Raises:
        UnsupportedShape: If the trace does not tell what an action costs.
    """
    costs = MeasuredCosts(pipeline, scenario, schedule)
    peaks: list[int | None] = []
    for rank, order in enumerate(schedule.orders):
        actions = [costs.action(action) for action in order]
        curve = memory_curve(
            costs.static_bytes(rank),
            [(0, 0, cost.held_bytes, cost.peak_bytes) for cost in actions],
            costs.tail_peak_bytes(rank),
        )
        peaks.append(None if curve is None else max(level for _, level in curve))
    ranks = range(len(schedule.orders))
    return MemoryNeed(tuple(peaks), tuple(costs.overhead_bytes(rank) for rank in ranks))


class _OfJob(NamedTuple):
    """All pipelines of a job over some links: metrics of the one that sets the step, and what each kind needs."""

    metrics: Metrics
    needs: tuple[PipelineNeed, ...]


class PipelineNeed(NamedTuple):
    """What a pipeline needs in memory.

    Attributes:
        ranks: Global ranks, of it or of the first one of its kind.
        metrics: Its metrics.
    """

    ranks: tuple[int, ...]
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Order:
    """An order and what it needs in memory."""

    schedule: Schedule
    memory: MemoryNeed


_MOST_ACTIONS = 500_000
"""Orders of so many actions together are kept compiled (some 300 MB); then they are compiled anew."""


class Replays:
    """Replays of a schedule in scenarios that differ in links and memory limits only; what is known is kept.

    Args:
        pipeline: What was measured, with the stages that the schedule runs on.
        shape: Ranks, stages and microbatches.
        build: Makes the order, with extra forwards per rank where the schedule has them.
        scenario: What all scenarios share.
    """

    def __init__(
        self, pipeline: Pipeline, shape: PipelineShape, build: Callable[[Depth | None], Schedule], scenario: Scenario
    ) -> None:
        self._pipeline = pipeline
        self._shape = shape
        self._build = build
        self._scenario = replace(scenario, hbm_bytes=None)
        self._cycle_ns = shortest_cycle_ns(pipeline)
        self._orders: dict[Depth | None, Order] = {}
        self._times: dict[Depth | None, dict[Topology, StepTimes | _OfJob]] = {}
        self._stuck: dict[Depth | None, ScheduleDeadlock] = {}
        self._replayers: dict[Depth | None, Replayer] = {}

    def order(self, extra: Depth | None) -> Order:
        """The order with these extra forwards.

        Raises:
            ScheduleError: If there is none for this shape, or its costs are unknown.
        """
        if extra not in self._orders:
            schedule = self._build(extra)
            self._orders[extra] = Order(schedule, memory_need(self._pipeline, schedule, self._scenario))
        return self._orders[extra]

    def load(self, wanted: Mapping[Depth | None, Iterable[Topology]]) -> None:
        """Replay orders over links; what is known already is not replayed again.

        Raises:
            ScheduleError: If there is no such order, or its costs are unknown.
            ScenarioError: If a message crosses a link but its size is unknown.
        """
        for extra, topologies in wanted.items():
            times = self._times.setdefault(extra, {})
            missing = [topology for topology in dict.fromkeys(topologies) if topology not in times]
            if not missing or extra in self._stuck:
                continue
            what_ifs = [replace(self._scenario, topology=topology) for topology in missing]
            try:
                times.update(zip(missing, self._replayed(extra, what_ifs), strict=True))
            except ScheduleDeadlock as error:
                self._stuck[extra] = error  # links are the same but for their figures: all deadlock or none

    def _replayed(self, extra: Depth | None, what_ifs: Sequence[Scenario]) -> Sequence[StepTimes | _OfJob]:
        if self._pipeline.job is None:
            return self._replayer(extra).replay_many(what_ifs)
        schedule = self.order(extra).schedule
        done = (evaluate(self._pipeline, schedule, what_if) for what_if in what_ifs)
        return [
            _OfJob(one.metrics, tuple(PipelineNeed(line.global_ranks, of) for line, of in one.kinds)) for one in done
        ]

    def _replayer(self, extra: Depth | None) -> Replayer:
        if extra not in self._replayers:
            actions = self._shape.stages * self._shape.microbatches * 2
            if (len(self._replayers) + 1) * actions > _MOST_ACTIONS:
                self._replayers.clear()
            self._replayers[extra] = Replayer(self._pipeline, self.order(extra).schedule)
        return self._replayers[extra]

    def metrics(self, extra: Depth | None, topology: Topology) -> Metrics:
        """Metrics of an order over links that were loaded; without compute by rank.

        Raises:
            ScheduleDeadlock: If it deadlocks.
        """
        if extra in self._stuck:
            raise self._stuck[extra]
        times, memory, ranks = self._times[extra][topology], self.order(extra).memory, self._shape.ranks
        if isinstance(times, _OfJob):
            return times.metrics
        return Metrics(
            step_ns=times.step_ns,
            window_ns=times.window_ns,
            compute_ns=times.compute_ns,
            bubble_ns=(ranks * times.window_ns - times.compute_ns) // ranks,
            bubble_ratio=1 - times.compute_ns / (ranks * times.window_ns) if times.window_ns else 0.0,
            rank_compute_ns=(),
            peak_hbm_bytes=memory.peak_bytes,
            overhead_bytes=memory.overhead_bytes,
        )

    def needs(self, extra: Depth | None, topology: Topology) -> tuple[PipelineNeed, ...]:
        """What must fit the memory over links that were loaded: the pipeline, or one of each kind of several.

        Raises:
            ScheduleDeadlock: If it deadlocks.
        """
        metrics, times = self.metrics(extra, topology), self._times[extra][topology]
        if isinstance(times, _OfJob):
            return times.needs
        return (PipelineNeed(tuple(rank.rank for rank in self._pipeline.ranks), metrics),)

    def warm_ups(self, tuning: Tuning, warm_up: WarmUp, scenarios: Sequence[Scenario]) -> list[WarmUps]:
        """Extra forwards of a tuned schedule in each scenario.

        Args:
            tuning: What it says of its depths.
            warm_up: As ``Grid`` says it; None chooses as ``choose_warm_ups`` does.
            scenarios: Links and memory limits.
        """
        if isinstance(warm_up, int):
            per_boundary = dict.fromkeys(scenarios[0].topology.boundaries(), warm_up)
            warm_up = tuning.per_rank(self._shape.ranks, per_boundary)
        return self._chosen(tuning, scenarios) if warm_up is None else [WarmUps(warm_up, None)] * len(scenarios)

    def _chosen(self, tuning: Tuning, scenarios: Sequence[Scenario]) -> list[WarmUps]:
        searches = [search_warm_ups(tuning, self._pipeline, self._shape, each, self._cycle_ns) for each in scenarios]
        chosen: dict[int, WarmUps] = {}
        answers: dict[int, list[Tried | None] | None] = dict.fromkeys(range(len(scenarios)))
        while answers:
            asked: dict[int, list[Depth]] = {}
            for number, answer in answers.items():
                try:
                    search = searches[number]
                    asked[number] = next(search) if answer is None else search.send(answer)
                except StopIteration as done:
                    chosen[number] = done.value
            wanted: dict[Depth | None, list[Topology]] = {}
            for number, extras in asked.items():
                for extra in extras:
                    wanted.setdefault(extra, []).append(scenarios[number].topology)
            self.load(wanted)
            answers = {n: [self._tried(extra, scenarios[n]) for extra in extras] for n, extras in asked.items()}
        return [chosen[number] for number in range(len(scenarios))]

    def _tried(self, extra: Depth, scenario: Scenario) -> Tried | None:
        if extra in self._stuck:
            return None
        step_ns = self.metrics(extra, scenario.topology).step_ns
        return Tried(step_ns, all_fit((need.metrics for need in self.needs(extra, scenario.topology)), scenario))
