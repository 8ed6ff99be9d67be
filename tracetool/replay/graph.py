"""The task graph of a replay: what has to end before what can start."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from tracetool.model.action import Action
from tracetool.replay.program import Dataflow, Message, Post, build_program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule


class TaskKind(Enum):
    """Kind of a task.

    A message passes POST on each side (the rank is ready to send or receive), MOVE (both sides are: its bytes
    leave the sender, over a link once that is free) and ARRIVE (the link's latency; then the receiver can
    use them). DONE ends a post that others wait for.
    """

    COMPUTE = auto()
    POST = auto()
    MOVE = auto()
    ARRIVE = auto()
    DONE = auto()


Subject = Action | Message | Post


@dataclass(frozen=True, slots=True)
class MessageTasks:
    """The tasks of one message; ``recv_post`` is None where receives are posted ahead of time."""

    send_post: int
    recv_post: int | None
    move: int
    arrive: int


@dataclass(slots=True)
class TaskGraph:
    """Tasks by number; edges run from a task to those that wait for it.

    Attributes:
        kinds: Kind of each task.
        ranks: Pipeline rank of each task (of a message: the sender).
        subjects: The action, message or post it is about.
        successors: Tasks that wait for it.
        needs: How many tasks it waits for.
        messages: The tasks of each message.
    """

    kinds: list[TaskKind] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    subjects: list[Subject] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    messages: dict[Message, MessageTasks] = field(default_factory=dict)

    def add(self, kind: TaskKind, rank: int, subject: Subject) -> int:
        """Add a task and return its number."""
        self.kinds.append(kind)
        self.ranks.append(rank)
        self.subjects.append(subject)
        self.successors.append([])
        self.needs.append(0)
        return len(self.kinds) - 1

    def edge(self, before: int | None, after: int) -> None:
        """Let ``after`` wait for ``before``, if there is one."""
        if before is not None:
            self.successors[before].append(after)
            self.needs[after] += 1


def build_graph(schedule: Schedule, mode: P2PMode, crosses_link: Callable[[Message], bool]) -> TaskGraph:
    """Compile a schedule and a p2p mode.

    Args:
        schedule: The compute order.
        mode: How transfers are issued.
        crosses_link: Whether a message goes over a link between DCs.

    Raises:
        ScheduleDeadlock: If the order cannot be run in that mode.
    """
    builder = _Builder(schedule, mode, crosses_link)
    for rank, program in enumerate(build_program(schedule, mode)):
        builder.add_rank(rank, program)
    return builder.finish()


class _Builder:
    def __init__(self, schedule: Schedule, mode: P2PMode, crosses_link: Callable[[Message], bool]) -> None:
        self.graph = TaskGraph()
        self._mode = mode
        self._crosses_link = crosses_link
        self._flow = Dataflow(schedule)
        # Of two actions that run as one, the one whose task waits for the inputs of both, and the one that ends both.
        pairs = [unit for rank in range(len(schedule.overlaps)) for unit in schedule.units(rank) if unit[1:]]
        self._opens = {unit[1]: unit[0] for unit in pairs}
        self._closes = {unit[0]: unit[1] for unit in pairs}
        self._computes: dict[Action, int] = {}
        self._posts: dict[tuple[Message, bool], int] = {}
        self._done: dict[int, int] = {}

    def add_rank(self, rank: int, program: list[Action | Post]) -> None:
        graph = self.graph
        last_compute: int | None = None
        last_channel: int | None = None  # in-order: the post before on the rank's only channel
        blocker: int | None = None  # grouped: the batch that compute waits for
        for instruction in program:
            if isinstance(instruction, Action):
                task = graph.add(TaskKind.COMPUTE, rank, instruction)
                graph.edge(last_compute, task)
                graph.edge(blocker, task)
                self._computes[instruction] = last_compute = task
                blocker = None
                continue
            post = graph.add(TaskKind.POST, rank, instruction)
            graph.edge(last_compute, post)
            self._posts |= {(m, True): post for m in instruction.sends}
            self._posts |= {(m, False): post for m in instruction.recvs}
            if self._mode == "per-edge":
                continue
            graph.edge(last_channel, post)
            self._done[post] = last_channel = graph.add(TaskKind.DONE, rank, instruction)
            if self._mode == "grouped":
                blocker = last_channel

    def finish(self) -> TaskGraph:
        graph = self.graph
        for message in [m for m, is_send in self._posts if is_send]:
            send = self._posts[message, True]
            recv = self._posts.get((message, False))
            move = graph.add(TaskKind.MOVE, graph.ranks[send], message)
            arrive = graph.add(TaskKind.ARRIVE, graph.ranks[send], message)
            graph.edge(send, move)
            graph.edge(recv, move)
            graph.edge(move, arrive)
            if recv is not None:
                self._release(message, send, recv, move, arrive)
            graph.messages[message] = MessageTasks(send, recv, move, arrive)
        tasks = self._computes
        makers = {self._flow.makes(action): tasks[self._closes.get(action, action)] for action in tasks}
        for action in tasks:
            needed = self._flow.needs(action)
            if needed is not None:
                task = tasks[self._opens.get(action, action)]
                graph.edge(makers[needed] if self._flow.is_local(needed) else graph.messages[needed].arrive, task)
        return graph

    def _release(self, message: Message, send: int, recv: int, move: int, arrive: int) -> None:
        """Say when the two posts of a message are over."""
        edge, done = self.graph.edge, self._done
        if self._mode == "grouped":
            # A blocking batch ends for the sender when the bytes have left, for the receiver when they are there.
            edge(move, done[send])
            edge(arrive, done[recv])
        elif self._crosses_link(message):
            # Operations issued one by one free their channel once both sides have met: the delay of a link
            # is spent outside the communicator (as measured with an emulated link).
            for post in (send, recv):
                edge(send, done[post])
                edge(recv, done[post])
        else:
            edge(move, done[send])
            edge(move, done[recv])
