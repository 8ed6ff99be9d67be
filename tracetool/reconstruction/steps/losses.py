"""Kernels that a capture lost, where the vendor says for how long a rank computed in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.store.run import Run

LEAST_LOST_RATIO = 0.01
"""On whole captures of text and database exports the vendor's figure and the kernels agree to 3e-6."""

_SQL = """
WITH told AS (
    SELECT rank, step, start_ns, end_ns, vendor_computing_ns FROM steps
    WHERE vendor_computing_ns > 0 AND list_contains(?, rank)
),
kernels AS (
    SELECT t.rank, t.step, t.vendor_computing_ns, k.start_ns, k.start_ns + k.duration_ns AS end_ns,
           max(k.start_ns + k.duration_ns) OVER (
               PARTITION BY t.rank, t.step ORDER BY k.start_ns, k.duration_ns
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
           ) AS busy_ns
    FROM told AS t JOIN events AS k ON k.rank = t.rank AND k.category = 'kernel'
        AND k.start_ns >= t.start_ns AND k.start_ns < t.end_ns
)
SELECT step, rank, 1 - sum(greatest(end_ns - greatest(start_ns, coalesce(busy_ns, start_ns)), 0))
                       / any_value(vendor_computing_ns)
FROM kernels GROUP BY step, rank ORDER BY step, rank
"""


def lost_ratios(run: Run, ranks: Sequence[int]) -> dict[int, dict[int, float]]:
    """Per step and rank, the share of the vendor's computing time in which no recorded kernel ran, if any is lost.

    Ranks without any kernel in a step are left out: they were recorded without kernels.
    """
    by_step: dict[int, dict[int, float]] = {}
    for step, rank, ratio in run.rows(_SQL, [list(ranks)]):
        if ratio > LEAST_LOST_RATIO:
            by_step.setdefault(step, {})[rank] = float(ratio)
    return by_step
