"""greedy and optimal: orders made for costs, links and memory.

Expected are closed forms (written at each test; those of zero-bubble orders are of arXiv 2401.10241), every order of
tiny pipelines tried out by an enumeration of the test's own, and the published cells of CrossPipe's optimal and greedy
schedules.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import pytest
from helpers.crosspipe import CASES, CELLS, DELAYS, problem
from helpers.notices import codes, texts
from helpers.synthetic import found, pipeline, places, scenario
from helpers.thorough import drawn, some, spread
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import tracetool.schedules.library.optimal
from tracetool.errors import MissingPackage, UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.model.timeline import measure
from tracetool.replays import replay
from tracetool.replays.problem import pose
from tracetool.schedules import build_schedule
from tracetool.schedules.library.optimal import hints, solve
from tracetool.schedules.list_scheduling import best_listed
from tracetool.schedules.problem import Hop, Problem, StageCosts, start_times_ns, window_ns
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.model.pipeline import P2PMode

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
INPUT, WEIGHT = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT

FREE = Hop()

has_ortools = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-tools is not installed: pip install '.[optimal]'"
)
quick = drawn(60, suppress_health_check=[HealthCheck.too_slow])


def made(
    p: int,
    m: int,
    costs: tuple[int, int, int],
    *,
    hop: Hop = FREE,
    at: int = 0,
    room: int | None = None,
    early: int = 0,
    chunks: int = 1,
) -> Problem:
    """Equal stages, a link after rank ``at`` both ways; microbatches hold 4 bytes; without a W backwards are whole."""
    shape = PipelineShape(p, m, chunks, "v" if chunks > 1 else "loop")

    def between(src: int, dst: int) -> Hop:
        ends = shape.rank_of(src), shape.rank_of(dst)
        crosses = hop != FREE and min(ends) <= at < max(ends)
        return hop._replace(link=f"{ends[0] > at}") if crosses else FREE

    f, b, w = costs
    neighbours = range(shape.stages - 1)
    return Problem(
        shape=shape,
        stages=(StageCosts(f, b, w, 4, early if w else 0),) * shape.stages,
        split=w > 0,
        forward_hops=tuple(between(s, s + 1) for s in neighbours),
        backward_hops=tuple(between(s + 1, s) for s in neighbours),
        room_bytes=(room,) * p,
    )


def peak_bytes(order: tuple[Action, ...], held: int, early: int, *, split: bool) -> int:
    """The ledger by itself: up at a forward, down at the end of what frees it."""
    level, highest = 0, 0
    for action in order:
        if action.kind is F:
            level += held
        elif action.kind is INPUT:
            level -= early
        else:
            level -= held - early if split else held
        highest = max(highest, level)
    assert level == 0
    return highest


def longest_path(work: Problem, orders: tuple[tuple[Action, ...], ...]) -> int | None:
    """The window of orders on one stage per rank, by relaxing until nothing moves; None if they cannot finish.

    Each direction of the link has one sender, so its messages go in that sender's order.
    """
    end: dict[Action, int] = {}
    last = len(orders) - 1
    gradient = INPUT if work.split else B
    costs = {F: work.stages[0].forward_ns, gradient: work.stages[0].backward_ns, WEIGHT: work.stages[0].weight_ns}
    position, free, busy = [0] * len(orders), [0] * len(orders), {"False": 0, "True": 0}
    arrival: dict[Action, int] = {}
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                action = order[position[rank]]
                stage, kind, j = action
                if kind is F:
                    ready = 0 if stage == 0 else arrival.get(action)
                elif kind is WEIGHT:
                    ready = end.get(Action(stage, INPUT, j))
                else:
                    ready = end.get(Action(stage, F, j)) if stage == last else arrival.get(action)
                if ready is None:
                    break
                free[rank] = end[action] = max(free[rank], ready) + costs[kind]
                position[rank] += 1
                moved = True
                target = stage + 1 if kind is F else stage - 1
                if kind is not WEIGHT and 0 <= target <= last:
                    hop = work.forward_hops[stage] if kind is F else work.backward_hops[target]
                    left = end[action]
                    if hop.link is not None:
                        left = busy[hop.link] = max(left, busy[hop.link]) + hop.occupancy_ns
                    arrival[Action(target, kind, j)] = left + hop.latency_ns
    return max(free) if position == [len(order) for order in orders] else None


@cache
def _orders_of(kinds: tuple[ActionKind, ...], m: int) -> tuple[tuple[tuple[ActionKind, int], ...], ...]:
    """Every order of one rank in which a microbatch goes through its kinds in turn; microbatches in any order."""

    def extend(
        done: tuple[tuple[ActionKind, int], ...], through: tuple[int, ...]
    ) -> Iterator[tuple[tuple[ActionKind, int], ...]]:
        if len(done) == m * len(kinds):
            yield done
        for j, stage in enumerate(through):
            if stage < len(kinds):
                after = (*through[:j], stage + 1, *through[j + 1 :])
                yield from extend((*done, (kinds[stage], j)), after)

    return tuple(extend((), (0,) * m))


def shortest_window(work: Problem) -> int:
    """The shortest window of all orders within the room."""
    m, split = work.shape.microbatches, work.split
    kinds = (F, INPUT, WEIGHT) if split else (F, B)
    ranks = []
    for rank, room in enumerate(work.room_bytes):
        orders = [tuple(Action(rank, kind, j) for kind, j in order) for order in _orders_of(kinds, m)]
        early = work.stages[rank].freed_early_bytes
        ranks.append([o for o in orders if room is None or peak_bytes(o, 4, early, split=split) <= room])
    windows = (longest_path(work, orders) for orders in product(*ranks))
    return min(window for window in windows if window is not None)


TINY = [
    made(2, 2, (2, 3, 0)),
    made(2, 3, (2, 3, 0), hop=Hop(4, 1)),
    made(2, 3, (3, 2, 0), hop=Hop(1, 4), room=8),
    made(2, 3, (3, 5, 0), hop=Hop(7, 3), room=4),
    made(3, 2, (2, 5, 0), hop=Hop(3, 2), at=1),
    made(3, 2, (2, 3, 0), hop=Hop(9, 0), room=8),
    made(2, 2, (2, 3, 2), hop=Hop(3, 1)),
    made(2, 2, (2, 3, 4), room=4),
    made(2, 2, (2, 2, 2), hop=Hop(2, 3), room=7, early=2),
    made(2, 2, (5, 3, 2), hop=Hop(2, 3), room=6, early=3),
]


@has_ortools
@pytest.mark.parametrize("work", TINY, ids=range(len(TINY)))
def test_optimal_is_the_shortest_of_all_orders(work: Problem) -> None:
    """Every order of every rank tried out, microbatches in any order."""
    solved = solve(work, 60)
    shortest = shortest_window(work)
    assert (solved.window_ns, solved.bound_ns, solved.gap_ratio) == (shortest, shortest, 0)
    assert longest_path(work, solved.orders) == shortest
    assert window_ns(work, best_listed(work)) >= shortest
    assert work.bound_ns() <= shortest


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 5), (4, 8), (8, 20)])
@pytest.mark.parametrize("c", [0, 7, 40])
def test_whole_backwards_reach_the_floor_with_memory_enough(p: int, m: int, c: int) -> None:
    """(m + p - 1)(f + b) + 2c, the floor that no warm-up depth can go below.

    The first forward crosses the boundary before the last rank can begin and the last backward after it has ended:
    2c; the last rank has m(f + b) to compute, and p - 1 others lie before and behind it.
    """
    work = made(p, m, (10, 20, 0), hop=Hop(c), at=p // 2 - 1) if p > 1 else made(p, m, (10, 20, 0))
    floor = (m + p - 1) * 30 + (2 * c if p > 1 else 0)
    assert work.bound_ns() == floor
    assert window_ns(work, best_listed(work)) == floor


@pytest.mark.parametrize(("p", "m"), [(2, 6), (4, 12), (8, 24)])
def test_split_backwards_reach_the_window_of_zb_h2_with_memory_enough(p: int, m: int) -> None:
    """No rank idles once it has begun: m(f + i + w) and the fill of (p - 1) f.

    Within a rank ZB-H2 idles (p - 1)(f + i - 2w), none at f = i = w (arXiv 2401.10241).
    """
    for room in (None, 4 * (2 * p - 1)):  # ZB-H2's memory, 2p - 1 microbatches, is enough
        work = made(p, m, (1, 1, 1), room=room)
        assert window_ns(work, best_listed(work)) == 3 * m + p - 1


@has_ortools
@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8)])
def test_optimal_with_the_memory_of_zb_h1_is_no_longer_than_it(p: int, m: int) -> None:
    """m(f + i + w) + (p - 1)(f + i - w) at f = i = w with p microbatches on every rank (arXiv 2401.10241)."""
    assert solve(made(p, m, (2, 2, 2), room=4 * p), 60).window_ns <= 6 * m + 2 * (p - 1)


@has_ortools
def test_optimal_is_the_same_every_time_and_no_longer_than_any_hint() -> None:
    work = made(4, 8, (3, 4, 2), hop=Hop(5, 2), at=1, room=16)
    one, other = solve(work, 60), solve(work, 60)
    assert not one.by_clock
    assert one == other
    assert one.window_ns <= min(window_ns(work, orders) for orders in hints(work))
    assert one.bound_ns <= one.window_ns


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    p, m = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    chunks = draw(st.sampled_from([1, 1, 2]))
    costs = draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)))
    room = draw(st.one_of(st.none(), st.integers(chunks, 12).map(lambda n: 4 * n)))
    hop = Hop(draw(st.integers(0, 30)), draw(st.integers(0, 9)))
    return made(
        p, m, costs, hop=hop, at=draw(st.integers(0, 4)), room=room, early=draw(st.integers(0, 4)), chunks=chunks
    )


@quick
@given(work=problems())
def test_greedy_is_complete_keeps_within_memory_and_its_times_are_those_of_its_rules(work: Problem) -> None:
    orders = build_schedule("greedy", work.shape, problem=work).orders
    for order, room in zip(orders, work.room_bytes, strict=True):
        early = work.stages[0].freed_early_bytes
        assert room is None or peak_bytes(order, 4, early, split=work.split) <= room
    window = window_ns(work, orders)
    assert window >= work.bound_ns()
    if work.shape.chunks == 1:
        assert longest_path(work, orders) == window


@quick
@given(
    p=st.integers(2, 5), m=st.integers(1, 9), f=st.integers(1, 9), b=st.integers(1, 9), c=st.integers(0, 40),
    tau=st.integers(0, 9), mode=st.sampled_from(["in-order", "per-edge", "posted-ahead"]), least=st.integers(1, 6),
)  # fmt: skip
def test_replay_runs_greedy_without_blocking_and_posted_ahead_in_the_same_time(
    p: int, m: int, f: int, b: int, c: int, tau: int, mode: P2PMode, least: int
) -> None:
    """The engine and the model of the order agree; the ledger of replay keeps the limit."""
    pipe = pipeline(p, m, f, b, payload_bytes=tau, activation_bytes=7, transient_bytes=3, static_bytes=100)
    over = scenario(places([p - 1, 1], latency_ns=c), mode, hbm_bytes=103 + 7 * least)
    posed = pose(pipe, pipe.observed.shape, over)
    assert posed.problem.room_bytes == (7 * least,) * p
    orders = best_listed(posed.problem)
    done = replay(pipe, Schedule("greedy", pipe.observed.shape, orders, blocking=False), over)
    metrics = measure(done.timeline)
    assert max(peak for peak in metrics.peak_hbm_bytes if peak is not None) <= 103 + 7 * least
    assert metrics.window_ns == posed.judge(orders)
    if mode == "posted-ahead":
        assert metrics.window_ns == window_ns(posed.problem, orders)
        starts = {(op.stage, op.kind, op.microbatch): op.start_ns for op in done.timeline.computes()}
        times = start_times_ns(posed.problem, orders)
        assert starts == {tuple(a): t for o, ts in zip(orders, times, strict=True) for a, t in zip(o, ts, strict=True)}


# The same placement with twice the microbatches: other memory, and with recomputation other costs.
@spread(("system", "case"), [("UD", 1), ("UD", 2), ("UD", 3), ("Wave", 1)], 1)
def test_greedy_beside_the_published_cells_at_equal_memory(system: str, case: int) -> None:
    """CrossPipe's searched orders, measured on machines (Tables 5 and 6); all cells: benchmarks/crosspipe_cells.py.

    Ours is ideal and wins by far where bandwidth is short. Theirs comes from a search, so at the smallest memory and
    little occupancy a list may lose: by up to 2.3 % with one stage per rank, 9.8 % in a V.
    """
    loses = {("UD", 1): 0.025, ("Wave", 1): 0.1}.get((system, case), 0.0)
    for dcs, place in some(product((2, 4), range(len(DELAYS))), 4):
        work = problem(case, dcs, DELAYS[place], 2 if system == "Wave" else 1)
        seconds = window_ns(work, best_listed(work)) / CASES[case].microbatches / 1e9
        occupied = DELAYS[place][1] == 2
        assert seconds / CELLS[system][case, dcs][place] <= (0.95 if occupied else 1 + loses), (dcs, DELAYS[place])


@has_ortools
def test_whatif_takes_the_order_that_is_shortest_as_transfers_are_issued() -> None:
    """Never longer than 1F1B in any mode, within the limit; without OR-tools' clock the gap is closed here."""
    pipe = pipeline(4, 8, 1000, 2000, activation_bytes=10, static_bytes=500, payload_bytes=100)
    for mode in ("in-order", "per-edge", "posted-ahead"):
        over = scenario(places([2, 2], latency_ns=2500), mode, hbm_bytes=500 + 6 * 10)
        done = answer(found(pipe), ["greedy", "optimal"], over, baseline="1f1b", time_limit_s=60)
        greedy, optimal = done.results
        assert greedy.feasible
        assert optimal.feasible
        assert optimal.metrics.window_ns <= min(greedy.metrics.window_ns, done.baseline.metrics.window_ns)
        assert codes(optimal.remarks)[:1] == [NoticeCode.ORDER_SEARCHED]
        assert optimal.seen_error_ratio is None


def test_too_little_memory_for_anything_is_a_result_with_a_remark() -> None:
    pipe = pipeline(3, 4, 10, 20, activation_bytes=10, static_bytes=500)
    (result,) = answer(found(pipe), ["greedy"], scenario(hbm_bytes=505)).results
    assert result.feasible is False
    assert result.metrics.peak_hbm_bytes == (510,) * 3
    (told,) = texts(result.remarks, NoticeCode.ONE_AT_A_TIME)
    assert told.endswith("rank 0, 1, 2")


@pytest.mark.parametrize("name", ["greedy", "optimal"])
def test_without_costs_they_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedShape) as caught:
        build_schedule(name, PipelineShape(4, 8))
    assert "needs costs" in caught.value.message


def test_without_or_tools_optimal_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracetool.schedules.library.optimal, "find_spec", lambda _name: None)
    work = made(2, 2, (1, 2, 0))
    with pytest.raises(MissingPackage) as caught:
        build_schedule("optimal", work.shape, problem=work)
    assert "pip install" in (caught.value.hint or "")
