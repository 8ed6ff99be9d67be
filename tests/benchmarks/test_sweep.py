"""Speed of sweeps beside calling ``replay`` for every point.

Run with: pytest -n0 -s --benchmark-enable tests/benchmarks/test_sweep.py. Nothing here asserts a time.
p=8, m=32: 1F1B, GPipe, eager 1F1B and geopipe with the depth chosen for every link; wanted are 10,000 points in 20 s on
2 cores within 1 GB.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from helpers.synthetic import pipeline

from tracetool.model.load import SustainedLoad
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.sweeps import Grid, sweep
from tracetool.whatif.depth import choose_depth

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from tracetool.model.pipeline import Pipeline

MS = 10**6
LOAD = SustainedLoad(25 * MS, 0.75, 0.255, 0.7, 0.1, 1.1, 0.3)


def measured(m: int, *, interference: bool) -> Pipeline:
    plain = pipeline(
        8, m, 5 * MS, 10 * MS, payload_bytes=16 << 20, transfer_ns=MS // 10, activation_bytes=1 << 30,
        static_bytes=4 << 30, p2p="in-order",
    )  # fmt: skip
    if not interference:
        return plain
    stages = tuple(
        replace(
            stage,
            costs={
                kind: tuple(
                    replace(c, uncontended_ns=c.duration_ns, contended_ns=c.duration_ns * 13 // 10) for c in costs
                )
                for kind, costs in stage.costs.items()
            },
        )
        for stage in plain.stages
    )
    return replace(plain, stages=stages, ranks=tuple(replace(rank, load=LOAD) for rank in plain.ranks))


def grid(side: int) -> Grid:
    """Four schedules over ``side`` bandwidths and as many latencies."""

    def spread(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(low * (high / low) ** (step / (side - 1))) for step in range(side))

    return Grid(
        ("1f1b", "gpipe", "eager-1f1b", "geopipe"), dcs=(Topology(("dc0",) * 4 + ("dc1",) * 4),),
        bandwidths_bytes_per_s=spread(10**9, 10**11), latencies_ns=spread(MS, 40 * MS), hbm_bytes=(40 << 30,),
    )  # fmt: skip


def one_by_one(measured: Pipeline, asked: Grid) -> int:
    points = 0
    for column in asked.columns():
        for links in column.links:
            scenario = replace(column.scenario, topology=links.topology, hbm_bytes=column.hbm_bytes[0])
            shape = measured.observed.shape
            extra = choose_depth("geopipe", measured, shape, scenario)[0] if column.schedule == "geopipe" else None
            order = build_schedule(column.schedule, shape, extra_forwards=extra)
            measure(replay(measured, order, scenario).timeline)
            points += 1
    return points


@pytest.mark.parametrize(
    ("m", "side", "jobs", "interference"),
    [
        (4, 2, 1, False),
        (4, 2, 2, True),
        *(pytest.param(32, 50, jobs, on, marks=pytest.mark.large) for jobs in (1, 2) for on in (False, True)),
    ],
)
def test_many_points(benchmark: BenchmarkFixture, m: int, side: int, jobs: int, *, interference: bool) -> None:
    pipe, asked = measured(m, interference=interference), grid(side)
    benchmark.group = f"{4 * side**2:,} points, interference {'on' if interference else 'off'}"
    found = benchmark.pedantic(sweep, (pipe, asked), {"jobs": jobs}, rounds=1)  # type: ignore[no-untyped-call]
    assert len(found.points) == 4 * side**2
    if side < 50:
        return
    kib = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    benchmark.extra_info["peak MB of this process, and of its largest child"] = [round(k / 1e3) for k in kib]
    assert kib[0] + jobs * kib[1] < 10**6


@pytest.mark.parametrize("interference", [False, True])
@pytest.mark.parametrize("how", ["sweep", "replay per point"])
@pytest.mark.parametrize(("m", "side"), [(4, 2), pytest.param(32, 5, marks=pytest.mark.large)])
def test_beside_replay_per_point(
    benchmark: BenchmarkFixture, m: int, side: int, how: str, *, interference: bool
) -> None:
    """Without knees."""
    pipe, asked = measured(m, interference=interference), grid(side)
    benchmark.group = f"{4 * side**2} points, interference {'on' if interference else 'off'}"
    if how == "sweep":
        benchmark.pedantic(sweep, (pipe, asked), {"jobs": 1, "knees": False}, rounds=1)  # type: ignore[no-untyped-call]
    else:
        assert benchmark.pedantic(one_by_one, (pipe, asked), rounds=1) == 4 * side**2  # type: ignore[no-untyped-call]
