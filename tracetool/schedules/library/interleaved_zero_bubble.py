"""interleaved-zero-bubble: interleaved 1F1B with half its extra warm-up and the backward split.

Source: torch's ``ScheduleInterleavedZeroBubble``: ZB-H1 of arXiv 2401.10241 on the loop of arXiv 2104.04473.
Microbatches go round in groups of m / max(1, m // p), as in interleaved.
Phases on rank r: p - r - 1 + (v - 1) * group forwards; (F, I) pairs and, from the r-th on, the oldest W;
the remaining (I, W) pairs; the remaining Ws.
Shape: v >= 2, looped; m a multiple of max(1, m // p).
Memory: every rank holds (v - 1) * group + p stages' microbatches, p of whole stages where the group is p.
Bubble: (p - 1)(f + b - 2w) / v with b = i + w, at equal stages, zero delay and w <= i, f, i and w those of a whole rank
(derived model of this tool).
"""

from __future__ import annotations

from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks, rounds_of, torch_group


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """The warm-up of interleaved without its second p - r - 1 forwards; W follows r input gradients later."""
    require_chunks("interleaved-zero-bubble", shape, placement="loop")
    group = torch_group("interleaved-zero-bubble", shape)
    turns = rounds_of(shape, group)
    orders = tuple(_order(rank, shape, group, turns) for rank in range(shape.ranks))
    return Schedule("interleaved-zero-bubble", shape, orders, blocking=False)


def _order(rank: int, shape: PipelineShape, group: int, turns: list[tuple[int, int]]) -> tuple[Action, ...]:
    p, v, total = shape.ranks, shape.chunks, len(turns)
    forwards = [Action(chunk * p + rank, ActionKind.FORWARD, j) for chunk, j in turns]
    inputs = [Action((v - 1 - chunk) * p + rank, ActionKind.BACKWARD_INPUT, j) for chunk, j in turns]
    weights = [Action((v - 1 - chunk) * p + rank, ActionKind.BACKWARD_WEIGHT, j) for chunk, j in turns]
    warm_up = min(total, (v - 1) * group + p - rank - 1)
    order = forwards[:warm_up]
    for i in range(total):
        order += forwards[warm_up + i : warm_up + i + 1]
        order.append(inputs[i])
        if i >= rank:
            order.append(weights[i - rank])
    return (*order, *weights[max(0, total - rank) :])


SCHEDULE = ScheduleKind(
    name="interleaved-zero-bubble",
    summary="interleaved 1F1B with the backward split and half the extra warm-up",
    source="torch ScheduleInterleavedZeroBubble; arXiv 2401.10241",
    constraints="v >= 2, looped; m a multiple of max(1, m // p); a trace whose backward is or can be split",
    bubble="(p-1)(f+b-2w)/v, w of b for the weight gradient, w at most half of b",
    in_flight="(v-1)p+p chunks (the first p: the group)",
    build=build,
    aliases=("interleaved-zb", "zb-interleaved", "IZB"),
    least_chunks=2,
    recognition_rank=2,
)
