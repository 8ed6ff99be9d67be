"""What a sweep asks: every combination of schedules, links, limits and microbatches.

The points of a grid that differ in the figures of their links and in memory limits only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, Literal

from tracetool.errors import BadTopology, Option, ScenarioError, together
from tracetool.model.pipeline import LayerOverlap
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.model.topology import Topology, in_two
from tracetool.network.link import Link
from tracetool.schedules import tuning_of
from tracetool.whatif.best import recorded_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracetool.model.pipeline import P2PMode
    from tracetool.model.schedule import Schedule

AS_RECORDED = LayerOverlap()

WarmUp = int | tuple[int, ...] | None
"""Extra forwards of a tuned schedule: per boundary (a number), per pipeline rank, or chosen for every link (None)."""


@dataclass(frozen=True, slots=True)
class Swept:
    """Links of a point.

    Attributes:
        latency_ns: Of the swept ones; None if there are none.
        bandwidth_bytes_per_s: Likewise.
        topology: All of them, and where ranks sit.
    """

    latency_ns: int | None
    bandwidth_bytes_per_s: int | None
    topology: Topology

    def of_all(self, figure: Literal["latency_ns", "bandwidth_bytes_per_s"]) -> int | None:
        """A figure of the swept links; where none was swept of all links there are, None if they differ in it."""
        swept: int | None = getattr(self, figure)
        known: set[int] = {getattr(link, figure) for link in self.topology.links}
        return known.pop() if swept is None and len(known) == 1 else swept


@dataclass(frozen=True, slots=True)
class Ways:
    """Where ranks sit, and between which DCs links are to be laid.

    Attributes:
        topology: The places, and the links that stay as they are.
        between: From where to where links are laid; empty for all that do not stay as they are.
    """

    topology: Topology
    between: tuple[tuple[str, str], ...] = ()

    @property
    def dcs(self) -> tuple[str, ...]:
        """DC of each pipeline rank."""
        return self.topology.dcs

    @property
    def names(self) -> tuple[str, ...]:
        """The DCs, those of other ranks of the job after the pipeline's own."""
        return tuple(dict.fromkeys((*self.dcs, *(dc for _, dc in self.topology.rank_dcs))))

    @property
    def are_apart(self) -> bool:
        """Whether there are several DCs."""
        return len(self.names) > 1

    @property
    def has_free_boundaries(self) -> bool:
        """Whether a link is still to be laid between neighbours, or to a DC that only collectives reach."""
        free = self._free()
        neighbours = [pair for pair in pairwise(self.dcs) if pair[0] != pair[1]]
        beyond = set(self.names) - set(self.dcs)
        return any(pair in free or pair[::-1] in free for pair in neighbours) or any(beyond & set(p) for p in free)

    def at(self, latency_ns: int, bandwidth_bytes_per_s: int) -> Swept:
        """All links, those to be laid with these figures."""
        laid = (Link(src, dst, bandwidth_bytes_per_s, latency_ns) for src, dst in self._free())
        topology = replace(self.topology, links=(*self.topology.links, *laid))
        return Swept(latency_ns, bandwidth_bytes_per_s, topology)

    def _free(self) -> list[tuple[str, str]]:
        names = self.names
        taken = {(link.src_dc, link.dst_dc) for link in self.topology.links}
        free = [(a, b) for a, b in product(names, names) if a != b and (a, b) not in taken]
        return [pair for pair in free if pair in self.between] if self.between else free


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkColumn:
    """Points that differ in links and memory limits only.

    Attributes:
        schedule: Name of the schedule.
        warm_up: Extra forwards, of a tuned schedule.
        scenario: What the points share.
        ways: Where links are laid.
        links: The links of each.
        hbm_bytes: Memory limits; every one goes with all links.
        name: Name of the scenario, where it has one.
        overlap: How layers inside actions run.
    """

    schedule: str
    warm_up: WarmUp
    scenario: Scenario
    ways: Ways
    links: tuple[Swept, ...]
    hbm_bytes: tuple[int | None, ...]
    name: str | None = None
    overlap: LayerOverlap = AS_RECORDED

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.links) * len(self.hbm_bytes)

    def parts(self, most: int) -> list[LinkColumn]:
        """The same points in columns of about so many at most, in order."""
        step = max(1, most // len(self.hbm_bytes))
        return [replace(self, links=self.links[first : first + step]) for first in range(0, len(self.links), step)]


MOST_POINTS = 500_000
"""More do not fit the memory that a sweep may take."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Values to combine; where there are none, the scenario's own holds.

    Attributes:
        schedules: Names, as ``build_schedule`` takes them; if there are none, ``best.default_schedules``.
        scenario: What all points share. Its links stay as they are; the swept figures are of all others between DCs.
        microbatches: Microbatches per step.
        extra_forwards: Warm-ups of tuned schedules.
        bandwidths_bytes_per_s: Of every link between DCs that the scenario does not fix.
        latencies_ns: Of the same links, one way.
        hbm_bytes: Memory limits per rank; None for no limit.
        p2p: How transfers are issued.
        dcs: DC of each pipeline rank; or a topology without links, which also says where other ranks of the job sit
            (which collectives cross DCs).
        name: Name of the scenario, where it has one.
        between: From which DC to which links are swept; empty for all that the scenario does not fix.
        overlaps: How layers inside actions run; as recorded if there are none.
    """

    schedules: tuple[str, ...]
    scenario: Scenario = field(default_factory=Scenario)
    microbatches: tuple[int, ...] = ()
    extra_forwards: tuple[WarmUp, ...] = (None,)
    bandwidths_bytes_per_s: tuple[int, ...] = ()
    latencies_ns: tuple[int, ...] = ()
    hbm_bytes: tuple[int | None, ...] = ()
    p2p: tuple[P2PMode, ...] = ()
    dcs: tuple[tuple[str, ...] | Topology, ...] = ()
    name: str | None = None
    between: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[LayerOverlap, ...] = ()

    @property
    def size(self) -> int:
        """Number of points, where all maps have several DCs."""
        axes = (
            self.microbatches, self.bandwidths_bytes_per_s, self.latencies_ns, self.hbm_bytes, self.p2p, self._maps(),
            self.schedules, self.extra_forwards, self.overlaps,
        )  # fmt: skip
        return prod(max(1, len(axis)) for axis in axes)

    def check_figures(self) -> None:
        """Check that the links to sweep have both figures.

        Raises:
            ScenarioError: If they have only one of them.
        """
        if bool(self.bandwidths_bytes_per_s) != bool(self.latencies_ns):
            has, lacks = ("bandwidths", "latency") if self.bandwidths_bytes_per_s else ("latencies", "bandwidth")
            raise ScenarioError(
                f"{has} of links are given, but no {lacks}: a link is both.",
                hint=f"give both, as in {together(Option.BANDWIDTH('10..800Gbit/s'), Option.LATENCY('2ms'))} (or "
                f"{Option.DISTANCE('400km')})",
            )

    def check(self, ranks: int) -> None:
        """Check the maps and links against a pipeline.

        Raises:
            BadTopology: If a map or a link does not fit it.
            ScenarioError: If the figures of the links do not belong together, or there are too many points.
        """
        self.check_figures()
        if self.size > MOST_POINTS:
            raise ScenarioError(
                f"the grid has up to {self.size:,} points; {MOST_POINTS:,} are the most.",
                hint=f"fewer values per doubling, as in {Option.BANDWIDTH('10..800Gbit/s*2')}",
            )
        ways = [self._ways(places) for places in self._maps()]
        apart = [set(one.names) for one in ways if one.are_apart]
        if self.latencies_ns and not apart:
            raise BadTopology(
                "figures of links are given, but every pipeline rank sits in one DC.",
                hint=f"add {Option.DC}, as in {Option.DC(in_two(ranks))}",
            )
        if self.scenario.topology.seating is not None and (self.latencies_ns or self.dcs):
            raise ScenarioError(
                f"{Option.DC}, {Option.BANDWIDTH} and {Option.LATENCY} are about links between DCs, and a network says "
                "what lies between ranks.",
                hint=f"sweep figures of its tiers: {Option.TIER('dc.bandwidth=100..800Gbit/s')}",
            )
        for link in () if self.scenario.topology.seating is not None else self.scenario.topology.links:
            if apart and not any({link.src_dc, link.dst_dc} <= known for known in apart):
                raise BadTopology(f"link {link.name} joins DCs that no map has together.", hint=f"see {Option.DC}")
        for one in ways:
            self._links(one)[0].topology.check(ranks)
            if self.latencies_ns and one.are_apart and not one.has_free_boundaries:
                raise ScenarioError(
                    f"figures of links are to be swept, but {Option.LINK} fixes every one between the DCs.",
                    hint=f"leave {Option.LINK} out, or {Option.BANDWIDTH} and {Option.LATENCY}",
                )

    def columns(self) -> Iterator[LinkColumn]:
        """Columns of points, in order: each differs in links and memory limits only."""
        hbms = self.hbm_bytes or (self.scenario.hbm_bytes,)
        modes = self.p2p or (self.scenario.p2p,)
        for ways in map(self._ways, self._maps()):
            links = self._links(ways)
            counts = self.microbatches or (self.scenario.microbatches,)
            for m, mode, overlap in product(counts, modes, self.overlaps or (AS_RECORDED,)):
                shared = replace(self.scenario, microbatches=m, p2p=mode, hbm_bytes=None)
                for name in self.schedules:
                    for warm_up in self.extra_forwards if tuning_of(name) is not None else (None,):
                        yield LinkColumn(
                            schedule=name, warm_up=warm_up, scenario=shared, ways=ways, links=links, hbm_bytes=hbms,
                            name=self.name, overlap=overlap,
                        )  # fmt: skip

    def recorded_columns(self, observed: Schedule) -> Iterator[LinkColumn]:
        """Columns of the recorded order in the scenarios of the grid, where it is not among the schedules."""
        for column in replace(self, schedules=(OBSERVED,)).columns():
            name = recorded_schedule(observed, column.scenario.microbatches)
            if name not in self.schedules:
                yield replace(column, schedule=name)

    def _maps(self) -> tuple[Topology, ...]:
        maps = dict.fromkeys(Topology(each) if isinstance(each, tuple) else each for each in self.dcs)
        return tuple(maps) or (self.scenario.topology,)

    @property
    def repeated_maps(self) -> int:
        """How many of the maps say what another one does: they are left out."""
        return len(self.dcs) - len(self._maps()) if self.dcs else 0

    def _ways(self, places: Topology) -> Ways:
        given = self.scenario.topology
        there = replace(given, dcs=places.dcs, rank_dcs=places.rank_dcs, pipelines=places.pipelines)
        ways = Ways(there, self.between)
        if not self.dcs:
            return ways
        fixed = tuple(link for link in given.links if {link.src_dc, link.dst_dc} <= set(ways.names))
        return replace(ways, topology=replace(there, links=fixed))

    def _links(self, ways: Ways) -> tuple[Swept, ...]:
        """Links of all points: latencies outside, bandwidths inside."""
        if not ways.are_apart or not self.latencies_ns:
            return (Swept(None, None, ways.topology),)
        return tuple(ways.at(*figures) for figures in product(self.latencies_ns, self.bandwidths_bytes_per_s))
