"""The timelines of one device: which of them tells what, and rows from those that are chosen.

To CANN 6.3 every iteration has four files of which one (``msprof``) repeats the other three. Per iteration and
track the file with the most events is read, the others are not, so that nothing counts twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.cann.chrome import SpanColumns, take_spans
from tracetool.readers.cann.timeline import EventTimeline, MarkedSteps
from tracetool.readers.cann.tracks import Track, Tracks
from tracetool.readers.files.spill import TableSpill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.cann.comms import CommOperation
    from tracetool.readers.msprof.files import TableFile

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
                    report.notes.append(f"left out: {error.message}")
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
            self._report.notes.append(
                f"{len(left)} timelines ({', '.join(sorted(set(left)))}) hold nothing that "
                f"{', '.join(kept)} lacks: not counted again"
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
