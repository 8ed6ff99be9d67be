"""The timeline of a plan: its slowest pipeline, replayed over the links between places that the judge counts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.estimates.stages import pipeline_of
from tracetool.explore.judge import Judge
from tracetool.explore.plan import pipelines_sharing
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay

if TYPE_CHECKING:
    from tracetool.estimates.stages import JobCosts
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.transport import OverTiers
    from tracetool.replays import Replayed

MOST_ACTIONS = 200_000
"""Timelines of more are not drawn."""


def replayed_plan(workload: Workload, plan: JobPlan) -> Replayed:
    """Replay a plan with its timeline.

    Args:
        workload: What is trained, and where.
        plan: How.

    Raises:
        ScenarioError: If it has too many actions to be looked at.
        BadTopology: If it does not fit on the network.
        UnsupportedShape: If its schedule does not exist for its shape.
    """
    shape = plan.training.shape
    actions = 2 * shape.stages * shape.microbatches
    if actions > MOST_ACTIONS:
        raise ScenarioError(f"its timeline has {actions:,} actions, too many to be looked at.")
    lines = [_replayed(plan, over, costs) for over, costs in Judge(workload).costs(plan)]
    return max(lines, key=lambda done: measure(done.timeline).step_ns)


def _replayed(plan: JobPlan, over: OverTiers, costs: JobCosts) -> Replayed:
    pipeline = pipeline_of(plan.training, costs)
    is_crossing = bool(over.line.places) and not plan.training.messages_hold_up
    if not is_crossing:
        return replay(pipeline, pipeline.observed, Scenario(pipelines=1))
    turns = pipelines_sharing(over.line) if plan.sharing == "temporal" else 1
    topology = _links(plan, over, costs)
    return replay(pipeline, pipeline.observed, Scenario(topology, pipelines=turns, link_sharing="temporal"))


def _links(plan: JobPlan, over: OverTiers, costs: JobCosts) -> Topology:
    """Places of the outermost tier, and links that a message occupies for as long as the judge has it."""
    names = [f"place{place}" for place in over.line.places]
    links: dict[tuple[str, str], Link] = {}
    for rank, place in enumerate(names):
        other = names[(rank + 1) % len(names)]
        took = over.link_ns(costs.payload // plan.training.tensor, rank)
        if took is not None:
            bandwidth = max(1, round(costs.payload * 1e9 / max(1, took[0])))
            for one, two in ((place, other), (other, place)):
                links.setdefault((one, two), Link(one, two, bandwidth, took[1]))
    return Topology(tuple(names), tuple(links.values()))
