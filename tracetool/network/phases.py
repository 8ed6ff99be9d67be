"""What happens at the same time in a collective, and how long the busiest resource is occupied by it.

Everything is in shares of the tensor, V: a pattern is worked out once for a group and then holds for any size.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from tracetool.network.link import Path, SizedLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tracetool.network.link import Link

ROUNDS: Mapping[str, int] = {"allreduce": 2, "allgather": 1, "reducescatter": 1}
"""Times that every part of a tensor goes round all ranks."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one resource carries in a phase.

    Attributes:
        link: The resource.
        shares: Flows over it: the share of V that each carries, and how many are like it.
        messages: Messages that they are made of.
    """

    link: Link
    shares: tuple[tuple[Fraction, int], ...]
    messages: Fraction

    def carried_bytes(self, payload_bytes: int, divided: int = 1) -> int:
        """Bytes that pass it, each flow rounded to whole ones."""
        return sum(
            count * round(share.numerator * payload_bytes / share.denominator / divided) for share, count in self.shares
        )

    def busy_ns(self, payload_bytes: int, divided: int = 1) -> int:
        """How long it is occupied."""
        return self.link.busy_ns(self.carried_bytes(payload_bytes, divided), float(self.messages))


@dataclass(frozen=True, slots=True)
class Phase:
    """What happens at the same time in a collective.

    Attributes:
        loads: What each resource carries.
        latency_ns: What its parts wait for latencies, one after another.
    """

    loads: tuple[Load, ...]
    latency_ns: int

    def occupied_ns(self, payload_bytes: int, divided: int = 1) -> int:
        """How long the resource is occupied that is longest."""
        return max((load.busy_ns(payload_bytes, divided) for load in self.loads), default=0)

    def slimmed(self) -> Phase:
        """The same time from fewer loads: of resources with the same figures the fullest."""
        best: dict[object, Load] = {}
        for load in self.loads:
            link = load.link
            figures: object = link.bandwidth_bytes_per_s
            if isinstance(link, SizedLink):
                figures = link.times, load.shares, load.messages
            most = best.get(figures)
            if most is None or _full(load) > _full(most):
                best[figures] = load
        return Phase(tuple(best.values()), self.latency_ns)


def _full(load: Load) -> tuple[Fraction, Fraction]:
    return sum((share * count for share, count in load.shares), Fraction()), load.messages


@dataclass(frozen=True)
class Pattern:
    """A collective of any size.

    Attributes:
        phases: One after another.
    """

    phases: tuple[Phase, ...]

    @cached_property
    def _slim(self) -> tuple[Phase, ...]:
        return tuple(phase.slimmed() for phase in self.phases)

    @property
    def latency_ns(self) -> int:
        """Latencies of all phases."""
        return sum(phase.latency_ns for phase in self.phases)

    def occupied_ns(self, payload_bytes: int, divided: int = 1) -> int:
        """Time on the busiest resources of all phases.

        Args:
            payload_bytes: Of the tensor, V.
            divided: Over how many equal shares of each resource it moves.
        """
        return sum(phase.occupied_ns(payload_bytes, divided) for phase in self._slim)

    def duration_ns(self, payload_bytes: int) -> int:
        """What it takes on an idle network."""
        return self.occupied_ns(payload_bytes) + self.latency_ns

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the resources it uses."""
        return tuple(dict.fromkeys(load.link.name for phase in self.phases for load in phase.loads))


Flow = tuple[Path, Fraction, Fraction]
"""What a flow passes, the share of V that it carries, and in how many messages."""


def phase(flows: Iterable[Flow], latency_ns: int) -> Phase:
    """Add up what flows carry over each resource."""
    shares: dict[Link, Counter[Fraction]] = defaultdict(Counter)
    messages: dict[Link, Fraction] = defaultdict(Fraction)
    for path, share, count in flows:
        for link in path:
            shares[link][share] += 1
            messages[link] += count
    return Phase(tuple(Load(link, tuple(of.items()), messages[link]) for link, of in shares.items()), latency_ns)


def ring(edges: Sequence[Path], rounds: int) -> Phase:
    """Parts go round a ring, so many times past all ranks but one.

    Args:
        edges: From each rank to the next, the last one's to the first.
        rounds: How many times: 2 for an all-reduce, 1 for an all-gather or reduce-scatter.
    """
    return rings([edges], rounds)


def rings(all_edges: Sequence[Sequence[Path]], rounds: int) -> Phase:
    """Parts go round several rings of equally many ranks at the same time, as in ``ring``.

    Args:
        all_edges: Of each ring, from each rank to the next, the last one's to the first.
        rounds: How many times: 2 for an all-reduce, 1 for an all-gather or reduce-scatter.
    """
    ranks = len(all_edges[0])
    hops = rounds * (ranks - 1)
    passing = Counter(link for edges in all_edges for edge in edges for link in edge)
    share = Fraction(hops, ranks)
    loads = tuple(Load(link, ((share, count),), Fraction(hops * count)) for link, count in passing.items())
    return Phase(loads, max(_longest_way([edge.latency_ns for edge in edges], hops) for edges in all_edges))


def _longest_way(edges_ns: Sequence[int], hops: int) -> int:
    """The most latency that a part meets on so many hops round a ring, wherever it begins."""
    laps, rest = divmod(hops, len(edges_ns))
    passed = [0, *accumulate((*edges_ns, *edges_ns))]
    return laps * sum(edges_ns) + max(passed[first + rest] - passed[first] for first in range(len(edges_ns)))


def chain(edges: Sequence[Path]) -> Phase:
    """A broadcast or reduce, down a line in small pieces."""
    return phase(((edge, Fraction(1), Fraction(1)) for edge in edges), sum(edge.latency_ns for edge in edges))


def between_places(counts: Mapping[str, int], path_of: Callable[[str, str], Path]) -> Phase:
    """An all-to-all of ranks in places: each rank sends the n-th part of its tensor to every other one, straight.

    Args:
        counts: Ranks in each place; inside one nothing is on the way.
        path_of: What lies between two places.
    """
    ranks = sum(counts.values())
    pairs = [(path_of(a, b), counts[a] * counts[b]) for a in counts for b in counts if a != b]
    flows = ((path, Fraction(count, ranks), Fraction(count)) for path, count in pairs)
    return phase(flows, max((path.latency_ns for path, _ in pairs), default=0))


def scaled(one: Phase, share: Fraction) -> Phase:
    """The same with a share of its bytes."""
    parts = {part: part * share for load in one.loads for part, _ in load.shares}
    loads = (Load(each.link, tuple((parts[part], n) for part, n in each.shares), each.messages) for each in one.loads)
    return Phase(tuple(loads), one.latency_ns)
