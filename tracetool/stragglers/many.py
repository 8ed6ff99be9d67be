"""Many what-ifs of one step at once: each duration as it was measured, or as its kind takes, a column per what-if."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.model.topology import Topology
from tracetool.replays.compiled import Compiled
from tracetool.replays.sweeping import Durations, make_plan, sweep
from tracetool.replays.tail import numbered_meetings
from tracetool.stragglers.equalize import Where
from tracetool.stragglers.step import global_rank
from tracetool.stragglers.together import taken_together

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.schedule import Schedule
    from tracetool.replays.flow import Bools, Int32s, Int64s
    from tracetool.replays.sweeping import NodeOrder
    from tracetool.stragglers.equalize import Averages
    from tracetool.stragglers.step import JobStep, Parts

_MOST_VALUES = 1 << 23
"""So many durations are held at once."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    """An order with a release for each rank: before it, the rank's first action does not begin.

    Attributes:
        compiled: The order.
        plan: Its tasks, and the releases after them.
        last: Per rank, the task of its last action.
    """

    compiled: Compiled
    plan: NodeOrder
    last: Int32s


class CompiledOrders:
    """Orders of pipelines, compiled once."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[Schedule, str, bool], _Compiled | None] = {}

    def of(self, pipeline: Pipeline) -> _Compiled | None:
        """A pipeline's observed order; None where tasks wait for each other."""
        key = pipeline.observed, pipeline.p2p, pipeline.buffered
        if key not in self._compiled:
            self._compiled[key] = _compile(pipeline)
        return self._compiled[key]


def _compile(pipeline: Pipeline) -> _Compiled | None:
    compiled = Compiled(pipeline.observed, pipeline.p2p, Topology(), buffered=pipeline.buffered)
    flow, graph = compiled.graph.flow, compiled.graph
    plan = make_plan(graph, compiled.class_of, compiled.link_of, None, graph.compute[flow.first[:-1]], compiled.classes)
    return None if plan is None else _Compiled(compiled, plan, graph.compute[flow.first[1:] - 1])


@dataclass(slots=True)
class _Terms:
    """Durations of a step, one after another.

    Attributes:
        measured: What each took.
        typical: What its kind takes.
        where: What it belongs to; None of what stays as it is.
    """

    measured: list[int] = field(default_factory=list)
    typical: list[int] = field(default_factory=list)
    where: list[Where | None] = field(default_factory=list)

    def add(self, measured: int, typical: int, where: Where | None) -> int:
        """Take one up; its number."""
        self.measured.append(measured)
        self.typical.append(typical)
        self.where.append(where)
        return len(self.measured) - 1


