"""Compressed files and tar archives, whole, damaged and hostile: bounded memory, nothing written, no silent loss."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from helpers.peak_memory import ingest_peak_mb
from helpers.thorough import some, spread

from tracetool.errors import IngestError
from tracetool.ingestion import IngestOptions, discover, ingest
from tracetool.readers.files import Archive, ByteStream
from tracetool.readers.files.tar_stream import TarStream

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _trace(rank: int, count: int = 30) -> bytes:
    events = [{"ph": "X", "cat": "kernel", "name": f"k{n}", "ts": 1732300000000000 + n, "dur": 1} for n in range(count)]
    about = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}}
    return json.dumps({**about, "traceEvents": events}).encode()


def _tar(members: dict[str, bytes], kind: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _all(path: Path, member: str = "") -> tuple[bytes, str | None]:
    stream = ByteStream(path, member)
    return b"".join(stream.blocks(1 << 16)), stream.broken


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda text: bytes(pa.compress(text, codec="zstd", asbytes=True)),
}


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_those_that_the_standard_library_finds(kind: int, packed: str, tmp_path: Path) -> None:
    long = "/".join(["folder" * 5] * 4) + "/rank0.json"
    members = {"a": b"", "b.json": b"x" * 511, "c": b"y" * 512, "ü/d": b"z" * 513, long: bytes(5000)}
    path = tmp_path / f"x.tar{packed}"
    path.write_bytes(PACKED[packed](_tar(members, kind)))
    archive = Archive(path)
    assert dict(archive.heads(1 << 20)) == members
    assert archive.trouble is None
    for name, content in members.items():
        assert _all(path, name) == (content, None)


@pytest.mark.parametrize("packed", PACKED)
def test_blocks_are_full_but_the_last_one(packed: str, tmp_path: Path) -> None:
    """What is compressed comes in parts of any length; who works on blocks pays for each of them."""
    text = random.Random(1).randbytes(3_000) * 1_000  # noqa: S311 - no secret
    path = tmp_path / f"x{packed}"
    path.write_bytes(PACKED[packed](text))
    for size in (1 << 16, 1 << 20, 1 << 22):
        blocks = list(ByteStream(path).blocks(size))
        assert b"".join(blocks) == text
        assert {len(block) for block in blocks[:-1]} <= {size}


def test_only_regular_files_are_members(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind in [
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("d", tarfile.CHRTYPE),
            ("f", tarfile.FIFOTYPE),
        ]:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        entry = tarfile.TarInfo("../../out.json")
        entry.size = len(_trace(0))
        archive.addfile(entry, io.BytesIO(_trace(0)))
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "x.tar").write_bytes(buffer.getvalue())
    run = ingest([folder / "x.tar"], folder / "x.run")
    assert run.rows("SELECT count(*) FROM events") == [(30,)]
    assert sorted(p.name for p in tmp_path.rglob("*") if "x.run" not in str(p)) == ["a", "b", "x.tar"]


def test_a_damaged_header_costs_its_member_only(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    whole = bytearray(_tar({"rank0.json": _trace(0), "mid": b"m" * 700, "rank1.json": _trace(1)}))
    at = whole.index(b"mid\0")
    whole[at + 20] ^= 0xFF
    path.write_bytes(whole)
    run = ingest([path], tmp_path / "x.run")
    assert run.rows("SELECT rank, count(*) FROM events GROUP BY rank ORDER BY rank") == [(0, 30), (1, 30)]
    ((reason,),) = run.rows("SELECT reason FROM sources WHERE status = 'failed'")
    assert f"the header at byte {at:,} of the archive is damaged" in reason
    with pytest.raises(IngestError, match="is damaged"):
        ingest([path], tmp_path / "y.run", options=IngestOptions(strict=True))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_an_archive_cut_off_gives_what_is_whole_and_says_so(share: float, tmp_path: Path) -> None:
    whole = _tar({"rank0.json": _trace(0), "rank1.json": _trace(1)})
    end = whole.rindex(b"}") + 1
    path = tmp_path / "x.tar"
    path.write_bytes(whole[: int(end * share)])
    run = ingest([path], tmp_path / "x.run")
    lost = run.manifest["failed"]
    assert [entry["path"] for entry in lost] == [str(path)]
    assert "ends inside" in lost[0]["reason"]
    with pytest.raises(IngestError, match="something is lost"):
        ingest([path], tmp_path / "y.run", options=IngestOptions(strict=True))


def test_headers_of_any_size_take_no_memory() -> None:
    """A long name of a declared terabyte, a negative size, endless sparse maps: the standard library keeps or loops."""

    class Endless:
        given = 0

        def __init__(self, start: bytes) -> None:
            self._start = io.BytesIO(start)

        def read(self, size: int, /) -> bytes:
            self.given += size
            return self._start.read(size) or (b"x" * size if self.given < 5 << 20 else b"")

    for kind, size in ((b"L", 1 << 40), (b"x", 1 << 40), (b"S", 10), (b"g", 1 << 33)):
        entry = tarfile.TarInfo("x")
        entry.type, entry.size = kind, size
        archive = TarStream(Endless(entry.tobuf(tarfile.GNU_FORMAT)))
        assert list(archive) == []
        assert archive.trouble is not None
    header = bytearray(tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 12
    header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 32)
    assert list(TarStream(io.BytesIO(bytes(header)))) == []


def test_random_damage_of_an_archive_raises_nothing(tmp_path: Path) -> None:
    rng = random.Random(7)  # noqa: S311
    whole = _tar({"rank0.json": _trace(0, 3), "a/b": b"x" * 100, "rank1.json": _trace(1, 3)}, tarfile.GNU_FORMAT)
    path = tmp_path / "x.tar"
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.choice([0, 0x80, 0xFF, 0x31, rng.randrange(256)])
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        archive = Archive(path)
        for name, _ in list(archive.heads(100)):
            _all(path, name)


def test_gzip_of_many_short_members(tmp_path: Path) -> None:
    """Each was handed the rest of the file anew: a megabyte took minutes."""
    path = tmp_path / "x.gz"
    members = [gzip.compress(b"%d," % n) for n in range(10_000)]
    path.write_bytes(b"".join(members) + bytes(1000))
    assert _all(path) == (b"".join(b"%d," % n for n in range(10_000)), None)


def test_what_follows_compressed_data_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(_trace(0)) + b"garbage")
    assert _all(path) == (_trace(0), "what follows the compressed data is none")
    run = ingest([path], tmp_path / "x.run")
    assert run.manifest["sources"][0]["dropped"] == {"data after a break (what follows the compressed data is none)": 1}


def test_damaged_gzip_gives_all_before_the_damage(tmp_path: Path) -> None:
    text = b"".join(b"%d " % (n * 7919 % 100_003) for n in range(60_000))
    packed = bytearray(gzip.compress(text))
    path = tmp_path / "x.gz"
    rng = random.Random(3)  # noqa: S311
    for _ in some(range(10), 1):
        at = rng.randrange(len(packed) // 4, len(packed) - 8)
        damaged = packed[:at] + bytes([packed[at] ^ 0x5A]) + packed[at + 1 :]
        path.write_bytes(damaged)
        # zlib gives what it has when it is fed byte by byte.
        inside, expected = zlib.decompressobj(31), bytearray()
        try:
            for byte in damaged:
                expected += inside.decompress(bytes([byte]))
        except zlib.error:
            pass
        found, broken = _all(path)
        assert broken is not None
        assert found[:at].startswith(text[: min(len(found), at) // 2])
        assert len(found) > len(expected) - 70_000


@spread("share", [0.1, 0.5, 0.95], [0.5])
def test_zstd_cut_or_damaged_is_told(share: float, tmp_path: Path) -> None:
    packed = bytearray(pa.compress(_trace(0, 20_000), codec="zstd", asbytes=True))
    path = tmp_path / "rank0.json.zst"
    at = int(len(packed) * share)
    for damaged in (packed[:at], packed[:at] + bytes(64) + packed[at + 64 :]):
        path.write_bytes(damaged)
        found, broken = _all(path)
        assert broken is not None
        assert _trace(0, 20_000).startswith(found[: len(found) // 2])


def test_compressed_archives_in_archives_are_left(tmp_path: Path) -> None:
    inner = gzip.compress(_tar({"rank0.json": _trace(0)}))
    path = tmp_path / "x.tar"
    path.write_bytes(_tar({"inner.tar.gz": inner, "rank1.json.gz": gzip.compress(_trace(1))}))
    found = discover([path])
    assert [source.source.member for source in found.sources] == ["rank1.json.gz"]
    assert [left.reason for left in found.left] == ["no trace"]


# Files of 60 MB take as little by default (test_hostile), read by the same blocks; here what is packed grows. Zeros go
# past the end of events where spaces do not: what is kept of bytes that are no event, alone and behind a header.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "size_mb", "limit_mb"),
    [("zeros", 100, 300), ("spaces", 50, 120), ("zeros in tar", 50, 120)],
)
def test_bombs_stay_small(kind: str, size_mb: int, limit_mb: int, tmp_path: Path) -> None:
    """A thousand times what is stored; reading takes 80 MB by itself, and the limit leaves no room to keep it."""
    head = b'{"schemaVersion": 1, "traceEvents": [' + b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1},'
    filling = (b"\0" if kind.startswith("zeros") else b" ") * (1 << 20)
    path = tmp_path / "rank0.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        if kind == "zeros in tar":
            entry = tarfile.TarInfo("rank0.json")
            entry.size = len(head) + size_mb * len(filling)
            file.write(entry.tobuf())
        file.write(head)
        for _ in range(size_mb):
            file.write(filling)
    assert ingest_peak_mb(path, tmp_path / "x.run") < limit_mb
