"""What lies where a Run is to be read or written: a Run, what is left of one, something else, or nothing."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from tracetool.errors import AlreadyExists, Option, StoreError
from tracetool.store import is_local
from tracetool.store.objects import Objects, check_url, reaching
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

MANIFEST = "manifest.json"
RECORDING = "recording.json"
"""Name of what its steps measured."""

KEPT = ".kept"
"""How names of what it keeps beside its tables end."""

HANDED = ".parts-"
"""How names begin below which workers elsewhere put parts of a Run that is being written."""

PART = re.compile(rf"(?:{'|'.join(TABLES)})/[^/]+\.parquet")
"""Names of the files of tables."""

_OF_A_RUN = re.compile(rf"(?:{re.escape(HANDED)}\w+/)?{PART.pattern}|[^/]+{re.escape(KEPT)}|{re.escape(RECORDING)}")


def check_free(path: Path, *, force: bool) -> None:
    """Check that a Run can get a name.

    Raises:
        AlreadyExists: If something is there that is no Run, or one that is not to be replaced.
        StoreError: If it is on an object store that has no place for it.
    """
    names: Collection[str] = ()
    if not is_local(path):
        check_url(path)
        try:
            objects = Objects(path, is_absent=True)
        except FileNotFoundError as error:
            raise StoreError(f"{path} cannot be written: {error}.", hint="make the bucket first") from error
        names = {*objects.sizes, *objects.odd}
    if not (names or (is_local(path) and path.exists())):
        return
    if not force and is_unfinished(names):
        raise AlreadyExists(f"the Run {path} was not finished.", hint=f"add {Option.FORCE.on} to write it anew")
    if not (is_run(path) or is_unfinished(names)):
        raise AlreadyExists(f"{path} exists and is no Run.", hint="choose another name")
    if not force:
        raise AlreadyExists(f"the Run {path} exists.", hint=f"add {Option.FORCE.on} to replace it")


def is_unfinished(names: Collection[str]) -> bool:
    """Whether objects below a URL are what is left of a Run whose writer was stopped: all but its manifest, or less."""
    return any(name.endswith(".parquet") for name in names) and all(map(_OF_A_RUN.fullmatch, names))


def is_run(path: Path) -> bool:
    """Whether the path looks like a Run (a folder with a manifest).

    Raises:
        StoreError: If it is on an object store that refuses, or cannot be reached.
    """
    if is_local(path):
        return (path / MANIFEST).is_file()
    try:
        with reaching(path, "read"):
            return stat.S_ISREG((path / MANIFEST).stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def only_once() -> dict[str, str]:
    """What tells a manifest on an object store from any other of the same Run: the store tells it by its content."""
    return {"written": os.urandom(8).hex()}


def leftovers(path: Path) -> list[Path]:
    """Folders beside a Run on this machine under names that its writers use until it is whole.

    Such are left by a writer that was killed, or belong to one that still writes.
    """
    if not is_local(path):
        return []
    name = re.compile(rf"\.{re.escape(path.name)}\.(?:[a-z0-9_]{{8}}|old-\d+)")
    return sorted(each for each in path.parent.iterdir() if name.fullmatch(each.name) and each.is_dir())


def part_sizes(folder: Path) -> dict[str, int]:
    """Of each Parquet file of the tables in a folder its size; 0 of one that is cut off."""
    files = {name: sorted((folder / name).glob("*.parquet")) for name in TABLES}
    return {f"{name}/{file.name}": _whole_size(file) for name, files_of in files.items() for file in files_of}


def _whole_size(path: Path) -> int:
    """Size of a Parquet file that has its closing mark; 0 for one that is cut off."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        return size if size > 12 and file.seek(-4, os.SEEK_END) > 0 and file.read() == b"PAR1" else 0
