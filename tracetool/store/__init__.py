"""A Run on disk, and the questions that it answers in SQL.

Paths on this machine, and URLs of object stores (``s3://bucket/traces``).

URLs go through fsspec (universal_pathlib), an extra: whatever it has a file system for can be read and written.

The Parquet files of a Run: a folder per table, and in it a file per source that has rows for it, or per several small
ones.
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
_SOURCES = re.compile(r"source-(\d+)(?:-(\d+))?")


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


def source_part(first: int, last: int | None = None) -> str:
    """Name of the part of a source, or of several that follow each other."""
    return f"source-{first:05d}" if last is None or last == first else f"source-{first:05d}-{last:05d}"


def sources_of(part: str) -> range:
    """Numbers of the sources that a part holds rows of; empty for another one."""
    match = _SOURCES.fullmatch(part)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


class PartWriter:
    """Writes sources, one after the other, as parts of a Run's tables; used as a context manager.

    Small ones that follow each other wait for each other and share their parts: of a job of many ranks files are opened
    by the dozen and not by the thousand. What is too large to wait has parts of its own.

    Args:
        run: Folder of the Run.

    Attributes:
        files: What was written, and stays.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.files: list[Path] = []
        self._numbers: list[int] = []
        self._waiting: dict[str, _RowGroup] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            self._flush()

    @contextmanager
    def source(self, number: int) -> Iterator[SourceWriter]:
        """Takes the rows of a source; if this is left by an exception, nothing of them is kept.

        Args:
            number: That of the source in the Run, above those before it.
        """
        writer = SourceWriter(self._run, number)
        try:
            yield writer
            waiting = writer.end()
        except BaseException:
            writer.drop()
            raise
        if self._numbers and self._numbers[-1] + 1 != number:
            self._flush()
        if waiting is None:
            self._flush()
            self.files += writer.files
            return
        self._numbers.append(number)
        for name, group in waiting.items():
            self._waiting.setdefault(name, _RowGroup()).take(group)
        if any(group.is_full for group in self._waiting.values()):
            self._flush()

    def _flush(self) -> None:
        if self._numbers:
            part = source_part(self._numbers[0], self._numbers[-1])
            for name, group in self._waiting.items():
                check_room(self._run)
                with _opened(self._run, name, part) as file, _writer(file, TABLES[name]) as writer:
                    group.write(writer, TABLES[name])
                self.files.append(part_path(self._run, name, part))
        self._numbers, self._waiting = [], {}


class SourceWriter:
    """Takes the rows of one source.

    Args:
        run: Folder of the Run.
        number: That of the source in the Run.
    """

    def __init__(self, run: Path, number: int) -> None:
        self._run = run
        self._part = source_part(number)
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._files = ExitStack()
        self._waiting: dict[str, _RowGroup] = {}

    def write(self, table: str, rows: pa.Table) -> None:
        """Append rows; they wait until they make a row group."""
        if not rows.num_rows:
            return
        waiting = self._waiting.setdefault(table, _RowGroup())
        waiting.add(rows)
        if waiting.is_full:
            self._flush(table)

    def end(self) -> dict[str, _RowGroup] | None:
        """All rows of a source that had none written; of another one the rest is written, and None is returned."""
        if not self._writers:
            return self._waiting
        for name in list(self._waiting):
            self._flush(name)
        self._close()
        return None

    @property
    def files(self) -> list[Path]:
        """What was written of it by itself."""
        return [part_path(self._run, name, self._part) for name in self._writers]

    def drop(self) -> None:
        """Take back all that was written."""
        self._close()
        for file in self.files:
            file.unlink(missing_ok=True)

    def _close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._files.close()

    def _flush(self, name: str) -> None:
        check_room(self._run)
        if name not in self._writers:
            file = self._files.enter_context(_opened(self._run, name, self._part))
            self._writers[name] = _writer(file, TABLES[name])
        self._waiting.pop(name).write(self._writers[name], TABLES[name])


class _RowGroup:
    """Rows of a table that wait until they make a row group."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES

    def add(self, rows: pa.Table) -> None:
        self._tables.append(rows)
        self._rows += len(rows)
        self._bytes += rows.nbytes

    def take(self, other: _RowGroup) -> None:
        self._tables += other._tables
        self._rows += other._rows
        self._bytes += other._bytes

    def write(self, writer: pq.ParquetWriter, table: Table) -> None:
        import pyarrow as pa

        schema = table.arrow_schema()
        waiting = [rows.select(schema.names) for rows in self._tables]
        if any(rows.schema != waiting[0].schema for rows in waiting):
            waiting = [rows.cast(schema) for rows in waiting]
        # Column by column is what a cast costs: all at once.
        rows = pa.concat_tables(waiting).cast(schema).unify_dictionaries()
        writer.write_table(rows, row_group_size=len(rows))


def _opened(run: Path, name: str, part: str) -> IO[bytes]:
    target = part_path(run, name, part)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.open("wb")


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
