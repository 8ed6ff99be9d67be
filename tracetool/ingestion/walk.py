"""The files below paths, and what is wrong with those that no reader takes."""

from __future__ import annotations

import difflib
import re
import stat
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tracetool.errors import IngestError, NotARun, Option, UnknownFormat
from tracetool.readers import Left
from tracetool.readers.files import ByteStream, opens_like_tar
from tracetool.store import is_local
from tracetool.store.objects import Objects, place_of, reaching
from tracetool.store.place import MANIFEST, is_run, is_unfinished

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tracetool.model.notice import Progress

# An empty file of these names was a trace, and is lost.
_TRACE_SUFFIXES = (".json", ".gz", ".zst", ".tar", ".db", ".parquet")


def walk(
    paths: Sequence[Path], failed: list[Left], left: list[Left], progress: Progress
) -> tuple[list[Path], list[Path]]:
    """All files below the paths, and those that were named themselves.

    Args:
        paths: Files and folders.
        failed: Gets what cannot be read.
        left: Gets what is no file to read, such as Runs.
        progress: Told about bytes copied from object stores.

    Raises:
        IngestError: If a path does not exist.
        NotARun: If a folder is a Run without its manifest.
        UnknownFormat: If a path is a pipe, socket or device, or a Run.
    """
    files: list[Path] = []
    named: list[Path] = []
    for given in paths:
        try:
            path = given if is_local(given) else _copied(given, left, progress)
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            missing = isinstance(error, FileNotFoundError) and not (is_local(given) and given.is_symlink())
            why = "does not exist" if missing else f"cannot be read: {getattr(error, 'strerror', None) or error}"
            hint = _near(given) if missing else None
            raise IngestError(f"{given} {why}.", hint=hint) from error
        if stat.S_ISDIR(mode) and _holds_run(path):
            raise UnknownFormat(f"{given} is a Run already.", hint=f"use it: tracetool info {given}")
        if stat.S_ISDIR(mode):
            below = _below(path, failed, left)
            tables = any(file.suffix == ".parquet" for file in below)
            if tables and is_unfinished([file.relative_to(path).as_posix() for file in below]):
                raise NotARun(
                    f"{given} has the tables of a Run and no {MANIFEST}: it is not whole.",
                    hint=f"ingest the traces again, to another name than {given}",
                )
            files += below
        elif stat.S_ISREG(mode):
            files.append(path)
            named.append(path)
        else:
            raise UnknownFormat(
                f"{path} is no regular file but a pipe, socket or device.", hint="write the trace to a file first"
            )
    readable = [file for file in dict.fromkeys(files) if _is_readable(file, failed)]
    return readable, [file for file in named if file in readable]


_SMALL_BYTES = 4 << 20
# gzip, zstd, SQLite, Parquet, a pickle, UTF-8's and UTF-16's marks.
_TRACE_MARKS = (
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
    b"SQLite format 3",
    b"PAR1",
    b"\x80",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"\xfe\xff",
)
_HEAD_BYTES = 512


def _copied(url: Path, left: list[Left], progress: Progress) -> Path:
    """A copy on this machine of what lies below a URL, without large files that are no traces, and Runs.

    Raises:
        FileNotFoundError: If nothing lies there.
        NotARun: If it is what is left of a Run that was not finished.
        StoreError: If the store refuses, or cannot be reached.
        UnknownFormat: If it is a Run.
    """
    objects = Objects(url)
    if is_unfinished(objects.sizes):
        raise NotARun(f"{url} is a Run that was not finished.", hint=f"ingest the traces again, with {Option.FORCE.on}")
    manifests = [name for name in objects.sizes if name.rpartition("/")[2] == MANIFEST]
    objects.copy(manifests)
    runs = [name.removesuffix(MANIFEST) for name in manifests if _holds_run((objects.folder / name).parent)]
    if "" in runs:
        raise UnknownFormat(f"{url} is a Run already.", hint=f"use it: tracetool info {url}")
    of_runs = {name for name in objects.sizes if any(map(name.startswith, runs)) and name not in manifests}
    large = [name for name, size in objects.sizes.items() if size > _SMALL_BYTES and name not in of_runs]
    heads = objects.heads(large, _HEAD_BYTES)
    unlike = {name for name, head in heads.items() if not _opens_like_trace(head)}
    left += [Left(url / name, "not copied from there: it opens like no trace") for name in sorted(unlike)]
    left += [Left(url / name, "not copied from there: its name cannot be a file's here") for name in objects.odd]
    wanted = [name for name in objects.sizes if name not in of_runs and name not in unlike]
    objects.only(wanted)
    progress.start(sum(objects.sizes[name] for name in wanted))
    objects.copy(wanted, progress.advance)
    return objects.folder


