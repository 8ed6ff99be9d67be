"""One schedule family over many links: every order is compiled once, and every depth searched for all links at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.depth import Tried, fits, search_depth, shortest_cycle_ns
from tracetool.errors import ScheduleDeadlock
from tracetool.metrics import Metrics
from tracetool.replay.scenarios import replay_many
from tracetool.schedules.geopipe import extra_per_rank
from tracetool.sweep.memory import memory_need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.depth import Depth, DepthSearch
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.replay.scenarios import StepTimes
    from tracetool.sweep.column import WarmUp
    from tracetool.sweep.memory import MemoryNeed


@dataclass(frozen=True, slots=True)
class Order:
    """An order and what it needs in memory."""

    schedule: Schedule
    memory: MemoryNeed


class Replays:
    """Replays of a named schedule in scenarios that differ in links and memory limits only.

    Args:
        pipeline: What was measured, with the stages that the schedule runs on.
        shape: Ranks, stages and microbatches.
        build: Makes the order, with extra forwards per rank where the schedule has them.
        scenarios: What is asked for.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        shape: PipelineShape,
        build: Callable[[Depth | None], Schedule],
        scenarios: Sequence[Scenario],
    ) -> None:
        self._pipeline = pipeline
        self._build = build
        self._shape = shape
        self._scenarios = scenarios
        unlimited: dict[Scenario, int] = {}
        self._link_of = [unlimited.setdefault(replace(s, hbm_bytes=None), len(unlimited)) for s in scenarios]
        self._links = list(unlimited)
        self._orders: dict[Depth | None, Order] = {}
        self._times: dict[tuple[Depth | None, int], StepTimes] = {}
        self._stuck: dict[Depth | None, ScheduleDeadlock] = {}

    def order(self, extra: Depth | None) -> Order:
        """The order with these extra forwards.

        Raises:
            ScheduleError: If there is none for this shape, or its costs are unknown.
        """
        if extra not in self._orders:
            schedule = self._build(extra)
            self._orders[extra] = Order(schedule, memory_need(self._pipeline, schedule, self._scenarios[0]))
        return self._orders[extra]

    def load(self, wanted: Mapping[Depth | None, Iterable[int]]) -> None:
        """Replay orders in scenarios, by number; what is known already is not replayed again.

        Raises:
            ScheduleError: If there is no such order, or its costs are unknown.
            ScenarioError: If a message crosses a link but its size is unknown.
        """
        for extra, numbers in wanted.items():
            links = {self._link_of[number] for number in numbers}
            missing = sorted(link for link in links if (extra, link) not in self._times)
            if not missing or extra in self._stuck:
                continue
            schedule = self.order(extra).schedule
            try:
                found = replay_many(self._pipeline, schedule, [self._links[link] for link in missing])
            except ScheduleDeadlock as error:
                self._stuck[extra] = error  # links are the same but for their figures: all deadlock or none
            else:
                self._times.update(((extra, link), times) for link, times in zip(missing, found, strict=True))

    def metrics(self, extra: Depth | None, number: int) -> Metrics:
        """Metrics of an order in a scenario, by number; without compute by rank.

        Raises:
            ScheduleDeadlock: If it deadlocks.
        """
        if extra in self._stuck:
            raise self._stuck[extra]
        times, memory, ranks = self._times[extra, self._link_of[number]], self.order(extra).memory, self._shape.ranks
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

    def depths(self, warm_up: WarmUp) -> list[tuple[Depth, str | None]]:
        """Extra forwards of geopipe in each scenario, and in words what limited them.

        Args:
            warm_up: As ``Grid`` says it; None chooses as ``choose_depth`` does.
        """
        if isinstance(warm_up, int):
            boundaries = self._scenarios[0].topology.boundaries()
            return [(extra_per_rank(self._shape.ranks, dict.fromkeys(boundaries, warm_up)), None)] * len(
                self._scenarios
            )
        if warm_up is not None:
            return [(warm_up, None)] * len(self._scenarios)
        return self._chosen()

    def _chosen(self) -> list[tuple[Depth, str | None]]:
        cycle = shortest_cycle_ns(self._pipeline)
        found: dict[int, tuple[Depth, str | None]] = {}
        asked: dict[int, list[Depth]] = {}
        searches: list[DepthSearch] = []
        for number, scenario in enumerate(self._scenarios):
            search = search_depth(self._pipeline, self._shape, scenario, cycle)
            searches.append(search)
            try:
                asked[number] = next(search)
            except StopIteration as done:
                found[number] = done.value
        while asked:
            wanted: dict[Depth | None, list[int]] = {}
            for number, extras in asked.items():
                for extra in extras:
                    wanted.setdefault(extra, []).append(number)
            self.load(wanted)
            for number, extras in list(asked.items()):
                try:
                    asked[number] = searches[number].send([self._tried(extra, number) for extra in extras])
                except StopIteration as done:
                    found[number] = done.value
                    del asked[number]
        return [found[number] for number in range(len(self._scenarios))]

    def _tried(self, extra: Depth, number: int) -> Tried | None:
        if extra in self._stuck:
            return None
        scenario = self._scenarios[number]
        return Tried(self._times[extra, self._link_of[number]].step_ns, fits(self.metrics(extra, number), scenario)[0])
