"""What was asked beside a Scenario, and changes what a replay gives: without it two answers are not of one question."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Choice:
    """What was asked of one schedule; None where it was left to be chosen, or the schedule does not heed it.

    Attributes:
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's.
        chunks: Stages per rank to cut one into.
        time_limit_s: How long a search may take.
        order: SHA-256 of an order read from a file.
    """

    extra_forwards: tuple[int, ...] | None = None
    chunks: int | None = None
    time_limit_s: float | None = None
    order: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What was not measured where it is used.

    Attributes:
        costs_from: Digest of the recording whose slowdown beside communication was taken.
        memory_from: Digest of the recording whose memory figures were taken.
        copied_ranks: Per rank that was not recorded, the rank copied.
    """

    costs_from: str | None = None
    memory_from: str | None = None
    copied_ranks: Mapping[int, int] = field(default_factory=dict)
