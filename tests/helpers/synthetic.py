"""Pipelines, places and replays with chosen costs, for tests that compare with what can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile, TailPart
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.reconstruction import Reconstruction
from tracetool.replays import Replayed, replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule

PerStage = int | None | Sequence[int | None]
"""One value for all stages, or one per stage."""

PerAction = int | Sequence[int] | Sequence[Sequence[int]]
"""One duration for all, one per stage, or per stage one per microbatch."""

BYTE_PER_NS = 10**9
"""Bandwidth at which a message of n bytes occupies a link for n ns."""


def pipeline(
    p: int,
    m: int,
    forward_ns: PerAction,
    backward_ns: PerAction,
    *,
    payload_bytes: PerStage = 0,
    backward_payload_bytes: PerStage = None,
    transfer_ns: int | Sequence[int] = 0,
    activation_bytes: PerStage = None,
    transient_bytes: int = 0,
    static_bytes: PerStage = None,
    tail_ns: int = 0,
    p2p: P2PMode = "grouped",
    schedule: str = "1f1b",
    extra_forwards: tuple[int, ...] | None = None,
) -> Pipeline:
    """A measured pipeline of one stage per rank, made of the costs given.

    Args:
        p: Ranks and stages.
        m: Microbatches.
        forward_ns: Forward durations.
        backward_ns: Full backward durations.
        payload_bytes: What a stage sends downstream, and upstream if nothing else is said.
        backward_payload_bytes: What a stage sends upstream.
        transfer_ns: Time of a stage's messages inside a DC.
        activation_bytes: What one microbatch keeps from the start of its forward to the end of its backward.
        transient_bytes: What every action needs while it runs, on top of what it keeps.
        static_bytes: What a rank has allocated when the step starts.
        tail_ns: Optimizer time after the window, on every rank.
        p2p: How transfers were issued.
        schedule: The order that was observed.
        extra_forwards: Of that order, if it is geopipe.
    """
    forwards, backwards = _per_action(forward_ns, p, m), _per_action(backward_ns, p, m)
    payloads, statics = _per_stage(payload_bytes, p), _per_stage(static_bytes, p)
    gradients = payloads if backward_payload_bytes is None else _per_stage(backward_payload_bytes, p)
    transfers = [transfer_ns] * p if isinstance(transfer_ns, int) else transfer_ns
    stages = []
    for s, held in enumerate(_per_stage(activation_bytes, p)):
        freed = None if held is None else -held
        forward_peak = None if held is None else held + transient_bytes
        backward_peak = None if held is None else transient_bytes
        stages.append(
            StageProfile(
                s,
                {
                    ActionKind.FORWARD: tuple(ActionCost(d, held, forward_peak) for d in forwards[s]),
                    ActionKind.BACKWARD: tuple(ActionCost(d, freed, backward_peak) for d in backwards[s]),
                },
                forward_payload_bytes=payloads[s],
                backward_payload_bytes=gradients[s],
                forward_transfer_ns=transfers[s],
                backward_transfer_ns=transfers[s],
            )
        )
    tail = (TailPart(ActionKind.OPTIMIZER, tail_ns),) if tail_ns else ()
    return Pipeline(
        stages=tuple(stages),
        ranks=tuple(RankProfile(rank=rank, static_bytes=statics[rank], tail=tail) for rank in range(p)),
        observed=build_schedule(schedule, PipelineShape(p, m), extra_forwards=extra_forwards),
        p2p=p2p,
        step=0,
    )


def _per_stage(value: PerStage, p: int) -> Sequence[int | None]:
    return [value] * p if value is None or isinstance(value, int) else value


def _per_action(value: PerAction, p: int, m: int) -> list[list[int]]:
    stages = [value] * p if isinstance(value, int) else value
    return [[stage] * m if isinstance(stage, int) else list(stage) for stage in stages]


def places(sizes: Sequence[int], *, latency_ns: int = 0, bandwidth_bytes_per_s: int = BYTE_PER_NS) -> Topology:
    """DCs that hold so many consecutive ranks each, with equal links between neighbours both ways."""
    dcs = tuple(f"dc{number}" for number, size in enumerate(sizes) for _ in range(size))
    links = []
    for left, right in zip(range(len(sizes)), range(1, len(sizes)), strict=False):
        for src, dst in ((left, right), (right, left)):
            links.append(Link(f"dc{src}", f"dc{dst}", bandwidth_bytes_per_s, latency_ns))
    return Topology(dcs, tuple(links))


def scenario(topology: Topology | None = None, p2p: P2PMode | None = None, *, hbm_bytes: int | None = None) -> Scenario:
    """A what-if with the parts that tests vary."""
    return Scenario(topology=topology or Topology(), p2p=p2p, hbm_bytes=hbm_bytes)


def replayed(
    measured: Pipeline,
    schedule: str,
    what_if: Scenario | None = None,
    *,
    extra_forwards: tuple[int, ...] | None = None,
) -> Replayed:
    """Replay a schedule by name."""
    shape = measured.observed.shape
    order = build_schedule(schedule, shape, extra_forwards=extra_forwards)
    return replay(measured, order, what_if or Scenario())


def window_ns(
    measured: Pipeline,
    schedule: str,
    what_if: Scenario | None = None,
    *,
    extra_forwards: tuple[int, ...] | None = None,
) -> int:
    """Pipeline window of a replay."""
    done = replayed(measured, schedule, what_if, extra_forwards=extra_forwards)
    return measure(done.timeline).window_ns


def found(measured: Pipeline) -> Reconstruction:
    """The pipeline as if reconstructed from a trace: observed is what its own order replays to."""
    done = replay(measured, measured.observed, Scenario())
    return Reconstruction(measured, replace(done.timeline, name="observed"), {}, {}, ())


def equal_stages(
    schedule: Schedule, costs_ns: Mapping[ActionKind, int], *, payload_bytes: int = 0, static_bytes: int = 0
) -> Pipeline:
    """A measured pipeline of equal stages as a schedule needs it; a forward keeps a byte until its B or W."""
    shape = schedule.shape
    held = {ActionKind.FORWARD: 1, ActionKind.BACKWARD_INPUT: 0}
    costs = {
        kind: (ActionCost(duration, held.get(kind, -1), held.get(kind, 0)),) * shape.microbatches
        for kind, duration in costs_ns.items()
    }
    profiles = shape.ranks if shape.is_bidirectional else shape.stages
    return Pipeline(
        stages=tuple(StageProfile(s, costs, payload_bytes, payload_bytes) for s in range(profiles)),
        ranks=tuple(RankProfile(rank=rank, static_bytes=static_bytes) for rank in range(shape.ranks)),
        observed=schedule,
        p2p="posted-ahead",
        step=0,
    )
