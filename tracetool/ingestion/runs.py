"""Runs as commands use them: made or opened, with the tables that reconstruction fills in."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.causes import idle_intervals
from tracetool.errors import AlreadyExists, MissingRank, ReconstructError, ScheduleError
from tracetool.ingestion import IngestOptions, cached_run
from tracetool.ingestion import ingest as read_traces
from tracetool.ingestion.recording import keep_recording
from tracetool.model.action import ActionKind
from tracetool.model.job import SortedPipelines
from tracetool.model.notice import NoticeCode, Silent, SourceCode, noted, unasked
from tracetool.model.pipeline import BLOCKING, BY_EDGE
from tracetool.model.timeline import RankOp, measure
from tracetool.model.topology import Topology
from tracetool.readers import rows_table
from tracetool.reconstruction import KEPT, Reconstruction, reconstruct
from tracetool.reconstruction.actions.hops import link_rows
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.survey import keep_survey, survey_run, survey_tables
from tracetool.reconstruction.capture.waits import with_exposed
from tracetool.reconstruction.job import KEPT_PIPELINES, kept_kind, sort_pipelines
from tracetool.reconstruction.memory.log import record_snapshots_apart_in_time
from tracetool.reconstruction.steps import step_facts
from tracetool.schedules.names import best_fit
from tracetool.store import as_path, as_paths, is_local
from tracetool.store.place import is_run
from tracetool.store.run import Run
from tracetool.tables import collecting_rarely
from tracetool.tables.metrics import OF_RANK, OF_STEP
from tracetool.tables.run import WHOLE_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.causes.cause import Idle
    from tracetool.ingestion import Progress
    from tracetool.model.timeline import Op, Timeline
    from tracetool.reconstruction.capture.survey import Survey

_ENTRY = "reconstruction"
_OF_SOURCES = (*SourceCode, NoticeCode.HOST_ONLY)
_MOST_KINDS = 16
_WORTH_KINDS = 2
"""Pipelines for each worker from which on starting it pays."""


def ingest(
    paths: Path | str | Sequence[Path | str],
    output: Path | str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    options: IngestOptions | None = None,
) -> Run:
    """Read traces into a new Run, with all tables that can be reconstructed.

    Args:
        paths: A trace file, or a folder to look through, or several of them.
        output: Folder of the Run.
        force: Replace an existing Run.
        progress: Told about bytes read.
        options: How to read.

    Returns:
        The Run, opened.

    Raises:
        IngestError: If the traces cannot be read; nothing is written then.
        AlreadyExists: If the output exists.
        StoreError: If the output cannot be written.

    Example:
        >>> tt.ingest("sample_traces/h100-1f1b", "x.run")
        Traceback (most recent call last):
        tracetool.errors.AlreadyExists: the Run x.run exists.
        >>> run.manifest["world_size"], run.query("SELECT count(*) AS events FROM events").item()
        (4, 30867)
    """
    options = options or IngestOptions()

    def complete(run: Run) -> None:
        keep_kinds(derive(run), jobs=options.jobs, executor=options.executor if is_local(as_path(output)) else None)

    return read_traces(as_paths(paths), output, force=force, progress=progress, options=options, complete=complete)


def open_run(
    paths: Path | str | Sequence[Path | str], progress: Progress | None = None, *, keep: tuple[str, ...] = ()
) -> Run:
    """Open one Run, or ingest raw traces into the user's cache and open that.

    Args:
        paths: A Run; or trace files, or folders to look through.
        progress: Told about bytes read.
        keep: What is read of raw traces only on request, such as ``args``.

    Raises:
        TraceToolError: If the Run or the traces cannot be read.

    Example:
        >>> tt.open_run("x.run").path.name
        'x.run'
    """
    paths = as_paths(paths)
    if len(paths) == 1 and is_run(paths[0]):
        return Run(paths[0])
    runs = [p for p in paths if is_run(p)]
    if runs:
        raise AlreadyExists(f"{runs[0]} is a Run; it cannot be mixed with other inputs.", hint="name it alone")
    run = cached_run(paths, progress or unasked(), keep=keep)
    return run if _ENTRY in run.manifest else derive(run)


@collecting_rarely()
def derive(run: Run) -> Run:
    """Write the tables of the observed step into a Run; if there is no pipeline, the manifest says why."""
    account = Account()
    survey = survey_run(run, account)
    keep_survey(survey, account)
    survey = replace(survey, waits=with_exposed(run, survey.waits))
    surveyed = len(account.notes), len(account.findings)
    record_snapshots_apart_in_time(run, account)
    apart = len(account.notes), len(account.findings)
    tables = survey_tables(survey)
    entry: dict[str, object]
    try:
        reconstruction = reconstruct(run, every_step=True, survey=survey, account=account)
    except (ReconstructError, ScheduleError, MissingRank) as error:
        kind = type(error).__name__
        entry = {"missing": error.message, "kind": kind, "hint": error.hint, **noted(account.notes)}
    else:
        tables |= tables_of(reconstruction, survey)
        _name_schedule(reconstruction, account)
        entry = {"step": reconstruction.pipeline.step, **noted([*reconstruction.notes, *reconstruction.step_notes])}
        keep_recording(run, reconstruction)
        run.keep(KEPT, _as_asked_again(reconstruction, surveyed, apart))
    tables["findings"] = rows_table("findings", account.findings)
    run.add(tables, {_ENTRY: entry})
    if survey.pipelines:
        run.keep(KEPT_PIPELINES, sort_pipelines(run))
    return run


@dataclass(frozen=True, slots=True)
class KindTask:
    """A pipeline that is unlike the first, to be reconstructed.

    Attributes:
        folder: Of the Run, as its workers reach it.
        run: What the Run is called.
        step: Number of the step.
        pipeline: Its number.
    """

    folder: Path
    run: str
    step: int
    pipeline: int

    @property
    def name(self) -> str:
        """What is done, in a few words."""
        return f"pipeline {self.pipeline}: derive"


def keep_kinds(run: Run, *, jobs: int | None = None, executor: str | None = None) -> None:
    """Reconstruct of pipelines that differ one of each kind, for all questions about the whole job.

    Each takes as long as a question about one pipeline. Without an executor at most so many are: of a job with more
    kinds, the others are reconstructed when they are asked for.

    Args:
        run: With its tables derived.
        jobs: Worker processes; by default as many as cores allow, where there are several pipelines for each.
        executor: ``dask://HOST:PORT`` of a cluster whose workers reach the Run's folder.

    Raises:
        IngestError: If the workers cannot be used.
    """
    from tracetool.ingestion.executors import in_processes, on_cluster, usable_cores

    kinds, first = run.kept(KEPT_PIPELINES), run.kept(KEPT)
    if not (isinstance(kinds, SortedPipelines) and isinstance(first, Reconstruction) and kinds.differ):
        return
    numbers = [kind.first for kind in kinds.alike][1:]
    tasks = [KindTask(run.folder, run.name, first.pipeline.step, number) for number in numbers]
    if executor is not None:
        on_cluster(_keep_kind_elsewhere, tasks, [1] * len(tasks), Silent(), executor)
        return
    tasks = tasks[:_MOST_KINDS]
    count = min(len(tasks), usable_cores() if jobs is None else jobs)
    if count > 1 and (jobs is not None or len(tasks) >= _WORTH_KINDS * count):
        in_processes(_keep_kind_elsewhere, tasks, Silent(), count)
        return
    for task in tasks:
        _keep_kind(task, run)


def _keep_kind_elsewhere(task: KindTask, advance: Callable[[int], None]) -> None:
    _keep_kind(task, Run(task.folder, name=task.run))
    advance(1)


def _keep_kind(task: KindTask, run: Run) -> None:
    """Reconstruct a pipeline, and keep it; why it cannot be is said when it is asked for."""
    with suppress(ReconstructError, ScheduleError, MissingRank):
        run.keep(kept_kind(task.pipeline), reconstruct(run, step=task.step, pipeline=task.pipeline))


def _as_asked_again(
    reconstruction: Reconstruction, surveyed: tuple[int, int], apart: tuple[int, int]
) -> Reconstruction:
    """What ``reconstruct`` says of the Run: one step, what is to say of the sources ahead of what the survey said.

    Args:
        reconstruction: With a look at every step.
        surveyed: How many notes and findings the survey made.
        apart: The same, after what is no part of a reconstruction.
    """
    notes, findings = reconstruction.notes, reconstruction.findings
    own = notes[apart[0] :]
    of_sources = next((n for n, note in enumerate(own) if note.code not in _OF_SOURCES), len(own))
    return replace(
        reconstruction,
        notes=(*own[:of_sources], *notes[: surveyed[0]], *own[of_sources:]),
        findings=(*findings[: surveyed[1]], *findings[apart[1] :]),
        tables={**reconstruction.tables, "costs": reconstruction.costs},
        recorded_steps=(),
        step_notes=(),
    )


def _name_schedule(reconstruction: Reconstruction, account: Account) -> None:
    """Say which schedule the observed order is, or which one is nearest."""
    shape = reconstruction.pipeline.observed.shape
    fit = best_fit(reconstruction.pipeline.observed)
    if not reconstruction.pipeline.observed.has_backwards:
        account.find("schedule", "all", f"forwards alone (inference, or an evaluation), {shape.text}", "schedule fit")
    elif fit is None:
        account.find(
            "schedule", "all", f"unknown, {shape.text}", "schedule fit", 0.0, "no named schedule has this shape"
        )
    elif fit.mismatches:
        detail = (
            f"nearest is {fit.schedule.name}, with {fit.mismatches} of {fit.actions} actions elsewhere; "
            f"first {fit.first}"
        )
        account.find(
            "schedule", "all", f"unknown, {shape.text}", "schedule fit", 1 - fit.mismatches / fit.actions, detail
        )
    else:
        account.find("schedule", "all", f"{fit.schedule.name}, {shape.text}", "schedule fit")


def tables_of(reconstruction: Reconstruction, survey: Survey) -> dict[str, pa.Table]:
    """Stages and the observed Timeline as tables of a Run."""
    return {
        **observed_tables(reconstruction),
        "links": rows_table("links", link_rows(reconstruction.observed, survey)),
        **{name: rows_table(name, rows) for name, rows in reconstruction.tables.items()},
        "step_facts": rows_table("step_facts", step_facts(reconstruction.steps, reconstruction.pipeline.step)),
    }


def observed_tables(reconstruction: Reconstruction) -> dict[str, pa.Table]:
    """The tables stages and idles, and the observed Timeline's."""
    # No message of the observed step crossed a link that is known.
    p2p = reconstruction.pipeline.p2p
    idles = idle_intervals(reconstruction.observed, Topology(), blocking=p2p in BLOCKING, by_edge=p2p in BY_EDGE)
    return {
        "stages": rows_table("stages", _stages(reconstruction)),
        **timeline_tables(reconstruction.observed),
        "idles": idle_table(reconstruction.observed, idles),
    }


