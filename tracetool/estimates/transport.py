"""What carries a job's collectives and messages, where all that is alike happens at the same time.

Of what several groups or pipelines pass, each has its share.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - a field
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tracetool.errors import ScenarioError
from tracetool.estimates.seats import seats_of
from tracetool.estimates.training import fitting, hops_of
from tracetool.model.topology import Topology
from tracetool.network.collectives import fitting as algorithms_for
from tracetool.network.collectives import pattern, ways_round
from tracetool.network.link import Link

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.estimates.seats import PipelineLine, Seats
    from tracetool.estimates.training import Group, Transport
    from tracetool.network.collectives import Algorithm, Kind
    from tracetool.network.file import NetworkChoice
    from tracetool.network.phases import Phase
    from tracetool.network.placement import Degrees, Dimension
    from tracetool.network.tiers import Network
    from tracetool.replays.flow import Int64s

_ALONG: Mapping[Group, Dimension] = {"tp": "tp", "cp": "cp", "ep": "ep", "gradients": "dp", "expert_gradients": "dp"}
_MARK = 10**15
_APART = 1 + 1e-6
"""Keeps an uplink's mark from being a port's."""


@lru_cache(maxsize=64)
def _marked(network: Network) -> Network:
    """The same with a bandwidth for each sort of resource that marks it: what it carries holds for any figures."""
    tiers = tuple(
        replace(
            tier,
            bandwidth_bytes_per_s=_MARK + 2 * number,
            times=tuple((size, ns * _MARK + number) for size, ns in tier.times),
            oversubscription=tier.oversubscription * _APART if tier.oversubscription > 1 else 1,
        )
        for number, tier in enumerate(network.tiers)
    )
    return replace(network, tiers=tiers)


def _resources(marks: Network, network: Network, whole: Network) -> list[Link]:
    """One of each sort of resource, tier by tier: port or link, uplink, connection.

    Args:
        marks: Tells which there are.
        network: With what one of several has of what they share.
        whole: With what all of them have: a connection is one pair's.
    """
    resources = []
    for number, (mark, tier, own) in enumerate(zip(marks.tiers, network.tiers, whole.tiers, strict=True)):
        resources.append(tier.link("", "", 0))
        if mark.oversubscription > 1:
            resources.append(tier.link("", "", 0, network.inner_size(number) / tier.oversubscription))
        if mark.connections > 1:
            resources.append(own.link("", "", 0, 1 / own.connections))
    return resources


@lru_cache(maxsize=2048)
def _phases(
    network: Network, kind: Kind, algorithm: Algorithm, devices: tuple[int, ...]
) -> tuple[Phase, ...] | ScenarioError:
    """What a collective does, on marked resources, the fullest of each sort alone; or why it cannot."""
    try:
        return tuple(phase.slimmed() for phase in pattern(network, kind, algorithm, devices).phases)
    except ScenarioError as error:
        return error


def _took_ns(
    network: Network,
    kind: Kind,
    algorithm: Algorithm,
    devices: tuple[int, ...],
    links: Mapping[int, Link],
    payload_bytes: int,
) -> int:
    """What a collective takes over links of each sort (``network.collectives.collective_ns``).

    Raises:
        ScenarioError: If the algorithm does not do that, or not with this group.
    """
    took: list[int] = []
    fault: ScenarioError | None = None
    asked = (algorithm,) if algorithm != "auto" else tuple(one for one in algorithms_for(kind) if one != "halving")
    for one in asked:
        phases = _phases(_marked(network), kind, one, devices)
        if isinstance(phases, ScenarioError):
            fault = fault or phases
        else:
            took.append(sum(phase.latency_ns + _busiest_ns(phase, links, payload_bytes) for phase in phases))
    if not took:
        raise fault or ScenarioError(f"nothing does {kind}")
    return min(took)


def _busiest_ns(phase: Phase, links: Mapping[int, Link], payload_bytes: int) -> int:
    busy = (
        links[load.link.bandwidth_bytes_per_s].busy_ns(load.carried_bytes(payload_bytes), float(load.messages))
        for load in phase.loads
    )
    return max(busy, default=0)


@dataclass(frozen=True)
class OverTiers:
    """What carries collectives and messages of a job: see ``training.Transport``.

    Attributes:
        seats: Where its ranks are.
        line: The pipeline that is replayed.
        algorithms: How collectives of a dimension run; by default the fastest way.
        outer_factor: How many times as long messages take on the outermost tier.
        alone: Whether a message has all of what pipelines share for itself and its tensor and context parallel ranks.
        known: What was asked before.
    """

    seats: Seats
    line: PipelineLine
    algorithms: Mapping[Dimension, Algorithm]
    outer_factor: float = 1.0
    alone: bool = False
    known: dict[tuple[object, ...], Any] = field(default_factory=dict, compare=False)

    @property
    def places(self) -> tuple[int, ...]:
        """The group of the outermost tier that each pipeline rank is in, where pipelines share that tier."""
        return self.line.places

    def collective_ns(self, kind: Kind, group: Group, payload_bytes: int) -> int:
        """The slowest of all such groups."""
        groups = self.seats.groups[group]
        key = kind, group, payload_bytes
        if key not in self.known:
            algorithm = self.algorithms.get(_ALONG[group], "auto")
            links = self._links(groups.sharing)
            network = self.seats.network
            self.known[key] = max(
                (_took_ns(network, kind, algorithm, devices, links, payload_bytes) for devices in groups.unlike),
                default=0,
            )
        return int(self.known[key])

    def exchange_ns(self, group: Group, payload_bytes: int) -> int:
        """Between the neighbours that are farthest apart; of what all its ranks pass at once, each has its share."""
        key = "exchange", group, payload_bytes
        if key not in self.known:
            groups = self.seats.groups[group]
            network = self._narrowed(self._divided(self.seats.network, groups.sharing or (1,)))
            took = [0]
            for devices in groups.unlike:
                paths = ways_round(network, devices)
                took += [path.occupancy_ns(payload_bytes) + path.latency_ns for path in paths]
                links, everything = self._links(groups.sharing), payload_bytes * len(devices)
                together = _took_ns(self.seats.network, "alltoall", "auto", devices, links, everything)
                took.append(together // (len(devices) - 1))
            self.known[key] = max(took)
        return int(self.known[key])

    def collective_blocks(self, group: Group) -> int:
        """Those of the outermost tier that such a group reaches over."""
        network = self.seats.network
        reached = (network.crossed(min(devices), max(devices)) or 0 for devices in self.seats.groups[group].unlike)
        return network.tiers[max(reached, default=0)].collective_blocks

    def _links(self, sharing: tuple[int, ...]) -> Mapping[int, Link]:
        """What a group has of each sort of resource, by the bandwidth that marks it."""
        if ("links", sharing) not in self.known:
            whole = self._narrowed(self.seats.network)
            mine = self._divided(whole, sharing) if sharing else whole
            marks = _marked(self.seats.network)
            self.known["links", sharing] = {
                mark.bandwidth_bytes_per_s: link
                for mark, link in zip(_resources(marks, marks, marks), _resources(marks, mine, whole), strict=True)
            }
        links: Mapping[int, Link] = self.known["links", sharing]
        return links

    @staticmethod
    def _divided(network: Network, sharing: Sequence[int]) -> Network:
        tiers = (tier.divided(by) for tier, by in zip(network.tiers, sharing, strict=True))
        return replace(network, tiers=tuple(tiers))

    def message_ns(self, payload_bytes: int, rank: int) -> int:
        """On an idle network, but for the others that send at the same time."""
        return sum(self._hop(payload_bytes, rank))

    def link_ns(self, payload_bytes: int, rank: int) -> tuple[int, int] | None:
        """Over the outermost tier, where its groups share it."""
        places = self.line.places
        if not places or places[rank] == places[(rank + 1) % len(places)]:
            return None
        return self._hop(payload_bytes, rank)

    def hops_ns(self, payload_bytes: int) -> Int64s:
        """All messages of the pipeline, as ``training.hops_of`` has them."""
        key = "hops", payload_bytes
        if key not in self.known:
            self.known[key] = hops_of(self, payload_bytes, len(self.line.hops))
        delays_ns: Int64s = self.known[key]
        return delays_ns

    def _hop(self, payload_bytes: int, rank: int) -> tuple[int, int]:
        hop = self.line.hops[rank]
        sharing = hop.of_one if self.alone else hop.sharing
        # Hops over the same tiers pass the same, but for their ports; over rails also where they are forwarded.
        domain = self.seats.network.tiers[0].size
        key = payload_bytes, hop.crossed, hop.devices[0] % domain == hop.devices[1] % domain, sharing
        if key not in self.known:
            path = self._narrowed(self._divided(self.seats.network, sharing)).path(*hop.devices)
            self.known[key] = path.occupancy_ns(payload_bytes), path.latency_ns
        occupied, latency = self.known[key]
        return occupied, latency

    def _narrowed(self, network: Network) -> Network:
        if self.outer_factor == 1:
            return network
        return replace(network, tiers=(*network.tiers[:-1], network.tiers[-1].narrowed(self.outer_factor)))


@lru_cache(maxsize=4096)
def placed(choice: NetworkChoice, degrees: Degrees) -> tuple[OverTiers, ...]:
    """What carries a job on a network, of each sort of its pipelines: where all send at once, each has its share.

    Raises:
        BadTopology: If it does not fit.
    """
    used = fitting(choice, degrees)
    seated_at = seats_of(used.network, used.place(degrees))
    return tuple(OverTiers(seated_at, line, choice.algorithms) for line in seated_at.lines)


def links_between(over: Transport, payload_bytes: int, tensor: int) -> Topology:
    """Places and links as replay has them, on which a message takes what it is said to take.

    Args:
        over: What carries it.
        payload_bytes: Of a message, over all tensor-parallel ranks.
        tensor: How many of them.
    """
    names = [f"place{place}" for place in over.places]
    links: dict[tuple[str, str], Link] = {}
    for rank, place in enumerate(names):
        other = names[(rank + 1) % len(names)]
        took = over.link_ns(payload_bytes // tensor, rank)
        if took is not None:
            bandwidth = max(1, round(payload_bytes * 1e9 / max(1, took[0])))
            for one, two in ((place, other), (other, place)):
                links.setdefault((one, two), Link(one, two, bandwidth, took[1]))
    return Topology(tuple(names), tuple(links.values()))
