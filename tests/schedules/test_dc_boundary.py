"""Schedules over one DC boundary, against windows that a simulator of events gave, with nothing of this replay in it.

There an action starts at the later of the end of the one before it on its rank and the arrival of its input; a message
holds its directed link for its occupancy, first come first served, and arrives a latency later. p = 8, m = 32,
f = i = w = 1, two DCs of four ranks, receives posted ahead; chunks have half the cost. The columns of GPipe, 1F1B and
1F1B with extra forwards are checked in tests/replays/test_closed_forms.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.order_simulator import Hop, simulate
from helpers.synthetic import equal_stages, places
from helpers.thorough import spread

from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule

F, B, I, W = (ActionKind(code) for code in "FBIW")  # noqa: E741
UNIT = 1000

COLUMNS = {
    "interleaved": PipelineShape(8, 32, 2),
    "zb-h1": PipelineShape(8, 32),
    "zb-h2": PipelineShape(8, 32),
    "dualpipe": PipelineShape(8, 32, 2, "bidirectional"),
    "dualpipev": PipelineShape(8, 32, 2, "v"),
}
# Occupancy and latency in units of f, then windows of the columns above; None where the table has none.
TABLE: list[tuple[float, float, tuple[float | None, ...]]] = [
    (0, 0, (106.5, 103, 103, 102, 103)),
    (0, 0.5, (109.5, 106, 103.5, 110.5, 115.5)),
    (0, 1, (117.5, 121, 104, 119, 133)),
    (0, 2, (155.5, 151, 109, 139, 169)),
    (0, 4, (231.5, 211, 145, 179, 241)),
    (1, 0, (121, 121, 104, 119, 136)),
    (2, 0, (181.5, 151, 115, 139, 181)),
    (3, 0, (244.5, 187, 145, None, None)),
    (1, 2, (195, 181, 127, None, None)),
]


def one_link(hop: Hop) -> tuple[bool] | None:
    """A link for each direction between the DCs, as the engine has it."""
    return None if (hop.src_rank < 4) == (hop.dst_rank < 4) else (hop.src_rank < 4,)


def link_per_kind(hop: Hop) -> tuple[bool, bool] | None:
    """Another one for gradients."""
    return None if (hop.src_rank < 4) == (hop.dst_rank < 4) else (hop.src_rank < 4, hop.gradient)


# What delays messages, and what occupies the link besides; the other rows have one of them alone, or more of it.
@spread(("occupancy", "latency", "windows"), TABLE, [TABLE[8]])
@pytest.mark.parametrize("name", COLUMNS)
def test_sensitivity_to_a_dc_boundary(
    name: str, occupancy: float, latency: float, windows: tuple[float | None, ...]
) -> None:
    """The engine has one link per direction. The table has another one for gradients: it matters only where messages
    occupy the link and activations and gradients cross it the same way (loops, V shapes, opposed pipelines). A second
    simulator gives the engine's windows with one link, and the table's with two. In the table both of a pair that runs
    as one have their inputs when it begins, which the engine asks for where they are woven into each other.
    """
    schedule = build_schedule(name, COLUMNS[name])
    t = UNIT // 2 if name in {"interleaved", "dualpipev"} else UNIT
    tau, delay = round(occupancy * UNIT), round(latency * UNIT)
    what_if = Scenario(topology=places([4, 4], latency_ns=delay), p2p="posted-ahead")
    measured = equal_stages(schedule, {F: t, I: t, W: t, B: 2 * t}, payload_bytes=tau)
    window = measure(replay(measured, schedule, what_if).timeline).window_ns

    cost = {"F": t, "I": t, "W": t, "B": 2 * t}
    assert window == simulate(schedule, cost, occupancy=tau, latency=delay, link_of=one_link).window
    woven = measure(replay(measured, schedule, replace(what_if, overlap_ratio=0.5)).timeline).window_ns
    half = simulate(schedule, cost, occupancy=tau, latency=delay, link_of=one_link, pair_ratio=0.5).window
    assert woven == (half if any(schedule.overlaps) else window)
    shared = simulate(schedule, cost, occupancy=tau, latency=delay, link_of=one_link, pair_ratio=1).window
    apart = simulate(schedule, cost, occupancy=tau, latency=delay, link_of=link_per_kind, pair_ratio=1).window
    expected = windows[list(COLUMNS).index(name)]
    if expected is not None:
        assert apart == expected * UNIT
    if name in {"zb-h1", "zb-h2"} or occupancy == 0:
        assert shared == apart
    else:
        assert shared > apart


@pytest.mark.parametrize("p", [3, 4, 8])
def test_eager_1f1b_hides_up_to_half_a_cycle_on_every_hop(p: int) -> None:
    """(m+p-1)(f+b) + 2c(p-1) while 2c <= f+b (geopipe's form with one extra forward per boundary)."""
    for m, delay in ((2 * p, 1500), (4 * p + 1, 1500), (3 * p, 700)):
        schedule = build_schedule("eager-1f1b", PipelineShape(p, m))
        what_if = Scenario(topology=places([1] * p, latency_ns=delay), p2p="posted-ahead")
        done = replay(equal_stages(schedule, {F: 1000, B: 2000}), schedule, what_if)
        assert measure(done.timeline).window_ns == (m + p - 1) * 3000 + 2 * delay * (p - 1)
