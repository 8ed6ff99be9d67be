"""A Run on disk, and the questions that it answers in SQL.

Paths on this machine, and URLs of object stores (``s3://bucket/traces``).

URLs go through fsspec (universal_pathlib), an extra: whatever it has a file system for can be read and written.

The Parquet files of a Run: a folder per table, and in it a file per source that has rows for it.
"""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self, cast

from tracetool.errors import StoreError, TraceToolError, installing
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    import pyarrow.parquet as pq

    from tracetool.tables.run import Table

_MARK = "://"
_HERE = "file://"
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
    if text.startswith(_HERE):
        return Path(text.removeprefix(_HERE))
    try:
        from upath import UPath

        path = UPath(text)
        path.fs  # noqa: B018 - the file system's package is imported only here
    except (ImportError, ValueError) as error:
        raise TraceToolError(
            f"{text} cannot be opened: {error}.",
            hint=f"{installing('remote')}, and the file system's own package (s3fs, gcsfs, adlfs ...)",
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


def pattern(path: Path) -> str:
    """A path as DuckDB's patterns name it: what has a meaning in them stands for itself."""
    return _WILD.sub(r"[\1]", str(path.absolute()))


WHOLE = "run"
"""Name of the part that belongs to the Run as a whole and to no source."""

# Row groups this large compress well; a batch of events of this size takes about 20 MB.
_GROUP_ROWS = 1 << 17
_CUT_BY = ("rank", "start_ns", "posted_ns", "time_ns")
# Names may be long: what waits is limited in bytes, too.
_GROUP_BYTES = 64 << 20
_MARGIN_BYTES = 64 << 20


def check_room(folder: Path, needed_bytes: int = 0) -> None:
    """Stop before a disk is full: a small file may hold any number of events.

    Args:
        folder: Where is to be written.
        needed_bytes: How much is written, if that is known.

    Raises:
        OSError: If less than that and a margin is free where the folder is.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _MARGIN_BYTES:
        needed = f", and {needed_bytes >> 20} MiB are needed" if needed_bytes else ""
        raise OSError(errno.ENOSPC, f"only {free >> 20} MiB are free where {folder} is{needed}")


def part_path(run: Path, table: str, part: str) -> Path:
    """The file of one part of a table."""
    return run / table / f"{part}.parquet"


def source_part(number: int) -> str:
    """Name of the part of a source."""
    return f"source-{number:05d}"


class PartWriter:
    """Writes one part of every table it is given rows for; used as a context manager.

    Args:
        run: Folder of the Run.
        part: Name of the part.
    """

    def __init__(self, run: Path, part: str) -> None:
        self._run = run
        self._part = part
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._files = ExitStack()
        self._waiting: dict[str, list[pa.Table]] = {}
        self.rows: dict[str, int] = dict.fromkeys(TABLES, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None:
                for name in list(self._waiting):
                    self._flush(name)
        finally:
            for writer in self._writers.values():
                writer.close()
            self._files.close()

    def write(self, table: str, rows: pa.Table) -> None:
        """Append rows; small batches wait until they make a row group."""
        if not rows.num_rows:
            return
        self.rows[table] += rows.num_rows
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows.select(TABLES[table].arrow_schema().names).cast(TABLES[table].arrow_schema()))
        if sum(map(len, waiting)) >= _GROUP_ROWS or sum(w.nbytes for w in waiting) >= _GROUP_BYTES:
            self._flush(table)

    def _flush(self, name: str) -> None:
        import pyarrow as pa

        check_room(self._run)
        rows = pa.concat_tables(self._waiting.pop(name)).unify_dictionaries()
        if name not in self._writers:
            target = part_path(self._run, name, self._part)
            target.parent.mkdir(parents=True, exist_ok=True)
            self._writers[name] = _writer(self._files.enter_context(target.open("wb")), TABLES[name])
        self._writers[name].write_table(rows, row_group_size=len(rows))


def write_part(run: Path, name: str, rows: pa.Table) -> None:
    """Write the whole-Run part of a table in one step; what was there before is replaced."""
    with whole_file(part_path(run, name, WHOLE)) as file, _writer(file, TABLES[name]) as writer:
        writer.write_table(rows.cast(TABLES[name].arrow_schema()))


def read_parts(files: Sequence[Path], name: str, columns: Sequence[str]) -> pa.Table:
    """All parts of a table, one below another.

    Args:
        files: Those of the parts.
        name: The table.
        columns: Columns to read.

    Raises:
        StoreError: If a file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    read = []
    for path in files:
        try:
            with path.open("rb") as file:
                read.append(pq.ParquetFile(file).read(columns=list(columns)))
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path} cannot be read: {error}.", hint="ingest the traces again") from error
    return pa.concat_tables(read).unify_dictionaries().cast(TABLES[name].arrow_schema(columns))


@contextmanager
def whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file to write that is there as a whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_suffix(".tmp")
    with aside.open("wb") as file:
        yield file
    aside.replace(target)


def _writer(file: IO[bytes], table: Table) -> pq.ParquetWriter:
    import pyarrow.parquet as pq

    numbers = [c.name for c in table.columns if c.type in ("int64", "int32")]
    return pq.ParquetWriter(
        file,
        table.arrow_schema(),
        compression="zstd",
        compression_level=1,
        use_dictionary=[c.name for c in table.columns if c.type in ("category", "string")],
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        # Only what queries cut by: statistics of all columns take a fifth of the time to write.
        write_statistics=[c.name for c in table.columns if c.name in _CUT_BY],
    )
