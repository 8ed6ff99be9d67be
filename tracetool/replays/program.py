"""What ranks do besides computing: the messages of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import GRADIENT_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.schedule import Schedule


class Message(NamedTuple):
    """An activation (kind FORWARD) or a gradient (kind BACKWARD) of one microbatch between two stages."""

    kind: ActionKind
    microbatch: int
    src_stage: int
    dst_stage: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.microbatch} from stage {self.src_stage} to {self.dst_stage}"


Unit = tuple[Action, ...]
"""An action, or two that run as one: it starts when all inputs are there, and sends all outputs when it ends."""


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
