"""Why a metric changed: the base replayed with one part of the new side at a time.

What a part contributes depends on what else has changed already, so parts are exchanged one after another, in one order
and in the reverse one, and each contributes the mean of its two steps. Together the contributions are the replayed
change, exactly; what was observed beyond it (hosts, waits that replay does not model, steps that vary) is the rest.

The parts of a pipeline that may have changed, and pipelines with some parts of one side and some of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, TypeVar

from tracetool.comparison.awaited import CollectiveKey
from tracetool.comparison.replayed import ReplayedOrder
from tracetool.errors import TraceToolError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.replays.compiled import Compiled
from tracetool.replays.costing import TaskCosts
from tracetool.replays.evaluation import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from tracetool.comparison.awaited import AwaitedChanges
    from tracetool.model.pipeline import Pipeline, RankProfile, StageProfile

T = TypeVar("T")
PartKind = Literal["compute", "collective", "link", "tail", "memory", "order", "everything"]


_NONE = CollectiveKey()


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A part of a pipeline that replay takes from one side or the other.

    Attributes:
        kind: ``compute`` (durations of a stage and kind, but for what they wait for collectives where that is known),
            ``collective`` (that), ``link`` (messages that leave a stage in one direction),
            ``tail`` (after a rank's last compute), ``memory`` (of a rank: static, or of its stage: what actions
            hold), ``order`` (order, p2p mode, microbatches), or ``everything`` where sides have no parts in common.
        stage: Stage of compute, collective, link and a stage's memory, else -1.
        action: Kind of action or message, else empty.
        rank: Pipeline rank of tail and static memory, else -1.
        which: The collective.
    """

    kind: PartKind
    stage: int = -1
    action: str = ""
    rank: int = -1
    which: CollectiveKey = _NONE


ORDER = Part("order")
EVERYTHING = Part("everything")


def parts_of(base: Pipeline, new: Pipeline, awaited: AwaitedChanges | None = None) -> list[Part]:
    """The parts in which two pipelines differ, in a fixed order; what is the same in both changes nothing.

    Args:
        base: One of them.
        new: The other.
        awaited: By how much what its actions wait for is known to have changed.
    """
    awaited = awaited or {}
    if base.observed.shape.ranks != new.observed.shape.ranks or len(base.stages) != len(new.stages):
        return [EVERYTHING]
    parts = [ORDER] if _order(base) != _order(new) or _own_kinds(base, new) else []
    for before, after in zip(base.stages, new.stages, strict=True):
        parts += [
            Part("compute", before.stage, kind.value)
            for kind in sorted(before.costs.keys() & after.costs.keys())
            if [c.duration_ns for c in before.costs[kind]] != [c.duration_ns for c in after.costs[kind]]
            or awaited.get((before.stage, kind.value))
        ]
        parts += [
            Part("collective", before.stage, kind.value, which=which)
            for kind in sorted(before.costs.keys() & after.costs.keys())
            for which in awaited.get((before.stage, kind.value), ())
        ]
        parts += [
            Part("link", before.stage, kind.value)
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
            if _message(before, kind) != _message(after, kind)
        ]
        if _held(before) != _held(after):
            parts.append(Part("memory", before.stage))
    for place, (rank, other) in enumerate(zip(base.ranks, new.ranks, strict=True)):
        if [(p.kind, p.duration_ns) for p in rank.tail] != [(p.kind, p.duration_ns) for p in other.tail]:
            parts.append(Part("tail", rank=place))
        if _static(rank) != _static(other):
            parts.append(Part("memory", rank=place))
    return parts


def holds_memory(base: Pipeline, new: Pipeline, part: Part) -> bool:
    """Whether a part may change what ranks hold: messages do by their size, for it is received into buffers."""
    if part.kind == "link":
        sides = (base.stages[part.stage], new.stages[part.stage])
        return len({(side.forward_payload_bytes, side.backward_payload_bytes) for side in sides}) > 1
    return part.kind in {"memory", "order", "everything"}


