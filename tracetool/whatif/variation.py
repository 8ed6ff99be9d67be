"""How much a step varies: by each recorded step, and with every action's cost drawn anew.

Every step is looked at by itself, kernel by kernel: its slowdown, layers and halves of backwards are its own.
Predictions that shared those of one step would scatter less than steps do, and no test could tell a change from a look
at another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from statistics import quantiles
from typing import TYPE_CHECKING

from tracetool.replays.evaluation import evaluate, stages_like

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracetool.model.pipeline import ActionCost, Costs, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Metrics


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """A schedule in a scenario, by what one recorded step took.

    Attributes:
        number: Number of the step.
        metrics: Its metrics.
        cross_dc_bubble_ns: Window minus the window with free cross-DC links.
    """

    number: int
    metrics: Metrics
    cross_dc_bubble_ns: int


def predict_each_step(
    pipelines: Iterable[Pipeline], schedule: Schedule, scenario: Scenario
) -> tuple[StepPrediction, ...]:
    """Replay a schedule by each recorded step.

    Args:
        pipelines: What each step measured.
        schedule: The order to run.
        scenario: What differs from the measurement.

    Raises:
        TraceToolError: As ``replay``.
    """
    free = replace(scenario, topology=scenario.topology.without_delays())
    predicted = []
    for measured in pipelines:
        stages = stages_like(measured, schedule.shape)
        metrics, ideal = (evaluate(stages, schedule, each).metrics for each in (scenario, free))
        predicted.append(StepPrediction(measured.step, metrics, metrics.window_ns - ideal.window_ns))
    return tuple(predicted)


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
