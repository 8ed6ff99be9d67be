"""What is in the way of a way to overlap, by itself: machines made up so that one thing alone is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.layered import with_sequence_parallelism, without_shapes
from helpers.recorded import ROOT
from overlap.test_closed_forms import FAST, SHAPE, SLOW, machine

from tracetool.cli import run
from tracetool.explanation import explain
from tracetool.overlap.actions import with_overlap
from tracetool.overlap.losses import LossCause, losses
from tracetool.overlap.machine import HostCalls, Machine
from tracetool.overlap.measured import Timing
from tracetool.overlap.products import ProductRate, ProductShape
from tracetool.overlap.variants import LayerShape
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from collections.abc import Mapping

LAYERS = ROOT / "tests" / "data" / "h200-overlap" / "traces" / "nvlink"
ONE = Timing()


def lost(variant: str, of: Machine, shape: LayerShape = SHAPE) -> Mapping[LossCause, float]:
    return {loss.cause: loss.lost_ns for loss in losses(variant, shape, of, ONE)}


def test_a_host_whose_calls_take_longer_than_all_else() -> None:
    """Calls of 10 ms each: without them the call is what the device takes, so all of them are lost."""
    of = replace(machine(FAST), call_ns=1e7, calls=HostCalls(*[1.0] * 9))
    found = lost("ag_sliced4", of)
    assert next(iter(found)) is LossCause.HOST
    # Four collectives, products and waits, and a concatenation, of which the last call's kernel is launched earlier.
    assert found[LossCause.HOST] == pytest.approx(13e7, rel=0.1)


def test_copies_through_slow_memory() -> None:
    """Closed form: what is sliced and added is 0.42 and 0.9 of memory's bandwidth away; nothing else changes it."""
    slow = replace(machine(SLOW), memory_bytes_per_ns=1.0)
    copied = 2 * SHAPE.tokens * SHAPE.ffn_per_rank * 2 / 0.9
    assert lost("ag_sliced2", slow)[LossCause.COPIES] == pytest.approx(copied, rel=0.02)
    assert LossCause.COPIES not in lost("ag_p2p", slow)


def test_products_that_are_no_whole_waves() -> None:
    """132 SMs and 132 tiles: a quarter of the rows takes as long as all of them, so that four take three more."""
    shape = LayerShape(tokens=128 * 12, hidden=4096, ffn_per_rank=256 * 11)
    products = ProductRate(132, 1.0)
    assert shape.gathered(shape.tokens).tiles(products.tile(shape.gathered(shape.tokens))) == 132
    of = replace(machine(FAST), products=products)
    whole = products.time(ProductShape(shape.tokens, shape.ffn_per_rank, shape.hidden)).alone_ns
    part = products.time(ProductShape(shape.tokens // 4, shape.ffn_per_rank, shape.hidden)).alone_ns
    assert lost("ag_sliced4", of, shape)[LossCause.SMALL] == pytest.approx(4 * part - whole, rel=0.05)
    assert LossCause.SMALL not in lost("ag_sliced4", machine(FAST))  # whole tiles on one SM


def test_a_layer_as_it_is_loses_little() -> None:
    assert set(lost("rs_coll", machine(SLOW))) <= {LossCause.HOST}


def test_recorded_layers_say_what_is_in_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    layers = [str(LAYERS / f"8192_4096_2752_{side}_coll") for side in ("ag", "rs")]
    assert run(["overlap", *layers, "--overlap", "slice:8", "--json", "-q"]) == 0
    for side in json.loads(capsys.readouterr().out)["layers"]:
        assert side["losses"][0]["cause"] == "host"
        costs = [loss["lost_ms"] for loss in side["losses"]]
        assert costs == sorted(costs, reverse=True)
        assert 0 < costs[0] < side["ways"][1]["call_ms"]
    assert run(["overlap", *layers, "--overlap", "slice:8", "-v", "-q"]) == 0
    assert "in the way of slice:8, each by itself: calls of the host and launches" in capsys.readouterr().out


# Losses inside layers and actions are told by default (above); what is told of the step is that of replay
# (tests/explanation).
@pytest.mark.thorough
def test_explain_tells_of_the_step_with_layers_that_overlap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracetool.ingestion.runs.open_run", lambda *_, **__: with_sequence_parallelism())
    assert run(["explain", "traces", "--overlap", "p2p", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = with_overlap(reconstruct(without_shapes()), with_sequence_parallelism(), "p2p")
    told = explain(found)
    assert not told.is_recorded  # what was recorded has other layers
    assert told.metrics.step_ns == told.replayed_step_ns
    assert any("in the way of p2p in an action, each by itself: calls of the host" in note for note in report["notes"])
    assert any("beside that with layers as they are" in note for note in report["notes"])
