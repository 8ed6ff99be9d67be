"""Where whole events are in damaged text: JSON objects that parse by themselves, wherever they begin."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPENING = re.compile(rb"\{")
# Numbers stay text: Python refuses to make integers of thousands of digits. Control characters are mended later.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=False)
# Most events fit the first slice; text is looked at again only where a longer one may be cut.
_SLICE = 1 << 14
_GROWTH = 16
LONGEST_BYTES = 2 << 20
"""What is decoded at most: the objects take twenty times as much."""

_ATTEMPT_COST = 2048
_DEEP_COST = 1 << 15


class WholeEvent(NamedTuple):
    """A whole event, and what looking for it cost.

    Attributes:
        start: Its opening brace; None if there is none.
        end: After its closing brace; where looking was given up if there is none.
        cost: About as many bytes as could be decoded meanwhile.
        is_cut: Whether more text might make it whole.
    """

    start: int | None
    end: int
    cost: int
    is_cut: bool = False


def object_at(data: bytes, at: int) -> WholeEvent:
    """The whole JSON object that opens at ``at``, whatever follows it; like a file, it may hold NaN and inf.

    Args:
        data: Text.
        at: Offset of its opening brace.
    """
    _, end, cost, is_cut = _decoded(data, at)
    return WholeEvent(None, at, cost, is_cut) if end is None else WholeEvent(at, end, cost)


def objects(text: bytes) -> Iterator[bytes]:
    """The objects in text of nothing but whole objects, parted by commas or not at all."""
    at = 0
    while (match := _OPENING.search(text, at)) is not None:
        _, end, _, _ = _decoded(text, match.start())
        at = end if end is not None else len(text)
        yield text[match.start() : at]


def next_event(data: bytes, start: int, stop: int, most_cost: int, *, is_all: bool = True) -> WholeEvent:
    """The first whole event that opens in a part of the text.

    What opens inside a damaged event (its arguments) is no event: it has no ``ph``.

    Args:
        data: Text.
        start: Where to begin.
        stop: Where openings end to matter; an event may reach further.
        most_cost: Give up beyond it.
        is_all: Whether no more text follows; else it is given up where the end of the text cuts an object.
    """
    spent = 0
    at = start
    while (match := _OPENING.search(data, at, stop)) is not None and spent <= most_cost:
        event, end, cost, is_cut = _decoded(data, match.start())
        spent += cost
        if is_cut and not is_all:
            return WholeEvent(None, match.start(), spent, is_cut)
        if end is not None and "ph" in event:
            return WholeEvent(match.start(), end, spent)
        # An object without it may be the arguments of an event whose front is damaged: nothing opens inside.
        at = end if end is not None and "traceEvents" not in event else match.end()
    return WholeEvent(None, stop if match is None else at, spent)


def _decoded(data: bytes, at: int) -> tuple[dict[str, object], int | None, int, bool]:
    size, cost = _SLICE, 0
    while True:
        # Latin-1 keeps offsets: each byte is one character.
        text = data[at : at + size].decode("latin-1")
        try:
            event, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            open_string = error.msg.startswith("Unterminated string")
            cost += _ATTEMPT_COST + (len(text) if open_string else error.pos)
            cut = open_string or error.pos >= len(text) - 12
        except RecursionError:
            return {}, None, cost + _DEEP_COST, False
        else:
            return event, at + end, cost + _ATTEMPT_COST + end, False
        if not cut or size >= LONGEST_BYTES or at + size >= len(data):
            return {}, None, cost, cut and len(text) < LONGEST_BYTES
        size = min(size * _GROWTH, LONGEST_BYTES)
