"""Bubbles and peaks at zero delay, replayed, against closed forms.

f, i and w are forward, input gradient and weight gradient of one stage (of a chunk where a rank has several); peaks
count stages, a byte each. Formulas are those of the papers and the public code named, or derived where it says so:
GPipe, 1F1B and interleaved arXiv 2104.04473 (2.2); ZB-H1 and ZB-H2 arXiv 2401.10241; ZB-V, V-Half and V-Min arXiv
2405.15362 and its code (sail-sg/zero-bubble-pipeline-parallelism, zbv.py and zbv_greedy.py); Hanayo arXiv 2308.15762;
Chimera arXiv 2107.06925; DualPipe the README and dualpipe.py of deepseek-ai/DualPipe.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest
from helpers.order_simulator import most_in_flight
from helpers.synthetic import equal_stages
from helpers.thorough import spread

from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape, Schedule, schedule_from_csv
from tracetool.model.timeline import Metrics, measure
from tracetool.replays import replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.schedule import Placement
    from tracetool.model.timeline import Timeline

F, B, I, W = (ActionKind(code) for code in "FBIW")  # noqa: E741
EQUAL = (1, 1, 1)
Split = tuple[int, int, int]


def timeline(schedule: Schedule, f: int, i: int, w: int, overlap_ratio: float = 1.0) -> Timeline:
    measured = equal_stages(schedule, {F: f, I: i, W: w, B: i + w})
    return replay(measured, schedule, Scenario(p2p="posted-ahead", overlap_ratio=overlap_ratio)).timeline


def metrics(name: str, shape: PipelineShape, costs: Split, overlap_ratio: float = 1.0) -> Metrics:
    return measure(timeline(build_schedule(name, shape), *costs, overlap_ratio))


def bubble(name: str, shape: PipelineShape, costs: Split) -> int:
    """Window beyond the compute of a rank."""
    per_rank = shape.chunks // (2 if shape.is_bidirectional else 1)
    return metrics(name, shape, costs).window_ns - shape.microbatches * per_rank * sum(costs)


def spans(schedule: Schedule, *costs: int) -> list[int]:
    """Per rank, from the start of its first action to the end of its last."""
    ops = timeline(schedule, *costs).computes()
    ranks = [[op for op in ops if op.rank == rank] for rank in range(schedule.shape.ranks)]
    return [max(op.end_ns for op in mine) - min(op.start_ns for op in mine) for mine in ranks]


@pytest.mark.parametrize(
    ("name", "chunks", "placement", "total"),
    [
        ("1f1b", 1, "loop", 6600),
        ("gpipe", 1, "loop", 6600),
        ("interleaved", 2, "loop", 5700),
        ("interleaved", 4, "loop", 5250),
        ("hanayo", 2, "v", 6500),
        ("hanayo", 4, "v", 5650),
        ("zb-h1", 1, "loop", 5400),
    ],
)
def test_totals_of_crosspipe(name: str, chunks: int, placement: Placement, total: int) -> None:
    """Its simulator's tests (C-TC/Megatron-LM, test_pp_sim.py): p = 4, m = 8, T_F = T_B = T_W = 200 per rank."""
    per_chunk = 200 // chunks
    shape = PipelineShape(4, 8, chunks, placement)
    assert metrics(name, shape, (per_chunk,) * 3).window_ns == total


# Here and below the least, the most and a middle number of ranks: an order that is wrong for one number alone, as where
# it does not divide the microbatches, is found by all of them.
@spread("p", range(2, 9), (2, 7))
@pytest.mark.parametrize("costs", [EQUAL, (3, 2, 2), (5, 6, 4)])
def test_zb_h1(p: int, costs: Split) -> None:
    """(p-1)(f+i-w), p in flight on every stage; for w up to i."""
    f, i, w = costs
    for m in (2 * p, 2 * p + 1, 4 * p):
        assert bubble("zb-h1", PipelineShape(p, m), costs) == (p - 1) * (f + i - w)
        assert most_in_flight(build_schedule("zb-h1", PipelineShape(p, m))) == [p] * p


@spread("p", range(2, 9), (2, 7))
@spread("costs", [EQUAL, (3, 2, 2), (5, 6, 4), (2, 3, 2)], 2)
def test_zb_h2(p: int, costs: Split) -> None:
    """Within a rank (p-1)(f+i-2w), 2p-1 in flight; the window has the fill (p-1) f at least."""
    f, i, w = costs
    for m in (2 * p - 1, 2 * p, 3 * p + 1):
        schedule = build_schedule("zb-h2", PipelineShape(p, m))
        inner = (p - 1) * (f + i - 2 * w)
        assert spans(schedule, *costs)[0] - m * sum(costs) == inner
        assert max(spans(schedule, *costs)) - m * sum(costs) == inner
        assert bubble("zb-h2", schedule.shape, costs) == max(inner, (p - 1) * f)
        assert most_in_flight(schedule) == [2 * p - 1] * p


