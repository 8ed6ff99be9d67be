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


class Found(NamedTuple):
    """A whole event, or None in its place, and what looking for it cost (about bytes read by the decoder).

    Attributes:
        start: Its opening brace.
        end: After its closing brace.
    """

    start: int | None
    end: int | None
    cost: int


def object_at(data: bytes, at: int) -> Found:
    """The whole JSON object that opens at ``at``, whatever follows it; like a file, it may hold NaN and inf.

    Args:
        data: Text.
        at: Offset of its opening brace.
    """
    _, end, cost = _decoded(data, at)
    return Found(at if end is not None else None, end, cost)


def objects(text: bytes) -> Iterator[bytes]:
    """The objects in text of nothing but whole objects, parted by commas or not at all."""
    at = 0
    while (match := _OPENING.search(text, at)) is not None:
        _, end, _ = _decoded(text, match.start())
        at = end if end is not None else len(text)
        yield text[match.start() : at]


def next_event(data: bytes, start: int, stop: int, most_cost: int) -> Found:
    """The first whole event that opens in a part of the text.

    What opens inside a damaged event (its arguments) is no event: it has no ``ph``.

    Args:
        data: Text.
        start: Where to begin.
        stop: Where openings end to matter; an event may reach further.
        most_cost: Give up beyond it.
    """
    spent = 0
    at = start
    while (match := _OPENING.search(data, at, stop)) is not None and spent <= most_cost:
        found, end, cost = _decoded(data, match.start())
        spent += cost
        if end is not None and "ph" in found:
            return Found(match.start(), end, spent)
        # An object without it may be the arguments of an event whose front is damaged: nothing opens inside.
        at = end if end is not None and "traceEvents" not in found else match.end()
    return Found(None, None, spent)


def _decoded(data: bytes, at: int) -> tuple[dict[str, object], int | None, int]:
    size, cost = _SLICE, 0
    while True:
        # Latin-1 keeps offsets: each byte is one character.
        text = data[at : at + size].decode("latin-1")
        try:
            found, end = _DECODER.raw_decode(text)
        except json.JSONDecodeError as error:
            cost += _ATTEMPT_COST + error.pos
            cut = error.pos >= len(text) - 12 or error.msg.startswith("Unterminated string")
        except RecursionError:
            return {}, None, cost + _DEEP_COST
        else:
            return found, at + end, cost + _ATTEMPT_COST + end
        if not cut or size >= LONGEST_BYTES or at + size >= len(data):
            return {}, None, cost
        size = min(size * _GROWTH, LONGEST_BYTES)
