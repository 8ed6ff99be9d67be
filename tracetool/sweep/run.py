"""Run a sweep: here, in worker processes, or on a Dask cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.errors import ScheduleError
from tracetool.ingest.executors import Silent, in_processes, on_cluster, usable_cores
from tracetool.model.pipeline import Pipeline
from tracetool.sweep.evaluate import Piece, evaluate
from tracetool.sweep.grid import Grid
from tracetool.sweep.results import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.ingest.executors import Progress
    from tracetool.reconstruct import Reconstruction
    from tracetool.sweep.results import SweepPoint

_WORTH_ACTIONS = 2_000_000
"""Actions to replay (one or two seconds) for which starting another worker pays."""

_DEPTHS = 12
"""About so many warm-ups are replayed where the best one is chosen."""

_LARGEST_PIECE = 500
"""Points of one piece of work: as many are done before the progress bar moves."""


def sweep(
    found: Reconstruction | Pipeline,
    grids: Grid | Sequence[Grid],
    *,
    progress: Progress | None = None,
    jobs: int | None = None,
    executor: str | None = None,
    chunks: int | None = None,
    time_limit_s: float = 5.0,
) -> Sweep:
    """Replay every point of one or several grids.

    Args:
        found: A reconstructed Run, or the pipeline of one.
        grids: What to combine; several are done one after another.
        progress: Told how many points there are, and how many are done.
        jobs: Worker processes; by default as many as cores and the size of the grids allow.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        chunks: Stages per rank that schedules of several get; by default as few as they take.
        time_limit_s: For optimal: how long to search, for each point.

    Raises:
        BadTopology: If a DC map or link does not fit the pipeline.
        IngestError: If the workers cannot be used.
        ScenarioError: If figures of links do not belong together.
        ScheduleError: If no point can be replayed.
        UnknownName: If there is no such schedule.
    """
    pipeline = found if isinstance(found, Pipeline) else found.pipeline
    grids = [grids] if isinstance(grids, Grid) else list(grids)
    for grid in grids:
        grid.check(pipeline.observed.shape.ranks)
    pieces = [
        replace(whole, column=part)
        for grid in grids
        for whole in (Piece(pipeline, column, chunks, time_limit_s) for column in grid.columns())
        for part in whole.column.parts(_LARGEST_PIECE)
    ]
    points = tuple(_work(pieces, progress or Silent(), jobs, executor))
    if points and all(point.step_ns is None for point in points):
        reasons = list(dict.fromkeys(f"{point.schedule}: {point.reason}" for point in points))
        raise ScheduleError(f"none of {len(points):,} points can be replayed. " + " ".join(reasons[:3]))
    return Sweep(points, ())


def _work(pieces: Sequence[Piece], progress: Progress, jobs: int | None, executor: str | None) -> Iterator[SweepPoint]:
    sizes = [piece.column.size for piece in pieces]
    progress.start(sum(sizes))
    count = min(len(pieces), _sensible_jobs(pieces) if jobs is None else jobs)
    if executor is not None:
        done = on_cluster(evaluate, pieces, sizes, progress, executor)
    elif count > 1:
        done = in_processes(evaluate, pieces, progress, count)
    else:
        done = [evaluate(piece, progress.advance) for piece in pieces]
    return (point for points in done for point in points)


def _sensible_jobs(pieces: Sequence[Piece]) -> int:
    actions = sum(map(_actions, pieces))
    return max(1, min(usable_cores(), actions // _WORTH_ACTIONS))


def _actions(piece: Piece) -> int:
    """About so many actions are replayed."""
    shape, column = piece.pipeline.observed.shape, piece.column
    orders = _DEPTHS if column.schedule.lower() == "geopipe" and column.warm_up is None else 1
    return len(column.links) * orders * 2 * shape.stages * (column.scenario.microbatches or shape.microbatches)
