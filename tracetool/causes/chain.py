"""What held an action back, step by step back in time: computes of ranks, and the ways of messages between them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from tracetool.causes.cause import ON_LINKS, Cause
from tracetool.model.action import GRADIENT_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tracetool.model.timeline import Op, Timeline, Transfer
    from tracetool.model.topology import Topology


_MOST_AHEAD = 4
"""So many messages behind each other are gone through; the wait for more is the channel's."""


class ChainPiece(NamedTuple):
    """What a chain did for some time.

    Attributes:
        start_ns: From when.
        end_ns: Until when.
        cause: What the action after it waited for, if that was no compute.
        op: The compute; else the action that waited.
        transfer: The message whose way it was, if it was one.
    """

    start_ns: int
    end_ns: int
    cause: Cause | None
    op: Op
    transfer: Transfer | None = None


class OrderPlace(NamedTuple):
    """An action by its rank and its position in the rank's order."""

    rank: int
    at: int


class ActionWait(NamedTuple):
    """What was between an action and what it waited for: the pieces, latest first; and the action it waited for."""

    pieces: tuple[ChainPiece, ...]
    after: OrderPlace | None


class Chains:
    """What each action of a Timeline waited for.

    That is the message it needs, the action before it on its rank or, where computes wait for sends, a message that its
    rank sent just ahead of it: whichever was over last, the message that it needs where several were. Back in time a
    message was

    * moving inside a DC, or beside its link (copies and launch take their time there too);
    * on a link: on its way (latency), occupying it, or waiting for it to be free;
    * not posted yet on the side that came last. That side came from its rank's compute, or was behind another message
      on the rank's communicator. Then the message waited for that since it could have started: for a link while that
      one waited for a link, else for the channel.

    What is left of a gap nothing explains: the host came late, or the profiler itself was at work.

    Args:
        timeline: Observed or replayed.
        topology: With the links that its messages name.
        blocking: Whether computes wait for what their rank sent just ahead of them.
        by_edge: Whether each pair of ranks and direction has a communicator of its own; else each rank has one.
        overlapping: Actions that run as one with a neighbour: both wait for the inputs of both, and end together.

    Attributes:
        orders: Per rank, its computes as they ran.
        start_ns: Start of the pipeline window.
        last: The action that ends the window.
    """

    def __init__(
        self,
        timeline: Timeline,
        topology: Topology,
        *,
        blocking: bool,
        by_edge: bool,
        overlapping: Collection[Action],
    ) -> None:
        computes = sorted(timeline.computes(), key=lambda op: op.start_ns)
        self.orders: list[list[Op]] = [[] for _ in timeline.global_ranks]
        for op in computes:
            self.orders[op.rank].append(op)
        self.start_ns = computes[0].start_ns
        self.last = max(
            (OrderPlace(rank, len(order) - 1) for rank, order in enumerate(self.orders) if order),
            key=lambda place: (self.op(place).end_ns, -place.rank),
        )
        self._profiler = timeline.profiler
        reached = [0] * len(self.orders)
        self._ends = [[op.end_ns for op in order] for order in self.orders]
        self._units = _units(self.orders, overlapping)
        self._by_edge = by_edge
        self._messages = _Messages(timeline.transfers, topology, len(self.orders), blocking=blocking, by_edge=by_edge)
        self._makers = {
            (op.stage, op.kind is ActionKind.FORWARD, op.microbatch): OrderPlace(rank, at)
            for rank, order in enumerate(self.orders)
            for at, op in enumerate(order)
            if op.kind is ActionKind.FORWARD or op.kind in GRADIENT_KINDS
        }
        self._ways: dict[OrderPlace, ActionWait] = {}
        # Earlier ones first: the way to a later one may go back along theirs.
        for op in computes:
            place = OrderPlace(op.rank, reached[op.rank])
            reached[op.rank] += 1
            self._ways[place] = self._find_way(place)

    def op(self, place: OrderPlace) -> Op:
        """The action at a place."""
        return self.orders[place.rank][place.at]

    def until(self, place: OrderPlace | None) -> Iterator[ChainPiece]:
        """What went on until an action began, latest first and without holes, back to the start of the window.

        Args:
            place: The action; None for the end of the window.
        """
        if place is None:
            return self._walk(None, self.last, self.op(self.last).end_ns)
        return self._walk(place, None, self.op(place).start_ns)

    def _walk(self, at: OrderPlace | None, after: OrderPlace | None, now: int) -> Iterator[ChainPiece]:
        """Go back from a moment: from the start of an action, or within what came before another one."""
        while at is not None or after is not None:
            if at is not None:
                way = self.way(at)
                after = way.after
                for piece in way.pieces:
                    # Clocks of ranks may differ a little: what seems to be later than what waited for it is cut off.
                    if piece.start_ns < now:
                        yield piece if piece.end_ns == now else piece._replace(end_ns=now)
                        now = piece.start_ns
            if after is not None:
                op = self.op(after)
                if op.start_ns < now:
                    yield ChainPiece(op.start_ns, now, None, op)
                    now = op.start_ns
            at, after = after, None

    def way(self, place: OrderPlace) -> ActionWait:
        """What was between an action and what it waited for."""
        return self._ways[place]

    def _find_way(self, place: OrderPlace) -> ActionWait:
        op = self.op(place)
        before = OrderPlace(place.rank, place.at - 1) if place.at else None
        floor = self.op(before).end_ns if before else self.start_ns
        held, over_ns = self._held_by(place, floor)
        back = _Backwards(op)
        if held is not None and (over_ns > floor or held.end_ns == op.start_ns):
            self._late(op.rank, over_ns, back)
            after = self._through(held, op, back, is_copied=over_ns == self._copied_ns(place, held))
            if after is not None and _ran_before(self.op(after), op):
                self._late(op.rank, self.op(after).end_ns, back)
                return ActionWait(tuple(back.pieces), after)
        self._late(op.rank, floor, back)
        return ActionWait(tuple(back.pieces), before)

    def _held_by(self, place: OrderPlace, floor: int) -> tuple[Transfer | None, int]:
        """The message that an action waited for to the last, and when that was over; its input where several were."""
        op = self.op(place)
        first, last = self._units.get(place, (place, place))
        own = self.input(op)
        held = [] if own is None else [(own, min(own.end_ns, op.start_ns))]
        for at in range(first.at, last.at + 1):  # the other's input may come later, where each waits for its own
            other = None if at == place.at else self.input(self.orders[place.rank][at])
            held += [] if other is None or other.end_ns > op.start_ns else [(other, other.end_ns)]
        if op.start_ns > floor:
            sent = self._messages.sent(place.rank, floor, op.start_ns)
            held += [(t, over) for t, moments in sent for over in moments if over <= op.start_ns]
        return max(held, key=itemgetter(1), default=(None, floor))

    def _copied_ns(self, place: OrderPlace, held: Transfer) -> int | None:
        """When what a rank sent lay in a buffer, where it had not left by then; None if a rank received it."""
        copied, left = self._messages.sent_by(held)
        return copied if held.src_rank == place.rank and copied < left else None

    def input(self, op: Op) -> Transfer | None:
        """The message from another rank that an action needs, if it needs one."""
        if op.kind is ActionKind.RECOMPUTE:
            return None
        key = op.stage, op.kind is ActionKind.FORWARD, op.microbatch
        if op.kind is ActionKind.BACKWARD_WEIGHT and key in self._makers:
            return None  # its I had it
        return self._messages.to.get(key)

    def ready_ns(self, place: OrderPlace, ahead_of: int) -> int | None:
        """When an action's input was on its rank; None if it was not there ahead of the action at a position."""
        op = self.op(place)
        message = self.input(op)
        if message is not None:
            return message.end_ns
        step = -1 if op.kind is ActionKind.FORWARD else 1
        maker = self._makers.get((op.stage + step, op.kind is ActionKind.FORWARD, op.microbatch))
        return None if maker is not None and maker.at >= ahead_of else self.start_ns

    def _through(
        self, held: Transfer, op: Op, back: _Backwards, ahead: int = 0, *, is_copied: bool = False
    ) -> OrderPlace | None:
        """Go back along a message's way; the action that it waited for, None if there is none.

        Args:
            held: The message.
            op: The action that waited, in the end.
            back: Takes up the pieces.
            ahead: How many messages were behind this one, each behind the next.
            is_copied: Whether the action only waited until the message lay in a buffer.
        """
        if is_copied:
            back.since(held.send_posted_ns, Cause.CHANNEL, held)
        else:
            self._messages.move(held, back, arrives=ahead > 0 or held.dst_rank == op.rank)
        sent, received = held.send_posted_ns, held.recv_posted_ns
        maker = self._makers.get((held.src_stage, held.kind is ActionKind.FORWARD, held.microbatch))
        if maker is not None:
            _, maker = self._units.get(maker, (maker, maker))
        since = sent
        if self._by_edge and maker is not None and received >= sent:
            # A send is behind another one to the same rank only where that rank did not receive either.
            since = min(sent, self.op(maker).end_ns)
        if received >= since and not is_copied:  # where both sides came at once, the receiver's compute held both up
            computed = self._ended(held.dst_rank, received, op.start_ns)
            end = self.op(computed).end_ns if computed else self.start_ns
            freed, other = self._messages.freed(held.dst_rank, received, held)
            if freed <= end and end >= since:
                self._late(held.dst_rank, end, back)
                return computed
            if received > since:
                self._late(held.dst_rank, max(freed, since), back)
                self._behind(other, since, op, back, ahead)
        if maker is None:
            return None
        end = self.op(maker).end_ns
        freed, other = self._messages.freed(held.src_rank, sent, held)
        if freed > end:
            self._late(held.src_rank, freed, back)
            self._behind(other, end, op, back, ahead)
        return maker

    def _late(self, rank: int, start_ns: int, back: _Backwards) -> None:
        """Say that from a moment on nothing but a rank's host was late, or the profiler at work there."""
        for begin, end in reversed(self._profiler[rank] if self._profiler else ()):
            if begin < back.now and end > start_ns:
                back.since(max(end, start_ns), Cause.HOST)
                back.since(max(begin, start_ns), Cause.PROFILER_OVERHEAD)
        back.since(start_ns, Cause.HOST)

    def _behind(self, other: Transfer | None, since_ns: int, op: Op, back: _Backwards, ahead: int) -> None:
        """Go back through a wait behind another message: the channel's, but for when that one waited for a link."""
        until = max(since_ns, back.floor)
        if other is not None and ahead < _MOST_AHEAD and until < back.now:
            before = _Backwards(op, back.now, until)
            after = self._through(other, op, before, ahead + 1)
            if after is not None and self.op(after).start_ns >= op.start_ns:
                after = None
            for piece in chain(before.pieces, self._walk(None, after, before.now)):
                if piece.end_ns <= until:
                    break
                if piece.cause in ON_LINKS:
                    back.since(piece.end_ns, Cause.CHANNEL, other)
                    back.since(max(piece.start_ns, until), piece.cause, piece.transfer)
        back.since(since_ns, Cause.CHANNEL, other)

    def _ended(self, rank: int, now: int, begun_ns: int) -> OrderPlace | None:
        """The last action of a rank that had ended, of those that had begun before a moment (some take no time)."""
        at = bisect_right(self._ends[rank], now) - 1
        while at >= 0 and self.orders[rank][at].start_ns >= begun_ns:
            at -= 1
        return OrderPlace(rank, at) if at >= 0 else None


