"""The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.

Everything is int64 ns and ties are broken by task number, so equal input gives equal output.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from tracetool.errors import ScheduleDeadlock
from tracetool.model.action import Action, ActionKind
from tracetool.replay.graph import TaskKind
from tracetool.replay.program import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.load import SustainedLoad
    from tracetool.model.topology import Link
    from tracetool.replay.graph import TaskGraph


class Costs(Protocol):
    """What the event loop asks about a task."""

    def action_ns(self, action: Action) -> tuple[int, int]:
        """Compute time of an action by itself, and beside a communication kernel from start to end."""

    def load(self, rank: int) -> SustainedLoad | None:
        """How a pipeline rank's device slows down under sustained load, if it does."""

    def transfer_ns(self, message: Message) -> int:
        """Time of a message that crosses no link."""

    def link(self, message: Message) -> Link | None:
        """The link a message crosses, if any."""

    def link_bytes(self, message: Message) -> int:
        """Bytes of a message that crosses a link."""


_HINT = "another --p2p mode may let it run"


@dataclass(frozen=True, slots=True)
class Times:
    """When each task ran, by task number; a MOVE over a link starts when the link takes the message."""

    start_ns: list[int]
    end_ns: list[int]


def run(graph: TaskGraph, costs: Costs, name: str) -> Times:
    """Run a task graph.

    Args:
        graph: Tasks and what they wait for.
        costs: Durations and links.
        name: What is run, for messages.

    Returns:
        Start and end of every task, in ns from the start of the first one.

    Raises:
        ScheduleDeadlock: If tasks are left that wait for each other, naming them per rank.
    """
    loop = _Loop(graph, costs)
    left = loop.run()
    if not left and any(loop.loads):
        # How long the step is decides how warm devices are, and that how long it is: once more is near enough.
        loop = _Loop(graph, costs, loop.step_loads())
        left = loop.run()
    if left:
        raise ScheduleDeadlock(f"{name} cannot finish: every rank waits.\n" + _stuck(graph, loop.start), hint=_HINT)
    return Times(loop.start, loop.end)


@dataclass(slots=True)
class _Work:
    """A compute that runs: ``left`` units of work, of which it does ``contended_ns`` per ns by itself.

    Beside a communication kernel it does ``alone_ns`` units per ns, so that its whole work, the product of the two
    times, takes exactly either of them.
    """

    task: int
    left: int
    alone_ns: int
    contended_ns: int
    since_ns: int

    def pace(self, *, beside: bool) -> int:
        """Units per ns."""
        return self.alone_ns if beside else self.contended_ns


@dataclass(slots=True)
class _LoadState:
    """The moving average of one rank's load."""

    model: SustainedLoad
    step_load: float
    average: float = 0.0
    work: float = 0.0
    since_ns: int = -1
    begun_ns: int = 0
    alone_ns: int = 0
    full: float = 0.0

    def begin(self, now: int, kind: ActionKind, alone_ns: int) -> float:
        """Start an action; by what its time grows."""
        model = self.model
        idle = self.since_ns < 0
        self.average = model.start_load if idle else model.after(self.average, now - self.since_ns, 0.0)
        self.begun_ns, self.full = now, model.load_of(kind)
        factor = model.factor(self.average, alone_ns, self.full, self.step_load)
        self.alone_ns = round(alone_ns * factor)
        self.work += self.full * self.alone_ns
        return factor

    def end(self, now: int) -> None:
        """End it: beside a communication kernel it brought less load."""
        duration = max(1, now - self.begun_ns)
        brought = self.full * min(1.0, self.alone_ns / duration)
        self.average, self.since_ns = self.model.after(self.average, duration, brought), now


