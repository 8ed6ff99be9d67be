"""What there is to read: sources among files and folders, who they are, and what is left and why."""

from __future__ import annotations

import hashlib
import itertools
import re
import stat
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import xxhash

from tracetool.errors import DuplicateRank, IngestError, MalformedTrace, MissingRank, UnknownFormat
from tracetool.paths import is_local
from tracetool.readers import READERS, Identity, Left, Source
from tracetool.readers.byte_stream import ByteStream
from tracetool.store import MANIFEST, is_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.IGNORECASE)
_STREAMING = ("kineto",)
"""Readers that need a file once from front to back, so that it may lie elsewhere."""

UNRANKED = -1
"""Stands for the rank of a source that is no single rank's."""


@dataclass(frozen=True, slots=True)
class Found:
    """A source with its reader, rank, identity and a digest of its content.

    Attributes:
        source: What is read together.
        reader: Name of the reader that takes it.
        rank: Global rank; UNRANKED for a source that is no single rank's.
        identity: Who it is; its rank is None where the trace does not say.
        digest: XXH3 (128 bits) of the bytes of its files.
        rank_from: Where the rank was taken from, if not from the trace.
    """

    source: Source
    reader: str
    rank: int
    identity: Identity
    digest: str
    rank_from: str | None = None

    @property
    def label(self) -> str:
        """Path, and the member of it."""
        return f"{self.source.path}:{self.source.member}" if self.source.member else str(self.source.path)


@dataclass(slots=True)
class Discovery:
    """Everything among the files: sources sorted by rank, sources that failed, and files that were left."""

    found: list[Found] = field(default_factory=list)
    failed: list[Left] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


def discover(paths: Sequence[Path], ranks: Mapping[str, int] | None = None) -> Discovery:
    """Find the sources in files and folders, and who they are.

    Args:
        paths: Trace files, and folders to walk.
        ranks: Path (or its end) to rank, for traces that do not say theirs.

    Raises:
        IngestError: If a path does not exist, or two sources disagree about the size of the job.
        UnknownFormat: If no reader takes a file that was named, or there is no source at all.
        DuplicateRank: If two sources claim one rank.
        MissingRank: If a source does not say its rank.
        MalformedTrace: If the only sources are damaged beyond reading.
    """
    result = Discovery()
    files, named = _walk(paths, result)
    taken: set[Path] = set()
    identified: list[tuple[Source, str, Identity]] = []
    for name in READERS.names():
        reader = READERS.get(name)
        finding = reader.find([f for f in files if f not in taken and (is_local(f) or name in _STREAMING)])
        result.left += finding.left
        result.failed += finding.failed
        for source in finding.sources:
            taken.update(source.files)
            try:
                identified.append((source, name, reader.identify(source)))
            except MalformedTrace as error:
                result.failed.append(Left(source.path, error.message))
            except OSError as error:
                result.failed.append(Left(source.path, f"{source.path} cannot be read: {error}"))
    known = taken | {left.path for left in (*result.left, *result.failed)}
    for file in files:
        if file not in known and not is_local(file):
            result.left.append(Left(file, "no torch.profiler trace; other formats are read from this machine only"))
        elif file not in known:
            broken, reason = _why_unknown(file)
            (result.failed if broken else result.left).append(Left(file, reason))
    _check_named([f for f in named if f not in known])
    if not identified:
        raise _nothing(result, len(files), paths)
    result.found = sorted(
        _with_ranks(identified, ranks or {}), key=lambda f: (f.rank, str(f.source.path), f.source.member)
    )
    _check_job(result.found)
    return result


def digest_of(found: Sequence[Found]) -> str:
    """SHA-256 over the content of all sources: the same traces give the same digest anywhere."""
    return hashlib.sha256("".join(f"{f.rank}:{f.digest}\n" for f in found).encode()).hexdigest()


def _walk(paths: Sequence[Path], result: Discovery) -> tuple[list[Path], list[Path]]:
    """All files below the paths, and those that were named themselves; what cannot be read is told."""
    files: list[Path] = []
    named: list[Path] = []
    for path in paths:
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError) and not path.is_symlink()
            why = "does not exist" if missing else f"cannot be read: {getattr(error, 'strerror', None) or error}"
            raise IngestError(f"{path} {why}.") from error
        if stat.S_ISDIR(mode):
            files += _below(path, result)
        elif stat.S_ISREG(mode):
            files.append(path)
            named.append(path)
        else:
            raise UnknownFormat(
                f"{path} is no regular file but a pipe, socket or device.", hint="write the trace to a file first"
            )
    readable = [file for file in dict.fromkeys(files) if _is_readable(file, result)]
    return readable, [file for file in named if file in readable]


def _below(folder: Path, result: Discovery) -> list[Path]:
    """The files of a folder and of those in it, each once; links are followed, Runs are not entered."""
    files: dict[tuple[int, int], Path] = {}
    links: list[Path] = []
    entered: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        here = waiting.pop(0)
        try:
            status = here.stat()
            entries = sorted(here.iterdir())
        except OSError as error:
            result.failed.append(Left(here, f"{here} cannot be read: {error.strerror}"))
            continue
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        if _holds_run(here):
            result.left.append(Left(here, "a Run"))
            continue
        for entry in entries:
            if entry.is_symlink():
                links.append(entry)
            elif entry.is_dir():
                waiting.append(entry)
            else:
                _take(entry, files, result)
        if not waiting:
            # What is there itself goes first, so that it bears its own name.
            waiting = [link for link in links if link.is_dir()]
            for link in links:
                if not link.is_dir():
                    _take(link, files, result)
            links = []
    return sorted(files.values())


