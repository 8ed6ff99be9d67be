"""The actions of a schedule in a row, and the messages between them by number: what placing and compiling work on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from tracetool.errors import InvalidSchedule
from tracetool.model.action import Action, ActionKind
from tracetool.replay.program import Dataflow, Message

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracetool.model.schedule import Schedule

    Int32s = np.ndarray[Any, np.dtype[np.int32]]
    Int64s = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Bools = npt.NDArray[np.bool_]

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
    makes, needs = _keys(schedule, stage, kind, microbatch)

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
    return Flow(
        schedule, actions, first, rank, stage, made, needed, makers, taker,
        dst_rank=rank[taker], remote=rank[taker] != rank[makers],
        edge=2 * stage[makers] + (kind[makers] != 0),
    )  # fmt: skip


def _keys(schedule: Schedule, stage: Int32s, kind: Any, microbatch: Int32s) -> tuple[Any, Any]:
    """Per action, a number for the message it makes and one for the message it needs; -1 for none.

    What ``Dataflow`` says of one action after another, for all at once: stages are asked once each.
    """
    import numpy as np

    flow, splitting = Dataflow(schedule), np.zeros((schedule.shape.stages, int(microbatch.max()) + 1), bool)
    splitting[stage[kind == 2], microbatch[kind == 2]] = True
    # A W that runs where there is no I asks for the gradient as a B does.
    asked = np.where((kind == 3) & ~splitting[stage, microbatch], 5, kind)
    per_stage = np.full((2, schedule.shape.stages, 6), -1, np.int64)
    for s in range(schedule.shape.stages):
        for code, text in enumerate("FBI"):
            action = Action(s, ActionKind(text), 0)
            for row, message in enumerate((flow.makes(action), flow.needs(action))):
                if message is not None:
                    per_stage[row, s, code] = 2 * message.src_stage + (message.kind is ActionKind.BACKWARD)
        per_stage[1, s, 5] = per_stage[1, s, 1]
    edge = per_stage[:, stage, asked]
    return tuple(np.where(edge >= 0, edge * splitting.shape[1] + microbatch, -1))
