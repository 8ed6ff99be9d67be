"""What a rank does, one unit at a time: the vocabulary of schedules and timelines."""

from __future__ import annotations

import re
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
