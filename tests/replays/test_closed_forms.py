"""Replay against closed forms and published tables; nothing expected here comes from the code under test.

f and b are the forward and full backward time of one microbatch on one stage, c the one-way delay of a message over
a link: its occupancy tau plus the latency.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import pipeline, places, replayed, scenario, window_ns
from helpers.thorough import some, spread

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import P2P_MODES, Launch, Pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.replays import p2p_of, replay
from tracetool.replays.side_by_side import side_by_side
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode

MS = 10**6
FORWARD = ActionKind.FORWARD


def ideal_ns(p: int, m: int, cycle_ns: int) -> int:
    """Window of GPipe and of 1F1B over free links with equal stages: (m + p - 1)(f + b)."""
    return (m + p - 1) * cycle_ns


def delayed_ns(p: int, m: int, upstream: int, extra: int, cycle_ns: int, delay_ns: int, crossings: int = 1) -> int:
    """1F1B with extra forwards over equal delays, derived by hand from the zig-zag of its dependencies.

    Every boundary costs 2c to fill and drain. With k = p - s in flight below the last boundary, which lies after
    stage s, the order pays 2c once per n + 2 microbatches and hides n(f + b) of it.
    """
    depth = p - upstream
    rounds = (m - 1 - depth - extra) // (extra + 2) + 1 if m - 1 >= depth + extra else 0
    fill_and_drain = 2 * crossings * delay_ns
    return ideal_ns(p, m, cycle_ns) + fill_and_drain + rounds * max(0, 2 * delay_ns - extra * cycle_ns)


def extra_forwards(sizes: Sequence[int], extra: int) -> tuple[int, ...]:
    """So many for every boundary downstream of a rank, where the DCs hold so many ranks each."""
    return tuple(extra * (len(sizes) - 1 - dc) for dc, size in enumerate(sizes) for _ in range(size))


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("buffered", [False, True])
def test_blocking_transfers_hide_nothing(m: int, buffered: bool) -> None:
    """Two ranks: all 2m messages are on the one path, F0, then F B of the last stage with both ways between, then B.

    Worked out by hand for equal stages: (m + 1)(f + b) + 2mc. DeepSpeed measured the same: 16 messages of
    7.68 ms each lengthen a step of 8 microbatches by 123.5 ms (tests/data/deepspeed).
    """
    f, b, c = 3 * MS, 5 * MS, 2 * MS
    measured = replace(pipeline(2, m, f, b), buffered=buffered)
    window = window_ns(measured, "1f1b", scenario(places([1, 1], latency_ns=c), "blocking"))
    assert window == (m + 1) * (f + b) + 2 * m * c


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
# Every number of ranks has an order of its own: a mistake in one of them alone is what all 16 find.
@spread("p", range(1, 17), (1, 5))
def test_window_and_bubble_over_free_transfers(p: int, schedule: str, mode: P2PMode) -> None:
    """Window (m+p-1)(f+b), bubble (p-1)(f+b), bubble ratio (p-1)/(m+p-1): arXiv 1811.06965 and 2104.04473."""
    for m, (f, b) in product(sorted({1, 2, 5, p, 3 * p + 1}), ((3, 5), (7, 2))):
        done = replayed(pipeline(p, m, f, b), schedule, scenario(p2p=mode))
        metrics = measure(done.timeline)
        assert done.p2p == mode
        assert metrics.window_ns == ideal_ns(p, m, f + b)
        assert metrics.step_ns == metrics.window_ns
        assert metrics.compute_ns == p * m * (f + b)
        assert metrics.rank_compute_ns == (m * (f + b),) * p
        assert metrics.bubble_ns == (p - 1) * (f + b)
        assert metrics.bubble_ratio == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)


@pytest.mark.parametrize("mode", ["grouped", "per-edge", "posted-ahead"])
# Odd numbers of ranks and of chunks, which no other pair has.
@spread(("p", "v"), [(2, 2), (3, 2), (4, 2), (4, 3), (8, 2), (8, 4)], [(2, 2), (4, 3)])
def test_interleaved_window_over_free_transfers(p: int, v: int, mode: P2PMode) -> None:
    """Window (m + (p-1)/v)(f+b), f and b those of a whole rank: arXiv 2104.04473; Megatron's batches reach it too.

    So do pipelines side by side, which share nothing here.
    """
    for m, buffered in some(product((p, 2 * p, 5 * p), (False, True)), 4):
        stages = pipeline(p * v, m, 3, 5)
        measured = Pipeline(
            stages.stages, stages.ranks[:p], build_schedule("interleaved", PipelineShape(p, m, v)), "grouped", step=0,
            buffered=buffered,
        )  # fmt: skip
        for copies in (1, 3):
            many, order, topology = side_by_side(measured, measured.observed, Topology(), copies)
            done = replay(many, order, scenario(topology, mode))
            assert measure(done.timeline).window_ns == (m * v + p - 1) * (3 + 5)


@pytest.mark.parametrize(("p", "mode"), [(2, "per-edge"), (3, "grouped"), (8, "grouped")])
def test_orders_of_megatron_are_batched_where_it_allows_that(p: int, mode: P2PMode) -> None:
    """Its ``arguments.py``: of two ranks, interleaved stages demand ``overlap_p2p_comm``."""
    plain = pipeline(p, 2 * p, 3, 5)
    waiting = replace(plain, stages=tuple(replace(s, launches={FORWARD: Launch(1, 1, 1, 1)}) for s in plain.stages))
    order = build_schedule("interleaved", PipelineShape(p, 2 * p, 2))
    assert p2p_of(order, waiting, Scenario()) == mode
    assert p2p_of(order, plain, Scenario()) == "in-order"  # torch's runtime
    assert p2p_of(build_schedule("zb-h1", PipelineShape(p, 2 * p)), waiting, Scenario()) == "in-order"
    # As data/megatron was measured: all forwards first, on two ranks, in batches.
    gpipe = build_schedule("gpipe", PipelineShape(p, 2 * p))
    assert (p2p_of(gpipe, waiting, Scenario()), p2p_of(gpipe, plain, Scenario())) == ("grouped", "in-order")


@pytest.mark.parametrize("mode", P2P_MODES)
def test_geopipe_without_extra_forwards_is_1f1b(mode: P2PMode) -> None:
    """The definition of the order with a warm-up of p - i - 1 + 0."""
    measured = pipeline(4, 9, 3, 5)
    done = replayed(measured, "geopipe", scenario(p2p=mode), extra_forwards=(0,) * 4)
    assert done.schedule.orders == replayed(measured, "1f1b").schedule.orders
    assert measure(done.timeline).window_ns == ideal_ns(4, 9, 8)


def test_step_adds_the_tail_to_the_window() -> None:
    """Rank 0 ends last in 1F1B, so an equal tail on every rank extends the window by itself."""
    metrics = measure(replayed(pipeline(4, 6, 3, 5, tail_ns=11), "1f1b").timeline)
    assert (metrics.window_ns, metrics.step_ns) == (ideal_ns(4, 6, 8), ideal_ns(4, 6, 8) + 11)


# The form has cases by c against f + b and by m against p: each of a pair of cases alone is met in the whole product.
@spread("m_per_p", [1, 2, 3.5, 8], (3.5,))
@spread("p", [4, 8, 16], (8,))
@spread("c", [3, 10, 29, 100], (29,))
def test_extra_forwards_over_one_boundary(p: int, m_per_p: float, c: int) -> None:
    """Derived closed form, boundary in the middle, posted ahead: latency alone, occupancy alone (up to f + b), both."""
    m, f, b = int(m_per_p * p), 10, 20
    for extra in range(9 if m <= 64 else 3):
        if p + extra > m:
            break
        expected = delayed_ns(p, m, p // 2 - 1, extra, f + b, c)
        for tau in {0, c // 2, c} if extra < 5 else {0}:
            if tau <= f + b:
                measured = pipeline(p, m, f, b, payload_bytes=tau)
                over = scenario(places([p // 2] * 2, latency_ns=c - tau), "posted-ahead")
                extras = extra_forwards([p // 2] * 2, extra)
                assert window_ns(measured, "geopipe", over, extra_forwards=extras) == expected, (m, extra, tau)


# A depth below the boundary that is one off shows in most of the product's places, and in none where nothing waits.
@pytest.mark.parametrize("p", [3, 5, 8])
def test_extra_forwards_over_a_boundary_anywhere(p: int) -> None:
    """The same form with the boundary after any stage, where the depth below it is k = p - s."""
    for s, m, extra, c in some(product(range(p - 1), (p + 3, 4 * p), (0, 1, 3), (7, 48)), 11):
        over = scenario(places([s + 1, p - s - 1], latency_ns=c), "posted-ahead")
        extras = extra_forwards([s + 1, p - s - 1], extra)
        got = window_ns(pipeline(p, m, 11, 13), "geopipe", over, extra_forwards=extras)
        assert got == delayed_ns(p, m, s, extra, 24, c), (s, m, extra, c)


@pytest.mark.parametrize("p", [4, 8])
def test_1f1b_over_one_boundary(p: int) -> None:
    """The form at no extra forwards: (m+p-1)(f+b) + 2c (floor((m-1-k)/2) + 2)."""
    for m, c in product((p + 2, 2 * p + 1, 5 * p), (1, 30, 1000)):
        k = p // 2 + 1
        got = window_ns(pipeline(p, m, 9, 21), "1f1b", scenario(places([p // 2] * 2, latency_ns=c), "posted-ahead"))
        assert got == ideal_ns(p, m, 30) + 2 * c * ((m - 1 - k) // 2 + 2)


# DCs of other sizes put the boundaries elsewhere; every number of extra forwards over every delay is tried on all.
@spread("sizes", [[3, 3, 2], [2, 3, 3], [4, 2, 2], [2, 2, 2, 2], [1, 2, 1], [1, 4, 3]], 2)
def test_extra_forwards_over_several_boundaries(sizes: list[int]) -> None:
    """2c per boundary and the zig-zag of the last one, where every DC between two others has at least two ranks."""
    p, crossings = sum(sizes), len(sizes) - 1
    upstream = p - sizes[-1] - 1
    for m, extra, c in some(product((2 * p, 4 * p + 1), range(6), (5, 30, 47, 100)), 13):
        got = window_ns(
            pipeline(p, m, 10, 20),
            "geopipe",
            scenario(places(sizes, latency_ns=c), "posted-ahead"),
            extra_forwards=extra_forwards(sizes, extra),
        )
        assert got == delayed_ns(p, m, upstream, extra, 30, c, crossings), (m, extra, c)


# The largest pipeline is one more point of the same line.
@spread(
    ("p", "m", "k"),
    [(2, 10, 10), (5, 15, 30), (8, 64, 124), (16, 64, 148), (16, 256, 508)],
    [(2, 10, 10), (5, 15, 30), (16, 64, 148)],
)
@pytest.mark.parametrize("c", [1 * MS, 10 * MS, 35 * MS])
def test_1f1b_with_a_delay_on_every_hop(p: int, m: int, k: int, c: int) -> None:
    """Makespan (m+p-1)(F+B) + k c with F = 10 ms, B = 20 ms and a DC for each rank.

    Where p divides m the longest path goes down and up the whole pipeline once per p microbatches, and reaches and
    leaves the last stage but one besides: k = 2(p-1) m/p + 2(p-2).
    """
    assert k == 2 * (p - 1) * m // p + 2 * (p - 2)
    over = scenario(places([1] * p, latency_ns=c), "posted-ahead")
    assert window_ns(pipeline(p, m, 10 * MS, 20 * MS), "1f1b", over) == ideal_ns(p, m, 30 * MS) + k * c


# Occupancy and latency in units of f; windows of GPipe, 1F1B with receives posted ahead, 1F1B in blocking batches, and
# 1F1B with 1, 2 and 4 extra forwards, posted ahead, in units of f, as a simulator of events gave them that has nothing
# of this replay in it.
SENSITIVITY = [
    (0, 0, (117, 117, 117, 117, 117, 117)),
    (0, 0.5, (118, 132, 132, 118, 118, 118)),
    (0, 1, (119, 147, 147, 119, 119, 119)),
    (0, 2, (121, 177, 180, 130, 121, 121)),
    (0, 4, (125, 237, 252, 170, 139, 125)),
    (1, 0, (119, 147, 147, 119, 119, 119)),
    (2, 0, (152, 177, 180, 130, 121, 121)),
    (3, 0, (216, 207, 216, 150, 123, 123)),
    (1, 2, (123, 207, 216, 150, 123, 123)),
]


# Delays that are hidden, that are not, and that occupy the link.
@spread(("tau", "latency", "expected"), SENSITIVITY, 4)
def test_sensitivity_to_a_dc_boundary(tau: int, latency: float, expected: tuple[int, ...]) -> None:
    """p = 8, m = 32, B = 2f, two DCs of four ranks."""
    measured = pipeline(8, 32, MS, 2 * MS, payload_bytes=tau * MS)
    between = places([4, 4], latency_ns=int(latency * MS))
    got = [
        window_ns(measured, "gpipe", scenario(between, "posted-ahead")),
        window_ns(measured, "1f1b", scenario(between, "posted-ahead")),
        window_ns(measured, "1f1b", scenario(between, "grouped")),
    ] + [
        window_ns(measured, "geopipe", scenario(between, "posted-ahead"), extra_forwards=extra_forwards([4, 4], extra))
        for extra in (1, 2, 4)
    ]
    assert got == [windows * MS for windows in expected]


# Seconds per microbatch of 1F1B, CrossPipe (arXiv 2507.00217) Tables 5 and 6, over (latency, occupancy) in units of
# the forward time: no delay, (.25, .25), (.25, 2), (2, .25), (2, 2).
CROSSPIPE_DELAYS = ((0, 0), (0.25, 0.25), (0.25, 2), (2, 0.25), (2, 2))
CROSSPIPE_1F1B = {
    (1, 2): (0.151, 0.168, 0.241, 0.242, 0.321),
    (1, 4): (0.149, 0.177, 0.269, 0.268, 0.359),
    (2, 2): (0.174, 0.193, 0.262, 0.262, 0.333),
    (2, 4): (0.173, 0.198, 0.274, 0.274, 0.349),
}


@pytest.mark.parametrize("delay", range(len(CROSSPIPE_DELAYS)))
@pytest.mark.parametrize(("case", "dcs"), CROSSPIPE_1F1B)
def test_crosspipe_cells(case: int, dcs: int, delay: int) -> None:
    """Published cells within 3 % (case 1: 16 microbatches) and 1.5 % (case 2: 32, with recompute).

    f = 38 ms is the paper's; B = 67 ms is fitted to the first cell of case 1 over two DCs; recompute adds f to B.
    """
    f, b = 38 * MS, 67 * MS
    m, recompute, tolerance = (16, 0, 0.03) if case == 1 else (32, f, 0.015)
    latency, occupancy = CROSSPIPE_DELAYS[delay]
    measured = pipeline(8, m, f, b + recompute, payload_bytes=int(occupancy * f))
    over = scenario(places([8 // dcs] * dcs, latency_ns=int(latency * f)), "grouped")
    seconds = window_ns(measured, "1f1b", over) / m / 1e9
    assert seconds == pytest.approx(CROSSPIPE_1F1B[case, dcs][delay], rel=tolerance)


@pytest.mark.parametrize(("p", "m"), [(1, 3), (4, 2), (4, 4), (4, 9), (8, 20)])
@pytest.mark.parametrize("extra", [0, 1, 3])
def test_peak_in_flight(p: int, m: int, extra: int) -> None:
    """Stage i holds min(m, p-i) microbatches in 1F1B, m in GPipe, min(m, p-i+extra) in geopipe; memory counts them."""
    held, static = 7, 1000
    measured = pipeline(p, m, 3, 5, activation_bytes=held, static_bytes=static)
    upstream = p // 2
    extras = (extra,) * upstream + (0,) * (p - upstream)
    expected = {
        "1f1b": [min(m, p - i) for i in range(p)],
        "gpipe": [m] * p,
        "geopipe": [min(m, p - i + extras[i]) for i in range(p)],
    }
    for schedule, in_flight in expected.items():
        done = replayed(
            measured, schedule, scenario(p2p="posted-ahead"), extra_forwards=extras if schedule == "geopipe" else None
        )
        peaks = measure(done.timeline).peak_hbm_bytes
        assert peaks == tuple(static + held * count for count in in_flight), schedule
        # Every activation is given back: the curve ends where it began.
        assert all(curve is not None and curve[-1][1] == static for curve in done.timeline.memory)


def test_memory_counts_each_stage_with_its_own_figures() -> None:
    """Stage i of 1F1B holds p - i microbatches of its own size above its own static level."""
    done = replayed(pipeline(3, 6, 3, 5, activation_bytes=[10, 20, 40], static_bytes=[100, 200, 300]), "1f1b")
    assert measure(done.timeline).peak_hbm_bytes == (100 + 3 * 10, 200 + 2 * 20, 300 + 1 * 40)


def test_memory_rises_at_the_start_of_an_action_and_settles_at_its_end() -> None:
    """One rank, two microbatches, worked out by hand: 7 bytes kept each, 3 more while an action runs, 100 static."""
    measured = pipeline(1, 2, 4, 6, activation_bytes=7, transient_bytes=3, static_bytes=100)
    (curve,) = replayed(measured, "gpipe").timeline.memory
    at_ends = [(4, 107), (8, 114), (14, 107), (20, 100)]
    at_starts = [(0, 110), (4, 117), (8, 117), (14, 110)]
    assert curve is not None
    assert curve[0] == (0, 100)
    assert sorted(curve[1:]) == sorted(at_starts + at_ends)
    assert [point for pair in zip(at_starts, at_ends, strict=True) for point in pair] == list(curve[1:])


def test_unknown_memory_stays_unknown() -> None:
    without_static = replayed(pipeline(2, 3, 4, 6, activation_bytes=7), "1f1b").timeline
    partly = replayed(pipeline(2, 3, 4, 6, activation_bytes=[7, None], static_bytes=100), "1f1b").timeline
    assert measure(without_static).peak_hbm_bytes == (None, None)
    assert measure(partly).peak_hbm_bytes == (100 + 2 * 7, None)
