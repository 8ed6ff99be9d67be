"""Waves of tiles against kernels that were recorded on H100 and H200 (torch 2.11): which tile, and how long."""

from __future__ import annotations

import pytest

from tracetool.overlap.products import ProductRate, ProductShape, Tile, choose_tile, tile_of

# Kernels' names and times in traces of four H100 (means of ranks, warm calls): rows, columns, depth, tile, us.
RECORDED = [
    (8192, 2752, 4096, Tile(192, 192), 243.0),
    (8192, 4096, 2752, Tile(256, 128), 236.0),
    (2048, 2752, 4096, Tile(192, 128), 65.5),
    (2048, 4096, 2752, Tile(256, 128), 59.7),
    (8192, 7168, 8192, Tile(256, 128), 1218.0),
    (2048, 7168, 8192, Tile(320, 128), 331.0),
    (2048, 8192, 7168, Tile(256, 128), 304.0),
]


@pytest.mark.parametrize(("rows", "columns", "depth", "tile", "us"), RECORDED)
def test_tile_and_time_of_recorded_products(rows: int, columns: int, depth: int, tile: Tile, us: float) -> None:
    """One time per element, of one full product, gives halves and quarters of others."""
    shape = ProductShape(rows, columns, depth)
    assert choose_tile(shape, 132) == tile
    one = RECORDED[4]
    elements = ProductShape(*one[:3]).wave_elements(one[3], 132) * one[2]
    rate = ProductRate(132, 1e6 * one[4] / elements)
    assert rate.time(shape).alone_ns / 1e3 == pytest.approx(us, rel=0.03)


def test_half_the_rows_take_more_than_half_the_time() -> None:
    rate = ProductRate(132, 0.33)
    whole, half = (rate.time(ProductShape(rows, 2752, 4096)).alone_ns for rows in (8192, 4096))
    assert half > 0.53 * whole


@pytest.mark.parametrize(
    ("name", "tile"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", Tile(256, 128)),
        ("nvjet_sm90_tst_320x128_64x3_2x1_v_bz_coopB_NNT", Tile(320, 128)),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_nn", None),
    ],
)
def test_names_tell_tiles(name: str, tile: Tile | None) -> None:
    assert tile_of(name) == tile


def test_a_product_beside_a_send_of_16_blocks() -> None:
    """Two H200, 4096 x 7168 x 8192 while a send of 16 blocks waits: 617 us alone, 770 us beside it."""
    time = ProductRate(132, 0.328).time(ProductShape(4096, 7168, 8192))
    assert time.speed_ratio(32) == pytest.approx(617 / 770, abs=0.04)
    assert not time.is_static
