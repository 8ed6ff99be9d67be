"""The joint search on CrossPipe's settings (arXiv 2507.00217, Tables 5 and 6), beside their best system of each cell.

Their M70 as a recording of 1F1B, and as one of a V of stages of half the size: what is tried where nothing is said
(schedules, depths, and the order made for links and memory) is searched over both, within the memory that theirs had.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.crosspipe import B_NS, CASES, CELLS, DELAYS, F_NS, FREED_EARLY, HELD, I_NS, W_NS, Delay, P
from helpers.synthetic import found
from helpers.thorough import spread

from tracetool.explore.recorded import explore_recording
from tracetool.explore.recorded_space import RecordedSpace
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.schedule import PipelineShape
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier
from tracetool.reconstruction.capture.coordinates import Coordinates
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

BYTES_PER_S = 1000
"""At this bandwidth messages hold next to nothing beside activations."""
LOSES: Mapping[tuple[int, int, Delay], float] = {
    (1, 2, (2, 0.25)): 0.046, (1, 4, (2, 0.25)): 0.020, (3, 2, (0, 0)): 0.023, (3, 2, (0.25, 0.25)): 0.002,
    (3, 2, (2, 0.25)): 0.024, (3, 4, (0.25, 0.25)): 0.010,
}  # fmt: skip
"""Where theirs, from a constraint solver over a V (over loops with four DCs in the second), is ahead of a list."""


def recorded(name: str, case: int, delay: Delay) -> Pipeline:
    """Stages of the published forward and of the backward that two cells without delays tell; halves beside it."""
    of, chunks = CASES[case], 2 if name == "zb-v" else 1
    shape = PipelineShape(P, of.microbatches, chunks, "v" if chunks > 1 else "loop")
    held, early = HELD // chunks, FREED_EARLY // chunks
    whole = {
        ActionKind.FORWARD: ActionCost(F_NS // chunks, held, held),
        ActionKind.BACKWARD: ActionCost((B_NS + of.recompute_ns) // chunks, -held, 0),
    }
    halves = {
        ActionKind.BACKWARD_INPUT: ActionCost((I_NS + of.recompute_ns) // chunks, -early, 0),
        ActionKind.BACKWARD_WEIGHT: ActionCost(W_NS // chunks, early - held, 0),
    }
    if chunks > 1:
        whole = {ActionKind.FORWARD: whole[ActionKind.FORWARD], **halves}
    costs, derived = ({kind: (cost,) * of.microbatches for kind, cost in each.items()} for each in (whole, halves))
    payload = round(delay[1] * F_NS * BYTES_PER_S / 10**9)
    stages = tuple(StageProfile(s, costs, payload, payload, derived=derived) for s in range(shape.stages))
    ranks = tuple(RankProfile(rank=rank, static_bytes=0) for rank in range(P))
    return Pipeline(stages, ranks, build_schedule(name, shape), "posted-ahead", 0)


def best_s(case: int, dcs: int, delay: Delay) -> float:
    """Seconds per microbatch of the best plan that fits."""
    wan = Tier("wan", P, BYTES_PER_S, round(delay[0] * F_NS), shared_by="pair")
    choice = NetworkChoice(Network("DCs", (Tier("dc", P // dcs, 10**12), wan)), "pp")
    budget = CASES[case].budget
    limit = None if budget is None else budget * HELD + 2000
    steps = []
    for name in ("1f1b", "zb-v"):
        places = tuple(Coordinates(r, 0, r, None, None, None, None, True, None, "label", 1.0) for r in range(P))
        job = replace(found(recorded(name, case, delay)), coordinates=places)
        explored = explore_recording(RecordedSpace(job, choice, hbm_bytes=limit))
        steps += [plan.step_ns for plan in explored.plans if plan.point.feasible is not False]
    return min(steps) / CASES[case].microbatches / 1e9


EVERY_CELL = [
    (*place, delay) for place in sorted({place for cells in CELLS.values() for place in cells}) for delay in DELAYS
]


# A cell is a point of its own between bandwidth, latency and microbatches: which of them a worse search loses is known
# from all cells. This is the one with the fewest microbatches in which links, memory and depth all count.
@spread(("case", "dcs", "delay"), EVERY_CELL, [(1, 2, (2, 0.25))])
def test_the_joint_search_is_as_good_as_their_best_system(case: int, dcs: int, delay: Delay) -> None:
    """By what is tried where nothing is said, 24 of 30 cells; by up to 18 % where bandwidth is short: ours is ideal.

    Where messages are short and few microbatches or long latencies leave gaps, their best is the order of a constraint
    solver. A list loses 4.5 % at most, and half a minute of OR-tools finds no better one. Measured costs of a V are
    not those that are fitted here, either: without delays theirs is faster than any order can be with these.
    """
    theirs = min(cells[case, dcs][DELAYS.index(delay)] for cells in CELLS.values() if (case, dcs) in cells)
    assert best_s(case, dcs, delay) <= theirs * (1 + LOSES.get((case, dcs, delay), 0.0))


# A cell in which the search cannot be as good as theirs: its floor by hand, and how near the search comes to it.
@pytest.mark.thorough
def test_one_cell_is_faster_than_its_fitted_costs_allow() -> None:
    """The last rank of a V begins after p - 1 halves of a forward, and then computes all of m microbatches."""
    m = CASES[3].microbatches
    least_s = ((P - 1) * F_NS / 2 + m * (F_NS + I_NS + W_NS)) / m / 1e9
    theirs = min(cells[3, 2][0] for cells in CELLS.values() if (3, 2) in cells)
    assert theirs < 0.1092 < least_s
    assert best_s(3, 2, (0, 0)) <= least_s * 1.011
