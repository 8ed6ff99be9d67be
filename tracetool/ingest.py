"""From trace files to a Run: discover, identify, read, write."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tracetool.errors import DuplicateRank, IngestError, MissingRank, StoreError, UnknownFormat
from tracetool.readers import READERS, Identity, Reader, Source, SourceReport, rows_table
from tracetool.store import Run, RunWriter, is_run
from tracetool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

_RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)


class Progress(Protocol):
    """Told about bytes read; the command line shows a bar."""

    def start(self, total_bytes: int) -> None:
        """Reading begins."""

    def advance(self, count: int) -> None:
        """So many more bytes of the files were consumed."""


class Silent:
    """No progress shown."""

    def start(self, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, count: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Found:
    """A source with its reader, rank, identity and the SHA-256 of its content.

    The rank is the identity's, or where the trace has none (``identity.rank`` is None) the file name's.
    """

    source: Source
    reader: Reader
    rank: int
    identity: Identity
    digest: str


def discover(paths: Sequence[Path]) -> list[Found]:
    """Find the sources in files and folders, and who they are, sorted by rank.

    Raises:
        IngestError: If a path does not exist, is empty, or holds nothing that a reader takes.
        DuplicateRank: If two sources claim one rank.
        MissingRank: If a source does not say its rank.
    """
    files = _walk(paths)
    taken: set[Path] = set()
    found: list[Found] = []
    for name in READERS.names():
        reader = READERS.get(name)
        for source in reader.find([f for f in files if f not in taken]).sources:
            taken.update(source.files)
            found.append(_identified(source, reader))
    if not found:
        empty = [f for f in files if f.stat().st_size == 0]
        if empty:
            raise UnknownFormat(f"{empty[0]} is empty.", hint="record the trace again")
        named = ", ".join(str(p) for p in paths)
        raise UnknownFormat(
            f"no trace found in {named} ({len(files)} files looked at).",
            hint="tracetool reads torch.profiler (Kineto) JSON and torch_npu *_ascend_pt folders",
        )
    found.sort(key=lambda f: (f.rank, str(f.source.path)))
    for one, two in itertools.pairwise(found):
        if one.rank == two.rank:
            raise DuplicateRank(
                f"{one.source.path} and {two.source.path} both say rank {one.rank}.",
                hint="name only one of them",
            )
    sizes = {f.identity.world_size for f in found}
    if len(sizes) > 1:
        raise IngestError(
            f"the sources disagree about the size of the job: {sorted(sizes)} ranks.",
            hint="name the traces of one job only",
        )
    return found


def digest_of(found: Sequence[Found]) -> str:
    """SHA-256 over the content of all sources: the same traces give the same digest anywhere."""
    return hashlib.sha256("".join(f"{f.rank}:{f.digest}\n" for f in found).encode()).hexdigest()


def ingest(
    paths: Sequence[Path | str], output: Path | str, *, force: bool = False, progress: Progress | None = None
) -> Run:
    """Read traces into a new Run.

    Args:
        paths: Trace files, or folders to look through.
        output: Folder of the Run.
        force: Replace an existing Run.
        progress: Told about bytes read.

    Returns:
        The Run, opened.

    Raises:
        IngestError: If the traces cannot be read; nothing is written then.
        AlreadyExists: If the output exists.
    """
    found = discover([Path(p) for p in paths])
    return write_run(found, Path(output), force=force, progress=progress or Silent())


def write_run(found: Sequence[Found], output: Path, *, force: bool, progress: Progress) -> Run:
    """Read discovered sources into a new Run."""
    progress.start(sum(f.source.size_bytes for f in found))
    with RunWriter(output, force=force) as writer:
        reports: list[dict[str, Any]] = []
        rows: list[tuple[object, ...]] = []
        for number, item in enumerate(found):
            report = SourceReport()
            for table, batch in item.reader.read(
                item.source, item.rank, item.identity, frozenset(), report, progress.advance
            ):
                writer.write(table, batch)
            if report.rows == 0:
                raise IngestError(
                    f"{item.source.path} holds no events.",
                    hint="export the trace inside on_trace_ready, before the profiler's context closes",
                )
            rows.append(_source_row(number, item, report))
            reports.append(_report(item, report))
        writer.write("sources", rows_table("sources", rows))
        writer.write("ranks", rows_table("ranks", [_rank_row(n, f) for n, f in enumerate(found)]))
        writer.write("groups", rows_table("groups", [g for f in found for g in _group_rows(f)]))
        writer.commit(_manifest(found, reports))
    return Run(output)


def cached_run(paths: Sequence[Path], progress: Progress) -> Run:
    """The Run of these traces, from the user's cache if the same content was read before.

    The cache is ``$TRACETOOL_CACHE``, else ``tracetool`` under ``$XDG_CACHE_HOME`` or ``~/.cache``; its
    entries are named by the digests of the traces and of the tool's code, so that no change of the tool
    answers from what it read before.
    """
    found = discover(paths)
    base = os.environ.get("TRACETOOL_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracetool"
    folder = Path(base).expanduser() if base else default
    target = folder / f"{digest_of(found)[:24]}-{_code_digest()[:8]}.run"
    name = " ".join(str(path) for path in paths)
    try:
        return Run(target, name=name)
    except StoreError:
        # Absent, damaged or of another schema: the cache is ours to fill anew.
        if not is_run(target):
            shutil.rmtree(target, ignore_errors=True)
    try:
        write_run(found, target, force=True, progress=progress)
    except StoreError as error:
        hint = "set $TRACETOOL_CACHE to a folder that can be written, or ingest to a Run first"
        raise StoreError(f"the cache cannot be used: {error.message}", hint=hint) from error
    return Run(target, name=name)


def _walk(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise IngestError(f"{path} does not exist.")
        if path.is_dir():
            files += sorted(f for f in path.rglob("*") if f.is_file())
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def _identified(source: Source, reader: Reader) -> Found:
    identity = reader.identify(source)
    rank = identity.rank
    if rank is None and (match := _RANK_IN_NAME.search(source.path.name)):
        rank = int(match[1])
    if rank is None:
        raise MissingRank(
            f"{source.path} does not say its rank.",
            hint="torch.distributed was not initialised when it was recorded; name the file rank0.json, rank1.json ...",
        )
    return Found(source, reader, rank, identity, _digest(source))


def _digest(source: Source) -> str:
    total = hashlib.sha256()
    for file in source.files:
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()


def _code_digest() -> str:
    """SHA-256 over the tool's own files: two installs that may read or reconstruct differently differ in it."""
    package = Path(__file__).parent
    total = hashlib.sha256()
    for file in sorted(f for f in package.rglob("*") if f.suffix in (".py", ".sql")):
        total.update(f"{file.relative_to(package).as_posix()}\n".encode())
        total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _source_row(number: int, item: Found, report: SourceReport) -> tuple[object, ...]:
    return (
        number, str(item.source.path), item.reader.name, item.digest, item.source.size_bytes,
        item.rank, report.rows, report.dropped.total(), report.repaired.total(), 0,
    )  # fmt: skip


