"""The task graph of a replay: what has to end before what can start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tracetool.replay.flow import trace_flow
from tracetool.replay.placing import place

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from tracetool.model.action import Action
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.replay.flow import Bools, Flow, Int32s
    from tracetool.replay.placing import Placed
    from tracetool.replay.program import Message

    Int8s = np.ndarray[Any, np.dtype[np.int8]]


class TaskKind(IntEnum):
    """Kind of a task.

    A message passes POST on each side (the rank is ready to send or receive), MOVE (both sides are: its bytes
    leave the sender, over a link once that is free) and ARRIVE (the link's latency; then the receiver can
    use them). DONE ends a post that others wait for.
    """

    COMPUTE = 0
    POST = 1
    MOVE = 2
    ARRIVE = 3
    DONE = 4


@dataclass(frozen=True, slots=True)
class Rows:
    """Neighbours of tasks: those of task t are ``at[first[t]:first[t + 1]]``."""

    first: Int32s
    at: Int32s


@dataclass(frozen=True, slots=True)
class TaskGraph:
    """Tasks by number; edges run from a task to those that wait for it.

    Attributes:
        flow: The actions and messages it is about.
        kinds: Kind of each task.
        ranks: Pipeline rank of each task (of a message: the sender).
        subjects: Number of the action (COMPUTE) or message (MOVE, ARRIVE) of each task; -1 for a post.
        before: The earlier task of each edge.
        after: The later one.
        successors: Per task, those that wait for it.
        compute: Per action, its task.
        send_post: Per message, the POST of its send; -1 if nothing is sent.
        recv_post: Per message, the POST of its receive; -1 where receives are posted ahead of time.
        move: Per message, its MOVE; -1 if nothing is sent.
        arrive: Per message, its ARRIVE; -1 if nothing is sent.
    """

    flow: Flow
    kinds: Int8s
    ranks: Int32s
    subjects: Int32s
    before: Int32s
    after: Int32s
    successors: Rows
    compute: Int32s
    send_post: Int32s
    recv_post: Int32s
    move: Int32s
    arrive: Int32s

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.kinds)

    def action(self, task: int) -> Action:
        """The action of a COMPUTE."""
        return self.flow.actions[self.subjects[task]]


def rows_by(keys: Int32s, values: Int32s, count: int) -> Rows:
    """Collect values by key, in ascending order under each key."""
    import numpy as np

    pairs = np.sort((keys.astype(np.int64) << 32) | values)
    first = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=count), out=first[1:])
    return Rows(first, (pairs & 0xFFFFFFFF).astype(np.int32))


def build_graph(schedule: Schedule, mode: P2PMode, crosses_link: Callable[[Message], bool]) -> TaskGraph:
    """Compile a schedule and a p2p mode.

    Args:
        schedule: The compute order.
        mode: How transfers are issued.
        crosses_link: Whether a message goes over a link between DCs; asked once per pair of stages and direction.

    Raises:
        InvalidSchedule: If messages of the schedule lack a side.
        ScheduleDeadlock: If the order cannot be run in that mode.
    """
    flow = trace_flow(schedule)
    return _Builder(flow, place(flow, mode), mode, _crossing(flow, crosses_link)).finish()


def _crossing(flow: Flow, crosses_link: Callable[[Message], bool]) -> Bools:
    """Which messages go over a link; those of one stage and direction all take the same way."""
    import numpy as np

    _, sample, edge = np.unique(flow.edge, return_index=True, return_inverse=True)
    crosses = [bool(flow.remote[number]) and crosses_link(flow.message(number)) for number in sample.tolist()]
    return np.array(crosses, bool)[edge]


class _Builder:
    """Numbers tasks (each rank's instructions in turn, then message by message) and collects edges."""

    def __init__(self, flow: Flow, placed: Placed, mode: P2PMode, crossing: Bools) -> None:
        import numpy as np

        self._flow, self._placed, self._mode = flow, placed, mode
        self._crossing = crossing
        is_post = placed.action < 0
        sizes = np.where(is_post, 1 if mode == "per-edge" else 2, 1)
        self._first = (np.cumsum(sizes) - sizes).astype(np.int32)  # per instruction, its (first) task
        self._placed_tasks = int(sizes.sum())
        self._is_post = is_post
        self._before: list[Any] = []
        self._after: list[Any] = []

    def _edges(self, before: Any, after: Any) -> None:
        self._before.append(before)
        self._after.append(after)

    def finish(self) -> TaskGraph:
        import numpy as np

        flow, placed, first = self._flow, self._placed, self._first
        sent = np.flatnonzero(flow.remote)
        move = np.full(flow.messages, -1, np.int32)
        move[sent] = self._placed_tasks + 2 * np.arange(len(sent))
        arrive = np.where(move >= 0, move + 1, -1)
        compute = first[~self._is_post]
        send_post = np.where(placed.send_at >= 0, first[placed.send_at], -1)
        recv_post = np.where(placed.recv_at >= 0, first[placed.recv_at], -1)
        self._chain(compute)
        self._edges(send_post[sent], move[sent])
        self._edges(move[sent], arrive[sent])
        if self._mode != "per-edge":
            self._edges(recv_post[sent], move[sent])
            self._release(sent, send_post, recv_post, move, arrive)
        ready = np.where(flow.remote, arrive, compute[flow.maker])
        self._edges(ready, compute[flow.taker])
        before, after = (np.concatenate(side).astype(np.int32) for side in (self._before, self._after))
        tasks = self._placed_tasks + 2 * len(sent)
        kinds, ranks, subjects = self._told(tasks, sent, move, arrive, compute)
        return TaskGraph(
            flow, kinds, ranks, subjects, before, after, rows_by(before, after, tasks),
            compute, send_post, recv_post, move, arrive,
        )  # fmt: skip

    def _chain(self, compute: Any) -> None:
        """What follows from the order of a rank's own instructions."""
        import numpy as np

        first, rank, is_post = self._first, self._placed.rank, self._is_post
        here = np.arange(len(rank))
        follows = np.append(False, rank[1:] == rank[:-1])  # noqa: FBT003 - an array's item
        in_turn = self._flow.rank[1:] == self._flow.rank[:-1]
        self._edges(compute[:-1][in_turn], compute[1:][in_turn])
        for latest, kind in ((~is_post, "compute"), (is_post, "post")):
            # The latest such instruction ahead of each one.
            at = np.append(-1, np.maximum.accumulate(np.where(latest, here, -1))[:-1])
            has = is_post & (at >= 0) & (rank[at] == rank)
            if kind == "compute":
                self._edges(first[at[has]], first[has])
            elif self._mode != "per-edge":  # one channel per rank
                self._edges(first[at[has]] + 1, first[has])
        if self._mode == "grouped":  # the batch that compute waits for
            blocked = np.flatnonzero(follows & ~is_post & np.append(False, is_post[:-1]))  # noqa: FBT003
            self._edges(first[blocked - 1] + 1, first[blocked])

    def _release(self, sent: Any, send_post: Any, recv_post: Any, move: Any, arrive: Any) -> None:
        """Say when the two posts of a message are over: the DONE of a post is the task after it."""
        if self._mode == "grouped":
            # A blocking batch ends for the sender when the bytes have left, for the receiver when they are there.
            self._edges(move[sent], send_post[sent] + 1)
            self._edges(arrive[sent], recv_post[sent] + 1)
            return
        # Operations issued one by one free their channel once both sides have met: the delay of a link
        # is spent outside the communicator (as measured with an emulated link).
        over = sent[self._crossing[sent]]
        inside = sent[~self._crossing[sent]]
        for post in (send_post, recv_post):
            self._edges(send_post[over], post[over] + 1)
            self._edges(recv_post[over], post[over] + 1)
            self._edges(move[inside], post[inside] + 1)

    def _told(self, tasks: int, sent: Any, move: Any, arrive: Any, compute: Any) -> tuple[Any, Any, Any]:
        """Kind, rank and subject of every task."""
        import numpy as np

        flow, placed = self._flow, self._placed
        kinds = np.full(tasks, TaskKind.DONE, np.int8)
        ranks = np.empty(tasks, np.int32)
        subjects = np.full(tasks, -1, np.int32)
        posts = self._first[self._is_post]
        kinds[posts], kinds[compute] = TaskKind.POST, TaskKind.COMPUTE
        ranks[self._first] = placed.rank
        if self._mode != "per-edge":
            ranks[posts + 1] = placed.rank[self._is_post]
        subjects[compute] = np.arange(len(compute))
        for kind, of_message in ((TaskKind.MOVE, move), (TaskKind.ARRIVE, arrive)):
            kinds[of_message[sent]] = kind
            ranks[of_message[sent]] = flow.rank[flow.maker[sent]]
            subjects[of_message[sent]] = sent
        return kinds, ranks, subjects
