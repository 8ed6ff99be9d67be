"""One schedule in one scenario, replayed and measured: what every answer is made of, and once for equal inputs.

The stages that a schedule runs on, where the recording has one per rank and the schedule several.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from tracetool.costs.recut import recut
from tracetool.errors import ScheduleDeadlock
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import Metrics, measure
from tracetool.replays import p2p_of, replay
from tracetool.replays.joined import replay_joined
from tracetool.schedules import kind_of

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import PipelineShape, Placement, Schedule
    from tracetool.model.timeline import Timeline
    from tracetool.replays import Replayed
    from tracetool.replays.joined import JobReplayed
    from tracetool.schedules import ScheduleKind

_MOST_ACTIONS = 200_000
"""Replays of so many actions together are kept (some 50 MB), the last ones."""


@dataclass(frozen=True)
class Evaluation:
    """A schedule in a scenario.

    Attributes:
        replayed: Its order, and when everything ran; of all pipelines of a job, on the one that sets the step.
        joined: All of these; None where one is replayed by itself.
    """

    replayed: Replayed
    joined: JobReplayed | None = None

    @cached_property
    def metrics(self) -> Metrics:
        """Its metrics."""
        return measure(self.replayed.timeline)

    @cached_property
    def kinds(self) -> tuple[tuple[Timeline, Metrics], ...]:
        """What needs memory: a Timeline of each kind of pipeline with its metrics; of one by itself its own."""
        if self.joined is None:
            return ((self.replayed.timeline, self.metrics),)
        return tuple((timeline, measure(timeline)) for timeline in self.joined.of_kinds)


def evaluate(pipeline: Pipeline, schedule: Schedule, scenario: Scenario | None = None) -> Evaluation:
    """Replay a schedule with measured costs; what equal inputs gave before is not replayed again.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
        scenario: What differs from the measurement; by default nothing.

    Raises:
        TraceToolError: As ``replay``.
    """
    scenario = scenario or Scenario()
    mode = p2p_of(schedule, pipeline, scenario)
    # A limit cuts no replay, and microbatches are the schedule's.
    read = replace(scenario, p2p=mode, hbm_bytes=None, microbatches=None)
    outcome = _KNOWN.of(Inputs(pipeline, schedule, read))
    if isinstance(outcome, ScheduleDeadlock):
        raise outcome.with_traceback(None)
    return outcome


@dataclass(frozen=True)
class Inputs:
    """What a replay reads."""

    pipeline: Pipeline
    schedule: Schedule
    scenario: Scenario

    @cached_property
    def actions(self) -> int:
        """How many there are in what is kept of it."""
        kinds = 0 if self.pipeline.job is None else len(set(self.pipeline.job.kinds))
        return sum(map(len, self.schedule.orders)) * (1 + kinds)

    @cached_property
    def _hash(self) -> int:
        return hash((self.pipeline, self.schedule, self.scenario))

    def __hash__(self) -> int:
        return self._hash


class KnownOutcomes:
    """Outcomes of replays by the values of their inputs; of too many actions together the first ones are dropped.

    Args:
        most_actions: How many may be kept.
    """

    def __init__(self, most_actions: int) -> None:
        self._most_actions = most_actions
        self._actions = 0
        self._outcomes: dict[Inputs, Evaluation | ScheduleDeadlock] = {}
        self._lock = Lock()

    def of(self, inputs: Inputs) -> Evaluation | ScheduleDeadlock:
        """What a replay gives, or why it cannot finish."""
        outcome = self._outcomes.get(inputs)
        if outcome is None:
            try:
                outcome = _replayed(inputs)
            except ScheduleDeadlock as error:
                outcome = error
            self._keep(inputs, outcome)
        return outcome

    def _keep(self, inputs: Inputs, outcome: Evaluation | ScheduleDeadlock) -> None:
        with self._lock:
            if inputs in self._outcomes:
                return
            self._outcomes[inputs] = outcome
            self._actions += inputs.actions
            while self._actions > self._most_actions:
                first = next(iter(self._outcomes))
                del self._outcomes[first]
                self._actions -= first.actions


_KNOWN = KnownOutcomes(_MOST_ACTIONS)


def _replayed(inputs: Inputs) -> Evaluation:
    pipeline, job = inputs.pipeline, inputs.pipeline.job
    if job is None:
        return Evaluation(replay(pipeline, inputs.schedule, inputs.scenario))
    if replace(pipeline, job=None) != job.pipelines[job.place]:
        raise ValueError("a pipeline was changed, and the others of its job were not: see Pipeline.each")
    joined = replay_joined(job, inputs.schedule, inputs.scenario)
    return Evaluation(joined.replayed, joined)


def stages_for(
    pipeline: Pipeline, name: str, chunks: int | None, microbatches: int
) -> tuple[Pipeline, PipelineShape, Notice | None]:
    """The pipeline and shape a schedule runs on: recorded stages, these re-cut by layers, or two copies of them.

    Args:
        pipeline: What was measured.
        name: The schedule.
        chunks: Stages per rank to cut into; None for as few as the schedule needs. An order from a file has its own.
        microbatches: Microbatches per step.

    Returns:
        Both, and what was done to the stages.

    Raises:
        InvalidSchedule: If an order from a file cannot be read.
        UnsupportedShape: If layers are unknown or do not divide.
    """
    shape = replace(pipeline.observed.shape, microbatches=microbatches)
    kind = kind_of(name)
    least, placement = _stages_needed(kind, shape.ranks)
    if shape.chunks > 1 or least == 1:
        return pipeline, shape, None
    if placement == "bidirectional":
        copies = replace(shape, chunks=least, placement=placement)
        return (
            pipeline,
            copies,
            Notice(
                NoticeCode.STAGES_COPIED,
                "two copies of every stage, weights twice; summing their gradients is not modelled",
            ),
        )
    wanted = least if chunks is None or kind.given is not None else chunks
    cut = stages_like(pipeline, replace(shape, chunks=wanted, placement=placement))
    shape = replace(cut.observed.shape, microbatches=microbatches)
    return (
        cut,
        shape,
        Notice(
            NoticeCode.STAGES_CUT,
            f"each rank's stage re-cut into {shape.chunks} by its layers (peaks of interleaved ones were up to 0.3 % "
            "off)",
        ),
    )


def stages_like(pipeline: Pipeline, shape: PipelineShape) -> Pipeline:
    """The pipeline with the stages that a schedule of some shape runs on, as ``stages_for`` gave them to it.

    Args:
        pipeline: What was measured.
        shape: The schedule's.

    Raises:
        UnsupportedShape: If layers are unknown or do not divide.
    """
    if pipeline.observed.shape.chunks > 1 or shape.chunks == 1 or shape.placement == "bidirectional":
        return pipeline
    return recut(pipeline, shape.chunks, placement=shape.placement)


def _stages_needed(kind: ScheduleKind, ranks: int) -> tuple[int, Placement]:
    """Stages per rank that a schedule needs, and where they sit; of an order for other ranks, which is refused, one."""
    is_for_others = kind.given is not None and kind.given.shape.ranks != ranks
    return (1, "loop") if is_for_others else (kind.least_chunks, kind.placement)
