"""Knee and hidden latency hold what they say of drawn pipelines at, below and beyond them, whatever the grid.

Judged by points of other sweeps, over these links alone: each has its depth chosen anew, and is what ``replay`` and
``choose_depth`` say of it (test_sweep).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, looked_at, run_of
from helpers.synthetic import pipeline
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracetool.model.load import SustainedLoad
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.sweeps import Grid, sweep
from tracetool.sweeps.bend import KNEE_RATIO, MOST_LATENCY_NS, TOLERANCE_RATIO, UNLIMITED_BYTES_PER_S
from tracetool.sweeps.grid import Ways

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.sweeps import Knee

MS = 10**6
LOAD = SustainedLoad(25 * MS, 0.75, 0.255, 0.7, 0.1, 1.1, 0.3)
BEYOND = (1 + 2 * TOLERANCE_RATIO, 1.03, 1.1, 1.25, 1.4, 1.7, 2, 3, 5, 17)


@dataclass(frozen=True)
class Asked:
    """A pipeline, a schedule for it, and what is held."""

    measured: Pipeline
    schedule: str
    dcs: tuple[str, ...]
    p2p: P2PMode
    latency_ns: int
    hbm_bytes: int | None

    def grid(self, bandwidths: Sequence[int], latencies: Sequence[int]) -> Grid:
        return Grid(
            (self.schedule,), dcs=(Topology(self.dcs),), p2p=(self.p2p,), bandwidths_bytes_per_s=tuple(bandwidths),
            latencies_ns=tuple(latencies), hbm_bytes=() if self.hbm_bytes is None else (self.hbm_bytes,),
        )  # fmt: skip

    def knee(self, bandwidths: Sequence[int], latencies: Sequence[int]) -> Knee:
        knees = sweep(self.measured, self.grid(bandwidths, latencies)).knees
        return next(k for k in knees if k.at_latency_ns == self.latency_ns)

    def steps_ns(self, latencies: Sequence[int], bandwidths: Sequence[int]) -> dict[tuple[int, int], int]:
        """The step over each latency and bandwidth."""
        grid = replace(self.grid(bandwidths, latencies), name="judge")
        points = sweep(self.measured, grid, knees=False).points
        return {(p.latency_ns or 0, p.bandwidth_bytes_per_s or 0): p.step_ns or 0 for p in points}

    def gains(self, bandwidths: Sequence[int]) -> list[float]:
        """What share of the step twice each bandwidth saves."""
        steps = self.steps_ns([self.latency_ns], [b * times for b in bandwidths for times in (1, 2)])
        both = [(steps[self.latency_ns, b], steps[self.latency_ns, 2 * b]) for b in bandwidths]
        return [(here - twice) / here for here, twice in both]

    def above_the_floor(self, latencies: Sequence[int]) -> list[float]:
        """By how much of it a step is above free links and one microbatch's way down all boundaries and back."""
        free = Scenario(topology=Topology(self.dcs), p2p=self.p2p, hbm_bytes=self.hbm_bytes)
        free = replace(free, topology=Ways(free.topology).at(0, UNLIMITED_BYTES_PER_S).topology.without_delays())
        (at_free,) = sweep(self.measured, Grid((self.schedule,), free), knees=False).points
        boundaries = sum(a != b for a, b in pairwise(self.dcs))
        steps = self.steps_ns(latencies, [UNLIMITED_BYTES_PER_S])
        # Even there a message occupies a link: 40 MB for some 36 ns.
        payload = self.measured.stages[0].forward_payload_bytes or 0
        occupied = Link("a", "b", UNLIMITED_BYTES_PER_S, 0).occupancy_ns(payload)
        floors = {latency: (at_free.step_ns or 0) + 2 * boundaries * (latency + occupied) for latency in latencies}
        return [steps[latency, UNLIMITED_BYTES_PER_S] / floors[latency] - 1 for latency in latencies]


