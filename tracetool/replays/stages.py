"""The stages that a schedule runs on, where the recording has one per rank and the schedule several."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.costs.recut import recut
from tracetool.schedules import kind_of

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import PipelineShape, Placement
    from tracetool.schedules import ScheduleKind


def stages_for(
    pipeline: Pipeline, name: str, chunks: int | None, microbatches: int
) -> tuple[Pipeline, PipelineShape, str | None]:
    """The pipeline and shape a schedule runs on: recorded stages, these re-cut by layers, or two copies of them.

    Args:
        pipeline: What was measured.
        name: The schedule.
        chunks: Stages per rank to cut into; None for as few as the schedule needs. An order from a file has its own.
        microbatches: Microbatches per step.

    Returns:
        Both, and in words what was done to the stages.

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
        return pipeline, copies, "two copies of every stage, weights twice; summing their gradients is not modelled"
    wanted = least if chunks is None or kind.given is not None else chunks
    cut = stages_like(pipeline, replace(shape, chunks=wanted, placement=placement))
    shape = replace(cut.observed.shape, microbatches=microbatches)
    remark = (
        f"each rank's stage re-cut into {shape.chunks} by its layers (peaks of interleaved ones were up to 0.3 % off)"
    )
    return cut, shape, remark


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
