"""From a compute order to each rank's program: where its sends and receives are posted.

The p2p modes differ here and in what a post waits for (``graph``):

* ``grouped``: between a forward and a backward, the send of the one and the receive for the other are one
  batch; compute waits until the batch has ended. As in Megatron and torch's ``Schedule1F1B``. Where stages are
  interleaved, all between two computes of the warm-up or the cool-down is one batch, and all around a forward and the
  backward after it (Megatron's ``send_forward_backward_recv_forward_backward``).
* ``blocking``: likewise, but every operation alone: ahead of a forward the send, then the receive, ahead of a
  backward mostly the other way round. As in DeepSpeed's pipeline engine (its ``TrainSchedule``).
* ``in-order``: every operation alone. A send follows its compute; the sender's turn also fixes when the
  peer posts the receive, which keeps both sides in one order (the rule of torch's action runtime).
* ``per-edge``: the same, on a channel per pair of ranks and direction.
* ``posted-ahead``: likewise, but a message does not wait for its receive.

What torch's action runtime does besides computing, as far as it decides where receives are posted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleDeadlock
from tracetool.replays.flow import BACKWARD, FORWARD, INPUT, WEIGHT, WHOLE_WEIGHT

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.replays.flow import Bools, Flow, Int32s

_ACTIVE_STAGES = 3
"""Stages whose weights torch's action runtime keeps gathered at a time (its ``max_active_stages``)."""


def other_turns(flow: Flow) -> list[int]:
    """Turns that a rank takes ahead of each compute for what torch does at a stage's first and last compute.

    Torch (2.11) puts UNSHARD ahead of the first compute of each of the next three stages, RESHARD when one of them is
    not among those any more, and REDUCE_GRAD after a stage's last backward, with or without sharded weights, before
    it places sends and receives. Each is a turn of the rank, and so decides which receives its peers place first.
    So is the I of its first stage, which does nothing: a trace shows the W alone, which then is the whole backward.

    Returns:
        Per action of the flow, the turns ahead of it; ahead of both of two that run as one, where the first has them.
    """
    import numpy as np

    turns = np.zeros(len(flow.actions) + 1, np.int64)
    first = flow.first.tolist()
    for begin, end in pairwise(first):
        turns[begin:end] = _changes(flow.stage[begin:end].tolist())
    if (flow.kind == INPUT).any():
        turns[:-1] += flow.kind == WHOLE_WEIGHT
    ends = np.flatnonzero(np.isin(flow.kind, (BACKWARD, WEIGHT, WHOLE_WEIGHT)))
    last = np.full(flow.schedule.shape.stages, -1)
    last[flow.stage[ends]] = ends  # of each stage the last one stays
    after = last[last >= 0] + 1
    turns[after[~np.isin(after, flow.first)]] += 1
    counts: list[int] = np.bincount(flow.opens, weights=turns[:-1], minlength=len(flow.actions)).astype(int).tolist()
    return counts


def _changes(stages: list[int]) -> list[int]:
    """How many stages come to the next three or leave them with each action of a rank."""
    ahead: list[int] = []  # the next stages, nearest first
    following: frozenset[int] = frozenset()
    nexts = []
    for stage in reversed(stages):
        if not ahead or stage != ahead[0]:
            ahead = [stage, *(s for s in ahead if s != stage)]
            following = frozenset(ahead[:_ACTIVE_STAGES])
        nexts.append(following)
    changes = []
    active: frozenset[int] = frozenset()
    for following in reversed(nexts):
        changes.append(0 if following is active else len(active ^ following))
        active = following
    return changes


@dataclass(frozen=True, slots=True)
class Placed:
    """What every rank does, rank by rank: computes, and posts of messages between them.

    Attributes:
        rank: Per instruction, its rank.
        action: Per instruction, the number of the action it computes; -1 for a post.
        send_at: Per message, the instruction that posts its send; -1 for none (both stages on one rank).
        recv_at: Per message, the instruction that posts its receive; -1 for none.
    """

    rank: Int32s
    action: Int32s
    send_at: Int32s
    recv_at: Int32s


def place(flow: Flow, mode: P2PMode) -> Placed:
    """Place sends and receives between the computes of a schedule.

    Raises:
        ScheduleDeadlock: If no order of messages lets every rank finish.
    """
    if mode == "blocking":
        return _blocking(flow)
    return _grouped(flow) if mode == "grouped" else _one_by_one(flow)


