"""What a step takes besides its pipeline's work: the host until the first kernel, and after the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.reconstruction.actions.work import RankWork
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.steps.steps import Step
    from tracetool.store.run import Run

_SQL = """
SELECT max(end_ns) FILTER (end_ns <= $first), min(start_ns) FILTER (start_ns >= $last)
FROM comms
WHERE rank = $rank AND operation NOT IN ('send', 'recv', 'exchange') AND start_ns >= $start AND end_ns <= $end
"""


def outside_ns(run: Run, group: PipelineGroup, step: Step, work: Mapping[int, RankWork]) -> int | None:
    """Host time of a marked step around its device work, in ns.

    It runs from the start of the mark to the first kernel of the pipeline, on the rank where that is shortest, and
    from the last kernel to the end of the mark, on the rank where that is. Collectives ahead of the work and behind
    it (barriers) and what lies beyond them belong to the measurement and are left out.

    Args:
        run: The ingested traces.
        group: The pipeline.
        step: The step.
        work: What each global rank computed, and what followed that.

    Returns:
        None where the trace does not mark steps.
    """
    if step.evidence != "label":
        return None
    ahead, behind = [], []
    for rank in group.ranks:
        start, end = step.spans[rank]
        first = min(s.start_ns for s in work[rank].segments)
        last = max(s.end_ns for s in work[rank].segments) + sum(part.duration_ns for part in work[rank].tail)
        if not start <= first <= last <= end:
            return None  # marks of host time that ends before the device does
        parameters = {"rank": rank, "first": first, "last": last, "start": start, "end": end}
        ((before, after),) = run.rows(_SQL, parameters)
        ahead.append(first - (start if before is None else before))
        behind.append((end if after is None else after) - last)
    return min(ahead) + min(behind)
