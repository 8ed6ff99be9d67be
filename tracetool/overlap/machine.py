"""What is known of a machine: its products, its collectives, its memory, and its host's calls."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracetool.overlap.products import ProductRate

_FAST_BLOCKS = 16
"""NCCL runs collectives with as many blocks over NVLink; over host memory and networks with 2 to 8."""
_EXCHANGE_BLOCKS = 32
"""Blocks of sends and receives on a device, shared by the ranks of a group over NVLink: 16 of two, 8 of four."""
_EXCHANGE_BYTES_PER_NS = 16.6
"""What one block of a send moves over NVLink: 18.7 GB/s (two H200, 16 blocks) to 19.1 GB/s (four H100, 8 blocks)."""
_EXCHANGE_START_NS = 8_000.0
_SLOW_EXCHANGE_RATIO = 0.94
"""A send's bandwidth over that of a ring's hop where a link, not blocks, is the limit (two H200, host memory)."""
_SLOW_EXCHANGE_BLOCKS = 2
_FAST_BESIDE_RATIO = 1.15
"""Sends of 33.5 MB on four H100: 345 to 356 us beside a product, 310 us without."""
IN_TAIL_RATIO = 1.2
"""Sends that begin in a product's last wave, over others: 1.17 to 1.23 in traces of two H200, over either transport."""
_COPY_ENGINE_BYTES_PER_NS = 380.0
"""What a copy engine moves over NVLink 4 from device to device: 33.5 MB in 88 us (two H200)."""


REDUCE_HOPS = 2
"""So often an all-reduce passes every hop: it is a reduce-scatter and an all-gather."""


@dataclass(frozen=True, slots=True)
class RingCost:
    """All-gathers or reduce-scatters of a group: a start, then bytes over every hop.

    Attributes:
        ranks: Of the group.
        start_ns: Time of a message without bytes.
        hop_bytes_per_ns: Bytes that pass a hop per nanosecond.
        blocks: Thread blocks of the kernel: each holds an SM.
        limit_bytes_per_ns: Bandwidth of another link in its place; what was recorded is no faster for a faster one.
    """

    ranks: int
    start_ns: float
    hop_bytes_per_ns: float
    blocks: int
    limit_bytes_per_ns: float = math.inf

    def duration_ns(self, part_bytes: float) -> float:
        """Time once all ranks are there; ``part_bytes`` is what each rank gives (all-gather) or gets."""
        return self.start_ns + (self.ranks - 1) * part_bytes / min(self.hop_bytes_per_ns, self.limit_bytes_per_ns)

    @property
    def is_fast(self) -> bool:
        """Whether blocks are the limit (NVLink), not a link."""
        return self.blocks >= _FAST_BLOCKS

    @property
    def beside_ratio(self) -> float:
        """Time beside a product over time else."""
        return _FAST_BESIDE_RATIO if self.is_fast else 1.0

    @property
    def exchange_blocks(self) -> int:
        """Thread blocks of one send beside one receive."""
        return max(1, _EXCHANGE_BLOCKS // self.ranks) if self.is_fast else _SLOW_EXCHANGE_BLOCKS

    def exchange_ns(self, payload_bytes: float) -> float:
        """Time of one send beside one receive of as many bytes, once both sides are there."""
        rate = (
            self.exchange_blocks * _EXCHANGE_BYTES_PER_NS
            if self.is_fast
            else self.hop_bytes_per_ns * _SLOW_EXCHANGE_RATIO
        )
        return _EXCHANGE_START_NS + payload_bytes / min(rate, self.limit_bytes_per_ns)


@dataclass(frozen=True, slots=True)
class HostCalls:
    """What the host spends on calls, as multiples of a collective's call; by variant's direction.

    Read from torch 2.11's traces of all variants on both machines (medians over ranks and warm calls), Python between
    the calls included.
    """

    gather: float = 0.66
    scatter: float = 0.83
    product: float = 0.58
    wait: float = 0.05
    slice: float = 0.12
    copy: float = 0.38
    allocation: float = 0.13
    exchange: float = 1.55
    addition: float = 0.22
    concatenation: float = 0.4


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of a machine.

    Attributes:
        products: How fast it computes products.
        gather: Its all-gathers.
        scatter: Its reduce-scatters.
        reduce: Its all-reduces.
        call_ns: What the host of the slowest rank spends on a collective's call without a profiler.
        memory_bytes_per_ns: Bandwidth of its memory.
        call_recordings: Recordings that told of the host's calls: few of them may be far from most.
        calls: What other calls cost, beside a collective's.
    """

    products: ProductRate
    gather: RingCost
    scatter: RingCost
    reduce: RingCost
    call_ns: float
    memory_bytes_per_ns: float
    call_recordings: int
    calls: HostCalls = HostCalls()

    def engine_ns(self, payload_bytes: float) -> float:
        """Time of a copy from another device's memory by a copy engine."""
        return payload_bytes / min(_COPY_ENGINE_BYTES_PER_NS, self.gather.limit_bytes_per_ns)

    def over(self, bytes_per_ns: float) -> Machine:
        """The same machine with links of another bandwidth between the ranks of a group."""
        gather, scatter = (replace(ring, limit_bytes_per_ns=bytes_per_ns) for ring in (self.gather, self.scatter))
        reduce = replace(self.reduce, limit_bytes_per_ns=bytes_per_ns / REDUCE_HOPS)
        return replace(self, gather=gather, scatter=scatter, reduce=reduce)
