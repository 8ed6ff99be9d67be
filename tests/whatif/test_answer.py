"""What other schedules would buy: choices, limits and comparisons against the closed forms of equal stages.

Receives are posted ahead, over one boundary in the middle, where the window with n extra forwards is known:
T(n) = (m+p-1)(f+b) + 2c + r max(0, 2c - n(f+b)), r = floor((m-1-k-n)/(n+2)) + 1 if m-1 >= k+n else 0, k = p - s.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import pytest
from helpers.notices import codes, texts
from helpers.recorded import rebuilt
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import spread

from tracetool.errors import UnsupportedShape
from tracetool.model.load import known_load
from tracetool.model.notice import NoticeCode
from tracetool.model.schedule import PipelineShape
from tracetool.replays.evaluation import Evaluation, evaluate
from tracetool.schedules import SCHEDULES, build_schedule
from tracetool.whatif import remarks
from tracetool.whatif.answer import answer
from tracetool.whatif.depth import choose_depth
from tracetool.whatif.memory_limit import Shortage, Violation

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.whatif.results import Answer, Result

P, M, F, B = 4, 40, 1000, 2000
CYCLE = F + B
UPSTREAM = P // 2 - 1
IDEAL = (M + P - 1) * CYCLE
HELD, STATIC = 10, 500


def closed_ns(extra: int, delay_ns: int) -> int:
    depth = P - UPSTREAM
    rounds = (M - 1 - depth - extra) // (extra + 2) + 1 if depth + extra <= M - 1 else 0
    return IDEAL + 2 * delay_ns + rounds * max(0, 2 * delay_ns - extra * CYCLE)


def first_that_pays(delay_ns: int, deepest: int, tail_ns: int = 0) -> int:
    """The documented rule: the first depth after which no deeper one shortens the step by more than 2 %."""
    steps = [closed_ns(extra, delay_ns) + tail_ns for extra in range(deepest + 1)]
    return next(n for n, step in enumerate(steps) if step - min(steps[n:]) <= 0.02 * step)


def measured(*, memory: bool = True, tail_ns: int = 0, payload_bytes: int = 0) -> Pipeline:
    return pipeline(
        P,
        M,
        F,
        B,
        p2p="posted-ahead",
        payload_bytes=payload_bytes,
        tail_ns=tail_ns,
        activation_bytes=HELD if memory else None,
        static_bytes=STATIC if memory else None,
    )


def asked(delay_ns: int, *names: str, hbm_bytes: int | None = None, memory: bool = True) -> Answer:
    over = scenario(places([2, 2], latency_ns=delay_ns), hbm_bytes=hbm_bytes)
    return answer(found(measured(memory=memory)), names, over)


def only(done: Answer) -> Result:
    (result,) = done.results
    return result


@spread("occupied", [False, True], [True])
# A rule that is off by one forward, or by the share that pays, is off in other places of the line, too.
@spread("c", [1, 69, 70, 700, 1500, 1612, 1613, 2900, 3000, 4500, 6100, 9000], [69, 70, 1613, 4500])
def test_geopipe_hides_the_link_with_as_many_forwards_as_the_closed_form_asks_for(c: int, occupied: bool) -> None:
    # From 69 to 70 and from 1612 to 1613 the gain of one more forward crosses 2 %.
    tau = min(c // 2, CYCLE) if occupied else 0
    over = scenario(places([2, 2], latency_ns=c - tau))
    hiding = ceil(2 * c / CYCLE)
    expected = first_that_pays(c, M)
    pipe = measured(payload_bytes=tau)
    extra, remark = choose_depth("geopipe", pipe, pipe.observed.shape, over)
    assert extra == (expected, expected, 0, 0)
    assert remark == (None if expected == hiding else "deeper warm-ups would gain less than 2%")
    # The rule may stop short of hiding everything, only where the rest is worth no more than 2 %.
    assert expected == hiding or closed_ns(expected, c) - closed_ns(hiding, c) <= 0.02 * closed_ns(expected, c)
    assert expected <= hiding


@spread("c", [1500, 3000, 4500, 6400, 9000], 2)
def test_geopipe_takes_exactly_the_hiding_depth_where_every_forward_pays(c: int) -> None:
    """ceil(2c / (f+b)) extra forwards; their window is (m+p-1)(f+b) + 2c."""
    hiding = ceil(2 * c / CYCLE)
    assert closed_ns(hiding - 1, c) > 1.021 * closed_ns(hiding, c)
    result = only(asked(c, "geopipe"))
    assert result.extra_forwards == (hiding, hiding, 0, 0)
    assert result.metrics.window_ns == IDEAL + 2 * c
    assert result.cross_dc_bubble_ns == 2 * c


def test_the_gain_is_a_share_of_the_whole_step() -> None:
    """The same gain counts for less where the optimizer makes the step long."""
    c, tail_ns = 4500, 2_000_000
    assert first_that_pays(c, M, tail_ns) < first_that_pays(c, M)
    pipe = measured(tail_ns=tail_ns)
    extra, _ = choose_depth("geopipe", pipe, pipe.observed.shape, scenario(places([2, 2], latency_ns=c)))
    assert extra[0] == first_that_pays(c, M, tail_ns)


def test_every_boundary_gets_forwards_until_the_delay_is_hidden() -> None:
    """Three regions of 3, 3 and 2 equal stages: ceil(2c / (f+b)) per boundary reach (m+p-1)(f+b) + 4c."""
    p, c = 8, 4000
    m = 16
    pipe = pipeline(p, m, F, B, p2p="posted-ahead")
    result = only(answer(found(pipe), ["geopipe"], scenario(places([3, 3, 2], latency_ns=c))))
    floor = (m + p - 1) * CYCLE + 4 * c
    hiding = ceil(2 * c / CYCLE)
    assert result.extra_forwards is not None
    assert floor <= result.metrics.window_ns <= floor / (1 - 0.005)
    assert result.extra_forwards[0] <= 2 * hiding
    assert result.extra_forwards[3] <= hiding
    assert result.extra_forwards[-1] == 0


def test_nothing_is_chosen_without_a_boundary() -> None:
    result = only(answer(found(measured()), ["geopipe"], scenario()))
    assert result.extra_forwards == (0,) * P
    assert result.remark is not None
    assert "no DC boundary" in result.remark
    assert result.metrics.window_ns == IDEAL


@pytest.mark.parametrize("short", [1, HELD])
def test_memory_just_short_of_the_hiding_depth_gives_the_largest_that_fits(short: int) -> None:
    """Rank 0 holds p + n activations above its static level."""
    c = 4500
    hiding = ceil(2 * c / CYCLE)
    hbm_bytes = STATIC + (P + hiding) * HELD - short
    result = only(asked(c, "geopipe", hbm_bytes=hbm_bytes))
    assert result.extra_forwards == (hiding - 1, hiding - 1, 0, 0)
    assert result.feasible is True
    assert result.shortage is None
    assert result.metrics.peak_hbm_bytes[0] == STATIC + (P + hiding - 1) * HELD
    (told,) = texts(result.remarks, NoticeCode.WARM_UP)
    assert f"limited by HBM: without the limit +{hiding},{hiding},0,0 would take" in told


def test_memory_for_exactly_the_hiding_depth_suffices() -> None:
    hiding = ceil(2 * 4500 / CYCLE)
    result = only(asked(4500, "geopipe", hbm_bytes=STATIC + (P + hiding) * HELD))
    assert result.extra_forwards == (hiding, hiding, 0, 0)
    assert (result.feasible, result.shortage, result.remark) == (True, None, None)


@pytest.mark.parametrize("missing", [1, HELD, 3 * HELD])
def test_memory_below_1f1b_is_infeasible_by_exact_bytes(missing: int) -> None:
    """1F1B holds p activations on rank 0, the most of all ranks."""
    done = asked(4500, "1f1b", "geopipe", hbm_bytes=STATIC + P * HELD - missing)
    for result in (done.baseline, *done.results):
        assert result.feasible is False
        # The last warm-up forward of rank 0, its p-th, is the first to exceed the limit; forwards run back to back.
        # With so much missing that p - 1 activations do not fit either, an earlier one is.
        nth = P - 1 - (missing - 1) // HELD
        first = next(op for op in result.timeline.computes() if (op.rank, op.kind, op.microbatch) == (0, "F", nth))
        assert result.shortage == Shortage(0, missing, Violation(0, nth * F, first), tuple(range(P)))
    assert done.results[1].extra_forwards == (0,) * P
    (told,) = texts(done.results[1].remarks, NoticeCode.WARM_UP)
    assert "1F1B" in told


def test_the_shortage_is_that_of_the_rank_that_lacks_most() -> None:
    """Peaks 100 + 3*10, 150 + 2*10 and 175 + 1*10 against 140: rank 1 holds 150 before anything runs."""
    pipe = pipeline(3, 6, F, B, p2p="posted-ahead", activation_bytes=10, static_bytes=[100, 150, 175])
    result = only(answer(found(pipe), ["1f1b"], scenario(hbm_bytes=140)))
    assert result.shortage == Shortage(rank=2, missing_bytes=45, first=Violation(1, 0, None), global_ranks=(0, 1, 2))


def test_the_first_violation_in_time_is_named_whoever_lacks_most() -> None:
    """Against 125, rank 0 (100 + 10 per activation) exceeds with its third forward at 2f, when microbatch 0 is on its
    way to rank 2, whose 120 + 10 lack more from 2f on as well; rank 0's is named: it comes first of the two."""
    pipe = pipeline(3, 6, F, B, p2p="posted-ahead", activation_bytes=10, static_bytes=[100, 100, 123])
    shortage = only(answer(found(pipe), ["1f1b"], scenario(hbm_bytes=125))).shortage
    assert shortage is not None
    assert (shortage.rank, shortage.missing_bytes) == (2, 8)
    assert (shortage.first.rank, shortage.first.at_ns) == (0, 2 * F)
    assert shortage.first.op is not None
    assert shortage.first.op.text == "0F2"


