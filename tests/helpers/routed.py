"""Places between which messages pass several links one after another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.model.topology import Topology
from tracetool.network.link import Link, Path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Routed(Topology):
    """DCs with a path for pairs of them, as numbers of links; messages between others take what was measured."""

    routes: tuple[tuple[tuple[str, str], tuple[int, ...]], ...] = ()

    def path(self, src_rank: int, dst_rank: int) -> Path | None:
        passed = dict(self.routes).get((self.dcs[src_rank], self.dcs[dst_rank]))
        if passed is None:
            return None
        return Path(() if self.free else (self.links[number] for number in passed))


def routed(dcs: Sequence[str], links: Sequence[Link], routes: Mapping[tuple[str, str], Sequence[int]]) -> Routed:
    """Ranks in these DCs; the ends of links may be places where no rank sits."""
    places = {end for link in links for end in (link.src_dc, link.dst_dc)} - set(dcs)
    beyond = tuple((1_000_000 + number, place) for number, place in enumerate(sorted(places)))
    return Routed(
        tuple(dcs), tuple(links), beyond, routes=tuple((pair, tuple(numbers)) for pair, numbers in routes.items())
    )


def between_two(sizes: Sequence[int], there: Sequence[tuple[int, int]], payload_bytes: int) -> Routed:
    """Neighbouring DCs with a path of their own each way: occupancies in ns of that payload, and latencies in ns."""
    dcs = [f"dc{number}" for number, size in enumerate(sizes) for _ in range(size)]
    links: list[Link] = []
    routes: dict[tuple[str, str], list[int]] = {}
    for number in range(len(sizes) - 1):
        for src, dst in ((number, number + 1), (number + 1, number)):
            routes[f"dc{src}", f"dc{dst}"] = list(range(len(links), len(links) + len(there)))
            links += [
                Link(f"dc{src}>{dst}", f"hop{hop}", payload_bytes * 10**9 // occupied, latency)
                for hop, (occupied, latency) in enumerate(there)
            ]
    return routed(dcs, links, routes)
