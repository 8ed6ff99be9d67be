"""Why ranks idle: closed forms and cases worked out by hand, and what must hold of every replay."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.engine_cases import schedules
from helpers.idle_checks import check, sums
from helpers.synthetic import BYTE_PER_NS, pipeline, places, replayed, scenario
from helpers.thorough import drawn, spread
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tracetool.causes import idle_by_cause, idle_intervals, idles_of, mean_by_cause
from tracetool.causes.cause import Cause
from tracetool.errors import ScheduleDeadlock, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import P2P_MODES, ActionCost, Pipeline, RankProfile, StageProfile
from tracetool.model.scenario import LINK_SHARINGS, Scenario
from tracetool.model.timeline import Op, Timeline, Transfer, measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import Replayed, replay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.causes.cause import Idle
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule

F, B, LATENCY, OCCUPANCY = 100, 200, 1000, 10


def told(idles: Sequence[Idle], rank: int) -> list[tuple[str, int, int]]:
    return [(idle.cause.value, idle.start_ns, idle.end_ns) for idle in idles if idle.rank == rank]


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (4, 8), (7, 9)])
def test_equal_stages_without_delays_only_fill_and_drain(p: int, m: int, mode: P2PMode) -> None:
    """1F1B's and GPipe's (p-1)(f+b): what is ahead of rank r's first backward, and what is after its last forward."""
    for schedule in ("1f1b", "gpipe"):
        done = replayed(pipeline(p, m, F, B), schedule, scenario(p2p=mode))
        idles = idles_of(done)
        check(done.timeline, idles)
        for rank, found in enumerate(sums(idles, p)):
            down = p - 1 - rank
            fill, drain = (rank * F + down * B, rank * B + down * F) if schedule == "1f1b" else (0, rank * B)
            if schedule == "gpipe":
                fill = rank * F + down * (F + B)
            assert found == {c: t for c, t in ((Cause.FILL, fill), (Cause.DRAIN, drain)) if t}


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=3, max_size=3), min_size=1, max_size=8))
def test_means_of_causes_sum_to_the_mean_of_all(idle: list[list[int]]) -> None:
    """Each within a ns of its own mean; together the bubble as ``measure`` rounds it: sum over ranks // ranks."""
    by_cause = dict(zip(Cause, idle, strict=False))
    means = mean_by_cause(by_cause)
    assert sum(means.values()) == sum(map(sum, idle)) // 3
    assert all(3 * (means[cause] - 1) < sum(ns) for cause, ns in by_cause.items())
    assert all(3 * (means[cause] + 1) > sum(ns) for cause, ns in by_cause.items())


def test_what_gpipe_waits_for_a_link_is_what_the_link_costs_on_every_rank() -> None:
    """Per edge GPipe takes 2 (L + t) longer over one boundary, which no rank computes through: the first forward to
    cross and the first backward to come back."""
    topology = places([1, 3], latency_ns=LATENCY)
    measured = pipeline(4, 8, F, B, payload_bytes=OCCUPANCY)
    over, without = (
        replayed(measured, "gpipe", scenario(links, "posted-ahead")) for links in (topology, topology.without_delays())
    )
    lost = measure(over.timeline).window_ns - measure(without.timeline).window_ns
    assert lost == 2 * (LATENCY + OCCUPANCY)
    for found in sums(idles_of(over), 4):
        assert found[Cause.CROSS_DC_LATENCY] == 2 * LATENCY
        assert found[Cause.CROSS_DC_BANDWIDTH] == 2 * OCCUPANCY
    for before, after in zip(sums(idles_of(over), 4), sums(idles_of(without), 4), strict=True):
        assert {c: before[c] for c in after} == after


