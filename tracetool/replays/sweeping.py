"""The static sweep: end of a node = latest end of those it waits for + its duration, in many scenarios at once.

A static order of all tasks: where links serve in a known order, replay is one sweep over the graph.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.replays.engine import compiled_engine
from tracetool.replays.graph import Rows, rows_by

if TYPE_CHECKING:
    from types import ModuleType

    from tracetool.replays.flow import Bools, Bytes, Int32s, Int64s
    from tracetool.replays.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """Nodes in an order in which each comes after all that it waits for.

    The nodes are the tasks of the graph, then one for each message over a link that several pairs of ranks share: when
    it is ready; and one for each MOVE that another link follows: when it starts.

    Attributes:
        order: Node at each place.
        before: Per place, the nodes it waits for.
        levels: Where in the order each level begins, and the end: nodes of a level do not wait for each other. Only
            without the compiled engine.
        class_of: Per node, its cost class.
        earlier: Nodes that have to end before ...
        later: ... these do, each strictly before its counterpart; else links serve in another order.
    """

    order: Int32s
    before: Rows
    levels: Int32s | None
    class_of: Int32s
    earlier: Int32s
    later: Int32s


def make_plan(
    graph: TaskGraph,
    class_of: Int32s,
    link_of: Int32s,
    starts: Int64s | None,
    released: Int32s | None = None,
    first_release: int = 0,
) -> NodeOrder | None:
    """Order everything.

    One pair of ranks has its messages ready in the order they are posted, in every mode: a rank's posts follow its
    computes, and in one channel a post follows the end of the one before. In that order they also come to further
    links of their path. At equal times the event loop keeps to task numbers, which are the order of posts as well.
    Messages of one post count as of different pairs.

    Args:
        graph: The tasks.
        class_of: Per task, its cost class.
        link_of: Per task, the number of the link it occupies; -1 for none.
        starts: When tasks start in one scenario: links that several pairs share are taken to serve in this order.
        released: Tasks that do not start before a release of their own: a node more each, after all others.
        first_release: Cost class of the first of these, which takes until the release; that of the next is one on.

    Returns:
        The plan; None if the order on a link is unknown, or tasks wait for each other.
    """
    import numpy as np

    moves = np.flatnonzero(link_of >= 0).astype(np.int32)
    pairs = _pairs(graph, moves)
    shared = _is_shared(link_of[moves], pairs)
    if starts is None and shared.any():
        return None
    served = np.lexsort((moves, np.zeros(len(moves)) if starts is None else starts[moves], link_of[moves]))
    moves, pairs, shared = moves[served], pairs[served], shared[served]
    follows = link_of[moves[1:]] == link_of[moves[:-1]]
    first, second = moves[:-1][follows], moves[1:][follows]

    # What a message on a shared link waits for, it waits for ahead of its turn: there it is ready.
    waiting = np.full(graph.tasks, -1, np.int32)
    waiting[moves[shared]] = graph.tasks + np.arange(int(shared.sum()))
    before, after = graph.before, graph.after
    after = np.where(waiting[after] >= 0, waiting[after], after)
    before = np.concatenate([before, first, waiting[moves[shared]]]).astype(np.int32)
    after = np.concatenate([after, second, moves[shared]]).astype(np.int32)
    checked = follows & shared[1:] & (pairs[1:] != pairs[:-1])
    nodes = graph.tasks + int(shared.sum())
    if len(graph.onward.move):
        before, after, nodes = _with_starts(graph, before, after, nodes)
    classes = np.append(class_of, np.zeros(nodes - graph.tasks, np.int32))
    if released is not None:
        before = np.append(before, nodes + np.arange(len(released))).astype(np.int32)
        after, nodes = np.append(after, released).astype(np.int32), nodes + len(released)
        classes = np.append(classes, first_release + np.arange(len(released))).astype(np.int32)
    ordered = _order(before, after, nodes, graph.successors if not len(moves) and released is None else None)
    if ordered is None:
        return None
    order, levels = ordered
    place = np.empty(nodes, np.int32)
    place[order] = np.arange(nodes)
    return NodeOrder(
        order, rows_by(place[after], before, nodes), levels, classes,
        waiting[moves[:-1][checked]], waiting[moves[1:][checked]],
    )  # fmt: skip


def _with_starts(graph: TaskGraph, before: Int32s, after: Int32s, nodes: int) -> tuple[Int32s, Int32s, int]:
    """The edges and the number of nodes, with nodes for the starts of MOVEs that let heads of messages go on."""
    import numpy as np

    leaving, head = graph.onward.leaving, graph.onward.head
    started = np.full(nodes, -1, np.int32)
    started[leaving] = nodes + np.arange(len(leaving))
    after = np.where(started[after] >= 0, started[after], after)
    before = np.concatenate([before, started[leaving], started[leaving]])
    return before, np.concatenate([after, leaving, head]).astype(np.int32), nodes + len(leaving)


def _pairs(graph: TaskGraph, moves: Int32s) -> Int32s:
    """Per MOVE, a number for its pair of ranks; one more if its post has sent another message already, or this one."""
    import numpy as np

    flow = graph.flow
    messages = graph.subjects[moves]
    posts = graph.send_post[messages]
    repeats = np.ones(len(posts), np.int32)
    repeats[np.unique(posts, return_index=True)[1]] = 0
    return 2 * (graph.ranks[moves] * len(flow.schedule.orders) + flow.dst_rank[messages]) + repeats


def _is_shared(links: Int32s, pairs: Int32s) -> Bools:
    """Per MOVE, whether another pair of ranks uses its link as well."""
    import numpy as np

    uses = np.unique(np.stack([links, pairs]), axis=1)[0] if len(links) else links
    return np.bincount(uses, minlength=int(links.max(initial=0)) + 1)[links] > 1


def _order(before: Int32s, after: Int32s, nodes: int, successors: Rows | None) -> tuple[Int32s, Int32s | None] | None:
    """Nodes in topological order, with the beginnings of levels where they are known; None if there is none."""
    import numpy as np

    rows = successors or rows_by(before, after, nodes)
    native = compiled_engine()
    if native is not None:
        order = np.empty(nodes, np.int32)
        return (order, None) if native.order(rows.first, rows.at, order) == nodes else None
    needs = np.bincount(after, minlength=nodes)
    levels = [np.flatnonzero(needs == 0).astype(np.int32)]
    while len(levels[-1]):
        reached = _neighbours(rows, levels[-1])
        np.subtract.at(needs, reached, 1)
        reached = reached[needs[reached] == 0]
        levels.append(np.unique(reached))
    if needs.any():
        return None
    beginnings = np.cumsum([0, *map(len, levels[:-1])], dtype=np.int32)
    return np.concatenate(levels).astype(np.int32), beginnings


def _neighbours(rows: Rows, nodes: Int32s) -> Int32s:
    """The neighbours of some nodes, one after another."""
    import numpy as np

    first, sizes = rows.first[nodes], rows.first[nodes + 1] - rows.first[nodes]
    offset = np.repeat(first - (np.cumsum(sizes) - sizes), sizes)
    return rows.at[offset + np.arange(int(sizes.sum()))]


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations by cost class; scenarios share all but a few.

    Attributes:
        base: Per cost class, its duration in ns.
        varying: Classes whose durations differ from scenario to scenario; None if there is one scenario.
        values: Their durations, classes by scenarios.
    """

    base: Int64s
    varying: Int32s | None = None
    values: Int64s | None = None

    @property
    def scenarios(self) -> int:
        """Number of scenarios."""
        return 1 if self.values is None else self.values.shape[1]

    def of(self, scenario: int) -> Int64s:
        """All durations of one scenario."""
        if self.values is None or self.varying is None:
            return self.base
        durations = self.base.copy()
        durations[self.varying] = self.values[:, scenario]
        return durations

    def sums(self, counts: Int64s) -> Int64s:
        """By scenario, all durations so many times each, summed.

        Args:
            counts: Per cost class.
        """
        import numpy as np

        if self.values is None or self.varying is None:
            return np.array([counts @ self.base], np.int64)
        fixed = counts.copy()
        fixed[self.varying] = 0
        sums: Int64s = fixed @ self.base + counts[self.varying] @ self.values
        return sums


