"""Speed, side by side with the alternative in one run: pytest -n0 tests/benchmarks.

Not part of the default run; nothing here asserts a time.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES
from helpers.synthetic import pipeline

from tracetool.ingestion import ingest
from tracetool.model.scenario import Scenario
from tracetool.replays import replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_benchmark.fixture import BenchmarkFixture

SAMPLE = sorted((SAMPLES / "h100-1f1b").glob("rank*.json.gz"))


@pytest.mark.benchmark(group="read four ranks of the sample")
def test_ingest_to_parquet(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.extra_info["bytes"] = sum(len(gzip.decompress(p.read_bytes())) for p in SAMPLE)
    benchmark(lambda: ingest(SAMPLE, tmp_path / "x.run", force=True))


@pytest.mark.benchmark(group="read four ranks of the sample")
def test_standard_library_json_alone(benchmark: BenchmarkFixture) -> None:
    benchmark(lambda: [json.loads(gzip.decompress(path.read_bytes())) for path in SAMPLE])


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 64), (16, 256)])
@pytest.mark.benchmark(group="build and replay 1F1B")
def test_replay(benchmark: BenchmarkFixture, p: int, m: int) -> None:
    measured = pipeline(p, m, 10_000_000, 20_000_000)
    shape = measured.observed.shape
    benchmark(lambda: replay(measured, build_schedule("1f1b", shape), Scenario(p2p="posted-ahead")))