class ManyReplays:
    """A step whose durations may each be as measured, or as their kind takes.

    Args:
        step: The step.
        averages: What kinds take.
        orders: Orders that were compiled before.
    """

    def __init__(self, step: JobStep, averages: Averages, orders: CompiledOrders) -> None:
        self._step = step
        self._terms = _Terms()
        self._shared: dict[tuple[tuple[int, ...], int, ActionKind], dict[int, list[int]]] = defaultdict(dict)
        self._pipelines: list[tuple[_Compiled, list[int], list[int]] | None] = []
        for number, pipeline in enumerate(step.pipelines):
            of = orders.of(pipeline)
            self._pipelines.append(None if of is None else (of, *self._add_pipeline(number, pipeline, of, averages)))
        self._frames: list[tuple[list[int], list[int]]] = []
        for number, (pipeline, frames) in enumerate(zip(step.pipelines, step.frames, strict=True)):
            for position, (frame, profile) in enumerate(zip(frames, pipeline.ranks, strict=True)):
                stage = position if pipeline.observed.shape.chunks == 1 else None
                typical = averages.typical_frame(frame, stage)
                places = (Where(number, profile.rank, stage, part.name) for part in (*frame.head, *frame.tail))
                terms = [
                    self._terms.add(part.duration_ns, ns, None if part.kind == "host" else where)
                    for part, ns, where in zip((*frame.head, *frame.tail), typical, places, strict=True)
                ]
                self._frames.append((terms[: len(frame.head)], terms[len(frame.head) :]))

    def _add_pipeline(
        self, number: int, pipeline: Pipeline, of: _Compiled, averages: Averages
    ) -> tuple[list[int], list[int]]:
        """The terms of its actions in the order of their classes, and of its messages, way by way."""
        add = self._terms.add
        ranks = [global_rank(pipeline, stage) for stage in range(pipeline.observed.shape.stages)]
        actions: list[int] = []
        for stage in pipeline.stages:
            for kind in stage.costs:
                peers = self._step.peers.get((number, stage.stage, kind), (number,))
                typical, name = averages.typical_compute(stage, kind)
                where = Where(number, ranks[stage.stage], stage.stage, name)
                self._shared[peers, stage.stage, kind][number] = [
                    add(ns, typical, where) for ns in self._step.own_ns(number, stage.stage, kind)
                ]
        for action in of.compiled.graph.flow.actions:
            peers = self._step.peers.get((number, action.stage, action.kind), (number,))
            actions.append(self._shared[peers, action.stage, action.kind][number][action.microbatch])
        messages = []
        for way in of.compiled.ways:
            stage = pipeline.stages[way.message.src_stage]
            is_forward = way.message.kind == "F"
            measured = stage.forward_transfer_ns if is_forward else stage.backward_transfer_ns
            typical, name = averages.typical_message(stage, way.message.kind)
            messages.append(add(measured, typical, Where(number, ranks[stage.stage], stage.stage, name)))
        return actions, messages

    def steps_ns(self, is_chosen: Callable[[Sequence[Where]], Bools]) -> list[int] | None:
        """The step in each of many what-ifs; None where it cannot be replayed so.

        Args:
            is_chosen: By place and what-if, whether the kind's time is taken.
        """
        import numpy as np

        places = list(dict.fromkeys(where for where in self._terms.where if where is not None))
        number = {where: place for place, where in enumerate(places)}
        columns = is_chosen(places)
        chosen = np.vstack([columns, np.zeros((1, columns.shape[1]), bool)])  # the last row is of no place
        of_place = np.array([-1 if where is None else number[where] for where in self._terms.where])
        measured = np.array(self._terms.measured, np.int64)[:, None]
        typical = np.array(self._terms.typical, np.int64)[:, None]
        steps: list[int] = []
        at_once = max(1, _MOST_VALUES // max(1, len(measured)))
        for first in range(0, chosen.shape[1], at_once):
            taken = chosen[:, first : first + at_once][of_place]
            ends = self._ends(self._together(np.where(taken, typical, measured), taken))
            if ends is None:
                return None
            steps += ends.max(axis=0).tolist()
        return steps

    def _together(self, own: Int64s, taken: Bools) -> Int64s:
        """The durations, from own times: ranks that share layers take theirs together."""
        import numpy as np

        measured = np.array(self._terms.measured, np.int64)
        for (peers, stage, kind), members in self._shared.items():
            if len(peers) > 1:
                took = np.array(self._step.took_ns(peers[0], stage, kind))
                terms = np.array(list(members.values()))
                all_typical = taken[terms[:, 0]].all(axis=0)
                own[terms] = taken_together(took, measured[terms], own[terms], all_typical)
        return own

    def _ends(self, durations: Int64s) -> Int64s | None:
        """End of each rank's step by what-if, from the durations of all terms."""
        import numpy as np

        ranks = len(self._frames)
        heads = [frame.head for frames in self._step.frames for frame in frames]
        tails = [frame.tail for frames in self._step.frames for frame in frames]
        starts = np.zeros((ranks, durations.shape[1]), np.int64)
        ready = _met(starts, heads, [durations[terms] for terms, _ in self._frames])
        if ready is None:
            return None
        ends, first = [], 0
        for one in self._pipelines:
            if one is None:
                return None
            of, actions, messages = one
            size = len(of.last)
            ends.append(_computed(of, durations[actions], durations[messages], ready[first : first + size]))
            first += size
        return _met(np.concatenate(ends), tails, [durations[terms] for _, terms in self._frames])


def _computed(of: _Compiled, actions: Int64s, messages: Int64s, ready: Int64s) -> Int64s:
    """End of each rank's last action by what-if."""
    import numpy as np

    compiled = of.compiled
    count = compiled.classes + len(ready)
    values = np.zeros((count, actions.shape[1]), np.int64)
    values[1 : len(actions) + 1] = actions
    for way, moving in zip(compiled.ways, messages, strict=True):
        values[way.move] = values[way.copy] = moving
    values[compiled.classes :] = ready
    durations = Durations(np.zeros(count, np.int64), np.arange(count, dtype=np.int32), values)
    ends, _ = sweep(of.plan, durations, of.last)
    return ends


def _met(starts: Int64s, parts: Sequence[Parts], durations: Sequence[Int64s]) -> Int64s | None:
    """When each rank is through with its parts by what-if; None if their meetings are in different orders."""
    import numpy as np

    now = list(starts)
    names = [numbered_meetings(part.meet for part in of_rank) for of_rank in parts]
    missing = Counter(name for of_rank in names for name in of_rank if name is not None)
    place = [0] * len(parts)
    arrived: dict[tuple[str, int], list[int]] = defaultdict(list)
    moving = list(range(len(parts)))
    while moving:
        rank = moving.pop()
        name = None
        while place[rank] < len(parts[rank]) and (name := names[rank][place[rank]]) is None:
            now[rank] = now[rank] + durations[rank][place[rank]]
            place[rank] += 1
        if name is None:
            continue
        arrived[name].append(rank)
        if len(arrived[name]) < missing[name]:
            continue
        there = arrived.pop(name)
        start = np.max([now[each] for each in there], axis=0)
        for each in there:
            now[each] = start + durations[each][place[each]]
            place[each] += 1
        moving += there
    return None if arrived else np.stack(now)
