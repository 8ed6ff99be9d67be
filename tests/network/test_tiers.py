"""Tiers, routes and transfers: what is shared, against figures worked out by hand."""

from __future__ import annotations

import pytest

from tracetool.errors import BadTopology, UnknownName
from tracetool.network.link import SizedLink
from tracetool.network.tiers import Network, Tier

GB = 10**9
HB = Tier("hb", 4, 450 * GB, 1_000)
RAIL = Tier("rail", 16, 50 * GB, 5_000)
DC = Tier("dc", 32, 12 * GB, 10_000_000, shared_by="pair")
NETWORK = Network("two DCs", (HB, RAIL, DC))


def names(network: Network, src: int, dst: int) -> list[str]:
    return [link.name for link in network.path(src, dst)]


def test_a_way_passes_the_innermost_tier_that_holds_both_and_what_is_on_the_way_up_and_down() -> None:
    assert names(NETWORK, 0, 0) == []
    assert names(NETWORK, 0, 3) == ["device0-hb0", "hb0-device3"]
    assert names(NETWORK, 0, 4) == ["device0-rail0", "rail0-device4"]
    assert names(NETWORK, 0, 16) == ["device0-rail0", "dc0-dc1", "rail1-device16"]
    assert NETWORK.path(0, 16).latency_ns == 10_005_000


def test_a_transfer_takes_the_latencies_and_the_narrowest_on_the_way() -> None:
    # 12 MB: 1 ms at 12 GB/s of the link between the DCs, 0.24 ms at 50 GB/s of a port, 0.0267 ms inside.
    assert NETWORK.transfer_ns(12_000_000, 0, 16) == 1_000_000 + 10_005_000
    assert NETWORK.transfer_ns(12_000_000, 0, 4) == 240_000 + 5_000
    assert NETWORK.transfer_ns(12_000_000, 0, 3) == 26_667 + 1_000


def test_an_uplink_has_what_its_ports_have_over_the_oversubscription() -> None:
    network = Network("pods", (HB, Tier("pod", 16, 50 * GB, oversubscription=2)))
    assert names(network, 1, 5) == ["device1-pod0", "hb0-uplink-pod0", "pod0-hb1-uplink", "pod0-device5"]
    assert [link.bandwidth_bytes_per_s for link in network.path(1, 5)] == [50 * GB, 100 * GB, 100 * GB, 50 * GB]


def test_a_group_shares_one_uplink_and_one_connection_fills_a_part_of_a_link() -> None:
    network = Network("nodes", (HB, Tier("fabric", 16, 25 * GB, shared_by="group", connections=4)))
    assert names(network, 1, 5) == ["device1-fabric:device5", "hb0-fabric0", "fabric0-hb1"]
    assert network.transfer_ns(25_000_000, 1, 5) == 4_000_000


def test_a_rail_forwards_through_the_hb_domain_of_the_sender() -> None:
    network = Network("rails", (HB, Tier("rail", 16, 50 * GB, 5_000, rail_only=True)))
    assert names(network, 1, 5) == ["device1-rail0", "rail0-device5"]
    assert names(network, 1, 6) == ["device1-hb0", "hb0-device2", "device2-rail0", "rail0-device6"]
    assert network.path(1, 6).latency_ns == 6_000


def test_measured_sizes_are_met_and_between_them_time_grows_in_a_straight_line() -> None:
    link = SizedLink("a", "b", 10 * GB, 0, ((1_000_000, 200_000), (2_000_000, 300_000), (10_000_000, 1_000_000)))
    assert [link.occupancy_ns(size) for size in (1_000_000, 2_000_000, 10_000_000)] == [200_000, 300_000, 1_000_000]
    assert link.occupancy_ns(1_500_000) == 250_000
    assert link.occupancy_ns(0) == 0
    assert link.occupancy_ns(10) == 100_001  # on the line through the first two: 100 us at no bytes
    assert link.occupancy_ns(20_000_000) == 2_000_000  # at the bandwidth of the largest
    assert link.busy_ns(3_000_000, 2) == 2 * 250_000


@pytest.mark.parametrize(
    ("tiers", "fault", "hint"),
    [
        ((), "joins nothing", "at least one"),
        ((HB, Tier("rail", 10, GB)), "joins 10 devices", "8 or 12 would fit"),
        ((HB, Tier("hb", 8, GB)), "two tiers are called hb", "a name of its own"),
        ((HB, DC, Tier("wan", 64, GB)), "none to wan outside", "outermost"),
        ((Tier("hb", 4, GB, rail_only=True), RAIL), "the innermost", "outside of the HB domain"),
    ],
)
def test_tiers_that_do_not_fit_are_refused_with_what_would(tiers: tuple[Tier, ...], fault: str, hint: str) -> None:
    with pytest.raises(BadTopology) as caught:
        Network("x", tiers)
    assert fault in caught.value.message
    assert hint in (caught.value.hint or "")


def test_devices_and_tiers_that_are_not_there() -> None:
    with pytest.raises(BadTopology, match=r"devices 0\.\.31; there is no device 32"):
        NETWORK.path(0, 32)
    with pytest.raises(UnknownName, match="rial"):
        NETWORK.number("rial")


def test_tiers_that_join_nothing_of_a_job() -> None:
    assert NETWORK.unused(range(16)) == [2]
    assert NETWORK.unused(range(4)) == [1, 2]
    assert NETWORK.unused(range(0, 32, 2)) == NETWORK.unused([5]) == []


def test_without_a_tier_as_many_groups_are_joined_outside() -> None:
    """Of two DCs of four HB domains each two of one are left."""
    assert [(tier.name, tier.size) for tier in NETWORK.without(1).tiers] == [("hb", 4), ("dc", 8)]
    assert NETWORK.without(2).tiers == NETWORK.tiers[:2]
