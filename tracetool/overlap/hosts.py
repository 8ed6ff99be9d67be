"""What the host and the device take for the actions of a pipeline: whether the host is ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.overlap.calibration import UNPROFILED_RATIO

if TYPE_CHECKING:
    from tracetool.store.run import Run

ONE_OF_EACH_KIND = """
    -- One action of each stage and kind: the others have the same kernels.
    SELECT rank, stage, kind, quantile_disc(microbatch, 0.5) AS microbatch
    FROM kernel_actions WHERE kind IN ('F', 'B', 'I', 'W') AND microbatch IS NOT NULL GROUP BY ALL
"""
_TIMES = f"""
WITH chosen AS ({ONE_OF_EACH_KIND}),
launches AS (
    SELECT rank, correlation, min(start_ns) AS start_ns, max(start_ns + duration_ns) AS end_ns
    FROM events WHERE category = 'launch' AND correlation IS NOT NULL GROUP BY ALL
)
SELECT
    a.stage, a.kind, max(l.end_ns) - min(l.start_ns) AS host_ns,
    max(e.start_ns + e.duration_ns) - min(e.start_ns) AS device_ns
FROM kernel_actions a JOIN chosen USING (rank, stage, kind, microbatch)
JOIN events e ON e.rank = a.rank AND e.event = a.event AND e.category = 'kernel'
LEFT JOIN launches l ON l.rank = e.rank AND l.correlation = e.correlation
GROUP BY a.rank, a.stage, a.kind
HAVING count(*) = count(l.start_ns)
ORDER BY host_ns - device_ns
"""


class ActionTimes(NamedTuple):
    """What an action takes, on the rank whose host is the least ahead.

    Attributes:
        host_ns: From the first to the last launch of its kernels, without the profiler.
        device_ns: From the start of the first to the end of the last one.
    """

    host_ns: float
    device_ns: float


def action_times(run: Run) -> dict[tuple[int, ActionKind], ActionTimes]:
    """What host and device take for one action of each stage and kind; none where launches were not recorded.

    Args:
        run: With what derivation tells of actions.
    """
    rows = run.rows(_TIMES)
    return {
        (stage, ActionKind(kind)): ActionTimes(host_ns * UNPROFILED_RATIO, device_ns)
        for stage, kind, host_ns, device_ns in rows
    }
