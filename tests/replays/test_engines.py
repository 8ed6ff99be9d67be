"""The compiled engine, the plain one and the sweep over many scenarios give the same times, to the ns."""

from __future__ import annotations

import os
import sys
from concurrent import futures
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from helpers.engine_cases import ENGINES, EngineCase, engine_cases
from helpers.synthetic import pipeline, places, scenario
from helpers.thorough import drawn, spread
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tracetool.errors import ScheduleDeadlock, TraceToolError, UnknownName
from tracetool.model.pipeline import P2P_MODES
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay, sweeping
from tracetool.replays.compiled import Compiled
from tracetool.replays.engine import compiled_engine, run
from tracetool.replays.scenarios import replay_many
from tracetool.replays.sweeping import Durations, make_plan, sweep
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from tracetool.model.pipeline import P2PMode
    from tracetool.replays.engine import Times

quick = drawn(150, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**32 - 1)


def by_event_loop(compiled: Compiled, durations: Any) -> Times:
    return run(compiled.graph, durations[compiled.class_of], compiled.link_of, "case")


def with_engine(engine: str, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("TRACETOOL_ENGINE", engine)


@quick
@given(engine_cases(), seeds)
def test_one_scenario(case: EngineCase, seed: int) -> None:
    """Without slowdown and with it: sweep or event loop, whichever ``times`` takes, against the plain event loop."""
    try:
        compiled = case.compiled()
    except ScheduleDeadlock:
        return
    random = np.random.default_rng(seed)
    durations = case.durations(compiled, random, 1)[:, 0]
    slowdown = case.slowdown(compiled, durations, random)
    results: list[Any] = []
    for engine in ENGINES:
        with pytest.MonkeyPatch.context() as patch:
            with_engine(engine, patch)
            try:
                found = (
                    compiled.times(durations),
                    by_event_loop(compiled, durations),
                    compiled.times(durations, slowdown),
                )
                results.append([(t.start_ns.tolist(), t.end_ns.tolist()) for t in found])
            except ScheduleDeadlock as stuck:
                results.append(str(stuck).replace("case", compiled.name))
    assert all(result == results[0] for result in results)
    if not isinstance(results[0], str):
        assert results[0][0] == results[0][1]


@drawn(60, parent=quick)
@given(engine_cases(), seeds, st.sampled_from([1, 2, 5, 16, 17, 40, 130]))
def test_many_scenarios(case: EngineCase, seed: int, scenarios: int) -> None:
    """The sweep with links in the order of the graph or of the first scenario, against an event loop for each."""
    try:
        compiled = case.compiled()
        random = np.random.default_rng(seed)
        drawn = case.durations(compiled, random, scenarios)
        expected = [by_event_loop(compiled, drawn[:, n]).end_ns for n in range(scenarios)]
    except ScheduleDeadlock:
        return
    varying = case.varying(compiled, random)
    values = drawn[varying]
    base = drawn[:, 0]
    if len(varying) < compiled.classes:
        for n in range(scenarios):
            mixed = base.copy()
            mixed[varying] = values[:, n]
            expected[n] = by_event_loop(compiled, mixed).end_ns
    for engine in ENGINES:
        with pytest.MonkeyPatch.context() as patch:
            with_engine(engine, patch)
            fresh = case.compiled()
            ends = fresh.ends(Durations(base, varying, values), np.arange(fresh.graph.tasks, dtype=np.int32))
            assert ends.T.tolist() == [end.tolist() for end in expected], engine


@quick
@given(engine_cases(), seeds)
def test_with_the_order_on_links_fixed_longer_is_never_shorter(case: EngineCase, seed: int) -> None:
    """Every end is a largest sum of durations along a path: it cannot fall when durations grow."""
    try:
        compiled = case.compiled()
        random = np.random.default_rng(seed)
        now = case.durations(compiled, random, 1)[:, 0]
        starts = by_event_loop(compiled, now).start_ns
    except ScheduleDeadlock:
        return
    plan = make_plan(compiled.graph, compiled.class_of, compiled.link_of, starts)
    if plan is None:  # messages that link and graph order both ways, at equal times
        return
    grown = now + random.integers(0, 5, compiled.classes)
    wanted = np.arange(compiled.graph.tasks, dtype=np.int32)
    both, _ = sweep(
        plan, Durations(now, np.arange(compiled.classes, dtype=np.int32), np.stack([now, grown], axis=1)), wanted
    )
    assert (both[:, 1] >= both[:, 0]).all()
    tripled, _ = sweep(plan, Durations(3 * now), wanted)
    assert (tripled[:, 0] == 3 * both[:, 0]).all()


@pytest.mark.parametrize(
    ("computes_ns", "moves_ns", "grows", "by_ns"),
    [
        ([3, 4, 5, 2, 3, 3, 3, 5, 2, 5, 4, 1, 2, 5, 3, 5], [2, 0, 5, 2, 0, 0], "1B0", 3),
        ([5, 2, 1, 5, 2, 5, 4, 3, 4, 5, 4, 1, 2, 1, 3, 5], [3, 5, 6, 1, 0, 0], "a message of stage 2", 2),
    ],
)
def test_a_link_that_two_pairs_of_ranks_share_may_reward_what_takes_longer(
    computes_ns: list[int], moves_ns: list[int], grows: str, by_ns: int
) -> None:
    """Why the property above fixes the order: first come, first served has the anomalies of list scheduling (Graham).

    1F1B of two microbatches on ranks in DCs a, b, a, b: several pairs of ranks share each link. A message that comes
    to it earlier can hold up one that matters more. Found by search; a compute, and a payload.
    """
    topology = Topology(tuple("abab"), (Link("a", "b", 1, 0), Link("b", "a", 1, 0)))
    compiled = Compiled(build_schedule("1f1b", PipelineShape(4, 2)), "posted-ahead", topology)
    assert compiled.static_plan is None
    moves = [way.move for way in compiled.ways]
    durations = np.zeros(compiled.classes, np.int64)
    durations[1:17] = computes_ns
    durations[moves] = moves_ns
    slower = durations.copy()
    slower[7 if grows == "1B0" else moves[4]] += by_ns
    fast, slow = (by_event_loop(compiled, d).end_ns.max() for d in (durations, slower))
    assert slow < fast


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", P2P_MODES)
def test_a_link_of_one_pair_of_ranks_needs_no_event_loop(
    engine: str, mode: P2PMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engine(engine, monkeypatch)
    shape = PipelineShape(6, 9)
    assert Compiled(build_schedule("1f1b", shape), mode, places([2, 2, 2])).static_plan is not None
    assert Compiled(build_schedule("1f1b", shape), mode, Topology()).static_plan is not None


@pytest.mark.parametrize("engine", ENGINES)
def test_many_scenarios_of_a_pipeline_are_what_each_of_them_is(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``replay_many`` against ``replay`` and ``measure``, over latencies, bandwidths, modes and places."""
    with_engine(engine, monkeypatch)
    measured = pipeline(4, 6, 30, 50, payload_bytes=40, transfer_ns=3, tail_ns=11)
    order = build_schedule("1f1b", PipelineShape(4, 6))
    what_ifs = [
        scenario(places(sizes, latency_ns=latency, bandwidth_bytes_per_s=speed * 10**9), mode)
        for sizes in ([2, 2], [1, 3])
        for mode in P2P_MODES
        for latency in (0, 17, 90)
        for speed in (1, 2)
    ]
    what_ifs += [replace(what_ifs[-1], pipelines=3, link_sharing=sharing) for sharing in ("spatial", "temporal")]
    found = replay_many(measured, order, what_ifs)
    for what_if, step in zip(what_ifs, found, strict=True):
        metrics = measure(replay(measured, order, what_if).timeline)
        assert (step.window_ns, step.step_ns) == (metrics.window_ns, metrics.step_ns)
        assert step.compute_ns == metrics.compute_ns
    assert replay_many(measured, order, []) == []


@pytest.mark.parametrize("engine", ENGINES)
# Larger pipelines are further points of the same line.
@spread(
    ("p", "m", "k"),
    [(8, 64, 124), (16, 64, 148), (16, 256, 508), (32, 128, 308), (64, 512, 1132)],
    [(8, 64, 124), (16, 64, 148)],
)
def test_1f1b_with_a_delay_on_every_hop(engine: str, p: int, m: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makespan (m+p-1)(F+B) + k c on which four independent simulators agree; F = 10 ms, B = 20 ms.

    The delay once as a transfer inside the DC, and once as the latency of a link; posted ahead.
    """
    with_engine(engine, monkeypatch)
    ms = 10**6
    if engine == "plain" and p > 32:
        pytest.skip("the plain event loop takes seconds here")
    order = build_schedule("1f1b", PipelineShape(p, m))
    delays = [1 * ms, 7 * ms, 10 * ms, 15 * ms]
    expected = [(m + p - 1) * 30 * ms + k * c for c in delays]
    apart = [scenario(places([1] * p, latency_ns=c), "posted-ahead") for c in delays]
    if m <= 256:
        found = replay_many(pipeline(p, m, 10 * ms, 20 * ms), order, apart)
        assert [step.window_ns for step in found] == expected
    compiled = Compiled(order, "posted-ahead", Topology())
    durations = np.zeros(compiled.classes, np.int64)
    kinds = compiled.graph.flow.kind
    durations[1 : len(kinds) + 1] = np.where(kinds == 0, 10 * ms, 20 * ms)
    moves = np.array([way.move for way in compiled.ways], np.int32)
    values = np.broadcast_to(np.array(delays, np.int64), (len(moves), len(delays)))
    ends = compiled.ends(Durations(durations, moves, values), compiled.graph.compute)
    assert ends.max(axis=0).tolist() == expected


def test_the_environment_chooses_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACETOOL_ENGINE", "plain")
    assert compiled_engine() is None
    monkeypatch.setenv("TRACETOOL_ENGINE", "plane")
    with pytest.raises(UnknownName, match="plane"):
        compiled_engine()
    monkeypatch.setitem(sys.modules, "tracetool.replays._engine", None)
    monkeypatch.setenv("TRACETOOL_ENGINE", "")
    assert compiled_engine() is None
    monkeypatch.setenv("TRACETOOL_ENGINE", "compiled")
    with pytest.raises(TraceToolError, match="not there"):
        compiled_engine()


@pytest.mark.skipif("compiled" not in ENGINES, reason="the compiled engine was not built")
def test_threads_of_a_sweep_are_as_many_as_its_work_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sweeps, of which equalizing makes a thousand, start no thread; four give the ends of the plain engine."""
    started: list[int] = []

    class Counted(futures.ThreadPoolExecutor):
        def __init__(self, workers: int) -> None:
            started.append(workers)
            super().__init__(workers)

    monkeypatch.setattr(futures, "ThreadPoolExecutor", Counted)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    compiled = Compiled(pipeline(4, 6, 1000, 2000).observed, "grouped", Topology())
    plan = make_plan(compiled.graph, compiled.class_of, compiled.link_of, None)
    assert plan is not None
    draw = np.random.default_rng(5).integers(0, 3000, (compiled.classes, 300))
    durations = Durations(draw[:, 0], np.arange(compiled.classes, dtype=np.int32), draw)
    wanted = np.arange(compiled.graph.tasks, dtype=np.int32)
    with_engine("plain", monkeypatch)
    expected, _ = sweep(plan, durations, wanted)
    with_engine("compiled", monkeypatch)
    assert (sweep(plan, durations, wanted)[0] == expected).all()
    assert not started
    monkeypatch.setattr(sweeping, "_LEAST_ENDS", 300 * len(plan.order) // 4)
    assert (sweep(plan, durations, wanted)[0] == expected).all()
    assert started == [4]


@pytest.mark.skipif("compiled" not in ENGINES, reason="the compiled engine was not built")
def test_the_compiled_engine_refuses_arrays_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    with_engine("compiled", monkeypatch)
    engine = compiled_engine()
    assert engine is not None
    ints, longs = np.array([0, 1, 1], np.int32), np.zeros(2, np.int64)
    nodes, one = np.array([0, 1], np.int32), np.array([1], np.int32)
    refused: list[tuple[Any, ...]] = [
        (ints, np.array([2], np.int32), longs, nodes, 2, None, longs, longs, None),  # no such task
        (ints, one, longs[:1], nodes, 2, None, longs, longs, None),  # too short
        (ints, one, longs, nodes, 1, None, longs, longs, None),  # no such link
        (ints, one, longs, nodes, 2, one, longs, longs, None),  # too few heads
        (ints, one, longs, nodes, 2, nodes + 1, longs, longs, None),  # no such head
        (ints, one, longs.astype(np.int32), nodes, 2, None, longs, longs, None),  # 32 bits
        (np.array([0, 2, 1], np.int32), one, longs, nodes, 2, None, longs, longs, None),  # rows run backwards
    ]
    for arguments in refused:
        with pytest.raises(ValueError, match=r"range|short|bytes|backwards"):
            engine.run(*arguments)
    with pytest.raises(ValueError, match="order"):
        engine.sweep(one, ints, one, nodes, longs, one[:0], np.empty((0, 1), np.int64), one, one, one,
                     np.empty((1, 1), np.int64), np.zeros(1, np.uint8), 0, 1)  # fmt: skip
