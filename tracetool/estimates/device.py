"""Figures of a device, and its curve of efficiency: what share of its peak a matrix product runs at, by its size.

A derived model of this tool. Products run on tiles of the result, one per processor at a time: what does not fill the
last wave of tiles is lost (NVIDIA, "Matrix Multiplication Background User's Guide", wave quantization), and each tile
has a prologue and an epilogue, counted as so many more steps along the inner dimension. The share of the peak that a
whole wave of long products reaches is the one figure that is fitted. What reads and writes memory runs at the
bandwidth of the memory, and each kernel takes a moment to start and to drain.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Accelerator:
    """Figures of a device. Those with a default of 0 are left out of the model where they are 0.

    Attributes:
        name: What it is called.
        peak_flops: Operations per second at 16 bit, dense.
        hbm_bytes: Memory.
        tensor_bandwidth_bytes_per_s: What one device sends to the others of its node, in one direction, where no
            network is given.
        hbm_bandwidth_bytes_per_s: What its memory reaches.
        processors: Processors that a wave of tiles fills.
        tile: Rows and columns of a tile, either way round.
        tile_overhead: What a tile takes besides, in steps along the inner dimension.
        kernel_ns: To start and to drain a kernel.
    """

    name: str
    peak_flops: int
    hbm_bytes: int
    tensor_bandwidth_bytes_per_s: int = 0
    hbm_bandwidth_bytes_per_s: int = 0
    processors: int = 0
    tile: tuple[int, int] = (256, 128)
    tile_overhead: int = 0
    kernel_ns: int = 0

    def product_ns(self, efficiency_ratio: float, rows: int, columns: int, inner: int, count: int = 1) -> float:
        """Time of so many products of (rows x inner) with (inner x columns), in one kernel.

        Args:
            efficiency_ratio: Share of the peak that a whole wave of long products reaches.
            rows: Of the result.
            columns: Of the result.
            inner: The dimension that is summed over.
            count: How many.
        """
        if not count:
            return 0.0
        entries = float(count * rows * columns)
        if self.processors:
            entries = min(self._covered(rows, columns, count), self._covered(columns, rows, count))
        compute = 2 * entries * (inner + self.tile_overhead) / (self.peak_flops * efficiency_ratio) * 1e9
        moved = self.memory_ns(2 * count * (rows * inner + inner * columns + rows * columns))
        return max(compute, moved) + self.kernel_ns

    def attention_ns(self, efficiency_ratio: float, heads: int, rows: int, keys: int, width: int) -> float:
        """Time of one of the two products of attention, whose scores stand in memory: many small ones fill any wave.

        Args:
            efficiency_ratio: Share of the peak that a whole wave of long products reaches.
            heads: Of all sequences together.
            rows: Queries of each.
            keys: Keys of each.
            width: Of a head.
        """
        compute = 2 * heads * rows * keys * width / (self.peak_flops * efficiency_ratio) * 1e9
        moved = self.memory_ns(2 * heads * (rows * width + keys * width + rows * keys))
        return max(compute, moved) + self.kernel_ns

    def _covered(self, rows: int, columns: int, count: int) -> float:
        """Entries of the waves of tiles that a result needs."""
        high, wide = self.tile
        tiles = count * ceil(rows / high) * ceil(columns / wide)
        return float(ceil(tiles / self.processors) * self.processors * high * wide)

    def memory_ns(self, moved_bytes: float) -> float:
        """Time to read and write so many bytes."""
        return moved_bytes / self.hbm_bandwidth_bytes_per_s * 1e9 if self.hbm_bandwidth_bytes_per_s else 0.0


A100 = Accelerator("A100 80GB", 312 * 10**12, 80 * 10**9, 300 * 10**9)
"""NVIDIA A100 80GB SXM data sheet: 312 TFLOPS (bf16), NVLink 600 GB/s both directions together."""
