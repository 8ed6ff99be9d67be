"""From trace files to a Run: discover, identify, read, write."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tracetool.errors import IngestError, MalformedTrace, Option, StoreError
from tracetool.ingestion.discover import (
    MOST_RANKS,
    DiscoveredSource,
    digest_of,
    in_order,
    job_conflicts,
    ranks_in,
)
from tracetool.ingestion.discover import Discovery as Discovery
from tracetool.ingestion.discover import discover as discover
from tracetool.model.notice import Progress as Progress
from tracetool.model.notice import noted, unasked
from tracetool.readers import ABSOLUTE_NS, Left, rows_table
from tracetool.store import as_path, is_local
from tracetool.store.objects import cache_folder
from tracetool.store.place import is_run
from tracetool.store.run import Run, RunWriter
from tracetool.version import __version__, code_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.ingestion.reading import SourceOutcome, Task


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How to read.

    Attributes:
        keep: What is read only on request: ``python_function`` events, ``args`` as JSON text.
        ranks: Path (or its end) to rank, for traces that do not say theirs.
        payload_bytes: What a send or receive holds whose size was not recorded.
        strict: Refuse traces of which anything is lost.
        jobs: Worker processes; by default as many as cores, memory and the size of the sources allow.
        executor: ``dask://HOST:PORT`` of a cluster whose workers reach the same paths.
    """

    keep: tuple[str, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    payload_bytes: int | None = None
    strict: bool = False
    jobs: int | None = None
    executor: str | None = None


_DEFAULT = IngestOptions()


def ingest(
    paths: Sequence[Path | str],
    output: Path | str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    options: IngestOptions = _DEFAULT,
    complete: Callable[[Run], object] | None = None,
) -> Run:
    """Read traces into a new Run.

    Args:
        paths: Trace files, or folders to look through.
        output: Folder of the Run.
        force: Replace an existing Run.
        progress: Told about bytes read.
        options: How to read.
        complete: Adds what is derived before the Run gets its name.

    Returns:
        The Run, opened.

    Raises:
        IngestError: If the traces cannot be read; nothing is written then.
        AlreadyExists: If the output exists.
        StoreError: If the output cannot be written.
    """
    from tracetool.ingestion.reading import expect_tasks

    named, target, progress = [as_path(path) for path in paths], as_path(output), progress or unasked()
    if options.executor is None:
        expect_tasks(named, jobs=options.jobs)
    discovery = discover(named, options.ranks, progress=progress)
    return write_run(discovery, target, force=force, progress=progress, options=options, complete=complete)


def write_run(
    discovery: Discovery,
    output: Path,
    *,
    force: bool,
    progress: Progress,
    options: IngestOptions = _DEFAULT,
    complete: Callable[[Run], object] | None = None,
) -> Run:
    """Read discovered sources into a new Run; see :func:`ingest`."""
    from tracetool.ingestion.reading import Task, run_tasks

    with RunWriter(output, force=force) as writer:
        asked = writer.folder, frozenset(options.keep), options.payload_bytes
        tasks = [Task(n, source, *asked) for n, source in enumerate(discovery.sources)]
        outcomes = run_tasks(tasks, writer, progress, jobs=options.jobs, executor=options.executor)
        if any(outcome.is_several for outcome in outcomes):
            tasks, outcomes = _read_apart(discovery, tasks, outcomes, writer, progress, options)
        _check(discovery, outcomes, strict=options.strict)
        read = [(t, o) for t, o in zip(tasks, outcomes, strict=True) if o.failure is None]
        made = _manifest(discovery, tasks, outcomes), _tables(discovery, tasks, outcomes, read)
        writer.commit(*made, complete)
    return Run(output)


def _read_apart(
    discovery: Discovery,
    tasks: list[Task],
    outcomes: list[SourceOutcome],
    writer: RunWriter,
    progress: Progress,
    options: IngestOptions,
) -> tuple[list[Task], list[SourceOutcome]]:
    """Read sources that turned out to hold several ranks once more, rank by rank.

    Raises:
        IngestError: If the ranks are not those of one job, each once.
    """
    from tracetool.ingestion.reading import run_tasks

    kept: list[tuple[Task, SourceOutcome]] = []
    apart: list[DiscoveredSource] = []
    free: list[int] = []
    for task, outcome in zip(tasks, outcomes, strict=True):
        try:
            ranks = ranks_in(task.discovered) if outcome.is_several else []
        except MalformedTrace as error:
            outcome.failure, outcome.hint = error.message, error.hint
            ranks = []
        apart += ranks
        if ranks:
            free.append(task.number)
        else:
            kept.append((task, outcome))
    conflict = next(job_conflicts(in_order([*(t.discovered for t, _ in kept), *apart])), None)
    if conflict is not None:
        raise conflict
    numbers = [*free, *range(len(tasks), len(tasks) + len(apart) - len(free))]
    again = [replace(tasks[0], number=n, discovered=item) for n, item in zip(numbers, apart, strict=True)]
    read = run_tasks(again, writer, progress, jobs=options.jobs, executor=options.executor) if again else []
    both = sorted(
        [*kept, *zip(again, read, strict=True)], key=lambda pair: (pair[0].discovered.stored_rank, pair[0].number)
    )
    discovery.sources = [task.discovered for task, _ in both]
    return [task for task, _ in both], [outcome for _, outcome in both]


def cached_run(paths: Sequence[Path], progress: Progress, *, keep: tuple[str, ...] = ()) -> Run:
    """The Run of these traces, from the user's cache if the same content was read before.

    Args:
        paths: Trace files, or folders to look through.
        progress: Told about bytes read.
        keep: What is read only on request.

    The cache is ``$TRACETOOL_CACHE``, else ``tracetool`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; its
    entries are named by the digests of the traces and of the tool's code, so that no change of the tool
    answers from what it read before.
    """
    discovery = discover(paths, progress=progress)
    target = cache_folder() / ("-".join((digest_of(discovery.sources)[:24], code_digest()[:8], *keep)) + ".run")
    name = " ".join(str(path) for path in paths)
    try:
        return Run(target, name=name)
    except StoreError:
        # Absent, damaged or of another schema: the cache is ours to fill anew.
        if not is_run(target):
            shutil.rmtree(target, ignore_errors=True)
    try:
        write_run(discovery, target, force=True, progress=progress, options=IngestOptions(keep=keep))
    except StoreError as error:
        hint = "set $TRACETOOL_CACHE to a folder that can be written, or ingest to a Run first"
        raise StoreError(f"the cache cannot be used: {error.message}", hint=hint) from error
    return Run(target, name=name)


def _check(discovery: Discovery, outcomes: Sequence[SourceOutcome], *, strict: bool) -> None:
    """Refuse a job of which nothing is left, whose clocks cannot be brought together, or (strict) that lost anything.

    Raises:
        IngestError: If so.
    """
    failures = [o for o in outcomes if o.failure is not None]
    if failures and len(failures) == len(outcomes):
        raise IngestError(failures[0].failure or "", hint=failures[0].hint)
    clocks: dict[bool, str] = {}
    for item, outcome in zip(discovery.sources, outcomes, strict=True):
        if outcome.report.first_ns is not None and outcome.failure is None:
            clocks.setdefault(outcome.report.first_ns >= ABSOLUTE_NS, item.label)
    if len(clocks) > 1:
        raise IngestError(
            f"{clocks[True]} has times since 1970, {clocks[False]} counts from something else: they cannot be aligned.",
            hint="record all ranks with one version of the profiler; is the end of a file (baseTimeNanoseconds) lost?",
        )
    if not strict:
        return
    losses = [f"{left.path}: {left.reason}" for left in discovery.failed] + [o.failure or "" for o in failures]
    for item, outcome in zip(discovery.sources, outcomes, strict=True):
        for reason, count in outcome.report.dropped.items():
            place = outcome.report.places.get(reason)
            where = f" (the first at {place.unit} {place.at:,})" if place else ""
            losses.append(f"{item.label}: {count:,} dropped: {reason}{where}")
    if losses:
        more = f" And {len(losses) - 1} more." if len(losses) > 1 else ""
        raise IngestError(f"something is lost: {losses[0]}.{more}", hint=f"without {Option.STRICT} the rest is read")


def _tables(
    discovery: Discovery,
    tasks: Sequence[Task],
    outcomes: Sequence[SourceOutcome],
    read: list[tuple[Task, SourceOutcome]],
) -> dict[str, pa.Table]:
    rows = [_source_row(t.number, t.discovered, o) for t, o in zip(tasks, outcomes, strict=True)]
    beside = [("failed", left) for left in discovery.failed] + [("left", left) for left in discovery.left]
    rows += [_left_row(len(rows) + n, status, left) for n, (status, left) in enumerate(beside)]
    traced = {t.discovered.rank for t, _ in read if not t.discovered.source.complements}
    ranked = [
        (t, o)
        for t, o in read
        if t.discovered.source.ranked and not (t.discovered.source.complements and t.discovered.rank in traced)
    ]
    return {
        "sources": rows_table("sources", rows),
        "problems": rows_table("problems", [row for t, o in read for row in _problem_rows(t, o)]),
        "ranks": rows_table("ranks", [_rank_row(t, o) for t, o in ranked]),
        "groups": rows_table("groups", [g for t, _ in ranked for g in _group_rows(t.discovered)]),
    }


def _source_row(number: int, item: DiscoveredSource, outcome: SourceOutcome) -> tuple[object, ...]:
    report = outcome.report
    return (
        number, item.label, "read" if outcome.failure is None else "failed", outcome.failure, item.reader, item.digest,
        item.source.size_bytes, item.rank,
        report.rows, report.dropped.total(), report.repaired.total(), report.skipped.total(), 0,
    )  # fmt: skip


def _left_row(number: int, status: str, left: Left) -> tuple[object, ...]:
    try:
        size = left.path.stat().st_size if is_local(left.path) else 0
    except (OSError, ValueError):
        # A member of an archive, whose name may be anything.
        size = 0
    return (number, left.place, status, left.reason, None, None, size, None, 0, 0, 0, 0, 0)


def _problem_rows(task: Task, outcome: SourceOutcome) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    rank = task.discovered.rank
    for action, counts in (("dropped", outcome.report.dropped), ("repaired", outcome.report.repaired)):
        for reason, count in counts.items():
            place = outcome.report.places.get(reason)
            where = (place.file, place.at, place.unit) if place else (None, None, None)
            rows.append((task.number, rank, action, reason, count, *where))
    return rows


def _rank_row(task: Task, outcome: SourceOutcome) -> tuple[object, ...]:
    item = task.discovered
    who = item.identity
    places = {
        g.description: g.ranks.index(item.rank)
        for g in who.groups
        if g.description in ("pp", "dp", "tp") and item.rank in g.ranks
    }
    device = outcome.report.device if who.device is None else who.device
    return (
        item.rank, task.number, _world_size(item, outcome),
        *(places.get(dimension) for dimension in ("pp", "dp", "tp")),
        who.host, device, who.device_name, who.sm_count, who.hbm_bytes,
    )  # fmt: skip


def _group_rows(item: DiscoveredSource) -> list[tuple[object, ...]]:
    return [(item.rank, g.name, g.description, list(g.ranks)) for g in item.identity.groups]


def _manifest(discovery: Discovery, tasks: Sequence[Task], outcomes: Sequence[SourceOutcome]) -> dict[str, Any]:
    both = zip(tasks, outcomes, strict=True)
    read = [(t.discovered, o) for t, o in both if o.failure is None and t.discovered.source.ranked]
    recorded = [item.rank for item, _ in read if item.rank is not None]
    # A trace without distributed information says 1, whatever the rank in its name.
    sizes = _group_sizes(outcomes)
    world = max([_world_size(item, outcome) for item, outcome in read] + [rank + 1 for rank in recorded] + [0])
    return {
        "tool_version": __version__,
        "digest": digest_of(discovery.sources),
        "world_size": world,
        "missing_ranks": sorted(set(range(world)) - set(recorded)) if recorded else [],
        "group_sizes": sizes,
        "sources": [_summary(t.discovered, o) for t, o in zip(tasks, outcomes, strict=True)],
        "failed": [{"path": left.place, "reason": left.reason} for left in discovery.failed],
        "left": [{"path": left.place, "reason": left.reason} for left in discovery.left],
    }


def _world_size(item: DiscoveredSource, outcome: SourceOutcome) -> int:
    """Ranks in the job as the trace says; else at least, by the size of its groups and the highest rank it names."""
    said = item.identity.world_size or 1
    # Without distributed information it says 1; a larger number is believed against single records.
    named = outcome.report.least_world or 1 if said == 1 else 1
    listed = [
        1 + max(filter(MOST_RANKS.__gt__, group.ranks), default=0) for group in item.identity.groups if group.ranks
    ]
    return max([said, named, *listed, *outcome.report.group_sizes.values()])


def _group_sizes(outcomes: Sequence[SourceOutcome]) -> dict[str, int]:
    """Members of each group at least, as any of its ranks says."""
    sizes: dict[str, int] = {}
    for outcome in outcomes:
        for group, size in outcome.report.group_sizes.items():
            sizes[group] = max(size, sizes.get(group, 0))
    return sizes


def _summary(item: DiscoveredSource, outcome: SourceOutcome) -> dict[str, Any]:
    report = outcome.report
    return {
        "path": item.label,
        "rank": item.rank,
        "reader": item.reader,
        "failure": outcome.failure,
        "dropped": dict(report.dropped),
        "repaired": dict(report.repaired),
        "skipped": dict(report.skipped),
        "unread": dict(report.unread),
        "lost_bytes": dict(report.lost_bytes),
        "places": {reason: f"{p.file}, {p.unit} {p.at:,}" for reason, p in report.places.items()},
        **noted(report.notes),
    }