def _rank_row(number: int, item: Found) -> tuple[object, ...]:
    who = item.identity
    places = {
        g.description: g.ranks.index(item.rank)
        for g in who.groups
        if g.description in ("pp", "dp", "tp") and item.rank in g.ranks
    }
    return (
        item.rank, number, who.world_size, *(places.get(dimension) for dimension in ("pp", "dp", "tp")),
        who.host, who.device, who.device_name, who.sm_count, who.hbm_bytes,
    )  # fmt: skip


def _group_rows(item: Found) -> list[tuple[object, ...]]:
    return [(item.rank, g.name, g.description, list(g.ranks)) for g in item.identity.groups]


def _report(item: Found, report: SourceReport) -> dict[str, Any]:
    notes = list(report.notes)
    if item.identity.rank is None:
        notes.insert(0, f"rank {item.rank} taken from the file name")
    return {
        "path": str(item.source.path),
        "rank": item.rank,
        "reader": item.reader.name,
        "dropped": dict(report.dropped),
        "repaired": dict(report.repaired),
        "skipped": dict(report.skipped),
        "notes": notes,
    }


def _manifest(found: Sequence[Found], reports: list[dict[str, Any]]) -> dict[str, Any]:
    recorded = [f.rank for f in found]
    # A trace without distributed information says 1, whatever the rank in its name.
    world = max(found[0].identity.world_size, recorded[-1] + 1)
    return {
        "tool_version": __version__,
        "digest": digest_of(found),
        "world_size": world,
        "missing_ranks": sorted(set(range(world)) - set(recorded)),
        "sources": reports,
    }
