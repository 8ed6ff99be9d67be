"""Rows from the CSV tables of the ``msprof`` command, and from the timelines of one device.

To CANN 6.3 every iteration has four files of which one (``msprof``) repeats the other three. Per iteration and
track the file with the most events is read, the others are not, so that nothing counts twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace
from tracetool.readers.cann import (
    KB_OF_MEMORY,
    MB_OF_MEMORY,
    csv_header,
    csv_records,
    integer,
    scaled,
    small_integer,
    time_ns,
)
from tracetool.readers.cann.chrome import SpanColumns, take_spans
from tracetool.readers.cann.planes import operation_of
from tracetool.readers.cann.timeline import EventTimeline, MarkedSteps
from tracetool.readers.cann.tracks import Track, Tracks, is_kernel_type, span
from tracetool.readers.files.spill import TableSpill

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.cann.comms import CommOperation
    from tracetool.readers.cann.timeline import Row
    from tracetool.readers.msprof.files import TableFile

T = TypeVar("T")

_COMMUNICATION_TYPES = ("COMMUNICATION", "HCCL")
_NAMELESS = ("", "N/A")
# Old releases name the column without its unit, which is the same.
_STARTS = ("Task Start Time(us)", "Task Start Time", "Start Time(us)")
_ALLOCATIONS = ("Total Allocated(KB)", "Total Reserved(KB)", "Total Allocated(MB)", "Total Reserved(MB)")


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel as a table lists it."""

    name: str
    kind: str | None
    stream: int | None
    start_ns: int
    duration_ns: int

    def row(self, rank: int, event: int) -> Row:
        """Its row of the ``events`` table."""
        return (
            event, rank, "kernel", self.name, self.start_ns, self.duration_ns,
            None, self.stream, None, None, None, self.kind, None, None, None,
        )  # fmt: skip


