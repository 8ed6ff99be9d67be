"""Chrome-trace JSON in bounded memory: the envelope, and the events in chunks of whole objects.

Text is cut where one event may end and the next begin; a wrong cut leaves unbalanced brackets, so the
decoder rejects it and an earlier cut is tried. Times are taken as text and turned into int64 ns.
"""

from __future__ import annotations

import gzip
import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from tracetool.errors import MalformedTrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNK_BYTES = 8 << 20
_TAIL_BYTES = 4 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*\{")
_AFTER_ARRAY = re.compile(rb"\]\s*,\s*(?=\")")


class Event(msgspec.Struct):
    """One trace event; ``ts`` and ``dur`` keep their text."""

    ph: str = ""
    cat: str | None = None
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: dict[str, Any] | None = None


def open_trace(path: Path) -> IO[bytes]:
    """Open a plain or gzip file by content."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    if not zipped:
        return path.open("rb")
    try:
        unzip = import_module("isal.igzip")  # the extra fast-gzip: about three times as fast
    except ImportError:
        unzip = gzip
    return cast("IO[bytes]", unzip.open(path, "rb"))


def envelope(path: Path) -> dict[str, Any]:
    """Everything in the file but the events, wherever it stands.

    Raises:
        MalformedTrace: If the file is no trace or is cut off.
    """
    head = b""
    tail = b""
    with open_trace(path) as stream:
        for block in _blocks(stream, path):
            if _EVENTS.search(head) is None:
                head += block
                if len(head) > (64 << 20):
                    raise MalformedTrace(f"{path}: no traceEvents in the first 64 MiB.")
            tail = (tail + block)[-_TAIL_BYTES:]
    match = _EVENTS.search(head)
    if match is None:
        raise MalformedTrace(
            f"{path}: no traceEvents found.", hint="expected a Kineto trace as torch.profiler exports it"
        )
    found = _decode_object(path, head[: match.end()] + b"]}")
    found.pop("traceEvents", None)
    # The array ends after the last event: looking on from there keeps the number of trials small.
    for cut in _AFTER_ARRAY.finditer(tail, max(0, tail.rfind(b'"ph"'))):
        try:
            found |= msgspec.json.decode(b"{" + tail[cut.end() :], type=dict[str, Any])
        except msgspec.DecodeError:
            continue
        break
    return found


def event_chunks(path: Path, advance: Callable[[int], None]) -> Iterator[list[Event]]:
    """All events, in lists of whole ones.

    Args:
        path: Plain or gzip Chrome-trace JSON object with ``traceEvents``.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: With the byte offset, if the text is damaged or cut off.
    """
    decoder = msgspec.json.Decoder(list[Event])
    rest, offset, inside = b"", 0, False
    with open_trace(path) as stream:
        for block in _blocks(stream, path, advance):
            rest += block
            if not inside:
                match = _EVENTS.search(rest)
                if match is None:
                    continue
                inside, offset, rest = True, match.end(), rest[match.end() :]
            if len(rest) < CHUNK_BYTES:
                continue
            events, used = _decode_front(decoder, rest)
            if used:
                yield events
                rest, offset = rest[used:], offset + used
    yield _decode_end(path, rest, offset)


def _blocks(stream: IO[bytes], path: Path, advance: Callable[[int], None] | None = None) -> Iterator[bytes]:
    consumed = 0
    raw = getattr(stream, "fileobj", None) or stream
    try:
        while block := stream.read(1 << 20):
            if advance is not None:
                position = raw.tell() if hasattr(raw, "tell") else consumed + len(block)
                advance(position - consumed)
                consumed = position
            yield block
    except (EOFError, gzip.BadGzipFile, OSError) as error:
        raise MalformedTrace(
            f"{path}: the compressed data ends or breaks: {error}.", hint="record or copy the trace again"
        ) from error


def _decode_front(decoder: msgspec.json.Decoder[list[Event]], text: bytes) -> tuple[list[Event], int]:
    """Decode the whole events at the front of the text; return them and the bytes they took."""
    end = len(text)
    for _ in range(64):
        start = max(0, end - (1 << 16))
        cuts = list(_CUT.finditer(text, start, end))
        if not cuts:
            if start == 0:
                break
            end = start + 8
            continue
        cut = cuts[-1]
        try:
            return decoder.decode(b"[" + text[: cut.start() + 1] + b"]"), cut.end() - 1
        except msgspec.DecodeError:
            end = cut.end() - 1
    return [], 0


class _Rest(msgspec.Struct):
    traceEvents: list[Event]  # noqa: N815 - the key in the file


def _decode_end(path: Path, rest: bytes, offset: int) -> list[Event]:
    try:
        return msgspec.json.decode(b'{"traceEvents":[' + rest, type=_Rest).traceEvents
    except msgspec.DecodeError as error:
        reason, _, at = str(error).partition(" (byte ")
        opening = len(b'{"traceEvents":[')
        position = offset + (int(at.rstrip(")")) - opening if at else len(rest))
        raise MalformedTrace(
            f"{path}: damaged text at byte {position:,}: {reason}.",
            hint="the file is cut off, or holds what JSON does not allow (NaN, inf, bare quotes); record it again",
        ) from error


def _decode_object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise MalformedTrace(f"{path}: the text before the events is damaged: {error}.") from error


def to_ns(text: bytes) -> int:
    """Microseconds as decimal text (quoted or not) to whole nanoseconds, exactly.

    Raises:
        ValueError: If the text is no number.
    """
    digits = text.strip(b'"\t ')
    whole, _, fraction = digits.partition(b".")
    if len(fraction) <= 3 and (whole.isdigit() or whole[1:].isdigit()) and (not fraction or fraction.isdigit()):
        sign = -1 if whole[:1] == b"-" else 1
        return int(whole) * 1000 + sign * int(fraction.ljust(3, b"0") or 0)
    try:
        return int((Decimal(digits.decode()) * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise ValueError(digits.decode(errors="replace")) from error
