"""DC maps and links from text, and what does not fit a pipeline; expectations are the texts read by hand."""

from __future__ import annotations

import pytest

from tracetool.errors import BadQuantity, BadTopology
from tracetool.model.topology import Topology, parse_dc_map, parse_link
from tracetool.network.link import Link, Path

TWO_DCS = ("dc0", "dc0", "dc1", "dc1")


@pytest.mark.parametrize(
    ("text", "dcs"),
    [
        ("0-1,2-3", TWO_DCS),
        ("0,1,2", ("dc0", "dc1", "dc2")),
        ("0-3", ("dc0",) * 4),
        ("0+2,1+3", ("dc0", "dc1", "dc0", "dc1")),
        ("2-3,0-1", ("dc1", "dc1", "dc0", "dc0")),
        (" 0-1 , 2 ", ("dc0", "dc0", "dc1")),
        ("0-1+4,2-3", ("dc0", "dc0", "dc1", "dc1", "dc0")),
    ],
)
def test_dc_maps(text: str, dcs: tuple[str, ...]) -> None:
    assert parse_dc_map(text) == dcs


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-1,3", "leaves out rank 2"),
        ("1-3", "leaves out rank 0"),
        ("0,4", "leaves out ranks 1, 2, 3"),
        ("0-1,1-2", "rank 1 is in dc0 and in dc1"),
        ("0-2+2,3", "rank 2 is in dc0 and in dc0"),
        ("3-0", "'3-0' runs backwards"),
        ("0-1,5-2", "'5-2' runs backwards"),
        ("", "'' is no range"),
        ("0-1,", "'' is no range"),
        ("0-1;2-3", "'0-1;2-3' is no range"),
        ("a-b", "'a-b' is no range"),
        ("0--1", "'0--1' is no range"),
        ("0-1-2", "'0-1-2' is no range"),
    ],
)
def test_dc_maps_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(BadTopology) as caught:
        parse_dc_map(text)
    assert repr(text) in caught.value.message
    assert said in caught.value.message


def test_a_link_goes_both_ways() -> None:
    assert parse_link("dc0-dc1=25Gbit/s,10ms") == (
        Link("dc0", "dc1", 3_125_000_000, 10_000_000),
        Link("dc1", "dc0", 3_125_000_000, 10_000_000),
    )


@pytest.mark.parametrize("text", ["dc1->dc0=1GB/s,2us", "dc1>dc0=1GB/s,2us", " dc1->dc0 = 1GB/s , 2us "])
def test_an_arrow_goes_one_way(text: str) -> None:
    assert parse_link(text) == (Link("dc1", "dc0", 1_000_000_000, 2_000),)


@pytest.mark.parametrize("text", ["", "dc0-dc1", "dc0=1GB/s,2us", "dc0-dc1:1GB/s,2us", "dc0-dc1=", "dc0-dc0=1GB/s,2us"])
def test_text_that_is_no_link(text: str) -> None:
    with pytest.raises(BadTopology) as caught:
        parse_link(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dc0-dc1=25Gbit/s", "needs a bandwidth and then a latency"),
        ("dc0-dc1=25Gbit/s,10ms,3", "needs a bandwidth and then a latency"),
        ("dc0-dc1=25,10ms", "'25' has no unit"),
        ("dc0-dc1=25Gbit/s,10", "'10' has no unit"),
        ("dc0-dc1=10ms,25Gbit/s", "'ms' in '10ms' is not a unit of a bandwidth"),
        ("dc0-dc1=0Gbit/s,10ms", "'0Gbit/s' is no bandwidth"),
    ],
)
def test_links_with_bad_quantities(text: str, said: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        parse_link(text)
    assert said in caught.value.message
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("payload_bytes", "bandwidth_bytes_per_s", "ns"),
    [
        (16_777_216, 3_125_000_000, 5_368_709),  # 5 368 709.12 ns
        (1, 2_000_000_000, 1),  # half a ns, rounded up
        (0, 1, 0),
        (3, 10**30, 0),
    ],
)
def test_occupancy_is_payload_over_bandwidth(payload_bytes: int, bandwidth_bytes_per_s: int, ns: int) -> None:
    assert Link("a", "b", bandwidth_bytes_per_s, 99).occupancy_ns(payload_bytes) == ns


def test_messages_take_the_link_of_their_direction() -> None:
    there, back = Link("dc0", "dc1", 10, 1), Link("dc1", "dc0", 20, 2)
    topology = Topology(TWO_DCS, (there, back))
    assert topology.path(1, 2) == (there,)
    assert topology.path(2, 1) == (back,)
    assert topology.path(0, 3) == (there,)
    assert topology.path(0, 1) is None
    assert Topology().path(0, 1) is None


def test_places_without_a_link_between_them_cannot_send() -> None:
    one_way = Topology(TWO_DCS, parse_link("dc0->dc1=1GB/s,1ms"))
    with pytest.raises(BadTopology, match="no link dc1-dc0"):
        one_way.path(3, 0)