def _take(entry: Path, files: dict[tuple[int, int], Path], result: Discovery) -> None:
    try:
        status = entry.stat()
    except OSError as error:
        result.left.append(Left(entry, f"cannot be read: {error.strerror}"))
        return
    known = files.setdefault((status.st_dev, status.st_ino), entry) if stat.S_ISREG(status.st_mode) else None
    if known is None:
        result.left.append(Left(entry, "no regular file"))
    elif known != entry and entry.is_symlink():
        result.left.append(Left(entry, f"a link to {known.name}"))
    elif known != entry:
        files[status.st_dev, -len(files)] = entry


def _holds_run(folder: Path) -> bool:
    """Whether a folder is a Run: one that holds the tool's own manifest."""
    if not is_run(folder):
        return False
    try:
        with (folder / MANIFEST).open("rb") as file:
            return b'"schema_version"' in file.read(1 << 24)
    except OSError:
        return False


def _is_readable(file: Path, result: Discovery) -> bool:
    try:
        with file.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        result.failed.append(Left(file, f"{file} cannot be read: {error.strerror}"))
        return False
    return True


def _why_unknown(file: Path) -> tuple[bool, str]:
    """Whether a file that no reader takes is broken, and what is wrong with it."""
    if file.stat().st_size == 0:
        return False, "empty (0 bytes)"
    stream = ByteStream(file)
    head = stream.head(1 << 12)
    if stream.broken:
        return True, f"{file}: {stream.broken}"
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0[")):
        return True, f"{file} is UTF-16 text: save it as UTF-8"
    if head[:1] in b"{[" and b"\0" in head:
        return True, f"{file} holds NUL bytes: a download or an editor changed it"
    return False, "no trace of a known format"


def _check_named(unknown: list[Path]) -> None:
    for file in unknown:
        if file.stat().st_size == 0:
            raise UnknownFormat(f"{file} is empty.", hint="record the trace again")
        broken, reason = _why_unknown(file)
        raise UnknownFormat(
            f"{reason}." if broken else f"{file} is no trace of a known format.",
            hint="tracetool reads torch.profiler (Kineto) JSON, Ascend msprof and torch_npu output, and NDTimeline",
        )


def _nothing(result: Discovery, count: int, paths: Sequence[Path]) -> IngestError:
    """Why there is nothing to read."""
    if result.failed:
        return MalformedTrace(result.failed[0].reason)
    told = "; ".join(f"{n} {reason}" for reason, n in Counter(left.reason for left in result.left).most_common(3))
    return UnknownFormat(
        f"no trace found in {', '.join(map(str, paths))} ({count} files looked at{': ' + told if told else ''}).",
        hint="tracetool reads torch.profiler (Kineto) JSON, Ascend msprof and torch_npu output, and NDTimeline",
    )


def _with_ranks(identified: list[tuple[Source, str, Identity]], ranks: Mapping[str, int]) -> list[Found]:
    digests: dict[tuple[Path, ...], str] = {}
    for source, _, _ in identified:
        if source.files not in digests:
            digests[source.files] = _digest(source)
    alone = sum(source.ranked for source, _, _ in identified) == 1
    return [
        _ranked(Found(source, reader, UNRANKED, identity, digests[source.files]), ranks, alone=alone)
        for source, reader, identity in identified
    ]


def _ranked(item: Found, ranks: Mapping[str, int], *, alone: bool) -> Found:
    if not item.source.ranked:
        return item
    for name, rank in ranks.items():
        if item.label == name or item.label.endswith(f"/{name}"):
            return replace(item, rank=rank, rank_from="--rank")
    if item.identity.rank is not None:
        return replace(item, rank=item.identity.rank)
    match = _RANK_IN_NAME.search(item.source.member) or _RANK_IN_NAME.search(item.source.path.name)
    if match:
        return replace(item, rank=int(match[1]), rank_from="the file name")
    if alone:
        return replace(item, rank=0, rank_from="being the only one")
    raise MissingRank(
        f"{item.label} does not say its rank.",
        hint="torch.distributed was not initialised when it was recorded; name the file rank0.json, rank1.json ..., "
        f"or say --rank {item.source.path.name}=0",
    )


def _check_job(found: list[Found]) -> None:
    ranked = [f for f in found if f.source.ranked]
    for one, two in itertools.pairwise(ranked):
        if one.rank == two.rank:
            raise DuplicateRank(f"{one.label} and {two.label} both say rank {one.rank}.", hint="name only one of them")
    sizes: dict[int, str] = {}
    for item in ranked:
        if item.identity.world_size is not None:
            sizes.setdefault(item.identity.world_size, item.label)
    if len(sizes) > 1:
        told = ", ".join(f"{size} ranks ({label})" for size, label in sorted(sizes.items()))
        raise IngestError(
            f"the sources disagree about the size of the job: {told}.", hint="name the traces of one job only"
        )


def _digest(source: Source) -> str:
    # XXH3 reads ten times as fast as SHA-256 and tells contents apart as well; nobody attacks their own cache.
    total = xxhash.xxh3_128()
    for file in source.files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
        total.update(b"\0end of file")
    return total.hexdigest()
