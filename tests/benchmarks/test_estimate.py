"""Speed of estimates from shapes, many at once.

Run with: pytest -n0 -s --benchmark-enable tests/benchmarks/test_estimate.py. Nothing here asserts a time. Wanted are
100,000 estimates in 30 s on 2 cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from helpers.drawn_jobs import drawn_jobs
from helpers.recorded import ROOT

from tracetool.estimates.many import estimate_many
from tracetool.network.file import read_network

if TYPE_CHECKING:
    import pytest
    from pytest_benchmark.fixture import BenchmarkFixture


def test_estimates_per_second(benchmark: BenchmarkFixture, request: pytest.FixtureRequest) -> None:
    network = read_network(ROOT / "schemas" / "networks" / "a100.toml")
    jobs = drawn_jobs(3, 5000 if request.config.getoption("--benchmark-enable") else 20)
    benchmark.extra_info["estimates"] = len(jobs)
    assert len(benchmark(estimate_many, jobs, network)) == len(jobs)
