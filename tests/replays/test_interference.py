"""Replay with slowdown beside communication: who is on whose device when, by hand, and what must always hold.

Stages are of 100 ns forwards that take 150 beside a communication kernel, unless said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import pipeline, places, replayed
from helpers.thorough import drawn
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tracetool.model.action import ActionKind
from tracetool.model.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.pipeline import ActionCost, P2PMode, Pipeline
    from tracetool.model.topology import Topology

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
quick = drawn(120, suppress_health_check=[HealthCheck.too_slow])


def slowed(measured: Pipeline, beside: Callable[[int, ActionKind, int], int]) -> Pipeline:
    """The pipeline with times beside communication by stage, kind and time alone; recorded ones are those.

    That no time alone is what was recorded shows which of them counts.
    """

    def of(stage: int, kind: ActionKind, cost: ActionCost) -> ActionCost:
        contended = beside(stage, kind, cost.duration_ns)
        return replace(cost, duration_ns=contended + 1000, uncontended_ns=cost.duration_ns, contended_ns=contended)

    return replace(
        measured,
        stages=tuple(
            replace(s, costs={k: tuple(of(s.stage, k, c) for c in costs) for k, costs in s.costs.items()})
            for s in measured.stages
        ),
    )


def half_longer(stage: int, kind: ActionKind, alone: int) -> int:
    return alone * 3 // 2 if kind is F else alone


def spans(
    measured: Pipeline, schedule: str, what_if: Scenario, extra_forwards: tuple[int, ...] | None = None
) -> dict[str, tuple[int, int]]:
    ops = replayed(measured, schedule, what_if, extra_forwards=extra_forwards).timeline.computes()
    return {f"{op.stage}{op.kind.value}{op.microbatch}": (op.start_ns, op.end_ns) for op in ops}


@pytest.mark.parametrize("transfer", [0, 30, 60, 150, 151, 300])
def test_a_forward_runs_beside_the_send_of_the_one_before(transfer: int) -> None:
    """In order, GPipe of two ranks: rank 0 sends F0 from 100 on, for as long as the message takes."""
    measured = slowed(pipeline(2, 2, 100, 10, transfer_ns=transfer), half_longer)
    got = spans(measured, "gpipe", Scenario(p2p="in-order"))
    assert got["0F0"] == (0, 100)
    assert got["0F1"] == (100, 200 + transfer // 3 if transfer < 150 else 250)


def test_a_forward_runs_beside_a_send_and_the_receive_that_follows_it() -> None:
    """One extra forward. Rank 0 sends F1 from 210 to 260 (rank 1 posts its receive at 230, after its F0) and then
    receives B0, made at 240 and sent when rank 1 has F1, until 290: 80 ns beside do the work of 53.3."""
    measured = slowed(pipeline(2, 3, 100, 10, transfer_ns=30), half_longer)
    got = spans(measured, "geopipe", Scenario(p2p="in-order"), extra_forwards=(1, 0))
    assert got["1F0"] == (130, 230)
    assert got["0F2"] == (210, 290 + 47)


def test_a_receive_over_a_link_stays_until_the_message_is_there_and_its_send_does_not() -> None:
    """A link of 500 ns. Both sides of F0 meet at 100: its send is over, and rank 0's F1 has nothing beside it.

    Rank 1 runs F0 from 600 to 700, then posts the receive of F1, there at 1200: all of B0 is beside that.
    """
    measured = slowed(pipeline(2, 2, 100, 100), lambda _s, _k, alone: alone * 3 // 2)
    what_if = Scenario(topology=places([1, 1], latency_ns=500), p2p="in-order")
    got = spans(measured, "1f1b", what_if)
    assert got["0F1"] == (100, 200)
    assert got["1F0"] == (600, 700)
    assert got["1B0"] == (700, 850)


@pytest.mark.parametrize(("buffered", "end"), [(True, 310 + 10), (False, 360)])
def test_a_buffered_send_leaves_after_its_copy_another_one_waits_for_its_receive(*, buffered: bool, end: int) -> None:
    """GPipe. Rank 0 has run F0 (0 to 100) and F1 (to 210, beside the send of F0) and sends F1, beside F2 from 210 on.

    Rank 1 runs its F0 from 130 to 1130 and posts the receive of F1 after that: the send waits, and holds SMs for
    all of F2, or is over when its 30 ns are copied. Received is F1 at 1160 either way.
    """
    measured = replace(slowed(pipeline(2, 3, [100, 1000], 10, transfer_ns=30), half_longer), buffered=buffered)
    got = spans(measured, "gpipe", Scenario(p2p="in-order"))
    assert got["0F1"] == (100, 210)
    assert got["0F2"] == (210, end)
    assert got["1F1"][0] == 1160


def test_without_interference_nothing_is_slowed_down() -> None:
    measured = slowed(pipeline(2, 2, 100, 10, transfer_ns=30), half_longer)
    got = spans(measured, "gpipe", Scenario(p2p="in-order", interference=False))
    assert got["0F1"] == (100, 200)
    assert got["1F1"] == (260, 360)  # received from 230 on, when rank 1 is through with F0


def test_costs_without_times_alone_are_taken_as_recorded() -> None:
    plain = pipeline(2, 2, 100, 10, transfer_ns=30)
    for on in (True, False):
        assert spans(plain, "gpipe", Scenario(p2p="in-order", interference=on))["0F1"] == (100, 200)
    # A time alone and none beside: no slowdown is known.
    alone = slowed(plain, lambda *_: 0)
    assert spans(alone, "gpipe", Scenario(p2p="in-order"))["0F1"] == (100, 200)


def test_memory_figures_of_the_scenario_leave_times_alone() -> None:
    measured = slowed(pipeline(2, 3, 100, 10, transfer_ns=30), half_longer)
    plain = Scenario(p2p="in-order")
    sized = replace(plain, activation_bytes=5, static_bytes=7)
    assert spans(measured, "1f1b", sized) == spans(measured, "1f1b", plain)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Pipeline, str, Topology]:
    """Random times alone and beside, and at most one boundary: a link then carries messages in one fixed order."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    times = st.lists(st.lists(st.integers(0, 60), min_size=m, max_size=m), min_size=p, max_size=p)
    percent = draw(st.lists(st.integers(100, 250), min_size=2 * p, max_size=2 * p))
    measured = pipeline(
        p, m, draw(times), draw(times), payload_bytes=draw(st.integers(0, 50)), transfer_ns=draw(st.integers(0, 90))
    )
    measured = replace(
        slowed(measured, lambda s, k, t: t * percent[2 * s + (k is B)] // 100), buffered=draw(st.booleans())
    )
    cut = draw(st.integers(1, p))
    topology = places([cut, p - cut] if cut < p else [p], latency_ns=draw(st.integers(0, 80)))
    return measured, draw(st.sampled_from(["1f1b", "gpipe"])), topology


@quick
@given(questions(), st.sampled_from(["in-order", "per-edge", "posted-ahead"]))
def test_on_is_never_faster_than_off(question: tuple[Pipeline, str, Topology], mode: P2PMode) -> None:
    measured, schedule, topology = question
    on = Scenario(topology=topology, p2p=mode)
    slow = spans(measured, schedule, on)
    fast = spans(measured, schedule, replace(on, interference=False))
    for action, (start, end) in slow.items():
        assert start >= fast[action][0]
        assert end >= fast[action][1]
    assert spans(measured, schedule, on) == slow


@quick
@given(questions())
def test_on_is_equal_to_off_where_nothing_overlaps(question: tuple[Pipeline, str, Topology]) -> None:
    """Blocking batches: no rank computes while it sends or receives."""
    measured, schedule, topology = question
    on = Scenario(topology=topology, p2p="grouped")
    assert spans(measured, schedule, on) == spans(measured, schedule, replace(on, interference=False))


@quick
@given(questions(), st.sampled_from(["in-order", "per-edge", "posted-ahead"]))
def test_on_is_no_slower_than_all_times_beside(question: tuple[Pipeline, str, Topology], mode: P2PMode) -> None:
    """As if a communication kernel were on every device all the time."""
    measured, schedule, topology = question
    worst = replace(
        measured,
        stages=tuple(
            replace(
                s,
                costs={
                    k: tuple(replace(c, uncontended_ns=max(c.uncontended_ns or 0, c.contended_ns or 0)) for c in of)
                    for k, of in s.costs.items()
                },
            )
            for s in measured.stages
        ),
    )
    on = Scenario(topology=topology, p2p=mode)
    limits = spans(worst, schedule, on)
    for action, (start, end) in spans(measured, schedule, on).items():
        assert start <= limits[action][0]
        assert end <= limits[action][1]


@quick
@given(questions(), st.integers(2, 1000))
def test_scaling_all_times_scales_the_result(question: tuple[Pipeline, str, Topology], factor: int) -> None:
    """Exactly without interference; with it, computes that change their pace end at the next whole ns."""
    measured, schedule, topology = question

    def longer(cost: ActionCost) -> ActionCost:
        return replace(
            cost,
            uncontended_ns=(cost.uncontended_ns or 0) * factor,
            contended_ns=(cost.contended_ns or 0) * factor,
        )

    stages = tuple(
        replace(
            s,
            costs={k: tuple(map(longer, of)) for k, of in s.costs.items()},
            forward_payload_bytes=(s.forward_payload_bytes or 0) * factor,
            backward_payload_bytes=(s.backward_payload_bytes or 0) * factor,
            forward_transfer_ns=s.forward_transfer_ns * factor,
            backward_transfer_ns=s.backward_transfer_ns * factor,
        )
        for s in measured.stages
    )
    links = tuple(replace(k, latency_ns=k.latency_ns * factor) for k in topology.links)
    off = Scenario(topology=topology, p2p="in-order", interference=False)
    large = replace(off, topology=replace(topology, links=links))
    scaled = {k: (a * factor, b * factor) for k, (a, b) in spans(measured, schedule, off).items()}
    assert spans(replace(measured, stages=stages), schedule, large) == scaled
