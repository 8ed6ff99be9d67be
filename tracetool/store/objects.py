"""Object stores: what lies below a URL, copies of it on this machine, and what is put there.

Every file that a question needs is copied once, whole, and read from the copy: an object is not written in place, has
no rename, and each look at a part of it costs a request. A copy is taken for good as long as the store says of its
object what it said when it was copied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, cast

from tracetool.errors import StoreError, TraceToolError
from tracetool.store import as_path, check_room, is_local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_COPIES, _VERSIONS, _RUNS = "copies", "copies.versions", "copies.runs"
# What a store calls a state of an object, the most certain first; times tell it where nothing else does.
_STATES = (
    "ETag", "etag", "e_tag", "md5Hash", "content_md5", "md5", "generation", "LastModified", "last_modified", "updated",
    "mtime", "created",
)  # fmt: skip
_BATCH_FILES, _BATCH_BYTES = 64, 64 << 20
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.ENAMETOOLONG)
_WILD = re.compile(r"[*?\[\]]")
_OWN_MEANS = {
    "s3": "AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}


def cache_folder() -> Path:
    """``$TRACETOOL_CACHE``, else ``tracetool`` under ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    base = os.environ.get("TRACETOOL_CACHE")
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tracetool"
    return Path(base).expanduser() if base else default


