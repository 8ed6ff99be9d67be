"""What makes the times of actions worth less than they look: collectives that they wait for, kernels that got lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reconstruct.waits import Union
from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.kernels import Kernel
    from tracetool.reconstruct.segments import RankWork
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run

_WORTH_TELLING = 0.01
"""Share of the time of a rank's actions."""

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
    """Say how much of the actions' time is collectives with no compute beside them, and how many kernels are missing.

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
    told = {rank: time for rank, time in bare.items() if time > _WORTH_TELLING * spent[rank]}
    if told:
        listed = ", ".join(f"{format_duration(t)} ({t / spent[r]:.0%}) on rank {r}" for r, t in sorted(told.items()))
        account.note(
            "collectives inside actions with no compute beside them count as compute, their waiting for other ranks "
            f"included: {listed}"
        )
    for rank in sorted(work):
        first, last = step.spans[rank]
        ((lost,),) = run.rows(_LOST_SQL, {"rank": rank, "first": first, "last": last})
        if lost:
            account.note(
                f"{format_ranks([rank])}: {format_count(lost, 'kernel')} launched in the step are not in the trace: "
                "actions that begin or end with one seem shorter"
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


def _union(kernels: Sequence[Kernel]) -> Union:
    import numpy as np

    spans = np.array(sorted((k.start_ns, k.end_ns) for k in kernels), dtype=np.int64)
    return Union(spans[:, 0], spans[:, 1])
