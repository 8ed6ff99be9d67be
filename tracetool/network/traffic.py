"""Who sends how many bytes to whom in a step, by the dimension of parallelism that makes them.

Collectives are counted as what rings carry, all-to-alls as what each rank sends every other one: what a pair exchanges
is what one of them hands the other, not what passes on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tracetool.network.placement import DIMENSIONS, parse_dimension

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np

    from tracetool.network.collectives import Kind
    from tracetool.network.link import Link
    from tracetool.network.placement import Dimension, Placement
    from tracetool.network.tiers import Network, Tier

    Int64s = np.ndarray[Any, np.dtype[np.int64]]

MESSAGES = "messages"
"""What pipeline stages send each other: no collective."""

EMBEDDING = "embedding"
"""All-reduces between stages of one pipeline that hold the same weights, and what else they sum together."""

OTHER = "other"
"""Groups along no one dimension."""

_MAKERS = (*DIMENSIONS, EMBEDDING, OTHER)


@dataclass(frozen=True, slots=True)
class Volume:
    """What the groups along a dimension move in a step.

    Attributes:
        kind: The collective, or that it is messages between neighbours.
        payload_bytes: Of all of a step's together: of collectives their tensors, of messages what one neighbour sends.
        along: Dimensions that the groups lie along, if not the one that makes the bytes; of dp without ep, of those
            ranks that hold the same experts.
        stage: The pipeline rank whose groups alone move it; None for all.
        members: Places in each group that alone take part; none for all.
    """

    kind: Kind | str
    payload_bytes: float
    along: tuple[Dimension, ...] = ()
    stage: int | None = None
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Traffic:
    """Bytes of a step by pair and dimension; a pair without traffic has no row.

    Attributes:
        ranks: Ranks of the job.
        src: Sending rank.
        dst: Receiving rank.
        dimension: Number of what makes the bytes, among ``names``.
        payload_bytes: Bytes.
        names: What makes bytes: dimensions of parallelism, shared weights, and anything else.
    """

    ranks: int
    src: Int64s
    dst: Int64s
    dimension: Int64s
    payload_bytes: Int64s
    names: tuple[str, ...] = _MAKERS

    @property
    def silent_ratio(self) -> float:
        """Share of ordered pairs of ranks that exchange nothing."""
        pairs = self.ranks * (self.ranks - 1)
        import numpy as np

        return 1 - len(np.unique(self.src * self.ranks + self.dst)) / pairs if pairs else 1.0

    def by_dimension(self) -> dict[str, int]:
        """Bytes of each dimension that makes any, the most first."""
        import numpy as np

        sums = np.bincount(self.dimension, weights=self.payload_bytes, minlength=len(self.names))
        totals = {name: round(total) for name, total in zip(self.names, sums.tolist(), strict=True) if total}
        return dict(sorted(totals.items(), key=lambda each: -each[1]))

    def tiers(self, network: Network, devices: Sequence[int]) -> Int64s:
        """The tier at which each row's devices meet, by number."""
        import numpy as np

        at = np.asarray(devices, np.int64)
        src, dst = at[self.src], at[self.dst]
        tier_of = np.full(len(src), len(network.tiers) - 1, np.int64)
        for number, tier in reversed(list(enumerate(network.tiers))):
            tier_of[src // tier.size == dst // tier.size] = number
        return tier_of

    def met_bytes(self, network: Network, devices: Sequence[int]) -> list[int]:
        """Bytes of pairs that meet at each tier, from the inside out."""
        sums = [0] * len(network.tiers)
        for number, size in zip(self.tiers(network, devices).tolist(), self.payload_bytes.tolist(), strict=True):
            sums[number] += size
        return sums

    def busiest(self, network: Network, devices: Sequence[int]) -> list[Used]:
        """Every resource that bytes pass, the one first that they occupy longest."""
        import numpy as np

        keys, first = np.unique(self.src * self.ranks + self.dst, return_inverse=True)
        sums = np.zeros((len(keys), len(self.names)))
        np.add.at(sums, (first, self.dimension), self.payload_bytes)
        used: dict[Link, list[float]] = {}
        tier_of: dict[Link, Tier] = {}
        for key, of_pair in zip(keys.tolist(), sums.tolist(), strict=True):
            for link, tier in network.passed(devices[key // self.ranks], devices[key % self.ranks]):
                tier_of[link] = tier
                so_far = used.setdefault(link, [0.0] * len(self.names))
                for number, size in enumerate(of_pair):
                    so_far[number] += size
        resources = [
            Used(link, tier_of[link].name, dict(zip(self.names, map(round, sizes), strict=True)))
            for link, sizes in used.items()
        ]
        return sorted(resources, key=lambda each: (-each.busy_ns, each.link.name))


@dataclass(frozen=True, slots=True)
class Used:
    """What passes a resource in a step.

    Attributes:
        link: The resource.
        tier: Of which tier it is.
        by_dimension: Bytes by what makes them.
    """

    link: Link
    tier: str
    by_dimension: Mapping[str, int]

    @property
    def payload_bytes(self) -> int:
        """Bytes of all."""
        return sum(self.by_dimension.values())

    @property
    def busy_ns(self) -> int:
        """How long its whole bandwidth would need for them."""
        return round(self.payload_bytes * 10**9 / self.link.bandwidth_bytes_per_s)

    @property
    def mostly(self) -> str:
        """The dimension that makes most of them."""
        return max(self.by_dimension, key=lambda name: self.by_dimension[name])


Row = tuple[int, int, str, float]
"""Sending and receiving rank, dimension, bytes."""


def of_rows(ranks: int, rows: Iterable[Row]) -> Traffic:
    """Traffic from rows; those of the same pair and dimension are added up."""
    import numpy as np

    numbers = {name: number for number, name in enumerate(_MAKERS)}
    sums: dict[tuple[int, int, int], float] = {}
    for src, dst, name, size in rows:
        key = src, dst, numbers.get(name, numbers[OTHER])
        sums[key] = sums.get(key, 0.0) + size
    columns = np.array([(*key, round(size)) for key, size in sums.items() if src != dst or key[0] != key[1]], np.int64)
    return Traffic(ranks, *columns.reshape(-1, 4).T)


def edges(kind: Kind | str, group: Sequence[int], payload_bytes: float) -> list[tuple[int, int, float]]:
    """What members of a group send each other in a collective: sender, receiver, bytes.

    Args:
        kind: The collective; messages go both ways between neighbours.
        group: Its ranks in order.
        payload_bytes: Of the whole tensor, or of what one neighbour sends another.
    """
    ranks = len(group)
    if ranks < 2:
        return []
    if kind == MESSAGES:
        there = [(a, b, payload_bytes) for a, b in pairwise(group)]
        return [*there, *((b, a, size) for a, b, size in there)]
    if kind == "alltoall":
        return [(a, b, payload_bytes / ranks) for a in group for b in group if a != b]
    if kind in ("broadcast", "reduce"):
        return [(a, b, payload_bytes) for a, b in pairwise(group)]
    rounds = 2 if kind == "allreduce" else 1
    carried = rounds * (ranks - 1) / ranks * payload_bytes
    return [(a, b, carried) for a, b in zip(group, [*group[1:], group[0]], strict=True)]


def of_job(
    placement: Placement, volumes: Mapping[Dimension, Sequence[Volume]] | Mapping[str, Sequence[Volume]]
) -> Traffic:
    """Traffic of a job whose groups along the same dimensions all move the same.

    Args:
        placement: The job.
        volumes: What makes bytes, and what the groups move in a step; by default they lie along the dimension of that
            name.
    """
    rows: list[Row] = []
    for name, moved in volumes.items():
        for volume in moved:
            for whole in _groups(placement, name, volume):
                group = [whole[at] for at in volume.members or range(len(whole))]
                if volume.kind != MESSAGES:  # rings go through devices in their own order, as in ``collectives``
                    group.sort(key=placement.devices.__getitem__)
                rows += [(a, b, name, size) for a, b, size in edges(volume.kind, group, volume.payload_bytes)]
    return of_rows(placement.degrees.ranks, rows)


def _groups(placement: Placement, name: str, volume: Volume) -> list[tuple[int, ...]]:
    groups = placement.groups(*(volume.along or (parse_dimension(name),)))
    if volume.stage is None:
        return groups
    each = placement.degrees.ranks // placement.degrees.pp
    return [group for group in groups if group[0] // each == volume.stage]
