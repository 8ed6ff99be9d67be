"""List scheduling: always the rank that can begin first takes the best of what is ready there.

After CrossPipe's greedy schedule (arXiv 2507.00217, section 4.2), with whole actions in place of sub-blocks: until a
rank's first backward forwards go first, then forwards and backwards take turns; a weight gradient runs where nothing
else can, be it for want of input or of memory. Two things are this tool's own: a weight gradient may have patience
and let an action pass that is about to become ready, and a stage may have a cap on its microbatches in flight.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import product
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import Action
from tracetool.schedules.problem import WEIGHT, F, window_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.schedules.problem import Hop, Orders, Problem

_PATIENCE = (0.0, 0.5, 1.0)
"""Tried: how long a weight gradient waits for others, in its own durations."""

_DEPTHS = (None, 1.0, 1.25, 1.5, 2.0)
"""Tried: caps as multiples of the microbatches that keep a rank busy while one goes down and comes back."""

_NEVER = 2**62


def listed(problem: Problem) -> list[Orders]:
    """The orders of all patiences and caps, the plainest first, each once."""
    caps = [None if depth is None else _caps(problem, depth) for depth in _DEPTHS]
    patience = _PATIENCE if problem.split else _PATIENCE[:1]
    return list(dict.fromkeys(list_orders(problem, patience=p, caps=c) for p, c in product(patience, caps)))


def best_listed(problem: Problem, judge: Callable[[Orders], int] | None = None) -> Orders:
    """The one of the shortest window, as the judge sees it; by default with receives posted ahead."""
    return min(listed(problem), key=judge or (lambda orders: window_ns(problem, orders)))


def list_orders(problem: Problem, *, patience: float = 0, caps: Sequence[int] | None = None) -> Orders:
    """One order by list scheduling; where the room is too small for anything, one microbatch at a time.

    Linear in the actions but for a heap of ranks.

    Args:
        problem: Costs, links and memory.
        patience: How long a weight gradient waits for others, in its own durations.
        caps: Per stage, the most microbatches between forward and backward.
    """
    return _Lists(problem, patience, caps or (_NEVER,) * problem.shape.stages).run()


def _caps(problem: Problem, depth: float) -> list[int]:
    """Per stage: its way down and back over the time of all a rank does for one microbatch, times a depth."""
    costs = problem.stages
    cycle = max(sum(problem.duration_ns(s, k) for s in mine for k in problem.kinds) for mine in problem.stages_of)
    caps, way = [0] * len(costs), 0
    for stage in reversed(range(len(costs))):
        way += costs[stage].forward_ns + costs[stage].backward_ns
        caps[stage] = max(1, ceil(depth * way / max(cycle, 1)))
        if stage > 0:
            way += problem.forward_hops[stage - 1].delay_ns + problem.backward_hops[stage - 1].delay_ns
    return caps


class _Choice(NamedTuple):
    """What a rank could begin next, and when; the kind by its place in the problem's kinds."""

    start_ns: int
    stage: int
    kind: int


