"""Messages that pass several links one after another: closed forms, packets one by one, and what must always hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from random import Random
from typing import TYPE_CHECKING

import pytest
from helpers.engine_cases import ENGINES
from helpers.routed import Routed, between_two, routed
from helpers.synthetic import BYTE_PER_NS, pipeline, scenario, window_ns
from helpers.thorough import drawn, some, spread
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tracetool.model.pipeline import P2P_MODES
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.network.link import Link, Path
from tracetool.replays import replay
from tracetool.replays.compiled import Compiled
from tracetool.replays.scenarios import replay_many
from tracetool.replays.side_by_side import side_by_side
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.timeline import Transfer
    from tracetool.model.topology import Topology

quick = drawn(100, suppress_health_check=[HealthCheck.too_slow])

PAYLOAD = 90
LINKS = ((5, 1), (9, 20), (2, 300))
"""Occupancy of a payload and latency of each, in ns."""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("TRACETOOL_ENGINE", name)
    return name


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(
    ("links", "delay"),
    [
        ((), 0),
        (LINKS[:1], 5 + 1),
        (LINKS[:2], 9 + 1 + 20),
        (LINKS[1:], 9 + 20 + 300),
        (LINKS, 9 + 1 + 20 + 300),
        (LINKS[::-1], 9 + 1 + 20 + 300),
    ],
)
def test_an_idle_path_takes_all_latencies_and_its_slowest_link(
    mode: P2PMode, links: Sequence[tuple[int, int]], delay: int
) -> None:
    """Sum of latencies + bytes / smallest bandwidth, and what the message takes inside a DC; both ways."""
    measured = pipeline(2, 1, [10, 30], [20, 40], payload_bytes=PAYLOAD, transfer_ns=7)
    topology = between_two([1, 1], links, PAYLOAD)
    timeline = replay(measured, measured.observed, scenario(topology, mode)).timeline
    assert [t.end_ns - t.start_ns for t in timeline.transfers] == [delay + 7] * 2
    assert measure(timeline).window_ns == 10 + 30 + 40 + 20 + 2 * (delay + 7)


def side_by_side_over(topology: Topology, first_ns: int) -> tuple[Transfer, ...]:
    """Activations that two-rank pipelines send at the same time, over paths of their own."""
    one = pipeline(2, 1, first_ns, 10**6, payload_bytes=PAYLOAD)
    many, order, _ = side_by_side(one, one.observed, topology, len(topology.dcs) // 2)
    sent = replay(many, order, scenario(topology, "posted-ahead")).timeline.transfers
    return tuple(sorted((t for t in sent if t.dst_stage > t.src_stage), key=lambda t: t.src_rank))


def sharing(own: Sequence[Sequence[tuple[int, int]]], shared: tuple[int, int]) -> Routed:
    """Per pipeline, links of its own (occupancy, latency) around one that all of them pass second; nothing back."""
    links = [Link("x", "y", PAYLOAD * 10**9 // shared[0], shared[1])]
    routes: dict[tuple[str, str], list[int]] = {}
    for number, of_one in enumerate(own):
        at = len(links)
        links += [
            Link(f"{place}{number}", f"{place}-{number}", PAYLOAD * 10**9 // occupied, latency)
            for place, (occupied, latency) in enumerate(of_one)
        ]
        routes[f"a{number}", f"b{number}"] = [at, 0, *range(at + 1, len(links))]
        routes[f"b{number}", f"a{number}"] = []
    return routed([f"{side}{number}" for number in range(len(own)) for side in "ab"], links, routes)


@pytest.mark.usefixtures("engine")
def test_two_messages_that_share_the_second_link_only() -> None:
    """Worked out by hand: links of their own of 5 and 6 ns with 1 ns of latency, the shared one 9 ns and 20 ns.

    Both leave at 10 and have their heads at the shared link at 11. The first has it from 11 to 20 and is there at 40;
    the other from 20 to 29, and is there at 49. A third link of 3 ns and 2 ns, which is its own, is passed meanwhile.
    """
    two = side_by_side_over(sharing([[(5, 1)], [(6, 1)]], (9, 20)), 10)
    assert [(t.start_ns, t.end_ns) for t in two] == [(10, 40), (10, 49)]
    three = side_by_side_over(sharing([[(5, 1), (3, 2)], [(6, 1), (3, 2)]], (9, 20)), 10)
    assert [(t.start_ns, t.end_ns) for t in three] == [(10, 42), (10, 51)]


@pytest.mark.usefixtures("engine")
def test_who_is_nearer_to_a_shared_link_passes_it_first() -> None:
    """The first of two has 8 ns to the shared link, the other 2: that one has it from 12 to 21, and the first after."""
    found = side_by_side_over(sharing([[(5, 8)], [(6, 2)]], (9, 20)), 10)
    assert [t.end_ns for t in found] == [30 + 20, 21 + 20]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_cards_that_together_fill_a_shared_link_do_not_wait_for_each_other(count: int) -> None:
    """As many as the shared link is times as fast: all are there when their own cards have sent all."""
    found = side_by_side_over(sharing([[(9 * count, 4)]] * count, (9, 20)), 10)
    assert {t.end_ns for t in found} == {10 + 9 * count + 4 + 20}


@pytest.mark.usefixtures("engine")
def test_a_blocking_send_holds_its_sender_until_the_slowest_link_has_taken_all() -> None:
    """As ``test_a_blocking_send_over_a_link_...``, with a faster link ahead of the one of 5 ns: 45 again."""
    measured = pipeline(2, 2, [10, 1], [5, 1], payload_bytes=PAYLOAD)
    for links in ([(5, 0)], [(2, 0), (5, 0)], [(5, 0), (1, 0)], [(1, 0), (2, 0), (5, 0)]):
        assert window_ns(measured, "1f1b", scenario(between_two([1, 1], links, PAYLOAD), "grouped")) == 45


@dataclass(frozen=True)
class Packets:
    """A message of equal packets, each stored and forwarded: what links of packets give, without cutting through."""

    count: int

    def arrivals(self, topology: Topology, ready_ns: int) -> list[Fraction]:
        """When the last packet of each pair's message is there; links serve packets in the order they come."""
        free: dict[Link, Fraction] = {}
        paths = [topology.path(rank, rank + 1) or Path() for rank in range(0, len(topology.dcs), 2)]
        waiting = [(Fraction(ready_ns), n, message, 0) for message in range(len(paths)) for n in range(self.count)]
        last = [Fraction(0)] * len(paths)
        while waiting:
            now, n, message, hop = min(waiting)
            waiting.remove((now, n, message, hop))
            if hop == len(paths[message]):
                last[message] = max(last[message], now)
                continue
            link = paths[message][hop]
            begins = max(now, free.get(link, Fraction(0)))
            free[link] = begins + Fraction(link.occupancy_ns(PAYLOAD), self.count)
            waiting.append((free[link] + link.latency_ns, n, message, hop + 1))
        return last


