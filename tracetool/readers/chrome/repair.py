"""Mends the text of one event as far as the damage is known and the mending plain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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
