"""What collectives take on a network: bytes over bandwidth on the busiest resource, and latencies one after another.

Of a tensor of V bytes over n ranks (an all-gather's result, a reduce-scatter's input, what each rank has for an
all-to-all):

* ``ring`` (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009): every part of V/n goes round, n - 1
  hops in an all-gather or reduce-scatter, twice that in an all-reduce; broadcast and reduce go down the chain. Parts
  move at the same time: each edge carries V/n per hop, and a part meets the latencies of its hops one after another.
  It is one ring: libraries that run one through each port of a node come near ``hierarchical``.
* ``tree`` (Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; the
  trees are NCCL's, src/graph/trees.cc and connect.cc): two binary trees of HB domains carry V/2 each, up and down at
  once, through one rank of each domain, which a chain joins to the others.
* ``halving`` (Rabenseifner, "Optimization of collective reduction operations", 2004: recursive vector halving and
  distance doubling): log2 n exchanges of V/2, V/4 ... with ranks 1, 2, 4 ... away, back again for the all-gather.
* ``hierarchical`` (Cho et al., "BlueConnect", 2019; Jia et al., arXiv 1807.11205, with two tiers): reduce-scatter in
  rings inside each group of a tier, then across with what is left, V over the ring sizes so far; all-gather back.
* ``direct`` all-to-all: each rank sends V/n to every other one.
* ``forwarded`` all-to-all (as rail-only networks need; arXiv 2307.12169): first inside each HB domain to the rank on
  the rail of the destination, then over the rails.

Phases follow one another; within one each resource is occupied for all its bytes, and parts meet latencies one after
another. ``auto`` is the fastest of those that libraries run by themselves: ring, hierarchical and tree. Tests hold all
of this against an event simulator of chunks. Of a ring both are added up, where the simulator's parts partly move while
others wait: it takes at least the larger, at most the sum. That stays so: a ring with one narrow link hides up to three
fourths of its latencies if all of a tensor goes round at once, but NCCL sends it round in loops of 2 MiB a rank and
channel (``runRing``), each of which meets the latencies again. An all-to-all takes as long as its busiest resource;
with sends in the usual order the simulator needs up to an eighth more.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from tracetool.errors import ScenarioError
from tracetool.network.phases import ROUNDS, Flow, Load, Pattern, Phase, chain, phase, ring, rings, scaled

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.network.link import Link, Path
    from tracetool.network.tiers import Network

Kind = Literal["allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall"]
Algorithm = Literal["auto", "ring", "tree", "halving", "hierarchical", "direct", "forwarded"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_FITTING: Mapping[Kind, tuple[Algorithm, ...]] = {
    "allreduce": ("ring", "hierarchical", "tree", "halving"),
    "allgather": ("ring", "hierarchical", "halving"),
    "reducescatter": ("ring", "hierarchical", "halving"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
    "alltoall": ("direct", "forwarded"),
}


_NAMED: tuple[tuple[str, Kind], ...] = (
    ("alltoall", "alltoall"),
    ("allreduce", "allreduce"),
    ("allgather", "allgather"),
    ("reducescatter", "reducescatter"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
    ("gather", "reduce"),
    ("scatter", "broadcast"),
)
"""Kinds by what names of operations hold; the first that fits."""


def kind_of(operation: str) -> Kind | None:
    """What a collective does that a trace names so, as in ``_allgather_base``; None if that is not known."""
    letters = re.sub(r"[^a-z]", "", operation.lower())
    return next((kind for name, kind in _NAMED if name in letters), None)


def fitting(kind: Kind) -> tuple[Algorithm, ...]:
    """The algorithms that run a collective."""
    return _FITTING[kind]


def collective_ns(
    network: Network, kind: Kind, algorithm: Algorithm, devices: Sequence[int], payload_bytes: int
) -> int:
    """What a collective takes on an idle network.

    Args:
        network: Where it runs.
        kind: What it does.
        algorithm: How; ``auto`` is the fastest.
        devices: Of its group; rings and trees go through them in their own order, as NCCL's do by topology.
        payload_bytes: Of the whole tensor, V of this module.

    Raises:
        ScenarioError: If the algorithm does not do that, or not with this group.

    Example:
        >>> collective_ns(one_node, "allreduce", "ring", range(8), 800_000_000)  # 2 · 7/8 · V over 450 GB/s
        3111111
    """
    group = tuple(sorted(devices))
    if algorithm != "auto":
        return pattern(network, kind, algorithm, group).duration_ns(payload_bytes)
    return fastest(network, kind, group, payload_bytes)[1]


def fastest(network: Network, kind: Kind, devices: tuple[int, ...], payload_bytes: int) -> tuple[Algorithm, int]:
    """The fastest algorithm for a collective, the first of equals, and what it takes.

    Raises:
        ScenarioError: If there is none.
    """
    took: list[tuple[int, Algorithm]] = []
    fault: ScenarioError | None = None
    for algorithm in _FITTING[kind]:
        if algorithm == "halving":
            continue
        try:
            took.append((pattern(network, kind, algorithm, devices).duration_ns(payload_bytes), algorithm))
        except ScenarioError as error:
            fault = fault or error
    if not took:
        raise fault or ScenarioError(f"nothing does {kind}")
    duration_ns, algorithm = min(took, key=lambda each: each[0])
    return algorithm, duration_ns


@lru_cache(maxsize=4096)
def pattern(network: Network, kind: Kind, algorithm: Algorithm, devices: tuple[int, ...]) -> Pattern:
    """How a collective uses a network; one of a single device does not.

    Args:
        network: Where it runs.
        kind: What it does.
        algorithm: How; not ``auto``.
        devices: Of its group, in ascending order.

    Raises:
        ScenarioError: If the algorithm does not do that, or not with this group.
    """
    if algorithm not in _FITTING[kind]:
        raise ScenarioError(f"{algorithm} is no way to run {kind}.", hint=f"take {', '.join(_FITTING[kind])} or auto")
    if len(devices) < 2:
        return Pattern(())
    if algorithm in ("direct", "forwarded"):
        phases = _direct(network, devices) if algorithm == "direct" else _forwarded(network, devices)
    elif algorithm == "hierarchical":
        phases = _hierarchical(network, kind, devices)
    elif algorithm == "halving":
        phases = _halving(network, kind, devices)
    elif algorithm == "tree":
        phases = [_trees(network, devices)]
    elif kind in ROUNDS:
        phases = [ring(ways_round(network, devices), ROUNDS[kind])]
    else:
        phases = [chain(ways_round(network, devices)[:-1])]
    return Pattern(tuple(phases))


def ways_round(network: Network, devices: Sequence[int]) -> list[Path]:
    """What messages pass from each device of a ring to the next.

    Args:
        network: Where they are.
        devices: In their order on the ring.
    """
    return [network.path(src, dst) for src, dst in zip(devices, [*devices[1:], devices[0]], strict=True)]


def _hierarchical(network: Network, kind: Kind, devices: Sequence[int]) -> list[Phase]:
    """Rings at each tier that the group reaches over, with what the tiers inside have left; back again."""
    joined = []
    for number, tier in enumerate(network.tiers):
        blocks: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for device in devices:
            blocks[device // tier.size][network.group(number, device)].append(device)
        sizes = {len(groups) for groups in blocks.values()}
        members = {len(inside) for groups in blocks.values() for inside in groups.values()}
        if len(sizes) > 1 or len(members) > 1:
            raise ScenarioError(
                f"hierarchical {kind} needs as many ranks in each group that {tier.name} joins.",
                hint="take ring, or place the group evenly",
            )
        if sizes != {1}:
            joined.append((sizes.pop(), blocks))
    phases = []
    left = Fraction(1)
    for size, groups_of in joined:
        across = [
            ways_round(network, each) for groups in groups_of.values() for each in zip(*groups.values(), strict=True)
        ]
        phases.append(scaled(rings(across, 1), left))
        left /= size
    return {"allreduce": [*phases, *reversed(phases)], "reducescatter": phases}.get(kind, phases[::-1])


def _halving(network: Network, kind: Kind, devices: Sequence[int]) -> list[Phase]:
    ranks = len(devices)
    if ranks & (ranks - 1):
        raise ScenarioError(f"halving needs a power of two of ranks, the group has {ranks}.", hint="take ring")
    phases = []
    for step in range(ranks.bit_length() - 1):
        paths = [network.path(device, devices[rank ^ 1 << step]) for rank, device in enumerate(devices)]
        flows = ((path, Fraction(1, 2 << step), Fraction(1)) for path in paths)
        phases.append(phase(flows, max(path.latency_ns for path in paths)))
    return {"allreduce": [*phases, *reversed(phases)], "reducescatter": phases}.get(kind, phases[::-1])


def _trees(network: Network, devices: Sequence[int]) -> Phase:
    """Two trees of HB domains, each through the first rank of a domain; a chain joins the others to it."""
    domains: dict[int, list[int]] = defaultdict(list)
    for device in devices:
        domains[device // network.tiers[0].size].append(device)
    heads = [members[0] for members in domains.values()]
    flows: list[Flow] = []
    latency = 0
    for tree in range(2):
        above = {below: head for members in domains.values() for head, below in pairwise(members)}
        for number, head in enumerate(heads):
            if (parent := _parent(number, len(heads), tree)) is not None:
                above[head] = heads[parent]
        edges = {below: (network.path(below, head), network.path(head, below)) for below, head in above.items()}
        flows += [(path, Fraction(1, 2), Fraction(1)) for both in edges.values() for path in both]
        ways = [[edges[each] for each in _to_root(device, above)] for device in devices]
        latency = max(latency, sum(max(sum(both[way].latency_ns for both in hops) for hops in ways) for way in (0, 1)))
    return phase(flows, latency)


def _to_root(device: int, above: Mapping[int, int]) -> Iterator[int]:
    while device in above:
        yield device
        device = above[device]


def _parent(rank: int, ranks: int, tree: int) -> int | None:
    """A domain's parent in one of NCCL's two trees: the second has the leaves of the first inside."""
    if tree:
        moved = ranks - 1 - rank if ranks % 2 == 0 else (rank - 1) % ranks
        parent = _parent(moved, ranks, 0)
        return None if parent is None else ranks - 1 - parent if ranks % 2 == 0 else (parent + 1) % ranks
    if rank == 0:
        return None
    bit = rank & -rank
    parent = (rank ^ bit) | (bit << 1)
    return parent if parent < ranks else rank ^ bit


def _direct(network: Network, devices: Sequence[int]) -> list[Phase]:
    if any(tier.rail_only for tier in network.tiers):
        raise ScenarioError("a rail-only network has no direct ways between rails.", hint="take forwarded")
    return [_all_to_all(network, devices, range(len(network.tiers)), 1)]


def _forwarded(network: Network, devices: Sequence[int]) -> list[Phase]:
    """Inside each HB domain what goes to each rail, then over the rails what goes to each HB domain."""
    domain = network.tiers[0].size
    rails: dict[int, list[int]] = defaultdict(list)
    for device in devices:
        rails[device // domain].append(device % domain)
    if len({tuple(sorted(of)) for of in rails.values()}) > 1:
        raise ScenarioError(
            "a forwarded all-to-all needs ranks of the same rails in every HB domain.", hint="place the group evenly"
        )
    local = Fraction(len(rails))  # what goes to one rail in all HB domains goes there together
    inside = scaled(_all_to_all(network, devices, range(1), 1), local)
    across = _all_to_all(network, devices, range(1, len(network.tiers)), len(devices) // len(rails))
    return [each for each in (inside, across) if each.loads]


def _all_to_all(network: Network, devices: Sequence[int], tiers: range, bundled: int) -> Phase:
    """What each rank sends to every other one, as far as it passes some tiers.

    Args:
        network: Where it runs.
        devices: Of the group.
        tiers: Numbers of the tiers.
        bundled: How many of the parts for one group travel as one message.
    """
    share = Fraction(1, len(devices))
    loads: list[Load] = []
    for number in tiers:
        for links, parts in _passing(network, devices, number):
            loads += [Load(link, ((share, parts),), Fraction(parts, bundled)) for link in links]
        connections = network.tiers[number].connections
        pair = next((pair for pair in pairwise(sorted(devices)) if (network.crossed(*pair) or 0) >= number), None)
        if connections > 1 and loads and pair is not None:
            loads += [Load(link, ((share, bundled),), Fraction(1)) for link in network.connection(number, *pair)]
    crossed = network.crossed(min(devices), max(devices)) or 0
    passed = range(1, crossed + 1) if crossed and tiers.stop > 1 else range(1)
    return Phase(tuple(loads), sum(network.tiers[number].latency_ns for number in passed) if loads else 0)


def _passing(network: Network, devices: Sequence[int], number: int) -> Iterator[tuple[list[Link], int]]:
    """Resources of a tier, and how many of the parts that all ranks send each other pass each of them."""
    tier = network.tiers[number]
    inside: dict[int, list[int]] = defaultdict(list)
    for device in devices:
        inside[network.group(number, device)].append(device)
    wholes = Counter(device // tier.size for device in devices)
    for members in inside.values():
        whole = members[0] // tier.size
        # What leaves an HB domain passes nothing of it; what leaves any other group passes its way out.
        beyond = (len(devices) if number else wholes[whole]) - len(members)
        if not beyond:
            continue
        if tier.shared_by == "pair":
            for theirs in inside.values():
                if theirs is not members and theirs[0] // tier.size == whole:
                    yield network.up(number, members[0], theirs[0]), len(members) * len(theirs)
            continue
        out, back = network.up(number, members[0], members[0]), network.down(number, members[0])
        if tier.shared_by == "group":
            yield [*out, *back], beyond * len(members)
            continue
        yield [*out[1:], *back[:-1]], beyond * len(members)
        for device in members:
            yield [network.up(number, device, device)[0], network.down(number, device)[-1]], beyond
