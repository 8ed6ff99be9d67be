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
from tracetool.readers import Place
from tracetool.readers.json_columns import CLOSED, MORE, Field, Scanned, Scanner, after
from tracetool.readers.json_compiled import CompiledScanner, available
from tracetool.readers.json_plain import PlainScanner
from tracetool.readers.json_repair import repairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from tracetool.readers import SourceReport
    from tracetool.readers.byte_stream import ByteStream

LONGEST_EVENT_BYTES = 16 << 20
_AROUND_LIMIT_BYTES = 64 << 20
_SMALL_WINDOW = 1 << 14
_AHEAD = 1 << 18
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_NEXT = re.compile(rb"[\s,]*")
_KEY = rb'\{\s*"[^"\\]{0,64}"\s*:'
# Not the object of "args": that one follows a colon.
_OPENING = re.compile(rb"(?<!:)(?<!: )" + _KEY)
# In a damaged event another one may begin before any has ended.
_NEXT_EVENT = re.compile(rb'[,}\]]\s*(?=\{\s*"(?:ph|name|cat)"\s*:)')
# An event may end here: another one opens, the list closes, or (in what is left at the end) nothing follows.
_END = re.compile(rb"\}(?=[\s,]*(?:" + _KEY + rb"|\]))")
_LAST_END = re.compile(rb"\}(?=[\s,]*(?:" + _KEY + rb"|\]|(?:\{\s*)?\Z))")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
_MOST_TOKENS = 4096
_REOPENED = re.compile(rb"\s*,?\s*[\[{]")
_SOMETHING = re.compile(rb"\s*\S")
_TRIALS = 16


def event_scanner(
    fields: Sequence[Field],
    wanted: Mapping[bytes, frozenset[bytes] | None],
    unwanted: frozenset[bytes] = frozenset(),
) -> Scanner:
    """The fastest scanner there is for these columns.

    Args:
        fields: The columns; the first two are ``ph`` and ``cat``.
        wanted: Raw text of ``ph``, quotes included, to the raw texts of ``cat`` that are read (empty: no
            category); None for any.
        unwanted: Raw texts of ``cat`` that are not read, whatever ``wanted`` says.
    """
    if available() and not any(field.key == "args" for field in fields):
        return CompiledScanner(fields, wanted, unwanted)
    return PlainScanner(fields, wanted, unwanted)


