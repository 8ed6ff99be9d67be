"""What stands around the events of a Chrome trace: metadata before and after them, read even if damaged."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import TYPE_CHECKING, Any

from tracetool.readers.chrome.members import Member, Stop, Walk, opening, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tracetool.readers.files.byte_stream import ByteStream

TAIL_BYTES = 4 << 20
VALUE_BYTES = 4 << 20
"""What is decoded of one value: its objects take twenty times as much memory."""
_LONG_TAIL_BYTES = 64 << 20
_MOST_TRIALS = 1000
_RANK = re.compile(r'"rank"\s*:\s*"?(\d+)')
_WORLD = re.compile(r'"world_size"\s*:\s*"?(\d+)')
_AFTER_EVENTS = re.compile(rb"\}\s*\]\s*(?=[,}])")
_DECODER = json.JSONDecoder(strict=False)


def head_facts(head: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """The values of some keys of the trace that stand before its events; see :func:`tail_facts`."""
    at = opening(head)
    return _facts(head, walk(head, at) if at is not None else Walk([], 0, Stop.DAMAGED), keys)


def tail_facts(tail: bytes, keys: frozenset[str]) -> dict[str, Any]:
    """The values of some keys of the trace that stand after its events: damage to one costs the others nothing.

    Args:
        tail: Text after the bracket that closes the list of events; it need not be whole.
        keys: Keys of the trace's own object to read; of two equal ones the first counts.
    """
    return _facts(tail, walk(tail, 0, inside=True), keys)


def _facts(text: bytes, walked: Walk, keys: frozenset[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for member in walked.members:
        if member.key in keys:
            _take(facts, text, member)
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
        facts[member.key] = _printable(_DECODER.raw_decode(value.decode(errors="replace"))[0])
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


def tail_of(path: Path, stream: ByteStream) -> bytes:
    """Text after the last event: the end of a plain file at once, that of a compressed one by reading it through.

    Args:
        path: The file.
        stream: The same, of which the head was read.
    """
    tail = b""
    for size in (TAIL_BYTES, _LONG_TAIL_BYTES):
        end = _end_of(path, stream, size)
        for match in islice(_AFTER_EVENTS.finditer(end), _MOST_TRIALS):
            # What closes a list inside an event, or inside what follows, is no end of the object.
            walked = walk(end, match.end(), inside=True)
            if walked.stop is Stop.CLOSED and not end[walked.at :].strip():
                return end[match.end() :]
        last = _AFTER_EVENTS.search(end, max(0, end.rfind(b'"ph"')))
        tail = end[last.end() :] if last else b""
        if tail or len(end) < size:
            break
    return tail


def _end_of(path: Path, stream: ByteStream, size: int) -> bytes:
    if stream.is_plain:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read()
    tail = b""
    for block in stream.blocks(1 << 20):
        tail = (tail + block)[-size:]
    return tail