@contextmanager
def reaching(url: Path, doing: str) -> Iterator[None]:
    """Says what went wrong with a store, and what to do: each file system raises errors of its own kinds.

    Args:
        url: What is asked for.
        doing: What cannot be done to it then, as in ``read``.

    Raises:
        FileNotFoundError: If nothing is there.
        StoreError: If the store refuses, or cannot be reached.
    """
    try:
        yield
    except (FileNotFoundError, TraceToolError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_DISKS:
            raise  # of this machine
        said = str(error).rstrip(".") or type(error).__name__
        raise StoreError(f"{url} cannot be {doing}: {said}.", hint=_means(url)) from error


def _means(url: Any) -> str:
    """Where credentials and the address of a store are taken from."""
    protocol = _ALIASES.get(url.protocol, url.protocol)
    named = (_OWN_MEANS[protocol], f"FSSPEC_{protocol.upper()}_...") if protocol in _OWN_MEANS else ()
    variables = ", ".join(named or (f"FSSPEC_{protocol.upper()}_...",))
    return f"check credentials and address: they are taken from {variables}, and ~/.config/fsspec"


class Objects:
    """The objects below a URL as they are listed once, and copies of them.

    Attributes:
        url: The URL.
        sizes: Name below the URL to bytes; of a URL that is an object itself the only name is ``.``.
        odd: Names that no file on this machine can have beside the others.
        folder: Where copies of them are.

    Args:
        url: The URL.
        is_absent: Whether nothing needs to be there.

    Raises:
        FileNotFoundError: If nothing is there, or not even what is to hold it.
        StoreError: If the store refuses, or cannot be reached.
    """

    def __init__(self, url: Path, *, is_absent: bool = False) -> None:
        self.url = cast("Any", url)
        with reaching(url, "read"):
            infos = _infos(self.url, is_absent=is_absent)
        inner = {name for of in infos for name in map(str, PurePosixPath(of).parents)} if "." not in infos else set()
        self.odd = sorted(name for name in infos if name in inner - {"."} or not _is_name(name))
        kept = {name: info for name, info in infos.items() if name not in self.odd}
        self.sizes = {name: int(info.get("size") or 0) for name, info in kept.items()}
        self._states = {name: _state(info) for name, info in kept.items()}
        self.folder = copies_of(url)

    def heads(self, names: Sequence[str], size: int) -> dict[str, bytes]:
        """The first bytes of some objects."""
        with reaching(self.url, "read"):
            heads = self.url.fs.cat_ranges(
                [_below(self.url, name) for name in names], [0] * len(names), [size] * len(names), on_error="raise"
            )
        return dict(zip(names, heads, strict=True))

    def only(self, names: Iterable[str]) -> None:
        """Take copies away that are none of these: what is not there any more, or not wanted."""
        wanted = {self.folder / name for name in names}
        for file in [file for file in self.folder.rglob("*") if not file.is_dir()] if self.folder.is_dir() else ():
            if file not in wanted:
                file.unlink(missing_ok=True)

    def copy(
        self,
        names: Iterable[str],
        advance: Callable[[int], None] = lambda _count: None,
        is_same: Callable[[], bool] = lambda: True,
    ) -> None:
        """Have copies of some objects in ``folder``; those that are there already are not made again.

        Args:
            names: Which.
            advance: Told about bytes copied.
            is_same: Asked before copies are taken for good: whether the objects are still those that were listed.

        Raises:
            StoreError: If they cannot be read, changed meanwhile, or there is no room for them.
        """
        try:
            for batch, size in self._batches([name for name in names if not self._is_copied(name)]):
                self._copy(batch, size, is_same)
                advance(size)
        except FileNotFoundError as error:
            raise self._changed() from error
        except OSError as error:
            hint = "set $TRACETOOL_CACHE to a folder that can be written and has room"
            raise StoreError(f"{self.url} cannot be copied to {self.folder}: {error}.", hint=hint) from error

    def _batches(self, names: Iterable[str]) -> Iterator[tuple[list[str], int]]:
        """Names with the size of all their objects, a few at a time."""
        batch, size = list[str](), 0
        for name in names:
            batch.append(name)
            size += self.sizes[name]
            if len(batch) == _BATCH_FILES or size >= _BATCH_BYTES:
                yield batch, size
                batch, size = [], 0
        if batch:
            yield batch, size

    def _copy(self, names: Sequence[str], size: int, is_same: Callable[[], bool]) -> None:
        base = cache_folder()
        base.mkdir(parents=True, exist_ok=True)
        check_room(base, size)
        with tempfile.TemporaryDirectory(prefix=".copying.", dir=base) as aside:
            made = [Path(aside) / str(number) for number in range(len(names))]
            with reaching(self.url, "read"):
                self.url.fs.get([_below(self.url, name) for name in names], [str(path) for path in made])
            if any(p.stat().st_size != self.sizes[n] for n, p in zip(names, made, strict=True)) or not is_same():
                raise self._changed()
            for name, path in zip(names, made, strict=True):
                target, version = self.folder / name, self._version_file(name)
                for file in (target, version):
                    _make_way(file, base)
                version.unlink(missing_ok=True)
                path.replace(target)
                version.write_text(self._states[name], encoding="utf-8")

    def _changed(self) -> StoreError:
        return StoreError(f"{self.url} changed while it was read.", hint="try again")

    def _is_copied(self, name: str) -> bool:
        target, version, state = self.folder / name, self._version_file(name), self._states[name]
        try:
            return bool(state) and target.stat().st_size == self.sizes[name] and version.read_text("utf-8") == state
        except OSError:
            return False

    def _version_file(self, name: str) -> Path:
        base = cache_folder()
        # A file's own name is one more folder there: what was a file may be a folder later.
        return base / _VERSIONS / (self.folder / name).relative_to(base) / ".version"


class RunObjects(Objects):
    """The files of a Run on an object store, of one state of it: one that is replaced meanwhile is not mixed with it.

    Whoever replaces a Run takes its manifest away first and puts the new one last.

    Args:
        url: The Run.
        manifest: Name of its manifest.
    """

    def __init__(self, url: Path, manifest: str) -> None:
        super().__init__(url, is_absent=True)
        self._manifest = manifest
        state = self._states.get(manifest) or os.urandom(16).hex()
        key = hashlib.sha256(f"{self.folder} {state}".encode()).hexdigest()[:24]
        self.folder = cache_folder() / _RUNS / key

    def have(self, names: Iterable[str]) -> None:
        """Have copies of some files; those that the Run lacks are left out."""
        self.copy([name for name in names if name in self.sizes], is_same=self._is_same)

    def _is_same(self) -> bool:
        state = self._states.get(self._manifest)
        if not state:
            return True
        # Asked as it was listed: stores write times differently where they are asked otherwise.
        self.url.fs.invalidate_cache()
        now = self.url.fs.find(_below(self.url, self._manifest), detail=True)
        return [_state(info) for info in now.values()] == [state]


def copies_of(url: Path) -> Path:
    """Where copies of what lies below a URL are: a folder, or of an object itself a file."""
    remote: Any = url
    parts = str(remote.path).removeprefix(f"{remote.protocol}://").split("/")
    return cache_folder().joinpath(_COPIES, remote.protocol, *(part for part in parts if part))


def place_of(path: Path, member: str = "") -> str:
    """A path, and the member of it, as people know it: of a copy, the URL of what it is a copy of."""
    copies = cache_folder() / _COPIES
    place = str(path)
    if is_local(path) and path.is_relative_to(copies):
        protocol, *parts = path.relative_to(copies).parts
        place = f"{protocol}://{'/'.join(parts)}"
    return f"{place}:{member}" if member else place


def put_folder(folder: Path, url: Path, *, last: str = "", is_whole: bool = True) -> None:
    """Put the files of a folder below a URL.

    Args:
        folder: On this machine.
        url: Where to.
        last: Name of the file without which the others are nothing: an old one goes first, the new one comes last.
        is_whole: Whether what is there and not in the folder goes; and all of it, should this fail.

    Raises:
        StoreError: If the store refuses, cannot be reached, or somebody else writes there at the same time.
    """
    remote: Any = url
    sizes = {f.relative_to(folder).as_posix(): f.stat().st_size for f in sorted(folder.rglob("*")) if f.is_file()}
    early, is_marked = [name for name in sizes if name != last], last in sizes
    try:
        before = Objects(url, is_absent=True).sizes if is_marked or is_whole else {}
        with reaching(url, "written"):
            remove_objects(url, [last] if is_marked and last in before else [])
            _put(remote, folder, early)
            if is_whole:
                remove_objects(url, set(before) - set(sizes))
            if is_marked:
                after = Objects(url, is_absent=True).sizes
                if last in after or any(after.get(name) != sizes[name] for name in early):
                    raise StoreError(f"{url} was written by somebody else at the same time.", hint="write it anew")
                remote.fs.put_file(str(folder / last), _below(remote, last))
    except BaseException:
        if is_whole:
            with suppress(OSError, TraceToolError):  # the first error says why
                remove_objects(url, Objects(url, is_absent=True).sizes)
        raise


@contextmanager
def handed_over(url: Path, folder: Path) -> Iterator[Path]:
    """A URL below which other machines put files that a folder on this one gets in the end.

    Raises:
        StoreError: If the store refuses, or cannot be reached.
    """
    try:
        yield url
        objects = Objects(url, is_absent=True)
        check_room(folder, sum(objects.sizes.values()))
        for name in objects.sizes:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with reaching(url, "read"):
            there = [_below(objects.url, name) for name in objects.sizes]
            objects.url.fs.get(there, [str(folder / name) for name in objects.sizes])
    finally:
        remote: Any = url
        with suppress(FileNotFoundError, TraceToolError), reaching(url, "written"):  # what failed before says more
            remote.fs.invalidate_cache()
            remote.fs.rm(remote.path, recursive=True)


def _put(remote: Any, folder: Path, names: Sequence[str]) -> None:
    """Put files of a folder below a URL."""
    pairs = [str(folder / name) for name in names], [_below(remote, name) for name in names]
    try:
        remote.fs.put(*pairs)
    except FileNotFoundError:
        # Stores of files have folders, which others make of names.
        for above in sorted({path.rpartition("/")[0] for path in pairs[1]}):
            remote.fs.makedirs(above, exist_ok=True)
        remote.fs.put(*pairs)


def remove_objects(url: Path, names: Iterable[str]) -> None:
    """Remove some objects below a URL, which ``check_url`` took."""
    remote: Any = url
    if paths := [_below(remote, name) for name in names]:
        with reaching(url, "written"):
            remote.fs.invalidate_cache()
            remote.fs.rm(paths)


def check_url(url: Path) -> None:
    """Check that a URL can be written to: file systems take some names for patterns when they remove objects.

    Raises:
        StoreError: If its name is one of them.
    """
    if _WILD.search(str(url)):
        raise StoreError(f"{url} is a pattern.", hint="choose a name without * ? [ ]")


def _infos(remote: Any, *, is_absent: bool) -> Mapping[str, Mapping[str, Any]]:
    """Of each object below a URL, what the store says of it."""
    remote.fs.invalidate_cache()
    try:
        info = remote.fs.info(remote.path)
    except FileNotFoundError:
        if not is_absent:
            raise
    else:
        if info["type"] == "file":
            return {".": info}
    base = remote.path.rstrip("/")
    return {
        path[len(base) + 1 :]: info
        for path, info in remote.fs.find(remote.path, detail=True).items()
        if path != base and not path.endswith("/")
    }


def _below(remote: Any, name: str) -> str:
    base = str(remote.path).rstrip("/")
    return base if name == "." else f"{base}/{name}"


def _state(info: Mapping[str, Any]) -> str:
    return next((f"{key} {info[key]}" for key in _STATES if info.get(key)), "")


def _is_name(name: str) -> bool:
    return name == "." or not ("\0" in name or "\\" in name or {"", ".", ".."}.intersection(name.split("/")))


def _make_way(file: Path, base: Path) -> None:
    """Make the folder of a file; what was a copy of something else in its place goes."""
    for above in reversed(file.relative_to(base).parents):
        if (base / above).is_file():
            (base / above).unlink()
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        shutil.rmtree(file)


def copied_anew(path: Path, base: Path) -> Path:
    """What another machine made a copy of, copied here as well; a path that is no copy stays.

    Args:
        path: As that machine names it.
        base: Its cache.
    """
    try:
        protocol, *parts = path.relative_to(base / _COPIES).parts
    except ValueError:
        return path
    objects = Objects(as_path(f"{protocol}://{'/'.join(parts)}"))
    objects.copy(objects.sizes)
    return objects.folder
