"""looped-bfs: breadth first through the stages of a rank: all forwards of a stage, then all of the next one.

Source: Lamy-Poirier, arXiv 2211.05953 (breadth-first pipeline parallelism); the order of torch's
``ScheduleLoopedBFS``, which takes the microbatches of the backward in reverse.
Phases on rank r: F x m of each of its stages in turn, then B x m of each in reverse.
Shape: any p, v and m, looped.
Memory: every rank holds all m microbatches of its v stages.
Bubble: (p - 1)(f + b) / v at equal stages and zero delay for m >= p, f and b those of a whole rank.
"""

from __future__ import annotations

from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Stage by stage, first forwards, then backwards the other way round."""
    require_chunks("looped-bfs", shape, placement="loop")
    return Schedule("looped-bfs", shape, tuple(_order(rank, shape) for rank in range(shape.ranks)), blocking=False)


def _order(rank: int, shape: PipelineShape) -> tuple[Action, ...]:
    mine, microbatches = range(rank, shape.stages, shape.ranks), range(shape.microbatches)
    forwards = [Action(stage, ActionKind.FORWARD, j) for stage in mine for j in microbatches]
    backwards = [Action(stage, ActionKind.BACKWARD, j) for stage in reversed(mine) for j in reversed(microbatches)]
    return (*forwards, *backwards)


SCHEDULE = ScheduleKind(
    name="looped-bfs",
    summary="breadth first: all forwards of a rank's stage, then of its next; backwards in reverse",
    source="arXiv 2211.05953; torch ScheduleLoopedBFS",
    constraints="v >= 2, looped; any p, m",
    bubble="(p-1)(f+b)/v for m >= p",
    in_flight="m (all v stages)",
    build=build,
    aliases=("BFS",),
    least_chunks=2,
    recognition_rank=1,
)
