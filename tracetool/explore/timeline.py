"""The timeline of a plan: its slowest pipeline, replayed over the links between places that the judge counts with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.estimates.stages import pipeline_of
from tracetool.estimates.transport import links_between
from tracetool.explore.judge import Judge
from tracetool.explore.plan import pipelines_sharing
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay

if TYPE_CHECKING:
    from tracetool.estimates.stages import JobCosts
    from tracetool.estimates.transport import OverTiers
    from tracetool.explore.plan import JobPlan, Workload
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
    topology = links_between(over, costs.payload, plan.training.tensor)
    return replay(pipeline, pipeline.observed, Scenario(topology, pipelines=turns, link_sharing="temporal"))
