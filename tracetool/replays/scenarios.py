"""Many scenarios at once: each way that links are laid is compiled once, and swept over all scenarios that have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.costs.over_links import crossing_uses
from tracetool.replays import p2p_of
from tracetool.replays.compiled import Compiled
from tracetool.replays.costing import TaskCosts
from tracetool.replays.side_by_side import side_by_side, with_shares
from tracetool.replays.sweeping import Durations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import RankOp
    from tracetool.model.topology import Topology


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step takes in one scenario; see ``metrics``.

    Attributes:
        window_ns: From the first forward to the last backward.
        step_ns: From the first forward to the end of gradient reduction and optimizer.
        compute_ns: Compute of all ranks, summed.
    """

    window_ns: int
    step_ns: int
    compute_ns: int


def replay_many(pipeline: Pipeline, schedule: Schedule, scenarios: Sequence[Scenario]) -> list[StepTimes]:
    """Run a schedule with measured costs in many scenarios.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
        scenarios: What differs from the measurement; those that differ in speed and latency of links only are
            replayed together.

    Returns:
        What ``replay`` and ``measure`` give of each scenario.

    Raises:
        BadTopology: If a scenario's DCs do not fit the schedule's ranks.
        ScheduleDeadlock: If every rank waits for another one.
        ScenarioError: If a message crosses a link but its size is unknown.
        UnsupportedShape: If the schedule needs costs that the trace does not tell.
    """
    return Replayer(pipeline, schedule).replay_many(scenarios)


class Replayer:
    """Replays one schedule in many scenarios, again and again; what was compiled is kept.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
    """

    def __init__(self, pipeline: Pipeline, schedule: Schedule) -> None:
        self._pipeline = pipeline
        self._schedule = schedule
        self._together: dict[tuple[Scenario, int], _Together] = {}
        self._compiled: dict[tuple[Scenario, int], Compiled] = {}
        self._shared: dict[int, Pipeline] = {}

    def replay_many(self, scenarios: Sequence[Scenario]) -> list[StepTimes]:
        """See the function ``replay_many``."""
        alike: dict[tuple[Scenario, int], list[int]] = {}
        times: dict[int, StepTimes] = {}
        alone = [_alone(scenario) for scenario in scenarios]
        for number, scenario in enumerate(alone):
            scenario.topology.check(self._schedule.shape.ranks)
            key = _kept(self._pipeline, scenario), _shares(scenarios[number])
            alike.setdefault(key, []).append(number)
        for same, numbers in alike.items():
            if same not in self._together:
                self._together[same] = self._prepared(alone[numbers[0]], same[1])
            steps = self._together[same].run([alone[number].topology for number in numbers])
            times.update(zip(numbers, steps, strict=True))
        return [times[number] for number in range(len(scenarios))]

    def _prepared(self, scenario: Scenario, shares: int) -> _Together:
        """Costs over its links, of tasks that are the same however fast those are."""
        laid = _without_speeds(scenario), shares
        if shares not in self._shared:
            self._shared[shares] = with_shares(self._pipeline, shares)
        together = _Together(self._shared[shares], self._schedule, scenario, self._compiled.get(laid))
        self._compiled[laid] = together.compiled
        return together


def _shares(scenario: Scenario) -> int:
    """How many pipelines have a share of every link all the time."""
    return scenario.pipelines_on_link if scenario.link_sharing == "spatial" else 1


def _alone(scenario: Scenario) -> Scenario:
    """With a pipeline's own share of every link, where it has one all the time."""
    if scenario.pipelines_on_link == 1 or scenario.link_sharing != "spatial":
        return scenario
    return replace(scenario, pipelines=1, topology=scenario.topology.divided(scenario.pipelines_on_link))


def _kept(pipeline: Pipeline, scenario: Scenario) -> Scenario:
    """What scenarios that are replayed together have in common: all of it where collectives cross links."""
    return scenario if crossing_uses(pipeline, scenario.topology) else _without_speeds(scenario)


def _without_speeds(scenario: Scenario) -> Scenario:
    return replace(scenario, topology=scenario.topology.without_figures())


class _Together:
    """Scenarios that differ in speed and latency of links only, one of which is given.

    Args:
        pipeline: What was measured.
        schedule: The order.
        scenario: One of them.
        compiled: As it was compiled for one whose links are laid the same way; None before the first.
    """

    def __init__(
        self, pipeline: Pipeline, schedule: Schedule, scenario: Scenario, compiled: Compiled | None = None
    ) -> None:
        mode = p2p_of(schedule, pipeline, scenario)
        self._pipelines = scenario.pipelines_on_link
        if self._pipelines > 1:
            pipeline, schedule, topology = side_by_side(pipeline, schedule, scenario.topology, self._pipelines)
            scenario = replace(scenario, topology=topology, pipelines=1, p2p=mode)
        self.compiled = compiled or Compiled(
            schedule,
            mode,
            replace(scenario.topology, free=False),
            buffered=pipeline.buffered,
            interwoven=scenario.interwoven,
            hosts_wait=pipeline.hosts_wait,
        )
        self._costs = TaskCosts(pipeline, scenario, schedule)
        self._durations = self._costs.durations(self.compiled)
        self._slowdown = self._costs.slowdown(self.compiled)

    def run(self, topologies: Sequence[Topology]) -> list[StepTimes]:
        """Over the links of each topology."""
        import numpy as np

        compiled = self.compiled
        varying = np.array(self._costs.message_classes(compiled), np.int32)
        laid = [topology.beside(self._pipelines) for topology in topologies]
        messages = [self._costs.message_ns(compiled, topology) for topology in laid]
        values = np.array(messages, np.int64).reshape(len(topologies), len(varying)).T
        last = compiled.graph.compute[compiled.graph.flow.first[1:] - 1]
        # The first compute needs nothing from another rank: it starts at 0, and the window with it.
        durations = Durations(self._durations, varying, values)
        ends, compute = compiled.ends_and_compute(durations, last, self._slowdown, self._pipelines)
        both = zip(ends.T.tolist(), compute.T.tolist(), strict=True)
        return [_slowest_step(of_ranks, self._costs.tails(of_ranks), busy) for of_ranks, busy in both]


def _slowest_step(ends_ns: Sequence[int], tails: Sequence[RankOp], compute_ns: Sequence[int]) -> StepTimes:
    """Times of the pipeline that ends last, the first of several.

    Args:
        ends_ns: Per rank of all pipelines, the end of its last compute.
        tails: What follows.
        compute_ns: Per pipeline, compute of its ranks.
    """
    ranks = len(ends_ns) // len(compute_ns)
    windows = [max(ends_ns[first : first + ranks]) for first in range(0, len(ends_ns), ranks)]
    steps = list(windows)
    for op in tails:
        steps[op.rank // ranks] = max(steps[op.rank // ranks], op.end_ns)
    last = steps.index(max(steps))
    return StepTimes(windows[last], steps[last], compute_ns[last])
