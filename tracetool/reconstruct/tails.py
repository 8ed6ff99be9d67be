"""What follows the last backward of a rank: gradient reduction and optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.kernels import Kernel
    from tracetool.reconstruct.segments import RankWork, Segment
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run

Tail = tuple[tuple[ActionKind, int], ...]
"""The parts of a tail in order, as (kind, duration in ns)."""

_WAITS_SQL = """
WITH numbered AS (
    SELECT rank, "group", group_ranks, start_ns, end_ns - start_ns AS duration_ns,
           row_number() OVER (PARTITION BY rank, "group", group_ranks ORDER BY position) AS number
    FROM comms
    WHERE operation NOT IN ('send', 'recv', 'barrier') AND start_ns >= $first AND end_ns <= $last
),
floors AS (
    SELECT rank, start_ns, duration_ns,
           min(duration_ns) OVER (PARTITION BY "group", group_ranks, number) AS floor_ns
    FROM numbered
)
SELECT coalesce(sum(duration_ns - floor_ns), 0)::BIGINT FROM floors
WHERE rank = $rank AND start_ns >= $after AND start_ns < $until
"""


def observed_tail(kernels: Sequence[Kernel], segments: Sequence[Segment]) -> Tail:
    """What ran after the last backward, without barriers, as it was observed."""
    end = max(s.end_ns for s in segments)
    after = [k for k in kernels if k.start_ns >= end and not k.is_p2p and not k.is_barrier]
    optimizer = [k for k in after if k.is_optimizer]
    if not optimizer:
        return ((ActionKind.REDUCE_GRAD, max(k.end_ns for k in after) - end),) if after else ()
    start = min(k.start_ns for k in optimizer)
    parts = [(ActionKind.OPTIMIZER, max(k.end_ns for k in optimizer) - start)]
    if start > end:
        parts.insert(0, (ActionKind.REDUCE_GRAD, start - end))
    return tuple(parts)


def tails_without_waits(run: Run, step: Step, work: Mapping[int, RankWork]) -> dict[int, Tail]:
    """Each rank's tail without the time its collectives waited for slower ranks.

    The last rank to arrive at a collective does not wait, so the shortest duration over the recorded ranks
    is the collective's own; what another rank spent beyond that was waiting, which replay makes anew.
    """
    first = min(start for start, _ in step.spans.values())
    last = max(end for _, end in step.spans.values())
    tails = {}
    for rank, rank_work in work.items():
        after = max(s.end_ns for s in rank_work.segments)
        until = after + sum(duration for kind, duration in rank_work.tail if kind is ActionKind.REDUCE_GRAD)
        parameters = {"rank": rank, "first": first, "last": last, "after": after, "until": until}
        ((waited,),) = run.rows(_WAITS_SQL, parameters)
        tails[rank] = tuple(
            (kind, max(0, duration - waited) if kind is ActionKind.REDUCE_GRAD else duration)
            for kind, duration in rank_work.tail
        )
    return tails
