"""From a compute order to each rank's program: where its sends and receives are posted.

The three p2p modes differ here and in what a post waits for (``graph``):

* ``grouped``: between a forward and a backward, the send of the one and the receive for the other are one
  batch; compute waits until the batch has ended. As in Megatron and torch's ``Schedule1F1B``.
* ``in-order``: every operation alone. A send follows its compute; the sender's turn also fixes when the
  peer posts the receive, which keeps both sides in one order (the rule of torch's action runtime).
* ``per-edge``: sends follow their compute, receives are posted ahead of time.
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
    if mode == "in-order":
        return _in_order(schedule, units, flow)
    return [_sends_only(order, flow) for order in units]


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


def _sends_only(order: Sequence[Unit], flow: Dataflow) -> list[Instruction]:
    program: list[Instruction] = []
    for unit in order:
        program += unit
        program += [Post((m,), ()) for m in flow.sent(unit)]
    return program


def _in_order(schedule: Schedule, units: Sequence[Sequence[Unit]], flow: Dataflow) -> Program:
    """Ranks take turns; each takes one compute if its input was sent, and places the peer's receive."""
    program: Program = [[] for _ in units]
    position = [0] * len(units)
    sent: set[Message] = set()
    while any(i < len(order) for i, order in zip(position, units, strict=True)):
        moved = False
        for rank, order in enumerate(units):
            if position[rank] == len(order):
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


def _stuck(schedule: Schedule, units: Sequence[Sequence[Unit]], flow: Dataflow, position: list[int]) -> str:
    lines = [f"schedule {schedule.name!r} cannot finish: every rank waits."]
    for rank, order in enumerate(units):
        if position[rank] < len(order):
            unit = order[position[rank]]
            needed = [str(m) for m in map(flow.needs, unit) if m is not None]
            lines.append(f"  rank {rank} at {' with '.join(map(str, unit))} waits for {' and '.join(needed)}")
    return "\n".join(lines)
