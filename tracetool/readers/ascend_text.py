"""Text files of Ascend profilers: CSV looked up by header name, JSON whose numbers keep their text.

Headers drift between releases, so a column is never taken by position. Times carry a trailing TAB.
"""

from __future__ import annotations

import csv
import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers.chrome_json import to_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

T = TypeVar("T")

MB_OF_LINKS = 10**6
"""Bytes of a MB where the profiler speaks of transfers."""
MB_OF_MEMORY = 2**20
"""Bytes of a MB where the profiler speaks of allocated memory."""
NS_PER_MS = 10**6

_NOTHING = frozenset({"", "N/A", "NA", "null", "4294967295"})
# Sums of a few of them still fit int64.
_TIME_LIMIT, _SIZE_LIMIT = 2**62, 2**58
_BYTE = re.compile(r"byte (\d+)")


def integer(text: str) -> int | None:
    """A whole number, or None for blanks, ``N/A``, the sentinel 4294967295 and anything else."""
    if text in _NOTHING:
        return None
    try:
        value = int(text)
    except ValueError:
        return None
    return value if abs(value) < _TIME_LIMIT else None


def small_integer(text: str) -> int | None:
    """The same for ranks, devices and steps: 0 to 2**31 - 1."""
    value = integer(text)
    return value if value is not None and 0 <= value < 2**31 else None


def time_ns(text: str) -> int | None:
    """Microseconds as decimal text to whole nanoseconds; None if there is no such number."""
    if text in _NOTHING:
        return None
    try:
        value = to_ns(text.encode())
    except ValueError:
        return None
    return value if abs(value) < _TIME_LIMIT else None


def lost_digits(text: str) -> bool:
    """Whether a point in time was saved in E notation, as spreadsheets do: it is good to hours only."""
    return "e" in text.lower() and scaled(text, 1) is not None


def scaled(text: str, factor: int) -> int | None:
    """Decimal text times a whole factor, rounded half to even; None if there is no such number."""
    if text in _NOTHING:
        return None
    try:
        value = int((Decimal(text) * factor).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        return None
    return value if abs(value) < _SIZE_LIMIT else None


def raw_text(raw: msgspec.Raw) -> str:
    """A JSON number (quoted or not) as it stands in the file."""
    return bytes(raw).decode().strip('"\t ')


def csv_rows(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...], advance: Callable[[int], None]
) -> Iterator[tuple[str, ...]]:
    """The named columns of every record, without blanks and TABs around them.

    Args:
        path: CSV file with a header, after RFC 4180.
        required: Columns that must be there.
        optional: Columns that may be absent; their fields are empty then.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: With the line, if a required column is absent, a record has more or fewer fields
            than the header, or the text is damaged.
    """
    with path.open("rb") as stream:
        reader = csv.reader(_lines(stream, path, advance), strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            absent = [name for name in required if name not in header]
            if absent:
                raise MalformedTrace(f"{path}: line 1 has no column {absent[0]!r}.", hint="export the capture again")
            places = [header.index(name) if name in header else -1 for name in (*required, *optional)]
            for record in reader:
                if not record:
                    continue
                if len(record) != len(header):
                    raise MalformedTrace(
                        f"{path}: line {reader.line_num:,} has {len(record)} fields, the header has {len(header)}.",
                        hint="the file is cut off or was edited; export the capture again",
                    )
                yield tuple(record[place].strip() if place >= 0 else "" for place in places)
        except csv.Error as error:
            raise MalformedTrace(
                f"{path}: line {reader.line_num:,}: {error}.", hint="export the capture again"
            ) from error


def decoded(path: Path, kind: type[T], advance: Callable[[int], None]) -> T:
    """The JSON text of a file as the given type.

    Args:
        path: JSON file; it is read whole.
        kind: What to make of it.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: With the byte or the place in the document where it is damaged.
    """
    text = path.read_bytes()
    advance(len(text))
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        position = _BYTE.search(str(error))
        where = int(position[1]) if position else len(text)
        at = "" if isinstance(error, msgspec.ValidationError) else f" at byte {where:,}"
        raise MalformedTrace(
            f"{path}: damaged text{at}: {error}.", hint="the file is cut off or was edited; export it again"
        ) from error


def _lines(stream: IO[bytes], path: Path, advance: Callable[[int], None]) -> Iterator[str]:
    pending = 0
    for number, line in enumerate(stream, 1):
        pending += len(line)
        if pending >= 1 << 20:
            advance(pending)
            pending = 0
        if b"\0" in line:
            raise MalformedTrace(f"{path}: line {number:,} holds NUL bytes.", hint="copy the file again")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedTrace(
                f"{path}: line {number:,} is no UTF-8 text: {error.reason}.", hint="copy the file again"
            ) from error
    advance(pending)
