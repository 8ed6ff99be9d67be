"""Interleaved 1F1B: several stages per rank, so that the pipeline fills sooner.

Source: Narayanan et al., arXiv 2104.04473; Megatron-LM's ``forward_backward_pipelining_with_interleaving`` and
torch's ``ScheduleInterleaved1F1B``, which agree where m is a multiple of p.
Microbatches go round in groups of m / max(1, m // p): the group through the first chunk, then through the second.
Phases on rank r: 2(p - r - 1) + (v - 1) * group forwards, (F, B) pairs, the remaining Bs.
Shape: v >= 2, looped; m a multiple of max(1, m // p).
Bubble: (p - 1)(f + b) / v at equal stages and zero delay, f and b those of a whole rank.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Groups of microbatches through one chunk after another, backwards through the chunks in reverse."""
    require_chunks("interleaved", shape, placement="loop")
    p, m = shape.ranks, shape.microbatches
    rounds = max(1, m // p)
    if m % rounds:
        raise UnsupportedShape(
            f"interleaved: {m} microbatches cannot go round in {rounds} equal groups on {p} ranks.",
            hint=f"use a multiple of {p}",
        )
    orders = tuple(_order(rank, shape, m // rounds) for rank in range(p))
    return Schedule("interleaved", shape, orders, blocking=False)


def _order(rank: int, shape: PipelineShape, group: int) -> tuple[Action, ...]:
    p, v, total = shape.ranks, shape.chunks, shape.microbatches * shape.chunks

    def action(index: int, kind: ActionKind) -> Action:
        chunk = index // group % v
        if kind is ActionKind.BACKWARD:
            chunk = v - 1 - chunk
        return Action(chunk * p + rank, kind, index // (group * v) * group + index % group)

    warm_up = min(total, (v - 1) * group + 2 * (p - 1 - rank))
    order = [action(i, ActionKind.FORWARD) for i in range(warm_up)]
    for i in range(total):
        if warm_up + i < total:
            order.append(action(warm_up + i, ActionKind.FORWARD))
        order.append(action(i, ActionKind.BACKWARD))
    return tuple(order)


SCHEDULE = ScheduleKind(
    name="interleaved",
    summary="interleaved 1F1B: several stages per rank, groups of p microbatches in turn",
    source="arXiv 2104.04473; Megatron-LM, torch ScheduleInterleaved1F1B",
    constraints="v >= 2; m a multiple of max(1, m // p)",
    bubble="(p-1)(f+b)/v",
    in_flight="2(p-r-1)+(v-1)p+1 chunks on rank r",
    build=build,
    least_chunks=2,
)
