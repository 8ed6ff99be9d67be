"""The event loop: tasks start when what they wait for has ended; links serve messages first come, first served.

Everything is int64 ns and ties are broken by task number, so equal input gives equal output.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from tracetool.errors import ScheduleDeadlock
from tracetool.model.action import Action
from tracetool.replay.graph import TaskKind
from tracetool.replay.program import Message

if TYPE_CHECKING:
    from tracetool.model.topology import Link
    from tracetool.replay.graph import TaskGraph


class Costs(Protocol):
    """What the event loop asks about a task."""

    def action_ns(self, action: Action) -> int:
        """Compute time of an action."""

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
    needs = list(graph.needs)
    start = [-1] * len(needs)
    end = [-1] * len(needs)
    free: dict[tuple[str, str], int] = {}
    queue: list[tuple[int, int]] = []  # (end, task)

    def begin(task: int, now: int) -> None:
        start[task] = now
        kind, subject = graph.kinds[task], graph.subjects[task]
        duration = 0
        if isinstance(subject, Action):
            duration = costs.action_ns(subject)
        elif isinstance(subject, Message):
            link = costs.link(subject)
            if kind is TaskKind.ARRIVE:
                duration = 0 if link is None else link.latency_ns
            elif link is None:
                duration = costs.transfer_ns(subject)
            else:
                key = link.src_dc, link.dst_dc
                start[task] = max(now, free.get(key, 0))
                duration = link.occupancy_ns(costs.link_bytes(subject))
                free[key] = start[task] + duration
        end[task] = start[task] + duration
        heappush(queue, (end[task], task))

    for task, count in enumerate(needs):
        if count == 0:
            begin(task, 0)
    left = len(needs)
    while queue:
        now, task = heappop(queue)
        left -= 1
        for successor in graph.successors[task]:
            needs[successor] -= 1
            if needs[successor] == 0:
                begin(successor, now)
    if left:
        raise ScheduleDeadlock(f"{name} cannot finish: every rank waits.\n" + _stuck(graph, start), hint=_HINT)
    return Times(start, end)


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
            if mine is None or other is None or graph.ranks[mine] != rank:
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
