"""What actions' times hold or lack: collectives that they wait for, kernels on other streams, kernels that got lost.

Messages beside the actions that make and take them: does the order of their times agree with their meaning?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, UnmatchedTransfer
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.waits import Union, total_ns
from tracetool.reconstruction.steps.reading import SPANS
from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel, RankWork, Segment
    from tracetool.reconstruction.actions.transfers import StageOp
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading

_WORTH_TELLING = 0.01
"""Share of the time of a rank's actions."""

_COPIES = ("Memcpy", "Memset")
"""How names of copies and fills begin."""

_LOST_SQL = f"""
WITH {SPANS}
SELECT s.number, count(*)
FROM events AS l JOIN spans AS s ON s.rank = l.rank AND l.start_ns >= s.first AND l.start_ns < s.last
WHERE l.category = 'launch' AND l.correlation IS NOT NULL AND regexp_matches(l.name, '^(cuda|cu|hip)LaunchKernel')
  AND NOT EXISTS (
    SELECT 1 FROM events AS k
    WHERE k.rank = l.rank AND k.correlation = l.correlation AND k.category = 'kernel'
  )
GROUP BY s.number
ORDER BY s.number
"""


def note_cautions(reading: StepReading, step: Step, work: Mapping[int, RankWork], account: Account) -> None:
    """Say how much of the actions' time is bare collectives, what they run on other streams, and what is missing.

    Such time (gathered parameters, tensor-parallel sums) is counted as compute, waiting for slower ranks
    included: what waits for it is part of the action.

    Args:
        reading: What the Run holds of the step.
        step: The step.
        work: What each rank of the pipeline computed in it.
        account: Takes up the notes.
    """
    bare = {rank: bare_ns(of_rank) for rank, of_rank in work.items()}
    spent = {rank: sum(s.end_ns - s.start_ns for s in of_rank.segments) for rank, of_rank in work.items()}
    much = {rank: time for rank, time in bare.items() if time > _WORTH_TELLING * spent[rank]}
    if much:
        listed = ", ".join(f"{format_duration(t)} ({t / spent[r]:.0%}) on rank {r}" for r, t in sorted(much.items()))
        account.note(
            NoticeCode.COLLECTIVES_BARE,
            "collectives inside actions with no compute beside them count as compute, their waiting for other ranks "
            f"included: {listed}",
        )
    beside = {rank: time for rank, w in work.items() if (time := beside_ns(w)) > _WORTH_TELLING * spent[rank]}
    if beside:
        listed = ", ".join(f"{format_duration(t)} ({t / spent[r]:.0%}) on rank {r}" for r, t in sorted(beside.items()))
        account.note(
            NoticeCode.KERNELS_BESIDE,
            "kernels that actions launched on other streams than that of the compute run on after them, and count as "
            f"no compute: {listed}",
        )
    for rank in sorted(work):
        for (lost,) in reading.rows(_LOST_SQL, rank, step.spans[rank]):
            account.note(
                NoticeCode.KERNELS_LOST,
                f"{format_ranks([rank])}: {format_count(lost, 'kernel')} launched in the step are not in the trace: "
                "actions that begin or end with one seem shorter",
            )


def bare_ns(work: RankWork) -> int:
    """Time within a rank's actions during which a collective that one of them launched runs, and no compute does.

    Messages are left out: they run beside gaps of any other cause, and no action waits for one after it began.
    """
    import numpy as np

    inside = [k for s in work.segments for k in s.kernels]
    collectives = [k for k in inside if k.is_collective]
    if not collectives:
        return 0
    computing = [k for k in (*inside, *work.loose) if not (k.is_collective or k.is_p2p or k.is_barrier)]
    both, busy = _union([*collectives, *computing]), _union(computing)
    starts, ends = (np.array(times) for times in zip(*((s.start_ns, s.end_ns) for s in work.segments), strict=True))
    return int((both.within(starts, ends) - busy.within(starts, ends)).sum())


def beside_ns(work: RankWork) -> int:
    """Time during which kernels of actions run on other streams, outside of all actions."""
    actions = work.segments
    aside = [
        k for s in actions for k in s.kernels
        if not (k.is_compute or k.is_collective or k.is_p2p or k.is_barrier or k.name.startswith(_COPIES))
    ]  # fmt: skip
    if not aside:
        return 0
    spans = [(s.start_ns, s.end_ns) for s in actions]
    return total_ns([*spans, *((k.start_ns, k.end_ns) for k in aside)]) - total_ns(spans)


def _union(kernels: Sequence[Kernel]) -> Union:
    import numpy as np

    ordered = np.array(sorted((k.start_ns, k.end_ns) for k in kernels), dtype=np.int64)
    return Union(ordered[:, 0], ordered[:, 1])


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
