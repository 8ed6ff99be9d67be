"""Bytes of trace files, whatever their format: streams, archives, rows that wait on disk.

Bytes of a trace file, decompressed by content and in blocks, and what broke on the way.

A file is plain, gzip or zstd, or a member of a tar archive which may itself be compressed. Members are
read in place: nothing of an archive is ever written to disk, so its member names can lead nowhere.
"""

from __future__ import annotations

import zlib
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from tracetool.readers.files.tar_stream import TarStream
from tracetool.store.objects import place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers.files.tar_stream import Readable


_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_TAR_MARK = slice(257, 262)
_MEMBER_LIMIT = 100_000
_BLOCK = 1 << 18
_SHORT = 1 << 10
# Arrow tells damaged zstd data by OSError.
_BROKEN = (EOFError, OSError)

HEAD_BYTES = 1 << 14
"""How much of the beginning of a file is kept for all who ask what it is."""

_MOST_HEADS = 4096


class _Head(NamedTuple):
    """The first ``HEAD_BYTES`` of a file, and what a stream knows once they are read."""

    text: bytes
    broken: str | None
    is_plain: bool


_heads: ContextVar[dict[tuple[Path, str], _Head] | None] = ContextVar("_heads", default=None)


@contextmanager
def keeping_heads() -> Iterator[None]:
    """Within it the beginning of each of many files is read once, by whichever reader asks first what it is."""
    before = _heads.set({})
    try:
        yield
    finally:
        _heads.reset(before)


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
        inflater: What inflates gzip, with the interface of ``zlib``; by default the fastest there is.
    """

    def __init__(
        self,
        path: Path,
        member: str = "",
        advance: Callable[[int], None] | None = None,
        inflater: Any = None,
    ) -> None:
        self.name = place_of(path, member)
        self.broken: str | None = None
        self.is_plain = False
        self._path = path
        self._member = member
        self._advance = advance
        self._inflater = inflater or fastest_inflater()

    def blocks(self, size: int) -> Iterator[bytes]:
        """The decompressed bytes, ``size`` at a time; ends where the data breaks, and ``broken`` says why.

        Raises:
            OSError: If the file cannot be opened at all.
        """
        given = position = 0
        with self._path.open("rb") as raw:
            try:
                stream = _opened(raw, self._member, self._inflater)
                self.is_plain = isinstance(stream, _Ahead) and not self._member
                while block := stream.read(size):
                    if self._advance is not None:
                        self._advance(raw.tell() - position)
                        position = raw.tell()
                    given += len(block)
                    yield block
            except _BROKEN as error:
                self.broken = str(error) or type(error).__name__
        if self.broken is not None and self._inflater is not zlib:
            yield from self._rest(given, size)

    def _rest(self, given: int, size: int) -> Iterator[bytes]:
        """What is left ahead of the damage: zlib gives every byte of it, as faster ones do not."""
        with self._path.open("rb") as raw:
            try:
                stream = _opened(raw, self._member, zlib)
                while block := stream.read(size):
                    left, given = block[given:], max(0, given - len(block))
                    if left:
                        yield left
            except _BROKEN as error:
                self.broken = str(error) or type(error).__name__

    def head(self, size: int) -> bytes:
        """The first bytes, at most ``size``; empty if the file cannot be read."""
        heads = _heads.get()
        if heads is None or size > HEAD_BYTES:
            return self._first(size)
        kept = heads.get((self._path, self._member))
        if kept is None:
            kept = _Head(self._first(HEAD_BYTES), self.broken, self.is_plain)
            if len(heads) < _MOST_HEADS:
                heads[self._path, self._member] = kept
        self.is_plain = kept.is_plain
        # What breaks behind that much text was not met.
        self.broken = kept.broken if len(kept.text) < size else None
        return kept.text[:size]

    def _first(self, size: int) -> bytes:
        first = bytearray()
        try:
            with closing(cast("Any", self.blocks(size))) as blocks:
                for block in blocks:
                    first += block
                    if len(first) >= size:
                        break
        except OSError:
            return b""
        return bytes(first[:size])


class Archive:
    """The regular files of a tar archive (plain or compressed), in one pass.

    Attributes:
        trouble: What was wrong with it, as far as it was read; None if nothing.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.trouble: str | None = None
        self._path = path

    def heads(self, size: int) -> Iterator[tuple[str, bytes]]:
        """Name and first bytes (decompressed) of each member; those before the place where the archive breaks."""
        with self._path.open("rb") as raw:
            try:
                archive = TarStream(_decompressed(raw))
                for count, (name, content) in enumerate(archive):
                    if count == _MEMBER_LIMIT:
                        self.trouble = f"the archive has more than {_MEMBER_LIMIT:,} members: the rest was left"
                        return
                    yield name, _first(content, size)
                self.trouble = archive.trouble
            except _BROKEN as error:
                self.trouble = str(error) or type(error).__name__


