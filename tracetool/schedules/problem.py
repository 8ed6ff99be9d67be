"""What a schedule that is made to measure is made for: costs, links and memory, as a small value.

The model is CrossPipe's (arXiv 2507.00217, sections 2 and 3): an action starts when its rank is free and its input
is there; a message occupies its directed link, which serves one message at a time in the order in which they are
ready, and then needs the latency; nothing on a rank waits for a send. Microbatches are alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import ScheduleDeadlock
from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

Orders = tuple[tuple[Action, ...], ...]


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of one microbatch on one stage.

    Attributes:
        forward_ns: The forward.
        backward_ns: The whole backward, or its input gradient where the backward is split.
        weight_ns: The weight gradient where the backward is split.
        held_bytes: Activations from the start of the forward to the end of the backward.
        freed_early_bytes: What of them the input gradient gives back already, where the backward is split.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int = 0
    held_bytes: int = 0
    freed_early_bytes: int = 0


class Hop(NamedTuple):
    """The way of a message between two stages.

    Attributes:
        latency_ns: From the time it has left to its arrival.
        occupancy_ns: How long it keeps its link busy.
        link: Name of the directed link that it shares with other messages; None for none.
    """

    latency_ns: int = 0
    occupancy_ns: int = 0
    link: str | None = None

    @property
    def delay_ns(self) -> int:
        """From ready to arrival on an idle link."""
        return self.occupancy_ns + self.latency_ns


@dataclass(frozen=True)
class Problem:
    """Costs, links and memory of a pipeline.

    Attributes:
        shape: Ranks, stages, microbatches.
        stages: Costs by stage.
        split: Whether a backward runs as input gradient and weight gradient.
        forward_hops: Of the activation that leaves stage s, for all but the last stage.
        backward_hops: Of the gradient that leaves stage s + 1, for all but the last stage s.
        room_bytes: Per rank, the most that activations in flight may hold; None for no limit.
    """

    shape: PipelineShape
    stages: tuple[StageCosts, ...]
    split: bool
    forward_hops: tuple[Hop, ...]
    backward_hops: tuple[Hop, ...]
    room_bytes: tuple[int | None, ...]

    @cached_property
    def kinds(self) -> tuple[ActionKind, ...]:
        """Kinds of an order's actions, in the order in which a microbatch goes through them."""
        return (F, INPUT, WEIGHT) if self.split else (F, B)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """Stages of each rank."""
        stages: list[list[int]] = [[] for _ in range(self.shape.ranks)]
        for stage in range(self.shape.stages):
            stages[self.shape.rank_of(stage)].append(stage)
        return tuple(map(tuple, stages))

    def duration_ns(self, stage: int, kind: ActionKind) -> int:
        """Time of one action."""
        costs = self.stages[stage]
        if kind is F:
            return costs.forward_ns
        return costs.weight_ns if kind is WEIGHT else costs.backward_ns

    def change_bytes(self, stage: int, kind: ActionKind) -> int:
        """What an action adds to the bytes in flight: a forward when it starts, the others when they end."""
        costs = self.stages[stage]
        if kind is F:
            return costs.held_bytes
        if kind is INPUT:
            return -costs.freed_early_bytes
        return -(costs.held_bytes - (costs.freed_early_bytes if self.split else 0))

    def sent(self, stage: int, kind: ActionKind) -> tuple[int, Hop] | None:
        """Where the result of an action goes and how; None if nowhere."""
        if kind is F:
            return (stage + 1, self.forward_hops[stage]) if stage + 1 < self.shape.stages else None
        return (stage - 1, self.backward_hops[stage - 1]) if kind is not WEIGHT and stage > 0 else None

    def peaks_bytes(self, orders: Orders) -> tuple[int, ...]:
        """Most bytes in flight on each rank: it follows from the order alone."""
        peaks = []
        for order in orders:
            level = peak = 0
            for stage, kind, _ in order:
                level += self.change_bytes(stage, kind)
                peak = max(peak, level)
            peaks.append(peak)
        return tuple(peaks)

    @cached_property
    def usable_bytes(self) -> tuple[int | None, ...]:
        """The room of each rank, or where that is too small what one microbatch at a time needs."""
        smallest = [sum(self.stages[s].held_bytes for s in mine) for mine in self.stages_of]
        return tuple(
            None if room is None else max(room, least) for room, least in zip(self.room_bytes, smallest, strict=True)
        )

    def fits(self, orders: Orders) -> bool:
        """Whether orders stay within the usable room of every rank."""
        peaks = self.peaks_bytes(orders)
        return all(room is None or peak <= room for peak, room in zip(peaks, self.usable_bytes, strict=True))

    def bound_ns(self) -> int:
        """A window that no order can beat.

        On each rank: until its first stage can begin, then all its work; a whole backward that comes last there
        has still to go through the stages below. And one microbatch alone, down and up the whole pipeline.
        """
        ways = [0]
        for stage, hop in enumerate(self.forward_hops):
            ways.append(ways[-1] + self.stages[stage].forward_ns + hop.delay_ns)
        back = [0]
        for stage, hop in enumerate(self.backward_hops):
            back.append(back[-1] + self.stages[stage].backward_ns + hop.delay_ns)
        work = [sum(self.duration_ns(s, k) for k in self.kinds) for s in range(self.shape.stages)]
        busy = [
            min(ways[s] for s in mine)
            + self.shape.microbatches * sum(work[s] for s in mine)
            + (0 if self.split else min(back[s] for s in mine))
            for mine in self.stages_of
        ]
        last = self.stages[-1]
        alone = ways[-1] + last.forward_ns + last.backward_ns + back[-1] + self.stages[0].weight_ns
        return max(*busy, alone)


