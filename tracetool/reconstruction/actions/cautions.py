"""What actions' times hold or lack: collectives that they wait for, kernels on other streams, kernels that got lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.waits import Union
from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.actions.work import RankWork
    from tracetool.reconstruction.capture.account import Account
    from tracetool.reconstruction.steps.steps import Step
    from tracetool.store.run import Run

_WORTH_TELLING = 0.01
"""Share of the time of a rank's actions."""

_COPIES = ("Memcpy", "Memset")
"""How names of copies and fills begin."""

_LOST_SQL = """
SELECT count(*) FROM events AS l
WHERE l.rank = $rank AND l.category = 'launch' AND l.start_ns >= $first AND l.start_ns < $last
  AND l.correlation IS NOT NULL AND regexp_matches(l.name, '^(cuda|cu|hip)LaunchKernel')
  AND NOT EXISTS (
    SELECT 1 FROM events AS k
    WHERE k.rank = l.rank AND k.correlation = l.correlation AND k.category = 'kernel'
  )
"""


def note_cautions(run: Run, step: Step, work: Mapping[int, RankWork], account: Account) -> None:
    """Say how much of the actions' time is bare collectives, what they run on other streams, and what is missing.

    Such time (gathered parameters, tensor-parallel sums) is counted as compute, waiting for slower ranks
    included: what waits for it is part of the action.

    Args:
        run: The ingested traces.
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
        first, last = step.spans[rank]
        ((lost,),) = run.rows(_LOST_SQL, {"rank": rank, "first": first, "last": last})
        if lost:
            account.note(
                NoticeCode.KERNELS_LOST,
                f"{format_ranks([rank])}: {format_count(lost, 'kernel')} launched in the step are not in the trace: "
                "actions that begin or end with one seem shorter",
            )


def bare_ns(work: RankWork) -> int:
    """Time within a rank's actions during which a collective that one of them launched runs, and no compute does.

    Messages are left out: they run beside gaps of any other cause, and no action waits for one after it began.
    """
    inside = [k for s in work.segments for k in s.kernels]
    collectives = [k for k in inside if k.is_collective]
    if not collectives:
        return 0
    computing = [k for k in (*inside, *work.loose) if not (k.is_collective or k.is_p2p or k.is_barrier)]
    both, busy = _union([*collectives, *computing]), _union(computing)
    return sum(both.within(s.start_ns, s.end_ns) - busy.within(s.start_ns, s.end_ns) for s in work.segments)


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
    return _length([*spans, *((k.start_ns, k.end_ns) for k in aside)]) - _length(spans)


def _length(spans: Sequence[tuple[int, int]]) -> int:
    return _union_of(spans).within(min(start for start, _ in spans), max(end for _, end in spans))


def _union(kernels: Sequence[Kernel]) -> Union:
    return _union_of([(k.start_ns, k.end_ns) for k in kernels])


def _union_of(spans: Sequence[tuple[int, int]]) -> Union:
    import numpy as np

    ordered = np.array(sorted(spans), dtype=np.int64)
    return Union(ordered[:, 0], ordered[:, 1])
