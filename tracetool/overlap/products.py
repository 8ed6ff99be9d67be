"""How long a matrix product takes: waves of output tiles over the multiprocessors (SMs) of a device.

A library cuts the result into tiles, one SM computes one tile at a time, and a product takes as many waves as its tiles
need: half the rows take more than half the time where a wave is not full. The shape of the tile is chosen per product:
the names of cuBLAS' kernels tell it (``nvjet_sm90_tst_256x128_...``), 256 along the columns of the result, 128 along
its rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TILE_IN_NAME = re.compile(r"nvjet_\w*?_(\d+)x(\d+)_")
_STATIC_WAVES = 2
"""Up to two waves every block has its tiles beforehand; above, blocks draw them from a counter (a memset before it)."""
_COUNTER_NS = 2_300.0
"""From the memset of that counter to the product's start: 2.2 to 2.5 us in every recording."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of a result that one SM computes at a time."""

    columns: int
    rows: int

    @property
    def area(self) -> int:
        """Elements of the result in it."""
        return self.columns * self.rows


_TILES = {Tile(320, 128): 0.98, Tile(256, 128): 1.0, Tile(192, 192): 1.0, Tile(192, 128): 1.0, Tile(128, 128): 1.08}
"""Tiles that cuBLAS has for 16 bit products, and the time of one element in each, relative to 256x128.

Larger ones read less per element: of two that take as long cuBLAS takes the larger.
"""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """A product of [rows, depth] and [depth, columns]."""

    rows: int
    columns: int
    depth: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of it."""
        return 2 * self.rows * self.columns * self.depth

    def tiles(self, tile: Tile) -> int:
        """Tiles of the result."""
        return -(-self.columns // tile.columns) * -(-self.rows // tile.rows)

    def wave_elements(self, tile: Tile, sms: int) -> int:
        """Elements of the result that the busiest SM computes, those outside the result too."""
        return -(-self.tiles(tile) // sms) * tile.area


def tile_of(kernel: str) -> Tile | None:
    """The tile that a kernel's name tells; None if it tells none."""
    match = _TILE_IN_NAME.search(kernel)
    return None if match is None else Tile(int(match[1]), int(match[2]))


def choose_tile(shape: ProductShape, sms: int) -> Tile:
    """The tile that a product of this shape takes least time with."""
    return min(_TILES, key=lambda tile: (shape.wave_elements(tile, sms) * _TILES[tile], -tile.area))


@dataclass(frozen=True, slots=True)
class ProductRate:
    """How fast a device computes products.

    Attributes:
        sms: Its SMs.
        picoseconds: Time that an SM takes for one multiplication and addition in a wave's tile, of tiles that were not
            recorded.
        by_tile: The same of recorded ones.
        known: Tiles of products that were recorded, which need no guess.
        recorded_ns: Times of products recorded beside a collective.
        alone_ns: Times of products recorded alone.
    """

    sms: int
    picoseconds: float
    by_tile: Mapping[Tile, float] = field(default_factory=dict)
    known: Mapping[ProductShape, Tile] = field(default_factory=dict)
    recorded_ns: Mapping[ProductShape, float] = field(default_factory=dict)
    alone_ns: Mapping[ProductShape, float] = field(default_factory=dict)

    def tile(self, shape: ProductShape) -> Tile:
        """The recorded tile of this product, else the one it takes least time with."""
        return self.known.get(shape) or choose_tile(shape, self.sms)

    def time(self, shape: ProductShape, *, alone: bool = False) -> ProductTime:
        """The time of a product with the whole device.

        Args:
            shape: Its shape.
            alone: Take the time of a recording of nothing else, if there is one.
        """
        tile = self.tile(shape)
        picoseconds = self.by_tile.get(tile, self.picoseconds)
        duration_ns = self.recorded_ns.get(shape, shape.wave_elements(tile, self.sms) * shape.depth * picoseconds / 1e3)
        if alone:
            duration_ns = self.alone_ns.get(shape, duration_ns)
        return ProductTime(duration_ns, shape.tiles(tile), self.sms)


@dataclass(frozen=True, slots=True)
class ProductTime:
    """How long a product takes alone, and what becomes of it where it has fewer SMs.

    Attributes:
        alone_ns: With the whole device.
        tiles: Of its result.
        sms: Of the device.
    """

    alone_ns: float
    tiles: int
    sms: int

    @property
    def waves(self) -> int:
        """Waves of tiles with the whole device."""
        return -(-self.tiles // self.sms)

    @property
    def is_static(self) -> bool:
        """Whether every block has its tiles beforehand: those of a block that starts late wait for it."""
        return self.waves <= _STATIC_WAVES

    @property
    def before_ns(self) -> float:
        """From the end of what is before it on its stream to its start, beyond any kernel's."""
        return 0.0 if self.is_static else _COUNTER_NS

    @property
    def idle_in_last_wave(self) -> int:
        """SMs that the last wave leaves idle."""
        return self.waves * self.sms - self.tiles

    @property
    def last_wave_ns(self) -> float:
        """How long the last wave takes."""
        return self.alone_ns / self.waves

    def speed_ratio(self, held: int) -> float:
        """Its speed while so many SMs are held by others, over its speed alone."""
        free = max(1, self.sms - held)
        return self.waves / -(-self.tiles // free)