def with_halves(problem: Problem, orders: Orders) -> Orders:
    """Orders of whole backwards in the problem's kinds: where it splits them, both halves one after another."""
    if not problem.split:
        return orders
    return tuple(tuple(part for action in order for part in _parts(action)) for order in orders)


def _parts(action: Action) -> tuple[Action, ...]:
    return (action._replace(kind=INPUT), action._replace(kind=WEIGHT)) if action.kind is B else (action,)


def start_times_ns(problem: Problem, orders: Orders) -> tuple[tuple[int, ...], ...]:
    """When every action of the orders starts, in ns from the start of the first.

    Raises:
        ScheduleDeadlock: If every rank waits for another one.
    """
    starts: list[list[int]] = [[] for _ in orders]
    arrived: dict[Action, int] = {Action(0, F, j): 0 for j in range(problem.shape.microbatches)}
    free = [0] * len(orders)
    links: dict[str, int] = {}
    last, gradient = problem.shape.stages - 1, problem.kinds[1]
    queue: list[tuple[int, int, int, Action]] = []  # what becomes ready: (end, rank, place in its order, action)

    def begin(rank: int) -> None:
        if len(starts[rank]) == len(orders[rank]):
            return
        action = orders[rank][len(starts[rank])]
        needed = arrived.get(action)
        if needed is not None:
            start = max(free[rank], needed)
            free[rank] = start + problem.duration_ns(action.stage, action.kind)
            starts[rank].append(start)
            heappush(queue, (free[rank], rank, len(starts[rank]), action))

    running = 0
    for rank in range(len(orders)):
        begin(rank)
    while queue:
        end, rank, _, (stage, kind, microbatch) = heappop(queue)
        running += 1
        if kind is F and stage == last:
            arrived[Action(stage, gradient, microbatch)] = end
        elif kind is INPUT:
            arrived[Action(stage, WEIGHT, microbatch)] = end
        to = problem.sent(stage, kind)
        if to is not None:
            target, hop = to
            left = end
            if hop.link is not None:
                left = max(end, links.get(hop.link, 0)) + hop.occupancy_ns
                links[hop.link] = left
            wanted = Action(target, kind, microbatch)
            arrived[wanted] = left + hop.latency_ns + (hop.occupancy_ns if hop.link is None else 0)
            other = problem.shape.rank_of(target)
            if (
                other != rank
                and len(starts[other]) < len(orders[other])
                and orders[other][len(starts[other])] == wanted
            ):
                begin(other)
        begin(rank)
    if running < sum(map(len, orders)):
        raise ScheduleDeadlock("the order cannot finish: every rank waits.")
    return tuple(map(tuple, starts))


def window_ns(problem: Problem, orders: Orders) -> int:
    """First start to last end.

    Raises:
        ScheduleDeadlock: If every rank waits for another one.
    """
    starts = start_times_ns(problem, orders)
    return max(
        start[-1] + problem.duration_ns(order[-1].stage, order[-1].kind)
        for start, order in zip(starts, orders, strict=True)
    )
