"""Rows from the tracks of an Ascend timeline; msprof's and torch_npu's files have the same ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers.cann.planes import Planes
from tracetool.readers.cann.tracks import ABSENT, PYTHON, Track, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import SourceReport
    from tracetool.readers.cann.chrome import SpanColumns
    from tracetool.readers.cann.tracks import Thread, Tracks

    Flags = NDArray[np.bool_]
    Integers = NDArray[np.int64]

CHUNK_ROWS = 1 << 16

Row = tuple[object, ...]

_CATEGORIES = ("kernel", "launch", "op", "annotation", "python")
_KERNEL, _LAUNCH, _OP, _ANNOTATION, _PYTHON = range(len(_CATEGORIES))
_NONE = -1
"""Code of a span of no track that is used, or that becomes no event."""
_TRACKS = tuple(Track)
_ITERATION = "Iteration Time"


@dataclass(slots=True)
class MarkedSteps:
    """Steps as the timeline marks them.

    Attributes:
        steps: Number to start and end of the framework's marks, ns.
        iterations: (model, number) to start and end of a graph's iterations.
    """

    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    iterations: dict[tuple[int | None, int], tuple[int, int]] = field(default_factory=dict)


class EventTimeline:
    """Turns spans into rows of the ``events`` table; what other tables need of them is kept.

    Args:
        rank: Global rank.
        tracks: Names of processes and threads, all of them.
        report: Told what is dropped and skipped.
        wanted: Tracks to read; the others are another file's or table's to tell.
        clock: Turns times of the file into Unix time.
        device: Only this device's events and the host's; None for all.

    Attributes:
        planes: Communication operations and their subtasks.
        marks: Steps.
        kernels: Kernels so far.
    """

    def __init__(
        self,
        rank: int,
        tracks: Tracks,
        report: SourceReport,
        *,
        wanted: frozenset[Track],
        clock: Callable[[Integers], Integers] | None = None,
        device: int | None = None,
    ) -> None:
        import numpy as np

        self.planes = Planes(report)
        self.marks = MarkedSteps()
        self.kernels = 0
        self._rank = rank
        self._tracks = tracks
        self._report = report
        self._clock = clock
        self._threads = list(tracks.numbers)
        own = [tracks.of(*thread) for thread in self._threads]
        others = [device is not None and tracks.device(t.pid) not in (device, None) for t in self._threads]
        self._track = np.array([_TRACKS.index(track) for track in own], np.int8)
        self._wanted = np.array([track in wanted for track in own], bool)
        self._other = np.array(others, bool)
        self._category = np.array([_category(t, track) for t, track in zip(self._threads, own, strict=True)], np.int32)

    def tables(self, spans: Iterable[SpanColumns], first: int) -> Iterator[pa.Table]:
        """Rows of the ``events`` table, a batch of spans at a time.

        Args:
            spans: In any order.
            first: Number of the first event within the rank.
        """
        count = first
        for some in spans:
            rows = self._rows(some, count)
            count += len(rows)
            if len(rows):
                yield rows

    def _rows(self, spans: SpanColumns, first: int) -> pa.Table:
        import numpy as np

        threads = spans.threads
        used = self._choose(threads)
        start, duration = self._times(spans, used)
        track = np.where(used, self._track[threads], _NONE)
        category = np.where(used, self._category[threads], _NONE)
        kernels = (category == _KERNEL) & spans.kernels
        self.kernels += int(np.count_nonzero(kernels))
        self._count_tasks(spans, (category == _KERNEL) & ~kernels)
        category[(category == _KERNEL) & ~kernels] = _NONE
        self._take_marks(spans, category, start, duration)
        self._take_operations(spans, track == _TRACKS.index(Track.COMMUNICATION), start, duration)
        self.planes.subtasks(spans, self._threads, np.flatnonzero(track == _TRACKS.index(Track.SUBTASK)), start)
        self._take_iterations(spans, np.flatnonzero(track == _TRACKS.index(Track.STEP)), start, duration)
        rows = np.flatnonzero(category != _NONE)
        return self._table(spans.only(rows), category[rows], start[rows], duration[rows], first)

    def _choose(self, threads: NDArray[np.int32]) -> Flags:
        """Which spans are of wanted tracks and of the device; the others are counted."""
        import numpy as np

        wanted: Flags = self._wanted[threads]
        for place, count in enumerate(np.bincount(threads[~wanted]).tolist()):
            if count:
                thread = self._threads[place]
                self._report.skipped[thread.category or self._tracks.called(thread.pid)] += count
        other: Flags = wanted & self._other[threads]
        if other.any():
            self._report.skipped["event of another device"] += int(np.count_nonzero(other))
        wanted &= ~other
        return wanted

    def _times(self, spans: SpanColumns, used: Flags) -> tuple[Integers, Integers]:
        """Start and duration; spans without them are counted and used no more."""
        import numpy as np

        start, duration = spans.integers("start"), spans.integers("duration")
        unknown = (start == ABSENT) | (duration == ABSENT)
        zero = ~unknown & (start <= 0)
        for reason, rows in (("time is no number", used & unknown), ("time is zero", used & zero)):
            if rows.any():
                self._report.dropped[reason] += int(np.count_nonzero(rows))
        used &= ~(unknown | zero)
        if (negative := used & (duration < 0)).any():
            self._report.repaired["negative duration set to 0"] += int(np.count_nonzero(negative))
        if self._clock is not None:
            start = start.copy()
            start[used] = self._clock(start[used])
        return start, np.maximum(duration, 0)

    def _count_tasks(self, spans: SpanColumns, rows: Flags) -> None:
        """Count device tasks that compute nothing, by type, or by name where they have none."""
        import numpy as np

        types, kinds = spans.texts("task_type")
        names, called = spans.texts("name")
        pairs, counts = np.unique(types[rows] * len(called) + names[rows], return_counts=True)
        for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
            kind, name = divmod(pair, len(called))
            self._report.skipped[f"device task {kinds[kind] or called[name]}"] += count

    def _take_marks(self, spans: SpanColumns, category: NDArray[np.int32], start: Integers, duration: Integers) -> None:
        """Note the framework's marks of steps, which are annotations."""
        import numpy as np

        names, called = spans.texts("name")
        steps = {place: step for place, name in enumerate(called) if (step := step_of(name)) is not None}
        if not steps:
            return
        rows = np.flatnonzero((category == _OP) & np.isin(names, list(steps)))
        category[rows] = _ANNOTATION
        for row in rows.tolist():
            first = int(start[row])
            self.marks.steps[steps[int(names[row])]] = (first, first + int(duration[row]))

    def _take_operations(self, spans: SpanColumns, rows: Flags, start: Integers, duration: Integers) -> None:
        threads = spans.threads
        names, called = spans.texts("name")
        for row in rows.nonzero()[0].tolist():
            pid, tid, _ = self._threads[threads[row]]
            if pid is not None and tid is not None:
                first = int(start[row])
                communicator = self._tracks.communicator(pid, tid)
                self.planes.operation((pid, tid), communicator, called[names[row]], first, first + int(duration[row]))

    def _take_iterations(self, spans: SpanColumns, rows: Integers, start: Integers, duration: Integers) -> None:
        """Note a graph's iterations; their parts (FP_BP, Reduce ...) have no table."""
        threads, numbers = spans.threads, spans.integers("iteration")
        for row in rows.tolist():
            pid, tid, category = self._threads[threads[row]]
            iteration = int(numbers[row])
            if category != _ITERATION or iteration < 0 or pid is None or tid is None:
                self._report.skipped[f"step trace {category}"] += 1
                continue
            times = (int(start[row]), int(start[row] + duration[row]))
            if self.marks.iterations.setdefault((self._tracks.model(pid, tid), iteration), times) != times:
                self._report.dropped["iteration listed with other times"] += 1

    def _table(
        self, spans: SpanColumns, category: NDArray[np.int32], start: Integers, duration: Integers, first: int
    ) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        from tracetool.tables.run import TABLES

        size = len(spans)
        of_thread = np.array([ABSENT if t.tid is None else t.tid for t in self._threads], np.int64)
        threads = of_thread[spans.threads]
        on_device = category == _KERNEL
        sequence = spans.integers("sequence")
        has_connection = on_device | (category == _LAUNCH)
        # torch_npu writes -1 where there is none.
        has_sequence = (category == _OP) & (sequence >= 0)
        names, called = spans.texts("name")
        kinds, types = spans.texts("task_type")
        nothing = pa.nulls(size, pa.int64())
        columns = {
            "event": pa.array(np.arange(first, first + size)),
            "rank": pa.array(np.full(size, self._rank, np.int32)),
            "category": pa.DictionaryArray.from_arrays(category, list(_CATEGORIES)),
            "name": pa.DictionaryArray.from_arrays(names.astype(np.int32), called),
            "start_ns": pa.array(start),
            "duration_ns": pa.array(duration),
            "thread": pa.array(threads, mask=on_device),
            "stream": pa.array(threads, mask=~on_device),
            "correlation": _where(has_connection, spans.integers("connection")),
            "external_id": nothing,
            "sequence_number": pa.array(sequence, mask=~has_sequence),
            "kernel_class": pa.DictionaryArray.from_arrays(pa.array(kinds.astype(np.int32), mask=~on_device), types),
            "blocks": nothing,
            "label": pa.nulls(size, pa.dictionary(pa.int32(), pa.string())),
            "args": spans.table.column("args").cast(pa.string())
            if "args" in spans.table.column_names
            else pa.nulls(size, pa.string()),
        }
        return pa.table(columns).cast(TABLES["events"].arrow_schema())


def _category(thread: Thread, track: Track) -> int:
    """The category of the events that spans of a thread become; _NONE for what becomes none."""
    if track is Track.HARDWARE:
        return _KERNEL
    if track is Track.HOST:
        return _LAUNCH
    if track is Track.FRAMEWORK:
        return _PYTHON if thread.category == PYTHON else _OP
    return _NONE


def _where(rows: Flags, values: Integers) -> pa.Array:
    """A column that is null elsewhere, and where there is no value."""
    import pyarrow as pa

    return pa.array(values, mask=~rows | (values == ABSENT))
