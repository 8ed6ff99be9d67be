"""What the halves of a backward would hold, had it been split as torch splits it; from one that ran whole.

torch's split (``torch.distributed.pipelining._backward``) keeps the graph while it makes the gradient of the input,
so I frees nothing that lies at or below a node which feeds a parameter, and holds the gradient that came into each
such node until W has used it; the stage's output stays as well, but that of the last stage, of which only the loss is
kept. What lies above all those nodes (the loss) goes when I ends. W makes the gradients of the weights and frees the
rest. The first stage needs no gradient of its input: its I is empty, its W is the whole backward.

All of that is in the allocator's log of the whole backward: each allocation belongs to the kernel launched next,
which tells its gradient; the gradient that comes into a node is as large as what its forward op gave out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.reconstruction.closeup.split import takes_gradient
from tracetool.reconstruction.memory.actions import allocations_of_frees

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import ActionCost
    from tracetool.reconstruction.actions import Kernel
    from tracetool.reconstruction.closeup.action_view import ActionView
    from tracetool.reconstruction.memory.log import Log

_ROUNDING_BYTES = 1 << 20
"""torch's allocator gives out a block whole if less than this would be left of it (``kSmallSize``)."""


class HalvesMemory(NamedTuple):
    """Memory of a backward's halves, but for what the backward as a whole leaves behind.

    Attributes:
        input_held_bytes: Allocated when I ends, above its start.
        input_peak_bytes: Highest allocation while I runs, above its start.
        weight_peak_bytes: Highest allocation while W runs, above its start, if it freed everything only at its end;
            None for as high as the whole backward's.
    """

    input_held_bytes: int
    input_peak_bytes: int
    weight_peak_bytes: int | None

    def input_half(self, cost: ActionCost) -> ActionCost:
        """The cost of I, with its memory."""
        return _with(cost, self.input_held_bytes, self.input_peak_bytes)

    def weight_half(self, cost: ActionCost, whole: ActionCost) -> ActionCost:
        """The cost of W, with its memory: it ends where the whole backward ends."""
        if whole.held_bytes is None or whole.peak_bytes is None:
            return cost
        held = whole.held_bytes - self.input_held_bytes
        peak = whole.peak_bytes if self.weight_peak_bytes is None else self.weight_peak_bytes
        return _with(cost, held, max(held, peak))


def _with(cost: ActionCost, held: int, peak: int) -> ActionCost:
    return replace(cost, held_bytes=held, peak_bytes=peak)


EMPTY_INPUT_HALF = HalvesMemory(0, 0, None)


class HalfMemory(NamedTuple):
    """Memory of a backward's halves, as a whole and by layer.

    Attributes:
        whole: Of the action; None where it cannot be told.
        layers: Of what each layer does of it; together they hold what the action's halves hold. Empty if unknown.
    """

    whole: HalvesMemory | None
    layers: Mapping[int, HalvesMemory]


class _Allocation(NamedTuple):
    """One allocation: when (host time), how much, and when it was freed; ``_NEVER`` for not within the log."""

    time_ns: int
    size_bytes: int
    freed_ns: int


_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Action:
    """An action and the host times around it.

    Attributes:
        view: The action.
        begin_ns: Last launch before it.
        end_ns: First launch after it.
    """

    view: ActionView
    begin_ns: int
    end_ns: int

    def makes(self, made: Sequence[_Allocation]) -> list[tuple[_Allocation, Kernel, int]]:
        """What it allocates, with the kernel launched next and its number; ``made`` is in order of time."""
        kernels = self.view.segment.kernels
        launches = [k.launch_ns for k in kernels]
        first, last = (bisect_left(made, t, key=lambda a: a.time_ns) for t in (self.begin_ns, launches[-1]))
        by = [bisect_left(launches, a.time_ns) for a in made[first:last]]
        return [(a, kernels[i], i) for a, i in zip(made[first:last], by, strict=True)]


