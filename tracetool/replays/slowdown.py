"""By what computes take longer than by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.load import SustainedLoad
    from tracetool.replays.flow import Int64s


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