def is_archive(path: Path) -> bool:
    """Whether a file is a tar archive, plain or compressed."""
    return opens_like_tar(ByteStream(path).head(512))


def opens_like_tar(head: bytes) -> bool:
    """Whether these are the first 512 bytes of a tar archive."""
    return head[_TAR_MARK] == b"ustar"


def _first(content: Readable, size: int) -> bytes:
    first = b""
    try:
        stream = _decompressed(content)
        while len(first) < size and (more := stream.read(size - len(first))):
            first += more
    except _BROKEN:
        pass  # the reader meets it again, and says so
    return first


@cache
def fastest_inflater() -> Any:
    """What inflates gzip fastest: isal three times as fast as zlib, where there is a build of it."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


def _opened(raw: IO[bytes], member: str, inflater: Any) -> Readable:
    stream = _decompressed(raw, inflater)
    if not member:
        return stream
    archive = TarStream(stream)
    for name, content in archive:
        if name == member:
            return _decompressed(content, inflater)
    raise EOFError(archive.trouble or f"it has no member {member!r}")


def _decompressed(raw: Readable, inflater: Any = zlib) -> Readable:
    ahead = _Ahead(raw)
    if ahead.mark[:2] == _GZIP:
        return _Gunzip(ahead, inflater)
    if ahead.mark == _ZSTD:
        import pyarrow as pa

        return cast("Readable", pa.CompressedInputStream(pa.PythonFile(ahead, mode="r"), "zstd"))
    return ahead


class _Ahead:
    """A stream whose first four bytes were looked at."""

    closed = False

    def __init__(self, raw: Readable) -> None:
        self._raw = raw
        self.mark = self._rest = raw.read(4)

    def read(self, size: int = _BLOCK, /) -> bytes:
        ahead, self._rest = self._rest, b""
        return ahead + self._raw.read(size - len(ahead)) if len(ahead) < size else ahead


class _Gunzip:
    """Gzip, one or several members; with zlib it gives every byte before the place where it breaks."""

    def __init__(self, raw: Readable, inflater: Any) -> None:
        self._zlib = inflater
        self._raw = raw
        self._inside = self._zlib.decompressobj(31)
        self._text = b""
        self._at = 0
        self._feed = _SHORT
        self._error: str | None = None

    def read(self, size: int, /) -> bytes:
        # What is inflated comes in short parts, and a short block costs its reader as much as a long one.
        parts: list[bytes] = []
        wanted = size
        while wanted and self._error is None:
            try:
                part = self._part(wanted)
            except _BROKEN as error:
                self._error = str(error) or type(error).__name__
                break
            if not part:
                break
            parts.append(part)
            wanted -= len(part)
        if self._error is not None and not parts:
            raise EOFError(self._error)
        return b"".join(parts)

    def _part(self, size: int) -> bytes:
        """What comes next, at most ``size``; empty at the end, or once it is known what broke."""
        while self._error is None:
            if self._at == len(self._text):
                self._text, self._at = self._raw.read(_BLOCK), 0
            if self._inside.eof and not self._next_member():
                return b""
            if not self._text:
                self._error = "the compressed data ends early"
            # Files of many short members: what is handed over and comes back unused is copied each time.
            part = self._text[self._at : self._at + self._feed]
            self._feed = min(_BLOCK, 2 * self._feed)
            inflated = self._inflated(part, size)
            # At the end of a member zlib has what follows in both.
            left = self._inside.unused_data if self._inside.eof else self._inside.unconsumed_tail
            self._at += len(part) - len(left)
            if inflated:
                return inflated
        return b""

    def _inflated(self, part: bytes, size: int) -> bytes:
        before = self._inside.copy() if self._zlib is zlib else None
        try:
            inflated: bytes = self._inside.decompress(part, size)
        except Exception as error:
            self._error = f"the compressed data is damaged: {error}"
            return _before_damage(before, part)
        return inflated

    def _next_member(self) -> bool:
        """Whether another member follows; zeros may pad the file."""
        while True:
            if len(self._text) - self._at < len(_GZIP):
                self._text, self._at = self._text[self._at :] + self._raw.read(_BLOCK), 0
            if self._text.startswith(_GZIP, self._at):
                self._inside = self._zlib.decompressobj(31)
                self._feed = _SHORT
                return True
            rest = self._text[self._at :]
            if rest.strip(b"\0"):
                raise EOFError("what follows the compressed data is none")
            if not rest:
                return False
            self._text, self._at = b"", 0


def _before_damage(inside: Any, part: bytes) -> bytes:
    """What a part of the compressed data gives before the place where it is damaged."""
    inflated = b""
    try:
        for at in range(0, len(part) if inside is not None else 0, 64):
            inflated += inside.decompress(part[at : at + 64])
    except Exception:
        return inflated
    return inflated
