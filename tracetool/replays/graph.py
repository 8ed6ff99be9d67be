"""The task graph of a replay: what has to end before what can start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from tracetool.model.pipeline import BLOCKING, BY_EDGE
from tracetool.replays.flow import trace_flow
from tracetool.replays.placing import place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from tracetool.model.action import Action
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule
    from tracetool.replays.flow import Bools, Flow, Int32s, Message
    from tracetool.replays.placing import Placed

    Int8s = np.ndarray[Any, np.dtype[np.int8]]


class TaskKind(IntEnum):
    """Kind of a task.

    A message passes POST on each side (the rank is ready to send or receive), MOVE (both sides are: its bytes
    leave the sender, over a link once that is free) and ARRIVE (the link's latency; then the receiver can
    use them). Further links of its path have a MOVE and two ARRIVEs each (``Onward``). COPY puts a message out of the
    sender's way that is buffered, or goes over several links, one of which is slower than the first. DONE ends a post:
    its kernel leaves the device.
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
class Onward:
    """How messages go on from one link of their path to the next (formulas: ``Path``); an entry per further link.

    The head begins when the MOVE before starts, and lets this link's MOVE start. The tail follows the end of the MOVE
    before and the tail before that: the last one has let go what the last link cannot be done without.

    Attributes:
        message: Number of the message.
        number: Of the link among those of the path; the first one, which has none, is 0.
        leaving: MOVE over the link before.
        head: ARRIVE of the first bytes at this link, and ...
        tail: ... of the last ones: each takes the latency of the link before.
        move: MOVE over this link.
    """

    message: Int32s
    number: Int32s
    leaving: Int32s
    head: Int32s
    tail: Int32s
    move: Int32s


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
        onward: What takes messages over further links.
        send_post: Per message, the POST of its send; -1 if nothing is sent.
        recv_post: Per message, the POST of its receive; -1 if nothing is sent.
        move: Per message, its MOVE over the first link, or inside a DC; -1 if nothing is sent.
        arrive: Per message, its ARRIVE at the receiver; -1 if nothing is sent.
        copy: Per message, its COPY; -1 if nothing is sent, or neither buffered nor over several links.
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
    onward: Onward
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
    links_of: Callable[[Message], int | None],
    *,
    buffered: bool = False,
    interwoven: bool = False,
) -> TaskGraph:
    """Compile a schedule and a p2p mode.

    Args:
        schedule: The compute order.
        mode: How transfers are issued.
        links_of: How many links a message passes on its way between DCs, None inside one; asked once per stage and
            direction.
        buffered: Whether a send ends without its receive (NCCL copies it into a buffer).
        interwoven: Whether kernels of two actions that run as one run in turns, so that neither begins without the
            inputs of both. Torch's runtime runs one after the other unless it is told how to weave them, and each then
            waits for its own input; what both send follows the second one. A ``grouped`` batch has the inputs of both.

    Raises:
        InvalidSchedule: If messages of the schedule lack a side.
        ScheduleDeadlock: If the order cannot be run in that mode.
    """
    flow = trace_flow(schedule)
    builder = _Builder(flow, place(flow, mode), mode, _links_passed(flow, links_of))
    return builder.finish(buffered=buffered, interwoven=interwoven or mode in BLOCKING)


def _links_passed(flow: Flow, links_of: Callable[[Message], int | None]) -> Int32s:
    """How many links messages pass, -1 inside a DC; those of one stage and direction all take the same way."""
    import numpy as np

    _, sample, edge = np.unique(flow.edge, return_index=True, return_inverse=True)
    links = [links_of(flow.message(number)) if flow.remote[number] else None for number in sample.tolist()]
    passed: Int32s = np.array([-1 if count is None else count for count in links], np.int32)[edge]
    return passed


