"""Collectives whose group crosses data centres (DCs): rings over the links, in place of what was measured inside one.

Large collectives of NCCL and HCCL run round a ring that enters each DC once, so a ring over k DCs has k edges over
links (two for two DCs, one each way). Of a tensor of V bytes over n ranks, each edge carries V (n - 1) / n in an
all-gather or reduce-scatter, where every part makes n - 1 hops, and twice that in an all-reduce, whose parts make
2 (n - 1) hops (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). Parts move at the same time, so
the link of an edge is occupied for its bytes over its bandwidth; the hops of a part over links pay their latencies one
after another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import ScenarioError
from tracetool.network.collectives import fitting, kind_of, pattern
from tracetool.network.link import Path
from tracetool.network.phases import ROUNDS, between_places, chain, ring
from tracetool.network.seating import FREE_BYTES_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.topology import Topology
    from tracetool.network.collectives import Algorithm
    from tracetool.network.phases import Pattern, Phase
    from tracetool.network.seating import Seating

_CHAINS = ("broadcast", "reduce", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class OverLinks:
    """What a collective takes over links.

    Attributes:
        links: Names of the links it uses.
        occupied_ns: How long it occupies the slowest of them.
        latency_ns: What it waits for their latencies.
        own_ns: What it takes inside a DC.
    """

    links: tuple[str, ...]
    occupied_ns: int
    latency_ns: int
    own_ns: int

    @property
    def duration_ns(self) -> int:
        """Its time if nobody else uses the links."""
        return max(self.own_ns, self.occupied_ns) + self.latency_ns


def places_of(pipeline: Pipeline, topology: Topology) -> dict[int, str]:
    """DC of global ranks, as far as a topology tells: the pipeline's own, and others of the job."""
    own = {profile.rank: dc for profile, dc in zip(pipeline.ranks, topology.dcs, strict=False)}
    return own | dict(topology.rank_dcs)


def crossing_uses(pipeline: Pipeline, topology: Topology) -> tuple[CollectiveUse, ...]:
    """The collectives of a pipeline whose groups sit in several DCs, each kind of them once."""
    if topology.partial or not topology.dcs:
        return ()
    places = places_of(pipeline, topology)
    in_stages = (use for stage in pipeline.stages for uses in stage.collectives.values() for use in uses)
    in_tails = (use for rank in pipeline.ranks for part in rank.tail for use in part.collectives)
    beside = (use for rank in pipeline.ranks for use in rank.overlapped)
    return tuple(
        use
        for use in dict.fromkeys((*in_stages, *beside, *in_tails))
        if len({places[rank] for rank in use.group_ranks if rank in places}) > 1
    )


def pipelines_joined(use: CollectiveUse, ranks: Iterable[int]) -> int:
    """How many pipelines the group of a collective joins, if each has as many of its ranks as one of them.

    Args:
        use: The collective.
        ranks: Global ranks of that one.
    """
    mine = len(set(use.group_ranks).intersection(ranks))
    return max(1, -(-len(use.group_ranks) // max(1, mine)))


def over_links(use: CollectiveUse, topology: Topology, places: Mapping[int, str]) -> OverLinks | None:
    """What a collective takes over the links that its group crosses; None if it crosses none.

    Args:
        use: The collective.
        topology: The links.
        places: DC of global ranks; others are taken to sit with the first of the group.

    Raises:
        BadTopology: If no links lead from one of the DCs to the next.
        ScenarioError: If the size of the collective is unknown, or what it does.
    """
    seats = [places.get(rank) for rank in use.group_ranks]
    dcs = list(dict.fromkeys(dc for dc in seats if dc is not None))
    if topology.partial or len(dcs) < 2:
        return None
    operation = re.sub(r"[^a-z]", "", use.operation.lower())
    if topology.seating is not None:
        return _over_network(use, topology.seating, free=topology.free)
    members = [seats.count(dc) for dc in dcs]
    members[0] += seats.count(None)
    if use.payload_bytes is None:
        raise ScenarioError("its size is unknown")
    if "alltoall" in operation:
        return _taken(use, between_places(dict(zip(dcs, members, strict=True)), topology.route))
    rounds = next((count for name, count in ROUNDS.items() if name in operation), None)
    if rounds is None and not any(operation.endswith(name) for name in _CHAINS):
        raise ScenarioError("how it moves its bytes is not known")
    crossing = [topology.route(src, dst) for src, dst in zip(dcs, [*dcs[1:], dcs[0]], strict=True)]
    if rounds is None:
        # A broadcast or reduce goes down a chain: the ring without its closing edge.
        return _taken(use, chain(crossing[:-1]))
    inside = Path(())
    edges = [edge for way, count in zip(crossing, members, strict=True) for edge in [*[inside] * (count - 1), way]]
    return _taken(use, ring(edges, rounds))


def _taken(use: CollectiveUse, moved: Phase) -> OverLinks:
    occupied = moved.occupied_ns(use.payload_bytes or 0, use.shares)
    return OverLinks(tuple(load.link.name for load in moved.loads), occupied, moved.latency_ns, use.own_ns)


def _over_network(use: CollectiveUse, seating: Seating, *, free: bool) -> OverLinks:
    """What a collective takes on a network, its innermost tier as it was measured.

    What was measured is taken to be a ring (an all-to-all: direct) through the innermost tier alone, as when it was
    recorded; of ways that do less there it counts by its share of the bytes.
    """
    if use.payload_bytes is None:
        raise ScenarioError("its size is unknown")
    if any(rank not in seating.device_of for rank in use.group_ranks):
        raise ScenarioError("where its ranks are on the network is unknown")
    if free:
        return OverLinks((), 0, 0, use.own_ns)
    devices = tuple(sorted(seating.device_of[rank] for rank in use.group_ranks))
    kind = kind_of(use.operation)
    if kind is None:
        raise ScenarioError("how it moves its bytes is not known")
    asked = seating.algorithm(devices)
    tried = [way for way in fitting(kind) if way != "halving"] if asked not in fitting(kind) else [asked]
    ways: list[OverLinks] = []
    fault: ScenarioError | None = None
    for algorithm in tried:
        try:
            ways.append(_by(use, pattern(seating.outside, kind, algorithm, devices), algorithm, seating, devices))
        except ScenarioError as error:
            fault = error
    if not ways and fault is not None:
        raise fault
    return min(ways, key=lambda over: over.duration_ns)


def _by(
    use: CollectiveUse, moved: Pattern, algorithm: Algorithm, seating: Seating, devices: tuple[int, ...]
) -> OverLinks:
    loads = [
        load for phase in moved.phases for load in phase.loads if load.link.bandwidth_bytes_per_s < FREE_BYTES_PER_S
    ]
    links = tuple(dict.fromkeys(load.link.name for load in loads))
    occupied = moved.occupied_ns(use.payload_bytes or 0, use.shares)
    if algorithm not in ("hierarchical", "forwarded"):
        return OverLinks(links, occupied, moved.latency_ns, use.own_ns)
    ranks = len(devices)
    inside = ranks // len({seating.place_of(device) for device in devices})
    if inside == 1:
        return OverLinks(links, occupied, moved.latency_ns, use.own_ns)
    own = round(use.own_ns * ((inside - 1) / inside) / ((ranks - 1) / ranks))
    return OverLinks(links, occupied, moved.latency_ns + own, 0)
