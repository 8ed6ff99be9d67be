"""Where pipeline ranks sit and what connects the places.

Today the only tier is the data centre (DC); a rank pair without a declared link between them moves
bytes as fast as was measured. Links may also join single pairs of ranks (``between_ranks``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.errors import BadQuantity, BadTopology, Option
from tracetool.network.link import Link, Path
from tracetool.units import parse_bandwidth_bytes_per_s, parse_latency_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracetool.network.seating import Seating


@dataclass(frozen=True, slots=True)
class Topology:
    """DC of each pipeline rank, and the links between DCs.

    Attributes:
        dcs: DC name of each pipeline rank; empty when nothing was said (one DC).
        links: One per direction.
        rank_dcs: (global rank, DC name) of ranks of the job, as far as a map tells: which collectives cross DCs.
        partial: Whether places that no link joins exchange messages as fast as was measured; otherwise a message
            between them is an error.
        pipelines: Pipelines of the job that use the links, the one that is replayed among them.
        free: Whether what crosses DCs passes none of the links, and so takes no time there.
        seating: Where ranks are on a network, which says instead what lies between them; DCs are its innermost groups
            then, and links what neighbours of the pipeline pass.
    """

    dcs: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    rank_dcs: tuple[tuple[int, str], ...] = ()
    partial: bool = False
    pipelines: int = 1
    free: bool = False
    seating: Seating | None = None

    def path(self, src_rank: int, dst_rank: int) -> Path | None:
        """The links that a message between two pipeline ranks passes, or None where it takes what was measured.

        Raises:
            BadTopology: If they sit in different DCs and no link joins them in that direction.
        """
        if not self.dcs or self.dcs[src_rank] == self.dcs[dst_rank]:
            return None
        if self.seating is not None:
            figures = _by_name(self.links)
            way = self.seating.path(src_rank, dst_rank) or ()
            return self._passed(tuple(figures.get(link.name, link) for link in way))
        src, dst = self.dcs[src_rank], self.dcs[dst_rank]
        link = self._link(src, dst)
        if link is None and not self.partial:
            raise BadTopology(
                f"pipeline rank {src_rank} ({src}) sends to rank {dst_rank} ({dst}), but no link {src}-{dst} is given.",
                hint=self._link_hint(src, dst),
            )
        return None if link is None else self._passed((link,))

    def route(self, src: str, dst: str) -> Path:
        """The links that a collective passes from one DC to another, over as few others as there may be.

        Raises:
            BadTopology: If there are none.
        """
        ways: dict[str, tuple[Link, ...]] = {src: ()}
        reached = [src]
        for place in reached:
            for link in self.links:
                if link.src_dc == place and link.dst_dc not in ways:
                    ways[link.dst_dc] = (*ways[place], link)
                    reached.append(link.dst_dc)
        if dst not in ways:
            raise BadTopology(
                f"a collective crosses from {src} to {dst}, but no link {src}-{dst} is given.",
                hint=self._link_hint(src, dst),
            )
        return self._passed(ways[dst])

    def _passed(self, links: tuple[Link, ...]) -> Path:
        return Path(() if self.free else links)

    def _link(self, src: str, dst: str) -> Link | None:
        return next((link for link in self.links if link.src_dc == src and link.dst_dc == dst), None)

    def _link_hint(self, src: str, dst: str) -> str:
        """What links DCs between which one is missing, and all neighbours in the pipeline, in both directions."""
        pairs = [(src, dst), *(pair for pair in pairwise(self.dcs) if pair[0] != pair[1])]
        more = []
        for one, other in dict.fromkeys((min(pair), max(pair)) for pair in pairs):
            there, back = self._link(one, other), self._link(other, one)
            if there is None:
                more.append(f"{one}{'->' if back else '-'}{other}=25Gbit/s,10ms")
            elif back is None:
                more.append(f"{other}->{one}=25Gbit/s,10ms")
        given = [f"{link.src_dc}->{link.dst_dc}={link.figures}" for link in self.links]
        return f"add {Option.LINK.more(given, more)}"

    def boundaries(self) -> tuple[int, ...]:
        """Pipeline ranks r for which r and r + 1 sit in different DCs; of a partial map those that a link joins."""
        apart = (r for r in range(len(self.dcs) - 1) if self.dcs[r] != self.dcs[r + 1])
        return tuple(r for r in apart if not self.partial or self._joins(r, r + 1) or self._joins(r + 1, r))

    def _joins(self, src_rank: int, dst_rank: int) -> bool:
        return self.path(src_rank, dst_rank) is not None

    def without_delays(self) -> Topology:
        """The same places and links, none of which anything passes: equal whatever the figures of the links are."""
        return replace(self.without_figures(), free=bool(self.links) or self.seating is not None)

    def without_figures(self) -> Topology:
        """The same places and links, equal whatever the figures of the links are."""
        links = tuple(Link(link.src_dc, link.dst_dc, 1, 0) for link in self.links)
        seating = None if self.seating is None else self.seating.bare()
        return replace(self, links=links, free=False, seating=seating)

    def beside(self, pipelines: int) -> Topology:
        """The places of so many pipelines one after another.

        Raises:
            BadTopology: If the network has not as many that share what this one passes.
        """
        if self.seating is None or pipelines == 1:
            return replace(self, dcs=self.dcs * pipelines)
        known = len(self.seating.pipelines)
        if pipelines > known:
            raise BadTopology(
                f"{pipelines} pipelines are to share links, and by its placement {known} of the job "
                f"{'does' if known == 1 else 'do'}.",
                hint=f"{Option.PIPELINES_ON_LINK(known)} or less",
            )
        seating = self.seating.beside(pipelines)
        return replace(self, dcs=tuple(map(seating.place_of, seating.devices)), seating=seating)

    def changed(self, change: Callable[[Link], Link], part: str | None = None) -> Topology:
        """The same places with other links, for messages and collectives alike.

        Args:
            change: What each link becomes.
            part: The pair of DCs, or the tier, whose links are changed; None for all.
        """
        if self.seating is not None:
            return self._seated(self.seating.changed(change, part))
        return replace(
            self, links=tuple(change(link) if part in {None, self.part(link)} else link for link in self.links)
        )

    def changeable(self, part: str | None = None) -> tuple[Link, ...]:
        """What ``changed`` changes: the links, or one with the figures of each tier outside of the innermost.

        Args:
            part: The pair of DCs, or the tier; None for all.
        """
        if self.seating is not None:
            return tuple(
                tier.link(tier.name, tier.name, tier.latency_ns)
                for tier in self.seating.network.tiers[1:]
                if part in {None, tier.name}
            )
        return tuple(link for link in self.links if part in {None, self.part(link)})

    @property
    def is_joined(self) -> bool:
        """Whether links were given, or a network."""
        return bool(self.links) or self.seating is not None

    def parts(self) -> list[str]:
        """The pairs of DCs that links join, or the tiers outside of the innermost one."""
        if self.seating is not None:
            return [tier.name for tier in self.seating.network.tiers[1:]]
        return list(dict.fromkeys(map(self.part, self.links)))

    def divided(self, pipelines: int) -> Topology:
        """The same places with each pipeline's share of what so many of them share."""
        if self.seating is not None:
            return self._seated(self.seating.divided(pipelines))
        return self.changed(lambda link: link.at(link.bandwidth_bytes_per_s // pipelines))

    def _seated(self, seating: Seating) -> Topology:
        return replace(self, seating=seating, links=tuple(seating.resources))

    def part(self, link: Link) -> str:
        """What a link is a part of: a pair of DCs, as ``dc0-dc1``, or a tier."""
        tier = None if self.seating is None else self.seating.tier_names.get(link.name)
        return "-".join(sorted((link.src_dc, link.dst_dc))) if tier is None else tier

    def lines(self) -> list[str]:
        """The links as texts, or the tiers of the network."""
        return [f"link {link}" for link in self.links] if self.seating is None else self.seating.lines()

    def check(self, ranks: int) -> Topology:
        """Check the map and the links against a pipeline.

        Raises:
            BadTopology: If a rank has no DC, a DC has no rank, or DCs that exchange messages have no link.
        """
        if not self.dcs:
            if self.links:
                raise BadTopology(
                    "links between DCs are given, but not which ranks sit in which DC.",
                    hint=f"add {Option.DC}, as in {Option.DC(in_two(ranks))}",
                )
            return self
        if len(self.dcs) != ranks:
            raise BadTopology(
                f"the DC map covers pipeline ranks 0..{len(self.dcs) - 1}, the pipeline has ranks 0..{ranks - 1}.",
                hint=f"name every rank once, as in {Option.DC(in_two(ranks))} for two DCs",
            )
        if self.seating is not None:
            return self
        known = set(self.dcs) | {dc for _, dc in self.rank_dcs}
        pairs = [(link.src_dc, link.dst_dc) for link in self.links]
        for pair in pairs:
            if pairs.count(pair) > 1:
                raise BadTopology(f"the link {'-'.join(pair)} is given more than once.", hint="give it once")
        for link in self.links:
            for dc in (link.src_dc, link.dst_dc):
                if dc not in known:
                    raise BadTopology(
                        f"link {link.name}: there is no {dc!r}; the DC map names {', '.join(sorted(known))}.",
                        hint=_joined_hint(sorted(known), ranks),
                    )
        for rank in self.boundaries():
            self.path(rank, rank + 1)
            self.path(rank + 1, rank)
        return self


def _joined_hint(known: Sequence[str], ranks: int) -> str:
    """How to name a link between DCs that there are."""
    if len(known) < 2:
        return f"all ranks are in one DC: part them, as in {Option.DC(in_two(ranks))}"
    return f"name two of them, as in {Option.LINK(f'{known[0]}-{known[1]}=25Gbit/s,10ms')}"


@lru_cache(maxsize=256)
def _by_name(links: tuple[Link, ...]) -> dict[str, Link]:
    return {link.name: link for link in links}


def in_two(ranks: int) -> str:
    """A map of so many ranks in two DCs, as an example."""
    half = max(1, ranks // 2)
    halves = ((0, half - 1), (half, ranks - 1)) if ranks > 1 else ((0, 0),)
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in halves)


@dataclass(frozen=True, slots=True)
class RankLink:
    """A link between two pipeline ranks, the same in both directions."""

    first: int
    second: int
    bandwidth_bytes_per_s: int
    latency_ns: int


def between_ranks(ranks: int, links: Iterable[RankLink]) -> Topology:
    """Links between single pairs of pipeline ranks; all other pairs are as measured.

    Raises:
        BadTopology: If a link ends at no rank of the pipeline, or joins a rank to itself.
    """
    directions = []
    for link in links:
        pair = link.first, link.second
        if link.first == link.second or not all(0 <= end < ranks for end in pair):
            raise BadTopology(
                f"a link joins pipeline ranks {link.first} and {link.second}, the pipeline has ranks 0..{ranks - 1}."
            )
        directions += [
            Link(f"rank{src}", f"rank{dst}", link.bandwidth_bytes_per_s, link.latency_ns)
            for src, dst in (pair, pair[::-1])
        ]
    if not directions:
        return Topology()
    return Topology(tuple(f"rank{rank}" for rank in range(ranks)), tuple(directions), partial=True).check(ranks)


_MOST_RANKS = 65_536
_RANGE = re.compile(r"^(\d+)(?:-(\d+))?$")


def parse_dc_map(text: str) -> tuple[str, ...]:
    """Read ``0-1,2-3``: ranges of pipeline ranks, one per DC, named dc0, dc1 ...; ``+`` joins ranges.

    ``0-1,2-3`` puts ranks 0 and 1 in dc0, 2 and 3 in dc1; ``0+2,1+3`` interleaves them.

    Returns:
        The DC name of each pipeline rank.

    Raises:
        BadTopology: If the text is malformed, or a rank is named twice or left out.
    """
    seats: dict[int, str] = {}
    for number, part in enumerate(text.split(",")):
        for piece in part.split("+"):
            match = _RANGE.match(piece.strip())
            if match is None:
                raise BadTopology(
                    f"DC map {text!r}: {piece!r} is no range of ranks.", hint=f"write it as in {Option.DC('0-1,2-3')}"
                )
            first, last = int(match[1]), int(match[2] or match[1])
            if last >= _MOST_RANKS:
                raise BadTopology(f"DC map {text!r}: rank {last} is beyond any pipeline ({_MOST_RANKS} ranks).")
            if last < first:
                raise BadTopology(f"DC map {text!r}: the range {piece!r} runs backwards.")
            for rank in range(first, last + 1):
                if rank in seats:
                    raise BadTopology(f"DC map {text!r}: rank {rank} is in {seats[rank]} and in dc{number}.")
                seats[rank] = f"dc{number}"
    gaps = sorted(set(range(max(seats) + 1)) - set(seats))
    if gaps:
        raise BadTopology(
            f"DC map {text!r} leaves out rank{'s' if len(gaps) > 1 else ''} {', '.join(map(str, gaps))}.",
            hint="name every pipeline rank once",
        )
    return tuple(seats[rank] for rank in range(len(seats)))


_LINK = re.compile(r"^\s*(?P<src>[^\s=>-]+)(?P<arrow>->|-|>)(?P<dst>[^\s=>-]+)\s*=\s*(?P<rest>.+)$")


def parse_link(text: str) -> tuple[Link, ...]:
    """Read ``dc0-dc1=25Gbit/s,10ms`` (both directions) or ``dc0->dc1=25Gbit/s,10ms`` (that one).

    Instead of a latency the second figure may be a distance, as in ``dc0-dc1=25Gbit/s,800km``: 5 us per km one way.

    Raises:
        BadTopology: If the form is wrong.
        BadQuantity: If bandwidth or latency is missing or has no unit.
    """
    match = _LINK.match(text)
    if match is None:
        raise BadTopology(f"{text!r} is no link.", hint=f"write it as in {Option.LINK('dc0-dc1=25Gbit/s,10ms')}")
    quantities = [part.strip() for part in match["rest"].split(",")]
    if len(quantities) != 2:
        raise BadQuantity(
            f"link {text!r} needs a bandwidth and then a latency.",
            hint=f"write it as in {Option.LINK('dc0-dc1=25Gbit/s,10ms')} (or 800km instead of the latency)",
        )
    if "=" in quantities[1] and "/" in quantities[1]:
        raise BadQuantity(
            f"link {text!r} has a price, and what is asked here takes none.",
            hint="leave it off here; tracetool advise, tracetool report and tracetool.decide take prices",
        )
    bandwidth = parse_bandwidth_bytes_per_s(quantities[0])
    latency = parse_latency_ns(quantities[1])
    src, dst = match["src"], match["dst"]
    if src == dst:
        raise BadTopology(f"link {text!r} joins {src} to itself.")
    there = Link(src, dst, bandwidth, latency)
    return (there,) if ">" in match["arrow"] else (there, Link(dst, src, bandwidth, latency))