def _grouped(flow: Flow) -> Placed:
    """After each compute its sends, then the receives for the next one: as one batch where their kinds differ.

    Around a forward and a backward that run as one, DualPipe posts all it has to as one batch.
    """
    import numpy as np

    is_interleaved, unit_opens, unit_closes = _batch_units(flow)
    opens = np.unique(unit_opens)
    unit = np.searchsorted(opens, unit_opens)
    is_pair = unit_closes[opens] != opens
    does_send, does_receive = flow.is_remote(flow.made), flow.is_remote(flow.needed)
    sends, recvs = (
        np.bincount(unit[does_send], minlength=len(opens)),
        np.bincount(unit[does_receive], minlength=len(opens)),
    )
    begins_rank, ends_rank = (np.isin(opens, flow.first), np.isin(unit_closes[opens] + 1, flow.first))
    ahead = np.where(begins_rank, 0, np.append(0, sends[:-1]))  # what the unit before on the rank sends
    sends_gradient, receives_gradient = (
        flow.is_gradient(messages[np.where(does[opens], opens, unit_closes[opens])])
        for messages, does in ((flow.made, does_send), (flow.needed, does_receive))
    )
    differs = np.append(False, sends_gradient[:-1] != receives_gradient[1:]) | is_pair | np.append(False, is_pair[:-1])
    is_joined = (ahead > 0) & (recvs > 0) & differs
    if is_interleaved:  # but where all forwards are warm-up: then the first gradient is received by itself
        alone = ~is_pair & (flow.kind[opens] == BACKWARD)
        turns = alone & np.append(False, ~is_pair[:-1] & (flow.kind[opens[:-1]] == FORWARD))
        is_joined = (ahead + recvs > 0) & ~turns
    posts = np.where(is_joined, 1, ahead + recvs)
    after = np.where(ends_rank, sends, 0)
    sizes = posts + 1 + is_pair + after
    start = np.cumsum(sizes) - sizes

    compute_at = (start + posts)[unit] + (unit_opens != np.arange(len(unit)))
    action = np.full(int(sizes.sum()), -1, np.int32)
    action[compute_at] = np.arange(len(unit))
    send_at, recv_at = np.full(flow.messages, -1, np.int32), np.full(flow.messages, -1, np.int32)
    senders, receivers = np.flatnonzero(does_send), np.flatnonzero(does_receive)
    follows = np.append(start, 0)[unit + 1]  # the posts ahead of the next unit
    joined_next = np.append(is_joined, False)[unit + 1]
    alone = np.where(ends_rank[unit], compute_at[unit_closes] + 1, follows) + _second(unit_opens, does_send)
    send_at[flow.made[senders]] = np.where(joined_next & ~ends_rank[unit], follows, alone)[senders]
    alone = (start + ahead)[unit] + _second(unit_opens, does_receive)
    recv_at[flow.needed[receivers]] = np.where(is_joined[unit], start[unit], alone)[receivers]
    return Placed(np.repeat(flow.rank[opens], sizes), action, send_at, recv_at)


def _blocking(flow: Flow) -> Placed:
    """Ahead of each unit the sends of the one before and its own receives.

    A gradient is received ahead of the activation's send where the peer can make it without that activation.
    """
    program: list[list[int]] = []
    does_send, does_receive = flow.is_remote(flow.made).tolist(), flow.is_remote(flow.needed).tolist()
    made, needed, closes = flow.made.tolist(), flow.needed.tolist(), flow.closes.tolist()
    maker, taker, edge = flow.maker.tolist(), flow.taker.tolist(), flow.edge.tolist()
    for begin, end in pairwise(flow.first.tolist()):
        codes: list[int] = []
        sends: list[int] = []
        action = begin
        while action < end:
            unit = range(action, closes[action] + 1)
            recvs = [needed[a] for a in unit if does_receive[a]]
            first = [r for r in recvs if edge[r] % 2 and any(not edge[s] % 2 and maker[r] < taker[s] for s in sends)]
            codes += [~(2 * r + 1) for r in first]
            codes += [~(2 * s) for s in sends]
            codes += [~(2 * r + 1) for r in recvs if r not in first]
            codes += unit
            sends = [made[a] for a in unit if does_send[a]]
            action = unit.stop
        program.append(codes + [~(2 * s) for s in sends])
    return _decoded(flow, program)


def _second(opens: Int32s, does: Bools) -> Bools:
    """Which actions come second in a unit whose first one does it as well."""
    import numpy as np

    is_second: Bools = (opens != np.arange(len(does))) & does[opens]
    return is_second


