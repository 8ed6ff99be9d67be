"""Speed, side by side with the alternative in one run: pytest -n0 --benchmark-enable tests/benchmarks.

Nothing here asserts a time.
"""

from __future__ import annotations

import gzip
import json
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES
from helpers.synthetic import pipeline

from tracetool.ingestion import ingest
from tracetool.model.scenario import Scenario
from tracetool.replays import replay
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SAMPLE = sorted((SAMPLES / "h100-1f1b").glob("rank*.json.gz"))


@pytest.mark.benchmark(group="read four ranks of the sample")
def test_ingest_to_parquet(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    benchmark.extra_info["bytes"] = sum(len(gzip.decompress(p.read_bytes())) for p in SAMPLE)
    benchmark(lambda: ingest(SAMPLE, tmp_path / "x.run", force=True))


@pytest.mark.benchmark(group="read four ranks of the sample")
def test_standard_library_json_alone(benchmark: BenchmarkFixture) -> None:
    benchmark(lambda: [json.loads(gzip.decompress(path.read_bytes())) for path in SAMPLE])


@pytest.mark.parametrize(
    ("p", "m"), [(4, 8), *(pytest.param(*size, marks=pytest.mark.large) for size in ((8, 64), (16, 256)))]
)
@pytest.mark.benchmark(group="build and replay 1F1B")
def test_replay(benchmark: BenchmarkFixture, p: int, m: int) -> None:
    measured = pipeline(p, m, 10_000_000, 20_000_000)
    shape = measured.observed.shape
    benchmark(lambda: replay(measured, build_schedule("1f1b", shape), Scenario(p2p="posted-ahead")))


def test_the_table_of_published_cells_begins() -> None:
    lines = runpy.run_path(str(Path(__file__).with_name("crosspipe_cells.py")))["lines"]
    assert next(lines(0.0)).startswith("1F1B  case 1 ")
