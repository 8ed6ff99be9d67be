"""Collectives as measured on four H100 over NVLink: figures taken from some predict others.

``h100-tp/measured.json``: an all-gather alone, of two sizes, gives bandwidth and fixed cost of the tier. From these the
reduce-scatters of both sizes, and the tensor parallel all-reduces of another recording (h100-pp4, pairs, 16 MiB).
"""

from __future__ import annotations

import json

import pytest
from helpers.recorded import data, rebuilt

from tracetool.model.action import ActionKind
from tracetool.network.collectives import Kind, collective_ns
from tracetool.network.tiers import Network, Tier

Shape = tuple[int, int]


def measured_ns() -> dict[tuple[str, int], float]:
    """By variant and bytes of the gathered tensor, bf16."""
    rows = json.loads(data("h100-tp", "measured.json").read_text(encoding="utf-8"))["results"]
    return {
        (row["variant"], row["shape"]["tokens"] * row["shape"]["hidden"] * 2): row["measured_ms"] * 1e6
        for row in rows
        if row["variant"] in ("ag_only", "rs_only")
    }


def fitted(ranks: int = 4) -> Network:
    """Three quarters of V over the bandwidth, and three latencies: two sizes of one collective give both."""
    small, large = ((size, ns) for (variant, size), ns in sorted(measured_ns().items()) if variant == "ag_only")
    bandwidth = 3 / 4 * (large[0] - small[0]) / (large[1] - small[1]) * 1e9
    latency = (small[1] - 3 / 4 * small[0] / bandwidth * 1e9) / 3
    return Network("four H100", (Tier("hb", ranks, round(bandwidth), round(latency)),))


def test_reduce_scatters_take_what_all_gathers_tell() -> None:
    network = fitted()
    for (variant, size), ns in measured_ns().items():
        kind: Kind = "allgather" if variant == "ag_only" else "reducescatter"
        assert collective_ns(network, kind, "ring", range(4), size) == pytest.approx(ns, rel=0.02), (variant, size)


def test_all_reduces_of_another_recording_are_near() -> None:
    """Pairs instead of fours: 77 us seen of 16 MiB, without the launch that a call by itself has."""
    found = rebuilt("tp2pp2_1f1b_m8")
    uses = [use for stage in found.pipeline.stages for uses in stage.collectives.values() for use in uses]
    assert {(use.operation, use.payload_bytes) for use in uses} == {("allreduce", 16_777_216)}
    predicted = collective_ns(fitted(), "allreduce", "ring", range(2), 16_777_216)
    for use in uses:
        assert predicted == pytest.approx(use.own_ns, rel=0.2)
    assert ActionKind.FORWARD in found.pipeline.stages[0].collectives
