"""From a compute order to each rank's program: where its sends and receives are posted.

The three p2p modes differ here and in what a post waits for (``graph``):

* ``grouped``: between a forward and a backward, the send of the one and the receive for the other are one
  batch; compute waits until the batch has ended. As in Megatron and torch's ``Schedule1F1B``.
* ``in-order``: every operation alone. A send follows its compute; the sender's turn also fixes when the
  peer posts the receive, which keeps both sides in one order (the rule of torch's action runtime).
* ``per-edge``: the same, on a channel per pair of ranks and direction; a message does not wait for its receive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ScheduleDeadlock
from tracetool.model.action import GRADIENT_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule


class Message(NamedTuple):
    """An activation (kind FORWARD) or a gradient (kind BACKWARD) of one microbatch between two stages."""

    kind: ActionKind
    microbatch: int
    src_stage: int
    dst_stage: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.microbatch} from stage {self.src_stage} to {self.dst_stage}"


class Post(NamedTuple):
    """Sends and receives that a rank issues as one."""

    sends: tuple[Message, ...]
    recvs: tuple[Message, ...]

    def __str__(self) -> str:
        parts = [f"send {m}" for m in self.sends] + [f"receive {m}" for m in self.recvs]
        return " + ".join(parts)


Unit = tuple[Action, ...]
"""An action, or two that run as one: it starts when all inputs are there, and sends all outputs when it ends."""

Instruction = Action | Post
Program = list[list[Instruction]]


class Dataflow:
    """Which messages a schedule's actions need and make."""

    def __init__(self, schedule: Schedule) -> None:
        self.shape = schedule.shape
        self._split = {
            (a.stage, a.microbatch) for order in schedule.orders for a in order if a.kind is ActionKind.BACKWARD_INPUT
        }
        self.splits = bool(self._split)

    def needs(self, action: Action) -> Message | None:
        """The message an action cannot start without, from another stage."""
        stage, kind, microbatch = action
        source: int | None = None
        if kind is ActionKind.FORWARD:
            source = self.shape.previous(stage)
            return None if source is None else Message(ActionKind.FORWARD, microbatch, source, stage)
        # Without an input-gradient action of its own, a W is the whole backward (torch's first stage).
        whole = kind is ActionKind.BACKWARD_WEIGHT and (stage, microbatch) not in self._split
        if kind.value in GRADIENT_KINDS or whole:
            source = self.shape.next(stage)
        return None if source is None else Message(ActionKind.BACKWARD, microbatch, source, stage)

    def makes(self, action: Action) -> Message | None:
        """The message an action makes for another stage."""
        stage, kind, microbatch = action
        if kind is ActionKind.FORWARD:
            target = self.shape.next(stage)
            return None if target is None else Message(ActionKind.FORWARD, microbatch, stage, target)
        target = self.shape.previous(stage) if kind.value in GRADIENT_KINDS else None
        return None if target is None else Message(ActionKind.BACKWARD, microbatch, stage, target)

    def is_local(self, message: Message) -> bool:
        """Whether both stages sit on one rank, so that nothing is sent."""
        return self.shape.rank_of(message.src_stage) == self.shape.rank_of(message.dst_stage)

    def sent(self, unit: Sequence[Action]) -> tuple[Message, ...]:
        """What actions that run as one send to other ranks: a message each at most."""
        made = [self.makes(action) for action in unit]
        return tuple(m for m in made if m is not None and not self.is_local(m))

    def received(self, unit: Sequence[Action]) -> tuple[Message, ...]:
        """What actions that run as one receive from other ranks: a message each at most."""
        needed = [self.needs(action) for action in unit]
        return tuple(m for m in needed if m is not None and not self.is_local(m))


def build_program(schedule: Schedule, mode: P2PMode) -> Program:
    """Place sends and receives between the computes of a schedule.

    Raises:
        ScheduleDeadlock: If no order of messages lets every rank finish.
    """
    flow = Dataflow(schedule)
    units = [schedule.units(rank) for rank in range(len(schedule.orders))]
    if mode == "grouped":
        return [_grouped(order, flow) for order in units]
    return _one_by_one(schedule, units, flow)


