"""What replay predicts by each recorded step, not by the one of median length alone: how much a figure varies.

Every step is looked at by itself, kernel by kernel: its slowdown, layers and halves of backwards are its own.
Predictions that shared those of one step would scatter less than steps do, and no test could tell a change from a look
at another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.replays.evaluation import evaluate
from tracetool.replays.stages import stages_like

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.metrics import Metrics
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule


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
    found = []
    for measured in pipelines:
        stages = stages_like(measured, schedule.shape)
        metrics, ideal = (evaluate(stages, schedule, each).metrics for each in (scenario, free))
        found.append(StepPrediction(measured.step, metrics, metrics.window_ns - ideal.window_ns))
    return tuple(found)
