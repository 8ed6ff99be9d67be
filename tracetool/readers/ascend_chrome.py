"""Events of the JSON timelines that Ascend's tools write: bare arrays, whole or damaged.

Two known defects come from exports that join arrays carelessly (``][`` and ``},]``); others are files cut off
or holding bytes that are no text. Whole events are kept, the rest is counted with its byte.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from tracetool.readers import Place, SourceReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ABSENT = msgspec.Raw(b"")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]|"', re.DOTALL)
# Not the object of "args": that one follows a colon.
_NEXT_EVENT = re.compile(rb'[,\[\]}]\s*(\{\s*"(?:ph|name)"\s*:)')
_END = re.compile(rb"\]\s*\Z")
_BETWEEN = re.compile(rb"\s*,?\s*")


class Args(msgspec.Struct):
    """What is used of an event's ``args``; counts and ids keep their type, sizes their text."""

    name: Any = None
    sort_index: Any = None
    connection_id: Any = None
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    task_type: Any = msgspec.field(name="Task Type", default=None)
    iteration: Any = msgspec.field(name="Iteration ID", default=None)
    stream: Any = msgspec.field(name="stream id", default=None)
    source: Any = msgspec.field(name="src rank", default=None)
    destination: Any = msgspec.field(name="dst rank", default=None)
    transport: Any = msgspec.field(name="transport type", default=None)
    link: Any = msgspec.field(name="link type", default=None)
    size: Any = msgspec.field(name="size(Byte)", default=None)


class Event(msgspec.Struct):
    """One event; ``ts`` and ``dur`` keep their text."""

    ph: str = ""
    name: Any = ""
    cat: str | None = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    args: Args | None = None


def chrome_events(path: Path, report: SourceReport, advance: Callable[[int], None]) -> Iterator[Event]:
    """All whole events of a file, in its order.

    Args:
        path: A JSON array of events; it is read whole.
        report: Told about damage.
        advance: Called with the file bytes consumed.
    """
    text = path.read_bytes()
    advance(len(text))
    try:
        yield from msgspec.json.decode(text, type=list[Event])
    except (msgspec.DecodeError, UnicodeDecodeError):
        yield from _whole_events(text, str(path), report)


def _whole_events(text: bytes, name: str, report: SourceReport) -> Iterator[Event]:
    decoder = msgspec.json.Decoder(Event)
    at, closed = 0, False
    while at < len(text):
        at = _between(text, at)
        head = text[at : at + 1]
        if head == b"[":
            if closed:
                report.repair("event arrays written one after the other: read as one", Place(name, at))
            at, closed = at + 1, False
        elif head == b"]":
            if text[max(0, at - 64) : at].rstrip()[-1:] == b",":
                report.repair("comma before the end of the events", Place(name, at))
            at, closed = at + 1, True
        elif head == b"{" and (end := _end_of_object(text, at)) is not None:
            try:
                event = decoder.decode(text[at:end])
            except (msgspec.DecodeError, UnicodeDecodeError):
                end = _resume(text, at, name, report)
            else:
                yield event
            at = end
        elif head == b",":
            report.repair("comma without an event", Place(name, at))
            at += 1
        elif head:
            at = _resume(text, at, name, report)
    if not closed:
        report.repair("end of the events is missing: the file is cut off", Place(name, len(text)))


def _between(text: bytes, at: int) -> int:
    match = _BETWEEN.match(text, at)
    return match.end() if match is not None else at


def _end_of_object(text: bytes, start: int) -> int | None:
    """Where the object that begins here ends; None if its brackets or quotes do not fit."""
    opened: list[bytes] = []
    for token in _TOKEN.finditer(text, start):
        kind = token[0]
        if kind in (b"{", b"["):
            opened.append(kind)
        elif kind in (b"}", b"]"):
            if opened.pop() + kind not in (b"{}", b"[]"):
                return None
            if not opened:
                return token.end()
        elif kind == b'"':
            return None
    return None


def _resume(text: bytes, at: int, name: str, report: SourceReport) -> int:
    """Count what cannot be read here, and find where the next event begins or the last one has ended."""
    if (match := _NEXT_EVENT.search(text, at)) is not None:
        report.drop("damaged event", Place(name, at))
        return match.start(1)
    end = _END.search(text, max(at + 1, len(text) - 64))
    report.drop("event cut off at the end of the file" if end is None else "damaged event", Place(name, at))
    return len(text) if end is None else end.start()
