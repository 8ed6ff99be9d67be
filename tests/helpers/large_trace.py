"""A large Kineto trace: the events of a real one, again and again, with new ids and later times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracetool.readers.files import ByteStream

if TYPE_CHECKING:
    from pathlib import Path

_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\](?=[^\]]*\Z)")
_NUMBERS = re.compile(
    rb'(?P<key>"(?:ts|correlation|External id|id|Sequence number)"\s*:\s*|ProfilerStep#)(?P<whole>\d+)(?P<rest>[.\d]*)'
)


def write_large_trace(source: Path, target: Path, size_bytes: int) -> int:
    """Write a trace of at least this size.

    Args:
        source: A Kineto trace, compressed or not.
        target: File to write, plain.
        size_bytes: Size wanted.

    Returns:
        Number of copies of the source's events in it.
    """
    text = b"".join(ByteStream(source).blocks(1 << 20))
    begin = _LIST.search(text)
    end = _END.search(text)
    assert begin is not None
    assert end is not None
    events = text[begin.end() : end.start() + 1]
    times = [int(t) for t in re.findall(rb'"ph"\s*:\s*"X".*?"ts"\s*:\s*(\d+)', events, re.DOTALL)]
    span_us = max(times) - min(times) + 1000
    ids = 1 + max(int(i) for i in re.findall(rb'"(?:correlation|External id|Sequence number)"\s*:\s*(\d+)', events))
    copies = 0
    with target.open("wb") as file:
        file.write(text[: begin.end()])
        while file.tell() < size_bytes:
            shift = {b'"ts"': copies * span_us, b"Prof": copies}

            def moved(match: re.Match[bytes], shift: dict[bytes, int] = shift, own: int = copies * ids) -> bytes:
                by = shift.get(match["key"][:4], own)
                return match["key"] + b"%d" % (int(match["whole"]) + by) + match["rest"]

            file.write((b",\n" if copies else b"") + _NUMBERS.sub(moved, events))
            copies += 1
        file.write(text[end.end() - 1 :])
    return copies
