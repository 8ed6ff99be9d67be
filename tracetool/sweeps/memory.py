"""What a schedule needs in memory. It hangs on the order on each rank alone, not on when things run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.costs.measured import MeasuredCosts
from tracetool.model.timeline import memory_curve

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Memory of each pipeline rank, whatever the links.

    Attributes:
        peak_bytes: Highest allocation; None if unknown.
        overhead_bytes: What it occupies beyond that, as measured; None if unknown.
    """

    peak_bytes: tuple[int | None, ...]
    overhead_bytes: tuple[int | None, ...]


def memory_need(pipeline: Pipeline, schedule: Schedule, scenario: Scenario) -> MemoryNeed:
    """What ``measure`` finds in the memory curves of a replay, without one.

    Args:
        pipeline: What was measured.
        schedule: The order.
        scenario: May replace activation and static bytes.

    Raises:
        UnsupportedShape: If the trace does not tell what an action costs.
    """
    costs = MeasuredCosts(pipeline, scenario, schedule)
    peaks: list[int | None] = []
    for rank, order in enumerate(schedule.orders):
        actions = [costs.action(action) for action in order]
        curve = memory_curve(
            costs.static_bytes(rank),
            [(0, 0, cost.held_bytes, cost.peak_bytes) for cost in actions],
            costs.tail_peak_bytes(rank),
        )
        peaks.append(None if curve is None else max(level for _, level in curve))
    ranks = range(len(schedule.orders))
    return MemoryNeed(tuple(peaks), tuple(costs.overhead_bytes(rank) for rank in ranks))
