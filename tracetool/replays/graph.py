"""The task graph of a replay: what has to end before what can start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tracetool.model.pipeline import BY_EDGE
from tracetool.replays.flow import trace_flow
from tracetool.replays.placing import place

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from tracetool.model.action import Action
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.replays.flow import Bools, Flow, Int32s
    from tracetool.replays.placing import Placed
    from tracetool.replays.program import Message

    Int8s = np.ndarray[Any, np.dtype[np.int8]]


class TaskKind(IntEnum):
    """Kind of a task.

    A message passes POST on each side (the rank is ready to send or receive), MOVE (both sides are: its bytes
    leave the sender, over a link once that is free) and ARRIVE (the link's latency; then the receiver can
    use them). COPY puts a buffered message out of the sender's way. DONE ends a post: its kernel leaves the device.
    """

    COMPUTE = 0
    POST = 1
    MOVE = 2
    ARRIVE = 3
    COPY = 4
    DONE = 5


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
        subjects: Number of the action (COMPUTE) or message (MOVE, ARRIVE, COPY) of each task; -1 for a post.
        leaves: Per task, the POST whose kernel leaves the device with it; -1 for none. That is the DONE of the post, or
            where a message comes over a link, its ARRIVE: what waits for it holds SMs until it is there. A message
            that is there ahead of its POST lets no kernel wait.
        before: The earlier task of each edge.
        after: The later one.
        successors: Per task, those that wait for it.
        compute: Per action, its task.
        send_post: Per message, the POST of its send; -1 if nothing is sent.
        recv_post: Per message, the POST of its receive; -1 if nothing is sent.
        move: Per message, its MOVE; -1 if nothing is sent.
        arrive: Per message, its ARRIVE; -1 if nothing is sent.
        copy: Per message, its COPY; -1 if nothing is sent, or not buffered.
    """

    flow: Flow
    kinds: Int8s
    ranks: Int32s
    subjects: Int32s
    leaves: Int32s
    before: Int32s
    after: Int32s
    successors: Rows
    compute: Int32s
    send_post: Int32s
    recv_post: Int32s
    move: Int32s
    arrive: Int32s
    copy: Int32s

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.kinds)

    def action(self, task: int) -> Action:
        """The action of a COMPUTE."""
        return self.flow.actions[int(self.subjects[task])]


def rows_by(keys: Int32s, values: Int32s, count: int) -> Rows:
    """Collect values by key, in ascending order under each key."""
    import numpy as np

    pairs = np.sort((keys.astype(np.int64) << 32) | values)
    first = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=count), out=first[1:])
    return Rows(first, (pairs & 0xFFFFFFFF).astype(np.int32))