def sweep(plan: NodeOrder, durations: Durations, wanted: Int32s) -> tuple[Int64s, Bools]:
    """Sweep over a plan.

    Args:
        plan: The order.
        durations: Of every scenario.
        wanted: Nodes whose ends are asked for.

    Returns:
        Ends of the wanted nodes, by scenarios; and which scenarios break the order of the plan.
    """
    import numpy as np

    count = durations.scenarios
    out = np.empty((len(wanted), count), np.int64)
    failed = np.zeros(count, np.uint8)
    native = compiled_engine()
    if native is None or not count:
        _sweep_levels(plan, durations, wanted, out, failed)
    else:
        _sweep_native(native, plan, durations, wanted.astype(np.int32), out, failed)
    return out, failed.astype(bool)


_LANES = 16
"""Scenarios that the compiled sweep takes at a time."""

_LEAST_ENDS = 1 << 18
"""So many ends a thread works out at least: to start one takes as long as a hundred thousand and more."""


def _sweep_native(
    native: ModuleType, plan: NodeOrder, durations: Durations, wanted: Int32s, out: Int64s, failed: Bytes
) -> None:
    import numpy as np

    count = durations.scenarios
    varying = np.empty(0, np.int32) if durations.varying is None else durations.varying.astype(np.int32)
    values = np.empty((0, count), np.int64) if durations.values is None else durations.values
    base = np.ascontiguousarray(durations.base)

    def part(span: tuple[int, int]) -> None:
        native.sweep(
            plan.order, plan.before.first, plan.before.at, plan.class_of, base, varying, values,
            wanted, plan.earlier, plan.later, out, failed, *span,
        )  # fmt: skip

    most = count * len(plan.order) // _LEAST_ENDS
    workers = max(1, min(os.cpu_count() or 1, count // (4 * _LANES), most))
    size = -(-count // workers // _LANES) * _LANES
    spans = [(first, min(first + size, count)) for first in range(0, count, size)]
    if len(spans) == 1:
        part(spans[0])
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(part, spans))


_BLOCK = 64
"""Scenarios that the plain sweep takes at a time."""


def _sweep_levels(plan: NodeOrder, durations: Durations, wanted: Int32s, out: Int64s, failed: Bytes) -> None:
    import numpy as np

    first = plan.before.first
    levels = _levels(plan)
    count = durations.scenarios
    for at in range(0, count, _BLOCK):
        until = min(at + _BLOCK, count)
        per_class = np.repeat(durations.base[:, None], until - at, axis=1)
        if durations.varying is not None and durations.values is not None:
            per_class[durations.varying] = durations.values[:, at:until]
        ends = np.empty((len(plan.order), until - at), np.int64)
        for begin, end in levels:
            nodes = plan.order[begin:end]
            ends[nodes] = per_class[plan.class_of[nodes]]
            if first[end] > first[begin]:  # all but the first level wait for something
                earlier = ends[plan.before.at[first[begin] : first[end]]]
                ends[nodes] += np.maximum.reduceat(earlier, first[begin:end] - first[begin], axis=0)
        out[:, at:until] = ends[wanted]
        failed[at:until] = (ends[plan.earlier] >= ends[plan.later]).any(axis=0)


def _levels(plan: NodeOrder) -> list[tuple[int, int]]:
    if plan.levels is None:  # made with the compiled engine: one node at a time
        return [(place, place + 1) for place in range(len(plan.order))]
    bounds = plan.levels.tolist()
    return list(zip(bounds, [*bounds[1:], len(plan.order)], strict=True))
