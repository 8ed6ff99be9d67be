"""What ranks hold at rest when the ends of the model (embedding, head) sit on other ranks than in the recording.

A rank between the ends holds layers alone. With as many layers on every rank, an end rank holds as much, and what it
holds beyond that is its end's: weights, gradients and optimizer state of embedding or head. Buffers of received
messages are taken out of both first: ranks between the ends have twice as many.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline, RankProfile
    from tracetool.model.schedule import PipelineShape


def ranks_at_rest(pipeline: Pipeline, shape: PipelineShape) -> tuple[RankProfile, ...]:
    """The ranks as they are under another shape of the same layers.

    Static bytes are None where they cannot be told: if no recorded rank is between the ends, the recording has both
    ends on one rank, or its memory or receive buffers are unknown.

    Args:
        pipeline: What was measured, with as many layers on every rank.
        shape: The other shape.
    """
    was, now = ends_of(pipeline.observed.shape), ends_of(shape)
    if was == now:
        return pipeline.ranks
    level, tail = _moved(_net_static(pipeline), was, now), _moved(_tails(pipeline), was, now)
    return tuple(
        replace(
            r,
            static_bytes=None if level is None else level[number] + (r.receive_buffer_bytes or 0),
            tail_peak_bytes=r.tail_peak_bytes if tail is None else max(0, tail[number]),
        )
        for number, r in enumerate(pipeline.ranks)
    )


def ends_of(shape: PipelineShape) -> tuple[int, int]:
    """The ranks of the first and the last stage of the model."""
    return shape.rank_of(0), shape.rank_of(shape.stages - 1)


def _moved(levels: list[int] | None, was: tuple[int, int], now: tuple[int, int]) -> list[int] | None:
    """Levels of the ranks with what is special to the two ends taken from where they were to where they are."""
    if levels is None or was[0] == was[1]:
        return None
    between = [level for rank, level in enumerate(levels) if rank not in was]
    if not between:
        return None
    usual = round(median(between))
    moved = [usual if rank in was else level for rank, level in enumerate(levels)]
    for before, after in zip(was, now, strict=True):
        moved[after] += levels[before] - usual
    return moved


def _net_static(pipeline: Pipeline) -> list[int] | None:
    """Static bytes without buffers of received messages; None if any are unknown."""
    pairs = [(r.static_bytes, r.receive_buffer_bytes) for r in pipeline.ranks]
    known = [static - buffers for static, buffers in pairs if static is not None and buffers is not None]
    return known if len(known) == len(pairs) else None


def _tails(pipeline: Pipeline) -> list[int]:
    return [r.tail_peak_bytes for r in pipeline.ranks]