@pytest.mark.parametrize(
    ("p", "m", "costs", "h1", "h2"),
    [
        (4, 12, (10, 10, 10), 30, 0), (4, 12, (20, 30, 20), 90, 30), (4, 12, (10, 12, 8), 42, 18),
        (8, 24, (10, 10, 10), 70, 0), (8, 24, (20, 30, 20), 210, 70), (8, 24, (10, 12, 8), 98, 42),
    ],
)  # fmt: skip
def test_zero_bubble_table(p: int, m: int, costs: Split, h1: int, h2: int) -> None:
    """Bubbles within a rank, (p-1)(f+i-w) and (p-1)(f+i-2w), and peaks (p and 2p - 1), in tenths."""
    for name, within, peak in (("zb-h1", h1, p), ("zb-h2", h2, 2 * p - 1)):
        schedule = build_schedule(name, PipelineShape(p, m))
        assert max(spans(schedule, *costs)) - m * sum(costs) == within
        peaks = measure(
            replay(equal_stages(schedule, {F: 1, I: 1, W: 1}), schedule, Scenario()).timeline
        ).peak_hbm_bytes
        assert peaks == (peak,) * p


@spread("p", range(1, 7), (2, 5))
@spread("v", [2, 3, 4], 2)
def test_interleaved_and_looped_bfs(p: int, v: int) -> None:
    """(p-1)(f+b)/v of a rank, that is (p-1)(f+b) of a chunk; 2(p-r-1)+(v-1)p+1 and mv chunks in flight."""
    for rounds, costs in product((1, 2, 3), (EQUAL, (4, 3, 2))):
        shape = PipelineShape(p, p * rounds, v)
        total = shape.microbatches * v
        assert bubble("interleaved", shape, costs) == bubble("looped-bfs", shape, costs) == (p - 1) * sum(costs)
        in_flight = [min(total, 2 * (p - r - 1) + (v - 1) * p + 1) for r in range(p)]
        assert most_in_flight(build_schedule("interleaved", shape)) == in_flight
        assert most_in_flight(build_schedule("looped-bfs", shape)) == [total] * p


@spread("p", range(1, 7), (2, 5))
@spread("v", [2, 3, 4], 2)
def test_interleaved_zero_bubble(p: int, v: int) -> None:
    """ZB-H1 on chunks: (p-1)(f+i-w) for w up to i, pv chunks in flight (derived; from the order's description)."""
    for rounds, costs in product((1, 2, 3), (EQUAL, (4, 3, 2), (3, 5, 1))):
        shape, (f, i, w) = PipelineShape(p, p * rounds, v), costs
        assert bubble("interleaved-zero-bubble", shape, costs) == (p - 1) * (f + i - w)
        assert most_in_flight(build_schedule("interleaved-zero-bubble", shape)) == [p * v] * p


def test_groups_of_megatron() -> None:
    """Written out by hand from Megatron's schedule table: groups of 3, then 2; a warm-up of 2(p - r - 1) + 3."""
    built = build_schedule("interleaved", PipelineShape(2, 5, 2), group=3)
    assert built.to_csv().replace(",", " ") == (
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4\n"
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4\n"
    )
    assert build_schedule("interleaved", PipelineShape(4, 8, 2), group=4).orders == (
        build_schedule("interleaved", PipelineShape(4, 8, 2)).orders
    )


@spread("p", range(1, 9), (2, 7))
def test_eager_1f1b(p: int) -> None:
    """Bubble (p-1)(f+b), min(m, 2(p-i)-1) in flight: Paddle's warm-up of 2(p-i)-1."""
    for m in (1, p, 2 * p, 3 * p + 1):
        shape = PipelineShape(p, m)
        assert bubble("eager-1f1b", shape, (3, 2, 2)) == (p - 1) * 7
        peaks = [min(m, 2 * (p - i) - 1) for i in range(p)]
        assert most_in_flight(build_schedule("eager-1f1b", shape)) == peaks


