"""A compute beside communication kernels of known times: against sums worked out by hand, and counted ns by ns.

Computes of 100 ns alone and 150 beside a communication kernel do two thirds of a ns of work per ns beside one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.replays.engine import CHOICE, compiled_engine, run
from tracetool.replays.flow import FORWARD, Slowdown
from tracetool.replays.graph import Onward, TaskGraph, TaskKind, rows_by

if TYPE_CHECKING:
    from collections.abc import Sequence

Span = tuple[int, int]
ENGINES = ["plain", *(["compiled"] if compiled_engine() is not None else [])]


class _Tasks:
    """Tasks and edges as they are added; computes tell the time."""

    def __init__(self) -> None:
        self.kinds: list[int] = []
        self.ranks: list[int] = []
        self.times: list[tuple[int, int]] = []
        self.leaves: list[int] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, kind: int, rank: int, times: tuple[int, int] = (0, 0)) -> int:
        self.kinds.append(kind)
        self.ranks.append(rank)
        self.times.append(times)
        self.leaves.append(-1)
        return len(self.kinds) - 1

    def at(self, time: int) -> int:
        return self.add(TaskKind.COMPUTE, len(self.kinds) + 1, (time, time))

    def end_ns(self, task: int) -> int:
        count = len(self.kinds)
        before, after = (np.array([e[i] for e in self.edges], np.int32) for i in (0, 1))
        none = np.zeros(0, np.int32)
        action = SimpleNamespace(kind=ActionKind.FORWARD)
        flow: Any = SimpleNamespace(kind=np.full(count, FORWARD, np.int8), actions=[action] * count)
        graph = TaskGraph(
            flow, np.array(self.kinds, np.int8), np.array(self.ranks, np.int32), np.arange(count, dtype=np.int32),
            np.array(self.leaves, np.int32), before, after, rows_by(before, after, count),
            np.flatnonzero(np.array(self.kinds) == TaskKind.COMPUTE).astype(np.int32),
            Onward(none, none, none, none, none, none), none, none, none, none, none,
        )  # fmt: skip
        alone, beside = (np.array([t[i] for t in self.times], np.int64) for i in (0, 1))
        slowdown = Slowdown(beside, (None,) * (max(self.ranks) + 1))
        return int(run(graph, alone, np.full(count, -1, np.int32), "pace", slowdown).end_ns[task])


@pytest.fixture(autouse=True, params=ENGINES)
def _engine(request: pytest.FixtureRequest) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHOICE, request.param)
        yield


def end_ns(alone: int, beside: int, residencies: Sequence[Span], *, start: int = 0) -> int:
    """When a compute ends that starts when told, with kernels on its device from and to given times.

    Computes of other ranks tell the time.
    """
    tasks = _Tasks()
    compute = tasks.add(TaskKind.COMPUTE, 0, (alone, beside))
    tasks.edges.append((tasks.at(start), compute))
    for begins, leaves in residencies:
        post, done = tasks.add(TaskKind.POST, 0), tasks.add(TaskKind.DONE, 0)
        tasks.edges += [(tasks.at(begins), post), (post, done), (tasks.at(leaves), done)]
        tasks.leaves[done] = post
    return tasks.end_ns(compute)


def counted_ns(alone: int, beside: int, residencies: Sequence[Span], start: int) -> int:
    """The same ns by ns: of the product of both times, a ns does the one alone and the other beside."""
    at, left = start, alone * beside
    while left > 0:
        left -= alone if any(begins <= at < leaves for begins, leaves in residencies) else beside
        at += 1
    return at


@pytest.mark.parametrize(
    ("residencies", "end"),
    [
        ([], 100),
        ([(0, 150)], 150),  # as long as it
        ([(0, 151)], 150),
        ([(0, 30)], 110),  # 30 ns do the work of 20
        ([(20, 50)], 110),
        ([(0, 30), (40, 70)], 120),
        ([(0, 30), (30, 60)], 120),  # one leaves as the next comes
        ([(0, 30), (10, 20)], 110),  # two at once hold it up no more than one
        ([(0, 20), (10, 30)], 110),
        ([(70, 115)], 115),  # 30 ns of work left take 45: it ends as the kernel leaves
        ([(100, 200)], 100),  # that comes as it ends
        ([(99, 200)], 101),  # 1 ns of work left takes 1.5, so 2 whole ones
        ([(0, 1)], 101),  # 1/3 ns of work not done in the first
        ([(50, 50)], 100),  # that leaves as it comes
    ],
)
def test_ends_worked_out_by_hand(residencies: list[Span], end: int) -> None:
    assert end_ns(100, 150, residencies) == end
    later = [(begins + 40, leaves + 40) for begins, leaves in residencies]
    assert end_ns(100, 150, later, start=40) == end + 40


def test_kernels_that_were_there_before_it_and_stay_after_it() -> None:
    assert end_ns(100, 150, [(0, 1000)], start=500) == 650
    assert end_ns(100, 150, [(0, 530)], start=500) == 610
    assert end_ns(100, 150, [(0, 500)], start=500) == 600  # left as it came


@pytest.mark.parametrize("beside", [0, 99, 100])
def test_nothing_is_faster_beside_a_kernel(beside: int) -> None:
    assert end_ns(100, beside, [(10, 60)]) == 100


def test_computes_of_no_length_end_where_they_start() -> None:
    assert end_ns(0, 0, [(0, 10)], start=3) == 3
    assert end_ns(0, 7, [(0, 10)], start=3) == 3


def test_long_computes_are_exact() -> None:
    """A quarter of an hour, a third slower for half of its work: products of 10^24 units lose no ns."""
    alone = 900 * 10**9
    assert end_ns(alone, alone * 4 // 3, [(0, alone * 2 // 3)]) == alone * 2 // 3 + alone // 2
    assert end_ns(alone, alone * 4 // 3 + 1, [(0, 10**15)]) == alone * 4 // 3 + 1


@given(
    alone=st.integers(1, 60),
    longer=st.integers(0, 60),
    start=st.integers(0, 30),
    residencies=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60)), max_size=6),
)
def test_any_residencies_give_what_counting_gives(alone: int, longer: int, start: int, residencies: list[Span]) -> None:
    spans = [(begins, begins + length) for begins, length in residencies]
    got = end_ns(alone, alone + longer, spans, start=start)
    assert got == counted_ns(alone, alone + longer, spans, start)
    assert start + alone <= got <= start + alone + longer
