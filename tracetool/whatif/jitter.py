"""How much a step varies: replays with every action's cost drawn anew from its stage's measured microbatches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING

from tracetool.replays.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import ActionCost, Costs, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule

RESAMPLES = 40


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles of the step time over resamples.

    Attributes:
        resamples: How many.
        p50_ns: Median step time.
        p95_ns: Step time that one in twenty exceeds.
    """

    resamples: int
    p50_ns: int
    p95_ns: int


def spread(pipeline: Pipeline, schedule: Schedule, scenario: Scenario, seed: int) -> Spread:
    """Replay with costs drawn with replacement from the microbatches of each (stage, kind).

    The first microbatch keeps its own cost: its backward makes the gradients that the later ones add to. Draws of
    different actions are independent, so what slows a whole step down (a hot device) is not in the spread.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
        scenario: What differs from the measurement.
        seed: Equal seeds give equal results.
    """
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    microbatches = schedule.shape.microbatches

    def drawn(costs: Costs) -> Costs:
        # In one order of kinds, whatever order they were found in: it decides which draw goes to which action.
        return {kind: _drawn(costs[kind], microbatches, random) for kind in sorted(costs)}

    steps = []
    for _ in range(RESAMPLES):
        stages = tuple(replace(s, costs=drawn(s.costs), derived=drawn(s.derived)) for s in pipeline.stages)
        steps.append(evaluate(replace(pipeline, stages=stages), schedule, scenario).metrics.step_ns)
    cuts = quantiles(steps, n=20, method="inclusive")
    return Spread(RESAMPLES, round(cuts[9]), round(cuts[18]))


def _drawn(costs: Sequence[ActionCost], microbatches: int, random: Random) -> tuple[ActionCost, ...]:
    later = costs[1:] or costs
    return (costs[0], *(random.choice(later) for _ in range(microbatches - 1)))
