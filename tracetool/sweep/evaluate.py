"""From a column of a grid to its points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tracetool.depth import PEAK_ERROR_RATIO, fits, is_near_the_limit
from tracetool.errors import ScenarioError, ScheduleError
from tracetool.replay import p2p_of
from tracetool.replay.problem import pose
from tracetool.schedules import SCHEDULES, build_schedule
from tracetool.sweep.replays import Replays
from tracetool.sweep.results import SweepPoint
from tracetool.units import format_size
from tracetool.whatif import stages_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracetool.depth import Depth
    from tracetool.model.pipeline import Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import PipelineShape, Schedule
    from tracetool.sweep.column import Column, Swept


@dataclass(frozen=True, slots=True)
class Piece:
    """A column, or part of one, for one worker.

    Attributes:
        pipeline: What was measured.
        column: The points.
        chunks: Stages per rank that schedules of several get; None for as few as they take.
        time_limit_s: For optimal: how long to search, for each point.
    """

    pipeline: Pipeline
    column: Column
    chunks: int | None = None
    time_limit_s: float = 5.0


def evaluate(piece: Piece, advance: Callable[[int], None]) -> list[SweepPoint]:
    """Replay all points of a column; those that cannot be are kept with the reason.

    Args:
        piece: The column and what it is about.
        advance: Told how many points are done.
    """
    column = piece.column
    observed = piece.pipeline.observed.shape
    m = column.scenario.microbatches or observed.microbatches
    try:
        pipeline, shape, _ = stages_for(piece.pipeline, column.schedule, piece.chunks, m)
        points = list(_points(piece, pipeline, shape))
    except (ScheduleError, ScenarioError) as error:
        points = [_refused(piece, m, number, error) for number in range(column.size)]
    advance(len(points))
    return points


def _points(piece: Piece, pipeline: Pipeline, shape: PipelineShape) -> Iterator[SweepPoint]:
    column, scenarios = piece.column, piece.column.scenarios()
    if needs_costs(column.schedule):
        # Every link and limit has an order of its own.
        for number, scenario in enumerate(scenarios):
            replays = Replays(pipeline, shape, partial(_made_to_measure, piece, pipeline, shape, scenario), [scenario])
            try:
                yield _point(piece, replays, shape, (None, None), number, 0)
            except (ScheduleError, ScenarioError) as error:
                yield _refused(piece, shape.microbatches, number, error)
        return
    replays = Replays(pipeline, shape, partial(_order, column.schedule, pipeline, shape), scenarios)
    chosen: list[tuple[Depth | None, str | None]] = [(None, None)] * len(scenarios)
    if column.schedule.lower() == "geopipe":
        chosen = [*replays.depths(column.warm_up)]
    wanted: dict[Depth | None, list[int]] = {}
    for number, (extra, _) in enumerate(chosen):
        wanted.setdefault(extra, []).append(number)
    replays.load(wanted)
    for number, depth in enumerate(chosen):
        yield _point(piece, replays, shape, depth, number, number)


def needs_costs(name: str) -> bool:
    """Whether a schedule's order is made anew for every scenario."""
    return not name.startswith("csv:") and SCHEDULES.get(name).needs_costs


def _order(name: str, pipeline: Pipeline, shape: PipelineShape, extra: Depth | None) -> Schedule:
    return build_schedule(name, shape, extra_forwards=extra, observed=pipeline.observed)


def _made_to_measure(
    piece: Piece, pipeline: Pipeline, shape: PipelineShape, scenario: Scenario, _extra: Depth | None
) -> Schedule:
    posed = pose(pipeline, shape, scenario)
    return build_schedule(
        piece.column.schedule, shape, problem=posed.problem, judge=posed.judge, time_limit_s=piece.time_limit_s
    )


def _point(
    piece: Piece, replays: Replays, shape: PipelineShape, depth: tuple[Depth | None, str | None], number: int, at: int
) -> SweepPoint:
    """One point of a column, by number.

    Args:
        piece: Of which.
        replays: Where it is replayed, and under which number: ``at``.
        shape: Of the schedule.
        depth: Extra forwards, and what limited them.
        number: Of the point.
        at: See ``replays``.
    """
    extra, why = depth
    links, limit = _place(piece, number)
    scenario = replace(piece.column.scenario, topology=links.topology, hbm_bytes=limit)
    replays.load({extra: [at]})
    schedule = replays.order(extra).schedule
    metrics = replays.metrics(extra, at)
    feasible, shortage = fits(metrics, scenario)
    reasons = [why] if why and "limited by HBM" in why else []
    if shortage is not None:
        rank = piece.pipeline.ranks[shortage.rank].rank
        reasons = [f"rank {rank} lacks {format_size(shortage.missing_bytes)}"]
    elif feasible and is_near_the_limit(metrics, scenario):
        reasons.append(f"within {PEAK_ERROR_RATIO:.0%} of the HBM limit, as far as peaks were seen to be off")
    return SweepPoint(
        schedule=schedule.name,
        extra_forwards=schedule.extra_forwards,
        microbatches=shape.microbatches,
        p2p=p2p_of(schedule, piece.pipeline, scenario),
        bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
        latency_ns=links.latency_ns,
        hbm_bytes=limit,
        dcs=links.topology.dcs,
        step_ns=metrics.step_ns,
        window_ns=metrics.window_ns,
        bubble_ratio=metrics.bubble_ratio,
        peak_bytes=_highest(metrics.peak_hbm_bytes),
        feasible=feasible,
        reason="; ".join(reasons) or None,
        needed_bytes=_highest(metrics.needed_hbm_bytes),
        scenario=piece.column.name,
    )


def _place(piece: Piece, number: int) -> tuple[Swept, int | None]:
    """Links and memory limit of a point."""
    limits = piece.column.hbm_bytes
    return piece.column.links[number // len(limits)], limits[number % len(limits)]


def _highest(sizes: tuple[int | None, ...]) -> int | None:
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _refused(piece: Piece, microbatches: int, number: int, error: ScheduleError | ScenarioError) -> SweepPoint:
    column = piece.column
    links, limit = _place(piece, number)
    return SweepPoint(
        schedule=column.schedule,
        extra_forwards=column.warm_up if isinstance(column.warm_up, tuple) else None,
        microbatches=microbatches,
        p2p=column.scenario.p2p or piece.pipeline.p2p,
        bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
        latency_ns=links.latency_ns,
        hbm_bytes=limit,
        dcs=links.topology.dcs,
        reason=" ".join(error.message.split()),
        scenario=column.name,
    )
