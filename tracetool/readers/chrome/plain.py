"""The event scanner that needs no compiler: msgspec decodes a window of events to raw values."""

from __future__ import annotations

import re
from itertools import compress, repeat
from operator import is_not
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.readers.chrome import (
    CLOSED,
    DECLINED,
    MORE,
    NO_CODE,
    Field,
    Scanned,
    Status,
    after,
    integer_of,
    moment_of,
    nanoseconds_of,
    text_column,
    text_of,
)
from tracetool.readers.chrome.repair import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

_ABSENT = msgspec.Raw(b"")
_NULL = b"null"
_SPACE = re.compile(rb"[\s,]*")
_CUT = re.compile(rb'\}(?=\s*,\s*\{\s*")')
_ENDS_HERE = re.compile(rb"\}[\s,]*\]")
_BYTE = re.compile(r"\(byte (\d+)\)")
_TRIALS = 16
# Blanks between two events that are looked over.
_SPACES = 4096
_MOST_DIGITS = 38


class PlainScanner:
    """Takes events out of text; see :class:`tracetool.readers.chrome.Scanner`.

    Args:
        fields: The columns; the first two are ``ph`` and ``cat``.
        wanted: Raw text of ``ph``, quotes included, to the raw texts of ``cat`` that are read (empty: no
            category); None for any.
        unwanted: Raw texts of ``cat`` that are never taken.
    """

    block_bytes = 2 << 20

    def __init__(
        self,
        fields: Sequence[Field],
        wanted: Mapping[bytes, frozenset[bytes] | None],
        unwanted: frozenset[bytes] = frozenset(),
    ) -> None:
        self._fields = tuple(fields)
        self._wanted = wanted
        self._unwanted = unwanted
        # Several fields may read one key.
        names = {(f.in_args, f.key): f"{'a' if f.in_args else 'e'}{n}" for n, f in reversed(list(enumerate(fields)))}
        members: dict[bool, list[Any]] = {True: [], False: []}
        for (in_args, key), name in names.items():
            members[in_args].append((name, msgspec.Raw, msgspec.field(name=key, default=_ABSENT)))
        # Structs without garbage collection: they hold raw text only, and tracking them halves the speed.
        arguments = msgspec.defstruct("Arguments", members[True], gc=False, frozen=True)
        self._none = arguments()
        whole = [n for n, f in enumerate(fields) if f.key == "args"]
        self._arguments = msgspec.json.Decoder(arguments | None)
        self._args_raw = _getter(names[False, "args"]) if whole else None
        if not whole:
            members[False].append(("args", arguments | None, self._none))
        event: Any = msgspec.defstruct("Event", members[False], gc=False)
        self._events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[event])
        self._single: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)
        self._getters = [_getter(names[f.in_args, f.key]) for f in fields]

    def scan(self, data: bytes, start: int, stop: int) -> Scanned:
        """Take whole events from the front of the window ``data[start:stop]``."""
        events, end, status = self._window(data, start, stop)
        scanned = self._columns(events) if events else Scanned(end, status)
        scanned.end, scanned.status = end, status
        return scanned

    def whole(self, data: bytes, start: int, stop: int) -> tuple[int, Status]:
        """How far :meth:`scan` would come in a window, and why it would stop; nothing is taken."""
        _, end, status = self._window(data, start, stop)
        return end, status

    def accepts(self, event: bytes) -> bool:
        """Whether the text is exactly one valid event."""
        try:
            self._single.decode(event)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def many(self, events: Sequence[bytes]) -> Scanned:
        """Take texts of one or more whole events each, all of which were accepted or lie in what is whole."""
        try:
            decoded = self._events.decode(b"[%b]" % b",".join(events))
        except msgspec.DecodeError:
            # The compiled scanner takes events that no comma parts.
            decoded = [self._single.decode(event) for text in events for event in objects(text)]
        return self._columns(decoded)

    def _window(self, data: bytes, start: int, stop: int) -> tuple[list[Any], int, Status]:
        begin = after(_SPACE, data, start, stop)
        if data[begin : begin + 1] == b"]" and begin < stop:
            return [], begin + 1, CLOSED
        cut = self._last_cut(data, begin, stop)
        if cut < 0:
            declined = _ENDS_HERE.search(data, begin, stop) or _not_open(data, begin, stop)
            return [], start, DECLINED if declined else MORE
        events, end = self._decoded(data, begin, cut)
        if end == begin:
            return [], start, DECLINED
        return events, end, MORE if end == cut else DECLINED

    def _last_cut(self, data: bytes, begin: int, stop: int) -> int:
        """Offset after the last brace in the window that another event follows, or -1."""
        high = stop
        while high > begin:
            low = max(begin, high - (1 << 14))
            cut = -1
            for match in _CUT.finditer(data, low, min(stop, high + _SPACES)):
                if match.start() >= high:
                    break
                cut = match.end()
            if cut >= 0:
                return cut
            high = low
        return -1

    def _decoded(self, data: bytes, begin: int, cut: int) -> tuple[list[Any], int]:
        """The events up to the cut, or as many as are plainly valid, and the offset after them."""
        end = cut
        for _ in range(_TRIALS):
            try:
                return self._events.decode(_listed(data, begin, end)), end
            except msgspec.DecodeError as error:
                position = _BYTE.search(str(error))
                before = begin + int(position[1]) - 1 if position else end - 1
                end = data.rfind(b"}", begin, min(before, end - 1)) + 1
            except RecursionError:
                break
            if end <= begin:
                break
        return [], begin

    def _columns(self, events: list[Any]) -> Scanned:
        import numpy as np
        import pyarrow as pa

        scanned = Scanned(0, MORE)
        phases, phase_names = _codes([e.e0 for e in events])
        categories, category_names = _codes([e.e1 for e in events])
        pairs = phases * len(category_names) + categories
        wanted = np.zeros(len(phase_names) * len(category_names), bool)
        for n, phase in enumerate(phase_names):
            allowed = self._wanted.get(phase, frozenset())
            for k, category in enumerate(category_names):
                wanted[n * len(category_names) + k] = category not in self._unwanted and (
                    allowed is None or category in allowed
                )
        mask = wanted[pairs]
        for pair, count in enumerate(np.bincount(pairs[~mask]).tolist()):
            if count:
                n, k = divmod(pair, len(category_names))
                scanned.skipped[phase_names[n], category_names[k]] += count
        if not mask.all():
            events = list(compress(events, mask.tolist()))
        if not events:
            return scanned
        nothing = self._none
        if self._args_raw is None:
            args = [e.args or nothing for e in events]
        else:
            args = [self._members_of(raw) for raw in self._args_raw(events)]
        columns = []
        for field, getter in zip(self._fields, self._getters, strict=True):
            column, bad = _column(getter(args if field.in_args else events), field)
            columns.append(column)
            scanned.bad_text += bad
        scanned.table = pa.Table.from_arrays(columns, names=[f.key for f in self._fields])
        return scanned

    def _members_of(self, raw: msgspec.Raw) -> Any:
        try:
            return (self._arguments.decode(raw) or self._none) if len(raw) else self._none
        except msgspec.ValidationError:
            # No object: the text is kept, nothing of it is looked for.
            return self._none


