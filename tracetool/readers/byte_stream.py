"""Bytes of a trace file, decompressed by content and in blocks, and what broke on the way.

A file is plain, gzip or zstd, or a member of a tar archive which may itself be compressed. Members are
read in place: nothing of an archive is ever written to disk, so its member names can lead nowhere.
"""

from __future__ import annotations

import tarfile
import zlib
from contextlib import ExitStack, closing
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_TAR_MARK = slice(257, 262)
_MEMBER_LIMIT = 100_000
_BLOCK = 1 << 18
_BROKEN = (EOFError, tarfile.TarError, OSError)


class ByteStream:
    """Blocks of one trace file or archive member; used as an iterator, once.

    Attributes:
        name: What to call it in messages.
        broken: Why the data ended early, or None.
        is_plain: Whether the text is the file as it lies on disk; known once reading began.

    Args:
        path: The file.
        member: Name of a member if the file is an archive.
        advance: Called with the bytes of the file (as it lies on disk) consumed.
    """

    def __init__(self, path: Path, member: str = "", advance: Callable[[int], None] | None = None) -> None:
        self.name = f"{path}:{member}" if member else str(path)
        self.broken: str | None = None
        self.is_plain = False
        self._path = path
        self._member = member
        self._advance = advance

    def blocks(self, size: int) -> Iterator[bytes]:
        """The decompressed bytes, ``size`` at a time; ends where the data breaks, and ``broken`` says why.

        Raises:
            OSError: If the file cannot be opened at all.
        """
        with ExitStack() as stack:
            raw = stack.enter_context(self._path.open("rb"))
            position = 0
            try:
                stream = _opened(raw, self._member, stack)
                self.is_plain = isinstance(stream, _Ahead) and not self._member
                while block := stream.read(size):
                    if self._advance is not None:
                        self._advance(raw.tell() - position)
                        position = raw.tell()
                    yield block
            except _BROKEN as error:
                self.broken = str(error) or type(error).__name__

    def head(self, size: int) -> bytes:
        """The first bytes, at most ``size``; empty if the file cannot be read."""
        found = bytearray()
        try:
            with closing(cast("Any", self.blocks(size))) as blocks:
                for block in blocks:
                    found += block
                    if len(found) >= size:
                        break
        except OSError:
            return b""
        return bytes(found[:size])


def members(path: Path) -> list[str]:
    """Names of the regular files in a tar archive (plain or compressed); empty if it is none.

    An archive that breaks off gives the members before the break.
    """
    head = ByteStream(path).head(512)
    if head[_TAR_MARK] != b"ustar":
        return []
    names: list[str] = []
    with ExitStack() as stack:
        try:
            inner = _decompressed(stack.enter_context(path.open("rb")))
            for member in stack.enter_context(_archive(inner)):
                if member.isfile():
                    names.append(member.name)
                if len(names) >= _MEMBER_LIMIT:
                    break
        except _BROKEN:
            pass
    return list(dict.fromkeys(names))


def _opened(raw: IO[bytes], member: str, stack: ExitStack) -> _Readable:
    stream = _decompressed(raw)
    if not member:
        return stream
    archive = stack.enter_context(_archive(stream))
    for entry in archive:
        if entry.isfile() and entry.name == member and (content := archive.extractfile(entry)) is not None:
            return _decompressed(content)
    raise tarfile.ReadError(f"it has no member {member!r}")


def _archive(stream: _Readable) -> tarfile.TarFile:
    return tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|")


def _decompressed(raw: _Readable) -> _Readable:
    ahead = _Ahead(raw)
    if ahead.mark[:2] == _GZIP:
        return _Gunzip(ahead)
    if ahead.mark == _ZSTD:
        import pyarrow as pa

        return cast("_Readable", pa.CompressedInputStream(pa.PythonFile(ahead, mode="r"), "zstd"))
    return ahead


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""


class _Ahead:
    """A stream whose first four bytes were looked at."""

    closed = False

    def __init__(self, raw: _Readable) -> None:
        self._raw = raw
        self.mark = self._rest = raw.read(4)

    def read(self, size: int = _BLOCK, /) -> bytes:
        found, self._rest = self._rest, b""
        return found + self._raw.read(size - len(found)) if len(found) < size else found


class _Gunzip:
    """Gzip, one or several members, that gives every byte before the place where it breaks."""

    def __init__(self, raw: _Readable) -> None:
        try:
            self._zlib: Any = import_module("isal.isal_zlib")  # the extra fast-gzip: about three times as fast
        except ImportError:
            self._zlib = zlib
        self._raw = raw
        self._inside = self._zlib.decompressobj(31)
        self._started = False

    def read(self, size: int, /) -> bytes:
        while True:
            text = self._inside.unconsumed_tail or self._raw.read(_BLOCK)
            if self._inside.eof:
                text = self._inside.unused_data + text
                if not text.startswith(_GZIP):  # padding after the last member
                    return b""
                self._inside = self._zlib.decompressobj(31)
            if not text:
                if self._started:
                    raise EOFError("the compressed data ends early")
                return b""
            self._started = True
            try:
                found: bytes = self._inside.decompress(text, size)
            except Exception as error:
                raise EOFError(f"the compressed data is damaged: {error}") from error
            if found:
                return found
