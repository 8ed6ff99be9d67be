"""The cross-DC bandwidth beyond which more does not pay: by formula, and as replay shows it.

Formula (derived model of this tool, not the paper's; equal stages, one boundary, non-blocking transfers):
  BW* = max(n S / (f + B), n S / (N (f + B) / 2 - L)),
with S a message, n equal ones at once, L the latency, N the extra forwards that memory allows at the boundary. The
first keeps the link from being the slowest stage, the second lets N forwards hide what a message takes.

Whether the setting fits the memory of the devices, by micro-batch size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.scenario import Scenario
from tracetool.replays.scenarios import replay_many
from tracetool.schedules import build_schedule
from tracetool.studies.geopipe.sweep import (
    NS_PER_KM,
    cycle_ns,
    deeper,
    fits,
    hiding_depth,
    payload_bytes,
    peak_bytes,
    regions,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import Schedule
    from tracetool.studies.geopipe.sweep import Setting

GAIN_PER_DOUBLING = 0.01
"""A bandwidth is enough where twice as much shortens the step by less than this."""

_STEPS_PER_DOUBLING = 8
_LADDER_BYTES_PER_S = tuple(
    round(125_000_000 * 2 ** (step / _STEPS_PER_DOUBLING)) << doubling
    for doubling in range(15)
    for step in range(_STEPS_PER_DOUBLING)
)
"""1 Gbit/s to 32 Tbit/s; each step is exactly half of the one a doubling later."""

_PUBLISHED_BYTES_PER_S = (25 * 10**9, 50 * 10**9)
"""200 and 400 Gbit/s."""


@dataclass(frozen=True, slots=True)
class Optimum:
    """How much bandwidth is enough at one distance.

    Attributes:
        sharing: Equal messages that cross the link at once.
        distance_km: Between neighbouring regions.
        throughput_bytes_per_s: First term of BW*.
        hiding_bytes_per_s: Second term; None if no bandwidth lets the forwards that fit hide the latency.
        depth_limit: Extra forwards per boundary that memory allows.
        knee_bytes_per_s: Smallest bandwidth that is enough for 1F1B with extra forwards, replayed; None if beyond
            what was tried.
        baseline_knee_bytes_per_s: The same for 1F1B with blocking transfers.
        gain_ratio: What 400 instead of 200 Gbit/s takes off the window of 1F1B with extra forwards.
        baseline_gain_ratio: The same for 1F1B with blocking transfers.
    """

    sharing: int
    distance_km: int
    throughput_bytes_per_s: int
    hiding_bytes_per_s: int | None
    depth_limit: int
    knee_bytes_per_s: int | None
    baseline_knee_bytes_per_s: int | None
    gain_ratio: float
    baseline_gain_ratio: float

    @property
    def formula_bytes_per_s(self) -> int | None:
        """BW*."""
        if self.hiding_bytes_per_s is None:
            return None
        return max(self.throughput_bytes_per_s, self.hiding_bytes_per_s)


def find_optimum(
    setting: Setting,
    efficiency_ratio: float,
    microbatches: int,
    split: Sequence[int],
    sharing: int,
    distance_km: int,
) -> Optimum:
    """How much bandwidth is enough, by formula and by replay."""
    pipeline = setting.pipeline(efficiency_ratio, microbatches)
    latency = distance_km * NS_PER_KM
    cycle, payload = cycle_ns(pipeline), payload_bytes(pipeline) * sharing
    limit = depth_limit(pipeline, split, setting.hbm_bytes)
    spare = limit * cycle / 2 - latency
    speeds = [speed for speed in _LADDER_BYTES_PER_S if speed * cycle >= payload * 10**9 // 4]
    links = [(speed // sharing, latency) for speed in (*speeds, *_PUBLISHED_BYTES_PER_S)]
    # Where a message occupies the link for longer than f + B, no warm-up helps.
    depths = range(min(limit, hiding_depth(pipeline, latency + cycle)) + 1)
    hidden = _shortest(pipeline, [deeper(pipeline, split, depth) for depth in depths], "posted-ahead", split, links)
    plain = _shortest(pipeline, [build_schedule("1f1b", pipeline.observed.shape)], "grouped", split, links)
    return Optimum(
        sharing=sharing,
        distance_km=distance_km,
        throughput_bytes_per_s=round(payload / cycle * 1e9),
        hiding_bytes_per_s=round(payload / spare * 1e9) if spare > 0 else None,
        depth_limit=limit,
        knee_bytes_per_s=_knee(speeds, hidden),
        baseline_knee_bytes_per_s=_knee(speeds, plain),
        gain_ratio=1 - hidden[-1] / hidden[-2],
        baseline_gain_ratio=1 - plain[-1] / plain[-2],
    )


def depth_limit(pipeline: Pipeline, split: Sequence[int], hbm_bytes: int) -> int:
    """The most extra forwards at every boundary that memory allows; as many as there are microbatches at most."""
    return next(
        (
            depth
            for depth in range(pipeline.observed.shape.microbatches)
            if not fits(pipeline, depth + 1, split, hbm_bytes)
        ),
        pipeline.observed.shape.microbatches,
    )


def _shortest(
    pipeline: Pipeline,
    orders: Sequence[Schedule],
    mode: P2PMode,
    split: Sequence[int],
    links: Sequence[tuple[int, int]],
) -> list[int]:
    """Per link, the shortest window of the orders."""
    scenarios = [Scenario(topology=regions(split, *link), p2p=mode) for link in links]
    windows_ns = [[done.window_ns for done in replay_many(pipeline, order, scenarios)] for order in orders]
    return [min(of_link) for of_link in zip(*windows_ns, strict=True)]


def _knee(speeds: Sequence[int], windows: Sequence[int]) -> int | None:
    """The smallest bandwidth from which on doubling gains too little."""
    count = len(speeds) - _STEPS_PER_DOUBLING
    short = [i for i in range(count) if windows[i] / windows[i + _STEPS_PER_DOUBLING] - 1 >= GAIN_PER_DOUBLING]
    first = short[-1] + 1 if short else 0
    return speeds[first] if first < count else None


@dataclass(frozen=True, slots=True)
class Need:
    """What the stage that needs most needs of a device's memory.

    Attributes:
        batch: Sequences per microbatch.
        static_bytes: Weights, gradients and optimizer of the first stage.
        activation_bytes: What one microbatch keeps there.
        peak_bytes: Highest allocation of any stage with 1F1B.
        deeper_peak_bytes: The same with one extra forward at each boundary.
        fits: Whether 1F1B fits.
        depth_limit: Extra forwards at each boundary that fit; None if 1F1B does not.
    """

    batch: int
    static_bytes: int
    activation_bytes: int
    peak_bytes: int
    deeper_peak_bytes: int
    fits: bool
    depth_limit: int | None


def needs(setting: Setting, microbatches: int, split: Sequence[int], batches: Sequence[int]) -> tuple[Need, ...]:
    """What each micro-batch size needs, by formula: static + microbatches in flight + what an action needs besides."""
    needed = []
    for batch in batches:
        at = replace(setting, training=replace(setting.training, batch=batch))
        pipeline = at.pipeline(setting.training.efficiency_ratio, microbatches)
        peak = max(peak_bytes(pipeline, 0, split))
        fits = peak <= setting.hbm_bytes
        needed.append(
            Need(
                batch=batch,
                static_bytes=pipeline.ranks[0].static_bytes or 0,
                activation_bytes=pipeline.stages[0].activation_bytes() or 0,
                peak_bytes=peak,
                deeper_peak_bytes=max(peak_bytes(pipeline, 1, split)),
                fits=fits,
                depth_limit=depth_limit(pipeline, split, setting.hbm_bytes) if fits else None,
            )
        )
    return tuple(needed)
