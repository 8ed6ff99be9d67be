"""What ranks do besides computing: the messages of a schedule and the posts that send and receive them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import GRADIENT_KINDS, Action, ActionKind

if TYPE_CHECKING:
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