class _Builder:
    """Numbers tasks (each rank's instructions in turn, then message by message) and collects edges."""

    def __init__(self, flow: Flow, placed: Placed, mode: P2PMode, links: Int32s) -> None:
        import numpy as np

        self._flow, self._placed, self._mode = flow, placed, mode
        self._is_post = placed.action < 0
        sizes = np.where(self._is_post, 2, 1)
        self._first = (np.cumsum(sizes) - sizes).astype(np.int32)  # per instruction, its task; of a post the POST
        self._compute = self._first[~self._is_post]
        self._sent = np.flatnonzero(flow.remote).astype(np.int32)
        self._links = links[self._sent]
        self._crossing = self._links >= 0
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
        move, arrive, copy = self._message_tasks(placed_tasks, buffered=buffered)
        has_copy = copy >= 0
        onward_tasks = placed_tasks + 2 * len(sent) + int(has_copy.sum())
        onward = self._go_on(onward_tasks, move, arrive)
        tasks = onward_tasks + 3 * len(onward.move)
        self._chain(send, recv)
        self._edges(send, move)
        if self._mode != "posted-ahead":
            self._edges(recv, move)
        self._edges(move, arrive)
        self._release(send, recv, move, arrive, copy, buffered=buffered)
        # Of two actions that run as one, the second ends both.
        ready = self._compute[flow.closes[flow.maker]]
        ready[sent] = arrive
        self._edges(ready, self._compute[flow.opens[flow.taker] if interwoven else flow.taker])
        before, after = (np.concatenate(side).astype(np.int32) for side in (self._before, self._after))
        of_message = (
            (TaskKind.MOVE, move, sent), (TaskKind.ARRIVE, arrive, sent),
            (TaskKind.COPY, copy[has_copy], sent[has_copy]), (TaskKind.MOVE, onward.move, onward.message),
            (TaskKind.ARRIVE, onward.head, onward.message), (TaskKind.ARRIVE, onward.tail, onward.message),
        )  # fmt: skip
        kinds, ranks, subjects = self._of_tasks(tasks, of_message)
        return TaskGraph(
            flow=flow, kinds=kinds, ranks=ranks, subjects=subjects, leaves=self._leaves(tasks, recv, arrive),
            before=before, after=after, successors=rows_by(before, after, tasks), compute=self._compute, onward=onward,
            send_post=self._by_message(send), recv_post=self._by_message(recv), move=self._by_message(move),
            arrive=self._by_message(arrive), copy=self._by_message(copy),
        )  # fmt: skip

    def _message_tasks(self, first_task: int, *, buffered: bool) -> tuple[Int32s, Int32s, Int32s]:
        """MOVE, ARRIVE and COPY of each message that is sent; -1 where it has no COPY."""
        import numpy as np

        count, each = len(self._sent), 3 if buffered else 2
        move = np.arange(first_task, first_task + each * count, each, dtype=np.int32)
        if buffered:
            return move, move + 1, move + 2
        copy = np.full(count, -1, np.int32)
        several = self._links > 1
        copy[several] = first_task + each * count + np.arange(int(several.sum()))
        return move, move + 1, copy

    def _go_on(self, first_task: int, move: Int32s, arrive: Int32s) -> Onward:
        """Tasks of further links, message by message, and what they wait for but the start of a MOVE."""
        import numpy as np

        further = np.maximum(self._links - 1, 0)
        of = np.repeat(np.arange(len(further)), further)  # per further link, the message among those that are sent
        number = np.arange(len(of)) - (np.cumsum(further) - further)[of] + 1
        tail = (first_task + 3 * np.arange(len(of))).astype(np.int32)
        head, over = tail + 1, tail + 2
        again = number > 1
        leaving = np.where(again, over - 3, move[of])
        self._edges(leaving, tail)
        self._edges(tail[again] - 3, tail[again])
        self._edges(head, over)
        last = number == further[of]
        self._edges(over[last], arrive[of[last]])
        self._edges(tail[last], arrive[of[last]])
        return Onward(self._sent[of], number.astype(np.int32), leaving, head, tail, over)

    def _by_message(self, column: Any) -> Int32s:
        import numpy as np

        all_messages = np.full(self._flow.messages, -1, np.int32)
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
        if self._mode in BLOCKING:  # compute waits for what was posted ahead of it
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

    def _release(self, send: Any, recv: Any, move: Any, arrive: Any, copy: Any, *, buffered: bool) -> None:
        """Say when the two posts of a message are over."""
        import numpy as np

        has_copy = copy >= 0
        self._edges((send if buffered else move)[has_copy], copy[has_copy])
        left = np.where(has_copy, copy, move)
        if buffered:
            self._edges(copy, send + 1)
        if self._mode in BLOCKING:
            # A blocking batch ends for the receiver when the bytes are there, for the sender when they have left, or
            # with what is buffered lie in their buffer: also beside a receive (as measured of Megatron's batches).
            self._edges(arrive, recv + 1)
            if not buffered:
                self._edges(left, send + 1)
            return
        posts = [recv]
        if not buffered and self._mode == "posted-ahead":
            self._edges(left, send + 1)
        elif not buffered:
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
        if self._mode not in BLOCKING:
            leaves[arrive[self._crossing]] = recv[self._crossing]
            leaves[recv[self._crossing] + 1] = -1
        return leaves

    def _of_tasks(
        self, tasks: int, of_message: Sequence[tuple[TaskKind, Int32s, Int32s]]
    ) -> tuple[Int8s, Int32s, Int32s]:
        """Kind, rank and subject of every task."""
        import numpy as np

        kinds = np.full(tasks, TaskKind.DONE, np.int8)
        ranks = np.empty(tasks, np.int32)
        subjects = np.full(tasks, -1, np.int32)
        posts = self._first[self._is_post]
        kinds[posts], kinds[self._compute] = TaskKind.POST, TaskKind.COMPUTE
        ranks[self._first], ranks[posts + 1] = self._placed.rank, self._placed.rank[self._is_post]
        subjects[self._compute] = np.arange(len(self._compute))
        for kind, at, messages in of_message:
            kinds[at], subjects[at] = kind, messages
            ranks[at] = self._flow.rank[self._flow.maker[messages]]
        return kinds, ranks, subjects


def _latest(chosen: Bools, rank: Int32s) -> Int32s:
    """Per instruction, the latest chosen one ahead of it on its rank; -1 for none."""
    import numpy as np

    at = np.maximum.accumulate(np.where(chosen, np.arange(len(rank)), -1))
    at = np.append(-1, at[:-1])
    return np.where((at >= 0) & (rank[at] == rank), at, -1)
