"""What stands around the events of a Chrome trace: metadata before and after them, read even if damaged."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.readers.byte_stream import ByteStream

TAIL_BYTES = 4 << 20
VALUE_BYTES = 4 << 20
"""What is decoded of one value: its objects take twenty times as much memory."""
_MOST_TRIALS = 1000
_RANK = re.compile(r'"rank"\s*:\s*"?(\d+)')
_WORLD = re.compile(r'"world_size"\s*:\s*"?(\d+)')
_AFTER_EVENTS = re.compile(rb"\}\s*\]\s*,?\s*(?=[\"}])")


def facts(text: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """The values of some top-level keys, each read by itself: damage elsewhere costs them nothing.

    Args:
        text: JSON text before or after the events; it need not be whole.
        keys: Keys to look for; of two equal ones the first counts.
    """
    decoder = json.JSONDecoder(strict=False)
    found: dict[str, Any] = {}
    pattern = re.compile(rb'"(%b)"\s*:\s*' % b"|".join(re.escape(key.encode()) for key in sorted(keys)))
    for match in islice(pattern.finditer(text), _MOST_TRIALS):
        key = match[1].decode()
        if key in found:
            continue
        try:
            value = text[match.end() : match.end() + VALUE_BYTES].decode(errors="replace")
            found[key] = _printable(decoder.raw_decode(value)[0])
        except (ValueError, RecursionError):
            if key == "distributedInfo":
                found |= _distributed(text[match.end() : match.end() + 4096].decode(errors="replace"))
    return found


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


def tail_of(path: Path, stream: ByteStream) -> bytes:
    """Text after the last event: the end of a plain file at once, that of a compressed one by reading it through.

    Args:
        path: The file.
        stream: The same, of which the head was read.
    """
    if stream.is_plain:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            tail = file.read()
    else:
        tail = b""
        for block in stream.blocks(1 << 20):
            tail = (tail + block)[-TAIL_BYTES:]
    last = max(0, tail.rfind(b'"ph"'))
    match = _AFTER_EVENTS.search(tail, last)
    return tail[match.end() :] if match else b""
