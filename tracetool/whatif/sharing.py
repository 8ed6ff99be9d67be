"""Which pipelines of a job use the same links between data centres (DCs)."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.costs.over_links import crossing_uses, places_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.collective import CollectiveUse
    from tracetool.model.topology import Topology
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.coordinates import Coordinates

_DIMENSIONS = ("dp", "tp", "cp", "ep")

_Pair = frozenset[str]


def pipelines_on_links(found: Reconstruction, topology: Topology) -> int:
    """How many pipelines of the job use the links of the one that is replayed, itself among them.

    Of links between several pairs of DCs, the one that most of them use counts: all are then taken to be as full.
    Pipelines whose messages cross other pairs of DCs, or none, or whose places the map does not tell, do not count.
    Where no messages of the pipeline cross, those are counted whose collectives do as its own do.

    Args:
        found: The recording, with the places of all ranks that its process groups name.
        topology: Where ranks sit.
    """
    mine = _pairs(topology.dcs)
    places = places_of(found.pipeline, topology)
    pipelines: dict[int, list[Coordinates]] = defaultdict(list)
    for rank in found.coordinates:
        if rank.pipeline is not None and rank.pp is not None:
            pipelines[rank.pipeline].append(rank)
    if not mine:
        return max((_joined(use, pipelines, places) for use in crossing_uses(found.pipeline, topology)), default=1)
    counts: Counter[_Pair] = Counter()
    for ranks in pipelines.values():
        ranks.sort(key=lambda rank: rank.pp or 0)
        if all(rank.rank in places for rank in ranks):
            counts.update(mine & _pairs([places[rank.rank] for rank in ranks]))
    return max([1, *counts.values()])


def _pairs(dcs: Sequence[str]) -> set[_Pair]:
    """The pairs of DCs between neighbours."""
    return {frozenset(pair) for pair in pairwise(dcs) if pair[0] != pair[1]}


def _joined(use: CollectiveUse, pipelines: Mapping[int, Sequence[Coordinates]], places: Mapping[int, str]) -> int:
    """How many pipelines have a rank in a collective, or in one like it over the same DCs for other ranks."""
    members = [rank for ranks in pipelines.values() for rank in ranks if rank.rank in use.group_ranks]
    varied = [dim for dim in _DIMENSIONS if len({getattr(rank, dim) for rank in members}) > 1]
    stages = {rank.pp for rank in members}
    alike: dict[tuple[int | None, ...], list[Coordinates]] = defaultdict(list)
    for rank in (rank for ranks in pipelines.values() for rank in ranks if rank.pp in stages):
        alike[tuple(getattr(rank, dim) for dim in _DIMENSIONS if dim not in varied)].append(rank)
    dcs = _dcs(members, places)
    if not varied:
        return max(1, len({rank.pipeline for rank in members}))
    return max(1, len({rank.pipeline for line in alike.values() if _dcs(line, places) == dcs for rank in line}))


def _dcs(ranks: Iterable[Coordinates], places: Mapping[int, str]) -> set[str]:
    return {places[rank.rank] for rank in ranks if rank.rank in places}
