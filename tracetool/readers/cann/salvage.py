"""Operations in ``communication.json`` and ``communication_matrix.json``, read one by one where a file is damaged.

Both are steps of kinds of operations, each of which is called ``name@hash``: a whole operation is read
wherever it stands, whatever became of those before and after it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace
from tracetool.readers.chrome.resume import object_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport

T = TypeVar("T")

MOST_BYTES = 256 << 20
"""A file is read whole: none of a real job comes near."""
_AT_ONCE_BYTES = 32 << 20
_BETWEEN = re.compile(rb'(?:[\s,{}]|"(?:step[^"\\]{0,40}|p2p|collective)"\s*+:)*+')
_KEY = re.compile(rb'"(?:(step[^"\\]{0,40})|(p2p|collective)|([^"\\]{1,500}@[^"\\]{0,100}))"\s*+:\s*+(?=\{)')


def operations(
    path: Path, kind: type[T], report: SourceReport, advance: Callable[[int], None]
) -> Iterator[tuple[str, str, T]]:
    """Step, name and hash, and what is said of each operation.

    Args:
        path: The file.
        kind: What to make of an operation.
        report: Told about operations that are damaged.
        advance: Called with the bytes of the file.

    Raises:
        MalformedTrace: If the file is far larger than any.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise MalformedTrace(
            f"{path}: {size:,} bytes are more than {MOST_BYTES >> 20} MiB, which no such file has.",
            hint="was something else written over it?",
        )
    text = path.read_bytes()
    advance(size)
    whole = _whole(text, kind) if size <= _AT_ONCE_BYTES else None
    if whole is None:
        yield from _one_by_one(path, text, kind, report)
        return
    for step, kinds in whole.items():
        for key, operation in (item for named in kinds.values() for item in named.items()):
            yield step, key, operation


def _whole(text: bytes, kind: type[T]) -> dict[str, dict[str, dict[str, T]]] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, dict[str, dict[str, kind]]])  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _one_by_one(path: Path, text: bytes, kind: type[T], report: SourceReport) -> Iterator[tuple[str, str, T]]:
    decoder = msgspec.json.Decoder(kind)
    step, at, end = "", 0, 0

    def check(until: int) -> None:
        if _BETWEEN.fullmatch(text, end, until) is None:
            report.drop(f"damaged text in {path.name}", FilePlace(str(path), end), is_damage=True)

    while (match := _KEY.search(text, at)) is not None:
        at = match.end()
        if match[1] is not None:
            step = match[1].decode(errors="replace")
        if match[3] is None:
            continue
        whole = object_at(text, match.end())
        value = text[match.end() : whole.end]
        try:
            operation = decoder.decode(value)
            key = match[3].decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            report.drop(f"damaged operation in {path.name}", FilePlace(str(path), match.start()), is_damage=True)
            # What is inside is no operation: what is wrong with it was told.
            following = _KEY.search(text, at)
            at = end = following.start() if following else len(text)
            continue
        check(match.start())
        at = end = match.end() + len(value)
        yield step, key, operation
    check(len(text))