def test_a_limit_without_known_memory_is_neither_kept_nor_broken() -> None:
    done = asked(4500, "geopipe", hbm_bytes=1, memory=False)
    assert only(done).feasible is None
    assert only(done).extra_forwards == (3, 3, 0, 0)
    assert NoticeCode.HBM_UNCHECKED in codes(done.notes)


@pytest.mark.parametrize("c", [0, 1, 1500, 9000])
def test_cross_dc_bubble_of_1f1b_is_what_the_delay_adds(c: int) -> None:
    """T - (m+p-1)(f+b)."""
    result = only(asked(c, "1f1b"))
    assert result.metrics.window_ns == closed_ns(0, c)
    assert result.cross_dc_bubble_ns == closed_ns(0, c) - IDEAL
    assert result.metrics.bubble_ns == closed_ns(0, c) - M * CYCLE


def test_bubble_reduction_is_one_minus_the_quotient_of_bubbles() -> None:
    c = 4500
    done = asked(c, "geopipe", "1f1b", "gpipe")
    base, hidden = closed_ns(0, c), IDEAL + 2 * c
    compute = M * CYCLE
    assert done.baseline.schedule == "1f1b"
    assert done.bubble_reduction(done.results[0]) == pytest.approx(1 - (hidden - compute) / (base - compute))
    assert done.cross_dc_bubble_reduction(done.results[0]) == pytest.approx(1 - (hidden - IDEAL) / (base - IDEAL))
    assert done.bubble_reduction(done.results[1]) == 0
    assert done.cross_dc_bubble_reduction(done.results[1]) == 0
    # GPipe crosses every boundary twice, once to fill and once to drain, as does what hides the link.
    assert done.results[2].cross_dc_bubble_ns == 2 * c


