"""The event scanner in C, where it was built: several times as fast as the plain one, and stricter.

It takes only what is strictly valid JSON of the usual shape and declines the rest, so that one place, in
Python, decides about everything unusual.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from tracetool.errors import TraceToolError, UnknownName
from tracetool.readers.chrome import MEANINGS, Scanned, text_column
from tracetool.readers.chrome.plain import PlainScanner

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from tracetool.readers.chrome import Field, Scanner, Status, _scan

Kind = Literal["text", "json", "int", "time"]
Column = tuple[bytearray, bytearray] | tuple[bytearray, list[bytes]]

CHOICE = "TRACETOOL_SCANNER"


class Window(NamedTuple):
    """What was found in a window of text.

    Attributes:
        end: Offset after the last event taken or skipped, or after the ``]`` that closed the list.
        status: 0 if more text is needed, 1 if the next thing is not plainly a valid event, 2 if the list closed.
        rows: Number of events taken.
        columns: One per field. Numbers: int64 values and a byte per row that says whether there is one. Text:
            int32 codes (-1: absent) and the distinct raw values.
        odd: (field, row, raw value) of numbers in another form than the plain one; not valid in the column.
        skipped: (raw ``ph``, raw ``cat``) to number of events that were not wanted.
    """

    end: int
    status: Literal[0, 1, 2]
    rows: int
    columns: list[Column]
    odd: list[tuple[int, int, bytes]]
    skipped: dict[tuple[bytes, bytes], int]


def available() -> bool:
    """Whether the compiled scanner is there and not turned off by ``TRACETOOL_SCANNER=plain``.

    Raises:
        TraceToolError: If ``TRACETOOL_SCANNER=compiled`` insists on it but it is not there.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", "plain", "compiled"}:
        raise UnknownName("scanner", choice, ["plain", "compiled"], hint=f"set {CHOICE} to plain, compiled or nothing")
    if choice == "plain":
        return False
    try:
        _load()
    except TraceToolError:
        if choice == "compiled":
            raise
        return False
    return True


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
        unwanted: Raw texts of ``cat`` that are never taken.
    """
    if available() and not any(field.key == "args" for field in fields):
        return CompiledScanner(fields, wanted, unwanted)
    return PlainScanner(fields, wanted, unwanted)


def _load() -> type[_scan.Scanner]:
    try:
        module = import_module("tracetool.readers.chrome._scan")
    except ImportError as error:
        raise TraceToolError(
            f"the compiled scanner is not there: {error}.",
            hint=f"install tracetool where a C compiler is, or unset {CHOICE}",
        ) from error
    return cast("type[_scan.Scanner]", module.Scanner)


class CompiledScanner:
    """Takes events out of text; see :class:`tracetool.readers.chrome.Scanner`.

    Args:
        fields: The columns; the first two are ``ph`` and ``cat``.
        wanted: Raw text of ``ph``, quotes included, to the raw texts of ``cat`` that are taken (empty: no
            category); None for any.
        unwanted: Raw texts of ``cat`` that are never taken.

    Raises:
        TraceToolError: If it was not built.
    """

    block_bytes = 4 << 20

    def __init__(
        self,
        fields: Sequence[Field],
        wanted: Mapping[bytes, frozenset[bytes] | None],
        unwanted: frozenset[bytes] = frozenset(),
    ) -> None:
        self._fields = tuple(fields)
        self._wanted = wanted
        self._unwanted = unwanted
        # A moment is a time in the text: it differs only in what is no plain number.
        own = [(f.key.encode(), "time" if f.kind == "moment" else f.kind, f.in_args) for f in fields]
        self._scanner = _load()(own, wanted, unwanted)

    @cached_property
    def _plain(self) -> PlainScanner:
        return PlainScanner(self._fields, self._wanted, self._unwanted)

    def scan(self, data: bytes, start: int, stop: int) -> Scanned:
        """Take whole events from the front of the window ``data[start:stop]``."""
        return self._scanned(self.window(data, start, stop))

    def whole(self, data: bytes, start: int, stop: int) -> tuple[int, Status]:
        """How far :meth:`scan` would come in a window, and why it would stop; nothing is taken."""
        window = self.window(data, start, stop)
        return window.end, window.status

    def accepts(self, event: bytes) -> bool:
        """Whether the text is exactly one valid event."""
        return self._plain.accepts(event)

    def many(self, events: Sequence[bytes]) -> Scanned:
        """Take texts of one or more whole events each, all of which were accepted or lie in what is whole."""
        return self._plain.many(events)

    def window(self, data: bytes, start: int, stop: int) -> Window:
        """The same as :meth:`scan`, as the compiled code gives it."""
        return Window(*self._scanner.scan(data, start, stop))

    def _scanned(self, window: Window) -> Scanned:
        import pyarrow as pa

        scanned = Scanned(window.end, window.status, skipped=Counter(window.skipped))
        if not window.rows:
            return scanned
        odd: dict[int, list[tuple[int, bytes]]] = {}
        for place, row, raw in window.odd:
            odd.setdefault(place, []).append((row, raw))
        columns = []
        for number, (field, (first, second)) in enumerate(zip(self._fields, window.columns, strict=True)):
            if field.kind in ("text", "json"):
                column, bad = _texts(first, cast("list[bytes]", second), as_json=field.kind == "json")
                scanned.bad_text += bad
            else:
                meaning = MEANINGS[field.kind]
                cells = [(row, meaning(raw)) for row, raw in odd.get(number, ())]
                column = _numbers(first, cast("bytearray", second), cells)
            columns.append(column)
        scanned.table = pa.Table.from_arrays(columns, names=[f.key for f in self._fields])
        return scanned


def _texts(codes: bytearray, unique: list[bytes], *, as_json: bool) -> tuple[pa.Array, int]:
    import numpy as np
    import pyarrow as pa

    if not unique:
        return pa.nulls(len(codes) // 4, pa.dictionary(pa.int32(), pa.string())), 0
    places = np.frombuffer(codes, np.int32)
    absent = places < 0
    return text_column(pa.array(places, mask=absent if absent.any() else None), unique, as_json=as_json)


def _numbers(values: bytearray, valid: bytearray, cells: list[tuple[int, int | None]]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if not cells and 1 not in valid:
        return pa.nulls(len(valid), pa.int64())
    numbers: Any = np.frombuffer(values, np.int64)
    there: Any = np.frombuffer(valid, np.bool_)
    for row, value in cells:
        if value is not None:
            numbers[row], there[row] = value, True
    return pa.array(numbers, mask=None if there.all() else ~there)
