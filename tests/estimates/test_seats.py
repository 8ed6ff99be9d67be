"""Jobs on a network: what their collectives and messages have where others pass the same."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from helpers.thorough import some

from tracetool.estimates.seats import seats
from tracetool.estimates.transport import OverTiers
from tracetool.network.collectives import collective_ns, fitting
from tracetool.network.placement import Degrees
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    from tracetool.estimates.training import Group
    from tracetool.network.collectives import Algorithm, Kind

GIGABYTE = 10**9
ASKED: tuple[tuple[Kind, Group], ...] = (("allreduce", "gradients"), ("allgather", "tp"), ("alltoall", "ep"))


def two_dcs(**wan: Any) -> Network:
    tiers = Tier("hb", 8, 400 * GIGABYTE), Tier("dc", 32, 50 * GIGABYTE, 5_000)
    outer = replace(Tier("wan", 64, 100 * GIGABYTE, 1_000_000, shared_by="pair"), **wan)
    return Network("two DCs", (*tiers, outer))


def test_messages_of_all_pipelines_share_the_link_between_dcs() -> None:
    """8 tensor-parallel ranks of 4 pipelines cross together: 32 messages on 100 GB/s."""
    over = _over(two_dcs(), "tp,dp,pp", Degrees(tp=8, dp=4, pp=2))
    assert over.line.places == (0, 1)
    assert over.link_ns(10**7, 0) == (32 * 10**7 * 10**9 // (100 * GIGABYTE), 1_005_000)
    alone = replace(over, alone=True, known={})
    assert alone.link_ns(10**7, 0) == (8 * 10**7 * 10**9 // (100 * GIGABYTE), 1_005_000)


def test_a_connection_holds_a_pair_of_devices_back_whoever_shares() -> None:
    """Of 64 connections that fill 100 GB/s a pair has one: 32 messages need 32 of them."""
    over = _over(two_dcs(connections=64), "tp,dp,pp", Degrees(tp=8, dp=4, pp=2))
    link = over.link_ns(10**7, 0)
    assert link is not None
    assert link[0] == 64 * 10**7 * 10**9 // (100 * GIGABYTE)


def test_gradients_of_all_groups_share_the_link_between_dcs() -> None:
    """A ring of two in either DC each: 32 groups of 2 on one link; a rank sends V / 2 twice."""
    over = _over(two_dcs(latency_ns=0), "tp,pp,dp", Degrees(tp=8, dp=2, pp=4))
    assert not over.line.places
    took = over.collective_ns("allreduce", "gradients", 10**9)
    assert took == pytest.approx(32 * 10**9 / (100 * GIGABYTE) * 1e9, rel=1e-4)


def test_ports_of_devices_are_shared_by_nobody() -> None:
    network = replace(two_dcs(), tiers=two_dcs().tiers[:2])
    over = _over(network, "tp,pp,dp", Degrees(tp=4, dp=2, pp=4))
    assert over.message_ns(10**8, 1) == 10**8 * 10**9 // (50 * GIGABYTE) + 5_000


def test_pipelines_that_cross_elsewhere_are_told_apart() -> None:
    """Pipelines of 12 devices in DCs of 32: the third one has its border within."""
    network = replace(two_dcs(), tiers=(Tier("hb", 4, GIGABYTE), *two_dcs().tiers[1:]))
    found = seats(network, "tp,pp,dp", Degrees(tp=4, pp=3, dp=5))
    assert {line.places for line in found.lines} == {(), (0, 0, 1)}


def test_collectives_are_those_of_a_network_with_a_share_of_everything() -> None:
    """Against the formulas of ``collectives`` on tiers of which each group has its part, for drawn jobs."""
    draw = Random(1)  # noqa: S311 - no secret
    seen = set()
    for _ in some(range(120), 50):
        degrees = Degrees(
            tp=draw.choice([2, 4]), cp=draw.choice([1, 2]), ep=draw.choice([1, 2]), dp=draw.choice([4, 8]),
            pp=draw.choice([1, 2]),
        )  # fmt: skip
        if not 8 < degrees.ranks <= 32:
            continue
        shared: dict[str, Any] = draw.choice([{"shared_by": "pair"}, {"shared_by": "group"}, {"oversubscription": 4.0}])
        names = ["tp", "cp", "ep", "dp", "pp"]
        draw.shuffle(names)
        wide = two_dcs(**shared, connections=draw.choice([1, 4])).tiers
        network = Network("small", tuple(replace(tier, size=size) for tier, size in zip(wide, (2, 8, 32), strict=True)))
        over = _over(network, ",".join(names), degrees)
        for kind, group in ASKED:
            groups = over.seats.groups[group]
            algorithms: tuple[Algorithm, ...] = ("auto", *fitting(kind))
            for algorithm in algorithms:
                payload = draw.randrange(10**6, 10**9)
                asked = replace(over, algorithms=dict.fromkeys(("tp", "cp", "ep", "dp"), algorithm), known={})
                tiers = (t.divided(by) for t, by in zip(network.tiers, groups.sharing, strict=True))
                mine = replace(network, tiers=tuple(tiers)) if groups.sharing else network
                took = [collective_ns(mine, kind, algorithm, devices, payload) for devices in groups.unlike]
                assert asked.collective_ns(kind, group, payload) == max(took, default=0)
                seen |= {(kind, by) for by in groups.sharing}
    assert {kind for kind, by in seen if by > 1} == {kind for kind, _ in ASKED}
    assert len(seen) > 7


def _over(network: Network, rule: str, degrees: Degrees) -> OverTiers:
    found = seats(network, rule, degrees)
    return OverTiers(found, found.lines[0], {})