def _ran_before(after: Op, op: Op) -> bool:
    """Whether an action can have waited for another one: it cannot where clocks of ranks differ too much."""
    return after.start_ns < op.start_ns or after.end_ns <= op.start_ns


def _units(orders: list[list[Op]], overlapping: Collection[Action]) -> dict[OrderPlace, tuple[OrderPlace, OrderPlace]]:
    """First and last action of each pair that runs as one, by either of them."""
    units: dict[OrderPlace, tuple[OrderPlace, OrderPlace]] = {}
    for rank, order in enumerate(orders) if overlapping else ():
        mine = [at for at, op in enumerate(order) if Action(op.stage, op.kind, op.microbatch) in overlapping]
        for first, last in zip(mine[::2], mine[1::2], strict=True):
            pair = OrderPlace(rank, first), OrderPlace(rank, last)
            units |= dict.fromkeys(pair, pair)
    return units


class _Backwards:
    """Collects the pieces ahead of an action, latest first, without holes; nobody asks for what is before a floor."""

    def __init__(self, op: Op, now: int | None = None, floor: int = 0) -> None:
        self.pieces: list[ChainPiece] = []
        self.now = op.start_ns if now is None else now
        self.floor = floor
        self._op = op

    def since(self, start_ns: int, cause: Cause, transfer: Transfer | None = None) -> None:
        """Say what went on from a moment until what was said before."""
        if start_ns < self.now:
            self.pieces.append(ChainPiece(start_ns, self.now, cause, self._op, transfer))
            self.now = start_ns


