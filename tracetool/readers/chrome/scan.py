"""Events of a Chrome trace as columns: in bounded memory, exact, and past whatever is damaged.

A scanner (the compiled one, or the plain one on msgspec) turns whole events into columns of values as
they stand in the text. What it does not plainly accept it leaves, and one event at a time is looked at
here: read as it is, repaired, or dropped with its place. Both scanners leave the same to the same code,
so that they give the same tables.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.chrome import CLOSED, MORE, after, members
from tracetool.readers.chrome.repair import LONGEST_BYTES, next_event, object_at, repairs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tracetool.readers import SourceReport
    from tracetool.readers.chrome import Scanned, Scanner
    from tracetool.readers.files import ByteStream

LONGEST_EVENT_BYTES = 16 << 20
_AROUND_LIMIT_BYTES = 64 << 20
_SMALL_WINDOW = 1 << 14
_AHEAD = 1 << 18
_PENDING_BYTES = 1 << 20
_NEXT = re.compile(rb"[\s,]*")
_PHASE = re.compile(rb'"ph"\s*:')
_VERSION = b'"schemaVersion"'
# An event may end here: another one opens, the list closes, or (in what is left at the end) nothing follows.
_END = re.compile(rb'\}(?=[\s,]*(?:\{\s*"|\]))')
_LAST_END = re.compile(rb'\}(?=[\s,]*(?:\{\s*"|\]|(?:\{\s*)?\Z))')
# What an event looks like before anything of it is read.
_LIKELY = re.compile(rb'[,\[]\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args)"\s*:)')
_REPAIR_ENDS = 4
_JOINT = re.compile(rb"[\s,\[]*\Z")
# What may be spent on damage, in bytes that could be decoded meanwhile: a lot of it anywhere, and some all over.
_CREDIT = 1 << 28
_CREDIT_PER_BYTE = 64
_SEARCH_COST = 4096
_TRIAL_COST = 3072
_COARSE_BYTES = 4096
_MOST_SKIPPED_NAMES = 1000
_LONGEST_SKIPPED_NAME = 100


class ChromeTrace:
    """One pass over a file that holds a list of events, bare or inside an object.

    Attributes:
        head: Text before the list.
        tail: Text after it; complete once all tables were taken.
        place: Where the events of the table that was given last begin.

    Args:
        stream: The file.
        scanner: Takes the events.
        report: Told about everything dropped, repaired and skipped, with the first place of each kind.

    Raises:
        MalformedTrace: If there is no list of events.
    """

    def __init__(self, stream: ByteStream, scanner: Scanner, report: SourceReport) -> None:
        self.tail = b""
        self._stream = stream
        self._scanner = scanner
        self._report = report
        self._blocks = stream.blocks(scanner.block_bytes)
        self._data = b""
        self._offset = self._start = self._pending_bytes = self._credited = self._versions = 0
        self._final = self._closed = self._is_member = self._is_sound = False
        self._is_past_damage = True
        self._window = scanner.block_bytes
        self._pending: list[bytes] = []
        self._pending_place = self.place = FilePlace(stream.name, 0)
        self._dropped_to = -1
        self._credit = _CREDIT
        self._given_up: int | None = None
        self.head = self._find_list()

    def tables(self) -> Iterator[pa.Table]:
        """All events that are wanted, in file order, as tables with one column per field.

        Raises:
            MalformedTrace: If two traces were written into one file.
        """
        while not self._closed:
            stop = min(len(self._data), self._start + self._window)
            if self._window <= 4 * _SMALL_WINDOW:
                # Beside damage events come in ones and twos: they are put together before they become columns.
                end, status = self._scanner.whole(self._data, self._start, stop)
                self._put(self._data[self._start : end], self._start)
                self._start = end
            else:
                self._is_past_damage = True
                yield from self._flushed()
                place = self._place(self._start)
                scanned = self._scanner.scan(self._data, self._start, stop)
                status, self._start = scanned.status, scanned.end
                yield from self._taken(scanned, place)
            if status == CLOSED:
                self._after_list()
            elif status == MORE and stop < len(self._data):
                self._window *= 4
            elif status == MORE and not self._final and self._left() <= LONGEST_EVENT_BYTES:
                self._read()
                self._window = max(self._window, self._scanner.block_bytes)
            else:
                self._window = _SMALL_WINDOW
                self._one_event()
            if self._pending_bytes > _PENDING_BYTES:
                yield from self._flushed()
        yield from self._flushed()
        self._finish()

    def _left(self) -> int:
        return len(self._data) - self._start

    def _place(self, at: int) -> FilePlace:
        return FilePlace(self._stream.name, self._offset + at)

    def _read(self) -> None:
        block = next(self._blocks, b"")
        self._final = not block
        if block:
            self._offset += self._start
            self._data = self._data[self._start :] + block
            self._start = 0

    def _find_list(self) -> bytes:
        looked = 0
        opening = members.Beginning(None, is_sound=True)
        while not self._final and looked <= _AROUND_LIMIT_BYTES:
            self._read()
            opening = members.beginning(self._data, looked, is_sound=opening.is_sound, is_all=self._final)
            if opening.at is not None:
                self._is_member = opening.is_member
                return self._begin(opening.at)
            looked = len(self._data)
        first = self._first_event(0)
        if first is None:
            why = f": {self._stream.broken}" if self._stream.broken else ""
            raise MalformedTrace(
                f"{self._stream.name}: no list of events (traceEvents) was found{why}.",
                hint="expected a trace as torch.profiler exports it; was it cut off or overwritten?",
            )
        self._report.drop("text where a list of events should begin", self._place(0))
        return self._begin(first)

    def _begin(self, at: int) -> bytes:
        self._start = at
        head = self._data[:at]
        self._versions = head.count(_VERSION)
        return head

    def _put(self, text: bytes, at: int) -> None:
        """Keep text of whole events until there is enough of it."""
        text = text[after(_NEXT, text, 0, len(text)) : text.rfind(b"}") + 1]
        if text:
            if not self._pending:
                self._pending_place = self._place(at)
            self._is_past_damage = self._is_past_damage or _PHASE.search(text) is not None
            self._pending.append(text)
            self._pending_bytes += len(text)

    def _flushed(self) -> Iterator[pa.Table]:
        if self._pending:
            scanned = self._scanner.many(self._pending)
            self._pending, self._pending_bytes = [], 0
            yield from self._taken(scanned, self._pending_place)

    def _taken(self, scanned: Scanned, place: FilePlace) -> Iterator[pa.Table]:
        self.place = place
        if scanned.table is not None:
            yield scanned.table
        rows = scanned.rows
        for (phase, category), count in scanned.skipped.items():
            rows += count
            self._skip(category if phase == b'"X"' else b"ph " + phase, count)
        if scanned.bad_text:
            self._report.repair("text that is not UTF-8, replaced", place, scanned.bad_text)
        self._report.rows += rows

    def _skip(self, raw: bytes, count: int) -> None:
        name = raw[:_LONGEST_SKIPPED_NAME].replace(b'"', b"").decode(errors="replace") or "no category"
        skipped = self._report.skipped
        skipped[name if name in skipped or len(skipped) < _MOST_SKIPPED_NAMES else "other categories"] += count

    def _one_event(self) -> None:
        """Look at the next event by itself: take it as it is, mend it, or drop it."""
        at = self._start = after(_NEXT, self._data, self._start, len(self._data))
        if not self._final and self._left() < _AHEAD:
            self._read()
            return
        if at == len(self._data):
            self._cut_off(at)
        elif self._data[at : at + 1] == b"]":
            self._start = at + 1
            self._after_list()
        elif not self._affords():
            self._skip_coarsely(at)
        elif self._data[at : at + 1] != b"{":
            self._resume(at, "text between events that is none", None, None)
        else:
            self._take_or_mend(at)

    def _affords(self) -> bool:
        """Whether looking closely is still worth it: damage all over a large file would take hours."""
        here = self._offset + self._start
        self._credit = min(_CREDIT, self._credit + _CREDIT_PER_BYTE * (here - self._credited))
        self._credited = here
        self._credit -= _SEARCH_COST
        return self._credit > 0

    def _take_or_mend(self, at: int) -> None:
        own = object_at(self._data, at)
        self._credit -= own.cost
        if own.is_cut and not self._final:
            self._read()
            return
        if own.start is None and own.cost >= LONGEST_BYTES and self._took_long(at):
            return
        following = None
        if own.start is not None:
            event = self._data[at : own.end]
            if self._took(event, at, own.end) or self._mended(event, at, own.end):
                return
        else:
            pattern = _LAST_END if self._final else _END
            matches = zip(pattern.finditer(self._data, at, self._near(at)), range(_REPAIR_ENDS), strict=False)
            ends = [match.end() for match, _ in matches]
            for number, end in enumerate(ends):
                event = self._data[at:end]
                if following is None and (number == 1 or event.count(b'"ph"') > 1):
                    following = self._next_event(at + 1, ends[-1])
                # Mending may not reach over an event that is whole.
                if (following is None or end <= following) and self._mended(event, at, end):
                    self._is_past_damage = False
                    return
        boundary = _END.search(self._data, at, self._near(at))
        too_long = own.cost >= LONGEST_BYTES and self._left() > LONGEST_EVENT_BYTES
        reason = f"event longer than {LONGEST_EVENT_BYTES >> 20} MiB" if too_long else "damaged event"
        self._resume(at, reason, boundary.end() if boundary else None, following)

    def _took_long(self, at: int) -> bool:
        """Whether an event too long to be decoded here is taken as it is, or more text may show its end."""
        end = members.value_end(self._data, at)
        self._credit -= ((end or len(self._data)) - at) // _CREDIT_PER_BYTE
        if end is None and not self._final and self._left() <= LONGEST_EVENT_BYTES:
            self._read()
            return True
        return end is not None and self._took(self._data[at:end], at, end)

    def _near(self, at: int) -> int:
        return min(len(self._data), at + _AHEAD)

    def _took(self, text: bytes, at: int, end: int) -> bool:
        if not self._scanner.accepts(text):
            return False
        self._put(text, at)
        self._start = end
        return True

    def _mended(self, event: bytes, at: int, end: int) -> bool:
        for text, reason in repairs(event):
            self._credit -= _TRIAL_COST + 4 * len(event)
            if self._took(text, at, end):
                self._report.repair(reason, self._place(at))
                return True
        return False

    def _next_event(self, start: int, stop: int) -> int | None:
        event = next_event(self._data, start, stop, max(self._credit, 0), is_all=self._final)
        self._credit -= event.cost
        self._given_up = event.end if event.start is None and event.end < stop else None
        return event.start

    def _resume(self, at: int, reason: str, boundary: int | None, following: int | None) -> None:
        """Drop what is at ``at`` up to where events go on."""
        inside = self._data[at : at + 1] == b"{"
        if following is None:
            following = self._next_event(at + inside, self._near(at) if boundary is None else boundary)
        end = following if boundary is None or (following is not None and following < boundary) else boundary
        if end is None and self._given_up is None and self._final and self._near(at) == len(self._data):
            closing = self._data.find(b"]", at)
            if inside or closing < 0:
                self._cut_off(at)
                return
            end = closing
        if end is None:
            end = self._near(at) if self._given_up is None else max(self._given_up, at + 1)
        self._drop(reason, at, end)

    def _skip_coarsely(self, at: int) -> None:
        opening = _LIKELY.search(self._data, min(len(self._data), at + _COARSE_BYTES))
        if opening is None and self._final:
            self._cut_off(at)
        else:
            # An opening may be cut in two by the end of the data.
            end = opening.end() if opening else len(self._data) - 64
            self._drop("damaged all over: up to 4 KiB left out at a time", at, max(end, at + 1))

    def _drop(self, reason: str, at: int, end: int) -> None:
        self._check_one_trace(self._data[at:end], at)
        if self._offset + at != self._dropped_to:
            self._report.drop(reason, self._place(at))
        self._report.lost_bytes[reason] += end - at
        self._start, self._dropped_to = end, self._offset + end
        self._is_past_damage = False

    def _cut_off(self, at: int) -> None:
        rest = self._data[at:]
        self._check_one_trace(rest, at)
        reason = "the file ends inside an event" if rest else "the file ends before its list of events does"
        self._report.drop(reason, self._place(at))
        self._report.lost_bytes[reason] += len(rest)
        self._start = at
        self._closed = True

    def _check_one_trace(self, text: bytes, at: int) -> None:
        """Refuse damaged text in which a trace begins after one has begun: a version may stand behind the events."""
        for version in re.finditer(re.escape(_VERSION), text):
            if self._versions:
                self._refuse_second(at + version.start())
            self._versions += 1

    def _refuse_second(self, at: int) -> None:
        raise MalformedTrace(
            f"{self._stream.name}: a second trace begins at byte {self._offset + at:,}, inside the first.",
            hint="several ranks wrote to one path; record again with the rank in the file name",
        )

    def _after_list(self) -> None:
        """Go on if events follow, as in merged or damaged files; else what is left stands around them."""
        self._window = _SMALL_WINDOW
        if not self._affords():
            self._skip_coarsely(self._start)
            return
        looked = 0
        while not self._final and self._left() <= _AROUND_LIMIT_BYTES:
            if _PHASE.search(self._data, self._start + looked) is not None and self._left() > LONGEST_EVENT_BYTES:
                break
            looked = max(0, self._left() - 64)
            self._read()
        if self._is_member and self._members_follow():
            return
        following = self._first_event(self._start)
        if following is None:
            self._closed = True
            if not members.ends_well(
                self._data[self._start : self._start + members.VALUE_BYTES],
                bare=bool(members.BARE.fullmatch(self.head)),
            ):
                self._report.drop("damaged text after the events", self._place(self._start))
        elif _JOINT.match(self._data, self._start, following):
            self._report.repair("lists of events run together", self._place(self._start))
            self._start = following
        else:
            self._drop("text between events that is none", self._start, following)

    def _members_follow(self) -> bool:
        """Whether what follows is plain: the rest of the object that the list is in, and perhaps another list in it."""
        kind, at = members.ending(self._data, self._start, is_trusted=self._is_past_damage)
        self._credit -= (at - self._start) // _CREDIT_PER_BYTE
        if kind is members.Ending.ANOTHER:
            self._refuse_second(at)
        elif kind is members.Ending.EVENTS:
            self._report.repair("lists of events run together", self._place(self._start))
            self._start = at
        elif kind is members.Ending.SOUND:
            self._closed = self._is_sound = True
        return kind is not members.Ending.UNSOUND

    def _first_event(self, start: int) -> int | None:
        """The first whole event after a place, if what stands there speaks of events at all."""
        if _PHASE.search(self._data, start) is None:
            return None
        event = next_event(self._data, start, len(self._data), _CREDIT)
        if event.start is None and (likely := _LIKELY.search(self._data, event.end)):
            return likely.end()
        return event.start

    def _finish(self) -> None:
        while not self._final and self._left() <= _AROUND_LIMIT_BYTES:
            self._read()
        self.tail = self._data[self._start :]
        if self._stream.broken:
            self._report.drop(f"data after a break ({self._stream.broken})", self._place(len(self._data)))
        if not self._is_sound:
            self._check_one_trace(self.tail, self._start)