def _listed(data: bytes, begin: int, end: int) -> bytes:
    return b"".join((b"[", memoryview(data)[begin:end], b"]"))


def _not_open(data: bytes, begin: int, stop: int) -> bool:
    return begin < stop and data[begin : begin + 1] != b"{"


def _getter(name: str) -> Callable[[list[Any]], list[msgspec.Raw]]:
    """A function that lists one attribute of many objects, as fast as Python can."""
    namespace: dict[str, Any] = {}
    exec(f"def get(rows): return [row.{name} for row in rows]", namespace)  # noqa: S102 - names of our own
    get: Callable[[list[Any]], list[msgspec.Raw]] = namespace["get"]
    return get


def _binary(values: list[msgspec.Raw]) -> pa.BinaryArray:
    import numpy as np
    import pyarrow as pa

    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    )


def _codes(values: list[msgspec.Raw]) -> tuple[Any, list[bytes]]:
    """Codes and distinct raw values; null counts as absent (empty)."""
    encoded = _binary(values).dictionary_encode()
    names = [b"" if name == _NULL else _spelled(name) for name in encoded.dictionary.to_pylist()]
    return encoded.indices.to_numpy(), names


def _spelled(name: bytes) -> bytes:
    """The raw value without escapes that it does not need."""
    return msgspec.json.encode(text_of(name)[0]) if b"\\" in name else name


