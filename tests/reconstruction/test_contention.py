"""What kernels take by themselves: against runs where nothing was beside them, and against plain arithmetic."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from helpers.recorded import data, h100, looked_at, rebuilt, run_of
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.closeup.contention import Sample, learn_alone, pieces, resident

F, B = ActionKind.FORWARD, ActionKind.BACKWARD

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])), max_size=8)


@given(SPANS, SPANS)
def test_time_beside_communication_is_the_number_of_shared_nanoseconds(
    comms: list[tuple[int, int]], kernels: list[tuple[int, int]]
) -> None:
    busy = {t for start, end in comms for t in range(start, end)}
    found = resident(sorted(comms)).beside_ns([Kernel(start, end, 0) for start, end in kernels])
    assert found == [len(busy & set(range(start, end))) for start, end in kernels]


@given(SPANS.filter(bool), st.lists(st.booleans(), min_size=8, max_size=8))
def test_an_actions_time_is_cut_up_without_rest(spans: list[tuple[int, int]], on_stream: list[bool]) -> None:
    kernels = [Kernel(s, e, 0, is_compute=c) for (s, e), c in zip(spans, on_stream, strict=False)]
    timed = [k for k in kernels if k.is_compute] or kernels
    found = pieces(kernels)
    assert sum(sum(piece) for piece in found) == max(k.end_ns for k in timed) - min(k.start_ns for k in timed)
    union = {t for k in timed for t in range(k.start_ns, k.end_ns)}
    assert sum(piece.run_ns for piece in found) == len(union)


def test_a_slowed_kernel_takes_what_its_like_take_alone() -> None:
    clean = [Sample(("a", "wide"), t, 0) for t in (10, 11, 12)]
    alone = learn_alone([*clean, Sample(("b", "wide"), 10, 0), Sample(("b", "wide"), 30, 5), Sample(("c",), 40, 9)])
    assert alone.run_ns(Sample(("a", "wide"), 20, 7), 1.5) == 11
    # One clean run of its own is too few: those of its like count.
    assert alone.run_ns(Sample(("b", "wide"), 30, 5), 1.5) == 10.5 // 1
    # A run with nothing beside it is what it is, and none is made longer.
    assert alone.run_ns(Sample(("a", "wide"), 50, 0), 1.5) == 50
    assert alone.run_ns(Sample(("a", "wide"), 9, 3), 1.5) == 9
    assert alone.never_alone == 0


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9))
def test_what_a_kernel_takes_that_never_ran_alone_is_told_by_its_factor(parts: list[int]) -> None:
    """A kernel of 120 ns alone and 180 beside: with n/60 of its work beside it takes n ns longer, 3 n of it beside."""
    samples = [Sample(("a",), 120 + n, 3 * n) for n in parts]
    alone = learn_alone(samples)
    assert [alone.run_ns(sample, 1.5) for sample in samples] == [120] * len(parts)
    assert alone.never_alone == len(parts)


def test_the_runs_least_beside_count_where_a_factor_is_off() -> None:
    """The kernel above, set against a factor of 3: a run with 3 of 121 ns beside is 2 ns off, others 40 and 120."""
    samples = [Sample(("a",), 120 + n, 3 * n) for n in (1, 20, 60)]
    alone = learn_alone(samples)
    assert [alone.run_ns(sample, 3.0) for sample in samples] == [119] * 3


# Made kernels beside others give back their factors by default (above); here two recordings of one program are held
# against each other.
@pytest.mark.thorough
def test_without_slowdown_an_in_order_run_costs_what_a_grouped_one_does() -> None:
    """In 1f1b_m8 nothing computes beside a waiting transfer; medians over its two steps and their microbatches.

    The clocks of a device differ from run to run (rank 3 by 4 %), which forwards show: next to nothing is beside
    them in either run. So what is compared is a backward in forwards.
    """
    run = h100("1f1b_m8")
    grouped = [looked_at(run, step=step).pipeline.stages for step in (1, 2)]
    for stage in rebuilt("rt1f1b_m8").pipeline.stages:
        plain, slowed, alone = (
            median(costs[1]) / median(costs[0])
            for costs in (
                [[c.duration_ns for of_step in grouped for c in of_step[stage.stage].costs[kind]] for kind in (F, B)],
                [[c.duration_ns for c in stage.costs[kind]] for kind in (F, B)],
                [[c.uncontended_ns or 0 for c in stage.costs[kind]] for kind in (F, B)],
            )
        )
        assert alone == pytest.approx(plain, rel=0.02)
        if stage.stage == 3:
            assert slowed > 1.2 * plain


def test_kernel_time_of_ascend_actions_is_the_busy_time_of_their_kernels() -> None:
    """Durations in kernel_details.csv between two messages, summed by hand, in ms.

    Rank 0: F 31.2 and 29.3, B 73.6 and 77.7; rank 2: F 73.3 and 73.3, B 114.3 and 114.4.
    """
    found = looked_at(run_of(data("ascend", "Ascend+msinsight", "test", "st", "level2")))
    busy: dict[tuple[object, object], list[float]] = {}
    for _, rank, _, kind, _, _, kernel_ns, _ in found.tables["costs"]:
        assert isinstance(kernel_ns, int)
        busy.setdefault((rank, kind), []).append(kernel_ns / 1e6)
    assert busy[0, "F"] == pytest.approx([31.2, 29.3], abs=0.1)
    assert busy[2, "F"] == pytest.approx([73.3, 73.3], abs=0.1)
    assert busy[2, "B"] == pytest.approx([114.3, 114.4], abs=0.1)
    # The norm of the gradients (1.3 ms of LpNorm in those 77.7 ms) is no backward's.
    assert busy[0, "B"] == pytest.approx([73.6, 77.7 - 1.3], abs=0.1)


def test_kernel_time_and_time_beside_communication_are_those_of_the_trace() -> None:
    """Against sums over the kernels of each label, straight from the tables (rank 1: one kernel at a time)."""
    run = h100("rt1f1b_m8")
    found = looked_at(run)
    rows = run.rows(
        """
        WITH labels AS (
            SELECT e.name, e.start_ns, e.start_ns + e.duration_ns AS end_ns
            FROM events AS e JOIN steps AS s ON s.rank = e.rank AND s.step = ?
            WHERE e.rank = 1 AND regexp_matches(e.name, '^PP:1[FB]') AND e.start_ns BETWEEN s.start_ns AND s.end_ns
        ),
        kernels AS (
            SELECT l.name, k.event, k.start_ns, k.start_ns + k.duration_ns AS end_ns, k.duration_ns
            FROM events AS k JOIN events AS h ON h.rank = 1 AND h.category = 'launch' AND h.correlation = k.correlation
            JOIN labels AS l ON h.start_ns BETWEEN l.start_ns AND l.end_ns
            WHERE k.rank = 1 AND k.category IN ('kernel', 'memset')
        ),
        resident AS (SELECT DISTINCT start_ns, end_ns FROM comms WHERE rank = 1),
        beside AS (
            SELECT k.name, sum(least(k.end_ns, r.end_ns) - greatest(k.start_ns, r.start_ns)) AS beside_ns
            FROM kernels AS k JOIN resident AS r ON r.start_ns < k.end_ns AND k.start_ns < r.end_ns GROUP BY ALL
        )
        SELECT name, sum(duration_ns)::BIGINT, coalesce(any_value(beside_ns), 0)::BIGINT
        FROM kernels LEFT JOIN beside USING (name) GROUP BY name
        """,
        [found.pipeline.step],
    )
    expected = {name.removeprefix("PP:"): (kernel, beside) for name, kernel, beside in rows}
    got: dict[str, tuple[Any, Any]] = {
        f"{stage}{kind}{microbatch}": (kernel, beside)
        for step, rank, stage, kind, microbatch, _, kernel, beside in found.tables["costs"]
        if (step, rank) == (found.pipeline.step, 1)
    }
    assert got == expected
    assert max(beside for _, beside in got.values()) > 5_000_000
