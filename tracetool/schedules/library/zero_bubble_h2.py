"""ZB-H2: a warm-up deep enough for the first input gradient to come back, so that no rank waits at f = i = w.

Source: Qi et al., arXiv 2401.10241 (zero bubble pipeline parallelism), handcrafted schedule 2.
Phases on stage i: min(m, 2(p - i) - 1) forwards; then I_j, once j >= 2i W_{j-2i}, and F; the remaining Ws.
Shape: any p and m, one stage per rank.
Memory: every stage holds 2p - 1 microbatches (their weight part until W), fewer where m is less.
Bubble: of the first rank between its first and last action (p - 1)(f + b - 3w), b = i + w the full backward, for
w <= i, 2w <= f + i and m >= 2p - 1: 0 at f = i = w. That of the window is the larger of this and the fill, (p - 1) f.
"""

from __future__ import annotations

from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_one_chunk


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """Twice the warm-up of 1F1B; the W of a microbatch follows 2i input gradients later on stage i."""
    require_one_chunk("zb-h2", shape)
    orders = tuple(_order(stage, shape.ranks, shape.microbatches) for stage in range(shape.ranks))
    return Schedule("zb-h2", shape, orders, blocking=False)


def _order(stage: int, p: int, m: int) -> tuple[Action, ...]:
    warm_up = min(2 * (p - stage) - 1, m)
    order = [Action(stage, ActionKind.FORWARD, j) for j in range(warm_up)]
    for j in range(m):
        order.append(Action(stage, ActionKind.BACKWARD_INPUT, j))
        if j >= 2 * stage:
            order.append(Action(stage, ActionKind.BACKWARD_WEIGHT, j - 2 * stage))
        if warm_up + j < m:
            order.append(Action(stage, ActionKind.FORWARD, warm_up + j))
    return (*order, *(Action(stage, ActionKind.BACKWARD_WEIGHT, j) for j in range(max(0, m - 2 * stage), m)))


SCHEDULE = ScheduleKind(
    name="zb-h2",
    summary="twice the warm-up of 1F1B and the backward split: no rank waits at f = i = w",
    source="arXiv 2401.10241",
    constraints="any p, m; v = 1; a trace whose backward is or can be split",
    bubble="(p-1)(f+b-3w) within a rank, w of b for the weight gradient; the window's at least (p-1)f",
    in_flight="min(m, 2p-1)",
    build=build,
    aliases=("ZB-2P", "zero-bubble-h2"),
    recognition_rank=5,
)