def mixed(base: Pipeline, new: Pipeline, taken: AbstractSet[Part], awaited: AwaitedChanges | None = None) -> Pipeline:
    """The base with some parts as the new side has them; ``awaited`` as ``parts_of`` has it."""
    if EVERYTHING in taken:
        return new
    source = new if ORDER in taken else base
    stages = [
        _stage(before, after, source.stages[before.stage], taken, awaited or {})
        for before, after in zip(base.stages, new.stages, strict=True)
    ]
    ranks = [
        _rank(place, before, after, taken)
        for place, (before, after) in enumerate(zip(base.ranks, new.ranks, strict=True))
    ]
    return replace(source, stages=tuple(stages), ranks=tuple(ranks))


def _stage(
    before: StageProfile,
    after: StageProfile,
    ordered: StageProfile,
    taken: AbstractSet[Part],
    awaited: AwaitedChanges,
) -> StageProfile:
    memory = after if Part("memory", before.stage) in taken else before
    costs = {}
    for kind in ordered.costs:
        if kind not in before.costs or kind not in after.costs:
            costs[kind] = ordered.costs[kind]
            continue
        is_new = Part("compute", before.stage, kind.value) in taken
        times = after if is_new else before
        # What collectives changed goes with them.
        apart_ns = sum(
            -ns if is_new else ns
            for which, ns in awaited.get((before.stage, kind.value), {}).items()
            if (Part("collective", before.stage, kind.value, which=which) in taken) != is_new
        )
        # One side may have more microbatches: what it alone has goes with the order.
        most = len(ordered.costs[kind])
        durations = _to_length([max(0, c.duration_ns + apart_ns) for c in times.costs[kind]], most)
        held = _to_length([(c.held_bytes, c.peak_bytes) for c in memory.costs[kind]], most)
        costs[kind] = tuple(ActionCost(ns, *sizes) for ns, sizes in zip(durations, held, strict=True))
    forward, backward = (after if Part("link", before.stage, kind) in taken else before for kind in "FB")
    return replace(
        before,
        costs=costs,
        forward_payload_bytes=forward.forward_payload_bytes,
        forward_transfer_ns=forward.forward_transfer_ns,
        backward_payload_bytes=backward.backward_payload_bytes,
        backward_transfer_ns=backward.backward_transfer_ns,
    )