def _grouped(order: Sequence[Unit], flow: Dataflow) -> list[Instruction]:
    program: list[Instruction] = []
    for before, after in zip([(), *order], [*order, ()], strict=True):
        sends, recvs = flow.sent(before), flow.received(after)
        # Around a forward and a backward that run as one, DualPipe posts all it has to as one batch.
        if sends and recvs and (sends[0].kind is not recvs[0].kind or before[1:] or after[1:]):
            program.append(Post(sends, recvs))
        else:
            program += [Post((m,), ()) for m in sends] + [Post((), (m,)) for m in recvs]
        program += after
    return program


def _one_by_one(schedule: Schedule, units: Sequence[Sequence[Unit]], flow: Dataflow) -> Program:
    """Ranks take turns; each takes one compute if its input was sent, and places the peer's receive.

    What torch's action runtime does besides computing (see ``_other_turns``) takes a turn as well.
    """
    program: Program = [[] for _ in units]
    position = [0] * len(units)
    pauses = [_pauses(order, splits=flow.splits) for order in units]
    sent: set[Message] = set()
    while any(i < len(order) for i, order in zip(position, units, strict=True)):
        moved = False
        for rank, order in enumerate(units):
            if position[rank] == len(order):
                continue
            if pauses[rank][position[rank]]:
                pauses[rank][position[rank]] -= 1
                moved = True
                continue
            unit = order[position[rank]]
            if any(needed is not None and needed not in sent for needed in map(flow.needs, unit)):
                continue
            program[rank] += unit
            sent.update(made for made in map(flow.makes, unit) if made is not None)
            for message in flow.sent(unit):
                program[rank].append(Post((message,), ()))
                program[schedule.shape.rank_of(message.dst_stage)].append(Post((), (message,)))
            position[rank] += 1
            moved = True
        if not moved:
            raise ScheduleDeadlock(_stuck(schedule, units, flow, position))
    return program


def _pauses(units: Sequence[Unit], *, splits: bool) -> list[int]:
    """Turns that a rank takes ahead of what it computes as one."""
    turns = iter(_other_turns([action for unit in units for action in unit], splits=splits))
    return [sum(next(turns) for _ in unit) for unit in units]


_ACTIVE_STAGES = 3
"""Stages whose weights torch's action runtime keeps gathered at a time (its ``max_active_stages``)."""


def _other_turns(order: Sequence[Action], *, splits: bool) -> list[int]:
    """Turns that a rank takes ahead of each compute for what torch does at a stage's first and last compute.

    Torch (2.11) puts UNSHARD ahead of the first compute of each of the next three stages, RESHARD when one of them is
    not among those any more, and REDUCE_GRAD after a stage's last backward, with or without sharded weights, before
    it places sends and receives. Each is a turn of the rank, and so decides which receives its peers place first.
    So is the I of its first stage, which does nothing: a trace shows the W alone, which then is the whole backward.
    """
    turns = [0] * len(order)
    ahead: list[int] = []  # the next stages, nearest first
    after: list[int] = []
    left: dict[int, int] = {}
    for action in order:
        left[action.stage] = left.get(action.stage, 0) + (action.kind.value in "BW")
    nexts: list[tuple[int, ...]] = []
    for action in reversed(order):
        ahead = [action.stage, *(s for s in ahead if s != action.stage)]
        nexts.append(tuple(ahead[:_ACTIVE_STAGES]))
    active: set[int] = set()
    done: set[Action] = set()
    for index, (action, following) in enumerate(zip(order, reversed(nexts), strict=True)):
        turns[index] += len(active.symmetric_difference(following)) + len(after)
        active, after = set(following), []
        if (
            splits
            and action.kind is ActionKind.BACKWARD_WEIGHT
            and action._replace(kind=ActionKind.BACKWARD_INPUT) not in done
        ):
            turns[index] += 1
        done.add(action)
        if action.kind.value in "BW":
            left[action.stage] -= 1
            if not left[action.stage]:
                after.append(action.stage)
    return turns


def _stuck(schedule: Schedule, units: Sequence[Sequence[Unit]], flow: Dataflow, position: list[int]) -> str:
    lines = [f"schedule {schedule.name!r} cannot finish: every rank waits."]
    for rank, order in enumerate(units):
        if position[rank] < len(order):
            unit = order[position[rank]]
            needed = [str(m) for m in map(flow.needs, unit) if m is not None]
            lines.append(f"  rank {rank} at {' with '.join(map(str, unit))} waits for {' and '.join(needed)}")
    return "\n".join(lines)
