"""What a rank does, one unit at a time: the vocabulary of schedules and timelines.

A collective that is part of an action or of a rank's tail: what a topology has to know to say how long it takes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tracetool.errors import InvalidSchedule


class ActionKind(StrEnum):
    """Kind of an action, with the codes that torch.distributed.pipelining prints.

    The zero-bubble papers write B for the input gradient alone; here B is the full backward.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "R"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    REDUCE_GRAD = "REDUCE_GRAD"
    OPTIMIZER = "OPTIMIZER"


COMPUTE_KINDS = frozenset("FBIWR")
"""Codes of the kinds that occupy the compute stream for one microbatch."""

GRADIENT_KINDS = frozenset("BI")
"""Codes of the kinds that make the gradient for the previous stage."""

_ACTION = re.compile(r"^(?P<stage>\d{1,9})(?P<kind>SEND_F|RECV_F|SEND_B|RECV_B|[FBIWR])(?P<microbatch>\d{1,9})$")


class Action(NamedTuple):
    """One unit of work of one stage on one microbatch; its text is torch's, as in ``2F0``."""

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read the text form.

        Raises:
            InvalidSchedule: If the text is no action of one microbatch.
        """
        match = _ACTION.match(text.strip())
        if match is None:
            raise InvalidSchedule(
                f"{text[:40]!r} is not an action.",
                hint="actions are written stage, kind, microbatch, as in 2F0 or 0B3",
            )
        return cls(int(match["stage"]), ActionKind(match["kind"]), int(match["microbatch"]))


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """A collective as one rank uses it.

    Attributes:
        operation: allreduce, allgather ... as the trace names it.
        group_ranks: Global ranks of its group.
        payload_bytes: Bytes of the whole tensor; None if unknown.
        own_ns: Its measured time, without waiting for the last rank.
        count: How many of them there are: in each action of a stage and kind on average; 1 of a rank's own.
        lead_ns: How long before the end of the rank's last compute it started, of one that ran beside computes.
        after_ns: How much of its own time came after that end, where it is part of the rank's tail.
        shares: Over how many of the shares that pipelines have of each link it moves its bytes.
        meeting: Name of this collective, the same on all of its ranks; empty of those of actions.
        group: Name of its group; empty of those of actions.
        number: Which of its group's it is in the step, from 1; 0 if it was matched with no other rank.
    """

    operation: str
    group_ranks: tuple[int, ...]
    payload_bytes: int | None
    own_ns: int
    count: float = 1.0
    lead_ns: int = 0
    after_ns: int = 0
    shares: int = 1
    meeting: str = ""
    group: str = ""
    number: int = 0
