"""Replay: a schedule's order, measured costs and a scenario make a Timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScenarioError
from tracetool.model.action import Action
from tracetool.model.timeline import MemoryCurve, Op, Timeline, Transfer, memory_curve
from tracetool.replay.engine import Times, run
from tracetool.replay.graph import TaskGraph, TaskKind, build_graph
from tracetool.replay.tail import run_tails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.load import SustainedLoad
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.model.topology import Link
    from tracetool.replay.program import Message


@dataclass(frozen=True, slots=True)
class Replayed:
    """What replay made of a schedule.

    Attributes:
        schedule: The order that was replayed.
        p2p: How its transfers were issued.
        timeline: When everything ran.
    """

    schedule: Schedule
    p2p: P2PMode
    timeline: Timeline


def p2p_of(schedule: Schedule, pipeline: Pipeline, scenario: Scenario) -> P2PMode:
    """The p2p mode of a replay: what the scenario says, else what the trace shows.

    A schedule made for non-blocking transfers cannot run in the blocking batches of a ``grouped`` trace: its
    operations are issued one by one there, on the one communicator that the trace shows.
    """
    if scenario.p2p is not None:
        return scenario.p2p
    return "in-order" if pipeline.p2p == "grouped" and not schedule.blocking else pipeline.p2p


def replay(pipeline: Pipeline, schedule: Schedule, scenario: Scenario) -> Replayed:
    """Run a schedule with measured costs.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
        scenario: Links, p2p mode and memory figures that differ from what was measured.

    Returns:
        The Timeline; its first forward starts at 0 ns.

    Raises:
        BadTopology: If the scenario's DCs do not fit the schedule's ranks.
        ScheduleDeadlock: If every rank waits for another one.
        ScenarioError: If a message crosses a link but its size is unknown.
        UnsupportedShape: If the schedule needs costs that the trace does not tell.
    """
    scenario.topology.check(schedule.shape.ranks)
    costs = MeasuredCosts(pipeline, scenario, schedule)
    mode = p2p_of(schedule, pipeline, scenario)
    tasks = _TaskCosts(costs, pipeline, scenario, schedule.shape)
    graph = build_graph(schedule, mode, lambda message: tasks.link(message) is not None, buffered=pipeline.buffered)
    times = run(graph, tasks, f"schedule {schedule.name!r} with {mode} transfers")
    return Replayed(schedule, mode, _timeline(pipeline, schedule, mode, graph, times, tasks))


class _TaskCosts:
    """Answers the event loop from measured costs and the scenario's links."""

    def __init__(self, costs: MeasuredCosts, pipeline: Pipeline, scenario: Scenario, shape: PipelineShape) -> None:
        self.measured = costs
        self._topology = scenario.topology
        self._shape = shape
        self._loads = [profile.load for profile in pipeline.ranks]
        self._interference = scenario.interference

    def action_ns(self, action: Action) -> tuple[int, int]:
        cost = self.measured.action(action)
        alone = cost.duration_ns if cost.uncontended_ns is None else cost.uncontended_ns
        return alone, max(alone, cost.contended_ns or 0) if self._interference else alone

    def load(self, rank: int) -> SustainedLoad | None:
        return self._loads[rank] if self._interference else None

    def transfer_ns(self, message: Message) -> int:
        return self.measured.transfer_ns(message.src_stage, message.kind)

    def link(self, message: Message) -> Link | None:
        rank_of = self._shape.rank_of
        return self._topology.link(rank_of(message.src_stage), rank_of(message.dst_stage))

    def link_bytes(self, message: Message) -> int:
        payload = self.measured.payload_bytes(message.src_stage, message.kind)
        if payload is None:
            raise ScenarioError(
                f"the messages of stage {message.src_stage} ({message.kind.value}) differ in size or do not tell it, "
                "so their time over a link is unknown.",
                hint="sizes are recorded by torch 2.4 or newer, and Ascend Level1 and up",
            )
        return payload


def _timeline(
    pipeline: Pipeline, schedule: Schedule, mode: P2PMode, graph: TaskGraph, times: Times, costs: _TaskCosts
) -> Timeline:
    computes = [
        (task, subject)
        for task, subject in enumerate(graph.subjects)
        if graph.kinds[task] is TaskKind.COMPUTE and isinstance(subject, Action)
    ]
    origin = min(times.start_ns[task] for task, _ in computes)
    ops = [
        Op(
            graph.ranks[task], a.stage, a.kind, a.microbatch,
            times.start_ns[task] - origin, times.end_ns[task] - times.start_ns[task],
        )
        for task, a in computes
    ]  # fmt: skip
    by_rank: list[list[Op]] = [[] for _ in range(schedule.shape.ranks)]
    for op in ops:
        by_rank[op.rank].append(op)
    tails = run_tails([rank_ops[-1].end_ns for rank_ops in by_rank], [profile.tail for profile in pipeline.ranks])
    return Timeline(
        name=schedule.name,
        global_ranks=tuple(profile.rank for profile in pipeline.ranks),
        ops=(*ops, *tails),
        transfers=_transfers(schedule.shape, graph, times, costs, origin, mode),
        memory=tuple(_memory(rank_ops, rank, costs) for rank, rank_ops in enumerate(by_rank)),
        overhead_bytes=tuple(costs.measured.overhead_bytes(rank) for rank in range(len(by_rank))),
    )


def _memory(ops: Sequence[Op], rank: int, costs: _TaskCosts) -> MemoryCurve | None:
    spans = []
    for op in ops:
        cost = costs.measured.action(Action(op.stage, op.kind, op.microbatch))
        spans.append((op.start_ns, op.end_ns, cost.held_bytes, cost.peak_bytes))
    return memory_curve(costs.measured.static_bytes(rank), spans, costs.measured.tail_peak_bytes(rank))


def _transfers(
    shape: PipelineShape, graph: TaskGraph, times: Times, costs: _TaskCosts, origin: int, mode: P2PMode
) -> tuple[Transfer, ...]:
    transfers = []
    for message, tasks in graph.messages.items():
        link = costs.link(message)
        transfers.append(
            Transfer(
                kind=message.kind,
                microbatch=message.microbatch,
                src_stage=message.src_stage,
                dst_stage=message.dst_stage,
                src_rank=shape.rank_of(message.src_stage),
                dst_rank=shape.rank_of(message.dst_stage),
                payload_bytes=costs.measured.payload_bytes(message.src_stage, message.kind),
                send_posted_ns=times.end_ns[tasks.send_post] - origin,
                recv_posted_ns=0 if mode == "per-edge" else times.end_ns[tasks.recv_post] - origin,
                start_ns=times.start_ns[tasks.move] - origin,
                end_ns=times.end_ns[tasks.arrive] - origin,
                link=link.name if link else None,
            )
        )
    return tuple(sorted(transfers, key=lambda t: (t.start_ns, t.src_rank, t.dst_rank, t.microbatch)))