def _batch_units(flow: Flow) -> tuple[bool, Int32s, Int32s]:
    """Whether stages are interleaved as Megatron does it, and per action what its unit of a batch begins and ends with.

    There each forward behind the warm-up and the backward that follows it are one unit.
    """
    import numpy as np

    shape = flow.schedule.shape
    if shape.chunks == 1 or shape.placement != "loop" or flow.schedule.overlaps:
        return False, flow.opens, flow.closes
    opens, closes = flow.opens.copy(), flow.closes.copy()
    ranks, forwards = shape.ranks // shape.copies, shape.microbatches * shape.chunks
    group = int(np.argmax(np.append(flow.stage[:forwards] != 0, True)))  # forwards through a chunk before the next one
    for rank, (begin, end) in enumerate(pairwise(flow.first.tolist())):
        ahead = np.flatnonzero(flow.kind[begin:end] == FORWARD)
        warm_up = 2 * (ranks - rank % ranks - 1) + (shape.chunks - 1) * group
        steady = np.arange(max(0, forwards - warm_up), dtype=np.int32)
        in_turn = np.append(np.arange(min(warm_up, forwards)), warm_up + 2 * steady)
        is_whole = np.isin(flow.kind[begin:end], (FORWARD, BACKWARD)).all() and end - begin == 2 * forwards
        if not is_whole or not np.array_equal(ahead, in_turn):
            return False, flow.opens, flow.closes
        pairs = begin + warm_up + 2 * steady
        opens[pairs + 1] = pairs
        closes[pairs] = pairs + 1
    return True, opens, closes


def _one_by_one(flow: Flow) -> Placed:
    """Ranks take turns; each takes one compute if its input was sent, and places the peer's receive.

    What torch's action runtime does besides computing (see ``turns``) takes a turn as well. A rank without its input
    is left out until it is sent, so that no turn is in vain.
    """
    needed, made = flow.needed.tolist(), flow.made.tolist()
    peer = [rank if remote else -1 for rank, remote in zip(flow.dst_rank.tolist(), flow.remote.tolist(), strict=True)]
    position, end = flow.first[:-1].tolist(), flow.first[1:].tolist()
    # Actions by number; below 0 are ~(2 message), its send, and ~(2 message + 1), its receive.
    program: list[list[int]] = [[] for _ in end]
    pauses = other_turns(flow)
    closes = flow.closes.tolist()
    is_sent = bytearray(flow.messages)
    waits = [0] * flow.messages  # per message, the rank that was left out for it
    now, later = sum(1 << rank for rank in set(flow.rank.tolist())), 0  # ranks are bits, the lowest has its turn first
    while now:
        while now:  # one round
            bit = now & -now
            now ^= bit
            rank = bit.bit_length() - 1
            action = position[rank]
            if pauses[action]:
                pauses[action] -= 1
                later |= bit
                continue
            last = closes[action]
            message = _missing(needed, is_sent, action, last)
            if message >= 0:
                waits[message] = bit
                continue
            program[rank].append(action)
            if last > action:
                program[rank].append(last)
            for message in made[action : last + 1]:
                if message < 0:
                    continue
                is_sent[message] = 1
                if peer[message] >= 0:
                    program[rank].append(~(2 * message))
                    program[peer[message]].append(~(2 * message + 1))
                if waits[message] > bit:
                    now |= waits[message]
                else:
                    later |= waits[message]
            position[rank] = last + 1
            if last + 1 < end[rank]:
                later |= bit
        now, later = later, 0
    if position != end:
        raise ScheduleDeadlock(_stuck(flow, position, end))
    return _decoded(flow, program)


def _missing(needed: list[int], is_sent: bytearray, first: int, last: int) -> int:
    """A message that one of the actions of a unit needs and that is not sent yet; -1 if there is none."""
    if needed[first] >= 0 and not is_sent[needed[first]]:
        return needed[first]
    return needed[last] if needed[last] >= 0 and not is_sent[needed[last]] else -1


def _decoded(flow: Flow, program: list[list[int]]) -> Placed:
    import numpy as np

    codes = np.array([code for of_rank in program for code in of_rank], np.int32)
    rank = np.repeat(np.arange(len(program), dtype=np.int32), [len(of_rank) for of_rank in program])
    send_at = np.full(flow.messages, -1, np.int32)
    recv_at = np.full(flow.messages, -1, np.int32)
    posts = np.flatnonzero(codes < 0)
    message, is_recv = ~codes[posts] >> 1, (~codes[posts] & 1).astype(bool)
    send_at[message[~is_recv]] = posts[~is_recv]
    recv_at[message[is_recv]] = posts[is_recv]
    return Placed(rank, np.maximum(codes, -1), send_at, recv_at)


def _stuck(flow: Flow, position: list[int], end: list[int]) -> str:
    lines = [f"schedule {flow.schedule.name!r} cannot finish: every rank waits."]
    for rank, (at, last) in enumerate(zip(position, end, strict=True)):
        if at < last:
            unit = range(at, flow.closes[at] + 1)
            computes = " with ".join(str(flow.actions[a]) for a in unit)
            messages = " and ".join(str(flow.message(flow.needed[a])) for a in unit if flow.needed[a] >= 0)
            lines.append(f"  rank {rank} at {computes} waits for {messages}")
    return "\n".join(lines)