# Seeds make paths and sizes: what few of them show takes all.
@spread("seed", range(25), 8)
def test_packets_one_by_one_take_as_long_but_for_one_packet_per_link(seed: int) -> None:
    """Against a simulator of packets: a message alone, and the later of two where the link they share is slowest.

    A packet is stored before it goes on, so that every link but the slowest adds the time of one.
    """
    random = Random(seed)  # noqa: S311 - reproducible, not secret
    count = 40
    occupied = [random.choice([1, 2, 3, 5, 6, 9, 10, 15]) for _ in range(5)]
    latency = [random.randint(0, 30) for _ in range(5)]
    alone = sharing([list(zip(occupied[1:4], latency[1:4], strict=True))], (occupied[0], latency[0]))
    both = sharing([[(occupied[n], latency[n])] for n in (1, 2)], (30, latency[0]))
    for topology in (alone, both):
        found = max(t.end_ns for t in side_by_side_over(topology, 10))
        stored = max(Packets(count).arrivals(topology, 10))
        assert found <= stored <= found + Fraction(sum(occupied) + 30, count)


@st.composite
def paths(draw: st.DrawFn, most: int = 3) -> list[tuple[int, int]]:
    """Occupancies of the payload, all of them whole numbers of ns, and latencies."""
    occupied = st.sampled_from([1, 2, 3, 5, 6, 9, 10, 15, 18, 30, 45, 90])
    return draw(st.lists(st.tuples(occupied, st.integers(0, 60)), min_size=1, max_size=most))


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[Pipeline, tuple[int, ...]]:
    """Random costs of stages, and how many of them sit in each DC."""
    sizes = tuple(draw(st.lists(st.integers(1, 2), min_size=2, max_size=4)))
    p, m = sum(sizes), draw(st.integers(1, 6))
    times = st.lists(st.lists(st.integers(1, 60), min_size=m, max_size=m), min_size=p, max_size=p)
    measured = pipeline(p, m, draw(times), draw(times), payload_bytes=PAYLOAD, transfer_ns=draw(st.integers(0, 9)))
    return measured, sizes


