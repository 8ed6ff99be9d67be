"""Mends the text of one event as far as the damage is known and the mending plain.

Where whole events are in damaged text: JSON objects that parse by themselves, wherever they begin.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRING = rb'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_NO_OBJECT = re.compile(rb"\s*+:\s*+(?!\{|null\b)")
_ODD_ARGS = re.compile(rb'"args"' + _NO_OBJECT.pattern)
_SURROGATES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_NOT_NUMBERS = re.compile(_STRING + rb"|(?<=[:\[,\s])[-+]?(?:inf|infinity|nan)\b", re.IGNORECASE | re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ANY_STRING = re.compile(_STRING, re.DOTALL)
_BACKSLASH = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
# A name reaches to the next key that events have.
_NAME = re.compile(rb'("name"\s*:\s*")(.*?)(?="\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|s|args)"\s*:|\}\s*\Z))', re.DOTALL)
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_UNOPENED = re.compile(rb'("(?:tid|pid)"\s*:\s*)([A-Za-z][^"{}\[\]]*")')
# A quote that neither opens nor closes a value or key, judged by what stands beside it.
_BARE_QUOTE = re.compile(rb'(?<![:,\[{\s\\])"(?!\s*[:,\]}])')


def repairs(event: bytes) -> Iterator[tuple[bytes, str]]:
    """Texts that the event may have been meant to be, with what was changed; the least change first.

    Args:
        event: Text of one event from its opening to its closing brace, invalid as it is.
    """
    plain = _NOT_NUMBERS.sub(_null, event)
    if plain != event:
        yield plain, "inf or nan read as null"
    opened = _UNOPENED.sub(rb'\1"\2', plain)
    if opened != plain:
        yield opened, "missing quote before a value added (legacy autograd export)"
    escaped = _without_controls(plain)
    if escaped != plain:
        yield escaped, "control characters in text escaped"
    if (paired := _SURROGATES.sub(_replace_lone, escaped)) != escaped:
        yield paired, "half surrogate pairs replaced"
    if (named := _without_args(paired)) != paired:
        yield named, "arguments that are no object left out"
    doubled = _BACKSLASH.sub(_double, plain)
    if doubled != plain:
        yield doubled, "lone backslashes doubled"
        yield _without_controls(doubled), "lone backslashes doubled"
    for quoted in (_NAME.sub(_escape_quotes, doubled), _BARE_QUOTE.sub(rb'\\"', doubled)):
        if quoted != doubled:
            yield _without_controls(quoted), "bare quotes in text escaped"


def _without_controls(event: bytes) -> bytes:
    return _ANY_STRING.sub(_escape_controls, event) if _CONTROL.search(event) else event


def _null(match: re.Match[bytes]) -> bytes:
    text = match[0]
    return text if text[:1] == b'"' else b"null"


def _escape_controls(match: re.Match[bytes]) -> bytes:
    return _CONTROL.sub(lambda control: b"\\u%04x" % control[0][0], match[0])


def _escape_quotes(match: re.Match[bytes]) -> bytes:
    return match[1] + _QUOTE.sub(lambda quote: b'\\"' if quote[0] == b'"' else quote[0], match[2])


def _double(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] else b"\\\\"


def _replace_lone(match: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if match[1] else match[0]


def _without_args(event: bytes) -> bytes:
    """The event with another key for arguments that are no object, as those of other tools may be."""
    if _ODD_ARGS.search(event) is None:
        return event
    level = 0
    for token in _TOKEN.finditer(event):
        if token[0] in (b"{", b"["):
            level += 1
        elif token[0] in (b"}", b"]"):
            level -= 1
        elif level == 1 and token[0] == b'"args"' and _NO_OBJECT.match(event, token.end()):
            return b'%b"odd args"%b' % (event[: token.start()], event[token.end() :])
    return event


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