class _Lists:
    """Ranks, what has arrived at each stage, and what each stage has begun."""

    def __init__(self, problem: Problem, patience: float, caps: Sequence[int]) -> None:
        shape, kinds = problem.shape, problem.kinds
        stages = range(shape.stages)
        self._problem = problem
        self._caps = caps
        self._ready: list[list[list[int]]] = [[[] for _ in kinds] for _ in stages]
        self._ready[0][0] = [0] * shape.microbatches
        self._begun = [[0] * len(kinds) for _ in stages]
        self._orders: list[list[Action]] = [[] for _ in range(shape.ranks)]
        self._free = [0] * shape.ranks
        self._level = [0] * shape.ranks
        self._links: dict[str, int] = {}
        self._rank_of = [shape.rank_of(s) for s in stages]
        self._durations = [[problem.duration_ns(s, k) for k in kinds] for s in stages]
        self._changes = [[problem.change_bytes(s, k) for k in kinds] for s in stages]
        self._sent = [[problem.sent(s, k) for k in kinds] for s in stages]
        self._waits = [int(patience * costs.weight_ns) for costs in problem.stages]
        self._next_is_backward: list[bool | None] = [None] * shape.ranks
        self._highest = self._highest_levels()

    def _highest_levels(self) -> list[int]:
        """Per stage, the level up to which its forwards may begin.

        The forwards of a microbatch's later stages on the rank must still find room: without it early stages could
        fill a rank, and nothing there would ever reach its backward.
        """
        highest = [_NEVER] * self._problem.shape.stages
        for mine, room in zip(self._problem.stages_of, self._problem.usable_bytes, strict=True):
            if room is None:
                continue
            needed = 0
            for stage in reversed(mine):
                needed += self._problem.stages[stage].held_bytes
                highest[stage] = room - needed
        return highest

    def run(self) -> Orders:
        planned: list[_Choice | None] = [None] * len(self._orders)
        queue: list[tuple[int, int]] = []
        touched = {self._rank_of[0]}
        while True:
            for rank in sorted(touched):
                before, after = planned[rank], self._choose(rank)
                planned[rank] = after
                if after is not None and (before is None or before.start_ns != after.start_ns):
                    heappush(queue, (after.start_ns, rank))
            touched = set()
            if not queue:
                return tuple(map(tuple, self._orders))
            start, rank = heappop(queue)
            choice = planned[rank]
            if choice is not None and choice.start_ns == start:
                planned[rank] = None
                touched = self._begin(rank, choice)

    def _choose(self, rank: int) -> _Choice | None:
        """The best of what can begin earliest."""
        best: _Choice | None = None
        best_key: tuple[int, int, int, int] | None = None
        for stage in self._problem.stages_of[rank]:
            begun, ready = self._begun[stage], self._ready[stage]
            for kind, number in enumerate(begun):
                if number >= len(ready[kind]) or (kind == 0 and self._is_held_back(rank, stage)):
                    continue
                start = max(self._free[rank], ready[kind][number])
                wait = self._waits[stage] if kind == 2 else 0
                key = (start + wait, self._place(rank, kind), number, -stage)
                if best_key is None or key < best_key:
                    best, best_key = _Choice(start, stage, kind), key
        return best

    def _is_held_back(self, rank: int, stage: int) -> bool:
        """Whether memory or the cap keeps a stage's next forward from starting."""
        begun = self._begun[stage]
        return self._level[rank] > self._highest[stage] or begun[0] - begun[1] >= self._caps[stage]

    def _place(self, rank: int, kind: int) -> int:
        """Place of a kind among those that are ready: 0 goes first."""
        if kind == 2:
            return 2
        return int((kind == 1) != bool(self._next_is_backward[rank]))

    def _begin(self, rank: int, choice: _Choice) -> set[int]:
        """Place an action and what it sends; returns the ranks that may have something new to begin."""
        start, stage, kind = choice
        number = self._begun[stage][kind]
        self._begun[stage][kind] += 1
        name = self._problem.kinds[kind]
        self._orders[rank].append(Action(stage, name, number))
        end = self._free[rank] = start + self._durations[stage][kind]
        self._level[rank] += self._changes[stage][kind]
        # None until the first backward: the warm-up.
        if name is not WEIGHT and (name is not F or self._next_is_backward[rank] is not None):
            self._next_is_backward[rank] = name is F
        if kind + 1 < len(self._problem.kinds) and (kind == 1 or stage + 1 == self._problem.shape.stages):
            self._ready[stage][kind + 1].append(end)
        to = self._sent[stage][kind]
        if to is None:
            return {rank}
        target, hop = to
        self._ready[target][kind].append(self._arrival_ns(hop, end))
        return {rank, self._rank_of[target]}

    def _arrival_ns(self, hop: Hop, end: int) -> int:
        if hop.link is None:
            return end + hop.delay_ns
        left = self._links[hop.link] = max(end, self._links.get(hop.link, 0)) + hop.occupancy_ns
        return left + hop.latency_ns
