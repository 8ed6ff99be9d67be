"""From what was measured and a scenario to the problem that schedules made to measure solve."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScheduleDeadlock, UnsupportedShape
from tracetool.model.action import Action
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.schedule import Schedule
from tracetool.replays.evaluation import evaluate
from tracetool.schedules.problem import INPUT, WEIGHT, B, F, Hop, Problem, StageCosts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.action import ActionKind
    from tracetool.model.pipeline import ActionCost, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape
    from tracetool.schedules.problem import Orders


_NEVER = 2**62


class Posed(NamedTuple):
    """A problem, who judges its orders, and what about it people should know.

    Attributes:
        problem: Costs, links and memory.
        judge: The window in ns of an order, replayed as transfers are issued in the scenario.
        remarks: What it leaves out or assumes.
    """

    problem: Problem
    judge: Callable[[Orders], int]
    remarks: tuple[Notice, ...]


def pose(pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> Posed:
    """The problem of a shape over a scenario's links and memory, receives posted ahead.

    Durations are medians over microbatches, of the time without contention where it is known. Backwards are split
    where the trace tells the halves apart, and with a memory limit also what they hold. Room for activations is the
    limit less static memory, overhead, gradients and the largest transient need of an action on the rank; it is
    without limit where any of these is unknown.

    Raises:
        ScenarioError: If a message crosses a link but its size is unknown.
        UnsupportedShape: If the costs of a kind are unknown.
    """
    split, remarks = _is_split(pipeline, shape, scenario)
    costs = _costs(pipeline, shape, scenario, split=split)
    kinds = (F, INPUT, WEIGHT) if split else (F, B)
    samples = [
        {kind: [costs.action(Action(s, kind, j)) for j in range(shape.microbatches)] for kind in kinds}
        for s in range(shape.stages)
    ]
    stages = tuple(_stage(sample, split=split) for sample in samples)
    beyond = [_beyond_in_flight(sample) for sample in samples]
    hop = _hops(costs, shape, scenario)
    problem = Problem(
        shape=shape,
        stages=stages,
        split=split,
        forward_hops=tuple(hop(s, s + 1, F) for s in range(shape.stages - 1)),
        backward_hops=tuple(hop(s + 1, s, B) for s in range(shape.stages - 1)),
        room_bytes=_rooms(costs, shape, scenario, beyond),
    )
    short = [rank for rank, room in enumerate(problem.room_bytes) if room != problem.usable_bytes[rank]]
    if short:
        text = f"one microbatch at a time, as even that does not fit on rank {', '.join(map(str, short))}"
        remarks += (Notice(NoticeCode.ONE_AT_A_TIME, text),)

    def judge(orders: Orders) -> int:
        try:
            done = evaluate(pipeline, Schedule("made to measure", shape, orders, blocking=False), scenario)
        except ScheduleDeadlock:
            return _NEVER
        return max(op.end_ns for op in done.replayed.timeline.computes())

    return Posed(problem, judge, remarks)


def _costs(pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, *, split: bool) -> MeasuredCosts:
    halves = tuple((Action(s, INPUT, 0),) for s in range(shape.stages)) if split else ()
    return MeasuredCosts(pipeline, scenario, Schedule("made to measure", shape, halves))


def _is_split(pipeline: Pipeline, shape: PipelineShape, scenario: Scenario) -> tuple[bool, tuple[Notice, ...]]:
    costs = _costs(pipeline, shape, scenario, split=True)
    try:
        halves = [costs.action(Action(s, kind, 0)) for s in range(shape.stages) for kind in (INPUT, WEIGHT)]
    except UnsupportedShape:
        return False, ()
    if scenario.hbm_bytes is not None and any(cost.held_bytes is None for cost in halves):
        text = "backwards kept whole: what their halves hold is unknown, and memory is limited"
        return False, (Notice(NoticeCode.BACKWARDS_WHOLE, text),)
    return True, ()


def _stage(samples: dict[ActionKind, list[ActionCost]], *, split: bool) -> StageCosts:
    def duration(kind: ActionKind) -> int:
        return round(median(_alone_ns(cost) for cost in samples[kind]))

    held = max((cost.held_bytes or 0 for cost in samples[F]), default=0)
    early = max((-(cost.held_bytes or 0) for cost in samples[INPUT]), default=0) if split else 0
    # An I that leaves more than it found (gradients for its W) needs that room too: taken from the forward on, which
    # is too early but never too little.
    held += max(0, -early)
    return StageCosts(
        forward_ns=duration(F),
        backward_ns=duration(INPUT if split else B),
        weight_ns=duration(WEIGHT) if split else 0,
        held_bytes=max(held, 0),
        freed_early_bytes=min(max(early, 0), max(held, 0)),
    )


def _alone_ns(cost: ActionCost) -> int:
    return cost.duration_ns if cost.uncontended_ns is None else cost.uncontended_ns


def _beyond_in_flight(samples: dict[ActionKind, list[ActionCost]]) -> tuple[int, int] | None:
    """Largest transient need of a stage's actions and its gradients, in bytes; None if unknown.

    Gradients: what the first microbatch leaves behind when it is through, and the others do not.
    """
    costs = [cost for of_kind in samples.values() for cost in of_kind]
    if any(cost.held_bytes is None or cost.peak_bytes is None for cost in costs):
        return None
    left = [sum(cost.held_bytes or 0 for cost in one) for one in zip(*samples.values(), strict=True)]
    gradients = max(0, left[0])
    # The first backward's own peak has the gradients in it, which are counted apart.
    peaks = [
        (cost.peak_bytes or 0) - max(0, cost.held_bytes or 0)
        for cost in (*samples[F], *(c for kind, of_kind in samples.items() if kind is not F for c in of_kind[1:]))
    ]
    first = [
        (of_kind[0].peak_bytes or 0) - max(gradients, of_kind[0].held_bytes or 0)
        for kind, of_kind in samples.items()
        if kind is not F
    ]
    return max(0, *peaks, *first), gradients


def _rooms(
    costs: MeasuredCosts, shape: PipelineShape, scenario: Scenario, beyond: Sequence[tuple[int, int] | None]
) -> tuple[int | None, ...]:
    rooms: list[int | None] = []
    for rank in range(shape.ranks):
        mine = [beyond[s] for s in range(shape.stages) if shape.rank_of(s) == rank]
        static, known = costs.static_bytes(rank), [part for part in mine if part is not None]
        if scenario.hbm_bytes is None or static is None or len(known) < len(mine):
            rooms.append(None)
            continue
        taken = static + (costs.overhead_bytes(rank) or 0)
        taken += max(transient for transient, _ in known) + sum(gradients for _, gradients in known)
        rooms.append(scenario.hbm_bytes - taken)
    return tuple(rooms)


def _hops(costs: MeasuredCosts, shape: PipelineShape, scenario: Scenario) -> Callable[[int, int, ActionKind], Hop]:
    def hop(src: int, dst: int, kind: ActionKind) -> Hop:
        ranks = shape.rank_of(src), shape.rank_of(dst)
        if ranks[0] == ranks[1]:
            return Hop()
        path = scenario.topology.path(*ranks)
        if path is None:
            return Hop(latency_ns=costs.transfer_ns(src, kind))
        payload = costs.link_bytes(src, kind, "no order can be made for the link they cross")
        # Of several links, orders are made for the one that a message occupies longest.
        slowest = max(path, key=lambda link: link.occupancy_ns(payload), default=None)
        return Hop(path.latency_ns, path.occupancy_ns(payload), None if slowest is None else slowest.name)

    return hop
