"""Paths on this machine, and URLs of object stores that behave like them (``s3://bucket/traces``).

URLs go through fsspec (universal_pathlib), an extra: whatever it has a file system for can be read and written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tracetool.errors import TraceToolError

if TYPE_CHECKING:
    import duckdb

_MARK = "://"
_WILD = re.compile(r"([*?\[])")


def as_path(text: str | Path) -> Path:
    """A local path, or for a URL an object with the same methods.

    Raises:
        TraceToolError: If it is a URL and fsspec or the file system for it is not installed.
    """
    if not isinstance(text, str):
        return text
    if _MARK not in text:
        return Path(text)
    try:
        from upath import UPath

        path = UPath(text)
        path.fs  # noqa: B018 - the file system's package is imported only here
    except (ImportError, ValueError) as error:
        raise TraceToolError(
            f"{text} cannot be opened: {error}.",
            hint="pip install 'tracetool[remote]', and the file system's own package (s3fs, gcsfs, adlfs ...)",
        ) from error
    return cast("Path", path)


def as_paths(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """One or several paths or URLs as a list; see :func:`as_path`.

    Raises:
        TraceToolError: If one cannot be opened.
    """
    return [as_path(path) for path in ([paths] if isinstance(paths, str) or not isinstance(paths, Sequence) else paths)]


def is_local(path: Path) -> bool:
    """Whether the path lies on this machine."""
    return isinstance(path, Path)


def location(path: Path) -> str:
    """The path as DuckDB names it."""
    if is_local(path):
        return str(path.absolute())
    remote: Any = path
    return f"{remote.protocol}{_MARK}{remote.path}"


def pattern(folder: str) -> str:
    """A folder as DuckDB's patterns name it: what has a meaning in them stands for itself."""
    return _WILD.sub(r"[\1]", folder)


def remove_tree(path: Path) -> None:
    """Remove a folder and everything in it; one that is not there is none."""
    if is_local(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
        return
    remote: Any = path
    if remote.exists():
        remote.fs.rm(remote.path, recursive=True)


def make_readable(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Let a DuckDB connection open files below a path on another machine."""
    if not is_local(path):
        remote: Any = path
        connection.register_filesystem(remote.fs)
