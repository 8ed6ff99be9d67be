"""Where the list of events of a Chrome trace begins, and whether the trace ends soundly after it."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from tracetool.readers.chrome.members import Stop, opening, walk

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
    """

    at: int | None
    is_member: bool = False
    is_sound: bool = False


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
            return Beginning(walked.at, is_member=True)
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