def memory_of_halves(
    views: Sequence[ActionView], stages: frozenset[int], logs: Mapping[int, Log], weights: Mapping[int, frozenset[int]]
) -> dict[tuple[int, int], HalfMemory]:
    """Memory of the halves, per stage and microbatch, where the log tells.

    Args:
        views: All actions, with the parts of their kernels.
        stages: Those whose backwards ran whole and can be told apart.
        logs: The allocator's log of each rank that has one.
        weights: Per rank, the nodes that make gradients of parameters.
    """
    last = max(view.segment.stage for view in views)
    by_action: dict[tuple[int, int], HalfMemory] = {}
    by_rank: dict[int, list[ActionView]] = defaultdict(list)
    for view in views:
        by_rank[view.rank].append(view)
    for rank, of_rank in by_rank.items():
        made = _allocations(logs[rank]) if rank in logs else None
        if made is None:
            continue
        freed = sorted(made, key=lambda a: a.freed_ns)
        forwards: dict[int, dict[int, _Action]] = defaultdict(dict)
        backwards: dict[int, dict[int, _Action]] = defaultdict(dict)
        for action in _in_order(of_rank, freed):
            s = action.view.segment
            if s.kind is ActionKind.FORWARD:
                forwards[s.stage][s.microbatch] = action
            elif s.stage in stages:
                backwards[s.stage][s.microbatch] = action
        for stage, of_stage in backwards.items():
            outputs = _passing_outputs(forwards[stage], of_stage, made) if stage == last else {}
            for m, backward in of_stage.items():
                halves = _split(backward, forwards[stage][m], made, freed, weights[rank], outputs.get(m, ()))
                if stage == 0:
                    by_action[stage, m] = HalfMemory(EMPTY_INPUT_HALF, halves.layers if halves else {})
                elif halves:
                    by_action[stage, m] = halves
    return by_action


def _in_order(views: Sequence[ActionView], freed: Sequence[_Allocation]) -> list[_Action]:
    """The actions of a rank in the order of its host; the first begins with the last free ahead of its launch."""
    mine = sorted(views, key=lambda v: v.segment.issue_ns)
    ahead = bisect_left(freed, mine[0].segment.issue_ns, key=lambda a: a.freed_ns)
    before = [freed[ahead - 1].freed_ns if ahead else 0, *(v.segment.issued_ns for v in mine[:-1])]
    after = [*(v.segment.issue_ns for v in mine[1:]), mine[-1].segment.issued_ns + 1]
    return [_Action(*fields) for fields in zip(mine, before, after, strict=True)]


def _allocations(log: Log) -> list[_Allocation] | None:
    """All allocations in order of time; None if the log does not say what a free frees."""
    import numpy as np

    of_free = allocations_of_frees(log.block, log.delta_bytes)
    freed = np.flatnonzero(of_free >= 0)
    if not len(freed):
        return None
    ends = np.full(len(of_free), _NEVER, np.int64)
    ends[of_free[freed]] = log.time_ns[freed]
    made = np.flatnonzero(log.delta_bytes > 0)
    columns = (column[made].tolist() for column in (log.time_ns, log.delta_bytes, ends))
    return [_Allocation(*row) for row in zip(*columns, strict=True)]


def _split(
    backward: _Action,
    forward: _Action,
    made: Sequence[_Allocation],
    freed: Sequence[_Allocation],
    weights: frozenset[int],
    output: Sequence[_Allocation],
) -> HalfMemory | None:
    """Halves of a whole backward; None where what a node took cannot be told or activations are recomputed.

    Args:
        backward: The backward.
        forward: The forward that it undoes.
        made: Allocations of the rank by time.
        freed: The same by the time of their free.
        weights: Nodes of the rank that make gradients of parameters.
        output: What its stage put out, if that goes with I.
    """
    kernels, parts = backward.view.segment.kernels, backward.view.parts or []
    nodes = _nodes(kernels, weights, _outputs(forward, made))
    if not nodes or "recompute" in parts:
        return None
    own = backward.makes(made)
    for_input = [(a, i) for a, _, i in own if parts[i] != "weight"]
    for_weight = [(a, i) for a, _, i in own if parts[i] == "weight"]
    kept, sums = _captured(nodes, for_input, kernels)
    leaving = [a for n, (a, _) in enumerate(for_input) if n not in kept and a.freed_ns < backward.end_ns]
    first, last = (bisect_left(freed, kernels[i].launch_ns, key=lambda a: a.freed_ns) for i in (0, nodes[0].first))
    above = [a for a in freed[first:last] if a.time_ns < backward.begin_ns]
    fleeting = [a for a, _ in for_weight if a.freed_ns < backward.end_ns]

    places = backward.view.places
    turns = _Turns(kernels, [place.layer for place in places or ()])

    def of(layer: int | None) -> HalvesMemory:
        """Of one layer, or of all."""

        def here(pairs: Sequence[tuple[_Allocation, int]]) -> list[_Allocation]:
            return [a for a, i in pairs if layer is None or (places and places[i].layer == layer)]

        def now(allocations: Sequence[_Allocation]) -> list[_Allocation]:
            return [a for a in allocations if layer is None or turns.at(a.freed_ns) == layer]

        more = [(time_ns, size) for time_ns, size in sums if layer is None or turns.at(time_ns) == layer]
        level, peak = _run(here(for_input), now(leaving), more)
        _, weight_peak = _run(here(for_weight), now(fleeting), [])
        gone = now(above) + (list(output) if layer is None or layer == turns.layers[0] else [])
        return HalvesMemory(level - sum(a.size_bytes for a in gone), peak, weight_peak)

    return HalfMemory(of(None), {layer: of(layer) for layer in turns.layers})


