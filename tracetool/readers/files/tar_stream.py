"""Regular files of a tar archive, read in one pass and in bounded memory; nothing is ever written.

The standard library's reader keeps headers of any size in memory, loops on negative ones and stops at the
first damaged one. This one passes over what it does not need: links, devices, sparse files, extended
headers of more than a megabyte, and damaged headers up to the next whole one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 512
_PIECE = 1 << 18
_HEADER_LIMIT = 1 << 20
_REGULAR = (b"0", b"\0", b"7")
_SPARSE = b"S"


class Readable(Protocol):
    """A stream of bytes, read forward."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


class TarStream:
    """The members of an archive; iterate once, and read a member before the next one is asked for.

    Attributes:
        trouble: What was wrong with the archive, as far as it was read; None if nothing.

    Args:
        stream: The archive, decompressed.
    """

    def __init__(self, stream: Readable) -> None:
        self.trouble: str | None = None
        self._stream = stream
        self._at = 0

    def __iter__(self) -> Iterator[tuple[str, Readable]]:
        """Name and content of every regular file."""
        long_name, is_sparse, size_said = "", False, None
        while (header := self._header()) is not None:
            size = header.size if size_said is None else size_said
            if header.kind in (b"x", b"L"):
                text = self._text(size)
                if header.kind == b"L":
                    long_name = _decoded(text)
                else:
                    said = _records(text)
                    long_name = _decoded(said.get(b"path", b"")) or long_name
                    is_sparse = any(key.startswith(b"GNU.sparse.") for key in said)
                    size_said = _whole(said.get(b"size", b""))
                continue
            if header.kind == b"g":
                self._pass(size)
                continue
            content = _Content(self, size)
            if header.kind in _REGULAR and not is_sparse:
                yield long_name or header.name, content
            elif header.kind == _SPARSE:
                self._pass_sparse_map(header.block)
            if not content.passed():
                self.trouble = "the archive ends inside a member"
                return
            long_name, is_sparse, size_said = "", False, None

    def _header(self) -> _Header | None:
        """The next whole header; None at the end."""
        damaged = False
        while True:
            at = self._at
            block = self.take(_BLOCK)
            if not block:
                if not damaged:
                    self.trouble = self.trouble or "the archive ends without its closing mark"
                return None
            if len(block) < _BLOCK:
                self.trouble = self.trouble or "the archive ends inside a header"
                return None
            if not damaged and not any(block):
                return None
            header = _parsed(block)
            if header is not None:
                return header
            if not damaged:
                self.trouble = self.trouble or f"the header at byte {at:,} of the archive is damaged"
                damaged = True

    def _text(self, size: int) -> bytes:
        content = _Content(self, size)
        text = content.read(size) if size <= _HEADER_LIMIT else b""
        content.passed()
        return text

    def _pass(self, size: int) -> None:
        _Content(self, size).passed()

    def _pass_sparse_map(self, block: bytes) -> None:
        more = block[482]
        while more and len(block := self.take(_BLOCK)) == _BLOCK:
            more = block[504]

    def take(self, size: int) -> bytes:
        """The next bytes of the archive; fewer only at its end."""
        # Nothing is asked for by none: to zlib a limit of 0 is no limit. Larger pieces are copied as they grow.
        pieces: list[bytes] = []
        while size > 0 and (piece := self._stream.read(min(size, _PIECE))):
            pieces.append(piece)
            size -= len(piece)
        taken = b"".join(pieces)
        self._at += len(taken)
        return taken


class _Content:
    """The bytes of one member."""

    def __init__(self, archive: TarStream, size: int) -> None:
        self._archive = archive
        self._left = size
        self._padding = -size % _BLOCK

    def read(self, size: int, /) -> bytes:
        wanted = min(size, self._left)
        if wanted <= 0:
            return b""  # nothing, which zlib would take for no limit
        taken = self._archive.take(wanted)
        if not taken:
            raise EOFError("the archive ends inside this member")
        self._left -= len(taken)
        return taken

    def passed(self) -> bool:
        """Go behind it; whether all of it was there."""
        left = self._left + self._padding
        self._left = self._padding = 0
        while left > 0:
            taken = self._archive.take(min(left, _PIECE))
            if not taken:
                return False
            left -= len(taken)
        return True


@dataclass(frozen=True, slots=True)
class _Header:
    name: str
    size: int
    kind: bytes
    block: bytes


def _parsed(block: bytes) -> _Header | None:
    """A header whose checksum holds, or None."""
    said = _octal(block[148:156])
    unsigned = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    signed = unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
    size = _octal(block[124:136])
    if size is None or said not in (unsigned, signed):
        return None
    name = _decoded(block[:100])
    # GNU's own format keeps other things where the standard has the front of a long name.
    if block[257:263] == b"ustar\0" and (prefix := _decoded(block[345:500])):
        name = f"{prefix}/{name}"
    return _Header(name, size, block[156:157], block)


def _octal(field: bytes) -> int | None:
    """A number in octal digits, or (large ones) in binary; None if it is none or negative."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        return None


def _whole(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 20 else None


def _decoded(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _records(text: bytes) -> dict[bytes, bytes]:
    """Records of an extended header: length, blank, key, equals sign, value, line end."""
    records: dict[bytes, bytes] = {}
    while text:
        digits, _, rest = text.partition(b" ")
        length = _whole(digits) if len(digits) < 10 else None
        if length is None or not len(digits) + 1 < length <= len(text):
            break
        key, equals, value = rest[: length - len(digits) - 1].removesuffix(b"\n").partition(b"=")
        if equals:
            records[key] = value
        text = text[length:]
    return records
