"""What-ifs as people write them: quantities with units, links and DC maps in words.

Which pipelines of a job use the same links between data centres (DCs).

How many pipelines a scenario has on its links, in words.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.costs.over_links import crossing_uses, places_of
from tracetool.errors import BadTopology, Option, ScenarioError, checked, named
from tracetool.model.dc_map import parse_map, parse_table
from tracetool.model.pipeline import P2P_MODES
from tracetool.model.scenario import LINK_SHARINGS, Scenario
from tracetool.model.topology import Topology, parse_link
from tracetool.units import format_bits, parse_size_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.action import CollectiveUse
    from tracetool.model.dc_map import DCMap
    from tracetool.model.pipeline import P2PMode
    from tracetool.model.scenario import LinkSharing
    from tracetool.network.file import NetworkChoice
    from tracetool.network.link import Link
    from tracetool.reconstruction import Reconstruction
    from tracetool.reconstruction.capture.coordinates import Coordinates

_DIMENSIONS = ("dp", "tp", "cp", "ep")

_Pair = frozenset[str]


def pipelines_on_links(recording: Reconstruction, topology: Topology) -> int:
    """How many pipelines of the job use the links of the one that is replayed, itself among them.

    Of links between several pairs of DCs, the one that most of them use counts: all are then taken to be as full.
    Pipelines whose messages cross other pairs of DCs, or none, or whose places the map does not tell, do not count.
    Where no messages of the pipeline cross, those are counted whose collectives do as its own do.

    Args:
        recording: The recording, with the places of all ranks that its process groups name.
        topology: Where ranks sit.
    """
    mine = _pairs(topology.dcs)
    places = places_of(recording.pipeline, topology)
    pipelines: dict[int, list[Coordinates]] = defaultdict(list)
    for rank in recording.coordinates:
        if rank.pipeline is not None and rank.pp is not None:
            pipelines[rank.pipeline].append(rank)
    if not mine:
        return max((_joined(use, pipelines, places) for use in crossing_uses(recording.pipeline, topology)), default=1)
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


@checked
def scenario(
    recording: Reconstruction,
    *,
    dc: str | None = None,
    link: str | Sequence[str] = (),
    network: str | Path | NetworkChoice | None = None,
    hbm: str | None = None,
    p2p: P2PMode | None = None,
    microbatches: int | None = None,
    activation: str | None = None,
    static: str | None = None,
    pipelines_on_link: int | None = None,
    link_sharing: LinkSharing = "temporal",
    overlap_ratio: float = 1.0,
    interference: bool = True,
) -> Scenario:
    """Make a what-if from text; its arguments are the options of ``tracetool replay``.

    Args:
        recording: A reconstructed Run: where its ranks sit says which messages and collectives cross data centres.
        dc: Where ranks sit: ``0-1,2-3`` (pipeline ranks), ``dc0=gpu-a*,dc1=gpu-b*`` (hosts) or a CSV file.
        link: One or several links, as in ``dc0-dc1=25Gbit/s,10ms`` (both ways) or ``dc0->dc1=...`` (one way).
        network: Tiers of a network in a TOML file, or as ``read_network`` gives them, instead of ``dc`` and ``link``.
        hbm: Memory limit per rank, as in ``80GiB``.
        p2p: How transfers are issued: one of blocking, grouped, in-order, per-edge, posted-ahead; by default as the
            trace shows.
        microbatches: Microbatches per step; by default as in the trace.
        activation: Size of what one microbatch keeps on a stage, instead of the measured one; with ``static``.
        static: Size of what is allocated when the step starts, instead of the measured one.
        pipelines_on_link: Equal pipelines that share the links; by default those of the traces that use them.
        link_sharing: How they do: temporal (in turn) or spatial (each with its share of the bandwidth).
        overlap_ratio: Time of a forward and a backward that run as one (DualPipe) over the sum of both alone.
        interference: Whether compute slows down beside communication and under sustained load.

    Raises:
        BadQuantity: If a quantity has no unit, or the wrong one.
        BadTopology: If map and links do not fit each other or the pipeline.
        ScenarioError: If a number is out of its range, or ``activation`` and ``static`` are not given together.
        UnknownName: If there is no such p2p mode or way to share links.

    Example:
        >>> tt.scenario(found, dc="0-1,2-3", link="dc0->dc1=25Gbit/s,10ms").topology.dcs
        Traceback (most recent call last):
        tracetool.errors.BadTopology: pipeline rank 2 (dc1) sends to rank 1 (dc0), but no link dc1-dc0 is given.
        >>> tt.scenario(found, hbm="80").hbm_bytes
        Traceback (most recent call last):
        tracetool.errors.BadQuantity: '80' has no unit; a size needs one.
    """
    asked = unplaced_scenario(
        link=link,
        hbm=hbm,
        p2p=p2p,
        microbatches=microbatches,
        activation=activation,
        static=static,
        pipelines_on_link=pipelines_on_link,
        link_sharing=link_sharing,
        overlap_ratio=overlap_ratio,
        interference=interference,
    )
    topology = asked.topology if dc is None else placed(asked.topology, read_dc_map(dc), recording)
    if network is not None:
        from tracetool.network.file import read_network
        from tracetool.whatif.on_network import seated

        refuse_both(dc, asked.topology.links)
        topology = seated(read_network(Path(network)) if isinstance(network, str | Path) else network, recording)
    return replace(asked, topology=topology.check(len(recording.observed.global_ranks)))


def unplaced_scenario(
    *,
    link: str | Sequence[str] = (),
    hbm: str | None = None,
    p2p: str | None = None,
    microbatches: int | None = None,
    activation: str | None = None,
    static: str | None = None,
    pipelines_on_link: int | None = None,
    link_sharing: str = "temporal",
    overlap_ratio: float = 1.0,
    interference: bool = True,
) -> Scenario:
    """A what-if without the places of ranks, for before a recording is read; see :func:`scenario`.

    Raises:
        ScenarioError: As ``scenario``.
        UnknownName: As ``scenario``.
    """
    if (activation is None) != (static is None):
        raise ScenarioError(
            f"{Option.ACTIVATION} and {Option.STATIC} belong together: a peak is both.", hint="give both, or neither"
        )
    for name, count, most in (("microbatches", microbatches, 65_536), ("pipelines_on_link", pipelines_on_link, 1024)):
        if count is not None and not 1 <= count <= most:
            raise ScenarioError(f"{name} is {count}.", hint=f"a whole number from 1 to {most}")
    if not 0 < overlap_ratio <= 1:
        raise ScenarioError(f"overlap_ratio is {overlap_ratio}.", hint="above 0, at most 1 (nothing gained)")
    links = [link] if isinstance(link, str) else link
    return Scenario(
        topology=Topology(links=tuple(direction for text in links for direction in parse_link(text))),
        hbm_bytes=_size(hbm),
        p2p=None if p2p is None else p2p_mode(p2p),
        microbatches=microbatches,
        activation_bytes=_size(activation),
        static_bytes=_size(static),
        overlap_ratio=overlap_ratio,
        interference=interference,
        pipelines=pipelines_on_link,
        link_sharing=named("way to share links", link_sharing, LINK_SHARINGS),
    )


def _size(text: str | None) -> int | None:
    return None if text is None else parse_size_bytes(text)


def p2p_mode(text: str) -> P2PMode:
    """A p2p mode by its name.

    Raises:
        UnknownName: If there is none of this name.
    """
    return named("p2p mode", text, P2P_MODES)


def offered_links(text: str, links: Sequence[Link]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """Links with the figures of another offer: ``100Gbit/s,10ms`` for all of them, or ``dc0-dc1=100Gbit/s,10ms``.

    Args:
        text: The figures; those of several pairs have ``;`` between them.
        links: The links that the offer is for.

    Returns:
        All links then, and those that the offer replaces.

    Raises:
        BadTopology: If it names a link that is none of them, or names none where their figures differ.
        BadQuantity: If bandwidth or latency is missing or has no unit.
    """
    changed = {(link.src_dc, link.dst_dc): link for link in links}
    replaced: dict[tuple[str, str], Link] = {}
    for part in filter(str.strip, text.split(";")):
        if "=" not in part and len({(link.bandwidth_bytes_per_s, link.latency_ns) for link in links}) > 1:
            raise BadTopology(
                f"the offer {text!r} names no link, and theirs have different figures: {links_text(links)}.",
                hint=f"say which one it is for, as in {Option.OFFERS(f'{links[0].name}={part.strip()}')}",
            )
        named = [part] if "=" in part else [f"{src}->{dst}={part.strip()}" for src, dst in changed]
        for link in (link for each in named for link in parse_link(each)):
            if (link.src_dc, link.dst_dc) not in changed:
                raise BadTopology(
                    f"the offer {text!r} is about {link.name}, which is none of the links asked about.",
                    hint=f"first say what there is with {Option.LINK}: {', '.join(link.name for link in links)}",
                )
            replaced[link.src_dc, link.dst_dc] = link
    return tuple((changed | replaced).values()), tuple(replaced.values())


def links_text(links: Sequence[Link]) -> str:
    """Links in short, as ``25 Gbit/s, 10 ms``; those of other figures by name."""
    figures = {(link.src_dc, link.dst_dc): (link.bandwidth_bytes_per_s, link.latency_ns) for link in links}
    named: dict[tuple[int, int], list[str]] = defaultdict(list)
    for (src, dst), of in figures.items():
        both = figures.get((dst, src)) == of
        if not both or f"{dst}-{src}" not in named[of]:
            named[of].append(f"{src}-{dst}" if both else f"{src}->{dst}")
    texts = {of: f"{format_bits(of[0])}, {of[1] / 1e6:g} ms" for of in named}
    return "; ".join(text if len(texts) == 1 else f"{', '.join(named[of])} {text}" for of, text in texts.items())


def way_text(topology: Topology) -> str:
    """What lies between places in short: the network by its name, or the figures of the links."""
    return links_text(topology.links) if topology.seating is None else topology.seating.network.name


def refuse_both(dc: str | None, links: Sequence[Link]) -> None:
    """Refuse places and links beside a network, which says both.

    Raises:
        BadTopology: If one of them is given.
    """
    if dc is not None or links:
        raise BadTopology(
            f"{Option.NETWORK} says where ranks are and what lies between them; {Option.DC} and {Option.LINK} are the "
            "short form of a network with two tiers.",
            hint="give one or the other",
        )


def read_dc_map(text: str) -> DCMap:
    """Read a DC map in any of its forms; a name that ends in .csv is a file.

    Raises:
        BadTopology: If it is malformed, or its file cannot be read.
    """
    if not text.lower().endswith(".csv"):
        return parse_map(text)
    try:
        return parse_table(Path(text).read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadTopology(f"cannot read the DC map {text}: {error}.", hint="give a CSV file in UTF-8") from error


def placed(topology: Topology, dc_map: DCMap, recording: Reconstruction) -> Topology:
    """A topology with the places of the pipeline's ranks, of all others that the map tells of, and who uses its links.

    Raises:
        BadTopology: If the map leaves a rank of the pipeline out.
    """
    positions = {place.rank: place.pp for place in recording.coordinates}
    places = replace(
        topology,
        dcs=dc_map.of_pipeline(recording.observed.global_ranks, recording.hosts),
        rank_dcs=tuple(sorted(dc_map.of_known(positions, recording.hosts).items())),
    )
    return replace(places, pipelines=pipelines_on_links(recording, places))


def sharing_lines(scenario: Scenario) -> list[str]:
    """A line such as ``2 pipelines share the link``; none where one has the links for itself."""
    pipelines = scenario.pipelines_on_link
    if pipelines == 1:
        return []
    pairs = {frozenset((link.src_dc, link.dst_dc)) for link in scenario.topology.links}
    return [f"{pipelines} pipelines share the link{'s' if len(pairs) > 1 else ''}"]
