"""Ways to overlap on a device where nothing gets in the way of anything: closed forms tell how long each takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tracetool.overlap.machine import HostCalls, Machine, RingCost
from tracetool.overlap.prediction import last_end_ns
from tracetool.overlap.products import ProductRate
from tracetool.overlap.program import Stream
from tracetool.overlap.simulation import IDEAL
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape, issue_calls

if TYPE_CHECKING:
    from tracetool.overlap.program import Program

SHAPE = LayerShape(tokens=8192, hidden=2560, ffn_per_rank=2560)
"""Whole tiles whatever it is cut into: a half takes half as long."""
NO_CALLS = HostCalls(*[0.0] * 9)


def machine(hop_bytes_per_ns: float, ranks: int = 4) -> Machine:
    """One SM, no start of messages, memory that takes no time, and a link so slow that it, not blocks, is the limit."""
    ring = RingCost(ranks, 0.0, hop_bytes_per_ns, blocks=4)
    return Machine(ProductRate(1, 1e-3), ring, ring, ring, 0.0, 1e15, 4, NO_CALLS)


def program(variant: str, of: Machine) -> Program:
    return issue_calls(variant, SHAPE, of, calls=1, ahead_ns=0.0)


def ideal_ns(variant: str, of: Machine) -> float:
    return last_end_ns(program(variant, of), [False, False], IDEAL)


SLOW, FAST = 100.0, 5_000.0


@pytest.mark.parametrize("hop", [SLOW, 400.0, 1_500.0, FAST])
@pytest.mark.parametrize("side", ["ag", "rs"])
class TestClosedForms:
    def test_as_it_is_takes_product_and_collective(self, side: str, hop: float) -> None:
        of = machine(hop)
        alone = ideal_ns(f"{side}_only", of) + ideal_ns("gemm1", of)
        assert ideal_ns(f"{side}_coll", of) == pytest.approx(alone)

    @pytest.mark.parametrize("slices", [2, 4, 8])
    def test_slices_leave_a_tail_of_the_shorter_one(self, side: str, hop: float, slices: int) -> None:
        of = machine(hop)
        product, collective = ideal_ns("gemm1", of), ideal_ns(f"{side}_only", of)
        expected = max(product, collective) + min(product, collective) / slices
        assert ideal_ns(f"{side}_sliced{slices}", of) == pytest.approx(expected)

    @pytest.mark.parametrize("ranks", [2, 4, 8])
    def test_parts_leave_no_tail_where_a_transfer_is_shorter_than_a_part(
        self, side: str, hop: float, ranks: int
    ) -> None:
        of = machine(hop, ranks)
        part, transfer = ideal_ns("gemm1", of) / ranks, ideal_ns("p2p_only", of)
        expected = part + (ranks - 1) * max(part, transfer)
        took = ideal_ns(f"{side}_p2p", of)
        assert took == pytest.approx(expected)
        assert (took == pytest.approx(ranks * part)) is (transfer <= part)


def test_both_sides_of_the_knee_are_tried() -> None:
    """Else the forms above would hold of programs that never overlap, or always do."""
    product = ideal_ns("gemm1", machine(FAST))
    assert ideal_ns("ag_only", machine(SLOW)) > product > ideal_ns("ag_only", machine(FAST))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("side", ["ag", "rs"])
@pytest.mark.parametrize("way", ["coll", "sliced2", "sliced8", "p2p", "p2p2"])
def test_every_way_moves_the_same_bytes_and_computes_the_same_product(way: str, side: str, ranks: int) -> None:
    of = machine(1.0, ranks)
    works = program(f"{side}_{way}", of).works
    part = SHAPE.tokens / ranks * SHAPE.hidden * ELEMENT_BYTES
    computed = sum(work.duration_ns for work in works if work.product is not None)
    assert computed == pytest.approx(ideal_ns("gemm1", of))
    communicating = [work.duration_ns for work in works if work.blocks]
    if way.startswith("p2p"):
        start = of.gather.exchange_ns(0.0)
        rate = part / (of.gather.exchange_ns(part) - start)
        moved = sum(duration - start for duration in communicating) * rate
    else:
        moved = sum(communicating)  # one byte per nanosecond and hop
    assert moved == pytest.approx((ranks - 1) * part)


def test_own_part_is_first_of_an_all_gather_and_last_of_a_reduce_scatter() -> None:
    """CommFuse's order: nothing is waited for before the own part, and the own part is not sent."""
    of = replace(machine(SLOW), products=ProductRate(1, 1e-3))
    gather = [work for work in program("ag_p2p", of).works if work.stream is Stream.COMPUTE]
    assert [bool(work.after) for work in gather] == [False, True, True, True]
    scatter = program("rs_p2p", of).works
    sent_after = [work.after for work in scatter if work.stream is Stream.COMMUNICATION]
    products = [number for number, work in enumerate(scatter) if work.product is not None]
    assert [after[0] for after in sent_after] == products[:-1]
