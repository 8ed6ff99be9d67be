"""geopipe: 1F1B with extra warm-up forwards upstream of each DC boundary, for non-blocking transfers.

This is this tool's own model ("1F1B + extra forwards"), after the public description of GeoPipe
(arXiv 2510.12064); the paper's own formulas are not public and none here is attributed to it.
Phases on stage i: min(m, p - i - 1 + extra_i) forwards, (F, B) pairs, the remaining Bs, where extra_i is
the sum over the boundaries downstream of i of the forwards given to that boundary.
Shape: any p and m, one stage per rank.
Memory: stage i holds min(m, p - i + extra_i) microbatches.
Bubble: (p - 1)(f + b) at zero delay. With a delay c (one way) over one boundary after stage s, k = p - s,
n extra forwards, equal stages, receives posted ahead and occupancy up to f + b (derived model of this tool):
  T = (m + p - 1)(f + b) + 2c + r * max(0, 2c - n(f + b)),
  r = floor((m - 1 - k - n) / (n + 2)) + 1 if m - 1 >= k + n, else 0.
The delay is hidden from n = ceil(2c / (f + b)) on.
"""

from __future__ import annotations

import itertools
from math import ceil
from typing import TYPE_CHECKING

from tracetool.errors import Option, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions, Tuning
from tracetool.schedules.orders import require_one_chunk, warm_up_then_alternate

if TYPE_CHECKING:
    from collections.abc import Mapping


def build(shape: PipelineShape, options: ScheduleOptions) -> Schedule:
    """A warm-up of p - i - 1 + extra_i forwards on stage i."""
    require_one_chunk("geopipe", shape)
    p, m = shape.ranks, shape.microbatches
    extra = options.extra_forwards or (0,) * p
    if len(extra) != p or any(n < 0 for n in extra):
        raise UnsupportedShape(
            f"geopipe needs one number of extra forwards per pipeline rank ({p}), got {list(extra)}.",
            hint=f"as in {Option.EXTRA_FORWARDS((2, 2, 0, 0))}",
        )
    if any(after > before for before, after in itertools.pairwise(extra)):
        raise UnsupportedShape(
            f"geopipe: extra forwards {list(extra)} grow downstream, where no forward could feed them.",
            hint=f"give upstream ranks at least as many, as in {Option.EXTRA_FORWARDS((2, 2, 0, 0))}",
        )
    orders = tuple(warm_up_then_alternate(i, p - i - 1 + extra[i], m) for i in range(p))
    counting = tuple(min(n, max(0, m - (p - i - 1))) for i, n in enumerate(extra))
    remark = None
    if counting != extra:
        asked, count = (",".join(map(str, numbers)) for numbers in (extra, counting))
        remark = f"a warm-up ends with the {m} microbatches: of +{asked} only +{count} count"
    return Schedule("geopipe", shape, orders, extra_forwards=extra, blocking=False, remark=remark)


def extra_per_rank(ranks: int, per_boundary: Mapping[int, int]) -> tuple[int, ...]:
    """Extra forwards of each rank: those of all boundaries at or after it.

    Args:
        ranks: Pipeline ranks.
        per_boundary: For the boundary between ranks r and r + 1, keyed by r, its extra forwards.
    """
    return tuple(sum(n for r, n in per_boundary.items() if r >= rank) for rank in range(ranks))


def _hiding(delay_ns: int, cycle_ns: int) -> int:
    """ceil(2c / (f + b))."""
    return ceil(delay_ns / cycle_ns) if cycle_ns else 0


def _options_in(observed: Schedule) -> tuple[ScheduleOptions, ...]:
    """Forwards of each rank ahead of its first backward, beyond 1F1B's; nothing if there are none or they grow."""
    extra = []
    for rank, order in enumerate(observed.orders):
        ahead = next((i for i, a in enumerate(order) if a.kind is not ActionKind.FORWARD), len(order))
        # The forward just before the first backward belongs to the first (F, B) pair.
        extra.append(max(0, ahead - 1 - (observed.shape.ranks - rank - 1)))
    is_geopipe = any(extra) and extra == sorted(extra, reverse=True)
    return (ScheduleOptions(extra_forwards=tuple(extra)),) if is_geopipe else ()


SCHEDULE = ScheduleKind(
    name="geopipe",
    summary="1F1B with extra warm-up forwards upstream of each DC boundary, non-blocking transfers",
    source="derived model of this tool, after arXiv 2510.12064",
    constraints="any p, m; v = 1",
    bubble="(p-1)(f+b), plus 2c per boundary once 2c <= extra(f+b)",
    in_flight="min(m, p-i+extra)",
    build=build,
    recognition_rank=3,
    options_in=_options_in,
    tuning=Tuning(untuned="1f1b", hiding=_hiding, per_rank=extra_per_rank),
    is_compared=True,
)
