"""A schedule and a p2p mode, compiled once for the replay of many scenarios.

What a task costs is told by its cost class: one class for each action (stage, kind, microbatch), and for each way that
messages take (the stage that sends them and the direction) one for MOVE, one for ARRIVE and one for COPY, and two for
each further link.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from tracetool.replays.engine import Times, compiled_engine, run
from tracetool.replays.graph import TaskKind, build_graph
from tracetool.replays.sweeping import Durations, NodeOrder, make_plan, sweep

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.model.topology import Topology
    from tracetool.network.link import Link, Path
    from tracetool.replays.flow import Bools, Int32s, Int64s, Message, Slowdown
    from tracetool.replays.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class Way:
    """What all messages of one stage and direction have in common.

    Attributes:
        message: One of them.
        move: Cost class of their MOVE: over a link, how long each occupies it.
        arrive: Cost class of their ARRIVE.
        copy: Cost class of their COPY, if they have one.
        path: The links they pass; None inside a DC.
        further: Per further link, the cost classes of the way there (the latency of the link before) and of the MOVE
            over it.
    """

    message: Message
    move: int
    arrive: int
    copy: int
    path: Path | None
    further: tuple[tuple[int, int], ...] = ()

    @property
    def classes(self) -> tuple[int, ...]:
        """All of them: MOVE, ARRIVE, COPY, then link by link."""
        return self.move, self.arrive, self.copy, *chain.from_iterable(self.further)


class Compiled:
    """A task graph with cost classes, ready to be replayed.

    Args:
        schedule: The order.
        mode: How transfers are issued.
        topology: With the links that messages may go over.
        buffered: Whether a send that is issued alone ends without its receive.
        hosts_wait: Whether hosts wait for their devices after batches of messages, where those block.

    Attributes:
        graph: The tasks.
        name: What it is, for messages.
        buffered: Whether a send that is issued alone ends without its receive.
        waits: Whether hosts wait after batches: then what ends one (its DONE) takes time.
        first_wait: Cost class of such an end ahead of action 0; that ahead of action n is n further on.
        class_of: Per task, its cost class. Class 0 takes no time; class 1 + n is action n of ``graph.flow``.
        classes: Number of cost classes.
        link_of: Per task, the number of the link it occupies; -1 for none. A message occupies those of its path in
            turn, by a task each.
        ways: The ways that messages take.
    """

    def __init__(
        self,
        schedule: Schedule,
        mode: P2PMode,
        topology: Topology,
        *,
        buffered: bool = False,
        interwoven: bool = False,
        hosts_wait: bool = False,
    ) -> None:
        self.graph = build_graph(
            schedule,
            mode,
            lambda m: None if (path := _path(schedule, topology, m)) is None else len(path),
            buffered=buffered,
            interwoven=interwoven,
        )
        self.name = f"schedule {schedule.name!r} with {mode} transfers"
        self.class_of, self.classes, self.ways = _classes(self.graph, schedule, topology)
        self.buffered = buffered
        self.waits = hosts_wait and mode == "grouped"
        self.first_wait = self.classes
        if self.waits:
            self._class_waits()
        self.link_of = _links(self.class_of, self.classes, self.ways)

    def _class_waits(self) -> None:
        """Give what ends a batch the class of the action that follows on its rank."""
        import numpy as np

        graph = self.graph
        done = np.flatnonzero(graph.kinds == TaskKind.DONE)
        following = np.searchsorted(graph.compute, done)
        follows = following < len(graph.compute)
        follows[follows] = graph.ranks[graph.compute[following[follows]]] == graph.ranks[done[follows]]
        self.class_of[done[follows]] = self.first_wait + following[follows]
        self.classes += len(graph.compute)

    def times(self, durations: Int64s, slowdown: Slowdown | None = None) -> Times:
        """When every task runs.

        Args:
            durations: Per cost class, in ns; of a compute, by itself.
            slowdown: By what computes take longer, if they do.

        Raises:
            ScheduleDeadlock: If tasks wait for each other.
        """
        import numpy as np

        per_task = durations[self.class_of]
        plan = self.static_plan if slowdown is None and compiled_engine() is not None else None
        if plan is None:
            return self._run(durations, slowdown)
        ends, _ = sweep(plan, Durations(durations), np.arange(self.graph.tasks, dtype=np.int32))
        return Times(ends[:, 0] - per_task, ends[:, 0])

    def ends(self, durations: Durations, wanted: Int32s, slowdown: Slowdown | None = None) -> Int64s:
        """Ends of some tasks in many scenarios.

        Links that several pairs of ranks share serve them in the order of the first scenario where that order is
        theirs, strictly; scenarios where it is not go through the event loop, as all do where compute slows down. The
        result is the event loop's.

        Args:
            durations: Of every scenario.
            wanted: The tasks.
            slowdown: By what computes take longer in every scenario, if they do.

        Returns:
            Tasks by scenarios, in ns from the start of the first task.

        Raises:
            ScheduleDeadlock: If tasks wait for each other.
        """
        return self.ends_and_compute(durations, wanted, slowdown)[0]

    def ends_and_compute(
        self, durations: Durations, wanted: Int32s, slowdown: Slowdown | None = None, parts: int = 1
    ) -> tuple[Int64s, Int64s]:
        """What ``ends`` gives, and by part and scenario how long its ranks compute, summed.

        Args:
            durations: As ``ends`` has them.
            wanted: As ``ends`` has them.
            slowdown: As ``ends`` has it.
            parts: Equal parts that the ranks make up, one after another: pipelines side by side.
        """
        import numpy as np

        plan = self._plan(durations) if slowdown is None else None
        computes = self.graph.compute
        failed: Bools
        if plan is None:
            out, failed = np.empty((len(wanted), durations.scenarios), np.int64), np.ones(durations.scenarios, bool)
            busy = np.empty((parts, durations.scenarios), np.int64)
        else:
            out, failed = sweep(plan, durations, wanted)
            whole = durations.sums(np.bincount(self.class_of[computes], minlength=self.classes))
            busy = np.repeat((whole // parts)[None], parts, axis=0)
        for scenario in np.flatnonzero(failed).tolist():
            times = self._run(durations.of(scenario), slowdown)
            out[:, scenario] = times.end_ns[wanted]
            busy[:, scenario] = (times.end_ns[computes] - times.start_ns[computes]).reshape(parts, -1).sum(axis=1)
        return out, busy

    def _run(self, durations: Int64s, slowdown: Slowdown | None) -> Times:
        """One scenario through the event loop."""
        per_task = durations[self.class_of]
        slowed = None
        if slowdown is not None:
            contended = per_task.copy()
            contended[self.graph.compute] = slowdown.contended
            slowed = replace(slowdown, contended=contended)
        return run(self.graph, per_task, self.link_of, self.name, slowed)

    def _plan(self, durations: Durations) -> NodeOrder | None:
        """The static order, or the one of the first scenario."""
        if self.static_plan is not None:
            return self.static_plan
        starts = self._run(durations.of(0), None).start_ns
        return make_plan(self.graph, self.class_of, self.link_of, starts)

    @cached_property
    def static_plan(self) -> NodeOrder | None:
        """The order of everything, if the graph alone gives it: links serve one pair of ranks each."""
        return make_plan(self.graph, self.class_of, self.link_of, None)


def _path(schedule: Schedule, topology: Topology, message: Message) -> Path | None:
    rank_of = schedule.shape.rank_of
    return topology.path(rank_of(message.src_stage), rank_of(message.dst_stage))


def _classes(graph: TaskGraph, schedule: Schedule, topology: Topology) -> tuple[Int32s, int, tuple[Way, ...]]:
    """Per task its cost class, their number, and the ways of messages."""
    import numpy as np

    flow = graph.flow
    class_of = np.zeros(graph.tasks, np.int32)
    actions = len(flow.actions)
    class_of[graph.compute] = np.arange(1, actions + 1)
    _, sample, way = np.unique(flow.edge, return_index=True, return_inverse=True)
    sent = np.flatnonzero(flow.remote)
    classes = actions + 1 + 3 * len(sample)
    first_further = np.zeros(len(sample), np.int32)
    ways = []
    for number, message in enumerate(map(flow.message, sample.tolist())):
        move, arrive, copy = range(actions + 1 + 3 * number, actions + 4 + 3 * number)
        if flow.remote[sample[number]]:
            path = _path(schedule, topology, message)
            further = tuple((at, at + 1) for at in range(classes, classes + 2 * len((path or ())[1:]), 2))
            ways.append(Way(message, move, arrive, copy, path, further))
            first_further[number] = classes
            classes += 2 * len(further)
    for place, tasks in enumerate((graph.move, graph.arrive, graph.copy)):
        made = sent[tasks[sent] >= 0]
        class_of[tasks[made]] = actions + 1 + 3 * way[made] + place
    onward = graph.onward
    class_of_way = first_further[way[onward.message]] + 2 * (onward.number - 1)
    class_of[onward.head] = class_of[onward.tail] = class_of_way
    class_of[onward.move] = class_of_way + 1
    return class_of, classes, tuple(ways)


def _links(class_of: Int32s, classes: int, ways: tuple[Way, ...]) -> Int32s:
    """Per task, the number of the link it occupies."""
    import numpy as np

    numbers: dict[Link, int] = {}
    link_of_class = np.full(classes, -1, np.int32)
    for way in ways:
        moves = way.move, *(move for _, move in way.further)
        for move, link in zip(moves, way.path or (), strict=False):
            link_of_class[move] = numbers.setdefault(link, len(numbers))
    return link_of_class[class_of]
