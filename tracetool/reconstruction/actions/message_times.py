"""Messages beside the actions that make and take them: does the order of their times agree with their meaning?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, UnmatchedTransfer
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions.transfers import StageOp
    from tracetool.reconstruction.actions.work import RankWork, Segment
    from tracetool.reconstruction.capture.account import Account
    from tracetool.reconstruction.steps.steps import Step

_EARLY = 0.01
"""Share of an action from which on it is told that the action begins before its message has come."""


def _hint() -> str:
    return f"labels of actions contradict those of messages, or the step is cut off: try another one with {Option.STEP}"


class _Key(NamedTuple):
    """A forward, or the backward in all its parts."""

    stage: int
    is_forward: bool
    microbatch: int


def check_times(
    step: Step, ops: Mapping[int, Sequence[StageOp]], work: Mapping[int, RankWork], account: Account
) -> None:
    """Check that nothing is sent before what makes it begins, and nothing received after what takes it ended.

    All times compared are of one rank's clock. What fails was given a wrong stage or microbatch. An action that
    begins before its message has come is told: the rest of the wait is in its time.

    Raises:
        UnmatchedTransfer: If a message is sent or received at such a time, or its rank does not run its action.
    """
    waits: list[int] = []
    for rank, mine in ops.items():
        spans = _spans(work[rank].segments)
        for op in mine:
            span = spans.get(_Key(op.stage, op.kind is ActionKind.FORWARD, op.microbatch))
            if span is None:
                raise UnmatchedTransfer(
                    f"step {step.number}: rank {rank} {'sends' if op.op.is_send else 'receives'} a message of "
                    f"{_name(op)}, which it does not run.",
                    hint=_hint(),
                )
            waits += _waits(step, op, *span)
    if waits:
        account.note(
            NoticeCode.ACTIONS_BEFORE_MESSAGES,
            f"actions that begin before their message has come: {len(waits)}; up to {format_duration(sum(waits))} of "
            "waiting counts as their compute",
        )


def _spans(segments: Sequence[Segment]) -> dict[_Key, tuple[int, int]]:
    spans: dict[_Key, tuple[int, int]] = {}
    for s in segments:
        key = _Key(s.stage, s.kind is ActionKind.FORWARD, s.microbatch)
        start, end = spans.get(key, (s.start_ns, s.end_ns))
        spans[key] = min(start, s.start_ns), max(end, s.end_ns)
    return spans


def _waits(step: Step, op: StageOp, start: int, end: int) -> list[int]:
    """What an action may have waited after it began, if that is worth telling."""
    posted, done = op.op.start_ns or 0, op.op.end_ns or 0
    wrong = None
    if op.op.is_send and posted < start:
        wrong = f"makes is sent {format_duration(start - posted)} before it begins"
    elif not op.op.is_send and posted >= end:
        wrong = f"takes is received {format_duration(posted - end)} after it ended"
    if wrong is not None:
        raise UnmatchedTransfer(f"step {step.number}, rank {op.op.rank}: what {_name(op)} {wrong}.", hint=_hint())
    early = min(done, end) - start
    return [early] if not op.op.is_send and early > _EARLY * (end - start) else []


def _name(op: StageOp) -> str:
    return f"{op.stage}{op.kind.value}{op.microbatch}"