def _column(values: list[msgspec.Raw], field: Field) -> tuple[pa.Array, int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(values)
    missing = values.count(_ABSENT)
    # Of a value that few events have, only those are looked at.
    rows = None
    if 4 * missing > 3 * count:
        rows = list(compress(range(count), map(is_not, values, repeat(_ABSENT)))) if missing < count else []
        values = [values[n] for n in rows]
    if field.kind in ("text", "json"):
        return _text(values, rows, count, as_json=field.kind == "json")
    numbers = _binary(values)
    if missing and rows is None:
        numbers = pc.if_else(pc.equal(pc.binary_length(numbers), 0), pa.scalar(None, pa.binary()), numbers)
    if field.kind == "int":
        column = _integers(numbers)
    elif field.kind == "moment" and b"E" in numbers.buffers()[2].to_pybytes().upper():
        column = _by_value(numbers, moment_of)
    else:
        column = _times(numbers)
    return (column if rows is None else _scattered(column, rows, count)), 0


def _scattered(column: pa.Int64Array, rows: list[int], count: int) -> pa.Int64Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows:
        return pa.nulls(count, pa.int64())
    values, missing = np.zeros(count, np.int64), np.ones(count, bool)
    values[rows] = pc.fill_null(column, 0).to_numpy()
    missing[rows] = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, mask=missing)


def _text(
    values: list[msgspec.Raw], rows: list[int] | None, count: int, *, as_json: bool
) -> tuple[pa.DictionaryArray, int]:
    import numpy as np
    import pyarrow as pa

    encoded = _binary(values).dictionary_encode()
    unique: list[bytes] = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy()
    if rows is not None:
        places = codes
        codes = np.full(count, NO_CODE, np.int32)
        codes[rows] = places
    absent = [n for n, value in enumerate(unique) if value in (b"", _NULL)]
    if absent:
        shift = np.cumsum([value not in (b"", _NULL) for value in unique], dtype=np.int32) - 1
        shift[absent] = NO_CODE
        codes = np.where(codes == NO_CODE, NO_CODE, shift[codes])
        unique = [value for value in unique if value not in (b"", _NULL)]
    none = codes == NO_CODE
    return text_column(pa.array(codes, mask=none if none.any() else None), unique, as_json=as_json)


def _integers(raw: pa.BinaryArray) -> pa.Int64Array:
    import pyarrow as pa

    try:
        return raw.cast(pa.string()).cast(pa.int64())
    except pa.ArrowInvalid:
        return _by_value(raw, integer_of)


def _times(raw: pa.BinaryArray) -> pa.Int64Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow's decimals wrap around where there are thousands of digits.
    if (pc.max(pc.binary_length(raw)).as_py() or 0) > _MOST_DIGITS:
        return _by_value(raw, nanoseconds_of)
    try:
        exact = pc.utf8_trim(raw.cast(pa.string()), '"').cast(pa.decimal128(22, 3))
    except pa.ArrowInvalid:
        return _by_value(raw, nanoseconds_of)
    # A decimal of scale 3 is stored as a whole number of thousandths, in 128 bits.
    words = np.frombuffer(exact.buffers()[1], np.int64)[2 * exact.offset :][: 2 * len(exact)]
    low, high = words[::2], words[1::2]
    if not np.array_equal(high, low >> 63):
        return _by_value(raw, nanoseconds_of)
    return pa.array(low, mask=exact.is_null().to_numpy(zero_copy_only=False) if exact.null_count else None)


def _by_value(raw: pa.BinaryArray, meaning: Callable[[bytes], int | None]) -> pa.Int64Array:
    import pyarrow as pa

    encoded = raw.dictionary_encode()
    values = pa.array([meaning(value) for value in encoded.dictionary.to_pylist()], pa.int64())
    return values.take(encoded.indices)
