"""The values that are compared: of every step, of every stage and kind, of every edge, of every rank.

Contributions in whole nanoseconds and bytes whose sum is kept.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, NamedTuple

from tracetool.tables.metrics import METRICS, OF_RANK, OF_STEP, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.ingestion.recording import Recording, StepRecord

DETAILS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("action_ns", "ns", "lower", "Compute time of one action of a stage and kind, as action_ns/2B."),
        Metric("transfer_ns", "ns", "lower", "Time of one message once both sides are ready, as transfer_ns/1F."),
        Metric("tail_ns", "ns", "lower", "What follows a rank's last compute, without waits, as tail_ns/rank3."),
        Metric("payload_bytes", "bytes", "lower", "Bytes of one message, by sending stage and kind."),
        Metric("activation_bytes", "bytes", "lower", "What one forward of a stage leaves allocated: its median."),
        Metric("static_bytes", "bytes", "lower", "Allocated on a rank when the step starts."),
    )
}
"""Metrics of parts of a step; each has a scope behind a slash."""

KNOWN = METRICS | DETAILS

Unit = Literal["step", "action", "figure"]

_RANK = re.compile(r"rank(\d+)$")


class Key(NamedTuple):
    """What a value is of: a metric, and of which stage, edge, rank or replayed schedule (empty: of the step)."""

    metric: str
    scope: str = ""

    @property
    def text(self) -> str:
        """As it is written in limits and reports."""
        return f"{self.metric}/{self.scope}" if self.scope else self.metric

    @classmethod
    def of_rank(cls, metric: str, rank: int) -> Key:
        """The key of what one global rank does or holds."""
        return cls(metric, f"rank{rank}")

    @property
    def rank(self) -> int | None:
        """The global rank that it is of, if it is of one."""
        match = _RANK.match(self.scope)
        return None if match is None else int(match[1])

    @property
    def is_of_replay(self) -> bool:
        """Whether it is about a schedule that was replayed."""
        return bool(self.scope) and self.metric in METRICS and self.rank is None


@dataclass(frozen=True, slots=True)
class Values:
    """What one side measured of one key.

    Attributes:
        per_step: One value per step: of several in it, their mean.
        by_microbatch: Where a step has several, per microbatch one value per step; else empty.
    """

    per_step: tuple[float, ...]
    by_microbatch: tuple[tuple[float, ...], ...] = ()

    @property
    def typical(self) -> float:
        """The median over steps."""
        return median(self.per_step)

    @property
    def all(self) -> tuple[float, ...]:
        """Every single value."""
        return tuple(value for values in self.by_microbatch for value in values) or self.per_step


def values_of(recordings: Sequence[Recording]) -> dict[Key, Values]:
    """All values of one side, its recordings taken together.

    Args:
        recordings: At least one.
    """
    rows: dict[Key, list[list[float]]] = {}
    for recording in recordings:
        for step in recording.steps:
            for key, of_step in _of_step(recording, step):
                rows.setdefault(key, []).append(of_step)
    return {
        key: Values(
            tuple(fmean(each) if len(each) > 1 else each[0] for each in steps),
            tuple(zip(*steps, strict=True)) if len({len(each) for each in steps}) == 1 < len(steps[0]) else (),
        )
        for key, steps in rows.items()
    }


def _of_step(recording: Recording, step: StepRecord) -> Iterable[tuple[Key, list[float]]]:
    for name in OF_STEP:
        yield Key(name), [getattr(step, name)]
    yield from _memory(recording, step)
    for name, action in sorted(step.actions.items()):
        yield Key("action_ns", name), list(action.duration_ns)
    for name, message in sorted(step.messages.items()):
        yield Key("transfer_ns", name), list(message.each_ns)
        if message.payload_bytes is not None:
            yield Key("payload_bytes", name), [message.payload_bytes]
    for rank, record in zip(recording.global_ranks, step.ranks, strict=True):
        yield Key.of_rank("tail_ns", rank), [sum(part.duration_ns for part in record.tail)]


def _memory(recording: Recording, step: StepRecord) -> Iterable[tuple[Key, list[float]]]:
    for name in OF_RANK:
        sizes: list[int | None] = getattr(step, name)
        known = [size for size in sizes if size is not None]
        if known and len(known) == len(sizes):
            yield Key(name), [max(known)]
        for rank, size in zip(recording.global_ranks, sizes, strict=True):
            if size is not None:
                yield Key.of_rank(name, rank), [size]
    for name, action in sorted(step.actions.items()):
        held = [size for size in action.held_bytes if size is not None]
        if name.endswith("F") and held:
            yield Key("activation_bytes", name[:-1]), [median(held)]
    for rank, record in zip(recording.global_ranks, step.ranks, strict=True):
        if record.static_bytes is not None:
            yield Key.of_rank("static_bytes", rank), [record.static_bytes]


def whole_contributions(name: str, values: Sequence[Fraction]) -> list[float]:
    """The values as they are written: of times and sizes whole ones, each off by less than one.

    What rounding takes from one it gives to the next, so that the sum is that of the values, rounded down once.
    Ratios stay as they are.
    """
    if KNOWN[name.partition("/")[0]].unit == "1":
        return [float(value) for value in values]
    contributions: list[float] = []
    exact, given = Fraction(0), 0
    for value in values:
        exact += value
        contributions.append(math.floor(exact) - given)
        given = math.floor(exact)
    return contributions