def test_no_reduction_of_a_bubble_that_is_not_there() -> None:
    alone = answer(found(pipeline(1, 5, F, B)), ["gpipe"])
    assert alone.baseline.metrics.bubble_ns == 0
    assert alone.bubble_reduction(alone.results[0]) is None
    near = answer(found(measured()), ["gpipe"])
    assert near.cross_dc_bubble_reduction(near.results[0]) is None
    assert near.bubble_reduction(near.results[0]) == 0


def test_a_worse_schedule_has_a_negative_reduction() -> None:
    """Against GPipe over a long link plain 1F1B has (T(0) - m(f+b)) / ((m+p-1)(f+b) + 2c - m(f+b)) times the bubble."""
    c = 9000
    over = scenario(places([2, 2], latency_ns=c))
    done = answer(found(measured()), ["1f1b"], over, baseline="gpipe")
    compute = M * CYCLE
    expected = 1 - (closed_ns(0, c) - compute) / (IDEAL + 2 * c - compute)
    assert expected < 0
    assert done.bubble_reduction(only(done)) == pytest.approx(expected)


def test_the_observed_order_replays_to_itself_and_is_recognised() -> None:
    done = answer(found(measured()), ["observed"])
    assert done.observed_schedule == "1f1b"
    assert done.fidelity.error_ratio == 0
    assert (done.fidelity.observed_ns, done.fidelity.replayed_ns) == (IDEAL, IDEAL)
    assert only(done).metrics.window_ns == IDEAL
    assert done.observed_metrics.window_ns == IDEAL


