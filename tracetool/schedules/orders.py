"""Building blocks that several schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape, Placement


def warm_up_then_alternate(stage: int, warm_up: int, microbatches: int) -> tuple[Action, ...]:
    """``warm_up`` forwards, then (forward, backward) pairs, then the backwards that are left."""
    warm_up = min(warm_up, microbatches)
    order = [Action(stage, ActionKind.FORWARD, i) for i in range(warm_up)]
    for i in range(microbatches):
        if warm_up + i < microbatches:
            order.append(Action(stage, ActionKind.FORWARD, warm_up + i))
        order.append(Action(stage, ActionKind.BACKWARD, i))
    return tuple(order)


def torch_group(name: str, shape: PipelineShape) -> int:
    """Microbatches that torch's interleaved schedules take through one chunk before they turn to the next.

    Raises:
        UnsupportedShape: If the microbatches do not divide into such groups.
    """
    p, m = shape.ranks, shape.microbatches
    rounds = max(1, m // p)
    if m % rounds:
        raise UnsupportedShape(
            f"{name}: {m} microbatches cannot go round in {rounds} equal groups on {p} ranks.",
            hint=f"use a multiple of {p}",
        )
    return m // rounds


def rounds_of(shape: PipelineShape, group: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) in the order of interleaved forwards: group by group through all chunks."""
    m = shape.microbatches
    return [
        (chunk, microbatch)
        for first in range(0, m, group)
        for chunk in range(shape.chunks)
        for microbatch in range(first, min(m, first + group))
    ]


def require_one_chunk(name: str, shape: PipelineShape) -> None:
    """Refuse shapes with several stages per rank.

    Raises:
        UnsupportedShape: If there is more than one stage per rank.
    """
    if shape.chunks != 1:
        raise UnsupportedShape(
            f"{name} needs one stage per rank; the trace has {shape.stages} stages on {shape.ranks} ranks.",
            hint="replay 'observed', or use a trace with one stage per rank",
        )


def require_chunks(name: str, shape: PipelineShape, *, placement: Placement, most: int | None = None) -> None:
    """Refuse shapes with one stage per rank, too many, or the other placement.

    Raises:
        UnsupportedShape: If the shape has another number of stages per rank, or places them otherwise.
    """
    fits = shape.chunks >= 2 if most is None else shape.chunks == most
    if fits and shape.placement == placement:
        return
    wanted = f"{'at least 2' if most is None else most} stages per rank, {placement} placement"
    raise UnsupportedShape(
        f"{name} needs {wanted}; the trace has {shape.chunks} per rank"
        + (f", {shape.placement} placement." if shape.chunks > 1 else "."),
        hint="use a trace with that shape",
    )


def require_copies(name: str, shape: PipelineShape) -> None:
    """Refuse shapes without two copies of one stage per rank.

    Raises:
        UnsupportedShape: If the shape places its stages otherwise.
    """
    if shape.is_bidirectional and shape.chunks == 2:
        return
    raise UnsupportedShape(
        f"{name} needs two copies of one stage per rank (bidirectional placement); the trace has {shape.chunks} "
        f"per rank, {shape.placement} placement.",
        hint="use a trace with one stage per rank",
    )