def build_graph(
    schedule: Schedule,
    mode: P2PMode,
    crosses_link: Callable[[Message], bool],
    *,
    buffered: bool = False,
    interwoven: bool = False,
) -> TaskGraph:
    """Compile a schedule and a p2p mode.

    Args:
        schedule: The compute order.
        mode: How transfers are issued.
        crosses_link: Whether a message goes over a link between DCs; asked once per stage and direction.
        buffered: Whether a send ends without its receive (NCCL copies it into a buffer).
        interwoven: Whether kernels of two actions that run as one run in turns, so that neither begins without the
            inputs of both. Torch's runtime runs one after the other unless it is told how to weave them, and each then
            waits for its own input; what both send follows the second one. A ``grouped`` batch has the inputs of both.

    Raises:
        InvalidSchedule: If messages of the schedule lack a side.
        ScheduleDeadlock: If the order cannot be run in that mode.
    """
    flow = trace_flow(schedule)
    builder = _Builder(flow, place(flow, mode), mode, _crossing(flow, crosses_link))
    return builder.finish(buffered=buffered, interwoven=interwoven or mode == "grouped")


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
        self._is_post = placed.action < 0
        sizes = np.where(self._is_post, 2, 1)
        self._first = (np.cumsum(sizes) - sizes).astype(np.int32)  # per instruction, its task; of a post the POST
        self._compute = self._first[~self._is_post]
        self._sent = np.flatnonzero(flow.remote).astype(np.int32)
        self._crossing = crossing[self._sent]
        self._before: list[Any] = []
        self._after: list[Any] = []

    def _edges(self, before: Any, after: Any) -> None:
        self._before.append(before)
        self._after.append(after)

    def finish(self, *, buffered: bool, interwoven: bool) -> TaskGraph:
        """The graph; the DONE of a post is the task after it."""
        import numpy as np

        flow, sent = self._flow, self._sent
        send, recv = self._first[self._placed.send_at[sent]], self._first[self._placed.recv_at[sent]]
        placed_tasks = int(self._first[-1]) + 1 + int(self._is_post[-1])
        per_message = 3 if buffered else 2
        tasks = placed_tasks + per_message * len(sent)
        move = np.arange(placed_tasks, tasks, per_message, dtype=np.int32)
        arrive, copy = move + 1, move + 2
        self._chain(send, recv)
        self._edges(send, move)
        if self._mode != "posted-ahead":
            self._edges(recv, move)
        self._edges(move, arrive)
        self._release(send, recv, move, arrive, copy if buffered else None)
        # Of two actions that run as one, the second ends both.
        ready = self._compute[flow.closes[flow.maker]]
        ready[sent] = arrive
        self._edges(ready, self._compute[flow.opens[flow.taker] if interwoven else flow.taker])
        before, after = (np.concatenate(side).astype(np.int32) for side in (self._before, self._after))
        of_message = {TaskKind.MOVE: move, TaskKind.ARRIVE: arrive} | ({TaskKind.COPY: copy} if buffered else {})
        return TaskGraph(
            flow, *self._told(tasks, of_message), self._leaves(tasks, recv, arrive),
            before, after, rows_by(before, after, tasks), self._compute,
            *(self._by_message(column) for column in (send, recv, move, arrive, copy if buffered else None)),
        )  # fmt: skip

    def _by_message(self, column: Any) -> Int32s:
        import numpy as np

        all_messages = np.full(self._flow.messages, -1, np.int32)
        if column is not None:
            all_messages[self._sent] = column
        return all_messages

    def _chain(self, send: Any, recv: Any) -> None:
        """What follows from the order of a rank's own instructions."""
        import numpy as np

        first, rank, is_post = self._first, self._placed.rank, self._is_post
        in_turn = self._flow.rank[1:] == self._flow.rank[:-1]
        self._edges(self._compute[:-1][in_turn], self._compute[1:][in_turn])
        compute = _latest(~is_post, rank)
        has = is_post & (compute >= 0)
        self._edges(first[compute[has]], first[has])
        if self._mode in BY_EDGE:
            self._chain_by_edge(recv)
            if self._mode == "per-edge":  # sends whose receives are there already do not wait for each other
                self._chain_by_edge(send)
            return
        post = _latest(is_post, rank)
        has = is_post & (post >= 0)
        self._edges(first[post[has]] + 1, first[has])
        if self._mode == "grouped":  # compute waits for the batch ahead of it
            has = ~is_post & (post >= 0) & (post == np.arange(len(post)) - 1)
            self._edges(first[post[has]] + 1, first[has])

    def _chain_by_edge(self, posts: Any) -> None:
        """One after another on the channel of each pair of ranks and direction."""
        import numpy as np

        channel = self._flow.rank[self._flow.maker[self._sent]] * len(self._flow.schedule.orders)
        channel = channel + self._flow.dst_rank[self._sent]
        turn = np.lexsort((posts, channel))
        follows = channel[turn][1:] == channel[turn][:-1]
        self._edges(posts[turn][:-1][follows] + 1, posts[turn][1:][follows])

    def _release(self, send: Any, recv: Any, move: Any, arrive: Any, copy: Any) -> None:
        """Say when the two posts of a message are over."""
        if copy is not None:
            self._edges(send, copy)
            self._edges(copy, send + 1)
        if self._mode == "grouped":
            # A blocking batch ends for the receiver when the bytes are there, for the sender when they have left, or
            # with what is buffered lie in their buffer: also beside a receive (as measured of Megatron's batches).
            self._edges(arrive, recv + 1)
            if copy is None:
                self._edges(move, send + 1)
            return
        posts = [recv]
        if copy is None and self._mode == "posted-ahead":
            self._edges(move, send + 1)
        elif copy is None:
            posts.append(send)
        # Operations issued one by one free their channel once both sides have met: the delay of a link
        # is spent outside the communicator (as measured with an emulated link).
        over, inside = self._crossing, ~self._crossing
        for post in posts:
            self._edges(send[over], post[over] + 1)
            self._edges(recv[over], post[over] + 1)
            self._edges(move[inside], post[inside] + 1)
            self._edges(post[inside], post[inside] + 1)

    def _leaves(self, tasks: int, recv: Any, arrive: Any) -> Int32s:
        import numpy as np

        leaves = np.full(tasks, -1, np.int32)
        posts = self._first[self._is_post]
        leaves[posts + 1] = posts
        if self._mode != "grouped":
            leaves[arrive[self._crossing]] = recv[self._crossing]
            leaves[recv[self._crossing] + 1] = -1
        return leaves

    def _told(self, tasks: int, of_message: dict[TaskKind, Any]) -> tuple[Int8s, Int32s, Int32s]:
        """Kind, rank and subject of every task."""
        import numpy as np

        kinds = np.full(tasks, TaskKind.DONE, np.int8)
        ranks = np.empty(tasks, np.int32)
        subjects = np.full(tasks, -1, np.int32)
        posts = self._first[self._is_post]
        kinds[posts], kinds[self._compute] = TaskKind.POST, TaskKind.COMPUTE
        ranks[self._first], ranks[posts + 1] = self._placed.rank, self._placed.rank[self._is_post]
        subjects[self._compute] = np.arange(len(self._compute))
        for kind, at in of_message.items():
            kinds[at], subjects[at] = kind, self._sent
            ranks[at] = self._flow.rank[self._flow.maker[self._sent]]
        return kinds, ranks, subjects


def _latest(chosen: Bools, rank: Int32s) -> Int32s:
    """Per instruction, the latest chosen one ahead of it on its rank; -1 for none."""
    import numpy as np

    at = np.maximum.accumulate(np.where(chosen, np.arange(len(rank)), -1))
    at = np.append(-1, at[:-1])
    return np.where((at >= 0) & (rank[at] == rank), at, -1)
