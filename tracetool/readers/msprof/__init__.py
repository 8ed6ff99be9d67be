"""Output of the ``msprof`` command for Ascend devices, as text: one source per device.

Kernels come from ``op_summary`` where it is there (it knows their types), else from a timeline, else from
``task_time``; communication from a timeline, else from ``op_summary``; iterations from ``step_trace``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import Claim, Identity, Source, SourceReport, rows_table
from tracetool.readers.cann.messages import MessageFinder, comm_rows
from tracetool.readers.cann.parts import Parts, is_beside
from tracetool.readers.cann.planes import attach_groups
from tracetool.readers.cann.timeline import CHUNK_ROWS
from tracetool.readers.cann.tracks import Track
from tracetool.readers.msprof.capture import (
    Capture,
    UnixClock,
    capture_of,
    configuration,
    is_configuration,
    is_rank_table,
)
from tracetool.readers.msprof.files import (
    DEVICE_MEMORY,
    MEMORY,
    OP_SUMMARY,
    RANGES,
    STATISTICS,
    STEP_TRACE,
    TASK_TIME,
    TIMELINE,
    TableFile,
    latest,
    part_of,
    trees,
)
from tracetool.readers.msprof.rows import Tables, Timelines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers import Group
    from tracetool.readers.cann.comms import CommOperation
    from tracetool.readers.cann.timeline import MarkedSteps, Row
    from tracetool.readers.msprof.rows import Key


_MEMBER = re.compile(r"^device (\d+)$")
# Times of a table and of a timeline may be rounded differently.
_SAME_NS = 1000


class MsprofReader:
    """Reads what ``msprof --export=on`` writes; see :class:`tracetool.readers.Reader`."""

    name = "msprof"

    def find(self, files: Sequence[Path]) -> Claim:
        """Each device of a tree is one source; a tree that was never exported is left."""
        return trees(self.name, files)

    def identify(self, source: Source) -> Identity:
        """Rank from the framework's files, ``info.json`` or a rank table; None if none of them says it."""
        capture = _capture(source)
        framework = _framework(source)
        rank = framework.rank if framework.rank is not None else capture.rank
        return Identity(
            rank=rank,
            world_size=framework.world_size,
            groups=framework.groups,
            host=capture.host,
            device=capture.device,
        )

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Kernels first, then the other events, and what is known only together with them."""
        files = _Files(source, report, advance)
        capture = _capture(source)
        report.notes += capture.notes
        if capture.rank is not None and capture.rank != rank:
            report.note(
                SourceCode.RANK_DISPUTED, f"info.json or the rank table says rank {capture.rank}: {rank} was taken"
            )
        clock = UnixClock(capture.offset_ns)
        device = _one_of_several(source)
        tables = Tables(rank, device, report, advance, clock)
        timelines = Timelines(files.slices(TIMELINE), keep, report, advance)
        listed: list[CommOperation] = []
        events = 0
        for rows in _events(rank, tables, timelines, files, listed, clock, device, identity.groups, report, advance):
            events += len(rows)
            yield "events", rows
        for chunk in _chunks(row for s in files.slices(RANGES) for row in tables.ranges(_paths(s), events)):
            events += len(chunk)
            yield "events", rows_table("events", chunk)
        attach_groups(listed, identity.groups, report)
        operations = _joined(timelines.operations, listed, report)
        messages = MessageFinder(rank, operations, (), {})
        yield "comms", rows_table("comms", comm_rows(rank, operations, messages, "sizes and neighbours", report))
        for s in files.slices(STEP_TRACE):
            tables.iterations(_paths(s), timelines.marks)
        yield "steps", rows_table("steps", _step_rows(rank, timelines.marks, report))
        for chunk in _chunks(_memory(tables, files)):
            yield "memory", rows_table("memory", chunk)
        _record_clock(clock, capture, report)


READER = MsprofReader()


class _Files:
    """The newest export of every table of the source's device."""

    def __init__(self, source: Source, report: SourceReport, advance: Callable[[int], None]) -> None:
        device = _one_of_several(source)
        by_table: dict[str, list[TableFile]] = defaultdict(list)
        for file in source.files:
            part = part_of(file)
            if part is None or _names_other(part, device):
                advance(file.stat().st_size)
            else:
                by_table[part.table].append(part)
        self._newest: dict[str, list[list[TableFile]]] = {}
        for table, parts in by_table.items():
            self._newest[table], older = latest(parts)
            if older:
                names = ", ".join(sorted(p.path.name for p in older))
                report.note(SourceCode.FILES_LEFT_OUT, f"older exports left out: {names}")
                advance(sum(p.path.stat().st_size for p in older))
            for parts_of_one in self._newest[table]:
                _check_slices(parts_of_one, report)
        self._one_per_key(report, advance)
        if statistics := [p for s in self._newest.pop(STATISTICS, []) for p in s]:
            report.skipped["file of statistics"] += len(statistics)
            advance(sum(p.path.stat().st_size for p in statistics))

    def slices(self, table: str) -> list[list[TableFile]]:
        """The files of a table, each in its slices."""
        return self._newest.get(table, [])

    def _one_per_key(self, report: SourceReport, advance: Callable[[int], None]) -> None:
        """A table that lies there under two names would count twice."""
        for table, all_slices in self._newest.items():
            if table in (TIMELINE, STATISTICS):
                continue
            first: dict[Key, list[TableFile]] = {}
            for slices in all_slices:
                known = first.setdefault(slices[0].numbers, slices)
                if known is not slices:
                    report.note(
                        SourceCode.FILES_LEFT_OUT,
                        f"{slices[0].path.name} left out: {known[0].path.name} is the same table",
                    )
                    advance(sum(p.path.stat().st_size for p in slices))
            self._newest[table] = list(first.values())