_Channel = tuple[int, int | None, int | None]


class _Messages:
    """The messages of a Timeline: who needs them, when they move, and when they let others pass.

    Attributes:
        to: Messages by the stage that needs them, whether they are activations, and microbatch.
    """

    def __init__(
        self, transfers: Collection[Transfer], topology: Topology, ranks: int, *, blocking: bool, by_edge: bool
    ) -> None:
        self._by_edge = by_edge
        linked = {(t.src_rank, t.dst_rank) for t in transfers if t.link}
        self._paths = {ranks: topology.path(*ranks) for ranks in linked}
        self.to = {(t.dst_stage, t.kind is ActionKind.FORWARD, t.microbatch): t for t in transfers}
        self._sends: list[list[tuple[int, Transfer]]] = [[] for _ in range(ranks)]
        self._frees: defaultdict[_Channel, list[tuple[int, int, Transfer]]] = defaultdict(list)
        for t in transfers:
            copied, left = self.sent_by(t)
            ready = [max(t.send_posted_ns, t.recv_posted_ns)] if t.link else []
            if blocking:
                self._sends[t.src_rank].append((t.send_posted_ns, t))
            self._frees[self._channel(t.src_rank, t)] += [(at, t.send_posted_ns, t) for at in (copied, left, *ready)]
            self._frees[self._channel(t.dst_rank, t)] += [(at, t.recv_posted_ns, t) for at in (t.end_ns, *ready)]
        for sends in self._sends:
            sends.sort(key=itemgetter(0))
        for frees in self._frees.values():
            frees.sort(key=itemgetter(0, 1))

    def _channel(self, rank: int, transfer: Transfer) -> _Channel:
        """What of a rank a message has to itself with those ahead of it and behind it."""
        return (rank, transfer.src_rank, transfer.dst_rank) if self._by_edge else (rank, None, None)

    def _legs(self, transfer: Transfer) -> tuple[int, int]:
        """When a message had left its links, and when it was through the latency; inside a DC its end and its start."""
        path = self._paths.get((transfer.src_rank, transfer.dst_rank))
        if path is None:
            return transfer.end_ns, transfer.start_ns
        left = min(transfer.end_ns, transfer.start_ns + path.occupancy_ns(transfer.payload_bytes or 0))
        return left, min(transfer.end_ns, left + path.latency_ns)

    def sent(self, rank: int, since_ns: int, until_ns: int) -> Iterator[tuple[Transfer, tuple[int, int]]]:
        """What a rank posted to be sent within some time, and when each lay in a buffer and had left it."""
        sends = self._sends[rank]
        first = bisect_left(sends, since_ns, key=itemgetter(0))
        for _, transfer in sends[first : bisect_right(sends, until_ns, key=itemgetter(0))]:
            yield transfer, self.sent_by(transfer)

    def sent_by(self, transfer: Transfer) -> tuple[int, int]:
        """When a message lay in a buffer, if it was buffered, and when it had left."""
        left, arrives = self._legs(transfer)
        return transfer.send_posted_ns + transfer.end_ns - arrives, left

    def freed(self, rank: int, now: int, behind: Transfer) -> tuple[int, Transfer | None]:
        """When a message last let pass what its rank posted after it, for one posted at a moment; and which one."""
        frees = self._frees[self._channel(rank, behind)]
        for at in range(bisect_right(frees, now, key=itemgetter(0)) - 1, -1, -1):
            moment, posted, transfer = frees[at]
            if posted < now:
                return moment, transfer
        return -1, None

    def move(self, transfer: Transfer, back: _Backwards, *, arrives: bool) -> None:
        """Go back from the end of a message to when both sides were there; from where it left, for its sender."""
        left, underway = self._legs(transfer)
        ready = max(transfer.send_posted_ns, transfer.recv_posted_ns)
        if transfer.link is None:
            back.since(min(transfer.start_ns, ready), Cause.CHANNEL, transfer)
            return
        if arrives:
            back.since(underway, Cause.CHANNEL, transfer)
            back.since(left, Cause.CROSS_DC_LATENCY, transfer)
        back.since(min(transfer.start_ns, ready), Cause.CROSS_DC_BANDWIDTH, transfer)
