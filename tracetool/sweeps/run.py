"""Run a sweep: here, in worker processes, or on a Dask cluster.

What a user should know beside the figures of a sweep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from tracetool.costs.rescaled import with_layers
from tracetool.errors import Option, ScheduleError, checked, command_or_call
from tracetool.ingestion.executors import in_processes, on_cluster, usable_cores
from tracetool.model.notice import Notice, NoticeCode, Notices, SubjectKind, unasked
from tracetool.model.pipeline import Pipeline
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import measure
from tracetool.schedules import tuning_of
from tracetool.sweeps.evaluate import ColumnPiece, evaluate
from tracetool.sweeps.grid import AS_RECORDED, Grid
from tracetool.sweeps.knee import seek
from tracetool.sweeps.pareto import link_cost, mark_pareto
from tracetool.sweeps.results import Sweep, best_of_each, layers_of_each, without_twins
from tracetool.units import format_count
from tracetool.whatif.answer import fidelity_of
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT, default_schedules, recorded_schedule
from tracetool.whatif.decision import today_of
from tracetool.whatif.depth import shortest_cycle_ns
from tracetool.whatif.job import job_notes
from tracetool.whatif.layers import layers_error
from tracetool.whatif.own_error import is_like_the_recordings, own_error_notices
from tracetool.whatif.remarks import collective_notes, host_notes, slowdown_notes, tier_notes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tracetool.model.notice import Progress
    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.grid import LinkColumn
    from tracetool.sweeps.pareto import Price
    from tracetool.sweeps.results import Knee, SweepPoint
    from tracetool.whatif.best import Way


def notes_of(recording: Reconstruction, grids: Sequence[Grid], points: Sequence[SweepPoint]) -> tuple[Notice, ...]:
    """What holds for all points: how far replay misses the recording, and what was not checked or left out."""
    pipeline = recording.pipeline
    fidelity, own = fidelity_of(recording)
    notes = Notices(own_error_notices(own))
    notes.add(
        NoticeCode.OWN_REPLAYED,
        f"fidelity: the recorded order, replayed, differs by {fidelity.error_ratio:+.2%} from what was recorded",
    )
    if any(point.seen_error_ratio is not None for point in points):
        notes.add(NoticeCode.ERRORS_SEEN, "±: the largest error of such predictions on this tool's own H100 recordings")
    marked = dict.fromkeys(reason for point in points for reason in point.rests_on if point.evidence == "unproven")
    if marked:
        notes.add(
            NoticeCode.UNPROVEN,
            f"unproven (± {UNPROVEN_MARK}): {UNPROVEN_TEXT} ({', '.join(marked)}); never named best ahead of others",
        )
    notes += dict.fromkeys(note for grid in grids for note in tier_notes(grid.scenario.topology))
    links = {grid.name: grid.scenario.topology.links for grid in grids}
    shared = next(iter(links.values()))
    if all(each == shared for each in links.values()):
        for link in shared:
            notes.add(NoticeCode.LINKS_FIXED, f"link {link} stays as given", subject=SubjectKind.LINK(link.name))
    else:
        texts = {name: ", ".join(map(str, each)) for name, each in links.items() if each}
        notes += [Notice(NoticeCode.LINKS_DIFFER, f"scenario {name}: {each}") for name, each in texts.items()]
    repeated = max(grid.repeated_maps for grid in grids)
    if repeated:
        notes.add(
            NoticeCode.MAPS_REPEATED,
            f"{Option.DC} gives {format_count(repeated, 'map')} of ranks more than once: each was taken once",
        )
    unchecked = sorted({p.schedule for p in points if p.step_ns and p.feasible is None})
    if unchecked:
        notes.add(
            NoticeCode.HBM_UNCHECKED,
            f"what {', '.join(unchecked)} needs in memory is unknown, so the HBM limit was not checked",
            hint=f"give {Option.ACTIVATION} and {Option.STATIC} (torch: or record with profile_memory=True)",
        )
    if any(grid.scenario.activation_bytes is not None for grid in grids):
        notes.add(
            NoticeCode.GIVEN_MEMORY,
            f"peaks from {Option.ACTIVATION} and {Option.STATIC} leave out transient buffers and gradients",
        )
    most_shared = max(
        (
            replace(column.scenario, topology=swept.topology)
            for grid in grids
            for column in grid.columns()
            for swept in column.links[:1]
        ),
        key=lambda scenario: scenario.pipelines_on_link,
    )
    if (sharing := most_shared.pipelines_on_link) > 1:
        notes.add(
            NoticeCode.LINKS_SHARED,
            f"{sharing} equal pipelines share the links: figures are of the slowest ({Option.PIPELINES_ON_LINK})",
        )
    notes += slowdown_notes(pipeline, interference=all(grid.scenario.interference for grid in grids))
    places = dict.fromkeys(column.links[0].topology for grid in grids for column in grid.columns())
    crossing = (collective_notes(pipeline, Scenario(topology)) for topology in places)
    notes += dict.fromkeys(note for of_map in crossing for note in of_map)
    return tuple(job_notes((*recording.notes, *host_notes(recording), *notes), pipeline, most_shared))


_WORTH_ACTIONS = 2_000_000
"""Actions to replay in the event loop (about two seconds) for which starting another worker pays."""

_STATIC = 6
"""So many times as fast are sweeps over a static order, where nothing slows compute down."""

_LARGEST_PIECE = 500
"""Points of one piece of work: as many are done before the progress bar moves."""


@checked
def sweep(
    recording: Reconstruction | Pipeline,
    grids: Grid | Sequence[Grid],
    *,
    progress: Progress | None = None,
    jobs: int | None = None,
    executor: str | None = None,
    chunks: int | None = None,
    time_limit_s: float = 5.0,
    knees: bool | Literal["bandwidth"] = True,
    price: Price | None = None,
    beside: Collection[Way] | None = None,
) -> Sweep:
    """Replay every point of one or several grids.

    Args:
        recording: A reconstructed Run, or the pipeline of one.
        grids: What to combine; several are done one after another.
        progress: Told how many points there are, and how many are done.
        jobs: Worker processes; by default as many as cores and the size of the grids allow.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        chunks: Stages per rank that schedules of several get; by default as few as they take.
        time_limit_s: For optimal: how long to search, for each point.
        knees: Whether to seek the knees as well: of the schedules named, else of those that are best somewhere and of
            the recorded order. ``"bandwidth"`` seeks their bandwidth alone.
        price: What links cost: points get their cost and whether they are on the Pareto front.
        beside: What is run in scenarios that each of these is compared with (``tracetool.whatif.best``); by default
            they are compared with one another.

    Raises:
        BadTopology: If a DC map or link does not fit the pipeline.
        IngestError: If the workers cannot be used.
        ScenarioError: If figures of links do not belong together.
        ScheduleError: If no point can be replayed.
        UnknownName: If there is no such schedule.

    Example:
        >>> grid = tt.grid(found, "1f1b,geopipe", dc="0-1,2-3", bandwidth="25Gbit/s", latency="10ms")
        >>> [(point.schedule, point.step_ns) for point in tt.sweep(found, grid, knees=False).best_first()]
        [('geopipe', 319617225), ('1f1b', 347225311)]
    """
    pipeline = recording if isinstance(recording, Pipeline) else recording.pipeline
    observed = pipeline.observed
    asked = [grids] if isinstance(grids, Grid) else list(grids)
    grids = [grid if grid.schedules else replace(grid, schedules=tuple(default_schedules(observed))) for grid in asked]
    for grid in grids:
        grid.check(observed.shape.ranks)
    own = (
        None if isinstance(recording, Pipeline) or not is_like_the_recordings(recording) else fidelity_of(recording)[1]
    )

    layered = {overlap: with_layers(pipeline, overlap) for grid in grids for overlap in (AS_RECORDED, *grid.overlaps)}
    # What layers took as recorded is no business of those who replay points.
    replayed = {overlap: replace(one, unchanged=None) for overlap, one in layered.items()}

    def pieces_of(columns: Iterable[LinkColumn]) -> list[ColumnPiece]:
        return [ColumnPiece(replayed[column.overlap], column, chunks, time_limit_s, own) for column in columns]

    columns = pieces_of(column for grid in grids for column in grid.columns())
    apart = pieces_of(column for grid in grids for column in grid.recorded_columns(observed))
    pieces = [replace(whole, column=part) for whole in columns for part in whole.column.parts(_LARGEST_PIECE)]
    workers = _Workers(progress or unasked(), jobs, executor)
    workers.progress.start(sum(piece.column.size for piece in (*pieces, *apart)))
    points = workers.run(evaluate, pieces, [piece.column.size for piece in pieces])
    if points and all(point.step_ns is None for point in points):
        reasons = list(dict.fromkeys(f"{point.schedule}: {point.reason}" for point in points))
        raise ScheduleError(
            f"none of {format_count(len(points), 'point')} can be replayed. " + " ".join(reasons[:3]),
            hint=f"{Option.SCHEDULES(OBSERVED)} takes the recorded order over other links; "
            f"{command_or_call('tracetool schedules', 'tracetool.schedules.SCHEDULES.names()')} lists the rest",
        )
    if price is not None:
        points = _priced(pieces, points, price)
    now = workers.run(evaluate, apart, [piece.column.size for piece in apart])
    best = best_of_each(points, now, pipeline, beside)
    if not any(grid.schedules for grid in asked):
        points = without_twins(points, pipeline)
    bent: list[Knee] = []
    if knees:
        shown = None if all(grid.schedules for grid in asked) else {each.point.schedule for each in best if each.point}
        bends = [piece for piece in columns if piece.column.links[0].latency_ns is not None]
        if shown is not None:
            shown.add(recorded_schedule(observed, None))
            bends = [piece for piece in bends if piece.column.schedule in shown]
        bent = workers.run(partial(seek, bandwidth_alone=knees == "bandwidth"), bends, [1] * len(bends))
    errors = {overlap: layers_error(one) for overlap, one in layered.items()}
    done = Sweep(tuple(points), tuple(bent), (), best, layers=layers_of_each(best, errors))
    if isinstance(recording, Pipeline):
        return done
    today = today_of(pipeline, measure(recording.observed).step_ns)
    return replace(done, notes=notes_of(recording, grids, points), today=today)


def _priced(pieces: Sequence[ColumnPiece], points: Sequence[SweepPoint], price: Price) -> list[SweepPoint]:
    fixed = [piece.column.ways.topology.links for piece in pieces for _ in range(piece.column.size)]
    priced = [replace(p, link_cost=link_cost(p, links, price)) for p, links in zip(points, fixed, strict=True)]
    return [*mark_pareto(priced)]


_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class _Workers:
    """Who does the work; see ``sweep``."""

    progress: Progress
    jobs: int | None
    executor: str | None

    def run(
        self,
        work: Callable[[ColumnPiece, Callable[[int], None]], list[_Found]],
        pieces: Sequence[ColumnPiece],
        sizes: Sequence[int],
    ) -> list[_Found]:
        """What is found for all pieces, in order."""
        weights = [_actions(piece) for piece in pieces]
        sensible = min(usable_cores(), sum(weights) // _WORTH_ACTIONS)
        count = min(len(pieces), max(1, sensible if self.jobs is None else self.jobs))
        if self.executor is None and count <= 1:
            return [one for piece in pieces for one in work(piece, self.progress.advance)]
        # The long ones first, so that none is left to one worker at the end.
        turns = sorted(range(len(pieces)), key=lambda number: (-weights[number], number))
        tasks = [pieces[number] for number in turns]
        if self.executor is not None and tasks:
            done = on_cluster(work, tasks, [sizes[number] for number in turns], self.progress, self.executor)
        else:
            done = in_processes(work, tasks, self.progress, count) if tasks else []
        return [one for _, points in sorted(zip(turns, done, strict=True), key=lambda pair: pair[0]) for one in points]


def _actions(piece: ColumnPiece) -> int:
    """About so many actions are replayed for the points of a piece, counted as of the event loop."""
    pipeline, column = piece.pipeline, piece.column
    m = column.scenario.microbatches or pipeline.observed.shape.microbatches
    orders = len(column.links)
    if tuning_of(column.schedule) is not None and column.warm_up is None:
        cycle = max(1, shortest_cycle_ns(pipeline))
        orders = sum(min(m, 2 * -(-2 * (link.latency_ns or 0) // cycle) + 3) for link in column.links)
    slowed = column.scenario.interference and (
        any(rank.load is not None for rank in pipeline.ranks)
        or any(cost.contended_ns for stage in pipeline.stages for costs in stage.costs.values() for cost in costs)
    )
    actions = orders * 2 * pipeline.observed.shape.stages * m * len(pipeline.together)
    return actions // (1 if slowed or pipeline.job is not None else _STATIC)
