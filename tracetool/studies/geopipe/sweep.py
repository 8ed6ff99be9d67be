"""Every combination of what is not published, replayed: 1F1B with either transfers, and 1F1B with extra forwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil
from typing import TYPE_CHECKING

from tracetool.estimates.stages import analytical_pipeline
from tracetool.model.action import ActionKind
from tracetool.model.notice import Silent
from tracetool.model.scenario import Scenario
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays.scenarios import replay_many
from tracetool.schedules import build_schedule
from tracetool.schedules.library.geopipe import extra_per_rank
from tracetool.studies.geopipe import BANDWIDTHS_GBIT_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.estimates.device import Accelerator
    from tracetool.estimates.training import Training
    from tracetool.estimates.transformer import Transformer
    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.schedule import Schedule

NS_PER_KM = 5_000
"""Light in fibre, one way."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One model on the machines.

    Attributes:
        model: The model.
        device: The accelerator.
        training: Everything but efficiency and microbatches, which the grid varies.
        hbm_bytes: Memory limit per device.
    """

    model: Transformer
    device: Accelerator
    training: Training
    hbm_bytes: int

    def pipeline(self, efficiency_ratio: float, microbatches: int) -> Pipeline:
        """The pipeline at one efficiency and so many microbatches."""
        how = replace(self.training, efficiency_ratio=efficiency_ratio, microbatches=microbatches)
        return analytical_pipeline(self.model, self.device, how)


@dataclass(frozen=True, slots=True)
class PaperGrid:
    """What is swept.

    Attributes:
        efficiency_ratios: Share of the peak of matrix products.
        microbatches: Microbatches per step.
        splits: Stages in each region.
        sharing: Equal messages that cross the link at once.
        bandwidths_gbit_per_s: Of the link.
        distances_km: Between neighbouring regions, all equal.
    """

    efficiency_ratios: tuple[float, ...] = (0.4, 0.55, 0.7)
    microbatches: tuple[int, ...] = (8, 12, 16, 18, 20, 24, 32, 64, 128, 320)
    splits: tuple[tuple[int, ...], ...] = ((3, 3, 2), (2, 3, 3), (4, 2, 2), (2, 2, 4))
    sharing: tuple[int, ...] = (1, 2, 4, 8)
    bandwidths_gbit_per_s: tuple[int, ...] = BANDWIDTHS_GBIT_PER_S
    distances_km: tuple[int, ...] = (10, 40, 80, 200, 400, 800, 1500, 3000)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each, in the order of the attributes."""
        return (
            len(self.efficiency_ratios), len(self.microbatches), len(self.splits),
            len(self.sharing), len(self.bandwidths_gbit_per_s), len(self.distances_km),
        )  # fmt: skip

    def speeds(self) -> tuple[int, ...]:
        """The different bandwidths that one message has of the link, in bytes/s, ascending."""
        return tuple(sorted({gbit * 10**9 // 8 // n for gbit in self.bandwidths_gbit_per_s for n in self.sharing}))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSweep:
    """What replay makes of a setting: arrays over efficiency, microbatches, split, sharing, bandwidth, distance.

    Attributes:
        setting: What was swept.
        grid: Over what.
        compute_ns: Compute of a stage in a step, mean over stages.
        window_ns: Window of 1F1B, by p2p mode.
        free_ns: The same with free links.
        deeper_ns: Shortest window of 1F1B with extra forwards at each boundary, within the memory limit.
        deeper_free_ns: Window of that order with free links.
        depth: Its extra forwards per boundary.
        feasible: Whether 1F1B fits the memory limit.
    """

    setting: Setting
    grid: PaperGrid
    compute_ns: NDArray[np.float64]
    window_ns: dict[P2PMode, NDArray[np.int64]]
    free_ns: dict[P2PMode, NDArray[np.int64]]
    deeper_ns: NDArray[np.int64]
    deeper_free_ns: NDArray[np.int64]
    depth: NDArray[np.int64]
    feasible: NDArray[np.bool_]


BASELINES: tuple[P2PMode, ...] = ("grouped", "posted-ahead")
"""1F1B as Megatron issues it, in blocking batches; and with ideal non-blocking transfers."""


@dataclass(frozen=True, slots=True)
class _Row:
    """All links of one efficiency, number of microbatches and split; the last of each is with free links."""

    windows: dict[P2PMode, list[int]] = field(default_factory=dict)
    by_depth: list[list[int]] = field(default_factory=list)


def sweep(setting: Setting, grid: PaperGrid, progress: Progress | None = None) -> PaperSweep:
    """Replay every point of a grid.

    Args:
        setting: What is replayed.
        grid: Over what.
        progress: Told of every efficiency, number of microbatches and split that is done.

    Raises:
        ScenarioError: If the model cannot be cut so.
    """
    import numpy as np

    progress = progress or Silent()
    speeds = grid.speeds()
    at_speed = np.array(
        [[speeds.index(gbit * 10**9 // 8 // n) for gbit in grid.bandwidths_gbit_per_s] for n in grid.sharing]
    )
    shape = grid.shape
    windows = {mode: np.empty(shape, np.int64) for mode in BASELINES}
    free = {mode: np.empty(shape, np.int64) for mode in BASELINES}
    deeper, deeper_free, depth = (np.empty(shape, np.int64) for _ in range(3))
    compute, feasible = np.empty(shape), np.empty(shape, np.bool_)
    for e, efficiency in enumerate(grid.efficiency_ratios):
        for m, microbatches in enumerate(grid.microbatches):
            pipeline = setting.pipeline(efficiency, microbatches)
            compute[e, m] = compute_ns(pipeline)
            feasible[e, m] = fits(pipeline, 0, (), setting.hbm_bytes)
            for s, split in enumerate(grid.splits):
                row = _row(setting, pipeline, split, [(v, km) for v in speeds for km in grid.distances_km])
                spread = (len(speeds), len(grid.distances_km))
                for mode in BASELINES:
                    of_mode = np.array(row.windows[mode])
                    windows[mode][e, m, s] = of_mode[:-1].reshape(spread)[at_speed]
                    free[mode][e, m, s] = of_mode[-1]
                by_depth = np.array(row.by_depth)
                best = by_depth[:, :-1].argmin(axis=0).reshape(spread)[at_speed]
                depth[e, m, s] = best
                deeper[e, m, s] = by_depth[:, :-1].min(axis=0).reshape(spread)[at_speed]
                deeper_free[e, m, s] = by_depth[:, -1][best]
                progress.advance(1)
    return PaperSweep(
        setting=setting, grid=grid, compute_ns=compute, window_ns=windows, free_ns=free, deeper_ns=deeper,
        deeper_free_ns=deeper_free, depth=depth, feasible=feasible,
    )  # fmt: skip


def _row(setting: Setting, pipeline: Pipeline, split: Sequence[int], links: Sequence[tuple[int, int]]) -> _Row:
    row = _Row()
    topologies = [regions(split, speed, km * NS_PER_KM) for speed, km in links]
    topologies.append(topologies[0].without_delays())
    order = build_schedule("1f1b", pipeline.observed.shape)
    row.windows["grouped"] = _windows(pipeline, order, topologies, "grouped")
    slowest = max(delay_ns(pipeline, speed, km * NS_PER_KM) for speed, km in links)
    for depth in range(hiding_depth(pipeline, slowest) + 2):
        if depth and not fits(pipeline, depth, split, setting.hbm_bytes):
            break
        row.by_depth.append(_windows(pipeline, deeper(pipeline, split, depth), topologies, "posted-ahead"))
    row.windows["posted-ahead"] = row.by_depth[0]
    return row


def _windows(pipeline: Pipeline, schedule: Schedule, topologies: Sequence[Topology], mode: P2PMode) -> list[int]:
    scenarios = [Scenario(topology=topology, p2p=mode) for topology in topologies]
    return [done.window_ns for done in replay_many(pipeline, schedule, scenarios)]


def regions(split: Sequence[int], bandwidth_bytes_per_s: int, latency_ns: int) -> Topology:
    """Regions of so many consecutive stages, equal links between neighbours both ways."""
    dcs = tuple(f"dc{number}" for number, size in enumerate(split) for _ in range(size))
    links = tuple(
        Link(f"dc{a}", f"dc{b}", bandwidth_bytes_per_s, latency_ns)
        for n in range(len(split) - 1)
        for a, b in ((n, n + 1), (n + 1, n))
    )
    return Topology(dcs, links)


def deeper(pipeline: Pipeline, split: Sequence[int], depth: int) -> Schedule:
    """1F1B with so many extra forwards upstream of every boundary."""
    shape = pipeline.observed.shape
    ends = [sum(split[: n + 1]) - 1 for n in range(len(split) - 1)]
    extra = extra_per_rank(shape.ranks, dict.fromkeys(ends, depth))
    return build_schedule("geopipe", shape, extra_forwards=extra)


def cycle_ns(pipeline: Pipeline) -> int:
    """Forward and backward of a microbatch, f + B, on the slowest stage."""
    return max(sum(costs[0].duration_ns for costs in stage.costs.values()) for stage in pipeline.stages)


def compute_ns(pipeline: Pipeline) -> float:
    """Compute of a stage in a step, mean over stages."""
    totals = [sum(c.duration_ns for costs in stage.costs.values() for c in costs) for stage in pipeline.stages]
    return sum(totals) / len(totals)


def payload_bytes(pipeline: Pipeline) -> int:
    """What crosses a boundary per microbatch and direction."""
    return pipeline.stages[0].forward_payload_bytes or 0


def delay_ns(pipeline: Pipeline, bandwidth_bytes_per_s: int, latency_ns: int) -> float:
    """One-way delay of a message, c = L + S/BW."""
    return latency_ns + payload_bytes(pipeline) / bandwidth_bytes_per_s * 1e9


def hiding_depth(pipeline: Pipeline, delay_ns: float) -> int:
    """ceil(2c / (f + B)): extra forwards per boundary that hide a delay (derived model, see the geopipe schedule)."""
    shortest = min(sum(costs[0].duration_ns for costs in stage.costs.values()) for stage in pipeline.stages)
    return ceil(2 * delay_ns / shortest)


def peak_bytes(pipeline: Pipeline, depth: int, split: Sequence[int]) -> tuple[int, ...]:
    """Highest allocation of each stage: static, min(m, p - i + extra) microbatches, what an action needs besides."""
    shape = pipeline.observed.shape
    extra = deeper(pipeline, split, depth).extra_forwards if depth else None
    peaks = []
    for rank, (stage, profile) in enumerate(zip(pipeline.stages, pipeline.ranks, strict=True)):
        held = min(shape.microbatches, shape.ranks - rank + (extra[rank] if extra else 0))
        transient = stage.costs[ActionKind.BACKWARD][0].peak_bytes or 0
        peaks.append((profile.static_bytes or 0) + held * (stage.activation_bytes() or 0) + transient)
    return tuple(peaks)


def fits(pipeline: Pipeline, depth: int, split: Sequence[int], hbm_bytes: int) -> bool:
    """Whether every stage stays within the memory limit."""
    return max(peak_bytes(pipeline, depth, split)) <= hbm_bytes
