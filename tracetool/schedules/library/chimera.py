"""chimera: two opposed 1F1B pipelines over the same ranks, each in the other's gaps.

Source: Li and Hoefler, arXiv 2107.06925 (two pipelines, direct concatenation of its units of p microbatches).
With a slot for each pass, microbatch k of p/2 of the downward pipeline has its forward on stage s in slot s + 2k and
its backward in slot 2p - 1 - s + 2k; so has the upward one, whose slots are the others on every rank, since p is even.
The next unit begins 2p slots later. Every rank holds two stages, one of each copy of the model: weights, gradients and
optimizer are there twice, and the two copies have to sum their gradients after the step, which is not modelled.
Shape: even p, one measured stage per rank; m a multiple of p, half of them in either direction.
Memory: rank i holds p/2 + 1 + min(i, p - 1 - i) microbatches of whole stages, static memory of two stages.
Bubble: (p - 2) f at f = b, a ratio of (p - 2) / (2m + p - 2), equal stages and zero delay.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_copies

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Both pipelines by their slots."""
    require_copies("chimera", shape)
    p, m = shape.ranks, shape.microbatches
    if p % 2 or m % p:
        raise UnsupportedShape(
            f"chimera needs an even number of ranks and a multiple of it as microbatches; got {p} and {m}.",
            hint=f"use a multiple of {p} microbatches" if p % 2 == 0 else "use a trace with an even number of ranks",
        )
    return Schedule("chimera", shape, tuple(_order(rank, shape) for rank in range(p)), blocking=False)


def _order(rank: int, shape: PipelineShape) -> tuple[Action, ...]:
    p = shape.ranks
    slots = []
    for stage in shape.stages_of(rank):
        position = shape.profile_of(stage)
        for number, microbatch in enumerate(shape.microbatches_of(stage)):
            unit, k = divmod(number, p // 2)
            start = 2 * p * unit + 2 * k
            slots.append((start + position, Action(stage, F, microbatch)))
            slots.append((start + 2 * p - 1 - position, Action(stage, B, microbatch)))
    return tuple(action for _, action in sorted(slots))


SCHEDULE = ScheduleKind(
    name="chimera",
    summary="two opposed 1F1B pipelines over the same ranks, each in the other's gaps",
    source="arXiv 2107.06925",
    constraints="even p, two copies of one stage per rank; m a multiple of p",
    bubble="(p-2)f at f = b",
    in_flight="p/2+1+min(i,p-1-i), and the weights twice",
    build=build,
    least_chunks=2,
    placement="bidirectional",
    recognition_rank=1,
)
