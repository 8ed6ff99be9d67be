"""A sweep gives of every schedule what ``tracetool replay`` answers, on the sample that comes with the tool."""

from __future__ import annotations

from helpers.recorded import SAMPLES, looked_at, run_of

from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology, parse_link
from tracetool.schedules import SCHEDULES
from tracetool.sweeps import Grid, sweep
from tracetool.whatif.answer import answer

DCS = ("dc0", "dc0", "dc1", "dc1")
HBM = 15 << 30


def test_points_are_what_replay_answers() -> None:
    """Stages re-cut by layers, two copies of them, orders made to measure; all but the search that takes time."""
    found = looked_at(run_of(SAMPLES / "h100-1f1b"))
    names = tuple(name for name in SCHEDULES.names() if name != "optimal")
    grid = Grid(
        names,
        bandwidths_bytes_per_s=(3_125_000_000,),
        latencies_ns=(10_000_000,),
        dcs=(Topology(DCS),),
        hbm_bytes=(HBM,),
    )
    points = sweep(found, grid, knees=False).points
    what_if = Scenario(topology=Topology(DCS, parse_link("dc0-dc1=25Gbit/s,10ms")), hbm_bytes=HBM)
    replayed = answer(found, names, what_if)
    assert not replayed.refused
    assert len(points) == len(replayed.results) == len(names)
    for point, result in zip(points, replayed.results, strict=True):
        metrics, peaks = result.metrics, result.metrics.peak_hbm_bytes
        assert (point.schedule, point.extra_forwards, point.p2p) == (result.schedule, result.extra_forwards, result.p2p)
        assert (point.step_ns, point.window_ns) == (metrics.step_ns, metrics.window_ns)
        assert (point.bubble_ratio, point.feasible) == (metrics.bubble_ratio, result.feasible)
        assert point.peak_bytes == (None if None in peaks else max(peak or 0 for peak in peaks))
    assert {point.feasible for point in points} >= {True, False}