def _names_other(part: TableFile, device: int | None) -> bool:
    named = part.numbers[0] if len(part.numbers) > 1 or (part.numbers and part.time) else None
    return named is not None and device is not None and named != device


def _check_slices(slices: Sequence[TableFile], report: SourceReport) -> None:
    missing = sorted(set(range(slices[-1].slice)) - {p.slice for p in slices})
    if missing:
        report.note(
            SourceCode.PARTS_MISSING, f"slices {missing} of {slices[0].stem} are missing: what they held is unknown"
        )


def _device(source: Source) -> int | None:
    match = _MEMBER.match(source.member)
    return int(match[1]) if match is not None else None


def _one_of_several(source: Source) -> int | None:
    """The device whose records are to be picked out; None where the files are of one device, whatever its number."""
    configured = {c.device for f in source.files if (c := configuration(f)) is not None and c.kind == "info.json"}
    return None if len(configured - {None}) == 1 else _device(source)


def _capture(source: Source) -> Capture:
    tables = [f for f in source.files if is_rank_table(f)]
    return capture_of([f for f in source.files if is_configuration(f)], _device(source), tables)


def _framework(source: Source) -> Identity:
    """What the framework's files beside the tree say; nothing if there are none or several devices share them."""
    beside = tuple(f for f in source.files if is_beside(f))
    if not beside:
        return Identity(rank=None)
    said = Parts(Source(source.reader, source.path, beside)).identity()
    return said if _one_of_several(source) is None else replace(said, rank=None)


def _paths(slices: Iterable[TableFile]) -> list[Path]:
    return [part.path for part in slices]