def idle_table(timeline: Timeline, idles: Sequence[Idle]) -> pa.Table:
    """Idle intervals of a Timeline as the table idles, with global ranks."""
    ranks = timeline.global_ranks
    rows = [
        (
            timeline.name, ranks[idle.rank], idle.start_ns, idle.duration_ns, idle.cause.value,
            None if idle.held is None else idle.held.text,
            None if idle.transfer is None else ranks[idle.transfer.src_rank],
            None if idle.transfer is None else ranks[idle.transfer.dst_rank],
        )
        for idle in idles
    ]  # fmt: skip
    return rows_table("idles", rows)


def _place_of(op: Op | RankOp) -> tuple[int, str, int]:
    if isinstance(op, RankOp):
        return WHOLE_RANK, op.kind.value, WHOLE_RANK
    return op.stage, op.kind.value, op.microbatch


def timeline_tables(timeline: Timeline) -> dict[str, pa.Table]:
    """A Timeline as the tables ops, transfers, memory_curve and metrics, with global ranks."""
    name, ranks = timeline.name, timeline.global_ranks
    return {
        "ops": rows_table(
            "ops",
            [
                (name, ranks[o.rank], *_place_of(o), o.start_ns, o.duration_ns)
                for o in timeline.ops
            ],
        ),
        "transfers": rows_table(
            "transfers",
            [
                (
                    name, t.kind.value, t.microbatch, t.src_stage, t.dst_stage, ranks[t.src_rank],
                    ranks[t.dst_rank], t.payload_bytes, t.send_posted_ns, t.recv_posted_ns,
                    t.start_ns, t.end_ns, t.link,
                )
                for t in timeline.transfers
            ],
        ),
        "memory_curve": rows_table(
            "memory_curve",
            [
                (name, ranks[rank], time, level)
                for rank, curve in enumerate(timeline.memory)
                for time, level in curve or ()
            ],
        ),
        "metrics": rows_table("metrics", _metrics(timeline)),
    }  # fmt: skip


def _metrics(timeline: Timeline) -> list[tuple[object, ...]]:
    metrics = measure(timeline)
    whole: list[tuple[object, ...]] = [
        (timeline.name, name, None, float(value)) for name, value in metrics.of_step(OF_STEP).items()
    ]
    peaks: list[tuple[object, ...]] = [
        (timeline.name, name, rank, float(value))
        for name in OF_RANK
        for rank, value in zip(timeline.global_ranks, getattr(metrics, name), strict=True)
        if value is not None
    ]
    return whole + peaks


def _stages(reconstruction: Reconstruction) -> list[tuple[object, ...]]:
    pipeline = reconstruction.pipeline
    kinds = (
        ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT,
    )  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for stage in pipeline.stages:
        position = pipeline.observed.shape.rank_of(stage.stage)
        rank = pipeline.ranks[position]
        rows.append(
            (
                stage.stage, rank.rank, position, *(stage.median_ns(kind) for kind in kinds),
                stage.activation_bytes(), stage.transient_bytes(), stage.gradient_bytes(), rank.static_bytes,
                stage.forward_payload_bytes, stage.backward_payload_bytes, stage.evidence,
            )
        )  # fmt: skip
    return rows
