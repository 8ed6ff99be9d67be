"""Rows from the tracks of an Ascend timeline; msprof's and torch_npu's files have the same ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers.ascend_planes import Planes
from tracetool.readers.ascend_tracks import Track, event_span, is_kernel, number, step_of, task_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracetool.readers import SourceReport
    from tracetool.readers.ascend_chrome import Event
    from tracetool.readers.ascend_tracks import Tracks

CHUNK_ROWS = 1 << 16

Row = tuple[object, ...]


@dataclass(slots=True)
class Marks:
    """Steps as the timeline marks them.

    Attributes:
        steps: Number to start and end of the framework's marks, ns.
        iterations: (model, number) to start and end of a graph's iterations.
    """

    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    iterations: dict[tuple[int | None, int], tuple[int, int]] = field(default_factory=dict)


class Timeline:
    """Turns events into rows of the ``events`` table; what other tables need of them is kept.

    Args:
        rank: Global rank.
        tracks: Names of processes and threads.
        report: Told what is dropped and skipped.
        wanted: Tracks to read; the others are another file's or table's to tell.
        clock: Turns a time of the file into Unix time.
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
        clock: Callable[[int], int] = int,
        device: int | None = None,
    ) -> None:
        self.planes = Planes(report)
        self.marks = Marks()
        self.kernels = 0
        self._rank = rank
        self._tracks = tracks
        self._report = report
        self._wanted = wanted
        self._clock = clock
        self._device = device
        self._skipped: Counter[str] = Counter()

    def rows(self, events: Iterable[Event], first: int) -> Iterator[list[Row]]:
        """Rows in chunks.

        Args:
            events: In any order.
            first: Number of the first event within the rank.
        """
        rows: list[Row] = []
        count = first
        for event in events:
            row = self._row(event, count)
            if row is not None:
                rows.append(row)
                count += 1
                if len(rows) == CHUNK_ROWS:
                    yield rows
                    rows = []
        self._report.skipped.update(self._skipped)
        self._skipped.clear()
        yield rows

    def _row(self, event: Event, count: int) -> Row | None:
        if event.ph != "X":
            self._skipped[f"ph {event.ph}"] += 1
            return None
        pid, tid = number(event.pid), number(event.tid)
        track = self._tracks.of(pid, tid, event.cat)
        if pid is None or tid is None or track not in self._wanted:
            self._skipped[event.cat or self._tracks.called(event)] += 1
            return None
        device = self._tracks.device(pid)
        if self._device is not None and device is not None and device != self._device:
            self._skipped["event of another device"] += 1
            return None
        self._report.rows += 1
        times = event_span(event, self._report)
        if times is None:
            return None
        start, duration = self._clock(times[0]), times[1]
        return self._used(event, track, (pid, tid), start, duration, count)

    def _used(
        self, event: Event, track: Track, thread: tuple[int, int], start: int, duration: int, count: int
    ) -> Row | None:
        name = str(event.name)
        if track is Track.HARDWARE:
            return self._kernel(event, name, thread[1], start, duration, count)
        if track is Track.HOST:
            connection = number(event.args.connection_id) if event.args is not None else None
            return self._host_row(count, "launch", name, start, duration, thread[1], correlation=connection)
        if track is Track.FRAMEWORK:
            return self._framework(event, name, thread[1], start, duration, count)
        if track is Track.COMMUNICATION:
            self.planes.operation(thread, self._tracks.communicator(*thread), name, start, start + duration)
        elif track is Track.SUBTASK:
            self.planes.subtask(thread, start, event.args)
        else:
            self._iteration(event, thread, start, duration)
        return None

    def _kernel(self, event: Event, name: str, stream: int, start: int, duration: int, count: int) -> Row | None:
        kind = task_type(event)
        if not is_kernel(event):
            self._skipped[f"device task {kind or name}"] += 1
            return None
        self.kernels += 1
        connection = number(event.args.connection_id) if event.args is not None else None
        return (
            count, self._rank, "kernel", name, start, duration,
            None, stream, connection, None, None, kind, None, None, None,
        )  # fmt: skip

    def _framework(self, event: Event, name: str, thread: int, start: int, duration: int, count: int) -> Row:
        step = step_of(name)
        if step is not None:
            self.marks.steps[step] = (start, start + duration)
            return self._host_row(count, "annotation", name, start, duration, thread)
        sequence = number(event.args.sequence) if event.args is not None else None
        # torch_npu writes -1 where there is none.
        sequence = None if sequence is not None and sequence < 0 else sequence
        return self._host_row(count, "op", name, start, duration, thread, sequence=sequence)

    def _host_row(
        self,
        count: int,
        category: str,
        name: str,
        start: int,
        duration: int,
        thread: int,
        *,
        correlation: int | None = None,
        sequence: int | None = None,
    ) -> Row:
        return (
            count, self._rank, category, name, start, duration,
            thread, None, correlation, None, sequence, None, None, None, None,
        )  # fmt: skip

    def _iteration(self, event: Event, thread: tuple[int, int], start: int, duration: int) -> None:
        """A graph's iteration; its parts (FP_BP, Reduce ...) have no table."""
        iteration = number(event.args.iteration) if event.args is not None else None
        if event.cat != "Iteration Time" or iteration is None or iteration < 0:
            self._skipped[f"step trace {event.cat}"] += 1
            return
        key = (self._tracks.model(*thread), iteration)
        known = self.marks.iterations.setdefault(key, (start, start + duration))
        if known != (start, start + duration):
            self._report.dropped["iteration listed with other times"] += 1
