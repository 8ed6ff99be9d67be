"""Which replays of two reports can be replayed again from what their recordings keep, to find causes of their changes.

That is every order of the recorded stages and kinds of action: a recording has no layers to re-cut stages by, nor the
halves of a backward that ran as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.comparison.reported import differing
from tracetool.errors import TraceToolError
from tracetool.model.pipeline import P2P_MODES
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.schedules import SCHEDULES, build_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tracetool.comparison.report import ResultInfo
    from tracetool.comparison.sides import Side
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ReplayedOrder:
    """An order, and what it is replayed over.

    Attributes:
        schedule: The order.
        p2p: How its transfers are issued.
        topology: Its links.
    """

    schedule: Schedule
    p2p: P2PMode
    topology: Topology

    @property
    def scenario(self) -> Scenario:
        """The what-if; costs are as recorded, slowdowns included."""
        return Scenario(topology=self.topology, p2p=self.p2p, interference=False)


def asked_of_both(base: Side, new: Side, pipelines: Sequence[Pipeline]) -> dict[str, ReplayedOrder]:
    """By name, the schedules that both sides replayed alike and that can be replayed again.

    Args:
        base: The base.
        new: The new side.
        pipelines: Typical steps of both.
    """
    if base.scenario is None or new.scenario is None or differing(base.scenario, new.scenario):
        return {}
    if base.scenario.get("pipelines", 1) != 1:
        return {}
    answers = {}
    for name in (name for name in base.replays if name in new.replays):
        results = [side.replays[name].result for side in (base, new)]
        if results[0].variant == results[1].variant:
            asked = _asked(results[0], base.scenario, pipelines)
            if asked is not None:
                answers[name] = asked
    return answers


def _asked(result: ResultInfo, scenario: Mapping[str, Any], pipelines: Sequence[Pipeline]) -> ReplayedOrder | None:
    if result.schedule not in SCHEDULES or SCHEDULES.get(result.schedule).needs_costs:
        return None
    shapes = {pipeline.observed.shape for pipeline in pipelines}
    if len(shapes) > 1 or "network" in scenario:
        return None
    (shape,) = shapes
    p2p = next((mode for mode in P2P_MODES if mode == result.p2p), None)
    extra = None if result.extra_forwards is None else tuple(result.extra_forwards)
    observed = pipelines[0].observed
    try:
        schedule = build_schedule(result.schedule, shape, extra_forwards=extra, observed=observed)
        topology = Topology(tuple(scenario["dcs"]), tuple(Link(**link) for link in scenario["links"]))
        topology.check(shape.ranks)
    except (TraceToolError, KeyError, TypeError):
        return None
    needed = {(action.stage, action.kind) for order in schedule.orders for action in order}
    known = all(kind in pipeline.stages[stage].costs for pipeline in pipelines for stage, kind in needed)
    same = schedule.shape == shape and result.microbatches == shape.microbatches
    return ReplayedOrder(schedule, p2p, topology) if p2p and known and same else None
