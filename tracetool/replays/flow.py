"""The actions of a schedule in a row, and the messages between them by number: what placing and compiling work on.

What ranks do besides computing: the messages of a schedule.

By what computes take longer than by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import InvalidSchedule
from tracetool.model.action import GRADIENT_KINDS, Action, ActionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from tracetool.model.load import SustainedLoad
    from tracetool.model.schedule import Schedule

    Int32s = np.ndarray[Any, np.dtype[np.int32]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Floats = np.ndarray[Any, np.dtype[np.float64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Int8s = np.ndarray[Any, np.dtype[np.int8]]
    Bools = npt.NDArray[np.bool_]


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


FORWARD, BACKWARD, INPUT, WEIGHT, RECOMPUTE, WHOLE_WEIGHT = range(6)
"""Kinds of actions in arrays; a W where there is no I is a whole backward (torch's first stage)."""

_CODES = {kind: code for code, kind in enumerate("FBIWR")}


@dataclass(frozen=True, slots=True)
class Flow:
    """A schedule as arrays; actions and messages are told by number.

    Attributes:
        schedule: What it was made of.
        actions: The actions of rank 0 in order, then those of rank 1 and so on.
        first: Number of each rank's first action, and at the end the number of all actions.
        rank: Per action, its rank.
        stage: Per action, its stage.
        kind: Per action, FORWARD and so on as above.
        opens: Per action, the one that its unit begins with: itself, or the first of two that run as one.
        closes: Per action, the one that its unit ends with.
        made: Per action, the message it makes for another stage; -1 for none.
        needed: Per action, the message it cannot start without; -1 for none.
        maker: Per message, the action that makes it; messages are numbered in this order.
        taker: Per message, the action that needs it.
        dst_rank: Per message, the rank of the taker.
        remote: Per message, whether its stages sit on different ranks, so that something is sent.
        edge: Per message, twice the stage that sends it, and one more for a gradient.
    """

    schedule: Schedule
    actions: list[Action]
    first: Int32s
    rank: Int32s
    stage: Int32s
    kind: Int8s
    opens: Int32s
    closes: Int32s
    made: Int32s
    needed: Int32s
    maker: Int32s
    taker: Int32s
    dst_rank: Int32s
    remote: Bools
    edge: Int32s

    @property
    def messages(self) -> int:
        """Number of messages."""
        return len(self.maker)

    def message(self, number: int) -> Message:
        """A message by its number."""
        maker, taker = self.actions[self.maker[number]], self.actions[self.taker[number]]
        kind = ActionKind.BACKWARD if self.edge[number] % 2 else ActionKind.FORWARD
        return Message(kind, maker.microbatch, maker.stage, taker.stage)

    def is_remote(self, messages: Int32s) -> Bools:
        """Which of some messages are sent to another rank; none where there is no message."""
        return (messages >= 0) & self.remote[messages] if self.messages else messages >= 0

    def is_gradient(self, messages: Int32s) -> Bools:
        """Which of some messages are gradients."""
        return (messages >= 0) & (self.edge[messages] % 2 == 1) if self.messages else messages >= 0


def trace_flow(schedule: Schedule) -> Flow:
    """Number the actions and messages of a schedule.

    Raises:
        InvalidSchedule: If an action needs a message that none makes, or makes one that none needs.
    """
    import numpy as np

    actions = list(chain.from_iterable(schedule.orders))
    sizes = [len(order) for order in schedule.orders]
    first = np.cumsum([0, *sizes], dtype=np.int32)
    rank = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    stages, kinds, microbatches = zip(*actions, strict=True)
    stage = np.array(stages, np.int32)
    microbatch = np.array(microbatches, np.int32)
    kind = np.array([_CODES[k] for k in kinds], np.int8)
    is_split = np.zeros((schedule.shape.stages, int(microbatch.max()) + 1), bool)
    is_split[stage[kind == INPUT], microbatch[kind == INPUT]] = True
    kind[(kind == WEIGHT) & ~is_split[stage, microbatch]] = WHOLE_WEIGHT
    makes, needs = (
        np.where(edge >= 0, edge * is_split.shape[1] + microbatch, -1) for edge in _edges(schedule)[:, stage, kind]
    )

    makers = np.flatnonzero(makes >= 0).astype(np.int32)
    number = np.full(int(max(makes.max(), needs.max())) + 2, -1, np.int32)  # the last one is for no message, -1
    number[makes[makers]] = np.arange(len(makers))
    made, needed = number[makes], number[needs]
    takers = np.flatnonzero(needed >= 0)
    taker = np.full(len(makers), -1, np.int32)
    taker[needed[takers]] = takers
    orphans = [*np.flatnonzero((needs >= 0) & (needed < 0)), *makers[taker < 0]]
    if orphans:
        raise InvalidSchedule(f"schedule {schedule.name!r}: {actions[orphans[0]]} has no other side.")
    opens, closes = _units(schedule, first)
    return Flow(
        schedule=schedule, actions=actions, first=first, rank=rank, stage=stage, kind=kind, opens=opens, closes=closes,
        made=made, needed=needed, maker=makers, taker=taker, dst_rank=rank[taker], remote=rank[taker] != rank[makers],
        edge=2 * stage[makers] + (kind[makers] != FORWARD),
    )  # fmt: skip


def _units(schedule: Schedule, first: Int32s) -> tuple[Int32s, Int32s]:
    """Per action, the first and the last one of its unit."""
    import numpy as np

    opens = np.arange(first[-1], dtype=np.int32)
    closes = opens.copy()
    for rank, starts in enumerate(schedule.overlaps):
        pairs = first[rank] + np.array(sorted(starts), np.int32)
        opens[pairs + 1] = pairs
        closes[pairs] = pairs + 1
    return opens, closes


def _edges(schedule: Schedule) -> Any:
    """The edge (see ``Flow``) of what is made and of what is needed, by stage and kind; -1 for none.

    This is what ``Dataflow`` says of one action after another: it is the same for all microbatches.
    """
    import numpy as np

    flow = Dataflow(schedule)
    edges = np.full((2, schedule.shape.stages, WHOLE_WEIGHT + 1), -1, np.int64)
    for stage in range(schedule.shape.stages):
        for code, kind in ((FORWARD, "F"), (BACKWARD, "B"), (INPUT, "I")):
            action = Action(stage, ActionKind(kind), 0)
            for row, message in enumerate((flow.makes(action), flow.needs(action))):
                if message is not None:
                    edges[row, stage, code] = 2 * message.src_stage + (message.kind is ActionKind.BACKWARD)
        edges[1, stage, WHOLE_WEIGHT] = edges[1, stage, BACKWARD]
    return edges


@dataclass(frozen=True, slots=True)
class Slowdown:
    """By what computes take longer than by themselves.

    Attributes:
        contended: Per action (for the event loop: per task), its time beside a communication kernel from start to end.
        loads: Per pipeline rank, how its device slows down under sustained load, if it does.
        step_loads: Per pipeline rank, the average load of its step; empty if that is to be found out.
    """

    contended: Int64s
    loads: tuple[SustainedLoad | None, ...]
    step_loads: tuple[float, ...] = ()