def _events(
    rank: int,
    tables: Tables,
    timelines: Timelines,
    files: _Files,
    listed: list[CommOperation],
    clock: UnixClock,
    device: int | None,
    groups: Sequence[Group],
    report: SourceReport,
    advance: Callable[[int], None],
) -> Iterator[pa.Table]:
    """Kernels from the table or timeline that knows most of them, then what the host did."""
    count = 0
    summarised = {s[0].numbers: s for s in files.slices(OP_SUMMARY)}
    timed = {s[0].numbers: s for s in files.slices(TASK_TIME)}
    listings = (tables.summary(_paths(slices), listed) for slices in summarised.values())
    for chunk in _chunks(kernel.row(rank, n) for n, kernel in enumerate(chain.from_iterable(listings))):
        count += len(chunk)
        yield rows_table("events", chunk)
    if count == 0:
        # Nothing in it can be used: the other files may still know the kernels.
        summarised = {}
    better = set(summarised) | timelines.shown()
    advance(sum(p.path.stat().st_size for key, slices in timed.items() if key in better for p in slices))
    plain = [slices for key, slices in timed.items() if key not in better]
    tasks = chain.from_iterable(tables.tasks(_paths(slices)) for slices in plain)
    for chunk in _chunks(kernel.row(rank, n) for n, kernel in enumerate(tasks, count)):
        count += len(chunk)
        yield rows_table("events", chunk)
    stepped = {s[0].numbers for s in files.slices(STEP_TRACE)}
    without = {Track.HARDWARE: set(summarised), Track.STEP: stepped}
    yield from timelines.tables(rank, device, clock.all, without, groups, count)
    if timelines.kernels or plain:
        report.note(SourceCode.CLASSES_INFERRED, "no op_summary of some kernels: their class is the type of their task")


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK_ROWS:
            yield chunk
            chunk = []
    yield chunk


def _joined(
    shown: Sequence[CommOperation], listed: Sequence[CommOperation], report: SourceReport
) -> list[CommOperation]:
    """Operations of the timelines, and those that only ``op_summary`` lists."""
    starts: dict[str, list[int]] = defaultdict(list)
    for operation in shown:
        starts[operation.name].append(operation.start_ns)
    extra = [o for o in listed if all(abs(o.start_ns - start) > _SAME_NS for start in starts[o.name])]
    if shown and extra:
        report.note(
            SourceCode.LINKS_UNKNOWN,
            f"{len(extra)} communication operations are in op_summary only: their links are unknown",
        )
    if len(listed) > len(extra):
        report.skipped["communication operation listed in op_summary too"] += len(listed) - len(extra)
    return sorted([*shown, *extra], key=lambda o: (o.start_ns, o.name, o.hash))


def _step_rows(rank: int, marks: MarkedSteps, report: SourceReport) -> list[Row]:
    """The framework's steps, else the iterations of the model that has most of them."""
    steps = marks.steps
    if not steps and marks.iterations:
        by_model: dict[int | None, dict[int, tuple[int, int]]] = defaultdict(dict)
        for (model, iteration), times in marks.iterations.items():
            by_model[model][iteration] = times
        model = max(by_model, key=lambda m: (len(by_model[m]), -1 if m is None else -m))
        steps = by_model.pop(model)
        if by_model:
            report.skipped["iteration of another model"] += sum(map(len, by_model.values()))
        report.note(SourceCode.STEPS_INFERRED, f"steps are the iterations of model {model}")
    return [(rank, step, start, end, None, None) for step, (start, end) in sorted(steps.items())]


def _memory(tables: Tables, files: _Files) -> Iterator[Row]:
    """What allocators hold, and what the device holds where no allocator's table says it."""
    components = set()
    for slices in files.slices(MEMORY):
        for row in tables.memory_rows(_paths(slices)):
            _, component, *_ = row
            components.add(component)
            yield row
    for slices in files.slices(DEVICE_MEMORY):
        for row in tables.device_memory_rows(_paths(slices)):
            _, component, *_ = row
            if component not in components:
                yield row


def _record_clock(clock: UnixClock, capture: Capture, report: SourceReport) -> None:
    if clock.monotonic and capture.offset_ns is not None:
        report.note(
            SourceCode.CLOCK_CONVERTED,
            f"its times count from the host's boot: moved to wall clock by {capture.offset_ns:,} ns, from start_info",
        )
    elif clock.monotonic:
        report.note(
            SourceCode.NO_EPOCH,
            "its times count from the host's boot and no start_info relates them to wall clock: "
            "they cannot be compared with other hosts'",
        )
