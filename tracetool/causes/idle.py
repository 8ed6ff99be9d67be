"""Idle time of a Timeline, each interval of it with the one cause that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.causes.cause import Cause
    from tracetool.model.timeline import Op, Transfer


@dataclass(frozen=True, slots=True)
class Idle:
    """An interval in which a pipeline rank computed nothing, within the pipeline window.

    Attributes:
        rank: Pipeline rank.
        start_ns: From when.
        end_ns: Until when.
        cause: Why.
        held: The action of the rank that came next; None after its last one.
        transfer: The message whose way caused it, where one did.
    """

    rank: int
    start_ns: int
    end_ns: int
    cause: Cause
    held: Op | None = None
    transfer: Transfer | None = None

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns
