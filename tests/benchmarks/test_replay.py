"""Speed of the replay engine beside a plain event loop of the same model.

Run with: pytest -n0 --benchmark-enable tests/benchmarks/test_replay.py. Nothing here asserts a time.
pytest-benchmark prints ratios within each group: what the compiled engine was built for stands beside the same in plain
Python. 1F1B, p=16 m=256 and p=64 m=512.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.engine_cases import ENGINES

from tracetool.model.pipeline import P2P_MODES
from tracetool.model.schedule import PipelineShape
from tracetool.model.topology import Topology
from tracetool.replays.compiled import Compiled
from tracetool.replays.engine import run
from tracetool.replays.flow import Slowdown
from tracetool.replays.sweeping import Durations
from tracetool.schedules import build_schedule

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from tracetool.model.pipeline import P2PMode
    from tracetool.replays.flow import Int64s

SIZES = [(4, 8), *(pytest.param(*size, marks=pytest.mark.large) for size in ((16, 256), (64, 512)))]


def compiled_1f1b(p: int, m: int, mode: P2PMode) -> tuple[Compiled, Int64s]:
    compiled = Compiled(build_schedule("1f1b", PipelineShape(p, m)), mode, Topology())
    durations = np.full(compiled.classes, 1_000, np.int64)
    kinds = compiled.graph.flow.kind
    durations[0] = 0
    durations[1 : len(kinds) + 1] = np.where(kinds == 0, 10_000_000, 20_000_000)
    return compiled, durations


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_one_replay(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, p: int, m: int, mode: P2PMode, engine: str
) -> None:
    """A sweep where the engine was built, else the event loop."""
    monkeypatch.setenv("TRACETOOL_ENGINE", engine)
    compiled, durations = compiled_1f1b(p, m, mode)
    compiled.times(durations)
    benchmark.group = f"replay p={p} m={m} {mode} ({compiled.graph.tasks} tasks)"
    benchmark(compiled.times, durations)


@pytest.mark.parametrize("slowed", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_event_loop(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, p: int, m: int, engine: str, *, slowed: bool
) -> None:
    """Also with computes that take half as long again beside a communication kernel."""
    monkeypatch.setenv("TRACETOOL_ENGINE", engine)
    compiled, durations = compiled_1f1b(p, m, "in-order")
    per_task = durations[compiled.class_of]
    slowdown = Slowdown(per_task * 3 // 2, (None,) * p) if slowed else None
    benchmark.group = f"event loop p={p} m={m} in-order{', interference' if slowed else ''}"
    benchmark(run, compiled.graph, per_task, compiled.link_of, "1f1b", slowdown)


@pytest.mark.parametrize(
    ("p", "m", "scenarios"),
    [(4, 8, 1), *(pytest.param(16, 256, count, marks=pytest.mark.large) for count in (1, 100, 1000))],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_many_scenarios(
    benchmark: BenchmarkFixture, monkeypatch: pytest.MonkeyPatch, p: int, m: int, scenarios: int, engine: str
) -> None:
    """Every duration differs from scenario to scenario."""
    monkeypatch.setenv("TRACETOOL_ENGINE", engine)
    compiled, base = compiled_1f1b(p, m, "in-order")
    varying = np.arange(1, compiled.classes, dtype=np.int32)
    values = np.random.default_rng(1).integers(1, 10**7, (len(varying), scenarios))
    last = compiled.graph.compute[compiled.graph.flow.first[1:] - 1]
    compiled.ends(Durations(base), last)
    benchmark.group = f"{scenarios} scenarios p={p} m={m} in-order"
    benchmark.extra_info["node-scenarios"] = compiled.graph.tasks * scenarios
    benchmark(compiled.ends, Durations(base, varying, values), last)


@pytest.mark.parametrize("mode", P2P_MODES)
@pytest.mark.parametrize(("p", "m"), SIZES)
def test_build_and_compile(benchmark: BenchmarkFixture, p: int, m: int, mode: P2PMode) -> None:
    """Order, checks, task graph and static plan."""
    benchmark.group = f"build and compile p={p} m={m}"

    def build() -> None:
        assert Compiled(build_schedule("1f1b", PipelineShape(p, m)), mode, Topology()).static_plan is not None

    benchmark(build)
