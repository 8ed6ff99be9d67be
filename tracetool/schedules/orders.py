"""Building blocks that several schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape


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
