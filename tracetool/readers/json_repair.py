"""Mends the text of one event as far as the damage is known and the mending plain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRING = rb'"(?:[^"\\]|\\.)*"'
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
    escaped = _ANY_STRING.sub(_escape_controls, plain)
    if escaped != plain:
        yield escaped, "control characters in text escaped"
    doubled = _BACKSLASH.sub(_double, plain)
    if doubled != plain:
        yield doubled, "lone backslashes doubled"
        yield _ANY_STRING.sub(_escape_controls, doubled), "lone backslashes doubled"
    for quoted in (_NAME.sub(_escape_quotes, doubled), _BARE_QUOTE.sub(rb'\\"', doubled)):
        yield _ANY_STRING.sub(_escape_controls, quoted), "bare quotes in text escaped"


def _null(match: re.Match[bytes]) -> bytes:
    found = match[0]
    return found if found[:1] == b'"' else b"null"


def _escape_controls(match: re.Match[bytes]) -> bytes:
    return _CONTROL.sub(lambda control: b"\\u%04x" % control[0][0], match[0])


def _escape_quotes(match: re.Match[bytes]) -> bytes:
    return match[1] + _QUOTE.sub(lambda quote: b'\\"' if quote[0] == b'"' else quote[0], match[2])


def _double(match: re.Match[bytes]) -> bytes:
    return match[0] if match[1] else b"\\\\"
