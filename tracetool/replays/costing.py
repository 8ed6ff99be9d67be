"""What the tasks of a compiled schedule take in a scenario.

What launching adds to a schedule, where hosts wait for their devices after each blocking batch of messages.

Such a host begins each time with an idle device. It gets ahead while kernels take longer than their launches, and
what the device waits until then is the action's lag. Where no batch stands between two actions, the second has the
lead that the first one left. Other ways to issue messages let hosts run ahead: they lag at the start of a step only.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from tracetool.costs.measured import MeasuredCosts
from tracetool.replays.flow import FORWARD, Slowdown
from tracetool.replays.graph import TaskKind
from tracetool.replays.tail import LinkQueues, run_tails

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.action import Action
    from tracetool.model.pipeline import Launch, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import RankOp, TailCollective
    from tracetool.model.topology import Topology
    from tracetool.network.link import Path
    from tracetool.replays.compiled import Compiled, Way
    from tracetool.replays.flow import Int64s, Message


@dataclass(frozen=True, slots=True)
class Launching:
    """Per action of a compiled schedule, by number.

    Attributes:
        waits_ns: From the end of a batch ahead of it to its first kernel; 0 where batches do not block.
        lags_ns: How long its kernels wait for their launches.
    """

    waits_ns: list[int]
    lags_ns: list[int]


def launching(
    compiled: Compiled, launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]
) -> Launching:
    """Go through each rank's actions in turn, with the lead that its host has.

    Args:
        compiled: The schedule.
        launch_of: What launching an action takes; None if nothing is known of it.
        alone_ns: What the action takes by itself.
    """
    import numpy as np

    graph = compiled.graph
    posts = np.cumsum(graph.kinds == TaskKind.POST)[graph.compute].tolist()
    flow = graph.flow
    waits, lags = [0] * len(flow.actions), [0] * len(flow.actions)
    for first, end in zip(flow.first[:-1].tolist(), flow.first[1:].tolist(), strict=True):
        if not compiled.waits and _is_behind(flow.actions[first:end], launch_of, alone_ns):
            lags[first:end] = [_behind_ns(action, launch_of, alone_ns) for action in flow.actions[first:end]]
            continue
        lead: int | None = 0  # of the host over the device; None once messages have let it run ahead
        for number in range(first, end):
            action = flow.actions[number]
            launch = launch_of(action)
            if launch is None:
                lead = None
                continue
            has_batch = number > first and posts[number] > posts[number - 1]
            if compiled.waits:
                waits[number] = launch.sync_ns
                lead = 0 if has_batch or lead is None else lead
            elif flow.needed[number] >= 0 or flow.kind[number] != FORWARD:
                lead = None
            if lead is None:
                continue
            starts = number == first or (has_batch and compiled.waits)
            begins = 0 if starts else launch.turn_ns - lead
            lags[number] = max(0, begins + launch.lag_ns)
            lead = lags[number] + alone_ns(action) - begins - launch.issue_ns
    return Launching(waits, lags)


def _is_behind(
    actions: Sequence[Action], launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]
) -> bool:
    """Whether a host needs longer for all launches of a rank than the device for their kernels: it never gets ahead."""
    launches = [launch_of(action) for action in actions]
    return sum(launch.turn_ns + launch.issue_ns for launch in launches if launch) > sum(map(alone_ns, actions))


def _behind_ns(action: Action, launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]) -> int:
    launch = launch_of(action)
    return 0 if launch is None else max(0, launch.turn_ns + launch.issue_ns - alone_ns(action))


class TaskCosts:
    """Fills the cost classes of a compiled schedule from measured costs and the scenario's links.

    Attributes:
        measured: Costs of actions and messages.
    """

    def __init__(self, pipeline: Pipeline, scenario: Scenario, schedule: Schedule) -> None:
        self.measured = MeasuredCosts(pipeline, scenario, schedule)
        self._loads = tuple(profile.load for profile in pipeline.ranks)
        self._interference = scenario.interference
        self._topology = scenario.topology
        self._hosts_wait = pipeline.hosts_wait
        self._shape = schedule.shape
        ranks = range(schedule.shape.ranks)
        self._tails = [self.measured.tail(rank) for rank in ranks]
        self._overlapped = [self.measured.overlapped(rank) for rank in ranks]

    def tails(self, ends_ns: Sequence[int], collectives: list[TailCollective] | None = None) -> list[RankOp]:
        """What follows the last compute of each rank, given when that ended.

        Args:
            ends_ns: When.
            collectives: Takes up when each collective ran; by default nobody asks.
        """
        if not self.measured.crosses:
            return run_tails(ends_ns, self._tails, collectives=collectives)
        queues = LinkQueues(self.measured.over_links)
        return run_tails(ends_ns, self._tails, self._overlapped, queues, collectives)

    def durations(self, compiled: Compiled) -> Int64s:
        """Per cost class, its duration in ns; of an action, by itself.

        Raises:
            ScenarioError: If a message crosses a link but its size is unknown.
            UnsupportedShape: If the trace does not tell what an action costs.
        """
        import numpy as np

        durations = np.zeros(compiled.classes, np.int64)
        actions = compiled.graph.flow.actions
        added = self._launching(compiled)
        lags = added.lags_ns if added else [0] * len(actions)
        durations[1 : len(actions) + 1] = [
            self._action_ns(action)[0] + lag for action, lag in zip(actions, lags, strict=True)
        ]
        if added and compiled.waits:
            durations[compiled.first_wait :] = added.waits_ns
        durations[self.message_classes(compiled)] = self.message_ns(compiled, self._topology)
        return durations

    def slowdown(self, compiled: Compiled) -> Slowdown | None:
        """By what computes take longer; None if none does."""
        import numpy as np

        both = np.array([self._action_ns(action) for action in compiled.graph.flow.actions], np.int64)
        added = self._launching(compiled)
        if added:
            both += np.array(added.lags_ns, np.int64)[:, None]
        if not self._interference or (not any(self._loads) and (both[:, 1] <= both[:, 0]).all()):
            return None
        return Slowdown(both[:, 1].copy(), self._loads)

    def _launching(self, compiled: Compiled) -> Launching | None:
        """What launching adds; None where hosts were not seen to wait for their devices."""
        if not self._hosts_wait:
            return None
        return launching(compiled, self.measured.launch_of, lambda action: self._action_ns(action)[0])

    def _action_ns(self, action: Action) -> tuple[int, int]:
        """Compute time of an action by itself, and beside a communication kernel from start to end."""
        cost = self.measured.action(action)
        alone = cost.duration_ns if cost.uncontended_ns is None else cost.uncontended_ns
        return alone, max(alone, cost.contended_ns or 0) if self._interference else alone

    @staticmethod
    def message_classes(compiled: Compiled) -> list[int]:
        """The cost classes that ``message_ns`` fills."""
        return [number for way in compiled.ways for number in way.classes]

    def message_ns(self, compiled: Compiled, topology: Topology) -> list[int]:
        """What the classes of each way of messages take over a topology's links, of which free ones take no time.

        Raises:
            ScenarioError: If a message crosses a link but its size is unknown.
        """
        return [ns for way in compiled.ways for ns in self._way_ns(way, topology, buffered=compiled.buffered)]

    def _way_ns(self, way: Way, topology: Topology, *, buffered: bool) -> list[int]:
        transfer = self.measured.transfer_ns(way.message.src_stage, way.message.kind)
        if way.path is None:
            return [transfer, 0, transfer]
        links = self._path(topology, way.message)
        if not links:
            return [0, transfer, transfer if buffered else 0, *[0, 0] * len(way.further)]
        size = self._link_bytes(way.message)
        # What a message takes inside a DC (copies, launch) it takes over links as well.
        if len(links) == 1:
            return [links[0].occupancy_ns(size), links[0].latency_ns + transfer, transfer]
        first, *occupied = [link.occupancy_ns(size) for link in links]
        *latencies, latest = [link.latency_ns for link in links]
        copy = transfer if buffered else max(first, *occupied) - first
        return [first, latest + transfer, copy, *chain(*zip(latencies, occupied, strict=True))]

    def path(self, message: Message) -> Path | None:
        """The links a message passes; None inside a DC."""
        return self._path(self._topology, message)

    def _path(self, topology: Topology, message: Message) -> Path | None:
        rank_of = self._shape.rank_of
        return topology.path(rank_of(message.src_stage), rank_of(message.dst_stage))

    def _link_bytes(self, message: Message) -> int:
        so = "their time over a link is unknown"
        return self.measured.link_bytes(message.src_stage, message.kind, so)
