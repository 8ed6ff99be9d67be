"""A sweep against one replay, one measurement and one choice of depth per point."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from helpers.notices import codes
from helpers.synthetic import BYTE_PER_NS, pipeline
from helpers.thorough import some

from tracetool.errors import BadTopology, ScenarioError, ScheduleError
from tracetool.model.load import SustainedLoad
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import PipelineShape
from tracetool.model.timeline import measure
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays import replay
from tracetool.schedules import build_schedule
from tracetool.sweeps import Grid, Sweep, SweepPoint, sweep
from tracetool.sweeps.grid import Ways
from tracetool.whatif.depth import choose_depth
from tracetool.whatif.memory_limit import fits

if TYPE_CHECKING:
    from tracetool.model.pipeline import Pipeline

MS = 10**6
APART = ("dc0", "dc0", "dc1", "dc1")
THREE = ("dc0", "dc1", "dc1", "dc2")
LOAD = SustainedLoad(25 * MS, 0.75, 0.255, 0.7, 0.1, 1.1, 0.3)


def measured() -> Pipeline:
    """Four stages that slow down beside communication and under load, with memory."""
    plain = pipeline(
        4, 6, [5 * MS, 6 * MS, 5 * MS, 7 * MS], [11 * MS, 10 * MS, 12 * MS, 13 * MS],
        payload_bytes=2 * MS, transfer_ns=50_000, activation_bytes=100, transient_bytes=7,
        static_bytes=[50, 40, 40, 90], tail_ns=3 * MS, p2p="in-order",
    )  # fmt: skip
    stages = tuple(
        replace(
            stage,
            costs={
                kind: tuple(
                    replace(c, uncontended_ns=c.duration_ns, contended_ns=c.duration_ns * 4 // 3) for c in costs
                )
                for kind, costs in stage.costs.items()
            },
        )
        for stage in plain.stages
    )
    return replace(
        plain, stages=stages, ranks=tuple(replace(rank, load=LOAD, overhead_bytes=5) for rank in plain.ranks)
    )


GRID = Grid(
    schedules=("1f1b", "geopipe", "gpipe"),
    microbatches=(6, 7),
    extra_forwards=(None, 1, (2, 2, 0, 0)),
    bandwidths_bytes_per_s=(BYTE_PER_NS // 4, BYTE_PER_NS),
    latencies_ns=(1 * MS, 9 * MS),
    hbm_bytes=(600, 10_000),
    p2p=("in-order", "posted-ahead"),
    dcs=(Topology(APART), Topology(THREE)),
)


def alone(measured: Pipeline, point: SweepPoint, *, choose: bool) -> SweepPoint:
    """The point by ``replay``, ``measure``, ``fits`` and ``choose_depth``."""
    assert point.latency_ns is not None
    assert point.bandwidth_bytes_per_s is not None
    what_if = Scenario(
        topology=Ways(Topology(point.dcs)).at(point.latency_ns, point.bandwidth_bytes_per_s).topology,
        hbm_bytes=point.hbm_bytes,
        p2p=point.p2p,  # type: ignore[arg-type]
        microbatches=point.microbatches,
    )
    shape = PipelineShape(4, point.microbatches)
    extra = choose_depth(point.schedule, measured, shape, what_if)[0] if choose else point.extra_forwards
    metrics = measure(replay(measured, build_schedule(point.schedule, shape, extra_forwards=extra), what_if).timeline)
    return replace(
        point,
        extra_forwards=extra,
        step_ns=metrics.step_ns,
        window_ns=metrics.window_ns,
        bubble_ratio=metrics.bubble_ratio,
        peak_bytes=max(peak or 0 for peak in metrics.peak_hbm_bytes),
        needed_bytes=max(need or 0 for need in metrics.needed_hbm_bytes),
        feasible=fits(metrics, what_if),
    )


@pytest.mark.parametrize("interference", [True, False])
def test_every_point_is_what_it_is_alone(*, interference: bool) -> None:
    """Some of them: with interference over three DCs as well, without over two."""
    pipe = measured()
    grid = replace(
        GRID, extra_forwards=(None,), dcs=GRID.dcs if interference else (Topology(APART),), latencies_ns=(9 * MS,)
    )
    if not interference:
        grid = replace(grid, microbatches=(6,))
        pipe = replace(pipe, stages=pipeline(4, 6, 5 * MS, 11 * MS, payload_bytes=MS, activation_bytes=100).stages)
        pipe = replace(pipe, ranks=tuple(replace(rank, load=None) for rank in pipe.ranks))
    found = sweep(pipe, grid, knees=False)
    assert len(found.points) == 3 * len(grid.microbatches) * 2 * 2 * 2 * len(grid.dcs)
    for point in some(found.points[::5], 5):
        assert point == alone(pipe, point, choose=point.schedule == "geopipe")
    assert {point.feasible for point in found.points} == {True, False}
    lacking = {code for point in found.points if not point.feasible for code in codes(point.remarks)}
    assert lacking == {NoticeCode.HBM_LACKS}


def test_warm_ups_are_per_boundary_or_per_rank() -> None:
    pipe = measured()
    found = sweep(pipe, replace(GRID, schedules=("geopipe",), extra_forwards=(1, (2, 2, 0, 0))), knees=False)
    seen = {(point.dcs, point.extra_forwards) for point in found.points}
    assert seen == {(APART, (1, 1, 0, 0)), (THREE, (2, 1, 1, 0)), (APART, (2, 2, 0, 0)), (THREE, (2, 2, 0, 0))}
    for point in found.points[::11]:
        assert point == alone(pipe, point, choose=False)


def test_workers_find_the_same() -> None:
    grid = replace(
        GRID, schedules=("1f1b", "gpipe"), extra_forwards=(None,), dcs=(Topology(APART),), microbatches=(6,),
        p2p=("posted-ahead",), hbm_bytes=(600,),
    )  # fmt: skip
    assert sweep(measured(), grid, jobs=2) == sweep(measured(), grid, jobs=1)


def test_what_cannot_be_replayed_is_kept_with_its_reason() -> None:
    grid = replace(
        GRID, schedules=("1f1b", "zb-h1", "geopipe", "observed"), p2p=("grouped",), extra_forwards=(3,),
        dcs=(Topology(APART),), hbm_bytes=(600,),
    )  # fmt: skip
    found = sweep(measured(), grid)
    refused = {(p.schedule, p.microbatches): p.reason or "" for p in found.points if p.step_ns is None}
    assert "does not tell what" in refused["zb-h1", 6]
    assert "cannot finish" in refused["geopipe", 6]
    assert "cannot be stretched" in refused["observed", 7]
    assert {p.schedule for p in found.points if p.step_ns} == {"1f1b", "observed"}
    assert {p.feasible for p in found.points if p.step_ns is None} == {None}
    with pytest.raises(ScheduleError, match=r"none of 8 points.*does not tell"):
        sweep(measured(), replace(grid, schedules=("zb-h1",)))


def test_links_that_are_given_stay_and_others_are_swept() -> None:
    """Two boundaries: one link fixed, so a free one gives what a three-DC pipeline with just that link takes."""
    fixed = (Link("dc0", "dc1", BYTE_PER_NS, 4 * MS), Link("dc1", "dc0", BYTE_PER_NS, 4 * MS))
    grid = Grid(
        ("1f1b",), Scenario(topology=Topology(links=fixed)),
        bandwidths_bytes_per_s=(BYTE_PER_NS,), latencies_ns=(4 * MS, 9 * MS), dcs=(Topology(THREE),),
    )  # fmt: skip
    both = replace(grid, scenario=Scenario())
    pipe = measured()
    mixed, equal = sweep(pipe, grid).points, sweep(pipe, both).points
    assert mixed[0] == equal[0]
    assert (equal[0].step_ns or 0) < (mixed[1].step_ns or 0) < (equal[1].step_ns or 0)
    with pytest.raises(ScenarioError, match="fixes every one"):
        sweep(pipe, replace(grid, dcs=(Topology(APART),)))
    with pytest.raises(BadTopology, match="every pipeline rank sits in one DC"):
        sweep(pipe, replace(both, dcs=()))
    with pytest.raises(ScenarioError, match="no latency"):
        sweep(pipe, replace(both, latencies_ns=()))


def test_points_are_an_arrow_table() -> None:
    found = sweep(measured(), replace(GRID, microbatches=(6,), dcs=(Topology(APART),)), knees=False)
    frame = pl.DataFrame(pl.from_arrow(found.table()))
    assert frame.height == len(found.points)
    first = frame.row(0, named=True)
    assert first["dcs"] == [*APART]
    assert first["step_ns"] == found.points[0].step_ns
    assert frame["step_ns_per_microbatch"][0] == pytest.approx((found.points[0].step_ns or 0) / 6)
    assert frame.schema["extra_forwards"] == pl.List(pl.Int32)
    assert Sweep((), ()).table().num_rows == 0
    best = found.best_first()
    assert all(point.is_usable for point in best)
    assert [p.step_ns for p in best] == sorted(p.step_ns or 0 for p in best)