def test_other_microbatches_cost_the_measured_median() -> None:
    """Equal costs, so twice the microbatches make (2m + p - 1)(f + b)."""
    done = answer(found(measured()), ["1f1b", "gpipe"], replace(scenario(), microbatches=2 * M))
    assert [r.microbatches for r in done.results] == [2 * M] * 2
    assert [r.metrics.window_ns for r in done.results] == [(2 * M + P - 1) * CYCLE] * 2


def test_geopipe_leaves_the_blocking_batches_of_the_trace() -> None:
    """What needs non-blocking transfers runs on the one communicator of a grouped trace, 1F1B in its batches."""
    over = scenario(places([2, 2], latency_ns=4500))
    pipe = replace(measured(), p2p="grouped")
    done = answer(found(pipe), ["geopipe", "1f1b"], over)
    assert [r.p2p for r in done.results] == ["in-order", "grouped"]


@pytest.mark.parametrize("device", ["NVIDIA H200", "Ascend910B", None])
def test_errors_seen_on_one_device_are_not_told_of_another(device: str | None) -> None:
    pipe = measured()
    other = replace(pipe, ranks=tuple(replace(rank, load=known_load(device)) for rank in pipe.ranks))
    done = answer(found(other), ["gpipe"])
    assert [r.seen_error_ratio for r in (done.baseline, *done.results)] == [None, None]
    assert not {NoticeCode.ERRORS_SEEN, NoticeCode.UNPROVEN}.intersection(codes(done.notes))


def test_errors_seen_without_tensor_parallelism_are_not_told_of_it() -> None:
    done = answer(rebuilt("tp2pp2_1f1b_m8"), ["gpipe"])
    assert done.results[0].seen_error_ratio is None
    assert answer(rebuilt("1f1b_m8"), ["gpipe"]).results[0].seen_error_ratio is not None


def test_depth_stops_where_blocking_batches_would_deadlock() -> None:
    """Two ranks: one extra forward runs in blocking batches, the second waits for itself (worked out by hand)."""
    over = scenario(places([1, 1], latency_ns=4500), "grouped")
    result = only(answer(found(pipeline(2, M, F, B)), ["geopipe"], over))
    assert result.p2p == "grouped"
    assert result.extra_forwards in {(0, 0), (1, 0)}
    assert result.remark is not None
    assert "deadlock" in result.remark


def test_given_extra_forwards_are_taken_as_they_are() -> None:
    c = 4500
    over = scenario(places([2, 2], latency_ns=c))
    done = answer(found(measured()), ["geopipe"], over, extra_forwards=(1, 1, 0, 0))
    assert only(done).extra_forwards == (1, 1, 0, 0)
    assert only(done).metrics.window_ns == closed_ns(1, c)
    assert only(done).remark is None


