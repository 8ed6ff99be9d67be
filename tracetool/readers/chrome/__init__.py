"""Chrome's trace format: a scanner of events in columns, in Python and in C.

Columns made of raw JSON values: what both scanners hand over, and how a value becomes a cell.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray


Status = Literal[0, 1, 2]
MORE: Status = 0
DECLINED: Status = 1
CLOSED: Status = 2

NO_CODE = -1
"""Stands for no value in arrays of codes, of which dictionaries of Arrow have nulls."""

_INT64 = range(-(2**63), 2**63)


class Field(NamedTuple):
    """One value of an event that becomes a column.

    Attributes:
        key: Its JSON key.
        kind: ``text`` and ``json`` become dictionary-encoded strings (``json``: the text as it stands),
            ``int`` int64, ``time`` int64 nanoseconds made of microseconds, ``moment`` the same but null in E
            notation, which does not hold the digits of a point in time; null where the value is absent, null
            or of another form.
        in_args: Whether it is a key of the event's ``args``.
    """

    key: str
    kind: Literal["text", "json", "int", "time", "moment"]
    in_args: bool = False


@dataclass(slots=True)
class Scanned:
    """What one call of a scanner took.

    Attributes:
        end: Offset after the last event it took or skipped, or after the bracket that closes the list.
        status: Why it stopped: it needs more text, the next thing is not plainly an event, the list closed.
        table: One column per field, one row per event taken; None if none was.
        skipped: (raw ph, raw cat) to number of events that were not wanted.
        bad_text: Cells with text that is not UTF-8.
    """

    end: int
    status: Status
    table: pa.Table | None = None
    skipped: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    bad_text: int = 0

    @property
    def rows(self) -> int:
        """Events taken."""
        return 0 if self.table is None else self.table.num_rows


class Scanner(Protocol):
    """Takes events out of text.

    Attributes:
        block_bytes: How much text it likes at a time.
    """

    block_bytes: int

    def scan(self, data: bytes, start: int, stop: int) -> Scanned:
        """Take whole events from the front of the window ``data[start:stop]``."""

    def whole(self, data: bytes, start: int, stop: int) -> tuple[int, Status]:
        """How far :meth:`scan` would come in a window, and why it would stop; nothing is taken."""

    def accepts(self, event: bytes) -> bool:
        """Whether the text is exactly one valid event."""

    def many(self, events: Sequence[bytes]) -> Scanned:
        """Take texts of one or more whole events each, all of which were accepted or lie in what is whole."""


def after(pattern: re.Pattern[bytes], data: bytes, start: int, stop: int) -> int:
    """Offset after what the pattern matches at ``start``, which is ``start`` if it does not."""
    match = pattern.match(data, start, stop)
    return match.end() if match else start


def integer_of(raw: bytes) -> int | None:
    """An integer as various versions write it: 7, "7", 7.0, "0x7", "stream 7"; None for anything else.

    Unsigned ids of 64 bits keep their bits, as two's complement: equal ids stay equal, and different ones different.
    """
    text = raw.strip(b'"')
    try:
        if text.isdigit() or (text[:1] == b"-" and text[1:].isdigit()):
            value = int(text)
        elif raw[:1] == b'"':
            value = int(text.removeprefix(b"stream "), 0)
        else:
            number = Decimal(text.decode("ascii"))
            whole = number.to_integral_value()
            if number != whole or number.adjusted() > 18:
                return None
            value = int(whole)
    except (ValueError, InvalidOperation):
        return None
    if 2**63 <= value < 2**64:
        return value - 2**64
    return value if value in _INT64 else None


def nanoseconds_of(raw: bytes) -> int | None:
    """Microseconds as decimal text, quoted or not, to whole nanoseconds, exactly; None if it is no number."""
    digits = raw.strip(b'"\t ').removesuffix(rb"\t")
    whole, _, fraction = digits.partition(b".")
    plain = len(whole) < 20 and len(fraction) <= 3
    if plain and whole.removeprefix(b"-").isdigit() and (not fraction or fraction.isdigit()):
        sign = -1 if whole[:1] == b"-" else 1
        value = int(whole) * 1000 + sign * int(fraction.ljust(3, b"0") or 0)
        return value if value in _INT64 else None
    try:
        number = Decimal(digits.decode("ascii"))
        if not number.is_finite() or number.adjusted() > 18:
            return None
        value = int((number * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        return None
    return value if value in _INT64 else None


def moment_of(raw: bytes) -> int | None:
    """The same for a point in time: None in E notation, as that is good to hours only."""
    return None if b"e" in raw or b"E" in raw else nanoseconds_of(raw)


MEANINGS: dict[str, Callable[[bytes], int | None]] = {
    "int": integer_of,
    "time": nanoseconds_of,
    "moment": moment_of,
}
"""Kinds of numbers to what a raw value of them means."""


def text_of(raw: bytes) -> tuple[str, bool]:
    """The text of a raw value, and whether it was UTF-8; what is no string keeps its JSON text."""
    try:
        text, valid = raw.decode(), True
    except UnicodeDecodeError:
        text, valid = raw.decode(errors="replace"), False
    if text[:1] != '"':
        return text, valid
    return (json.loads(text) if "\\" in text else text[1:-1]), valid


def text_column(codes: pa.Int32Array, unique: Sequence[bytes], *, as_json: bool) -> tuple[pa.DictionaryArray, int]:
    """A dictionary column from codes of raw values, and the number of cells that were not UTF-8.

    Args:
        codes: Position in ``unique`` per row, null where absent.
        unique: Distinct raw values; different ones may mean the same text.
        as_json: Keep the JSON text.
    """
    import numpy as np
    import pyarrow as pa

    texts: dict[str | None, int] = {}
    places, bad = [], []
    for raw in unique:
        if as_json:
            text, valid = raw.decode(errors="replace"), True
        else:
            text, valid = text_of(raw)
        places.append(texts.setdefault(text, len(texts)))
        bad.append(not valid)
    if len(texts) < len(unique):
        codes = pa.array(np.array(places, np.int32)).take(codes)
    count = 0
    if any(bad):
        count = int(np.array(bad)[codes.drop_null().to_numpy()].sum()) if len(texts) == len(unique) else sum(bad)
    # Codes are places in what was just listed: they need not be looked through.
    return pa.DictionaryArray.from_arrays(codes, pa.array(list(texts), pa.string()), safe=False), count


def rows_of_texts(
    texts: Sequence[str | None], codes: NDArray[np.int32 | np.int64], condition: Callable[[str], object]
) -> NDArray[np.bool_]:
    """Which rows have a text that meets a condition.

    Args:
        texts: The distinct ones.
        codes: Which of them each row has; NO_CODE, which is the last of all, for none.
        condition: Asked once of each text.
    """
    import numpy as np

    chosen = [text is not None and bool(condition(text)) for text in texts]
    if True not in chosen:
        return np.zeros(len(codes), bool)
    of_rows: NDArray[np.bool_] = np.array([*chosen, False])[codes]
    return of_rows


def in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array; a scanner's columns are that already, and combining would copy them."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def filled(column: pa.ChunkedArray | pa.Array, value: int) -> NDArray[Any]:
    """A column of integers with a value in place of nulls: what Arrow's fill_null gives, in a third of the time."""
    import numpy as np
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = in_one_piece(column)
    whole: NDArray[Any]
    if column.null_count == len(column):
        return np.full(len(column), value, column.type.to_pandas_dtype())
    validity, numbers = column.buffers()
    here = slice(column.offset, column.offset + len(column))
    whole = np.frombuffer(numbers, column.type.to_pandas_dtype())[here]
    if not column.null_count:
        return whole
    is_there = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")[here].view(np.bool_)
    return np.where(is_there, whole, np.array(value, whole.dtype))


def codes_of(column: pa.DictionaryArray) -> NDArray[np.int32]:
    """Which text of its dictionary each row of a column has; NO_CODE where it has none."""
    return filled(column.indices, NO_CODE)