def _to_length(values: list[T], length: int) -> list[T]:
    """So many values: the middle ones again where there are fewer."""
    return values[:length] + [values[len(values) // 2]] * (length - len(values))


def _rank(place: int, before: RankProfile, after: RankProfile, taken: AbstractSet[Part]) -> RankProfile:
    memory = after if Part("memory", rank=place) in taken else before
    return replace(
        before,
        tail=after.tail if Part("tail", rank=place) in taken else before.tail,
        static_bytes=memory.static_bytes,
        tail_peak_bytes=memory.tail_peak_bytes,
        receive_buffer_bytes=memory.receive_buffer_bytes,
    )


def _order(pipeline: Pipeline) -> tuple[object, ...]:
    return pipeline.observed.orders, pipeline.p2p, pipeline.buffered


def _own_kinds(base: Pipeline, new: Pipeline) -> bool:
    return any(b.costs.keys() != n.costs.keys() for b, n in zip(base.stages, new.stages, strict=True))


def _message(stage: StageProfile, kind: ActionKind) -> tuple[int | None, int]:
    if kind is ActionKind.FORWARD:
        return stage.forward_payload_bytes, stage.forward_transfer_ns
    return stage.backward_payload_bytes, stage.backward_transfer_ns


def _held(stage: StageProfile) -> list[tuple[ActionKind, list[tuple[int | None, int | None]]]]:
    return [(kind, [(c.held_bytes, c.peak_bytes) for c in costs]) for kind, costs in sorted(stage.costs.items())]


def _static(rank: RankProfile) -> tuple[int | None, int, int | None]:
    return rank.static_bytes, rank.tail_peak_bytes, rank.receive_buffer_bytes


_AS_RECORDED = Scenario(interference=False)
_Values = dict[str, Fraction]


@dataclass(frozen=True, slots=True)
class Attribution:
    """What a metric's replayed change is made of.

    Attributes:
        base: The metric of the base's typical step, replayed.
        new: That of the new side's.
        contributions: What each part contributes; their sum is new minus base.
    """

    base: Fraction
    new: Fraction
    contributions: Mapping[Part, Fraction]


def attribute(
    base: Pipeline, new: Pipeline, asked: ReplayedOrder | None = None, awaited: AwaitedChanges | None = None
) -> dict[str, Attribution]:
    """Take the change of each metric of the step apart, and of each rank's peak; what a side does not have is left out.

    Args:
        base: Typical step of the base.
        new: Typical step of the new side.
        asked: What to replay, for its times alone; by default each side's own order.
        awaited: By how much what its actions wait for is known to have changed.

    Raises:
        TraceToolError: If a side cannot be replayed.
    """
    parts, times = parts_of(base, new, awaited), _Times(asked)
    try:
        forward, backward = (_steps(base, new, order, times, awaited) for order in (parts, parts[::-1]))
    except TraceToolError:
        # Parts of one side that the other's order cannot run.
        parts = [EVERYTHING]
        forward = backward = _steps(base, new, parts, times, awaited)
    by_line = {}
    for name in forward[0]:
        if any(name not in values for values in (*forward, *backward)):
            continue
        rises: dict[Part, Fraction] = dict.fromkeys(parts, Fraction(0))
        for path, order in ((forward, parts), (backward, parts[::-1])):
            for part, before, after in zip(order, path, path[1:], strict=False):
                rises[part] += (after[name] - before[name]) / 2
        by_line[name] = Attribution(forward[0][name], forward[-1][name], rises)
    return by_line


def _steps(
    base: Pipeline, new: Pipeline, parts: Sequence[Part], times: _Times, awaited: AwaitedChanges | None
) -> list[_Values]:
    """The metrics of the base, then with each part of the new side more."""
    taken: set[Part] = set()
    peaks = {} if times.asked else _peaks(base)
    series = [times.of(base) | peaks]
    for part in parts:
        taken.add(part)
        pipeline = mixed(base, new, taken, awaited)
        peaks = _peaks(pipeline) if not times.asked and holds_memory(base, new, part) else peaks
        series.append(times.of(pipeline) | peaks)
    return series


class _Times:
    """Replays pipelines for their times alone; each order is compiled once."""

    def __init__(self, asked: ReplayedOrder | None) -> None:
        self.asked = asked
        self._compiled: dict[object, Compiled] = {}

    def of(self, pipeline: Pipeline) -> _Values:
        """The metrics that are times, and the share of them that is idle."""
        import numpy as np

        asked = self.asked or ReplayedOrder(pipeline.observed, pipeline.p2p, Topology())
        order = asked.schedule
        key = (order.orders, asked.p2p, pipeline.buffered)
        if key not in self._compiled:
            self._compiled[key] = Compiled(
                order,
                asked.p2p,
                asked.topology,
                buffered=pipeline.buffered,
                interwoven=asked.scenario.interwoven,
                hosts_wait=pipeline.hosts_wait,
            )
        compiled = self._compiled[key]
        graph, costs = compiled.graph, TaskCosts(pipeline, asked.scenario, order)
        durations = np.zeros(compiled.classes, np.int64)
        actions = graph.flow.actions
        durations[1 : len(actions) + 1] = [pipeline.stages[s].costs[kind][j].duration_ns for s, kind, j in actions]
        durations[costs.message_classes(compiled)] = costs.message_ns(compiled, asked.topology)
        ran = compiled.times(durations)
        origin = int(ran.start_ns[graph.compute].min())
        ends = ran.end_ns[graph.compute] - origin
        last = np.zeros(order.shape.ranks, np.int64)
        np.maximum.at(last, graph.flow.rank, ends)
        window, compute = int(ends.max()), int((ends + origin - ran.start_ns[graph.compute]).sum())
        bubble = window - Fraction(compute, order.shape.ranks)
        step = max(window, *(op.end_ns for op in costs.tails(last.tolist())), 0)
        return {
            "step_ns": Fraction(step),
            "window_ns": Fraction(window),
            "compute_ns": Fraction(compute),
            "bubble_ns": bubble,
            "bubble_ratio": bubble / window if window else Fraction(0),
        }


def _peaks(pipeline: Pipeline) -> _Values:
    """The highest allocation of each rank, as far as it is known, and of all."""
    done = evaluate(pipeline, pipeline.observed, _AS_RECORDED)
    ranks = done.replayed.timeline.global_ranks
    peaks = zip(ranks, done.metrics.peak_hbm_bytes, strict=True)
    known = {f"peak_hbm_bytes/rank{rank}": Fraction(peak) for rank, peak in peaks if peak is not None}
    highest = {"peak_hbm_bytes": max(known.values())} if len(known) == len(ranks) else {}
    return highest | known
