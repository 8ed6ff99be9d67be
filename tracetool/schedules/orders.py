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