def _passing_outputs(
    forwards: Mapping[int, _Action], backwards: Mapping[int, _Action], made: Sequence[_Allocation]
) -> dict[int, list[_Allocation]]:
    """Per microbatch, what a forward puts out that outlives its backward but not the step.

    Torch's 1F1B holds the latest output alone; a backward in halves not even that once I is done. Outputs that the
    caller wants back (``return_outputs``) pile up until the end of the step, as losses do: they stay.
    """
    outliving = {
        m: [a for a, *_ in forwards[m].makes(made) if a.freed_ns > backward.view.segment.kernels[-1].launch_ns]
        for m, backward in backwards.items()
    }
    *earlier, latest = sorted(backwards, key=lambda m: backwards[m].end_ns)
    passing = {m: [a for a in outliving[m] if a.freed_ns < backwards[latest].end_ns] for m in earlier}
    sizes = {a.size_bytes for outputs in passing.values() for a in outputs}
    return {**passing, latest: [a for a in outliving[latest] if a.size_bytes in sizes]}


class _Turns:
    """Which layer a backward is at: the one whose first kernel was launched last."""

    def __init__(self, kernels: Sequence[Kernel], layers: Sequence[int]) -> None:
        first: dict[int, int] = {}
        for kernel, layer in zip(kernels, layers, strict=False):  # no layers where their places are unknown
            first.setdefault(layer, kernel.launch_ns)
        self.layers = sorted(first, key=lambda layer: first[layer])
        self._starts = [first[layer] for layer in self.layers]

    def at(self, time_ns: int) -> int:
        """The layer at a host time."""
        return self.layers[max(0, bisect_right(self._starts, time_ns) - 1)]


class _Node(NamedTuple):
    """A node that takes a gradient which W needs again: its first kernel, and how large that gradient is."""

    first: int
    size_bytes: int


def _nodes(kernels: Sequence[Kernel], weights: frozenset[int], outputs: Mapping[int | None, int]) -> list[_Node]:
    """Nodes whose gradient W needs again, in order; empty if the size of one is unknown."""
    nodes: list[_Node] = []
    listed: set[int] = set()
    for index, kernel in enumerate(kernels):
        node = kernel.node
        if node is None or node not in weights or node in listed or not takes_gradient(kernel.node_name or ""):
            continue
        listed.add(node)
        size = outputs.get(kernel.backward_of)
        if size is None:
            return []
        nodes.append(_Node(index, size))
    return nodes


def _outputs(forward: _Action, made: Sequence[_Allocation]) -> dict[int | None, int]:
    """Per autograd number of a forward's op, the size of its output: the largest that outlives its kernels."""
    last = {k.sequence_number: k.launch_ns for k in forward.view.segment.kernels}
    sizes: dict[int | None, int] = {}
    for allocation, kernel, _ in forward.makes(made):
        number = kernel.sequence_number
        if allocation.freed_ns > last[number]:
            sizes[number] = max(sizes.get(number, 0), allocation.size_bytes)
    return sizes


def _captured(
    nodes: Sequence[_Node], made: Sequence[tuple[_Allocation, int]], kernels: Sequence[Kernel]
) -> tuple[set[int], list[tuple[int, int]]]:
    """Which allocations are gradients that a node takes, and what sums add that could not be made in place.

    A gradient that no allocation of the backward holds was received.
    """
    kept: set[int] = set()
    sums: list[tuple[int, int]] = []
    alive: list[int] = []
    at = 0
    for node in nodes:
        first = kernels[node.first]
        while at < len(made) and made[at][1] < node.first and kernels[made[at][1]].node != first.node:
            alive.append(at)
            at += 1
        alive = [n for n in alive if made[n][0].freed_ns > first.launch_ns]
        fitting = [n for n in alive if abs(made[n][0].size_bytes - node.size_bytes) <= _ROUNDING_BYTES]
        if not fitting:
            continue
        taken = min(fitting, key=lambda n: made[n][0].freed_ns)
        if taken in kept:
            sums.append((first.launch_ns, made[taken][0].size_bytes))
        kept.add(taken)
    return kept, sums


def _run(made: Sequence[_Allocation], freed: Sequence[_Allocation], more: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Level after some changes, and the highest on the way."""
    changes = [(a.time_ns, a.size_bytes) for a in made] + [(a.freed_ns, -a.size_bytes) for a in freed]
    level = peak = 0
    for _, delta in sorted([*changes, *more]):
        level += delta
        peak = max(peak, level)
    return level, peak
