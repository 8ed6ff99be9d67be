"""What the tools of Ascend's CANN have in common: their texts, databases, timelines and communication records.

Text files of Ascend profilers: CSV looked up by header name, JSON whose numbers keep their text.

Headers drift between releases, so a column is never taken by position. Times carry a trailing TAB.

Operations in ``communication.json`` and ``communication_matrix.json``, read one by one where a file is damaged.

Both are steps of kinds of operations, each of which is called ``name@hash``: a whole operation is read
wherever it stands, whatever became of those before and after it.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from decimal import ROUND_HALF_EVEN, Decimal
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.chrome import nanoseconds_of
from tracetool.readers.chrome.repair import object_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport


T = TypeVar("T")

MB_OF_LINKS = 10**6
"""Bytes of a MB where the profiler speaks of transfers."""
KB_OF_MEMORY = 2**10
"""Bytes of a KB where the profiler speaks of allocated memory."""
MB_OF_MEMORY = 2**20
"""Bytes of a MB where the profiler speaks of allocated memory."""
NS_PER_MS = 10**6

_NOTHING = frozenset({"", "N/A", "NA", "null", "4294967295"})
# Sums of a few of them still fit int64.
_TIME_LIMIT, _SIZE_LIMIT = 2**62, 2**58
# Call stacks make records of many lines; an opening quote that nothing closes must not take the rest of the file.
_RECORD_LINES = 1000
_BATCH_LINES = 512
_HEADER_BYTES = 1 << 20
_LINE_BYTES = 1 << 20
_BATCH_BYTES = 4 << 20
_MOST_BYTES = 16 << 20
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
    value = nanoseconds_of(text.encode())
    return value if value is not None and abs(value) < _TIME_LIMIT else None


def lost_digits(text: str) -> bool:
    """Whether a point in time was saved in E notation, as spreadsheets do: it is good to hours only."""
    return "e" in text.lower() and scaled(text, 1) is not None


def scaled(text: str, factor: int) -> int | None:
    """Decimal text times a whole factor, rounded half to even; None if there is no such number."""
    if text in _NOTHING:
        return None
    try:
        value = int((Decimal(text) * factor).to_integral_value(ROUND_HALF_EVEN))
    except (ArithmeticError, ValueError):
        return None
    return value if abs(value) < _SIZE_LIMIT else None


def raw_text(raw: msgspec.Raw) -> str:
    """A JSON number (quoted or not) as it stands in the file."""
    return bytes(raw).decode(errors="replace").strip('"\t ')


def csv_rows(
    path: Path,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    advance: Callable[[int], None],
    report: SourceReport | None = None,
) -> Iterator[tuple[str, ...]]:
    """The fields of :func:`csv_records` without their lines."""
    for _, fields in csv_records(path, required, optional, advance, report):
        yield fields


def csv_header(path: Path) -> tuple[str, ...]:
    """The column names of a CSV file without blanks around them; empty if its first line is no text."""
    with path.open("rb") as stream:
        line = stream.readline(_HEADER_BYTES)
    try:
        text = line.decode("utf-8-sig")
        return tuple(name.strip() for name in next(csv.reader((text,), strict=True), []))
    except (UnicodeDecodeError, csv.Error):
        return ()


def csv_records(
    path: Path,
    required: tuple[str, ...],
    optional: tuple[str, ...],
    advance: Callable[[int], None],
    report: SourceReport | None = None,
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """First line, and the named columns without blanks and TABs around them, of every whole record.

    Args:
        path: CSV file with a header, after RFC 4180.
        required: Columns that must be there.
        optional: Columns that may be absent; their fields are empty then.
        advance: Called with the file bytes consumed.
        report: Told about damaged records, which are left out.

    Raises:
        MalformedTrace: If the header is damaged or lacks a required column.
    """
    header = csv_header(path)
    absent = [name for name in required if name not in header]
    if absent:
        raise MalformedTrace(f"{path}: line 1 has no column {absent[0]!r}.", hint="export the capture again")
    places = [header.index(name) if name in header else None for name in (*required, *optional)]

    def drop(reason: str, line: int) -> None:
        if report is not None:
            report.drop(reason, FilePlace(str(path), line, "line"))

    with path.open("rb") as stream:
        for line, fields in _records(_lines(stream, advance, drop), len(header), drop):
            yield line, tuple(["" if place is None else fields[place].strip() for place in places])


def decoded(path: Path, kind: type[T], advance: Callable[[int], None]) -> T:
    """The JSON text of a file as the given type.

    Args:
        path: JSON file; it is read whole.
        kind: What to make of it.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: With the byte or the place in the document where it is damaged.
    """
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise MalformedTrace(f"{path}: {size:,} bytes are more than any such file has.", hint="export it again")
    text = path.read_bytes()
    advance(size)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        position = _BYTE.search(str(error))
        where = int(position[1]) if position else len(text)
        at = "" if isinstance(error, msgspec.ValidationError) else f" at byte {where:,}"
        raise MalformedTrace(
            f"{path}: damaged text{at}: {error}.", hint="the file is cut off or was edited; export it again"
        ) from error


def _lines(
    stream: IO[bytes], advance: Callable[[int], None], drop: Callable[[str, int], None]
) -> Iterator[tuple[int, str]]:
    """Numbered lines after the header that are text."""
    pending = 0
    number = 0
    while line := stream.readline(_LINE_BYTES):
        number += 1
        pending += len(line)
        if pending >= 1 << 20:
            advance(pending)
            pending = 0
        if len(line) == _LINE_BYTES and not line.endswith(b"\n"):
            advance(_passed(stream))
            drop(f"line longer than {_LINE_BYTES >> 20} MiB", number)
            continue
        if number == 1:
            continue
        if b"\0" in line:
            drop("line with NUL bytes", number)
            continue
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError:
            drop("line that is no UTF-8 text", number)
    advance(pending)


def _passed(stream: IO[bytes]) -> int:
    """Go to the end of the line; the bytes passed."""
    count = 0
    while rest := stream.readline(_LINE_BYTES):
        count += len(rest)
        if rest.endswith(b"\n"):
            break
    return count


def _batch(lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    batch: list[tuple[int, str]] = []
    size = 0
    for item in lines:
        batch.append(item)
        size += len(item[1])
        if len(batch) == _BATCH_LINES or size > _BATCH_BYTES:
            break
    return batch


def _records(
    lines: Iterator[tuple[int, str]], width: int, drop: Callable[[str, int], None]
) -> Iterator[tuple[int, list[str]]]:
    """Records of the given number of fields with their first line, many at a time where all is well."""
    while batch := _batch(lines):
        # A record that goes on behind the batch leaves a quote open.
        quotes = sum(text.count('"') for _, text in batch)
        size = 0
        for _ in range(_RECORD_LINES):
            if quotes % 2 == 0 or size > 4 * _BATCH_BYTES or (following := next(lines, None)) is None:
                break
            batch.append(following)
            quotes += following[1].count('"')
            size += len(following[1])
        whole = _undamaged(batch, width)
        yield from whole if whole is not None else _line_by_line(batch, lines, width, drop)


def _undamaged(batch: list[tuple[int, str]], width: int) -> list[tuple[int, list[str]]] | None:
    """All records of a batch; None if any of them is damaged."""
    reader = csv.reader((text for _, text in batch), strict=True)
    records: list[tuple[int, list[str]]] = []
    place = 0
    try:
        for fields in reader:
            if len(fields) == width:
                records.append((batch[place][0], fields))
            elif fields:
                return None
            place = reader.line_num
    except csv.Error:
        return None
    return records


def _line_by_line(
    batch: list[tuple[int, str]], lines: Iterator[tuple[int, str]], width: int, drop: Callable[[str, int], None]
) -> Iterator[tuple[int, list[str]]]:
    """Whole records of a batch and of what its last one needs; a damaged one costs its first line only."""
    waiting = deque(batch)
    while waiting:
        number, text = waiting.popleft()
        taken: list[tuple[int, str]] = []
        fields = _fields(text)
        while fields is None and text.count('"') % 2 and len(taken) < _RECORD_LINES and len(text) < _BATCH_BYTES:
            following = waiting.popleft() if waiting else next(lines, None)
            if following is None:
                break
            taken.append(following)
            text += following[1]
            fields = _fields(text) if text.count('"') % 2 == 0 else None
        if fields is None:
            drop("record with damaged quotes", number)
            waiting.extendleft(reversed(taken))
        elif len(fields) == width:
            yield number, fields
        elif fields:
            drop("record with another number of fields than the header", number)


def _fields(text: str) -> list[str] | None:
    """The fields of one record; None if the text is not exactly one."""
    try:
        (fields,) = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (csv.Error, ValueError):
        return None
    return fields


MOST_BYTES = 256 << 20
"""A file is read whole: none of a real job comes near."""
_AT_ONCE_BYTES = 32 << 20
_BETWEEN = re.compile(rb'(?:[\s,{}]|"(?:step[^"\\]{0,40}|p2p|collective)"\s*+:)*+')
_KEY = re.compile(rb'"(?:(step[^"\\]{0,40})|(p2p|collective)|([^"\\]{1,500}@[^"\\]{0,100}))"\s*+:\s*+(?=\{)')


def operations(
    path: Path, kind: type[T], report: SourceReport, advance: Callable[[int], None]
) -> Iterator[tuple[str, str, T]]:
    """Step, name and hash, and what is said of each operation.

    Args:
        path: The file.
        kind: What to make of an operation.
        report: Told about operations that are damaged.
        advance: Called with the bytes of the file.

    Raises:
        MalformedTrace: If the file is far larger than any.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise MalformedTrace(
            f"{path}: {size:,} bytes are more than {MOST_BYTES >> 20} MiB, which no such file has.",
            hint="was something else written over it?",
        )
    text = path.read_bytes()
    advance(size)
    whole = _whole(text, kind) if size <= _AT_ONCE_BYTES else None
    if whole is None:
        yield from _operation_by_operation(path, text, kind, report)
        return
    for step, kinds in whole.items():
        for key, operation in (item for named in kinds.values() for item in named.items()):
            yield step, key, operation


def _whole(text: bytes, kind: type[T]) -> dict[str, dict[str, dict[str, T]]] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, dict[str, kind]]])  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _operation_by_operation(
    path: Path, text: bytes, kind: type[T], report: SourceReport
) -> Iterator[tuple[str, str, T]]:
    decoder = msgspec.json.Decoder(kind)
    step, at, end = "", 0, 0

    def check(until: int) -> None:
        if _BETWEEN.fullmatch(text, end, until) is None:
            report.drop(f"damaged text in {path.name}", FilePlace(str(path), end), is_damage=True)

    while (match := _KEY.search(text, at)) is not None:
        at = match.end()
        if match[1] is not None:
            step = match[1].decode(errors="replace")
        if match[3] is None:
            continue
        whole = object_at(text, match.end())
        value = text[match.end() : whole.end]
        try:
            operation = decoder.decode(value)
            key = match[3].decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            report.drop(f"damaged operation in {path.name}", FilePlace(str(path), match.start()), is_damage=True)
            # What is inside is no operation: what is wrong with it was told.
            following = _KEY.search(text, at)
            at = end = following.start() if following else len(text)
            continue
        check(match.start())
        at = end = match.end() + len(value)
        yield step, key, operation
    check(len(text))
