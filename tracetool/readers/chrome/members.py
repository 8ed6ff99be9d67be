"""The members of one JSON object in text, their values skipped and not built: where the events are, what stands beside.

A key counts where it is a key of the object itself: not inside a value, not inside a text.

Where the list of events of a Chrome trace begins, and whether the trace ends soundly after it.

What stands around the events of a Chrome trace: metadata before and after them, read even if damaged.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


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
        return Member(_key_of(key[0]), start, start)
    except ValueError:
        return Stop.DAMAGED


def _key_of(text: bytes) -> str:
    """The text of a key, with its quotes.

    Raises:
        ValueError: If it is damaged.
    """
    plain = text.isascii() and b"\\" not in text and b"\0" not in text
    key: str = text[1:-1].decode("ascii") if plain else json.loads(text, strict=False)
    return key


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


BARE = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[")
_HEAD_LIMIT_BYTES = 16 << 20
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_FOLLOWING_BYTES = 1 << 18
_OF_TRACES = frozenset({"schemaVersion", "deviceProperties", "distributedInfo"})
"""Keys that an object with a list of events has, and an event has not."""


class Beginning(NamedTuple):
    """Where a list of events begins.

    Attributes:
        at: After its bracket; None if it was not met yet.
        is_member: Whether it is a member of the trace's own object, in text that is sound up to there.
        is_sound: Whether more text may still show it as such.
        ahead: If it is a member, those that stand before it.
    """

    at: int | None
    is_member: bool = False
    is_sound: bool = False
    ahead: Sequence[Member] = ()


def beginning(data: bytes, looked: int, *, is_sound: bool, is_all: bool) -> Beginning:
    """Where the list of events begins.

    Args:
        data: Text from the beginning of the file.
        looked: How much of it was searched before.
        is_sound: Whether what was searched may be the sound beginning of an object.
        is_all: Whether no more text follows.
    """
    if (match := BARE.match(data)) is not None:
        return Beginning(match.end())
    if is_sound and (at := opening(data)) is not None:
        walked = walk(data, at)
        if walked.stop is Stop.EVENTS:
            return Beginning(walked.at, is_member=True, ahead=walked.members)
        if walked.stop is Stop.CUT and not is_all and len(data) <= _HEAD_LIMIT_BYTES:
            return Beginning(None, is_sound=True)
        looked = 0
    match = _EVENTS.search(data, max(0, looked - 64))
    return Beginning(match.end() if match else None)


class Ending(Enum):
    """What follows a list of events in the object it is a member of."""

    SOUND = auto()
    """The rest of the object, and nothing more."""
    EVENTS = auto()
    """Another list of events of the same object."""
    ANOTHER = auto()
    """The rest of the object, then another trace."""
    UNSOUND = auto()


def ending(data: bytes, start: int, *, is_trusted: bool) -> tuple[Ending, int]:
    """What follows the bracket that closes the events, and the offset after it (of another trace: where it begins).

    Args:
        data: Text.
        start: After the bracket.
        is_trusted: Whether an event stands between it and damage: else it may close a list inside a damaged event,
            and a list of events behind it may be the rest of those around it.
    """
    walked = walk(data, start, inside=True)
    if walked.stop is Stop.EVENTS:
        return Ending.EVENTS, walked.at
    if walked.stop is not Stop.CLOSED:
        return Ending.UNSOUND, walked.at
    rest = len(data) - len(data[walked.at :].lstrip())
    if rest == len(data):
        return Ending.SOUND, rest
    another = _begins_trace(data[rest : rest + _FOLLOWING_BYTES], may_be_bare=is_trusted)
    return (Ending.ANOTHER if another else Ending.UNSOUND), rest


def _begins_trace(text: bytes, *, may_be_bare: bool) -> bool:
    """Whether a trace begins here: a list of events, or an object about one; an event by itself is none."""
    at = opening(text)
    if at is None:
        return may_be_bare and _lists_events(text)
    walked = walk(text, at)
    return walked.stop is Stop.EVENTS or not _OF_TRACES.isdisjoint(member.key for member in walked.members)


def _lists_events(text: bytes) -> bool:
    """Whether a bare list begins here whose first object is an event: one with a phase of its own."""
    match = BARE.match(text)
    at = opening(text[match.end() :]) if match else None
    if match is None or at is None:
        return False
    return any(member.key == "ph" for member in walk(text, match.end() + at).members)


def lists_traces(head: bytes) -> bool:
    """Whether the text is a list of whole traces, and not of events."""
    match = BARE.match(head)
    at = opening(head[match.end() :]) if match else None
    return match is not None and at is not None and walk(head, match.end() + at).stop is Stop.EVENTS


VALUE_BYTES = 4 << 20
"""What is decoded of one value: its objects take twenty times as much memory."""
_MOST_TRIALS = 1000
_RANK = re.compile(r'"rank"\s*:\s*"?(\d+)')
_WORLD = re.compile(r'"world_size"\s*:\s*"?(\d+)')
_DECODER = json.JSONDecoder(strict=False)


def head_facts(head: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """The values of some keys of the trace that stand before its events; see :func:`tail_facts`."""
    if not _may_have(head, keys):
        return {}
    at = opening(head)
    return _facts(head, walk(head, at) if at is not None else Walk([], 0, Stop.DAMAGED), keys)


def _may_have(text: bytes, keys: frozenset[str]) -> bool:
    """Whether any of the keys can be in a text; escapes hide what they are."""
    return b"\\" in text or any(key.encode() in text for key in keys)


def tail_facts(tail: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """The values of some keys of the trace that stand after its events: damage to one costs the others nothing.

    Args:
        tail: Text after the bracket that closes the list of events; it need not be whole.
        keys: Keys of the trace's own object to read; of two equal ones the first counts.
    """
    return _facts(tail, walk(tail, 0, inside=True), keys) if _may_have(tail, keys) else {}


def member_facts(text: bytes, members: Sequence[Member], keys: frozenset[str]) -> dict[str, Any]:
    """The values of some keys among members of the trace; see :func:`tail_facts`."""
    facts: dict[str, Any] = {}
    for member in members:
        if member.key in keys:
            _take(facts, text, member)
    return facts


def _facts(text: bytes, walked: Walk, keys: frozenset[str]) -> dict[str, Any]:
    facts = member_facts(text, walked.members, keys)
    if walked.stop in (Stop.CUT, Stop.DAMAGED):
        for member in _scattered(text, walked.at, keys):
            _take(facts, text, member)
    return facts


def _scattered(text: bytes, start: int, keys: frozenset[str]) -> Iterator[Member]:
    """Where damaged text may have the keys, whatever they are inside of."""
    pattern = re.compile(rb'"(%b)"\s*:\s*' % b"|".join(re.escape(key.encode()) for key in sorted(keys)))
    for match in islice(pattern.finditer(text, start), _MOST_TRIALS):
        yield Member(match[1].decode(), match.end(), len(text))


def _take(facts: dict[str, Any], text: bytes, member: Member) -> None:
    if member.key in facts:
        return
    value = text[member.start : min(member.end, member.start + VALUE_BYTES)]
    try:
        fact = _DECODER.raw_decode(value.decode(errors="replace"))[0]
        # Only escapes make halves of surrogate pairs.
        facts[member.key] = _printable(fact) if b"\\u" in value else fact
    except (ValueError, RecursionError):
        if member.key == "distributedInfo":
            facts |= _distributed(value[:4096].decode(errors="replace"))


def _printable(value: Any) -> Any:
    """The same without halves of surrogate pairs, which no table can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def ends_well(tail: bytes, *, bare: bool) -> bool:
    """Whether what follows the list of events is what may follow it, or the beginning of that.

    Args:
        tail: Text after the closing bracket.
        bare: Whether the list stands by itself and not in an object.
    """
    text = ("0" if bare else '{"":0') + tail.decode("latin-1")
    try:
        _, end = json.JSONDecoder(strict=False, parse_int=str).raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) - 12 or error.msg.startswith("Unterminated string")
    except RecursionError:
        return True
    return not text[end:].strip()


def _distributed(text: str) -> dict[str, Any]:
    rank, world = _RANK.search(text), _WORLD.search(text)
    if rank is None or world is None:
        return {}
    return {"distributedInfo": {"rank": int(rank[1]), "world_size": int(world[1])}}
