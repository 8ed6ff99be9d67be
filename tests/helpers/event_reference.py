"""What an event scanner must find, worked out independently: regular expressions, Decimal and the stdlib's json.

Every event that is found whole is also given to ``json``, which must see the same members, and every one refused
for its grammar must be refused by ``json``, too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Literal, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.readers.chrome.compiled import Kind, Window

    Fields = Sequence[tuple[str, Kind, bool]]
    Wanted = Mapping[bytes, frozenset[bytes] | None]
    Status = Literal[0, 1, 2]

MORE: Status = 0
DECLINED: Status = 1
CLOSED: Status = 2
LEVELS = 100

_HEX = rb"[0-9a-fA-F]"
_PAIR = rb"\\u[dD][89abAB]%b{2}\\u[dD][c-fC-F]%b{2}" % (_HEX, _HEX)
_UNIT = rb"\\u(?![dD][89a-fA-F])%b{4}" % _HEX
_PLAIN = rb'[^"\\\x00-\x1f]'
_CHAR = rb'(?:%b|\\["\\/bfnrt]|%b|%b)' % (_PLAIN, _UNIT, _PAIR)
_ESCAPE_CUT = rb"(?:\\u[dD][89abAB]%b{2})?(?:\\(?:u%b{0,3})?)?" % (_HEX, _HEX)
STRING = re.compile(rb'"%b*"' % _CHAR)
STRING_CUT = re.compile(rb'"%b*%b\Z' % (_CHAR, _ESCAPE_CUT))
STRING_LONE = re.compile(rb'"(?:%b|\\["\\/bfnrt]|\\u%b{4})*' % (_PLAIN, _HEX))
KEY = re.compile(rb'"%b*"' % _PLAIN)
KEY_CUT = re.compile(rb'"%b*\Z' % _PLAIN)
NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
NUMBER_CUT = re.compile(rb"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*|(?:\.[0-9]+)?[eE][-+]?[0-9]*)?)?\Z")
SPACE = re.compile(rb"[ \t\n\r]*")
INT_PLAIN = re.compile(rb'-?[0-9]{1,18}|"-?[0-9]{1,18}"')
_TIME = rb"-?(?:[0-9]{1,15}|[0-8][0-9]{15})(?:\.[0-9]{1,3})?"
TIME_PLAIN = re.compile(_TIME + rb'|"' + _TIME + rb'"')


class CutError(Exception):
    """The window ends inside the event."""


class BadError(Exception):
    """The event is not plainly valid; ``grammar`` if ``json`` must think so, too."""


@dataclass
class Found:
    """What is in a window; ``cells`` has a list per field with the value of each row, None where there is none."""

    end: int
    status: Status = MORE
    rows: int = 0
    cells: list[list[object]] = field(default_factory=list)
    odd: list[tuple[int, int, bytes]] = field(default_factory=list)
    skipped: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)


Members = list[tuple[bytes, bytes]]


class _Text:
    def __init__(self, text: bytes) -> None:
        self.text = text

    def space(self, at: int) -> int:
        match = SPACE.match(self.text, at)
        assert match is not None
        return match.end()

    def byte(self, at: int) -> bytes:
        if at == len(self.text):
            raise CutError
        return self.text[at : at + 1]

    def expect(self, at: int, wanted: bytes) -> int:
        if self.byte(at) not in wanted:
            raise BadError("grammar")
        return at + 1

    def key(self, at: int) -> int:
        self.expect(at, b'"')
        if KEY_CUT.match(self.text, at):
            raise CutError
        match = KEY.match(self.text, at)
        if match is None:
            escape = re.compile(rb'"%b*\\' % _PLAIN).match(self.text, at)
            raise BadError("key escape" if escape else "grammar")
        return match.end()

    def value(self, at: int, level: int) -> int:
        first = self.byte(at)
        if first in b"{[":
            return self.container(at, level)[0]
        if first == b'"':
            if STRING_CUT.match(self.text, at):
                raise CutError
            match = STRING.match(self.text, at)
            if match is None:
                lone = STRING_LONE.match(self.text, at)
                raise BadError("lone surrogate" if lone and b"\\u" in lone[0] else "grammar")
            return match.end()
        for word in (b"true", b"false", b"null"):
            if self.text.startswith(word, at):
                return at + len(word)
            if word.startswith(self.text[at:]):
                raise CutError
        if NUMBER_CUT.match(self.text, at):
            raise CutError
        match = NUMBER.match(self.text, at)
        if match is None:
            raise BadError("grammar")
        return match.end()

    def container(self, at: int, level: int, *, event: bool = False) -> tuple[int, Members]:
        if level > LEVELS:
            raise BadError("levels")
        is_object = self.text[at : at + 1] == b"{"
        closing = b"}" if is_object else b"]"
        members: Members = []
        at = self.space(at + 1)
        if self.byte(at) == closing:
            return at + 1, members
        while True:
            key = b""
            if is_object:
                end = self.key(at)
                key = self.text[at + 1 : end - 1]
                at = self.space(self.expect(self.space(end), b":"))
            if event and key == b"args" and self.byte(at) not in b"{n":
                raise BadError("args" if self.byte(at) in b'"[-0123456789tf' else "grammar")
            end = self.value(at, level + 1)
            members.append((key, self.text[at:end]))
            at = self.space(end)
            if self.byte(at) == closing:
                return at + 1, members
            at = self.space(self.expect(at, b","))


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def _same_to_json(raw: bytes, members: Members) -> None:
    parsed, end = JSON.raw_decode(raw.decode("latin-1"))
    assert end == len(raw)
    assert parsed == {k.decode("latin-1"): JSON.decode(v.decode("latin-1")) for k, v in members}


def _check_refused(text: bytes, reason: str) -> None:
    try:
        JSON.raw_decode(text.decode("latin-1"))
    except (ValueError, RecursionError):
        return
    assert reason != "grammar", text


_EVENTS_KEPT = 8
_events: dict[bytes, Members] = {}


def _event(window: _Text, at: int) -> tuple[int, Members]:
    """The event that begins here, and where it ends; what one is does not depend on what follows its last brace.

    Those met last are kept: tests change one byte of an event among others that stay.
    """
    for raw in reversed(_events):
        if window.text.startswith(raw, at):
            _events[raw] = members = _events.pop(raw)
            return at + len(raw), members
    end, members = window.container(at, 1, event=True)
    raw = window.text[at:end]
    _same_to_json(raw, members)
    _events[raw] = members
    if len(_events) > _EVENTS_KEPT:
        del _events[next(iter(_events))]
    return end, members


def find(text: bytes, start: int, stop: int, fields: Fields, wanted: Wanted) -> Found:
    """What a scanner must find in a window."""
    window = _Text(text[:stop])
    found = Found(start, cells=[[] for _ in fields])
    at, comma = start, False
    while (at := window.space(at)) < stop:
        first = text[at : at + 1]
        if first == b"]":
            found.end, found.status = at + 1, CLOSED
            return found
        if first == b"," and not comma:
            at, comma = at + 1, True
            continue
        if first != b"{":
            found.status = DECLINED
            return found
        try:
            end, members = _event(window, at)
        except CutError:
            _check_refused(text[at:stop], "grammar")
            return found
        except BadError as error:
            _check_refused(text[at:stop], str(error))
            found.status = DECLINED
            return found
        if any(b"\\" in raw for key, raw in dict(members).items() if key in (b"ph", b"cat")):
            found.status = DECLINED  # what it means tells whether it is wanted
            return found
        _take(found, dict(members), fields, wanted)
        found.end = at = end
        comma = False
    return found


def _take(found: Found, event: dict[bytes, bytes], fields: Fields, wanted: Wanted) -> None:
    args = event.get(b"args", b"null")
    inner = {} if args == b"null" else dict(_Text(args).container(0, 2)[1])
    raws = [(inner if in_args else event).get(key.encode(), b"null") for key, _, in_args in fields]
    ph, cat = (b"" if raw == b"null" else raw for raw in raws[:2])
    allowed = wanted.get(ph, frozenset())
    if allowed is not None and cat not in allowed:
        found.skipped[ph, cat] += 1
        return
    for n, (raw, (_, kind, _)) in enumerate(zip(raws, fields, strict=True)):
        value: object = None
        if raw == b"null":
            pass
        elif kind in ("text", "json"):
            value = raw
        elif (INT_PLAIN if kind == "int" else TIME_PLAIN).fullmatch(raw):
            value = int(Decimal(raw.strip(b'"').decode()) * (1 if kind == "int" else 1000))
        else:
            found.odd.append((n, found.rows, raw))
        found.cells[n].append(value)
    found.rows += 1


def as_found(window: Window, fields: Fields) -> Found:
    """A scanner's answer in the form of the reference; its own shape is checked on the way."""
    cells: list[list[object]] = []
    for (_, kind, _), (values, second) in zip(fields, window.columns, strict=True):
        if kind in ("text", "json"):
            codes = memoryview(values).cast("i").tolist()
            assert isinstance(second, list)
            assert len(set(second)) == len(second)
            assert set(codes) - {-1} == set(range(len(second)))
            cells.append([None if code < 0 else second[code] for code in codes])
        else:
            numbers = memoryview(values).cast("q").tolist()
            assert isinstance(second, bytearray)
            assert set(second) <= {0, 1}
            cells.append([n if ok else None for n, ok in zip(numbers, second, strict=True)])
    assert {len(column) for column in cells} == {window.rows}
    assert all(count > 0 for count in window.skipped.values())
    odd = sorted(window.odd, key=lambda o: (o[1], o[0]))
    return Found(window.end, window.status, window.rows, cells, odd, Counter(window.skipped))
