"""CrossPipe's Tables 5 and 6 (arXiv 2507.00217) and the pipeline they were measured on, as problems and as replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from helpers.synthetic import places, scenario

from tracetool.errors import ScheduleDeadlock
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import P2P_MODES, ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.schedules.problem import Hop, Problem, StageCosts

if TYPE_CHECKING:
    from collections.abc import Mapping

US = 10**3
F_NS, B_NS, I_NS, W_NS = 38_000 * US, 67_000 * US, 46_500 * US, 20_600 * US
P = 8


@dataclass(frozen=True)
class Case:
    """Microbatches, what recompute adds to a backward, and microbatches of a stage that fit a rank's memory."""

    microbatches: int
    recompute_ns: int
    budget: int | None


CASES = {1: Case(16, 0, P), 2: Case(32, F_NS, None), 3: Case(32, 0, 2 * P)}

Delay = tuple[float, float]
DELAYS: tuple[Delay, ...] = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
"""(latency, occupancy) of a message between DCs, in units of the forward time."""

Cells = tuple[float, ...]
CELLS: Mapping[str, Mapping[tuple[int, int], Cells]] = {
    "1F1B": {
        (1, 2): (0.151, 0.168, 0.241, 0.242, 0.321), (1, 4): (0.149, 0.177, 0.269, 0.268, 0.359),
        (2, 2): (0.174, 0.193, 0.262, 0.262, 0.333), (2, 4): (0.173, 0.198, 0.274, 0.274, 0.349),
    },
    "ZBH1": {
        (1, 2): (0.133, 0.150, 0.230, 0.229, 0.309), (1, 4): (0.133, 0.158, 0.249, 0.248, 0.338),
        (2, 2): (0.168, 0.187, 0.259, 0.258, 0.331), (2, 4): (0.168, 0.190, 0.269, 0.269, 0.346),
    },
    "ZBV": {
        (1, 2): (0.118, 0.148, 0.315, 0.314, 0.473), (1, 4): (0.119, 0.161, 0.339, 0.337, 0.512),
        (2, 2): (0.161, 0.177, 0.330, 0.329, 0.476), (2, 4): (0.160, 0.181, 0.331, 0.330, 0.479),
    },
    "UDSub": {
        (1, 2): (0.137, 0.149, 0.181, 0.160, 0.198), (1, 4): (0.138, 0.155, 0.216, 0.200, 0.268),
        (3, 2): (0.121, 0.123, 0.144, 0.127, 0.145), (3, 4): (0.123, 0.126, 0.158, 0.138, 0.178),
    },
    "UD": {
        (1, 2): (0.137, 0.142, 0.177, 0.153, 0.196), (1, 4): (0.138, 0.148, 0.217, 0.197, 0.271),
        (2, 2): (0.165, 0.170, 0.185, 0.173, 0.196), (2, 4): (0.167, 0.173, 0.198, 0.184, 0.213),
        (3, 2): (0.118, 0.123, 0.150, 0.124, 0.147), (3, 4): (0.119, 0.123, 0.162, 0.138, 0.178),
    },
    "Wave": {
        (1, 2): (0.119, 0.127, 0.250, 0.148, 0.256), (1, 4): (0.122, 0.141, 0.286, 0.214, 0.339),
        (2, 2): (0.157, 0.159, 0.274, 0.163, 0.291), (2, 4): (0.157, 0.163, 0.290, 0.177, 0.295),
        (3, 2): (0.108, 0.112, 0.235, 0.115, 0.245), (3, 4): (0.115, 0.115, 0.262, 0.139, 0.264),
    },
}  # fmt: skip
"""Seconds per microbatch by system, (case, DCs) and delay; case 2's CrossUDSub and case 3's statics are not given."""

# Of one microbatch on a stage, per token: 12 h + 4 h/8 + 8 ffn held, of it 2 ffn given back by the input gradient: the
# authors' simulator (C-TC/Megatron-LM, branch crossdc, pp_generator/simulator.py: a layer holds 12 bsd + 4 a bsd +
# 8 bs d_ff, of which W releases all but 2 bs d_ff) with h = 8192, ffn = 28672, 8 of 64 heads for keys and values.
HELD, FREED_EARLY = 12 * 8192 + 4 * 1024 + 8 * 28672, 2 * 28672


def problem(case: int, dcs: int, delay: Delay, chunks: int = 1) -> Problem:
    """A cell's costs, links and memory; two chunks are a V of stages of half the size."""
    of, shape = CASES[case], PipelineShape(P, CASES[case].microbatches, chunks, "v" if chunks > 1 else "loop")
    latency, occupancy = (int(part * F_NS) for part in delay)
    stage = StageCosts(
        F_NS // chunks, (I_NS + of.recompute_ns) // chunks, W_NS // chunks, HELD // chunks, FREED_EARLY // chunks
    )

    def hop(src: int, dst: int) -> Hop:
        ends = [shape.rank_of(stage) * dcs // P for stage in (src, dst)]
        return Hop() if ends[0] == ends[1] else Hop(latency, occupancy, f"dc{ends[0]}-dc{ends[1]}")

    stages = range(shape.stages - 1)
    return Problem(
        shape=shape,
        stages=(stage,) * shape.stages,
        split=True,
        forward_hops=tuple(hop(s, s + 1) for s in stages),
        backward_hops=tuple(hop(s + 1, s) for s in stages),
        room_bytes=(None if of.budget is None else of.budget * HELD,) * P,
    )


def of_static(system: str, case: int, dcs: int, delay: Delay) -> dict[str, float]:
    """Seconds per microbatch of a static schedule, replayed in every p2p mode in which it runs."""
    of, chunks = CASES[case], 2 if system == "ZBV" else 1
    shape = PipelineShape(P, of.microbatches, chunks, "v" if chunks > 1 else "loop")
    schedule = build_schedule({"1F1B": "1f1b", "ZBH1": "zb-h1", "ZBV": "zb-v"}[system], shape)
    durations = {
        ActionKind.FORWARD: F_NS,
        ActionKind.BACKWARD: B_NS + of.recompute_ns,
        ActionKind.BACKWARD_INPUT: I_NS + of.recompute_ns,
        ActionKind.BACKWARD_WEIGHT: W_NS,
    }
    latency, occupancy = (int(part * F_NS) for part in delay)
    costs = {kind: (ActionCost(ns // chunks),) * of.microbatches for kind, ns in durations.items()}
    stages = tuple(StageProfile(s, costs, occupancy, occupancy) for s in range(shape.stages))
    pipeline = Pipeline(stages, tuple(RankProfile(rank=r) for r in range(P)), schedule, "posted-ahead", 0)
    found: dict[str, float] = {}
    for mode in P2P_MODES:
        try:
            done = replay(pipeline, schedule, scenario(places([P // dcs] * dcs, latency_ns=latency), mode))
        except ScheduleDeadlock:
            continue
        found[mode] = measure(done.timeline).window_ns / of.microbatches / 1e9
    return found
