"""Many scenarios at once: each way that links are laid is compiled once, and swept over all scenarios that have it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.topology import Link
from tracetool.replay import p2p_of, replay
from tracetool.replay.compiled import Compiled
from tracetool.replay.costing import TaskCosts
from tracetool.replay.side_by_side import divided
from tracetool.replay.sweeping import Durations
from tracetool.replay.tail import run_tails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Op, Timeline


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long a step takes in one scenario; see ``metrics``.

    Attributes:
        window_ns: From the first forward to the last backward.
        step_ns: From the first forward to the end of gradient reduction and optimizer.
    """

    window_ns: int
    step_ns: int


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
    alike: dict[Scenario, list[int]] = {}
    found: dict[int, StepTimes] = {}
    alone = [_alone(scenario) for scenario in scenarios]
    for number, scenario in enumerate(alone):
        scenario.topology.check(schedule.shape.ranks)
        if _shares_links(scenario):
            found[number] = _of(replay(pipeline, schedule, scenario).timeline)
        else:
            alike.setdefault(_without_speeds(scenario), []).append(number)
    for numbers in alike.values():
        steps = _together(pipeline, schedule, [alone[number] for number in numbers])
        found.update(zip(numbers, steps, strict=True))
    return [found[number] for number in range(len(scenarios))]


def _shares_links(scenario: Scenario) -> bool:
    return scenario.pipelines > 1 and bool(scenario.topology.links)


def _alone(scenario: Scenario) -> Scenario:
    """With a pipeline's own share of every link, where it has one all the time."""
    if not _shares_links(scenario) or scenario.link_sharing != "spatial":
        return scenario
    return replace(scenario, pipelines=1, topology=divided(scenario.topology, scenario.pipelines))


def _without_speeds(scenario: Scenario) -> Scenario:
    links = tuple(Link(link.src_dc, link.dst_dc, 1, 0) for link in scenario.topology.links)
    return replace(scenario, topology=replace(scenario.topology, links=links))


def _together(pipeline: Pipeline, schedule: Schedule, scenarios: Sequence[Scenario]) -> list[StepTimes]:
    """Scenarios that differ in speed and latency of links only."""
    import numpy as np

    first = scenarios[0]
    compiled = Compiled(schedule, p2p_of(schedule, pipeline, first), first.topology, buffered=pipeline.buffered)
    costs = TaskCosts(pipeline, first, schedule)
    varying = np.array(costs.message_classes(compiled), np.int32)
    messages = [costs.message_ns(compiled, scenario.topology) for scenario in scenarios]
    values = np.array(messages, np.int64).reshape(len(scenarios), len(varying)).T
    last = compiled.graph.compute[compiled.graph.flow.first[1:] - 1]
    durations = Durations(costs.durations(compiled), varying, values)
    # The first compute needs nothing from another rank: it starts at 0, and the window with it.
    ends = compiled.ends(durations, last, costs.slowdown(compiled))
    tails = [costs.measured.tail(rank) for rank in range(schedule.shape.ranks)]
    return [_step(of_ranks, run_tails(of_ranks, tails)) for of_ranks in ends.T.tolist()]


def _step(ends_ns: list[int], tails: Sequence[Op]) -> StepTimes:
    window = max(ends_ns)
    return StepTimes(window, max([window, *(op.end_ns for op in tails)]))


def _of(timeline: Timeline) -> StepTimes:
    computes = timeline.computes()
    start = min(op.start_ns for op in computes)
    return StepTimes(max(op.end_ns for op in computes) - start, max(op.end_ns for op in timeline.ops) - start)