def _opens_like_trace(head: bytes) -> bool:
    return head.startswith(_TRACE_MARKS) or b"\0" not in head or opens_like_tar(head)


def _near(path: Path) -> str:
    """What may be meant by a path that is not there."""
    parent = path.parent
    with nullcontext() if is_local(path) else reaching(path, "read"):
        names = [each.name for each in parent.iterdir()] if parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"is {parent / close[0]} meant?"
    return "name trace files, folders of them, or a Run (.run)"


def _below(folder: Path, failed: list[Left], left: list[Left]) -> list[Path]:
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
            failed.append(Left(here, f"{place_of(here)} cannot be read: {error.strerror}"))
            continue
        if (status.st_dev, status.st_ino) in entered:
            continue
        entered.add((status.st_dev, status.st_ino))
        if _holds_run(here):
            left.append(Left(here, "a Run"))
            continue
        for entry in entries:
            if entry.is_symlink():
                links.append(entry)
            elif entry.is_dir():
                waiting.append(entry)
            else:
                _take(entry, files, left)
        if not waiting:
            # What is there itself goes first, so that it bears its own name.
            waiting = [link for link in links if link.is_dir()]
            for link in links:
                if not link.is_dir():
                    _take(link, files, left)
            links = []
    return sorted(files.values())


def _take(entry: Path, files: dict[tuple[int, int], Path], left: list[Left]) -> None:
    try:
        status = entry.stat()
    except OSError as error:
        left.append(Left(entry, f"cannot be read: {error.strerror}"))
        return
    known = files.setdefault((status.st_dev, status.st_ino), entry) if stat.S_ISREG(status.st_mode) else None
    if known is None:
        left.append(Left(entry, "no regular file"))
    elif known != entry and entry.is_symlink():
        left.append(Left(entry, f"a link to {known.name}"))
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


def _is_readable(file: Path, failed: list[Left]) -> bool:
    try:
        with file.open("rb") as stream:
            stream.read(1)
    except OSError as error:
        failed.append(Left(file, f"{place_of(file)} cannot be read: {error.strerror}"))
        return False
    return True


def why_unknown(file: Path) -> tuple[bool, str]:
    """Whether a file that no reader takes is broken, and what is wrong with it."""
    name = place_of(file)
    if file.stat().st_size == 0:
        is_trace = file.suffix in _TRACE_SUFFIXES
        return is_trace, f"{name} is empty (0 bytes)" if is_trace else "empty (0 bytes)"
    stream = ByteStream(file)
    head = stream.head(1 << 12)
    if stream.broken:
        return True, f"{name}: {stream.broken}"
    if head.startswith((b"\xff\xfe", b"\xfe\xff", b"{\0", b"[\0", b"\0{", b"\0[")):
        return True, f"{name} is UTF-16 text: save it as UTF-8"
    if head[:1] in b"{[" and b"\0" in head:
        return True, f"{name} holds NUL bytes: a download or an editor changed it"
    return False, "no trace of a known format"


def purpose_of(file: Path) -> str | None:
    """What a file that is no trace is for, where it is an input or an output of this tool; None otherwise."""
    head = ByteStream(file).head(1 << 12)
    if b'"urn:tracetool:schema:' in head[:200]:
        return "it is an answer of this tool: name the traces or the Run; tracetool compare takes reports"
    if file.suffix.lower() != ".toml":
        return None
    if re.search(rb"^\[model\]", head, re.MULTILINE):
        return f"it is a job's shape: tracetool estimate {file} --network n.toml, or tracetool explore, answers from it"
    if re.search(rb"^\[\[tier\]\]", head, re.MULTILINE):
        return f"it is a network: name traces or a Run, and {Option.NETWORK(file)}"
    return None
