"""The model of sustained load against its differential equation, and replay with it against what was recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import pipeline, replayed
from hypothesis import given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.model.load import KNOWN_LOADS, SustainedLoad, known_load
from tracetool.model.scenario import Scenario
from tracetool.reconstruction.actions import Kernel, Segment
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.closeup.action_view import ActionView
from tracetool.reconstruction.closeup.uncontended import take_slowdown_out
from tracetool.reconstruction.steps.reading import Device

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
LOAD = SustainedLoad(
    25_000_000, threshold=0.5, slope=0.2, step_threshold=0.6, step_slope=0.1, forward_load=1.2, start_load=0.3
)


@given(load=st.floats(0, 1.5), brought=st.floats(0, 1.5), duration_ns=st.integers(0, 200_000_000))
def test_the_average_follows_its_differential_equation(load: float, brought: float, duration_ns: int) -> None:
    """dL/dt = (brought - L) / settle, integrated in a thousand steps of the midpoint rule."""
    step = duration_ns / 1000
    direct = load
    for _ in range(1000):
        middle = direct + step / 2 * (brought - direct) / LOAD.settle_ns
        direct += step * (brought - middle) / LOAD.settle_ns
    assert LOAD.after(load, duration_ns, brought) == pytest.approx(direct, abs=1e-5)


def test_averages_add_up() -> None:
    halfway = LOAD.after(0.3, 10_000_000, 1.0)
    assert LOAD.after(halfway, 15_000_000, 1.0) == pytest.approx(LOAD.after(0.3, 25_000_000, 1.0))
    # After one settling time 1/e of a step is left.
    assert LOAD.after(0.3, 25_000_000, 1.0) == pytest.approx(1 - 0.7 / math.e)


@pytest.mark.parametrize(
    ("load", "brought", "step_load", "factor"),
    [
        (0.5, 0.5, 0.6, 1.0),  # up to both thresholds nothing slows down
        (0.0, 0.0, 0.0, 1.0),
        (1.0, 1.0, 0.0, 1.1),  # 0.2 x (1 - 0.5)
        (1.0, 1.0, 0.8, 1.12),  # and 0.1 x (0.8 - 0.6)
        (0.0, 0.0, 0.8, 1.02),
    ],
)
def test_factors_at_a_steady_load(load: float, brought: float, step_load: float, factor: float) -> None:
    for duration_ns in (0, 1_000, 10**9):
        assert LOAD.factor(load, duration_ns, brought, step_load) == pytest.approx(factor)


def test_only_devices_that_were_measured_have_one() -> None:
    assert known_load("NVIDIA H100 80GB HBM3") is KNOWN_LOADS["H100"]
    for name in ("NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X", "Ascend910B", "", None):
        assert known_load(name) is None


def _with_load(measured: Pipeline, load: SustainedLoad) -> Pipeline:
    return replace(measured, ranks=tuple(replace(rank, load=load) for rank in measured.ranks))


def _durations(measured: Pipeline, schedule: str) -> list[int]:
    return [op.duration_ns for op in replayed(measured, schedule, Scenario(p2p="posted-ahead")).timeline.computes()]


def test_one_rank_slows_down_as_integrated_here() -> None:
    """GPipe on one rank: no pause, so the average rises from its start towards what actions bring, action by action.

    How long the step is decides the load of the step: settled here to the end, there by one more round.
    """
    forward, backward, count = 9_000_000, 20_000_000, 6
    got = _durations(_with_load(pipeline(1, count, forward, backward), LOAD), "gpipe")
    works = [(LOAD.forward_load, forward)] * count + [(1.0, backward)] * count
    step_load = 0.0
    for _ in range(30):
        average, expected, work = LOAD.start_load, [], 0.0
        for full, alone in works:
            middle = (average + full + (average - full) * math.exp(-alone / LOAD.settle_ns)) / 2
            factor = 1 + 0.2 * max(0.0, middle - 0.5) + 0.1 * max(0.0, step_load - 0.6)
            expected.append(round(alone * factor))
            work += full * alone * factor
            average = full + (average - full) * math.exp(-alone * factor / LOAD.settle_ns)
        step_load = work / sum(expected)
    assert got == pytest.approx(expected, rel=2e-3)
    assert 1.04 * forward < got[0] < got[count - 1] < 1.17 * forward


def test_pauses_let_the_load_go() -> None:
    """One microbatch through two ranks, messages of 40 ms. Worked out with exp(-10/25) = 0.6703, exp(-20/25) = 0.4493.

    A forward ends at 1.2 - 0.9 x 0.6703 = 0.597, its middle 0.448 is below the threshold. Rank 1's backward follows
    at once: it ends at 1 - 0.403 x 0.4493 = 0.819, its middle 0.708 slows it down by 0.2 x 0.208. Rank 0's waits for
    more than 100 ms, starts below 0.597 / 50, and its middle stays below 0.3.
    """
    load = replace(LOAD, step_slope=0.0)
    got = _durations(_with_load(pipeline(2, 1, 10_000_000, 20_000_000, transfer_ns=40_000_000), load), "gpipe")
    assert got == [10_000_000, 20_000_000, 10_000_000, pytest.approx(20_000_000 * 1.0416, rel=1e-4)]


def test_without_interference_no_load_counts() -> None:
    measured = _with_load(pipeline(1, 4, 10_000_000, 20_000_000), LOAD)
    ops = replayed(measured, "gpipe", Scenario(interference=False)).timeline.computes()
    assert {op.duration_ns for op in ops} == {10_000_000, 20_000_000}


@given(
    st.lists(st.tuples(st.integers(2_000_000, 30_000_000), st.integers(2_000_000, 30_000_000)), min_size=1, max_size=8)
)
def test_load_taken_out_and_put_back_in_gives_what_was_recorded(times: list[tuple[int, int]]) -> None:
    """A rank that computes without a pause, recorded on an H100: its replay takes what was recorded, within 0.3 %.

    Both sides take the average in the middle of an action; that of the recording is slowed down already.
    """
    at, views = 10**15, []
    for kind, number in ((F, 0), (B, 1)):
        for m, pair in enumerate(times):
            end = at + pair[number]
            kernels = (Kernel(at, end, at, name="gemm", blocks=1),)
            times_ns = {"start_ns": at, "end_ns": end, "issue_ns": at, "issued_ns": at}
            segment = Segment(kind=kind, microbatch=m, stage=0, kernels=kernels, **times_ns)
            views.append(
                ActionView(0, segment, [end - at], [0], [0], beside_ns=[0], beside_messages_ns=[0], late_ns=[0])
            )
            at = end
    take_slowdown_out(views, {0: Device("NVIDIA H100 80GB HBM3", 132)}, at - 10**15, Account(), held=True)
    alone = {(v.segment.kind, v.segment.microbatch): sum(v.alone_ns) for v in views}
    measured = pipeline(
        1, len(times), [[alone[F, m] for m in range(len(times))]], [[alone[B, m] for m in range(len(times))]]
    )
    got = _durations(_with_load(measured, KNOWN_LOADS["H100"]), "gpipe")
    assert got == pytest.approx([f for f, _ in times] + [b for _, b in times], rel=3e-3)


def test_kernels_that_are_half_matrix_products_bring_half_the_load() -> None:
    """Load is linear in what is held against thresholds: half of it is the same load at twice the threshold."""
    load = KNOWN_LOADS["H200"]
    half = load.scaled(0.5, 0.5)
    for average in (0.3, 0.8, 1.6, 2.4):
        for step_load in (0.2, 1.2, 1.9):
            assert half.factor(average, 10**6, 1.0, step_load) == pytest.approx(
                load.factor(average / 2, 10**6, 0.5, step_load / 2)
            )
    assert half.start_load == 2 * load.start_load
    assert half.load_of(F) == load.load_of(F)
    assert load.scaled(0.0, 0.0).factor(5.0, 10**6, 5.0, 5.0) == 1.0
