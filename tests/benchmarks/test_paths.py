"""Speed of replay over paths of none to three links, side by side.

Run with: pytest -n0 --benchmark-enable tests/benchmarks/test_paths.py. Nothing here asserts a time. What one link took
before beside what it takes now: ``over_one_link.py``.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.engine_cases import ENGINES
from helpers.routed import between_two

from tracetool.model.schedule import PipelineShape
from tracetool.replays.compiled import Compiled
from tracetool.replays.engine import run
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = [(4, 8), *(pytest.param(*size, marks=pytest.mark.large) for size in ((16, 256), (64, 512)))]


def compiled_1f1b(p: int, m: int, links: int) -> Compiled:
    order = build_schedule("1f1b", PipelineShape(p, m))
    return Compiled(order, "in-order", between_two([1] * p, [(1, 1)] * links, 1))


@pytest.mark.parametrize("links", range(4))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["sweep", "event loop"])
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_one_replay(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, p: int, m: int, how: str, engine: str, links: int
) -> None:
    monkeypatch.setenv("TRACETOOL_ENGINE", engine)
    compiled = compiled_1f1b(p, m, links)
    durations = np.full(compiled.classes, 10**6, np.int64)
    durations[0] = 0
    per_task = durations[compiled.class_of]
    benchmark.group = f"{how}, {engine}, p={p} m={m}, a path for every pair"
    if how == "sweep":
        assert compiled.static_plan is not None
        benchmark(compiled.times, durations)
    else:
        benchmark(run, compiled.graph, per_task, compiled.link_of, "1f1b")


@pytest.mark.parametrize("links", range(4))
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_compile(benchmark: BenchmarkFixture, p: int, m: int, links: int) -> None:
    benchmark.group = f"compile p={p} m={m}, a path for every pair"
    benchmark(lambda: compiled_1f1b(p, m, links).static_plan)


def test_what_is_measured_beside_a_commit_before_runs() -> None:
    measured = runpy.run_path(str(Path(__file__).with_name("over_one_link.py")))["cpu_ns"](4, 4, 2, 1)
    assert len(measured) == 7
