"""GeoPipe's setting: replays against the closed form, definitions and findings against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import pytest
from helpers.thorough import some

from tracetool.estimates.device import A100
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import LLAMA_2_13B, LLAMA_2_70B
from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.studies.geopipe.findings import (
    DEFINITIONS,
    both_findings,
    bubble_findings,
    bubble_reduction,
    iteration_findings,
    iteration_reduction,
    joint,
    least_idle_ratio,
)
from tracetool.studies.geopipe.optimum import find_optimum, needs
from tracetool.studies.geopipe.sweep import (
    BASELINES,
    PaperGrid,
    PaperSweep,
    Setting,
    deeper,
    peak_bytes,
    regions,
    sweep,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.studies.geopipe.findings import Definition, FigureOrigin

GBIT = 10**9 // 8
EQUAL = Setting(LLAMA_2_13B, A100, Training(8, 8, 8, 1, 4096, 0.5, has_head=False), 64 * 10**9)
WITH_HEAD = replace(EQUAL, training=replace(EQUAL.training, has_head=True))
SMALL = PaperGrid((0.3, 0.6), (12, 20), ((3, 3, 2), (2, 2, 4)), (1, 8), (200, 400), (40, 400, 1500))


def cycle(pipeline: Pipeline) -> int:
    return sum(costs[0].duration_ns for costs in pipeline.stages[0].costs.values())


def closed_form_ns(pipeline: Pipeline, split: Sequence[int], extra: int, delay_ns: int) -> int:
    """1F1B with extra forwards over equal delays c (derived model of this tool, not the paper's).

    (m + p - 1)(f + B), 2c for every boundary, and the zig-zag of the last one: with k = p - s below it, 2c less what
    the extra forwards hide, once per extra + 2 microbatches.
    """
    m, p, depth = pipeline.observed.shape.microbatches, sum(split), split[-1] + 1
    rounds = (m - 1 - depth - extra) // (extra + 2) + 1 if m - 1 >= depth + extra else 0
    crossings = 2 * (len(split) - 1) * delay_ns
    return (m + p - 1) * cycle(pipeline) + crossings + rounds * max(0, 2 * delay_ns - extra * cycle(pipeline))


@pytest.fixture(scope="module")
def equal() -> PaperSweep:
    return sweep(EQUAL, SMALL)


@pytest.fixture(scope="module")
def with_head() -> PaperSweep:
    return sweep(WITH_HEAD, SMALL)


def delay_ns(place: Sequence[int], payload: int) -> int:
    speed = SMALL.bandwidths_gbit_per_s[place[4]] * GBIT / SMALL.sharing[place[3]]
    return SMALL.distances_km[place[5]] * 5000 + round(payload / speed * 1e9)


def places() -> list[tuple[int, ...]]:
    return list(product(*(range(n) for n in SMALL.shape)))


def test_windows_of_equal_stages_are_the_closed_form(equal: PaperSweep) -> None:
    """Every point: non-blocking 1F1B at no extra forwards, and the best depth; occupancy stays below f + B."""
    payload = 2 * 4096 * 5120
    for place in places():
        pipeline = EQUAL.pipeline(SMALL.efficiency_ratios[place[0]], SMALL.microbatches[place[1]])
        split, delay = SMALL.splits[place[2]], delay_ns(place, payload)
        expected = [closed_form_ns(pipeline, split, extra, delay) for extra in range(4)]
        assert equal.window_ns["posted-ahead"][place] == expected[0]
        assert equal.deeper_ns[place] == min(expected)
        assert equal.depth[place] == expected.index(min(expected))
        assert (
            equal.free_ns["posted-ahead"][place] == equal.deeper_free_ns[place] == closed_form_ns(pipeline, split, 0, 0)
        )
        assert equal.compute_ns[place] == SMALL.microbatches[place[1]] * cycle(pipeline)


def bubbles(swept: PaperSweep, place: Sequence[int], mode: P2PMode, depth: int | None) -> dict[Definition, float]:
    """By replaying one setting alone and measuring its Timeline; the cross-DC bubble by its definition."""
    setting, grid = swept.setting, swept.grid
    pipeline = setting.pipeline(grid.efficiency_ratios[place[0]], grid.microbatches[place[1]])
    split = grid.splits[place[2]]
    order = pipeline.observed if depth is None else deeper(pipeline, split, depth)
    speed = grid.bandwidths_gbit_per_s[place[4]] * GBIT
    over = Scenario(
        regions(split, speed, grid.distances_km[place[5]] * 5000),
        p2p=mode,
        pipelines=grid.sharing[place[3]],
        link_sharing="spatial",
    )
    done = measure(replay(pipeline, order, over).timeline)
    free = replace(over, topology=over.topology.without_delays())
    ideal = measure(replay(pipeline, order, free).timeline)
    return {
        "bubble_ratio": done.bubble_ratio,
        "bubble_ns": done.bubble_ns,
        "cross_dc_bubble_ns": done.window_ns - ideal.window_ns,
    }


def test_bubbles_are_those_of_single_replays(with_head: PaperSweep) -> None:
    """The definitions of design section 5, on Timelines; every seventh point, or some of them."""
    for place in some(places()[::7], 8):
        after = bubbles(with_head, place, "posted-ahead", int(with_head.depth[place]))
        for mode in BASELINES:
            before = bubbles(with_head, place, mode, None)
            for definition in DEFINITIONS:
                expected = 1 - after[definition] / before[definition]
                got = bubble_reduction(with_head, mode, definition)[place]
                assert got == pytest.approx(expected, abs=1e-6), (place, mode, definition)


def test_bubbles_by_hand(equal: PaperSweep) -> None:
    """With equal stages and all delay hidden: (p-1)(f+B) + 4c are left of (p-1)(f+B) + 4c + 2c rounds."""
    place = (0, 1, 0, 0, 1, 1)  # m 20, 3/3/2, 400 Gbit/s, 400 km: c below (f + B) / 2, hidden by one forward
    pipeline = EQUAL.pipeline(0.3, 20)
    c, fill = delay_ns(place, 2 * 4096 * 5120), 7 * cycle(pipeline)
    rounds = (20 - 1 - 3) // 2 + 1
    assert 2 * c < cycle(pipeline)
    left, had = fill + 4 * c, fill + 4 * c + 2 * c * rounds
    share = {True: left / (left + 20 * cycle(pipeline)), False: had / (had + 20 * cycle(pipeline))}
    expected = {
        "bubble_ratio": 1 - share[True] / share[False],
        "bubble_ns": 1 - left / had,
        "cross_dc_bubble_ns": 1 - 4 / (4 + 2 * rounds),
    }
    for definition in DEFINITIONS:
        got = bubble_reduction(equal, "posted-ahead", definition)[place]
        assert got == pytest.approx(expected[definition], abs=1e-9), definition
    assert iteration_reduction(equal, "posted-ahead")[place] == pytest.approx(
        2 * c * rounds / (20 * cycle(pipeline) + had), abs=1e-9
    )


def by_brute_force(
    swept: PaperSweep, found: FigureOrigin, targets: dict[str, float]
) -> tuple[int, dict[tuple[int, int], float]]:
    """Points at which every target is met, one at a time, from the closed definitions and the arrays' values."""

    def value(what: str, place: tuple[int, ...]) -> float:
        if what == "iteration":
            return float(1 - swept.deeper_ns[place] / swept.window_ns[found.baseline][place])
        assert found.definition is not None
        return float(bubble_reduction(swept, found.baseline, found.definition)[place])

    hits = 0
    shares: dict[tuple[int, int], float] = {}
    others = len(places()) // (SMALL.shape[1] * SMALL.shape[5])
    for place in places():
        met = True
        for what, target in targets.items():
            here = value(what, place)
            near = abs(here - target) <= 0.005
            if place[5] + 1 < SMALL.shape[5]:
                there = value(what, (*place[:5], place[5] + 1))
                near = near or min(here, there) < target < max(here, there)
            met = met and near
        if met:
            hits += 1
            cell = place[1], place[5]
            shares[cell] = shares.get(cell, 0) + 1 / others
    return hits, shares


def test_findings_are_found_again_by_brute_force(with_head: PaperSweep) -> None:
    found_any = 0
    for kind, findings in (
        ({"bubble": 0.7891}, bubble_findings(with_head)),
        ({"iteration": 0.091}, iteration_findings(with_head)),
        ({"bubble": 0.7891, "iteration": 0.091}, both_findings(with_head)),
    ):
        for found in findings:
            hits, shares = by_brute_force(with_head, found, kind)
            assert (found.points, found.total) == (hits, len(places()))
            for i, j in product(range(SMALL.shape[1]), range(SMALL.shape[5])):
                assert found.shares[i][j] == pytest.approx(shares.get((i, j), 0), abs=1e-9)
            found_any += hits
    assert found_any > 10


def test_the_nearest_point_is_the_nearest(with_head: PaperSweep) -> None:
    for found in (*bubble_findings(with_head), *iteration_findings(with_head)):
        values = [
            float(
                iteration_reduction(with_head, found.baseline)[place]
                if found.definition is None
                else bubble_reduction(with_head, found.baseline, found.definition)[place]
            )
            for place in places()
        ]
        target = 0.091 if found.definition is None else 0.7891
        assert found.nearest is not None
        assert found.highest is not None
        got = found.nearest.iteration_reduction if found.definition is None else found.nearest.bubble_reduction
        assert abs((got or 0) - target) == min(abs(value - target) for value in values)
        assert (found.least, found.most) == (min(values), max(values))
        most = places()[values.index(max(values))]
        idle, ideal = (w[most] - with_head.compute_ns[most] for w in (with_head.deeper_ns, with_head.deeper_free_ns))
        assert found.highest.distance_km == SMALL.distances_km[most[5]]
        assert found.left_ratio == pytest.approx(ideal / idle)


def test_points_beyond_memory_are_no_findings() -> None:
    """70B at 4 sequences of 4096 needs more than 64 GB with 1F1B: no point is looked at, and it says so."""
    big = replace(EQUAL, model=LLAMA_2_70B, training=replace(EQUAL.training, batch=4))
    grid = PaperGrid((0.5,), (16,), ((3, 3, 2),), (1,), (200,), (80, 400))
    (found, *_) = bubble_findings(sweep(big, grid))
    assert (found.points, found.total, found.nearest) == (0, 0, None)


def test_least_idle_share_over_free_links(equal: PaperSweep, with_head: PaperSweep) -> None:
    """(p - 1) / (m + p - 1) with equal stages; with a slower last stage, its surplus in every microbatch as well."""
    assert least_idle_ratio(equal) == pytest.approx(7 / (20 + 7))
    pipeline = WITH_HEAD.pipeline(0.6, 20)
    f, b = (pipeline.stages[0].median_ns(kind) or 0 for kind in (ActionKind.FORWARD, ActionKind.BACKWARD))
    slow_f, slow_b = (pipeline.stages[7].median_ns(kind) or 0 for kind in (ActionKind.FORWARD, ActionKind.BACKWARD))
    window = 7 * (f + b) + 20 * (slow_f + slow_b)
    compute = 20 * (7 * (f + b) + slow_f + slow_b) / 8
    least = min(1 - compute / window, least_idle_ratio(sweep(WITH_HEAD, replace(SMALL, efficiency_ratios=(0.3,)))))
    assert least_idle_ratio(with_head) == pytest.approx(least, abs=1e-6)


def test_both_figures_with_all_idle_time_counted() -> None:
    """(1 - before) / (1 - after) = 1 - 9.1 % and after = (1 - 78.91 %) before: 11.3 % and 2.4 % idle.

    Filling and draining alone, (p - 1) / (m + p - 1), are as little from m 288 on with eight stages.
    """
    needed = joint(8, "bubble_ratio")
    assert (round(needed.before_ratio, 3), round(needed.after_ratio, 3)) == (0.113, 0.024)
    assert needed.least_microbatches == pytest.approx(288, abs=1)
    for definition in ("bubble_ratio", "bubble_ns"):
        told = joint(8, "bubble_ratio" if definition == "bubble_ratio" else "bubble_ns")
        # Check by putting them back: windows 1 and 0.909, idle shares as told.
        windows = 1.0, 1 - 0.091
        assert windows[0] * (1 - told.before_ratio) == pytest.approx(windows[1] * (1 - told.after_ratio))
        idle = (told.before_ratio, told.after_ratio)
        if definition == "bubble_ns":
            idle = (told.before_ratio * windows[0], told.after_ratio * windows[1])
        assert 1 - idle[1] / idle[0] == pytest.approx(0.7891)
        m = told.least_microbatches
        assert 7 / (m + 7) <= told.after_ratio < 7 / (m - 1 + 7)


@pytest.mark.parametrize(("sharing", "distance_km"), [(1, 80), (8, 80), (8, 1500)])
def test_optimum_bandwidth(sharing: int, distance_km: int) -> None:
    """BW* by its formula; the replayed one against the closed form of section 4.4 on the same ladder."""
    m, split = 32, (3, 3, 2)
    found = find_optimum(EQUAL, 0.5, m, split, sharing, distance_km)
    pipeline = EQUAL.pipeline(0.5, m)
    payload, latency, f_b = sharing * 2 * 4096 * 5120, distance_km * 5000, cycle(pipeline)
    limit = found.depth_limit
    assert max(peak_bytes(pipeline, limit, split)) <= 64 * 10**9
    assert limit == m or max(peak_bytes(pipeline, limit + 1, split)) > 64 * 10**9
    assert found.throughput_bytes_per_s == pytest.approx(payload / (f_b / 1e9))
    assert found.hiding_bytes_per_s == pytest.approx(payload / ((limit * f_b / 2 - latency) / 1e9))
    assert found.formula_bytes_per_s == max(found.throughput_bytes_per_s, found.hiding_bytes_per_s or 0)

    def window(speed: int) -> int:
        delay = latency + round(payload / speed * 1e9)
        return min(closed_form_ns(pipeline, split, extra, delay) for extra in range(6))

    assert found.knee_bytes_per_s is not None
    assert found.knee_bytes_per_s > 2 * found.throughput_bytes_per_s  # within the domain of the form
    for speed, enough in ((found.knee_bytes_per_s, True), (round(found.knee_bytes_per_s / 2 ** (1 / 8)), False)):
        assert (window(speed) / window(2 * speed) - 1 < 0.01) is enough
    gain = 1 - window(50 * 10**9) / window(25 * 10**9)
    assert found.gain_ratio == pytest.approx(gain, abs=1e-6)


def test_no_bandwidth_hides_what_memory_does_not_allow() -> None:
    """A limit right above 1F1B's peak leaves no extra forward: the second term has no bandwidth."""
    pipeline = EQUAL.pipeline(0.5, 32)
    tight = replace(EQUAL, hbm_bytes=max(peak_bytes(pipeline, 0, ())) + 1)
    found = find_optimum(tight, 0.5, 32, (3, 3, 2), 1, 400)
    assert (found.depth_limit, found.hiding_bytes_per_s, found.formula_bytes_per_s) == (0, None, None)


def test_memory_by_formula_is_that_of_replay() -> None:
    for batch, need in zip((1, 2), needs(WITH_HEAD, 32, (3, 3, 2), (1, 2)), strict=True):
        training = replace(WITH_HEAD.training, batch=batch)
        pipeline = replace(WITH_HEAD, training=training).pipeline(0.5, 32)
        for depth, told in ((0, need.peak_bytes), (1, need.deeper_peak_bytes)):
            order = deeper(pipeline, (3, 3, 2), depth)
            peaks = measure(replay(pipeline, order, Scenario()).timeline).peak_hbm_bytes
            assert peaks == peak_bytes(pipeline, depth, (3, 3, 2))
            assert told == max(peak or 0 for peak in peaks)
        assert need.static_bytes == pipeline.ranks[0].static_bytes
        assert need.fits
