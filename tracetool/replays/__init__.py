"""Replay: a schedule's order, measured costs and a scenario make a Timeline."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tracetool.errors import Option, UnsupportedShape, checked
from tracetool.model.action import Action
from tracetool.model.pipeline import BLOCKING
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import MemoryCurve, Op, Timeline, Transfer, memory_curve
from tracetool.replays.compiled import Compiled
from tracetool.replays.costing import TaskCosts
from tracetool.replays.side_by_side import side_by_side, slowest, with_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.model.timeline import TailCollective
    from tracetool.model.topology import Topology
    from tracetool.replays.engine import Times
    from tracetool.replays.graph import TaskGraph


@dataclass(frozen=True, slots=True)
class Replayed:
    """What replay made of a schedule.

    Attributes:
        schedule: The order that was replayed.
        p2p: How its transfers were issued.
        timeline: When everything ran.
        topology: Its links: of links that pipelines share, with its share of their bandwidth.
    """

    schedule: Schedule
    p2p: P2PMode
    timeline: Timeline
    topology: Topology

    def __repr__(self) -> str:
        return f"<Replayed {self.schedule.name}, {self.p2p} transfers>"


def p2p_of(schedule: Schedule, pipeline: Pipeline, scenario: Scenario) -> P2PMode:
    """The p2p mode of a replay: what the scenario says, else what the trace shows.

    A schedule made for non-blocking transfers cannot run in the transfers of a ``grouped`` or ``blocking`` trace: its
    operations are issued one by one there, on the one communicator that the trace shows. Megatron, told by hosts that
    wait for their devices, runs orders without such needs in batches as well; interleaved stages of two ranks demand
    ``overlap_p2p_comm``, for both neighbours are one rank whose messages a batch would mix up (its ``arguments.py``).
    """
    if scenario.p2p is not None:
        return scenario.p2p
    if pipeline.p2p not in BLOCKING or schedule.blocking:
        return pipeline.p2p
    if schedule.batched and pipeline.p2p == "grouped" and pipeline.hosts_wait:
        return "per-edge" if schedule.shape.ranks == 2 and schedule.shape.chunks > 1 else "grouped"
    return "in-order"


@checked
def replay(pipeline: Pipeline, schedule: Schedule, scenario: Scenario | None = None) -> Replayed:
    """Run a schedule with measured costs.

    Args:
        pipeline: What was measured.
        schedule: The order to run.
        scenario: Links, p2p mode and memory figures that differ from what was measured; by default none.

    Returns:
        The Timeline; its first forward starts at 0 ns.

    Raises:
        BadTopology: If the scenario's DCs do not fit the schedule's ranks.
        ScheduleDeadlock: If every rank waits for another one.
        ScenarioError: If a message crosses a link but its size is unknown.
        UnsupportedShape: If the schedule needs costs that the trace does not tell.

    Example:
        >>> order = tt.build_schedule("gpipe", found.pipeline.observed.shape)
        >>> tt.replay(found.pipeline, order, scenario).timeline.ops[0].duration_ns
        5680379
    """
    scenario = scenario or Scenario()
    scenario.topology.check(schedule.shape.ranks)
    _check_kinds(pipeline, schedule)
    if scenario.pipelines_on_link > 1:
        return _shared(pipeline, schedule, scenario)
    mode = p2p_of(schedule, pipeline, scenario)
    compiled = Compiled(
        schedule, mode, scenario.topology,
        buffered=pipeline.buffered, interwoven=scenario.interwoven, hosts_wait=pipeline.hosts_wait,
    )  # fmt: skip
    costs = TaskCosts(pipeline, scenario, schedule)
    times = compiled.times(costs.durations(compiled), costs.slowdown(compiled))
    timeline = _timeline(pipeline, schedule, mode, compiled.graph, times, costs)
    return Replayed(schedule, mode, timeline, scenario.topology)


def _check_kinds(pipeline: Pipeline, schedule: Schedule) -> None:
    """A step without backwards (inference, evaluation) tells no cost of one, and schedules differ in where these go."""
    if schedule.has_backwards and not pipeline.observed.has_backwards:
        raise UnsupportedShape(
            f"{schedule.name} runs backwards, and the recorded step has none (inference, or an evaluation).",
            hint=f"{Option.SCHEDULES(OBSERVED)} replays its forwards; a training step may be chosen with {Option.STEP}",
        )
    if pipeline.observed.has_backwards and not schedule.has_backwards:
        raise UnsupportedShape(
            f"{schedule.name} runs forwards alone, and the recorded step trains.",
            hint="each stage runs every microbatch forward once, then backward once (B, or I then W)",
        )


def _shared(pipeline: Pipeline, schedule: Schedule, scenario: Scenario) -> Replayed:
    """Replay a pipeline whose links others use as well: the slowest of them."""
    alone = replace(scenario, pipelines=1)
    if scenario.link_sharing == "spatial":
        shared = replace(alone, topology=scenario.topology.divided(scenario.pipelines_on_link))
        return replay(with_shares(pipeline, scenario.pipelines_on_link), schedule, shared)
    many = side_by_side(pipeline, schedule, scenario.topology, scenario.pipelines_on_link)
    done = replay(many[0], many[1], replace(alone, topology=many[2], p2p=p2p_of(schedule, pipeline, scenario)))
    shape = schedule.shape
    return Replayed(schedule, done.p2p, slowest(done.timeline, shape.ranks, shape.stages), scenario.topology)


def _timeline(
    pipeline: Pipeline, schedule: Schedule, mode: P2PMode, graph: TaskGraph, times: Times, costs: TaskCosts
) -> Timeline:
    starts, ends = times.start_ns[graph.compute], times.end_ns[graph.compute]
    origin = int(starts.min())
    spans = zip(graph.flow.rank.tolist(), (starts - origin).tolist(), (ends - starts).tolist(), strict=True)
    ops = [
        Op(rank, action.stage, action.kind, action.microbatch, start, duration)
        for action, (rank, start, duration) in zip(graph.flow.actions, spans, strict=True)
    ]
    by_rank: list[list[Op]] = [[] for _ in range(schedule.shape.ranks)]
    for op in ops:
        by_rank[op.rank].append(op)
    collectives: list[TailCollective] = []
    tails = costs.tails([rank_ops[-1].end_ns for rank_ops in by_rank], collectives)
    return Timeline(
        name=schedule.name,
        global_ranks=tuple(profile.rank for profile in pipeline.ranks),
        ops=(*ops, *tails),
        transfers=_transfers(schedule.shape, graph, times, costs, origin, mode),
        memory=tuple(_memory(rank_ops, rank, costs) for rank, rank_ops in enumerate(by_rank)),
        overhead_bytes=tuple(costs.measured.overhead_bytes(rank) for rank in range(len(by_rank))),
        collectives=tuple(collectives),
    )


def _memory(ops: Sequence[Op], rank: int, costs: TaskCosts) -> MemoryCurve | None:
    spans = []
    for op in ops:
        cost = costs.measured.action(Action(op.stage, op.kind, op.microbatch))
        spans.append((op.start_ns, op.end_ns, cost.held_bytes, cost.peak_bytes))
    return memory_curve(costs.measured.static_bytes(rank), spans, costs.measured.tail_peak_bytes(rank))


def _transfers(
    shape: PipelineShape, graph: TaskGraph, times: Times, costs: TaskCosts, origin: int, mode: P2PMode
) -> tuple[Transfer, ...]:
    import numpy as np

    flow = graph.flow
    sent = np.flatnonzero(flow.remote)
    recv_posted = times.end_ns[graph.recv_post[sent]] - origin
    columns = (
        flow.maker[sent],
        flow.edge[sent],
        times.end_ns[graph.send_post[sent]] - origin,
        np.zeros_like(recv_posted) if mode == "posted-ahead" else recv_posted,
        times.start_ns[graph.move[sent]] - origin,
        times.end_ns[graph.arrive[sent]] - origin,
    )
    edges, sample = np.unique(flow.edge, return_index=True)
    alike: dict[int, dict[str, Any]] = {}
    for edge, message in zip(edges.tolist(), map(flow.message, sample.tolist()), strict=True):
        path = costs.path(message)
        alike[edge] = {
            "kind": message.kind,
            "src_stage": message.src_stage,
            "dst_stage": message.dst_stage,
            "src_rank": shape.rank_of(message.src_stage),
            "dst_rank": shape.rank_of(message.dst_stage),
            "payload_bytes": costs.measured.payload_bytes(message.src_stage, message.kind),
            "link": path.name if path else None,
        }
    transfers = []
    for maker, edge, *moments in zip(*(column.tolist() for column in columns), strict=True):
        send_posted, posted, start, end = moments
        transfers.append(
            Transfer(
                **alike[edge],
                microbatch=flow.actions[maker].microbatch,
                send_posted_ns=send_posted,
                recv_posted_ns=posted,
                start_ns=start,
                end_ns=end,
            )
        )
    return tuple(sorted(transfers, key=lambda t: (t.start_ns, t.src_rank, t.dst_rank, t.microbatch)))
