"""A simulator of collectives in chunks, for tests: events in a heap, nothing of the product's formulas in it.

Every chunk is a chain of hops; a hop may start once the hop before has arrived, passes its links one after another (cut
through: all at the rate of the slowest) and each link serves one chunk at a time, first come first served.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.network.link import Path

Hop = tuple["Path", float]
"""What it passes, and its bytes."""


def simulate(chains: Sequence[Sequence[Hop]]) -> float:
    """When the last chunk is there, in ns; each chain's hops follow one another."""
    free: dict[str, float] = defaultdict(float)
    ready: list[tuple[float, int, int]] = [(0.0, 0, number) for number in range(len(chains))]
    end = 0.0
    while ready:
        now, hop, number = heapq.heappop(ready)
        if hop == len(chains[number]):
            end = max(end, now)
            continue
        path, size = chains[number][hop]
        start, done, wait = now, now, 0.0
        for link in path:
            busy = size * 1e9 / link.bandwidth_bytes_per_s
            begin = max(start, free[link.name])
            free[link.name] = begin + busy
            done = max(begin + busy, done + wait)
            start, wait = begin + link.latency_ns, link.latency_ns
        heapq.heappush(ready, (done + wait, hop + 1, number))
    return end


def ring_chains(path: Callable[[int, int], Path], ranks: int, rounds: int, size: float) -> list[list[Hop]]:
    """Each rank's part goes round."""
    return [
        [(path((first + hop) % ranks, (first + hop + 1) % ranks), size / ranks) for hop in range(rounds * (ranks - 1))]
        for first in range(ranks)
    ]


def all_to_all_chains(path: Callable[[int, int], Path], ranks: int, size: float) -> list[list[Hop]]:
    """Each rank sends to the next one first, then to the one after it, and so on: one hop each."""
    return [[(path(src, (src + step) % ranks), size / ranks)] for step in range(1, ranks) for src in range(ranks)]


def looped_ring(edges: Sequence[Path], rounds: int, size: float, loops: int) -> float:
    """When a ring is through that moves a tensor in so many loops, one after another, in ns.

    As NCCL runs one (``runRing`` of src/device/all_reduce.h: a loop takes a chunk of each rank all the way round): a
    rank begins a loop when it is through with the one before; every edge is a resource of its own.
    """
    ranks, steps = len(edges), rounds * (len(edges) - 1)
    busy = [size / ranks / loops * 1e9 / min(link.bandwidth_bytes_per_s for link in edge) for edge in edges]
    free, through = [0.0] * ranks, [0.0] * ranks
    for _ in range(loops):
        arrived = list(through)
        for _ in range(steps):
            left = [max(there, sent) + takes for there, sent, takes in zip(arrived, free, busy, strict=True)]
            free = left
            arrived = [left[rank - 1] + edges[rank - 1].latency_ns for rank in range(ranks)]
        through = arrived
    return max(through)