@spread("p", range(2, 14), (2, 3, 6))
def test_v_half_and_v_min(p: int) -> None:
    """Peaks (p+2)//2 and (p+4)//3 of whole stages; bubbles at f = i = w derived from the squeezed blocks."""
    half, least = 7 * (p // 2) - (2 if p % 2 == 0 else 0), 4 * p - (5 if p % 3 else 3)
    for m in (p, p + 1, 2 * p + 1, 3 * p):
        shape = PipelineShape(p, m, 2, "v")
        assert bubble("v-half", shape, EQUAL) == half
        assert bubble("v-min", shape, EQUAL) == least
        peaks = most_in_flight(build_schedule("v-half", shape))
        assert max(peaks) == 2 * ((p + 2) // 2)
        assert m == p or min(peaks) == max(peaks)
        assert max(most_in_flight(build_schedule("v-min", shape))) == 2 * ((p + 4) // 3)


@spread("p", range(1, 9), (2, 7))
def test_zb_v(p: int) -> None:
    """No rank waits between its first and its last action at f = i = w; p microbatches of whole stages in flight."""
    for m in (2 * p, 2 * p + 3):
        schedule = build_schedule("zb-v", PipelineShape(p, m, 2, "v"))
        assert spans(schedule, 1, 1, 1) == [6 * m] * p
        assert max(most_in_flight(schedule)) == 2 * p


@spread("p", range(2, 9), (2, 7))
@spread("waves", [1, 2, 4], 2)
def test_hanayo(p: int, waves: int) -> None:
    """2(p-1)F/W at B = 2F and m = p, F of a rank: 4(p-1) f of a chunk; 2p-3 for each further group (derived)."""
    for groups in (1, 2, 3):
        shape = PipelineShape(p, p * groups, 2 * waves, "v")
        assert bubble("hanayo", shape, EQUAL) == 4 * (p - 1) + (groups - 1) * (2 * p - 3)
        assert max(most_in_flight(build_schedule("hanayo", shape))) == shape.stages
    ratio = metrics("hanayo", PipelineShape(p, p, 2 * waves, "v"), EQUAL).bubble_ratio
    assert ratio == pytest.approx((2 * p - 2) / (3 * p * waves + 2 * p - 2))


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_chimera(p: int) -> None:
    """Ratio (p-2)/(2m+p-2) at f = B; from p/2+1 at the ends to p in the middle in flight (arXiv 2107.06925)."""
    for units in (1, 2, 3):
        shape = PipelineShape(p, p * units, 2, "bidirectional")
        result = metrics("chimera", shape, (5, 3, 2))
        assert result.bubble_ns == (p - 2) * 5
        assert result.bubble_ratio == pytest.approx((p - 2) / (2 * shape.microbatches + p - 2))
        peaks = most_in_flight(build_schedule("chimera", shape))
        assert peaks == [p // 2 + 1 + min(r, p - 1 - r) for r in range(p)]


# Makespan bubbles at (f, i, w, F&B) of (1, 1, 1, 3), (1, 1.2, 0.8, 3) and (1, 1, 1, 2.6), in tenths: the eight steps of
# dualpipe.py replayed by a simulator of events that has nothing of this one.
DUAL = [
    ("dualpipe", 4, 8, (20, 24, 16), 5),
    ("dualpipe", 8, 20, (60, 72, 40), 9),
    ("dualpipe", 8, 32, (60, 72, 40), 9),
    ("dualpipe", 16, 64, (140, 172, 88), 17),
    ("dualpipev", 4, 10, (60, 72, None), 9),
    ("dualpipev", 8, 20, (140, 172, None), 17),
]


@pytest.mark.parametrize(("name", "p", "m", "bubbles", "peak"), DUAL)
def test_dualpipe_table(name: str, p: int, m: int, bubbles: tuple[int, int, int | None], peak: int) -> None:
    """Bubble is the window beyond the compute of the busiest rank: at 2.6 ranks differ in how much runs as one.

    Never above the authors' (P/2 - 1)(F&B + B - 3W), P the ranks, or twice those of a V.
    """
    placement: Placement = "v" if name == "dualpipev" else "bidirectional"
    shape = PipelineShape(p, m, 2, placement)
    half = p if name == "dualpipev" else p // 2
    cases: list[tuple[Split, int]] = [((10, 10, 10), 30), ((10, 12, 8), 30), ((10, 10, 10), 26)]
    for ((f, i, w), both), expected in zip(cases, bubbles, strict=True):
        done = metrics(name, shape, (f, i, w), both / (f + i + w))
        got = done.window_ns - max(done.rank_compute_ns)
        if expected is not None:
            # A forward of 10 and a backward of 20 that run as one last 8 2/3 and 17 1/3: rounded to 9 and 17.
            assert got == expected
        assert got <= (half - 1) * (both + i + w - 3 * w)
    schedule = build_schedule(name, shape)
    assert most_in_flight(schedule) == [peak] * p


@spread("p", [2, 4, 6, 8, 10], [2, 8])
def test_dualpipe_at_equal_parts(p: int) -> None:
    """(P/2-1)(F&B+B-3W) is exact where f = i = w and F&B = F + B; P+1 in flight."""
    for m in (2 * p, 2 * p + 2, 4 * p):
        shape = PipelineShape(p, m, 2, "bidirectional")
        assert bubble("dualpipe", shape, EQUAL) == (p // 2 - 1) * 2
        assert most_in_flight(build_schedule("dualpipe", shape)) == [p + 1] * p
    for m in (2 * p, 2 * p + 1, 3 * p):
        shape = PipelineShape(p, m, 2, "v")
        assert bubble("dualpipev", shape, EQUAL) == (p - 1) * 2
        assert most_in_flight(build_schedule("dualpipev", shape)) == [2 * p + 1] * p


def test_dualpipes_steps_on_two_ranks_of_four() -> None:
    """Rank 0 and 1 of p = 4, m = 8, written out by hand from the eight steps; stages 4 to 7 are the second copy."""
    rows = build_schedule("dualpipe", PipelineShape(4, 8, 2, "bidirectional")).to_csv().splitlines()
    assert rows[0].replace(",", " ") == (
        "0F0 0F1 0F2 7F4 7I4 7W4 7F5 (0F3;7B5)OVERLAP_F_B (7F6;0B0)OVERLAP_F_B "
        "7B6 (7F7;0B1)OVERLAP_F_B 7B7 0I2 0W2 0I3 0W3"
    )
    assert rows[1].replace(",", " ") == (
        "1F0 6F4 1F1 6F5 1F2 6B4 (6F6;1B0)OVERLAP_F_B (1F3;6B5)OVERLAP_F_B (6F7;1B1)OVERLAP_F_B 6B6 1B2 6I7 1I3 6W7 1W3"
    )


def test_two_that_run_as_one_wait_for_their_inputs_and_send_at_the_end() -> None:
    """Worked out by hand: two ranks, a V of four stages, one microbatch each way round the overlap.

    Rank 0 has stages 0 and 3, rank 1 has 1 and 2. F takes 10, B takes 20; on rank 1 the forward 1F1, whose input is
    there at 20, runs as one with 2B0, whose gradient is there at 60. One after the other, as torch's runtime does it
    (``_PipelineScheduleRuntime``, OVERLAP_F_B: each waits for its own receive), they take 30 to 40 and 60 to 80; woven
    into each other, at a ratio of 0.8, both wait until 60 and end at 84.
    """
    schedule = schedule_from_csv(
        "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1\n1F0,2F0,(1F1;2B0)OVERLAP_F_B,1B0,2F1,2B1,1B1\n", name="by-hand"
    )
    ops = {(op.stage, op.kind.value, op.microbatch): op for op in timeline(schedule, 10, 10, 10).computes()}
    # 0F0 0-10, 0F1 10-20, 1F0 10-20, 2F0 20-30, 3F0 30-40, 3B0 40-60.
    assert (ops[3, "B", 0].start_ns, ops[3, "B", 0].end_ns) == (40, 60)
    assert (ops[1, "F", 1].start_ns, ops[1, "F", 1].end_ns) == (30, 40)
    assert (ops[2, "B", 0].start_ns, ops[2, "B", 0].end_ns) == (60, 80)
    # 1B0 follows, then 2F1, whose input was made on the same rank.
    assert ops[1, "B", 0].start_ns == 80
    assert ops[2, "F", 1].start_ns == 100
    faster = {(op.stage, op.kind.value, op.microbatch): op for op in timeline(schedule, 10, 10, 10, 0.8).computes()}
    assert faster[1, "F", 1].start_ns == 60
    assert faster[2, "B", 0].end_ns == 60 + 24


def test_what_is_made_ahead_of_a_wait_is_sent_after_it() -> None:
    """As above, but what 1F1 makes goes to another rank: three ranks, a V of six stages, worked out by hand.

    Down go 0F0 0-10, 1F0 10-20, 2F0 20-30 and 3F0 30-40 on rank 2, 4F0 40-50, 5F0 50-60; back 5B0 60-80. Rank 1 runs
    1F1, whose input is there at 20, from 50 to 60, as one with 4B0, whose gradient is there at 80: 80 to 100. Torch's
    runtime issues SEND_F and SEND_B after both, so rank 2 has 1F1's activation at 100; it has run 3B0 from 100 by then.
    """
    schedule = schedule_from_csv(
        "0F0,0F1,5F0,5B0,5F1,5B1,0B0,0B1\n1F0,4F0,(1F1;4B0)OVERLAP_F_B,4F1,4B1,1B0,1B1\n2F0,3F0,3B0,2F1,3F1,3B1,2B0,2B1\n",
        name="by-hand",
    )
    ops = {(op.stage, op.kind.value, op.microbatch): op for op in timeline(schedule, 10, 10, 10).computes()}
    assert (ops[1, "F", 1].end_ns, ops[4, "B", 0].end_ns) == (60, 100)
    assert (ops[3, "B", 0].start_ns, ops[2, "F", 1].start_ns) == (100, 120)