class Tables:
    """Reads the tables of one device.

    Args:
        rank: Global rank.
        device: Only records of this device; None for all.
        report: Told what is dropped and skipped.
        advance: Called with the file bytes consumed.
        clock: Turns a time of the file into Unix time.
    """

    def __init__(
        self,
        rank: int,
        device: int | None,
        report: SourceReport,
        advance: Callable[[int], None],
        clock: Callable[[int], int],
    ) -> None:
        self._rank = rank
        self._device = device
        self._report = report
        self._advance = advance
        self._clock = clock

    def summary(self, slices: Sequence[Path], operations: list[CommOperation]) -> Iterator[KernelRow]:
        """Kernels of ``op_summary``; its communication operations go into ``operations``."""
        optional = ("OP Type", "Task Type", "Stream ID", *_STARTS)
        for place, record in self._records(slices, ("Op Name", "Task Duration(us)"), optional):
            name, duration_text, kind, task_type, stream, *starts = record
            times = self._span(place, next((s for s in starts if s), ""), duration_text)
            if times is None:
                continue
            if task_type in _COMMUNICATION_TYPES or name.startswith("hcom_"):
                operations.append(operation_of(name, times[0], sum(times), integer(stream)))
            elif name in _NAMELESS:
                self._report.skipped[f"device task {task_type or 'without a name'}"] += 1
            else:
                yield KernelRow(name, None if kind in _NAMELESS else kind, integer(stream), *times)

    def tasks(self, slices: Sequence[Path]) -> Iterator[KernelRow]:
        """Kernels of ``task_time``; tasks that record, wait or copy have no name there or are of another type."""
        required = ("kernel_name", "kernel_type", "task_start(us)", "task_time(us)")
        for place, (name, kind, start, duration, stream) in self._records(slices, required, ("stream_id",)):
            if name in _NAMELESS or not is_kernel_type(kind):
                self._report.skipped[f"device task {kind or 'without a type'}"] += 1
            elif (times := self._span(place, start, duration)) is not None:
                yield KernelRow(name, kind, integer(stream), *times)

    def iterations(self, slices: Sequence[Path], marks: MarkedSteps) -> None:
        """Put the iterations of ``step_trace`` into the marks."""
        required = ("Iteration ID", "Iteration End(us)", "Iteration Time(us)")
        for place, (number, end_text, time_text, model) in self._records(slices, required, ("Model ID",)):
            iteration, end, time = small_integer(number), time_ns(end_text), time_ns(time_text)
            if iteration is None or end is None or time is None or not 0 <= time < end:
                self._report.drop("iteration without times", place)
                continue
            times = (self._clock(end - time), self._clock(end))
            if marks.iterations.setdefault((integer(model), iteration), times) != times:
                self._report.drop("iteration listed with other times", place)

    def memory_rows(self, slices: Sequence[Path]) -> Iterator[Row]:
        """Rows of ``memory_record``, whose header says whether it counts KB or MB."""
        required = ("Component", "Timestamp(us)")
        for place, (component, time_text, *sizes) in self._records(slices, required, _ALLOCATIONS):
            if (time := self._time(place, time_text)) is not None:
                by_kb = [scaled(size, KB_OF_MEMORY) for size in sizes[:2]]
                by_mb = [scaled(size, MB_OF_MEMORY) for size in sizes[2:]]
                allocated, reserved = (k if k is not None else m for k, m in zip(by_kb, by_mb, strict=True))
                yield (self._rank, component, time, None, allocated, reserved)

    def device_memory_rows(self, slices: Sequence[Path]) -> Iterator[Row]:
        """Rows of ``npu_mem``: what the process (APP) and everybody (Device) hold of the device's HBM."""
        for place, (event, time_text, kb, mb) in self._records(
            slices, ("event", "timestamp(us)"), ("hbm(KB)", "hbm(MB)")
        ):
            if (time := self._time(place, time_text)) is not None:
                held = scaled(kb, KB_OF_MEMORY)
                held = scaled(mb, MB_OF_MEMORY) if held is None else held
                component = "APP" if event.lower() == "app" else event.capitalize()
                yield (self._rank, component, time, None, None, held)

    def ranges(self, slices: Sequence[Path], first: int) -> Iterator[Row]:
        """Rows of the ``events`` table for ranges that the program named (mstx)."""
        required = ("event_type", "Start_time(us)", "End_time(us)", "message")
        count = first
        for place, (kind, start_text, end_text, message, thread) in self._records(slices, required, ("tid",)):
            start, end = time_ns(start_text), time_ns(end_text)
            if start is None or end is None or not 0 < start <= end:
                self._report.drop("range without times", place)
            elif "mark" in kind.lower() and start == end:
                self._report.skipped["mark without a duration"] += 1
            else:
                yield (
                    count, self._rank, "annotation", message, self._clock(start), end - start,
                    integer(thread), None, None, None, None, None, None, None, None,
                )  # fmt: skip
                count += 1

    def _records(
        self, slices: Sequence[Path], required: tuple[str, ...], optional: tuple[str, ...]
    ) -> Iterator[tuple[FilePlace, list[str]]]:
        """Records of the device, without the ones that a slice repeats from the one before."""

        def whole(path: Path) -> Iterator[tuple[Path, int, tuple[str, ...]]]:
            names = csv_header(path) if len(slices) > 1 else ()
            extra = tuple(name for name in names if name not in (*required, *optional, "Device_id"))
            columns = (*optional, "Device_id", *extra)
            for line, record in csv_records(path, required, columns, self._advance, self._report):
                yield path, line, record

        used = len(required) + len(optional)
        distinct = without_repeats([whole(path) for path in slices], lambda entry: entry[2], self._report)
        for path, line, record in distinct:
            self._report.rows += 1
            device = small_integer(record[used])
            if device is not None and self._device is not None and device != self._device:
                self._report.skipped["record of another device"] += 1
            else:
                yield FilePlace(str(path), line, "line"), list(record[:used])

    def _span(self, place: FilePlace, start_text: str, duration_text: str) -> tuple[int, int] | None:
        times = span(
            start_text,
            duration_text,
            lambda reason: self._report.drop(reason, place),
            lambda reason: self._report.repair(reason, place),
        )
        return None if times is None else (self._clock(times[0]), times[1])

    def _time(self, place: FilePlace, text: str) -> int | None:
        times = self._span(place, text, "0")
        return None if times is None else times[0]


def without_repeats(slices: Sequence[Iterable[T]], key: Callable[[T], Hashable], report: SourceReport) -> Iterator[T]:
    """The entries of all slices in order; those that the slice before had too are counted and left out."""
    if len(slices) == 1:
        yield from slices[0]
        return
    before: set[int] = set()
    for entries in slices:
        now: set[int] = set()
        for entry in entries:
            mark = hash(key(entry))
            now.add(mark)
            if mark in before:
                report.skipped["repeated from the slice before"] += 1
            else:
                yield entry
        before = now


Key = tuple[int, ...]

_READ = (Track.HARDWARE, Track.HOST, Track.COMMUNICATION, Track.STEP, Track.FRAMEWORK)


@dataclass(slots=True)
class _Slices:
    """A timeline: its slices in order, the spans of each, its names, and which of its tracks are read."""

    parts: list[TableFile]
    tracks: Tracks = field(default_factory=Tracks)
    batches: list[list[int]] = field(default_factory=list)
    chosen: set[Track] = field(default_factory=set)

    @property
    def key(self) -> Key:
        return self.parts[0].numbers