def test_a_schedule_with_several_stages_per_rank_gets_them_by_the_layers() -> None:
    """The interleaved run of the same machine took 258.078 ms without the profiler, with peaks of 14.261, 12.128,
    10.938 and 11.451 GiB, of which 0.281 more static than in the run the prediction is made from (measured.json)."""
    predicted = answer(rebuilt("rt1f1b_m8"), ["interleaved"]).results[0]
    assert predicted.metrics.step_ns / 1e6 == pytest.approx(258.078, rel=0.02)
    assert codes(predicted.remarks)[0] is NoticeCode.STAGES_CUT
    peaks = answer(rebuilt("1f1b_m8_mem"), ["interleaved"]).results[0].metrics.peak_hbm_bytes
    for peak, measured in zip(peaks, (14.261, 12.128, 10.938, 11.451), strict=True):
        assert (peak or 0) / 2**30 + 0.281 == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize("name", ["interleaved", "zb-v", "hanayo", "dualpipe", "chimera"])
def test_an_order_from_a_file_gets_the_stages_that_the_named_one_gets(name: str, tmp_path: Path) -> None:
    """Several stages per rank, looped and in a V, and opposed pipelines, from a recording of one stage per rank."""
    base = rebuilt("rt1f1b_m8")
    kind = SCHEDULES.get(name)
    shape = replace(base.pipeline.observed.shape, chunks=kind.least_chunks, placement=kind.placement)
    file = tmp_path / "own.csv"
    file.write_text(build_schedule(name, shape).to_csv(), encoding="utf-8")
    named, read = answer(base, [name, f"csv:{file}"]).results
    assert read.metrics == named.metrics
    assert read.remark == named.remark


def test_an_order_from_a_file_sits_on_the_ranks_that_were_recorded(tmp_path: Path) -> None:
    """Stages recorded as a loop of two per rank do not run in a V."""
    looped = pipeline(4, 2, F, B, p2p="posted-ahead")
    order = build_schedule("interleaved", PipelineShape(2, 2, 2))
    recorded = replace(looped, ranks=looped.ranks[:2], observed=order)
    file = tmp_path / "v.csv"
    file.write_text(build_schedule("hanayo", PipelineShape(2, 2, 2, "v")).to_csv(), encoding="utf-8")
    with pytest.raises(UnsupportedShape, match="stages on ranks as in a V, the pipeline as in a loop"):
        answer(found(recorded), [f"csv:{file}"])


def test_forwards_beyond_the_microbatches_are_told() -> None:
    """Rank i has p - 1 - i forwards ahead of its first backward in 1F1B, and can have m at most: 40 - 3, 40 - 2."""
    over = scenario(places([2, 2], latency_ns=10_000))
    most, beyond = (
        answer(found(measured()), ["geopipe"], over, extra_forwards=(n, n, 0, 0)).results[0] for n in (37, 99)
    )
    assert most.remark is None
    assert beyond.remark == "a warm-up ends with the 40 microbatches: of +99,99,0,0 only +37,38,0,0 count"
    assert beyond.metrics.peak_hbm_bytes == (900, 900, 520, 510)


def test_what_is_said_of_other_transfers_is_replayed_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posted ahead, GPipe takes (m+p-1)(f+b) + 2c; that is replayed once, and not for the answer itself."""
    modes = []

    def evaluated(measured: Pipeline, schedule: Schedule, what_if: Scenario | None = None) -> Evaluation:
        modes.append(what_if and what_if.p2p)
        return evaluate(measured, schedule, what_if)

    monkeypatch.setattr(remarks, "evaluate", evaluated)
    over = scenario(places([2, 2], latency_ns=CYCLE), "blocking")
    result = only(answer(found(measured(payload_bytes=500)), "gpipe", over))
    assert "posted-ahead" not in modes
    modes.clear()
    (said,) = (str(note) for note in result.remarks if note.code is NoticeCode.LESS_WAITING)
    assert f"the step would be {(IDEAL + 2 * (CYCLE + 500)) / 1000} us" in said
    assert result.remarks == tuple(result.remarks)
    assert modes == ["per-edge", "posted-ahead"]
