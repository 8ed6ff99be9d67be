"""ZB-H1: 1F1B with the backward split, weight gradients fill the drain.

Source: Qi et al., arXiv 2401.10241 (zero bubble pipeline parallelism), handcrafted schedule 1.
Phases on stage i: min(m, p - i - 1) forwards; then F, I_j and, once j >= i, W_{j-i}; when the forwards are used
up I_j, W_{j-i}; the remaining Ws.
Shape: any p and m, one stage per rank.
Memory: every stage holds p microbatches (their weight part until W).
Bubble: (p - 1)(f + b - 2w) with b = i + w the full backward and w <= i, at equal stages and zero delay.
"""

from __future__ import annotations

from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_one_chunk


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """1F1B's warm-up; the W of a microbatch follows i input gradients later on stage i."""
    require_one_chunk("zb-h1", shape)
    orders = tuple(_order(stage, shape.ranks, shape.microbatches) for stage in range(shape.ranks))
    return Schedule("zb-h1", shape, orders, blocking=False)


def _order(stage: int, p: int, m: int) -> tuple[Action, ...]:
    warm_up = min(p - stage - 1, m)
    order = [Action(stage, ActionKind.FORWARD, i) for i in range(warm_up)]
    for j in range(m):
        if warm_up + j < m:
            order.append(Action(stage, ActionKind.FORWARD, warm_up + j))
        order.append(Action(stage, ActionKind.BACKWARD_INPUT, j))
        if j >= stage:
            order.append(Action(stage, ActionKind.BACKWARD_WEIGHT, j - stage))
    return (*order, *(Action(stage, ActionKind.BACKWARD_WEIGHT, j) for j in range(max(0, m - stage), m)))


SCHEDULE = ScheduleKind(
    name="zb-h1",
    summary="1F1B with the backward split in two: weight gradients fill the drain",
    source="arXiv 2401.10241",
    constraints="any p, m; v = 1; a trace whose backward is or can be split",
    bubble="(p-1)(f+b-2w), w of b for the weight gradient",
    in_flight="min(m, p)",
    build=build,
    aliases=("ZB-1P", "zero-bubble-h1"),
    recognition_rank=4,
    is_compared=True,
)
