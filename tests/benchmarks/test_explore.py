"""Speed and memory of a search: a million plans of 4,096 devices over three DCs.

Run with: pytest -n0 -s --benchmark-enable tests/benchmarks/test_explore.py. Nothing here asserts a time. Wanted are ten
minutes on 2 cores, below 1.5 GB, with 95 % of the plans ruled out by bounds.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.estimates.device import A100
from tracetool.estimates.training import Training
from tracetool.estimates.transformer import Experts, Transformer
from tracetool.explore.judge import Judge
from tracetool.explore.plan import JobPlan, Workload
from tracetool.explore.search import PlanSearch
from tracetool.explore.space import Space, read_axes
from tracetool.network.file import NetworkChoice
from tracetool.network.tiers import Network, Tier

if TYPE_CHECKING:
    import pytest
    from pytest_benchmark.fixture import BenchmarkFixture

    from tracetool.explore.search import SearchResults

GIGABYTE = 10**9
FLEET = Network("three DCs", (
    Tier("hb", 8, 450 * GIGABYTE, 1_000),
    Tier("pod", 512, 50 * GIGABYTE, 5_000),
    Tier("dc", 1536, 50 * GIGABYTE, 5_000, oversubscription=2.0),
    Tier("wan", 4608, 400 * GIGABYTE, 2_000_000, shared_by="pair", connections=64),
))  # fmt: skip
MODEL = Transformer(
    name="mixture", layers=128, hidden=16384, heads=128, kv_heads=8, ffn=16384, vocabulary=128256, gated=True,
    fused_attention=True, experts=Experts(16, 2),
)  # fmt: skip
DEVICE = replace(
    A100, name="H100", peak_flops=989 * 10**12, hbm_bandwidth_bytes_per_s=3 * 10**12, processors=132, kernel_ns=5000
)
HOW = Training(8, 16, 128, 1, 16384, 0.7, data=32, sharded_optimizer=True)
WHOLE = ["cp=1,2,4", "microbatch=1,2,4,8"]
FEW = ["tp=8", "pp=8,16", "cp=1", "ep=1", "microbatch=1", "schedule=1f1b,interleaved", "sharing=spatial"]


def test_a_million_plans(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    whole = request.config.getoption("--benchmark-enable")
    rule = "tp,dp,pp"
    workload = Workload(MODEL, DEVICE, NetworkChoice(FLEET, rule), DEVICE.hbm_bytes)
    space = Space(workload, JobPlan(HOW, rule), read_axes([], WHOLE if whole else FEW))

    def find() -> SearchResults:
        return PlanSearch(space, Judge(workload)).run()

    found = benchmark.pedantic(find, rounds=1)  # type: ignore[no-untyped-call]
    benchmark.extra_info["plans"] = found.candidates
    benchmark.extra_info["replayed"] = found.replayed
    benchmark.extra_info["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    ruled_out = sum(found.pruned.values())
    assert ruled_out + found.replayed + sum(found.refused.values()) == found.candidates
    assert found.is_proven
    if whole:
        assert found.candidates > 10**6
        assert ruled_out > 0.95 * found.candidates