@quick
@given(pipelines(), paths(2), st.data())
def test_one_more_link_never_shortens_a_step(
    case: tuple[Pipeline, tuple[int, ...]], links: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Between DCs in a row each path is of one pair of ranks, so that nobody else gains by what waits longer."""
    measured, sizes = case
    mode, name = data.draw(st.sampled_from(P2P_MODES)), data.draw(st.sampled_from(["1f1b", "gpipe"]))
    more = list(links)
    more.insert(data.draw(st.integers(0, len(links))), data.draw(paths(1))[0])
    before, after = (
        window_ns(measured, name, scenario(between_two(sizes, each, PAYLOAD), mode)) for each in (links, more)
    )
    assert after >= before


@quick
@given(pipelines(), paths(2), st.data())
def test_a_link_that_takes_no_time_changes_nothing(
    case: tuple[Pipeline, tuple[int, ...]], links: list[tuple[int, int]], data: st.DataObject
) -> None:
    measured, sizes = case
    what_if = scenario(between_two(sizes, links, PAYLOAD), data.draw(st.sampled_from(P2P_MODES)))
    at = data.draw(st.integers(0, len(links)))
    more = list(links)
    more.insert(at, (1, 0))
    topology = between_two(sizes, more, PAYLOAD)
    free = replace(
        topology,
        links=tuple(link.widened() if number % len(more) == at else link for number, link in enumerate(topology.links)),
    )
    order = build_schedule(data.draw(st.sampled_from(["1f1b", "gpipe"])), measured.observed.shape)
    now, then = (replay(measured, order, each) for each in (what_if, replace(what_if, topology=free)))
    assert now.timeline.ops == then.timeline.ops
    ends = [
        {(t.src_stage, t.dst_stage, t.microbatch): t.end_ns for t in each.timeline.transfers} for each in (now, then)
    ]
    assert ends[0] == ends[1]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("mode", P2P_MODES)
def test_many_links_at_once_are_what_each_of_them_is(mode: P2PMode) -> None:
    """``replay_many`` against ``replay``: paths of one to three links, shared and not, and free ones among them."""
    measured = pipeline(4, 6, 30, 50, payload_bytes=PAYLOAD, transfer_ns=3, tail_ns=11, p2p=mode)
    shared = {(a, b): [int(a > b), 2, 3 + int(a > b)] for a in "abc" for b in "abc" if a != b}
    topologies: list[Topology] = [
        topology
        for occupied, latency in some([(o, n) for o in (3, 9, 45) for n in (0, 17, 90)], 2)
        for topology in (
            between_two([2, 2], [(occupied, latency)], PAYLOAD),
            between_two([1, 2, 1], [(5, 1), (occupied, latency), (6, 3)], PAYLOAD),
            routed(
                "abca",
                [Link(f"x{n}", "y", (n + 1) * BYTE_PER_NS * 9 // occupied, latency // (n + 1)) for n in range(5)],
                shared,
            ),
        )
    ]
    topologies[:0] = [topology.without_delays() for topology in topologies[:3]]
    topologies += [topology.without_delays() for topology in topologies[-3:]]
    order = build_schedule("1f1b", PipelineShape(4, 6))
    what_ifs = [scenario(topology, mode) for topology in topologies]
    what_ifs += [replace(what_ifs[-7], pipelines=3, link_sharing=sharing) for sharing in ("spatial", "temporal")]
    for what_if, step in zip(what_ifs, replay_many(measured, order, what_ifs), strict=True):
        metrics = measure(replay(measured, order, what_if).timeline)
        assert (step.window_ns, step.step_ns) == (metrics.window_ns, metrics.step_ns)


@pytest.mark.usefixtures("engine")
def test_a_path_of_one_pair_of_ranks_needs_no_event_loop() -> None:
    order = build_schedule("1f1b", PipelineShape(6, 9))
    for mode in P2P_MODES:
        assert Compiled(order, mode, between_two([2, 2, 2], LINKS, PAYLOAD)).static_plan is not None


def test_a_free_path_has_no_link_and_no_queue() -> None:
    """What waits for nobody else needs no order: also where several pairs of ranks share the links there would be."""
    order = build_schedule("1f1b", PipelineShape(4, 3))
    links = [Link(a, b, 1, 1) for a, b in ("ab", "ba")]
    shared = routed("abab", links, {("a", "b"): [0], ("b", "a"): [1]})
    assert Compiled(order, "posted-ahead", shared).static_plan is None
    free = Compiled(order, "posted-ahead", shared.without_delays())
    assert free.static_plan is not None
    assert {way.path for way in free.ways} == {()}
    assert (free.link_of < 0).all()
