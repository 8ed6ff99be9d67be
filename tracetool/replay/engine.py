"""The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.

Everything is int64 ns and ties are broken by task number, so equal input gives equal output.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleDeadlock
from tracetool.replay.graph import TaskKind
from tracetool.replay.native import compiled_engine

if TYPE_CHECKING:
    from tracetool.replay.flow import Int32s, Int64s
    from tracetool.replay.graph import TaskGraph

_HINT = "another --p2p mode may let it run"


@dataclass(frozen=True, slots=True)
class Times:
    """When each task ran, by task number; a MOVE over a link starts when the link takes the message."""

    start_ns: Int64s
    end_ns: Int64s


def run(graph: TaskGraph, durations: Int64s, link_of: Int32s, name: str) -> Times:
    """Run a task graph.

    Args:
        graph: Tasks and what they wait for.
        durations: Per task, its duration in ns.
        link_of: Per task, the number of the link that it occupies; -1 for none.
        name: What is run, for messages.

    Returns:
        Start and end of every task, in ns from the start of the first one.

    Raises:
        ScheduleDeadlock: If tasks are left that wait for each other, naming them per rank.
    """
    import numpy as np

    native = compiled_engine()
    links = int(link_of.max(initial=-1)) + 1
    if native is None:
        left, times = _run(graph, durations, link_of, links)
    else:
        times = Times(np.empty(graph.tasks, np.int64), np.empty(graph.tasks, np.int64))
        rows = graph.successors
        left = native.run(rows.first, rows.at, durations, link_of, links, times.start_ns, times.end_ns)
    if left:
        raise ScheduleDeadlock(
            f"{name} cannot finish: every rank waits.\n" + _stuck(graph, times.start_ns.tolist()), hint=_HINT
        )
    return times


def _run(graph: TaskGraph, durations: Int64s, link_of: Int32s, links: int) -> tuple[int, Times]:
    """How many tasks could not start, and when the others ran."""
    import numpy as np

    first, at = graph.successors.first.tolist(), graph.successors.at.tolist()
    needs = np.bincount(graph.after, minlength=graph.tasks).tolist()
    duration, link = durations.tolist(), link_of.tolist()
    start = [-1] * len(needs)
    end = [-1] * len(needs)
    free = [0] * links
    queue: list[tuple[int, int]] = []  # (end, task)

    def begin(task: int, now: int) -> None:
        if link[task] < 0:
            start[task] = now
            end[task] = now + duration[task]
        else:
            start[task] = max(now, free[link[task]])
            end[task] = free[link[task]] = start[task] + duration[task]
        heappush(queue, (end[task], task))

    for task, count in enumerate(needs):
        if count == 0:
            begin(task, 0)
    left = len(needs)
    while queue:
        now, task = heappop(queue)
        left -= 1
        for successor in at[first[task] : first[task + 1]]:
            needs[successor] -= 1
            if needs[successor] == 0:
                begin(successor, now)
    return left, Times(np.array(start, np.int64), np.array(end, np.int64))


def _stuck(graph: TaskGraph, start: list[int]) -> str:
    """Per rank, what it stands at: the message whose other side is not there, or the compute without input."""
    lines = []
    for rank in range(len(graph.flow.schedule.orders)):
        reason = _open_message(graph, start, rank) or _idle_compute(graph, start, rank)
        if reason:
            lines.append(f"  rank {rank} waits {reason}")
    return "\n".join(lines)


def _open_message(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    posts = zip(graph.send_post.tolist(), graph.recv_post.tolist(), strict=True)
    for message, (send, recv) in enumerate(posts):
        for mine, other, verb in ((send, recv, "send"), (recv, send, "receive")):
            if mine < 0 or other < 0 or graph.ranks[mine] != rank:
                continue
            if start[mine] >= 0 and start[other] < 0:
                return f"to {verb} {graph.flow.message(message)}: rank {graph.ranks[other]} is not there yet"
    return None


def _idle_compute(graph: TaskGraph, start: list[int], rank: int) -> str | None:
    for task, kind in enumerate(graph.kinds.tolist()):
        if graph.ranks[task] == rank and kind == TaskKind.COMPUTE and start[task] < 0:
            action = int(graph.subjects[task])
            needed = int(graph.flow.needed[action])
            is_sent = needed >= 0 and graph.flow.remote[needed]
            waits = str(graph.flow.message(needed)) if is_sent else "an action of its own that comes later"
            return f"at {graph.flow.actions[action]} for {waits}"
    return None
