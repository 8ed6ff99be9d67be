"""The critical path, short enough to read: runs of computes, ways of messages, and what repeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.causes.cause import Cause
    from tracetool.causes.chain import ChainPiece
    from tracetool.model.action import ActionKind
    from tracetool.model.timeline import Op, Transfer

_SHORT_RATIO = 0.01
"""Messages inside a DC that take a smaller share of the window are told with the computes after them."""

_LONGEST_REPEAT = 12
"""Steps that what repeats may have."""


@dataclass(slots=True)
class PathStep:
    """A part of the critical path that is told as one.

    Attributes:
        start_ns: When it began.
        end_ns: When it ended.
        ops: Computes, in order.
        waits: What else it was, in order: cause, time in ns, and the message if it was one's way. A step has computes
            of one rank and what was shortly ahead of them, or what one microbatch did over several ranks of a DC, or a
            message's way.
    """

    start_ns: int
    end_ns: int
    ops: list[Op] = field(default_factory=list)
    waits: list[tuple[Cause, int, Transfer | None]] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    @property
    def ranks(self) -> list[int]:
        """Ranks that compute in it, in order."""
        return [rank for rank, _ in groupby(op.rank for op in self.ops)]

    @property
    def message(self) -> Transfer | None:
        """The message that took longest in it."""
        ways = [(duration, -at) for at, (_, duration, transfer) in enumerate(self.waits) if transfer is not None]
        return self.waits[-max(ways)[1]][2] if ways else None

    def wait_ns(self) -> dict[Cause, int]:
        """What is no compute in it, by cause."""
        sums: dict[Cause, int] = {}
        for cause, duration, _ in self.waits:
            sums[cause] = sums.get(cause, 0) + duration
        return sums

    def microbatches(self) -> list[int]:
        """Microbatches of its computes or its message, ascending."""
        message = self.message
        return sorted({op.microbatch for op in self.ops} or ({message.microbatch} if message else set()))

    def crosses(self) -> bool:
        """Whether a link is in it."""
        return any(transfer is not None and transfer.link is not None for _, _, transfer in self.waits)

    def _alike(self) -> tuple[object, ...]:
        """What it has in common with its repetitions, for other microbatches."""
        message = self.message
        way = (message.src_rank, message.dst_rank, message.kind) if message else None
        return tuple((op.rank, op.kind) for op in self.ops), way if not self.ops else None

    def repeats(self, other: PathStep) -> bool:
        """Whether it is the like of another step."""
        return self._alike() == other._alike()


@dataclass(frozen=True, slots=True)
class PathPart:
    """Steps of the critical path, and how often the like of them came in a row."""

    steps: tuple[PathStep, ...]
    times: int
    start_ns: int
    end_ns: int
    last_microbatches: tuple[int, ...] = ()


def path_parts(pieces: Iterable[ChainPiece]) -> list[PathPart]:
    """The critical path in parts."""
    steps = _stepped(pieces)
    return _folded(_waved(_joined(steps, _SHORT_RATIO * (steps[-1].end_ns - steps[0].start_ns))))


def _stepped(pieces: Iterable[ChainPiece]) -> list[PathStep]:
    """Neighbouring computes of a rank as one step, and what is between computes of different ranks as one."""
    steps: list[PathStep] = []
    for (is_compute, _), group in groupby(
        pieces, key=lambda piece: (piece.cause is None, piece.op.rank if piece.cause is None else None)
    ):
        neighbours = list(group)
        step = PathStep(neighbours[0].start_ns, neighbours[-1].end_ns)
        if is_compute:
            step.ops = [piece.op for piece in neighbours]
        else:
            step.waits = [(p.cause, p.end_ns - p.start_ns, p.transfer) for p in neighbours if p.cause is not None]
        steps.append(step)
    return steps


def _joined(steps: Sequence[PathStep], short_ns: float) -> list[PathStep]:
    """Short waits with the computes after them, and computes of a rank with those before."""
    joined: list[PathStep] = []
    for step in steps:
        ahead = joined[-1] if joined and not joined[-1].ops else None
        if step.ops and ahead is not None and not ahead.crosses() and ahead.duration_ns < short_ns:
            joined.pop()
            step.start_ns, step.waits = ahead.start_ns, ahead.waits
        last = joined[-1] if joined and joined[-1].ops else None
        if last is not None and step.ops and last.ranks[-1] == step.ranks[0]:
            last.end_ns = step.end_ns
            last.ops += step.ops
            last.waits += step.waits
        else:
            joined.append(step)
    return joined


def _kind(step: PathStep) -> tuple[ActionKind, int] | None:
    """Kind and microbatch of a step of one compute or several of the same."""
    kinds = {(op.kind, op.microbatch) for op in step.ops}
    return kinds.pop() if len(kinds) == 1 else None


def _waved(steps: Sequence[PathStep]) -> list[PathStep]:
    """Steps of one microbatch that goes from rank to rank of a DC as one."""
    waves: list[PathStep] = []
    for step in steps:
        last = waves[-1] if waves else None
        if last is not None and _kind(step) is not None and _kind(step) == _kind(last):
            last.end_ns = step.end_ns
            last.ops += step.ops
            last.waits += step.waits
        else:
            waves.append(step)
    return waves


def _folded(steps: Sequence[PathStep]) -> list[PathPart]:
    """What repeats, once."""
    parts: list[PathPart] = []
    at = 0
    while at < len(steps):
        length, times = max(
            ((size, _times(steps, at, size)) for size in range(1, _LONGEST_REPEAT + 1)),
            key=lambda cycle: (cycle[0] * cycle[1] if cycle[1] > 1 else 0, -cycle[0]),
        )
        if times == 1:
            length = 1
        until = at + length * times
        last = {m for step in steps[until - length : until] for m in step.microbatches()}
        parts.append(
            PathPart(
                tuple(steps[at : at + length]), times, steps[at].start_ns, steps[until - 1].end_ns, tuple(sorted(last))
            )
        )
        at = until
    return parts


def _times(steps: Sequence[PathStep], at: int, length: int) -> int:
    """How often the next steps come in a row."""
    times = 1
    while True:
        following = steps[at + times * length : at + (times + 1) * length]
        if len(following) < length or not all(a.repeats(b) for a, b in zip(following, steps[at:], strict=False)):
            return times
        times += 1
