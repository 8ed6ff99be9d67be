"""Parts of networks against the published formulas, and which prices give what was published as saved."""

from __future__ import annotations

import pytest
from helpers.recorded import ROOT

from tracetool.errors import ScenarioError
from tracetool.network.collectives import collective_ns
from tracetool.network.fabric import DomainSize, Kind, PriceFile, build, domain_sizes, read_prices
from tracetool.network.tiers import Network, Tier

N, R = 32_768, 64


@pytest.mark.parametrize(("kind", "tiers"), [("clos3", 3), ("clos2", 2), ("clos1", 1)])
def test_switches_and_links_of_a_clos_network(kind: Kind, tiers: int) -> None:
    """5N/R and 3N, 3N/R and 2N, N/R and N (derivation [D] of the reference, after Al-Fares et al.)."""
    devices = {3: N, 2: R * R // 2, 1: R}[tiers]
    found = build(kind, devices, R, 8)
    assert (found.tiers, found.switches, found.links) == (tiers, (2 * tiers - 1) * devices // R, tiers * devices)
    assert found.transceivers == 2 * found.links
    assert found.switch_ports == found.switches * R


def test_fat_trees_of_a_radix_are_those_of_the_textbook() -> None:
    """k-ary fat trees (Al-Fares et al. 2008): k^3/4 hosts over 5 k^2/4 switches."""
    for k in (4, 8, 48, 64):
        found = build("clos", k**3 // 4, k, 1)
        assert (found.tiers, found.switches) == (3, 5 * k * k // 4)


@pytest.mark.parametrize(
    ("kind", "devices", "domain", "switches"),
    [
        ("clos", 72, 8, 3 + 2),  # 3 leaves of 32 devices, 72 links up to 2 spines
        ("clos", 1_000, 8, 32 + 16),
        ("rail-only", 1_000, 8, 8 * (4 + 2)),  # rails of 125 devices, each with its own leaves and spines
        ("rail-only", 256, 8, 4),  # two rails of 32 on each switch of 64
        ("rail-only", 72, 8, 2),  # seven rails of 9 on one switch
        ("rail-only", 512, 8, 8),
    ],
)
def test_switches_that_are_not_full_are_whole_ones(kind: Kind, devices: int, domain: int, switches: int) -> None:
    """Counted by hand, level by level."""
    assert build(kind, devices, R, domain).switches == switches


def test_what_rail_only_saves() -> None:
    """From 3 tiers to 2 saves 40 % and 33 %, to 1 saves 80 % and 67 %; a rail must fit into as many tiers."""
    clos = build("clos3", N, R, 8)
    rails = {domain: build("rail-only", N, R, domain) for domain in (8, 16, 512)}
    # Rails of 4,096 do not fit two tiers of 64 ports: those join 2,048.
    assert {domain: rail.tiers for domain, rail in rails.items()} == {8: 3, 16: 2, 512: 1}
    assert [1 - rail.switches / clos.switches for rail in rails.values()] == pytest.approx([0, 0.4, 0.8])
    assert [1 - rail.links / clos.links for rail in rails.values()] == pytest.approx([0, 1 / 3, 2 / 3])
    assert build("rail-only", N, 128, 8).tiers == 2


@pytest.mark.parametrize(
    ("domain", "published", "share"), [(16, 0.37, 0.55), (16, 0.38, 0.70), (512, 0.75, 0.625), (512, 0.77, 0.775)]
)
def test_which_prices_give_the_published_savings(domain: int, published: float, share: float) -> None:
    """37 to 77 % (arXiv 2307.12169): where switches make such a share of what the Clos network costs."""
    clos = build("clos3", N, R, domain)
    prices = PriceFile(currency="USD", switch=share / clos.switches, link=(1 - share) / clos.links)
    costs = [build(kind, N, R, domain, prices=prices).cost or 0.0 for kind in ("clos3", "rail-only")]
    assert costs[0] == pytest.approx(1)
    assert 1 - costs[1] / costs[0] == pytest.approx(published, abs=1e-9)


def test_money_and_power_are_sums_of_parts() -> None:
    prices = read_prices(ROOT / "schemas" / "prices" / "example.toml")
    found = build("clos3", N, R, 8, prices=prices)
    assert found.cost == 2560 * 40_000 + 98_304 * (50 + 2 * 700) + N * 1_200
    assert found.power_w == 2560 * 1_500 + 2 * 98_304 * 12 + N * 15
    assert build("clos3", N, R, 8).cost is None


def test_forwarding_costs_the_ratio_of_bandwidths() -> None:
    assert build("clos3", N, R, 8).alltoall_ratio == 0
    """As the pattern of the collective by itself gives it, of a group small enough to be looked at rank by rank."""
    assert 0.082 <= build("rail-only", N, R, 8).alltoall_ratio <= 0.112
    hb, size, payload = Tier("hb", 8, 450 * 10**9), 256, 1 << 30
    straight = Network("clos", (hb, Tier("rail", size, 50 * 10**9)))
    rails = Network("rails", (hb, Tier("rail", size, 50 * 10**9, rail_only=True)))
    direct = collective_ns(straight, "alltoall", "direct", range(size), payload)
    forwarded = collective_ns(rails, "alltoall", "forwarded", range(size), payload)
    assert build("rail-only", size, R, 8).alltoall_ratio == pytest.approx(forwarded / direct - 1, rel=1e-5)


def test_what_cannot_be_built() -> None:
    with pytest.raises(ScenarioError, match="joins 2,048 devices, not 32,768"):
        build("clos2", N, R, 8)
    with pytest.raises(ScenarioError, match="not whole HB domains of 7"):
        build("clos3", N, R, 7)
    with pytest.raises(ScenarioError, match="no halves"):
        build("clos3", N, 63, 8)
    with pytest.raises(ScenarioError, match="more than 6 tiers"):
        build("clos", N, 4, 8)


def test_the_size_after_which_more_gains_little() -> None:
    steps = {1: 1_000_000, 2: 700_000, 4: 650_000, 8: 645_000, 16: 645_000}
    tried, knee = domain_sizes(tuple(steps), steps.__getitem__)
    assert knee == 4
    assert tried[0] == DomainSize(1, 1_000_000)
    # Eight times as many gain 2.5 %: less than 1 % a doubling.
    steps = {1: 1_000_000, 8: 975_000}
    assert domain_sizes(steps, steps.__getitem__)[1] == 1
