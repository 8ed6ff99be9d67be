"""What replay would have predicted had another recorded step been the one that was looked at: how much a figure varies.

A replay is of one step, of median length. Of the others a recording keeps what actions, messages and tails took
(``recording.Recording``), not how much of it was slowdown, nor halves and layers: these keep their shares of an action.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from tracetool.costs.rescaled import with_ratios
from tracetool.metrics import measure
from tracetool.model.action import ActionKind
from tracetool.replay import replay
from tracetool.replay.stages import stages_like

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.metrics import Metrics
    from tracetool.model.pipeline import Pipeline, RankProfile, StageProfile
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.recording import RankRecord, Recording, StepRecord


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
    pipeline: Pipeline, recording: Recording, schedule: Schedule, scenario: Scenario
) -> list[StepPrediction]:
    """Replay a schedule by each recorded step that ran as the one that was looked at; that one gives what replay gives.

    Args:
        pipeline: What was measured, of one step of the recording.
        recording: What every step took.
        schedule: The order to run.
        scenario: What differs from the measurement.

    Returns:
        One per step, in order of time; none if the recording lacks the step that was looked at.

    Raises:
        TraceToolError: As ``replay``.
    """
    free = replace(scenario, topology=scenario.topology.without_delays())
    found = []
    for number, measured in _each(pipeline, recording):
        stages = stages_like(measured, schedule.shape)
        metrics, ideal = (measure(replay(stages, schedule, each).timeline) for each in (scenario, free))
        found.append(StepPrediction(number, metrics, metrics.window_ns - ideal.window_ns))
    return found


def _each(pipeline: Pipeline, recording: Recording) -> Iterator[tuple[int, Pipeline]]:
    """The pipeline by each recorded step of the same order, with its number."""
    chosen = next((step for step in recording.steps if step.number == pipeline.step), None)
    if chosen is None:
        return
    for step in recording.steps:
        if step is chosen:
            yield step.number, pipeline
        elif (step.order, step.p2p) == (chosen.order, chosen.p2p):
            yield step.number, _by(pipeline, chosen, step)


def _by(pipeline: Pipeline, chosen: StepRecord, step: StepRecord) -> Pipeline:
    ratios = {
        (int(name[:-1]), ActionKind(name[-1]), microbatch): Fraction(now, max(1, then))
        for name, action in step.actions.items()
        for microbatch, (now, then) in enumerate(zip(action.duration_ns, chosen.actions[name].duration_ns, strict=True))
    }
    measured = with_ratios(pipeline, ratios)
    return replace(
        measured,
        step=step.number,
        stages=tuple(_with_messages(stage, step) for stage in measured.stages),
        ranks=tuple(_with_tail(rank, record) for rank, record in zip(measured.ranks, step.ranks, strict=True)),
    )


def _with_messages(stage: StageProfile, step: StepRecord) -> StageProfile:
    forward, backward = (step.messages.get(f"{stage.stage}{kind}") for kind in "FB")
    return replace(
        stage,
        forward_transfer_ns=stage.forward_transfer_ns if forward is None else forward.transfer_ns,
        backward_transfer_ns=stage.backward_transfer_ns if backward is None else backward.transfer_ns,
    )


def _with_tail(rank: RankProfile, record: RankRecord) -> RankProfile:
    """The rank with the tail of a step, if that has the same parts."""
    if [part.kind.value for part in rank.tail] != [part.kind for part in record.tail]:
        return rank
    parts = zip(rank.tail, record.tail, strict=True)
    return replace(rank, tail=tuple(replace(part, duration_ns=its.duration_ns) for part, its in parts))
