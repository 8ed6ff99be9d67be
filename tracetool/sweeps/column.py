"""The points of a grid that differ in the figures of their links and in memory limits only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Literal

from tracetool.model.topology import Link, Topology

if TYPE_CHECKING:
    from tracetool.model.scenario import Scenario

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
    """

    topology: Topology

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
        return [(a, b) for a, b in product(names, names) if a != b and (a, b) not in taken]


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
    """

    schedule: str
    warm_up: WarmUp
    scenario: Scenario
    ways: Ways
    links: tuple[Swept, ...]
    hbm_bytes: tuple[int | None, ...]
    name: str | None = None

    @property
    def size(self) -> int:
        """Number of points."""
        return len(self.links) * len(self.hbm_bytes)

    def parts(self, most: int) -> list[LinkColumn]:
        """The same points in columns of about so many at most, in order."""
        step = max(1, most // len(self.hbm_bytes))
        return [replace(self, links=self.links[first : first + step]) for first in range(0, len(self.links), step)]
