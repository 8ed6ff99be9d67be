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
    use them). COPY puts a buffered message out of the sender's way. DONE ends a post: its kernel leaves the device.
    """

    COMPUTE = auto()
    POST = auto()
    MOVE = auto()
    ARRIVE = auto()
    COPY = auto()
    DONE = auto()


Subject = Action | Message | Post


@dataclass(frozen=True, slots=True)
class MessageTasks:
    """The tasks of one message."""

    send_post: int
    recv_post: int
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
        dones: Per POST, the DONE that ends it.
        leaves: Per POST, the task with which its kernel leaves the device: its DONE, or where a message comes over a
            link, its ARRIVE: what waits for it holds SMs until it is there.
    """

    kinds: list[TaskKind] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    subjects: list[Subject] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)
    messages: dict[Message, MessageTasks] = field(default_factory=dict)
    dones: dict[int, int] = field(default_factory=dict)
    leaves: dict[int, int] = field(default_factory=dict)

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


def build_graph(
    schedule: Schedule, mode: P2PMode, crosses_link: Callable[[Message], bool], *, buffered: bool = False
) -> TaskGraph:
    """Compile a schedule and a p2p mode.

    Args:
        schedule: The compute order.
        mode: How transfers are issued.
        crosses_link: Whether a message goes over a link between DCs.
        buffered: Whether a send that is issued alone ends without its receive (NCCL copies it into a buffer).

    Raises:
        ScheduleDeadlock: If the order cannot be run in that mode.
    """
    builder = _Builder(schedule, mode, crosses_link, buffered=buffered)
    for rank, program in enumerate(build_program(schedule, mode)):
        builder.add_rank(rank, program)
    return builder.finish()


class _Builder:
    def __init__(
        self, schedule: Schedule, mode: P2PMode, crosses_link: Callable[[Message], bool], *, buffered: bool
    ) -> None:
        self.graph = TaskGraph()
        self._mode = mode
        self._crosses_link = crosses_link
        self._buffered = buffered and mode != "grouped"
        self._rank_of = schedule.shape.rank_of
        self._flow = Dataflow(schedule)
        # Of two actions that run as one, the one whose task waits for the inputs of both, and the one that ends both.
        pairs = [unit for rank in range(len(schedule.overlaps)) for unit in schedule.units(rank) if unit[1:]]
        self._opens = {unit[1]: unit[0] for unit in pairs}
        self._closes = {unit[0]: unit[1] for unit in pairs}
        self._computes: dict[Action, int] = {}
        self._posts: dict[tuple[Message, bool], int] = {}

    def add_rank(self, rank: int, program: list[Action | Post]) -> None:
        graph = self.graph
        last_compute: int | None = None
        last_on: dict[tuple[int, int] | None, int] = {}  # per channel, the DONE of the post before
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
            channel = self._channel(instruction)
            if self._mode != "per-edge" or instruction.recvs:
                graph.edge(last_on.get(channel), post)
            done = graph.add(TaskKind.DONE, rank, instruction)
            graph.dones[post] = graph.leaves[post] = last_on[channel] = done
            if self._mode == "grouped":
                blocker = done

    def _channel(self, post: Post) -> tuple[int, int] | None:
        """The communicator that a post is issued on: the rank's only one, or one per pair and direction."""
        if self._mode != "per-edge":
            return None
        (message,) = (*post.sends, *post.recvs)
        return self._rank_of(message.src_stage), self._rank_of(message.dst_stage)

    def finish(self) -> TaskGraph:
        graph = self.graph
        for message in [m for m, is_send in self._posts if is_send]:
            send, recv = self._posts[message, True], self._posts[message, False]
            move = graph.add(TaskKind.MOVE, graph.ranks[send], message)
            arrive = graph.add(TaskKind.ARRIVE, graph.ranks[send], message)
            graph.edge(send, move)
            if self._mode != "per-edge":  # there, receives are posted ahead of time
                graph.edge(recv, move)
            graph.edge(move, arrive)
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
        edge, done = self.graph.edge, self.graph.dones
        if self._mode == "grouped":
            # A blocking batch ends for the sender when the bytes have left, for the receiver when they are there.
            edge(move, done[send])
            edge(arrive, done[recv])
            return
        if self._crosses_link(message):
            self.graph.leaves[recv] = arrive
        if self._buffered:
            copy = self.graph.add(TaskKind.COPY, self.graph.ranks[send], message)
            edge(send, copy)
            edge(copy, done[send])
        for post in (recv,) if self._buffered else (send, recv):
            if self._mode == "per-edge" and post == send:
                edge(move, done[send])
            elif self._crosses_link(message):
                # Operations issued one by one free their channel once both sides have met: the delay of a link
                # is spent outside the communicator (as measured with an emulated link).
                edge(send, done[post])
                edge(recv, done[post])
            else:
                edge(move, done[post])
                edge(post, done[post])
