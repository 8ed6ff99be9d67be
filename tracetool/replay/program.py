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
        if kind is ActionKind.FORWARD and stage > 0:
            return Message(ActionKind.FORWARD, microbatch, stage - 1, stage)
        # Without an input-gradient action of its own, a W is the whole backward (torch's first stage).
        whole = kind is ActionKind.BACKWARD_WEIGHT and (stage, microbatch) not in self._split
        if (kind.value in GRADIENT_KINDS or whole) and stage < self.shape.stages - 1:
            return Message(ActionKind.BACKWARD, microbatch, stage + 1, stage)
        return None

    def makes(self, action: Action) -> Message | None:
        """The message an action makes for another stage."""
        stage, kind, microbatch = action
        if kind is ActionKind.FORWARD and stage < self.shape.stages - 1:
            return Message(ActionKind.FORWARD, microbatch, stage, stage + 1)
        if kind.value in GRADIENT_KINDS and stage > 0:
            return Message(ActionKind.BACKWARD, microbatch, stage, stage - 1)
        return None

    def is_local(self, message: Message) -> bool:
        """Whether both stages sit on one rank, so that nothing is sent."""
        return self.shape.rank_of(message.src_stage) == self.shape.rank_of(message.dst_stage)

    def sent(self, action: Action | None) -> tuple[Message, ...]:
        """What an action sends to another rank: nothing or one message."""
        message = self.makes(action) if action is not None else None
        return () if message is None or self.is_local(message) else (message,)

    def received(self, action: Action | None) -> tuple[Message, ...]:
        """What an action receives from another rank: nothing or one message."""
        message = self.needs(action) if action is not None else None
        return () if message is None or self.is_local(message) else (message,)


def build_program(schedule: Schedule, mode: P2PMode) -> Program:
    """Place sends and receives between the computes of a schedule.

    Raises:
        ScheduleDeadlock: If no order of messages lets every rank finish.
    """
    flow = Dataflow(schedule)
    if mode == "grouped":
        return [_grouped(order, flow) for order in schedule.orders]
    if mode == "in-order":
        return _in_order(schedule, flow)
    return [_sends_only(order, flow) for order in schedule.orders]


def _grouped(order: Sequence[Action], flow: Dataflow) -> list[Instruction]:
    program: list[Instruction] = []
    for before, after in zip([None, *order], [*order, None], strict=True):
        sends, recvs = flow.sent(before), flow.received(after)
        if sends and recvs and sends[0].kind is not recvs[0].kind:
            program.append(Post(sends, recvs))
        else:
            program += [Post((m,), ()) for m in sends] + [Post((), (m,)) for m in recvs]
        if after is not None:
            program.append(after)
    return program


def _sends_only(order: Sequence[Action], flow: Dataflow) -> list[Instruction]:
    program: list[Instruction] = []
    for action in order:
        program.append(action)
        program += [Post((m,), ()) for m in flow.sent(action)]
    return program


def _in_order(schedule: Schedule, flow: Dataflow) -> Program:
    """Ranks take turns; each takes one compute if its input was sent, and places the peer's receive."""
    program: Program = [[] for _ in schedule.orders]
    position = [0] * len(schedule.orders)
    sent: set[Message] = set()
    while any(i < len(order) for i, order in zip(position, schedule.orders, strict=True)):
        moved = False
        for rank, order in enumerate(schedule.orders):
            if position[rank] == len(order):
                continue
            action = order[position[rank]]
            needed = flow.needs(action)
            if needed is not None and needed not in sent:
                continue
            program[rank].append(action)
            made = flow.makes(action)
            if made is not None:
                sent.add(made)
            for message in flow.sent(action):
                program[rank].append(Post((message,), ()))
                program[schedule.shape.rank_of(message.dst_stage)].append(Post((), (message,)))
            position[rank] += 1
            moved = True
        if not moved:
            raise ScheduleDeadlock(_stuck(schedule, flow, position))
    return program


def _stuck(schedule: Schedule, flow: Dataflow, position: list[int]) -> str:
    lines = [f"schedule {schedule.name!r} cannot finish: every rank waits."]
    for rank, order in enumerate(schedule.orders):
        if position[rank] < len(order):
            action = order[position[rank]]
            lines.append(f"  rank {rank} at {action} waits for {flow.needs(action)}")
    return "\n".join(lines)
