"""Traces whose operations are labelled: NDTimeline, and the tables and timelines of the straggler analysis.

One file holds many ranks; each rank is a source of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.errors import MalformedTrace
from tracetool.model.notice import Notice, Notices, SourceCode
from tracetool.readers import Claim, Identity, Left, Source, SourceReport, rows_table
from tracetool.readers.ndtimeline.chrome import by_step, opens_labelled, timeline_of
from tracetool.readers.ndtimeline.rows import RankRows
from tracetool.readers.ndtimeline.table import step_of_clock_ns, table_layout, table_operations, table_trouble
from tracetool.units import format_count, format_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers.ndtimeline.layout import JobLayout, Operation


_META_BYTES = 1 << 16
_META_LINE = re.compile(r"^(\w+_size):[ \t]*(\d{1,9})[ \t]*$", re.MULTILINE)
_META_KEYS = frozenset({"dp_size", "pp_size", "tp_size", "world_size"})


class NDTimelineReader:
    """Reads labelled traces; see :class:`tracetool.readers.Reader`."""

    name = "ndtimeline"

    def find(self, files: Sequence[Path]) -> Claim:
        """One source per rank of each job: of its table if there is one, else of its timelines."""
        finding = Claim()
        metas: list[Path] = []
        tables: dict[Path, JobLayout] = {}
        timelines: dict[Path, JobLayout] = {}
        for file in files:
            trouble = table_trouble(file)
            try:
                if trouble is None:
                    tables[file] = table_layout(file, _version(file))
                elif trouble:
                    finding.left.append(Left(file, trouble))
                elif opens_labelled(file):
                    timelines[file] = timeline_of(file, _version(file)).layout
                elif _meta(file):
                    metas.append(file)
            except MalformedTrace as error:
                finding.left.append(Left(file, error.message))
        taken: dict[Path, JobLayout] = {}
        for table, layout in sorted(tables.items(), key=lambda item: -len(item[1].computing_ns)):
            if (same := _shown_by(layout, taken)) is not None:
                finding.left.append(Left(table, _repeats(layout, same, taken[same])))
                continue
            taken[table] = layout
            own = [m for m in metas if _describes(_meta(m), layout)]
            finding.sources += self._sources(table, (table, *own[:1]) if len(own) == 1 else (table,), layout)
        self._take_timelines(finding, timelines, taken)
        return finding

    def identify(self, source: Source) -> Identity:
        """Rank and groups from the coordinates of all operations, sizes from the job's description."""
        layout, meta = _job(source)
        return layout.identity(_rank(source), meta.get("tp_size"), meta.get("world_size"))

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Computes as events, transfers and collectives as comms, steps as their extent."""
        layout, meta = _job(source)
        strays = rank == min(layout.places)
        is_table = table_trouble(source.files[0]) is None
        tick_ns = step_of_clock_ns(source.files[0], layout) if is_table else 0
        rows = RankRows(rank, identity, layout, report, tick_ns=tick_ns)
        if is_table:
            steps: dict[int, list[Operation]] = defaultdict(list)
            for operation in table_operations(source.files[0], rank, report, strays=strays):
                steps[operation.step].append(operation)
            parts = rows.take(lambda: sorted(steps.items()))
        else:
            timelines = [timeline_of(file, _version(file)) for file in source.files]
            for timeline in timelines:
                timeline.record_losses(rank, report, strays=strays)
            parts = rows.take(by_step(timelines, rank))
        for name, chunk in parts:
            yield name, rows_table(name, chunk)
        if strays:
            noted = _job_notes(source, layout, meta, is_table=is_table)
            report.notes += [Notice(note.code, f"all ranks: {note.text}") for note in noted]
        for file in source.files:
            advance(file.stat().st_size)

    def _sources(self, path: Path, files: tuple[Path, ...], layout: JobLayout) -> list[Source]:
        return [Source(self.name, path, files, member=f"rank {rank}") for rank in layout.places]

    def _take_timelines(self, finding: Claim, timelines: dict[Path, JobLayout], tables: dict[Path, JobLayout]) -> None:
        """Take the timelines that are measurements of their own; those of one job are read together."""
        jobs: list[_Job] = []
        shown = dict(tables)
        for file, layout in sorted(timelines.items(), key=lambda item: -len(item[1].computing_ns)):
            if timeline_of(file, _version(file)).is_simulated():
                reason = "a simulated timeline, no measurement: every forward takes equally long, and every backward"
                finding.left.append(Left(file, reason))
                continue
            if (same := _shown_by(layout, shown)) is not None:
                finding.left.append(Left(file, _repeats(layout, same, shown[same])))
                continue
            shown[file] = layout
            job = next((j for j in jobs if not j.layout.computing_ns.keys() & layout.computing_ns.keys()), None)
            if job is None:
                jobs.append(_Job((file,), layout))
            else:
                job.files, job.layout = (*job.files, file), job.layout.merged(layout)
        for job in jobs:
            files = tuple(sorted(job.files))
            path = files[0] if len(files) == 1 else files[0].parent
            finding.sources += self._sources(path, files, job.layout)


READER = NDTimelineReader()


@dataclass(slots=True)
class _Job:
    """Timelines that no two of have operations of one rank and step."""

    files: tuple[Path, ...]
    layout: JobLayout


def _shown_by(layout: JobLayout, taken: dict[Path, JobLayout]) -> Path | None:
    """The file that the operations of this one were taken from before."""
    return next((file for file, known in taken.items() if layout.is_view_of(known)), None)


def _repeats(layout: JobLayout, taken: Path, known: JobLayout) -> str:
    """Why a file with operations of another one is left, and what it has more or less than the one that is read."""
    reason = f"drawn from the same operations as {taken.name}, which says more about them and is read"
    for what, own, others in (("step", layout.steps, known.steps), ("rank", layout.places, known.places)):
        more, less = sorted(own.keys() - others.keys()), sorted(others.keys() - own.keys())
        if more:
            reason += f"; it has {format_count(len(more), what)} more, not read: {format_ranges(more)}"
        if less:
            reason += f"; it lacks {format_count(len(less), what)}: {format_ranges(less)}"
    return reason


def _rank(source: Source) -> int:
    return int(source.member.removeprefix("rank "))


def _version(file: Path) -> tuple[int, int]:
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def _job(source: Source) -> tuple[JobLayout, dict[str, int]]:
    first, *others = source.files
    if table_trouble(first) is None:
        meta = _meta(others[0]) if others else {}
        return table_layout(first, _version(first)), meta
    layout = timeline_of(first, _version(first)).layout
    for file in others:
        layout = layout.merged(timeline_of(file, _version(file)).layout)
    return layout, {}


def _meta(file: Path) -> dict[str, int]:
    """Sizes of the job from its description (YAML), or nothing if the file is none."""
    with file.open("rb") as stream:
        text = stream.read(_META_BYTES + 1)
    if len(text) > _META_BYTES or b"\0" in text:
        return {}
    sizes = {key: int(value) for key, value in _META_LINE.findall(text.decode("utf-8", errors="replace"))}
    return sizes if set(sizes) >= _META_KEYS else {}


def _describes(meta: dict[str, int], layout: JobLayout) -> bool:
    """Whether a job of these sizes can have these ranks: the grid is the same, and every rank exists."""
    dp = {where.dp for where in layout.places.values()}
    pp = {where.pp for where in layout.places.values()}
    return len(dp) == meta["dp_size"] and len(pp) == meta["pp_size"] and max(layout.places) < meta["world_size"]


def _job_notes(source: Source, layout: JobLayout, meta: dict[str, int], *, is_table: bool) -> Notices:
    notes = Notices()
    if is_table:
        apart = step_of_clock_ns(source.files[0], layout)
        notes.add(SourceCode.TIMES_ROUNDED, f"times are floating-point seconds, at worst {apart:,} ns apart")
        if not meta:
            notes.add(SourceCode.JOB_ASSUMED, "no description of the job was given: its size is that of the table")
        elif meta["tp_size"] > 1 and all(where.tp is None for where in layout.places.values()):
            notes.add(
                SourceCode.GROUPS_UNKNOWN,
                f"tensor parallelism of {meta['tp_size']}, but no row tells a rank's place in it",
            )
    if meta.get("dsp_size", 1) > 1:
        notes.add(
            SourceCode.GROUPS_UNKNOWN,
            f"every data-parallel rank is {meta['dsp_size']} ranks: groups list those in the table only",
        )
    if layout.restarts:
        notes.add(
            SourceCode.CLOCK_RESTARTS,
            "the clock starts anew with every step: steps are laid end to end, what lay between is unknown",
        )
    elif not layout.has_epoch:
        notes.add(SourceCode.NO_EPOCH, "times are not Unix times: they have no epoch")
    if not layout.is_looped:
        notes.add(SourceCode.STAGES_UNPLACED, "global stages are not placed in loops: each is where its computes are")
    return notes