class ChromeTrace:
    """One pass over a file that holds a list of events, bare or inside an object.

    Attributes:
        head: Text before the list.
        tail: Text after it; complete once all tables were taken.

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
        self._offset = 0
        self._start = 0
        self._final = False
        self._closed = False
        self._is_bare = False
        self._window = scanner.block_bytes
        self.head = self._find_list()

    def tables(self) -> Iterator[pa.Table]:
        """All events that are wanted, in file order, as tables with one column per field.

        Raises:
            MalformedTrace: If two traces were written into one file.
        """
        while not self._closed:
            stop = min(len(self._data), self._start + self._window)
            scanned = self._scanner.scan(self._data, self._start, stop)
            yield from self._taken(scanned, scanned.end)
            if scanned.status == CLOSED:
                self._after_list()
            elif scanned.status == MORE and stop < len(self._data):
                self._window *= 4
            elif scanned.status == MORE and not self._final and self._left() <= LONGEST_EVENT_BYTES:
                self._read()
                self._window = max(self._window, self._scanner.block_bytes)
            else:
                self._window = _SMALL_WINDOW
                yield from self._one_event()
        self._finish()

    def _left(self) -> int:
        return len(self._data) - self._start

    def _place(self, at: int) -> Place:
        return Place(self._stream.name, self._offset + at)

    def _read(self) -> None:
        block = next(self._blocks, b"")
        self._final = not block
        if block:
            self._offset += self._start
            self._data = self._data[self._start :] + block
            self._start = 0

    def _find_list(self) -> bytes:
        while True:
            self._read()
            bare = _BARE.match(self._data)
            match = bare or _EVENTS.search(self._data)
            if match is not None:
                self._is_bare = bare is not None
                self._start = match.end()
                return self._data[: match.end()]
            if self._final or len(self._data) > _AROUND_LIMIT_BYTES:
                why = f": {self._stream.broken}" if self._stream.broken else ""
                raise MalformedTrace(
                    f"{self._stream.name}: no list of events (traceEvents) was found{why}.",
                    hint="expected a trace as torch.profiler exports it; was it cut off or overwritten?",
                )

    def _taken(self, scanned: Scanned, end: int) -> Iterator[pa.Table]:
        self._start = end
        if scanned.table is not None:
            yield scanned.table
        rows = scanned.rows
        for (phase, category), count in scanned.skipped.items():
            rows += count
            named = category if phase == b'"X"' else b"ph " + phase
            self._report.skipped[named.replace(b'"', b"").decode(errors="replace") or "no category"] += count
        if scanned.bad_text:
            self._report.repair("text that is not UTF-8, replaced", self._place(self._start), scanned.bad_text)
        self._report.rows += rows

    def _one_event(self) -> Iterator[pa.Table]:
        """Look at the next event by itself: take it as it is, mend it, or drop it."""
        at = after(_NEXT, self._data, self._start, len(self._data))
        if not self._final and len(self._data) - at < _AHEAD:
            self._read()
            return
        if at == len(self._data):
            self._cut_off(at)
            return
        if self._data[at : at + 1] != b"{":
            self._drop_until_opening(at)
            return
        pattern = _LAST_END if self._final else _END
        ends = [m.end() for m, _ in zip(pattern.finditer(self._data, at), range(_TRIALS), strict=False)]
        closed = _end_of_object(self._data, at)
        for end in ends if closed is None else [closed, *ends]:
            scanned = self._scanner.one(self._data[at:end])
            if scanned is not None:
                yield from self._taken(scanned, end)
                return
        for end in ends[:4]:
            for text, reason in repairs(self._data[at:end]):
                scanned = self._scanner.one(text)
                if scanned is not None:
                    self._report.repair(reason, self._place(at))
                    yield from self._taken(scanned, end)
                    return
        boundary = _END.search(self._data, at)
        self._give_up(at, boundary.end() if boundary else None)

    def _give_up(self, at: int, end: int | None) -> None:
        following = _NEXT_EVENT.search(self._data, at, len(self._data) if end is None else end)
        if following is not None:
            self._drop("damaged event", at, following.end())
        elif end is not None:
            self._drop("damaged event", at, end)
        elif self._final:
            self._cut_off(at)
        elif len(self._data) - at > LONGEST_EVENT_BYTES:
            self._drop(f"event longer than {LONGEST_EVENT_BYTES >> 20} MiB", at, len(self._data) - 64)
        else:
            self._read()

    def _drop_until_opening(self, at: int) -> None:
        match = _OPENING.search(self._data, at)
        if match is not None:
            self._drop("text between events that is none", at, match.start())
        elif self._final:
            self._cut_off(at)
        else:
            # An opening may be cut in two by the end of the data.
            self._drop("text between events that is none", at, len(self._data) - 128)
            self._read()

    def _drop(self, reason: str, at: int, end: int) -> None:
        self._check_one_trace(self._data[at:end], at)
        self._report.drop(reason, self._place(at))
        self._start = end

    def _cut_off(self, at: int) -> None:
        rest = self._data[at:]
        self._check_one_trace(rest, at)
        reason = "the file ends inside an event" if rest else "the file ends before its list of events does"
        self._report.drop(reason, self._place(at))
        self._closed = True

    def _check_one_trace(self, text: bytes, at: int) -> None:
        found = text.find(b'"schemaVersion"')
        if found >= 0:
            raise MalformedTrace(
                f"{self._stream.name}: a second trace begins at byte {self._offset + at + found:,}, inside the first.",
                hint="several ranks wrote to one path; record again with the rank in the file name",
            )

    def _after_list(self) -> None:
        """Go on if another list follows, as merged files have it; else read what stands around."""
        while not self._final and self._left() < 64:
            self._read()
        match = _REOPENED.match(self._data, self._start)
        if match is not None:
            self._report.repair("lists of events run together", self._place(self._start))
            self._start = match.end() - (self._data[match.end() - 1 : match.end()] == b"{")
        elif self._is_bare and _SOMETHING.match(self._data, self._start):
            # Nothing stands behind a bare list: a stray bracket must not hide the events after it.
            self._report.repair("text after the end of the events", self._place(self._start))
        else:
            self._closed = True

    def _finish(self) -> None:
        while not self._final and self._left() <= _AROUND_LIMIT_BYTES:
            self._read()
        self.tail = self._data[self._start :]
        if self._stream.broken:
            self._report.drop(f"data after a break ({self._stream.broken})", self._place(len(self._data)))
        self._check_one_trace(self.tail, self._start)


def _end_of_object(data: bytes, start: int) -> int | None:
    """Offset after the brace that closes an object, whatever follows it; None if its braces or quotes do not fit."""
    depth = 0
    for token, _ in zip(_TOKEN.finditer(data, start), range(_MOST_TOKENS), strict=False):
        depth += (token[0] == b"{") - (token[0] == b"}")
        if depth == 0:
            return token.end()
    return None
