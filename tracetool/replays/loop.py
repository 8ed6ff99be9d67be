"""The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.

Everything is int64 ns and ties are broken by task number, so equal input gives equal output. ``_engine_loop.h`` does
the same, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tracetool.replays.graph import TaskKind

if TYPE_CHECKING:
    from tracetool.model.action import ActionKind
    from tracetool.model.load import SustainedLoad
    from tracetool.replays.flow import Int32s, Int64s, Slowdown
    from tracetool.replays.graph import TaskGraph


class Loop:
    """One run of the event loop.

    Args:
        graph: Tasks and what they wait for.
        durations: Per task, its duration in ns; of a compute, by itself.
        link_of: Per task, the number of the link that it occupies; -1 for none.
        slowdown: By what computes take longer, if they do.

    Attributes:
        start: Per task, when it started; -1 if it never did.
        end: Per task, when it ended.
    """

    def __init__(self, graph: TaskGraph, durations: Int64s, link_of: Int32s, slowdown: Slowdown | None) -> None:
        import numpy as np

        self.start = [-1] * graph.tasks
        self.end = [-1] * graph.tasks
        self._first, self._at = graph.successors.first.tolist(), graph.successors.at.tolist()
        self._needs: list[int] = np.bincount(graph.after, minlength=graph.tasks).tolist()
        self._durations: list[int] = durations.tolist()
        self._link_of: list[int] = link_of.tolist()
        self._free = [0] * (int(link_of.max(initial=-1)) + 1)  # per link, when it is free again
        onward = graph.onward
        self._heads: dict[int, int] = dict(zip(onward.leaving.tolist(), onward.head.tolist(), strict=True))
        for head in self._heads.values():
            self._needs[head] = 1  # the start of a MOVE
        self._devices = None if slowdown is None else _Devices(graph, slowdown)
        self._queue: list[tuple[int, int]] = []  # (end, task)

    def run(self) -> int:
        """Run every task that can start; how many could not."""
        needs, end, devices, queue = self._needs, self.end, self._devices, self._queue
        first, at = self._first, self._at
        for task, count in enumerate(needs):
            if count == 0:
                self._begin(task, 0)
        left = len(needs)
        done = bytearray(left)
        while queue:
            now, task = heappop(queue)
            if done[task] or now != end[task]:
                continue  # slowed down or sped up meanwhile
            done[task] = 1
            left -= 1
            if devices is not None:
                for other, its_end in devices.finish(task, now):
                    if end[other] != its_end:
                        self._until(other, its_end)
            for successor in at[first[task] : first[task + 1]]:
                needs[successor] -= 1
                if needs[successor] == 0:
                    self._begin(successor, now)
        return left

    def work(self) -> list[float]:
        """Per rank, its computes' times by themselves, weighted by their load; 0 if nothing is known of that."""
        return self._devices.work() if self._devices is not None else []

    def _begin(self, task: int, now: int) -> None:
        link, duration = self._link_of[task], self._durations[task]
        if link >= 0:
            now = max(now, self._free[link])
            self._free[link] = now + duration
            head = self._heads.get(task)
            if head is not None:
                self._begin(head, now)
        elif self._devices is not None and self._devices.is_compute(task):
            duration = self._devices.begin(task, now, duration)
        self.start[task] = now
        self._until(task, now + duration)

    def _until(self, task: int, end: int) -> None:
        self.end[task] = end
        heappush(self._queue, (end, task))


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


class _Devices:
    """What slows computes down: communication kernels beside them, and sustained load."""

    def __init__(self, graph: TaskGraph, slowdown: Slowdown) -> None:
        ranks = len(slowdown.loads)
        self._graph = graph
        self._kinds: list[int] = graph.kinds.tolist()
        self._ranks: list[int] = graph.ranks.tolist()
        self._leaves: list[int] = graph.leaves.tolist()
        self._contended: list[int] = slowdown.contended.tolist()
        self._beside = [0] * ranks  # communication kernels on the rank's device
        self._has_come = bytearray(graph.tasks)  # per POST
        self._has_left = bytearray(graph.tasks)  # per POST
        self._works: list[_Work | None] = [None] * ranks
        loads = zip(slowdown.loads, slowdown.step_loads or (0.0,) * ranks, strict=True)
        self._loads = [None if load is None else _LoadState(load, average) for load, average in loads]

    def work(self) -> list[float]:
        """Per rank, its computes' times by themselves, weighted by their load."""
        return [0.0 if state is None else state.work for state in self._loads]

    def is_compute(self, task: int) -> bool:
        """Whether a task is one that may slow down."""
        return self._kinds[task] == TaskKind.COMPUTE

    def begin(self, task: int, now: int, alone: int) -> int:
        """Start a compute; how long it takes if its device stays as it is."""
        rank, contended = self._ranks[task], self._contended[task]
        state = self._loads[rank]
        if state is not None:
            factor = state.begin(now, self._graph.action(task).kind, alone)
            alone, contended = round(alone * factor), round(contended * factor)
        if contended <= alone or not alone:
            return alone
        self._works[rank] = _Work(task, alone * contended, alone, contended, now)
        return contended if self._beside[rank] else alone

    def finish(self, task: int, now: int) -> list[tuple[int, int]]:
        """End a task; the computes whose pace changes by that, and when they will end."""
        rank, left = self._ranks[task], self._leaves[task]
        changed: list[tuple[int, int]] = []
        kind = self._kinds[task]
        if kind == TaskKind.COMPUTE:
            state = self._loads[rank]
            if state is not None:
                state.end(now)
            self._works[rank] = None
        elif kind == TaskKind.POST and not self._has_left[task]:
            self._has_come[task] = 1
            changed += self._change(rank, now, 1)
        if left >= 0:
            self._has_left[left] = 1
            if self._has_come[left]:
                changed += self._change(self._ranks[left], now, -1)
        return changed

    def _change(self, rank: int, now: int, by: int) -> list[tuple[int, int]]:
        """A communication kernel comes to a device or leaves it: the compute there goes on at another pace."""
        before = self._beside[rank] > 0
        self._beside[rank] += by
        after = self._beside[rank] > 0
        work = self._works[rank]
        if work is None or before == after:
            return []
        work.left -= (now - work.since_ns) * work.pace(beside=before)
        work.since_ns = now
        return [(work.task, now + -(-work.left // work.pace(beside=after)))]