class _Loop:
    """One run of the event loop."""

    def __init__(self, graph: TaskGraph, costs: Costs, step_loads: Sequence[float] | None = None) -> None:
        count = len(graph.needs)
        self.start = [-1] * count
        self.end = [-1] * count
        self._graph = graph
        self._costs = costs
        self._needs = list(graph.needs)
        self._done = bytearray(count)
        self._queue: list[tuple[int, int]] = []  # (end, task)
        self._free: dict[tuple[str, str], int] = {}
        ranks = max(graph.ranks, default=-1) + 1
        self._beside = [0] * ranks  # communication kernels on the rank's device
        self._works: list[_Work | None] = [None] * ranks
        averages = step_loads or [0.0] * ranks
        self.loads = [_LoadState(load, averages[rank]) if (load := costs.load(rank)) else None for rank in range(ranks)]
        self._stays = set(graph.leaves)
        self._leaves: dict[int, list[int]] = {}  # ranks whose device a communication kernel leaves with a task
        for post, task in graph.leaves.items():
            self._leaves.setdefault(task, []).append(graph.ranks[post])

    def run(self) -> int:
        """Run every task that can start; how many could not."""
        for task, count in enumerate(self._needs):
            if count == 0:
                self._begin(task, 0)
        left = len(self._needs)
        while self._queue:
            now, task = heappop(self._queue)
            if self._done[task] or now != self.end[task]:
                continue  # slowed down or sped up meanwhile
            self._done[task] = 1
            left -= 1
            self._finish(task, now)
            for successor in self._graph.successors[task]:
                self._needs[successor] -= 1
                if self._needs[successor] == 0:
                    self._begin(successor, now)
        return left

    def step_loads(self) -> list[float]:
        """Average load of each rank, from the first compute to the last one."""
        computes = [i for i, kind in enumerate(self._graph.kinds) if kind is TaskKind.COMPUTE]
        window = max(self.end[i] for i in computes) - min(self.start[i] for i in computes)
        return [0.0 if state is None else state.work / max(1, window) for state in self.loads]

    def _begin(self, task: int, now: int) -> None:
        self.start[task] = now
        kind, subject = self._graph.kinds[task], self._graph.subjects[task]
        duration = 0
        if isinstance(subject, Action):
            self._compute(task, subject, now)
            return
        if isinstance(subject, Message):
            link = self._costs.link(subject)
            if kind is TaskKind.ARRIVE:
                # What a message takes inside a DC (copies, launch) it takes over a link as well.
                duration = 0 if link is None else link.latency_ns + self._costs.transfer_ns(subject)
            elif link is None or kind is TaskKind.COPY:
                duration = self._costs.transfer_ns(subject)
            else:
                key = link.src_dc, link.dst_dc
                self.start[task] = max(now, self._free.get(key, 0))
                duration = link.occupancy_ns(self._costs.link_bytes(subject))
                self._free[key] = self.start[task] + duration
        self._until(task, self.start[task] + duration)

    def _until(self, task: int, end: int) -> None:
        self.end[task] = end
        heappush(self._queue, (end, task))

    def _compute(self, task: int, action: Action, now: int) -> None:
        alone, contended = self._costs.action_ns(action)
        rank = self._graph.ranks[task]
        state = self.loads[rank]
        if state is not None:
            factor = state.begin(now, action.kind, alone)
            alone, contended = round(alone * factor), round(contended * factor)
        if contended <= alone or not alone:
            self._until(task, now + alone)
            return
        self._works[rank] = _Work(task, alone * contended, alone, contended, now)
        self._until(task, now + (contended if self._beside[rank] else alone))

    def _finish(self, task: int, now: int) -> None:
        rank = self._graph.ranks[task]
        state = self.loads[rank]
        if state is not None and self._graph.kinds[task] is TaskKind.COMPUTE:
            state.end(now)
        work = self._works[rank]
        if work is not None and work.task == task:
            self._works[rank] = None
        elif task in self._stays:
            self._change(rank, now, 1)
        for left in self._leaves.get(task, ()):
            self._change(left, now, -1)

    def _change(self, rank: int, now: int, by: int) -> None:
        """A communication kernel comes to a device or leaves it: the compute there goes on at another pace."""
        before = self._beside[rank] > 0
        self._beside[rank] += by
        after = self._beside[rank] > 0
        work = self._works[rank]
        if work is None or before == after:
            return
        work.left -= (now - work.since_ns) * work.pace(beside=before)
        work.since_ns = now
        end = now + -(-work.left // work.pace(beside=after))
        if end != self.end[work.task]:
            self._until(work.task, end)


def _stuck(graph: TaskGraph, start: list[int]) -> str:
    """Per rank, what it stands at: the message whose other side is not there, or the compute without input."""
    lines = []
    for rank in sorted(set(graph.ranks)):
        reason = _open_message(graph, start, rank) or _idle_compute(graph, start, rank)
        if reason:
            lines.append(f"  rank {rank} waits {reason}")
    return "\n".join(lines)


def _open_message(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    for message, tasks in graph.messages.items():
        sides = ((tasks.send_post, tasks.recv_post, "send"), (tasks.recv_post, tasks.send_post, "receive"))
        for mine, other, verb in sides:
            if graph.ranks[mine] != rank:
                continue
            if start[mine] >= 0 and start[other] < 0:
                return f"to {verb} {message}: rank {graph.ranks[other]} is not there yet"
    return None


def _idle_compute(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    for task, subject in enumerate(graph.subjects):
        if graph.ranks[task] == rank and isinstance(subject, Action) and start[task] < 0:
            inputs = [str(m) for m, t in graph.messages.items() if task in graph.successors[t.arrive]]
            return f"at {subject} for {' and '.join(inputs) or 'an action of its own that comes later'}"
    return None
