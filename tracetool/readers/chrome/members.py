"""The members of one JSON object in text, their values skipped and not built: where the events are, what stands beside.

A key counts where it is a key of the object itself: not inside a value, not inside a text.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import NamedTuple

import msgspec

EVENTS_KEY = "traceEvents"

_SPACE = re.compile(rb"[ \t\r\n]*+")
_OPENING = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*+\{")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,\[\]{}":]++')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}"]', re.DOTALL)
_CLOSES = {b"[": b"]", b"{": b"}"}
_MOST_DECODED_BYTES = 4 << 20
_VALUE = msgspec.json.Decoder(msgspec.Raw)
_TOLERANT = json.JSONDecoder(strict=False, parse_int=str)


class Stop(Enum):
    """Why a walk over members ended."""

    EVENTS = auto()
    """At a list of events: after its opening bracket."""
    CLOSED = auto()
    """After the brace that closes the object."""
    CUT = auto()
    """Where the text ends, before the object does."""
    DAMAGED = auto()
    """Where the text is no JSON."""


class Member(NamedTuple):
    """One key of the object, and where its value lies in the text."""

    key: str
    start: int
    end: int


class Walk(NamedTuple):
    """What was walked over: whole members, and where and why it ended.

    ``at`` is the offset after the last whole thing: from there a walk can go on (``inside=True`` after a member).
    """

    members: list[Member]
    at: int
    stop: Stop


def opening(text: bytes) -> int | None:
    """Offset after the brace that opens the text, or None if it opens with something else."""
    match = _OPENING.match(text)
    return match.end() if match else None


def walk(text: bytes, at: int, *, inside: bool = False) -> Walk:
    """Walk over the members of an object up to its list of events, its end, or the end of what can be read.

    Args:
        text: JSON text.
        at: After the opening brace, or after a value of the object.
        inside: Whether it is after a value, so that a comma comes next.
    """
    members: list[Member] = []
    while True:
        here = _after_space(text, at)
        if text[here : here + 1] == b"}":
            return Walk(members, here + 1, Stop.CLOSED)
        if inside and text[here : here + 1] == b",":
            here = _after_space(text, here + 1)
        elif inside:
            return Walk(members, at, Stop.CUT if here == len(text) else Stop.DAMAGED)
        member = _member(text, here)
        if isinstance(member, Stop):
            return Walk(members, at, member)
        if member.key == EVENTS_KEY and text[member.start : member.start + 1] == b"[":
            return Walk(members, member.start + 1, Stop.EVENTS)
        end = value_end(text, member.start)
        if end is None or (end == len(text) and text[end - 1 : end] not in (b"]", b"}", b'"')):
            return Walk(members, at, Stop.CUT)
        if not _is_sound(text[member.start : end]):
            return Walk(members, at, Stop.DAMAGED)
        members.append(member._replace(end=end))
        at, inside = end, True


def _member(text: bytes, here: int) -> Member | Stop:
    """The key here and the beginning of its value, or why there is none."""
    key = _STRING.match(text, here)
    colon = here if key is None else _after_space(text, key.end())
    if key is None or text[colon : colon + 1] != b":":
        is_cut = colon == len(text) or (key is None and text[here : here + 1] == b'"')
        return Stop.CUT if is_cut else Stop.DAMAGED
    start = _after_space(text, colon + 1)
    try:
        return Member(json.loads(key[0], strict=False), start, start)
    except ValueError:
        return Stop.DAMAGED


def _after_space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def value_end(text: bytes, start: int) -> int | None:
    """Offset after the value, None if the text ends inside it; unsound values have an end, too."""
    first = text[start : start + 1]
    if first not in (b"[", b"{"):
        match = (_STRING if first == b'"' else _SCALAR).match(text, start)
        return match.end() if match else None if first in (b"", b'"') else start
    awaited: list[bytes] = []
    for token in _TOKEN.finditer(text, start):
        sign = token[0]
        if sign in _CLOSES:
            awaited.append(_CLOSES[sign])
        elif sign == b'"':
            return None
        elif sign in (b"]", b"}"):
            if awaited.pop() != sign:
                return token.start()
            if not awaited:
                return token.end()
    return None


def _is_sound(value: bytes) -> bool:
    """Whether a value is JSON; NaN, inf and control characters are let pass, as are values too long to be decoded."""
    try:
        _VALUE.decode(value)
    except RecursionError:
        return True
    except msgspec.DecodeError:
        if len(value) > _MOST_DECODED_BYTES:
            return True
        try:
            _, end = _TOLERANT.raw_decode(value.decode("latin-1"))
        except RecursionError:
            return True
        except ValueError:
            return False
        return end == len(value)
    return True
