"""ZB-V: two stages per rank in a V, so that the last stage sits beside the first; the backward is split.

Source: Qi et al., arXiv 2405.15362 (controllable memory); the order is that of torch's ``ScheduleZBVZeroBubble``.
Phases on rank r (stages r and 2p - 1 - r): 2(p - r) - 1 forwards of the first chunk; r pairs of forwards (second,
first); p - r times (F, I, W) of the second chunk; the steady (F, I, W) of either chunk in turn; r pairs of input
gradients; p - r times (I, W) of the first chunk; the remaining Ws.
Shape: v = 2 in a V; any m (with few microbatches the order is that of 2p - 1, cut).
Memory: p microbatches of whole stages.
Bubble: 0 per rank at f = i = w and zero delay, besides filling and draining.
"""

from __future__ import annotations

from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks

F, I, W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT  # noqa: E741


def build(shape: PipelineShape, _options: ScheduleOptions) -> Schedule:
    """The phases above; actions of microbatches beyond m are left out."""
    require_chunks("zb-v", shape, placement="v", most=2)
    orders = tuple(_Order(rank, shape).cut() for rank in range(shape.ranks))
    return Schedule("zb-v", shape, orders, blocking=False)


class _Order:
    """Writes one rank's order, counting the microbatches of each chunk and kind."""

    def __init__(self, rank: int, shape: PipelineShape) -> None:
        self._stages = (rank, shape.stages - 1 - rank)
        self._m = shape.microbatches
        self._count: dict[tuple[int, ActionKind], int] = {}
        self._order: list[Action] = []
        p = shape.ranks
        whole = max(2 * p - 1, shape.microbatches)
        self._add(2 * (p - rank) - 1, (0, F))
        self._add(rank, (1, F), (0, F))
        self._add(p - rank, (1, F), (1, I), (1, W))
        while self._done(1, F) < self._done(0, F) or self._done(0, F) < whole:
            if self._done(0, F) < whole:
                self._add(1, (0, F))
            self._add(1, (0, I), (0, W), (1, F), (1, I), (1, W))
        self._add(rank, (0, I), (1, I))
        self._add(p - rank, (0, I), (0, W))
        for chunk in (1, 0):
            self._add(self._done(chunk, I) - self._done(chunk, W), (chunk, W))

    def _done(self, chunk: int, kind: ActionKind) -> int:
        return self._count.get((chunk, kind), 0)

    def _add(self, times: int, *what: tuple[int, ActionKind]) -> None:
        for _ in range(times):
            for chunk, kind in what:
                number = self._done(chunk, kind)
                self._count[chunk, kind] = number + 1
                self._order.append(Action(self._stages[chunk], kind, number))

    def cut(self) -> tuple[Action, ...]:
        """The order without the microbatches that do not exist."""
        return tuple(a for a in self._order if a.microbatch < self._m)


SCHEDULE = ScheduleKind(
    name="zb-v",
    summary="two stages per rank in a V, backward split: no bubble at f = i = w",
    source="arXiv 2405.15362; torch ScheduleZBVZeroBubble",
    constraints="v = 2 in a V; any p, m; a trace whose backward is or can be split",
    bubble="0 at f = i = w, besides fill and drain",
    in_flight="p (2p stages of half the size)",
    build=build,
    aliases=("ZBVZeroBubble", "zero-bubble-v"),
    least_chunks=2,
    placement="v",
    recognition_rank=0,
)
