"""``trace_view.json`` of torch_npu: the framework's events in front of the tracks that msprof writes.

Ops, launches and step marks are known here only. Kernels and communication are in other files too, with the
types and steps that this one lacks; they are taken from here where those files have fewer.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import SourceReport
from tracetool.readers.cann.chrome import SpanColumns, take_spans
from tracetool.readers.cann.kernels import CommunicationTask
from tracetool.readers.cann.parts import TRACE_VIEW
from tracetool.readers.cann.timeline import EventTimeline
from tracetool.readers.cann.tracks import Track, Tracks
from tracetool.readers.files.spill import TableSpill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers.cann.kernels import Kernels


_HOST = frozenset({Track.FRAMEWORK, Track.HOST})
_DEVICE = frozenset({Track.HARDWARE, Track.COMMUNICATION, Track.SUBTASK})
# The two files round to whole ns on their own: starts of 4 of 382 tasks measured differ by 1 ns, all others agree.
_ROUNDING_NS = 1


class View:
    """Reads the file once; its spans wait on disk until they are asked for.

    Args:
        path: The file.
        rank: Global rank.
        keep: What is read on request only.
        report: Told about damage, what is skipped, and what is in this file only.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: If it holds no list of events.
    """

    def __init__(
        self, path: Path, rank: int, keep: frozenset[str], report: SourceReport, advance: Callable[[int], None]
    ) -> None:
        self._rank = rank
        self._report = report
        self._tracks = Tracks()
        self._spill = TableSpill()
        self._batches = take_spans(path, self._tracks, self._spill, keep, report, advance)

    def event_tables(self, kernels: Kernels) -> Iterator[pa.Table]:
        """Rows of the ``events`` table: ops, launches, step marks, and kernels that are missing.

        Args:
            kernels: What another table lists; gets the communication operations it lacks, and steps if it has none.
        """
        count = len(kernels.starts)
        reading = EventTimeline(self._rank, self._tracks, self._report, wanted=_HOST)
        for rows in reading.tables(self._spans(), count):
            count += len(rows)
            yield rows
        kernels.extents = kernels.extents or reading.marks.steps
        missing = self._tracks.kernels > len(kernels.starts)
        if missing or self._tracks.spans[Track.COMMUNICATION] > len(kernels.tasks):
            yield from self._missing(kernels, count)
        self._spill.close()

    def _missing(self, kernels: Kernels, first: int) -> Iterator[pa.Table]:
        import numpy as np
        import pyarrow as pa

        report = SourceReport()
        reading = EventTimeline(self._rank, self._tracks, report, wanted=_DEVICE)
        known = _Known(kernels.starts)
        count = first
        for rows in reading.tables(self._spans(), 0):
            lacking = rows.filter(pa.array([known.lacks(start) for start in rows.column("start_ns").to_pylist()]))
            # Numbers follow one another although rows were left out.
            yield lacking.set_column(0, rows.schema.field(0), pa.array(np.arange(count, count + len(lacking))))
            count += len(lacking)
        listed = _Known(array("q", [task.start_ns for task in kernels.tasks]))
        tasks = [
            CommunicationTask(o.name, None, o.start_ns, o.end_ns, o.stream)
            for o in reading.planes.finish(())
            if listed.lacks(o.start_ns)
        ]
        kernels.tasks += tasks
        for what, number in (("kernels", count - first), ("communication operations", len(tasks))):
            if number:
                self._report.note(
                    SourceCode.FILES_CHOSEN, f"{number} {what} are in {TRACE_VIEW} only: taken from there"
                )
        self._report.dropped.update(report.dropped)
        self._report.repaired.update(report.repaired)

    def _spans(self) -> Iterator[SpanColumns]:
        return (SpanColumns(self._spill.take(number)) for number in self._batches)


class _Known:
    """Starts of tasks that another table lists; each stands for one task."""

    def __init__(self, starts: array[int]) -> None:
        self._starts = array("q", sorted(starts))
        self._used = bytearray(len(starts))

    def lacks(self, start: int) -> bool:
        """Whether no task that is left starts there; else that task is used up."""
        first = bisect_left(self._starts, start - _ROUNDING_NS)
        last = bisect_right(self._starts, start + _ROUNDING_NS)
        # The nearest first, so that tasks 1 ns apart are not taken for each other.
        for place in sorted(range(first, last), key=lambda p: abs(self._starts[p] - start)):
            if not self._used[place]:
                self._used[place] = 1
                return False
        return True