def test_boundaries_are_where_the_dc_changes() -> None:
    assert Topology(TWO_DCS).boundaries() == (1,)
    assert Topology(("a", "b", "b", "a")).boundaries() == (0, 2)
    assert Topology(("a", "a")).boundaries() == ()
    assert Topology().boundaries() == ()


def test_free_links_keep_the_places_and_cost_nothing() -> None:
    topology = Topology(TWO_DCS, parse_link("dc0-dc1=8bit/s,10s"))
    free = topology.without_delays()
    assert free.dcs == TWO_DCS
    for src, dst in ((1, 2), (2, 1)):
        path = free.path(src, dst)
        assert path is not None
        assert len(path) == 0
        assert (path.latency_ns, path.occupancy_ns(2**40)) == (0, 0)
    assert free.boundaries() == topology.boundaries()
    assert free.path(0, 1) is None
    # A replay over them is the same whatever the links were, and where there are none it is one as measured.
    assert Topology(TWO_DCS, parse_link("dc0-dc1=8Gbit/s,1ms")).without_delays() == free
    assert Topology(TWO_DCS).without_delays() == Topology(TWO_DCS)


def test_a_path_adds_latencies_up_and_goes_at_the_rate_of_its_slowest_link() -> None:
    path = Path((Link("a", "b", 2 * 10**9, 3), Link("b", "c", 10**9, 4), Link("c", "d", 5 * 10**9, 5)))
    assert (path.name, path.latency_ns, path.occupancy_ns(100)) == ("a-b+b-c+c-d", 12, 100)


def test_a_link_of_unlimited_bandwidth_keeps_its_places_and_its_latency() -> None:
    (link, _) = parse_link("dc0-dc1=8bit/s,10s")
    wide = link.widened()
    assert (wide.name, wide.latency_ns, wide.occupancy_ns(2**40)) == ("dc0-dc1", 10**10, 0)
    assert wide != link


def test_a_map_and_links_that_fit_pass() -> None:
    topology = Topology(TWO_DCS, parse_link("dc0-dc1=1GB/s,1ms"))
    assert topology.check(4) is topology
    assert Topology().check(7) == Topology()
    # Inside one DC no link is needed.
    assert Topology(("dc0",) * 3).check(3).boundaries() == ()


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (Topology((), parse_link("dc0-dc1=1GB/s,1ms")), ["which ranks sit in which DC"]),
        (Topology(TWO_DCS[:3], parse_link("dc0-dc1=1GB/s,1ms")), ["0..2", "0..3"]),
        (Topology((*TWO_DCS, "dc1"), parse_link("dc0-dc1=1GB/s,1ms")), ["0..4", "0..3"]),
        (Topology(TWO_DCS, parse_link("dc0-dc2=1GB/s,1ms")), ["dc0-dc2", "no 'dc2'", "dc0, dc1"]),
        (Topology(TWO_DCS), ["rank 1 (dc0)", "rank 2 (dc1)", "no link dc0-dc1"]),
        (Topology(TWO_DCS, parse_link("dc0->dc1=1GB/s,1ms")), ["rank 2 (dc1)", "rank 1 (dc0)", "no link dc1-dc0"]),
        (Topology(("a", "b", "c", "c"), parse_link("a-b=1GB/s,1ms")), ["rank 1 (b)", "rank 2 (c)", "no link b-c"]),
    ],
)
def test_places_that_do_not_fit_four_ranks(topology: Topology, said: list[str]) -> None:
    with pytest.raises(BadTopology) as caught:
        topology.check(4)
    for part in said:
        assert part in caught.value.message


def test_a_link_given_twice_is_refused() -> None:
    twice = (*parse_link("dc0-dc1=1Gbit/s,1ms"), *parse_link("dc0-dc1=9Gbit/s,9ms"))
    with pytest.raises(BadTopology, match="dc0-dc1 is given more than once"):
        Topology(parse_dc_map("0-1,2-3"), twice).check(4)


def test_a_range_beyond_any_pipeline_is_refused() -> None:
    with pytest.raises(BadTopology, match="beyond any pipeline"):
        parse_dc_map("0-9999999999")


def test_a_distance_is_what_light_takes_through_fibre() -> None:
    """5 us per km one way: 299,792 km/s in vacuum, over a refractive index of 1.47 to 1.5."""
    assert parse_link("dc0-dc1=25Gbit/s,800km") == parse_link("dc0-dc1=25Gbit/s,4ms")
    assert parse_link("dc0->dc1=25Gbit/s, 0.5km")[0].latency_ns == 2_500
    with pytest.raises(BadQuantity, match="case matters") as refused:
        parse_link("dc0-dc1=25Gbit/s,800KM")
    assert "800km" in (refused.value.hint or "")