@pytest.mark.parametrize(("p", "m", "extra"), [(4, 8, 0), (4, 8, 1), (8, 20, 0), (8, 33, 2), (16, 40, 0)])
def test_ranks_far_from_a_link_wait_for_it_as_long_as_those_beside_it(p: int, m: int, extra: int) -> None:
    """One boundary in the middle, posted ahead: T = (m+p-1)(f+b) + 2c + n max(0, 2c - e(f+b)).

    What L and t add to the step, every rank waits for them, however far away: 2(n+1) L and 2(n+1) t. Computes of e
    extra forwards and their backwards hide n e (f+b) of it.
    """
    topology = places([p // 2, p // 2], latency_ns=LATENCY)
    measured = pipeline(p, m, F, B, payload_bytes=OCCUPANCY)
    extras = (extra,) * (p // 2) + (0,) * (p // 2)
    done = replayed(measured, "geopipe", scenario(topology, "posted-ahead"), extra_forwards=extras)
    depth = p - (p // 2 - 1)
    trips = (m - 1 - depth - extra) // (extra + 2) + 1
    hidden = trips * extra * (F + B)
    window = measure(done.timeline).window_ns
    assert window == (m + p - 1) * (F + B) + 2 * (trips + 1) * (LATENCY + OCCUPANCY) - hidden
    for found in sums(idles_of(done), p):
        crossing = found[Cause.CROSS_DC_LATENCY] + found[Cause.CROSS_DC_BANDWIDTH]
        filling = found.get(Cause.FILL, 0) + found.get(Cause.DRAIN, 0) + found.get(Cause.DEPENDENCY, 0)
        assert crossing + filling == window - m * (F + B)
        if not extra:
            assert found[Cause.CROSS_DC_LATENCY] == 2 * (trips + 1) * LATENCY
            assert found[Cause.CROSS_DC_BANDWIDTH] == 2 * (trips + 1) * OCCUPANCY
            assert filling == (p - 1) * (F + B)


@pytest.mark.parametrize(
    ("schedule", "mode"),
    [
        ("1f1b", "posted-ahead"),
        ("1f1b", "per-edge"),
        ("1f1b", "grouped"),
        ("geopipe", "posted-ahead"),
        ("1f1b", "in-order"),
    ],
)
def test_a_cause_has_about_the_time_that_removing_it_gives(schedule: str, mode: P2PMode) -> None:
    """Unequal computes: the replay without latency is shorter by about its idle time (within 25 %: another path may be
    critical then). Where messages block each other, some of what waits behind them goes with it."""
    random = Random(7)  # noqa: S311
    p, m = 8, 24

    def about(time: int) -> list[list[int]]:
        return [[round(time * random.uniform(0.9, 1.1)) for _ in range(m)] for _ in range(p)]

    topology = places([4, 4], latency_ns=25_000)
    free = replace(topology, links=tuple(replace(link, latency_ns=0) for link in topology.links))
    measured = pipeline(p, m, about(5000), about(13_000), payload_bytes=5000, transfer_ns=100)
    extra = (2,) * 4 + (0,) * 4 if schedule == "geopipe" else None
    over, without = (
        replayed(measured, schedule, scenario(links, mode), extra_forwards=extra) for links in (topology, free)
    )
    gained = measure(over.timeline).window_ns - measure(without.timeline).window_ns
    idle = {cause: sum(of_ranks) / p for cause, of_ranks in idle_by_cause(idles_of(over), p).items()}
    latency = idle[Cause.CROSS_DC_LATENCY]
    if mode == "in-order":
        assert latency < gained < latency + idle[Cause.CHANNEL]
    else:
        assert latency == pytest.approx(gained, rel=0.25)
    assert not sum(idle_by_cause(idles_of(without), p)[Cause.CROSS_DC_LATENCY])


def test_the_way_of_a_message_is_cut_where_it_goes_from_one_part_to_the_next() -> None:
    """One microbatch over one link: computed, occupying it, on its way, and what it takes inside a DC besides."""
    topology = places([1, 1], latency_ns=LATENCY)
    done = replayed(
        pipeline(2, 1, F, B, payload_bytes=OCCUPANCY, transfer_ns=7), "1f1b", scenario(topology, "posted-ahead")
    )
    idles = idles_of(done)
    there = [("cross_dc_bandwidth", 100, 110), ("cross_dc_latency", 110, 1110), ("channel", 1110, 1117)]
    assert told(idles, 1)[:4] == [("fill", 0, 100), *there]
    back = [("cross_dc_bandwidth", 1417, 1427), ("cross_dc_latency", 1427, 2427), ("channel", 2427, 2434)]
    assert told(idles, 0) == [*there, ("fill", 1117, 1417), *back]
    assert told(idles, 1)[4:] == [*back, ("drain", 2434, 2634)]
    held = {(idle.held.kind.value if idle.held else None) for idle in idles if idle.rank == 1}
    assert held == {"F", None}
    assert {idle.transfer.kind.value for idle in idles if idle.cause is Cause.CROSS_DC_LATENCY if idle.transfer} == {
        "F",
        "B",
    }


def test_queueing_for_a_link_is_bandwidth() -> None:
    """Three messages of 500 ns each, made every 100 ns: the link serves one after another."""
    topology = places([1, 1])
    done = replayed(pipeline(2, 3, F, B, payload_bytes=500), "gpipe", scenario(topology, "posted-ahead"))
    assert told(idles_of(done), 1)[:4] == [
        ("fill", 0, 100),
        ("cross_dc_bandwidth", 100, 600),
        ("cross_dc_bandwidth", 700, 1100),
        ("cross_dc_bandwidth", 1200, 1600),
    ]


def test_a_receive_behind_a_blocked_send_waits_for_the_channel() -> None:
    """Blocking GPipe, the middle rank: its send of F0 waits until rank 2 has posted, so it receives F1 late.

    f = 1, 1, 10: rank 2 computes F0 from 2 to 12, and only then posts the receive of F1.
    """
    measured = pipeline(3, 3, [1, 1, 10], 1)
    done = replayed(measured, "gpipe", scenario(p2p="grouped"))
    # Rank 1 runs F0 at 1, F1 at 2; its send of F1 is taken at 12, F2 waits behind it, though sent by rank 0 at 3.
    assert [op.start_ns for op in done.timeline.ops if op.rank == 1][:3] == [1, 2, 12]
    assert told(idles_of(done), 1)[:2] == [("fill", 0, 1), ("channel", 3, 12)]
    behind = idles_of(done)[[i.rank for i in idles_of(done)].index(1) + 1].transfer
    assert behind is not None
    assert (behind.src_rank, behind.dst_rank, behind.microbatch) == (1, 2, 1)
    free = replayed(measured, "gpipe", scenario(p2p="posted-ahead"))
    assert [op.start_ns for op in free.timeline.ops if op.rank == 1][:3] == [1, 2, 3]


def test_what_nothing_explains_is_the_hosts() -> None:
    """Observed: the message is there at 130, the forward starts at 150; the backward starts 5 after its forward."""
    ops = tuple(
        Op(rank, rank, kind, 0, start, duration)
        for rank, kind, start, duration in (
            (0, ActionKind.FORWARD, 0, 100),
            (1, ActionKind.FORWARD, 150, 100),
            (1, ActionKind.BACKWARD, 255, 200),
            (0, ActionKind.BACKWARD, 500, 200),
        )
    )
    transfers = (
        Transfer(ActionKind.FORWARD, 0, 0, 1, 0, 1, None, 110, 5, 120, 130),
        Transfer(ActionKind.BACKWARD, 0, 1, 0, 1, 0, None, 455, 110, 460, 490),
    )
    timeline = Timeline("observed", (0, 1), ops, transfers, (None, None))
    idles = idle_intervals(timeline, Topology())
    check(timeline, idles)
    assert told(idles, 1) == [
        ("fill", 0, 100), ("host", 100, 110), ("channel", 110, 130), ("host", 130, 150), ("host", 250, 255),
        ("channel", 455, 490), ("host", 490, 500), ("drain", 500, 700),
    ]  # fmt: skip
    assert told(idles, 0) == [
        ("host", 100, 110), ("channel", 110, 130), ("host", 130, 150), ("fill", 150, 250), ("host", 250, 255),
        ("fill", 255, 455), ("channel", 455, 490), ("host", 490, 500),
    ]  # fmt: skip


def test_memory_has_what_the_forwards_that_it_cut_off_would_have_filled() -> None:
    """1F1B over a link, two ranks: rank 0 stands at its backwards with later forwards ready from the start.

    One more fills f of the wait for the first backward, and shortens each later round trip, whose gap is 2c, by f + b
    of compute: n = (m-1-k) // 2 + 1 of them less the last, after which no forward is left.
    """
    m, topology = 6, places([1, 1], latency_ns=LATENCY)
    done = replayed(pipeline(2, m, F, B), "1f1b", scenario(topology, "posted-ahead"))
    usual, limited = idles_of(done), idles_of(done, cut_forwards=(1, 1))
    check(done.timeline, limited)
    memory = [idle.duration_ns for idle in limited if idle.rank == 0 and idle.cause is Cause.MEMORY]
    assert memory == [F] + [F + B] * ((m - 1 - 2) // 2 + 1 - 1)
    for cause in (Cause.FILL, Cause.DRAIN, Cause.CHANNEL):
        assert idle_by_cause(limited, 2)[cause][0] <= idle_by_cause(usual, 2)[cause][0]
    # Rank 1 waits for forwards that are not there: no memory would let it run them.
    assert [i for i in limited if i.rank == 1] == [i for i in usual if i.rank == 1]
    assert not any(
        i.cause is Cause.MEMORY for i in idles_of(replayed(pipeline(2, m, F, B), "1f1b"), cut_forwards=(1, 1))
    )


@pytest.mark.parametrize("latency", [100, 350, 700])
@pytest.mark.parametrize(("extra", "cut"), [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)])
@spread("m", [8, 13, 24], 1)
def test_memory_has_no_more_than_the_limit_costs(m: int, extra: int, cut: int, latency: int) -> None:
    """Of every rank at most T(N) - T(N + cut), T(N) = (m+p-1)(f+b) + 2c + n max(0, 2c - N(f+b))."""
    p, k, topology = 4, 3, places([2, 2], latency_ns=latency)

    def closed(depth: int) -> int:
        rounds = (m - 1 - k - depth) // (depth + 2) + 1 if m - 1 >= k + depth else 0
        return (m + p - 1) * (F + B) + 2 * latency + rounds * max(0, 2 * latency - depth * (F + B))

    done = replayed(
        pipeline(p, m, F, B), "geopipe", scenario(topology, "posted-ahead"), extra_forwards=(extra, extra, 0, 0)
    )
    assert measure(done.timeline).window_ns == closed(extra)
    idles = idles_of(done, cut_forwards=(cut, cut, 0, 0))
    check(done.timeline, idles)
    memory = idle_by_cause(idles, p)[Cause.MEMORY]
    assert max(memory) <= max(closed(extra) - closed(extra + cut), cut * F)
    assert memory[2:] == (0, 0)


KINDS = (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


@st.composite
def questions(draw: st.DrawFn) -> tuple[Pipeline, Schedule, Scenario]:
    """Any schedule with random costs, contention, places, links, transfers and pipelines beside it."""
    schedule = draw(schedules())
    shape = schedule.shape
    p, m = shape.ranks, shape.microbatches
    random = draw(st.randoms(use_true_random=False))
    longest = draw(st.sampled_from([1, 4, 1000]))

    def cost() -> ActionCost:
        alone = random.randint(1, longest)
        return ActionCost(alone, uncontended_ns=alone, contended_ns=alone + random.choice([0, 0, random.randint(0, 9)]))

    def drawn() -> int:
        return random.randint(0, longest)

    stages = tuple(
        StageProfile(
            stage, {kind: tuple(cost() for _ in range(m)) for kind in KINDS}, drawn(), drawn(), drawn(), drawn()
        )
        for stage in range(p if shape.is_bidirectional else shape.stages)
    )
    seats = [random.randint(0, 2) for _ in range(p)]
    dcs = tuple(f"dc{seat}" for seat in (sorted(seats) if draw(st.booleans()) else seats))
    latency = random.randint(0, 2 * longest)
    links = tuple(Link(a, b, BYTE_PER_NS, latency) for a in sorted(set(dcs)) for b in sorted(set(dcs)) if a != b)
    buffered = draw(st.booleans())
    mode = draw(st.sampled_from(P2P_MODES))
    measured = Pipeline(stages, tuple(RankProfile(rank=rank) for rank in range(p)), schedule, mode, 0, buffered)
    return (
        measured,
        schedule,
        Scenario(
            topology=Topology(dcs, links),
            overlap_ratio=draw(st.sampled_from([1.0, 0.7])),
            pipelines=1 if shape.is_bidirectional else draw(st.sampled_from([1, 1, 2])),
            link_sharing=draw(st.sampled_from(LINK_SHARINGS)),
        ),
    )


def run(question: tuple[Pipeline, Schedule, Scenario]) -> Replayed | None:
    try:
        return replay(*question)
    except (ScheduleDeadlock, UnsupportedShape):
        return None


@drawn(150, suppress_health_check=[HealthCheck.too_slow])
@given(questions(), st.integers(0, 3))
def test_causes_cover_the_bubble_of_every_replay(question: tuple[Pipeline, Schedule, Scenario], cut: int) -> None:
    done = run(question)
    if done is None:
        return
    idles = idles_of(done, cut_forwards=(cut,) * question[1].shape.ranks if cut else ())
    check(done.timeline, idles)
    metrics = measure(done.timeline)
    by_cause = idle_by_cause(idles, len(metrics.rank_compute_ns))
    for rank, compute in enumerate(metrics.rank_compute_ns):
        assert sum(of_ranks[rank] for of_ranks in by_cause.values()) == metrics.window_ns - compute
    assert not sum(by_cause[Cause.HOST])
    crossing = sum(by_cause[Cause.CROSS_DC_LATENCY] + by_cause[Cause.CROSS_DC_BANDWIDTH])
    assert not crossing or any(transfer.link for transfer in done.timeline.transfers)


@drawn(60, suppress_health_check=[HealthCheck.too_slow])
@given(questions(), st.sampled_from(["per-edge", "posted-ahead"]))
def test_per_edge_without_transfer_times_leaves_nothing_to_the_channel(
    question: tuple[Pipeline, Schedule, Scenario], mode: P2PMode
) -> None:
    measured, schedule, over = question
    stages = tuple(replace(s, forward_transfer_ns=0, backward_transfer_ns=0) for s in measured.stages)
    done = run((replace(measured, stages=stages), schedule, replace(over, p2p=mode)))
    if done is not None:
        assert not any(idle.cause is Cause.CHANNEL for idle in idles_of(done))
