"""A sweep over the links that were measured ranks depths and schedules as the machine did."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from helpers.recorded import data, rebuilt

from tracetool.model.topology import Topology
from tracetool.schedules.names import schedule_name
from tracetool.sweeps import Grid, sweep
from tracetool.validation.measured import MeasuredStep, p2p_mode, read_measurements

DCS = ("dc0", "dc0", "dc1", "dc1")
Choice = tuple[str, tuple[int, ...] | None, str, int | None, int | None]


def _choice(row: MeasuredStep) -> Choice:
    """Schedule, depth and transfers of a row, and the figures of its link, if it has one."""
    extra = None if row.extra_forwards is None else tuple(row.extra_forwards)
    link = row.links[0].rank_link() if row.links else None
    figures = (None, None) if link is None else (link.latency_ns, link.bandwidth_bytes_per_s)
    return schedule_name(row.schedule), extra, p2p_mode(row.p2p) or "", *figures


@cache
def _predicted() -> dict[Choice, int]:
    """Step times of all schedules, depths and modes: without a link, and over both links at both latencies."""
    grids = [
        Grid(("1f1b", "gpipe", "zb-h1", "interleaved"), p2p=("grouped", "in-order", "per-edge")),
        Grid(("geopipe",), p2p=("in-order", "per-edge"), extra_forwards=tuple((n, n, 0, 0) for n in (0, 1, 2, 4))),
    ]
    latencies, bandwidths = (2_000_000, 10_000_000), (12_500_000_000, 3_125_000_000)
    apart = [replace(g, dcs=(Topology(DCS),), latencies_ns=latencies, bandwidths_bytes_per_s=bandwidths) for g in grids]
    found = sweep(rebuilt("rt1f1b_m8"), [*grids, *apart], knees=False)
    return {
        (p.schedule, p.extra_forwards, p.p2p, p.latency_ns, p.bandwidth_bytes_per_s): p.step_ns
        for p in found.points
        if p.step_ns is not None
    }


@pytest.mark.parametrize("over", ["all", "no link", "2 ms", "10 ms"])
def test_rows_that_differ_by_more_than_a_percent_are_ranked_as_measured(over: str) -> None:
    """Kendall's tau over the pairs of rows that differ by more than 1 %: concordant less discordant, over all."""
    rows = [r for r in read_measurements(data("h100-pp4", "measured.json")).steps if r.tensor_parallel == 1]
    predicted = _predicted()
    place = {"no link": None, "2 ms": 2_000_000, "10 ms": 10_000_000}
    steps = [
        (row.step_ms, predicted[_choice(row)])
        for row in rows
        if row.step_ms is not None and (over == "all" or _choice(row)[3] == place[over])
    ]
    assert len(steps) == {"all": 21, "no link": 9, "2 ms": 7, "10 ms": 5}[over]
    apart = [(a, b) for a, b in combinations(steps, 2) if abs(a[0] - b[0]) > 0.01 * min(a[0], b[0])]
    agreeing = sum((a[0] < b[0]) == (a[1] < b[1]) for a, b in apart)
    tau = (2 * agreeing - len(apart)) / len(apart)
    assert tau >= 0.95, [(a, b) for a, b in apart if (a[0] < b[0]) != (a[1] < b[1])]