class Timelines:
    """Reads the timelines, then tells what is asked for.

    Args:
        slices: Slices of each timeline, in order.
        keep: What is read on request only.
        report: Told about damage, and which files were left out as repetitions.
        advance: Called with the file bytes consumed.

    Attributes:
        marks: Steps and iterations.
        operations: Communication operations with their links, in no order.
        kernels: Kernels read.
    """

    def __init__(
        self,
        slices: Sequence[Sequence[TableFile]],
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> None:
        self.marks = MarkedSteps()
        self.operations: list[CommOperation] = []
        self.kernels = 0
        self._report = report
        self._spill = TableSpill()
        self._all = [_Slices(list(parts)) for parts in slices]
        for timeline in self._all:
            for part in timeline.parts:
                try:
                    batches = take_spans(part.path, timeline.tracks, self._spill, keep, report, advance)
                except MalformedTrace as error:
                    report.drop("timeline without events", FilePlace(str(part.path), 0))
                    report.note(SourceCode.FILES_DAMAGED, f"left out: {error.message}")
                    batches = []
                timeline.batches.append(batches)
        self._choose()

    def shown(self) -> set[Key]:
        """Device, model and iteration of the timelines that show device tasks."""
        return {t.key for t in self._all if Track.HARDWARE in t.chosen}

    def tables(
        self,
        rank: int,
        device: int | None,
        clock: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        without: dict[Track, set[Key]],
        groups: Sequence[Group],
        first: int,
    ) -> Iterator[pa.Table]:
        """Rows of the ``events`` table, in chunks.

        Args:
            rank: Global rank.
            device: Only this device; None for all.
            clock: Turns times of the file into Unix time.
            without: Tracks that tables tell better, by key.
            groups: Groups that are known from elsewhere.
            first: Number of the first event within the rank.
        """
        for timeline in self._all:
            wanted = {track for track in timeline.chosen if timeline.key not in without.get(track, ())}
            if Track.COMMUNICATION in wanted:
                wanted.add(Track.SUBTASK)
            if not wanted:
                continue
            reading = EventTimeline(
                rank, timeline.tracks, self._report, wanted=frozenset(wanted), clock=clock, device=device
            )
            reading.marks = self.marks
            for chunk in reading.tables(self._spans(timeline), first):
                first += len(chunk)
                yield chunk
            self.operations += reading.planes.finish(groups)
            self.kernels += reading.kernels

        self._spill.close()

    def _spans(self, timeline: _Slices) -> Iterator[SpanColumns]:
        """The spans of all slices in order; those that the slice before had too are counted and left out."""
        import numpy as np

        if len(timeline.parts) == 1:
            yield from (SpanColumns(self._spill.take(number)) for number in timeline.batches[0])
            return
        before = np.empty(0, np.uint64)
        for batches in timeline.batches:
            now = [before[:0]]
            for number in batches:
                spans = SpanColumns(self._spill.take(number))
                now.append(_marks(spans))
                repeated = np.isin(now[-1], before)
                if repeated.any():
                    self._report.skipped["repeated from the slice before"] += int(np.count_nonzero(repeated))
                yield spans.only(np.flatnonzero(~repeated))
            before = np.concatenate(now)

    def _choose(self) -> None:
        by_key: dict[Key, list[_Slices]] = defaultdict(list)
        for timeline in self._all:
            by_key[timeline.key].append(timeline)
        for same in by_key.values():
            spans = [(timeline, timeline.tracks.spans) for timeline in same]
            for track in _READ:
                holding = [(t, counts) for t, counts in spans if counts[track]]
                if holding:
                    best, _ = max(holding, key=lambda offer: (offer[1][track], len(offer[1])))
                    best.chosen.add(track)
        left = [t.parts[0].stem for t in self._all if not t.chosen]
        kept = sorted({t.parts[0].stem for t in self._all if t.chosen})
        if left:
            self._report.note(
                SourceCode.FILES_LEFT_OUT,
                f"{len(left)} timelines ({', '.join(sorted(set(left)))}) hold nothing that "
                f"{', '.join(kept)} lacks: not counted again",
            )


def _marks(spans: SpanColumns) -> NDArray[np.uint64]:
    """A number for each span that equal ones share: of its thread, name and times."""
    import numpy as np
    import xxhash

    names, called = spans.texts("name")
    mixed = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in called], np.uint64)[names]
    threads = spans.threads.astype(np.int64)
    for column in (threads, spans.integers("start"), spans.integers("duration")):
        mixed = (mixed ^ column.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed
