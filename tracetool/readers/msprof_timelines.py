"""The timelines of one device: which of them tells what, and rows from those that are chosen.

To CANN 6.3 every iteration has four files of which one (``msprof``) repeats the other three. Per iteration and
track the file with the most events is read, the others are not, so that nothing counts twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers import SourceReport
from tracetool.readers.ascend_chrome import Event, chrome_events
from tracetool.readers.ascend_timeline import Marks, Timeline
from tracetool.readers.ascend_tracks import Track, Tracks
from tracetool.readers.msprof_tables import without_repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tracetool.readers import Group
    from tracetool.readers.ascend_comms import Operation
    from tracetool.readers.ascend_timeline import Row
    from tracetool.readers.msprof_files import Part

Key = tuple[int, ...]

_READ = (Track.HARDWARE, Track.HOST, Track.COMMUNICATION, Track.STEP, Track.FRAMEWORK)


@dataclass(slots=True)
class _Slices:
    """A timeline: its slices in order, its names, and which of its tracks are read."""

    parts: list[Part]
    tracks: Tracks
    chosen: set[Track] = field(default_factory=set)

    @property
    def key(self) -> Key:
        return self.parts[0].numbers


class Timelines:
    """Surveys the timelines, then reads what is asked for.

    Args:
        slices: Slices of each timeline, in order.
        report: Told about damage, and which files were left out as repetitions.
        advance: Called with the file bytes consumed.

    Attributes:
        marks: Steps and iterations.
        operations: Communication operations with their links, in no order.
        kernels: Kernels read.
    """

    def __init__(self, slices: Sequence[Sequence[Part]], report: SourceReport, advance: Callable[[int], None]) -> None:
        self.marks = Marks()
        self.operations: list[Operation] = []
        self.kernels = 0
        self._report = report
        self._all = [_Slices(list(parts), Tracks()) for parts in slices]
        for timeline in self._all:
            for part in timeline.parts:
                timeline.tracks.learn(chrome_events(part.path, report, advance))
        self._choose()

    def shown(self) -> set[Key]:
        """Device, model and iteration of the timelines that show device tasks."""
        return {t.key for t in self._all if Track.HARDWARE in t.chosen}

    def rows(
        self,
        rank: int,
        device: int | None,
        clock: Callable[[int], int],
        without: dict[Track, set[Key]],
        groups: Sequence[Group],
        first: int,
    ) -> Iterator[list[Row]]:
        """Rows of the ``events`` table, in chunks.

        Args:
            rank: Global rank.
            device: Only this device; None for all.
            clock: Turns a time of the file into Unix time.
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
            reading = Timeline(
                rank, timeline.tracks, self._report, wanted=frozenset(wanted), clock=clock, device=device
            )
            reading.marks = self.marks
            for chunk in reading.rows(self._events(timeline), first):
                first += len(chunk)
                yield chunk
            self.operations += reading.planes.finish(groups)
            self.kernels += reading.kernels

    def _events(self, timeline: _Slices) -> Iterator[Event]:
        # Damage and bytes were told in the survey.
        again = [chrome_events(part.path, SourceReport(), _nobody) for part in timeline.parts]
        return without_repeats([_spans(events) for events in again], _sameness, self._report)

    def _choose(self) -> None:
        by_key: dict[Key, list[_Slices]] = defaultdict(list)
        for timeline in self._all:
            by_key[timeline.key].append(timeline)
        for same in by_key.values():
            for track in _READ:
                holding = [t for t in same if t.tracks.spans[track]]
                if holding:
                    best = max(holding, key=lambda t: (t.tracks.spans[track], len(t.tracks.spans)))
                    best.chosen.add(track)
        left = [t.parts[0].stem for t in self._all if not t.chosen]
        kept = sorted({t.parts[0].stem for t in self._all if t.chosen})
        if left:
            self._report.notes.append(
                f"{len(left)} timelines ({', '.join(sorted(set(left)))}) hold nothing that "
                f"{', '.join(kept)} lacks: not counted again"
            )


def _spans(events: Iterable[Event]) -> Iterator[Event]:
    return (event for event in events if event.ph != "M")


def _sameness(event: Event) -> tuple[object, ...]:
    return (event.ph, str(event.name), str(event.pid), str(event.tid), bytes(event.ts), bytes(event.dur))


def _nobody(count: int) -> None:
    """Bytes that are read a second time are shown to nobody."""
