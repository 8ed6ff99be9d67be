"""Run a sweep: here, in worker processes, or on a Dask cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tracetool.errors import ScheduleError
from tracetool.ingest.executors import Silent, in_processes, on_cluster, usable_cores
from tracetool.model.pipeline import Pipeline
from tracetool.sweep.evaluate import Piece, evaluate
from tracetool.sweep.grid import Grid
from tracetool.sweep.knee import seek
from tracetool.sweep.results import Sweep
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.ingest.executors import Progress
    from tracetool.reconstruct import Reconstruction

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
    knees: bool = True,
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
        knees: Whether to seek the knees as well.

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
    columns = [Piece(pipeline, column, chunks, time_limit_s) for grid in grids for column in grid.columns()]
    pieces = [replace(whole, column=part) for whole in columns for part in whole.column.parts(_LARGEST_PIECE)]
    bends = [piece for piece in columns if knees and piece.column.links[0].latency_ns is not None]
    workers = _Workers(progress or Silent(), jobs, executor)
    workers.progress.start(sum(piece.column.size for piece in pieces) + len(bends))
    points = workers.run(evaluate, pieces, [piece.column.size for piece in pieces])
    if points and all(point.step_ns is None for point in points):
        reasons = list(dict.fromkeys(f"{point.schedule}: {point.reason}" for point in points))
        raise ScheduleError(f"none of {format_count(len(points), 'point')} can be replayed. " + " ".join(reasons[:3]))
    return Sweep(tuple(points), tuple(workers.run(seek, bends, [1] * len(bends))))


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class _Workers:
    """Who does the work; see ``sweep``."""

    progress: Progress
    jobs: int | None
    executor: str | None

    def run(
        self,
        work: Callable[[Piece, Callable[[int], None]], list[_Found]],
        pieces: Sequence[Piece],
        sizes: Sequence[int],
    ) -> list[_Found]:
        """What is found for all pieces, in order."""
        count = min(len(pieces), _sensible_jobs(pieces) if self.jobs is None else self.jobs)
        if self.executor is not None and pieces:
            done = on_cluster(work, pieces, sizes, self.progress, self.executor)
        elif count > 1:
            done = in_processes(work, pieces, self.progress, count)
        else:
            done = [work(piece, self.progress.advance) for piece in pieces]
        return [one for found in done for one in found]


def _sensible_jobs(pieces: Sequence[Piece]) -> int:
    actions = sum(map(_actions, pieces))
    return max(1, min(usable_cores(), actions // _WORTH_ACTIONS))


def _actions(piece: Piece) -> int:
    """About so many actions are replayed for a piece's points, or its knees: some hundred links."""
    shape, column = piece.pipeline.observed.shape, piece.column
    orders = _DEPTHS if column.schedule.lower() == "geopipe" and column.warm_up is None else 1
    return len(column.links) * orders * 2 * shape.stages * (column.scenario.microbatches or shape.microbatches)