@st.composite
def drawn(draw: st.DrawFn) -> Asked:
    p, m = draw(st.integers(2, 4)), draw(st.integers(3, 12))
    times = st.lists(st.integers(MS, 12 * MS), min_size=p, max_size=p)
    plain = pipeline(
        p, m, draw(times), draw(times), payload_bytes=draw(st.integers(10_000, 40_000_000)), activation_bytes=10,
        static_bytes=100, tail_ns=draw(st.integers(0, 30 * MS)), p2p="in-order",
    )  # fmt: skip
    cuts = draw(st.sets(st.integers(1, p - 1), min_size=1, max_size=2))
    dcs = tuple(f"dc{sum(cut <= rank for cut in cuts)}" for rank in range(p))
    schedule = draw(st.sampled_from(["geopipe", "geopipe", "geopipe", "1f1b", "gpipe"]))
    mode: P2PMode = draw(st.sampled_from(["in-order", "per-edge"]))
    room = draw(st.none() | st.integers(0, 6))
    hbm = None if room is None else 100 + 10 * (p + room)
    return Asked(
        _slowed(plain) if draw(st.booleans()) else plain, schedule, dcs, mode, draw(st.integers(0, 40 * MS)), hbm
    )


def _slowed(plain: Pipeline) -> Pipeline:
    """The same with computes that slow down beside communication and under load."""
    stages = tuple(
        replace(
            stage,
            costs={
                kind: tuple(replace(c, uncontended_ns=c.duration_ns, contended_ns=c.duration_ns * 4 // 3) for c in each)
                for kind, each in stage.costs.items()
            },
        )
        for stage in plain.stages
    )
    return replace(plain, stages=stages, ranks=tuple(replace(rank, load=LOAD) for rank in plain.ranks))


def hold(asked: Asked) -> None:
    """Hold the knee and the hidden latency of one question."""
    knee = asked.knee((10**9,), (asked.latency_ns,))
    elsewhere = asked.knee((3 * 10**7, 10**12), (asked.latency_ns, asked.latency_ns + 7 * MS))
    assert (knee.bandwidth_bytes_per_s, knee.hidden_latency_ns) == (
        elsewhere.bandwidth_bytes_per_s,
        elsewhere.hidden_latency_ns,
    )
    at, hidden = knee.bandwidth_bytes_per_s, knee.hidden_latency_ns
    assert at is not None
    below, *on = asked.gains([round(at * times) for times in (1 - TOLERANCE_RATIO, 1, *BEYOND)])
    assert below >= KNEE_RATIO > max(on)
    assert hidden is not None
    beyond = [latency for times in BEYOND if (latency := round(hidden * times) + 2) <= MOST_LATENCY_NS]
    there, *higher = asked.above_the_floor([hidden, *beyond])
    assert there <= KNEE_RATIO < min([*higher, 1])


# A small pipeline by default (below); others have limits, boundaries and depths of their own.
@pytest.mark.thorough
@given(drawn())
@settings(max_examples=6, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_of_drawn_pipelines(asked: Asked) -> None:
    hold(asked)


@cache
def _sample() -> Pipeline:
    return looked_at(run_of(SAMPLES / "h100-1f1b")).pipeline


def test_of_a_small_pipeline() -> None:
    """Two stages, the second one slower, with a tail and room for two more microbatches."""
    small = pipeline(
        2, 4, [3 * MS, 4 * MS], [5 * MS, 8 * MS], payload_bytes=10**6, activation_bytes=10, static_bytes=100,
        tail_ns=2 * MS, p2p="in-order",
    )  # fmt: skip
    hold(Asked(small, "geopipe", ("dc0", "dc1"), "in-order", 6 * MS, 140))


# A small pipeline by default (above).
@pytest.mark.thorough
@pytest.mark.parametrize("schedule", ["1f1b", "geopipe"])
def test_of_the_sample(schedule: str) -> None:
    hold(Asked(_sample(), schedule, ("dc0", "dc0", "dc1", "dc1"), "in-order", 10 * MS, 80 << 30))
