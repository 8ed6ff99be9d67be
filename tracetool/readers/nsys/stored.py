"""Tables of an export, whatever it was exported as: SQLite, Arrow or Parquet in a folder, Arrow streams, JSON lines.

Tables without rows are absent, and columns come and go with versions: whatever is absent reads as null.
"""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace
from tracetool.readers.cann.db import Database, connected, is_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers import SourceReport

    Cells = tuple[Any, ...]

TEXTS = "StringIds"
_MOST_TEXTS = 1 << 16
_NAME_CHARACTERS = 4096
_BATCH_ROWS = 1 << 14
_LINE_BYTES = 16 << 20
_SUFFIXES = (".arrow", ".parquet")
_AGAIN = "export the report again: nsys export -t sqlite --include-blobs=true --include-json=true REPORT.nsys-rep"


class Stored(Protocol):
    """Tables that can be read in spite of damage.

    Attributes:
        path: Where they are.
        tables: Table names to their column names.
    """

    path: Path
    tables: dict[str, frozenset[str]]

    def rows(self, table: str, *columns: str) -> Iterator[Cells]:
        """The named columns of every row that can be read, in order; absent ones are None."""

    def select(self, table: str, columns: Sequence[str], where: tuple[str, Any]) -> Iterator[Cells]:
        """The same of the rows in which a column has one of some numbers, or begins with a text."""

    def combinations(self, table: str, *columns: str) -> set[Cells]:
        """The different values that columns have together."""

    def text_by_key(self, table: str, key: str, column: str, number: int) -> str | None:
        """The beginning of a text in the row of a key."""

    def is_key(self, table: str, column: str) -> bool:
        """Whether rows are found by a column at once."""

    @property
    def damaged(self) -> bool:
        """Whether anything could not be read so far."""

    def malformed(self) -> MalformedTrace:
        """The error to raise where nothing can be read."""

    def record_gaps(self, report: SourceReport) -> None:
        """Count what could not be read."""


@contextmanager
def opened(path: Path) -> Iterator[Stored]:
    """The tables at a path, for reading only.

    Raises:
        MalformedTrace: If they cannot be read at all.
    """
    if path.is_dir():
        yield ColumnTables(path, {f.stem: f for f in sorted(path.iterdir()) if f.suffix in _SUFFIXES})
    elif is_database(path):
        with connected(path) as connection:
            yield SqliteTables(path, connection)
    elif is_lines(path):
        yield LineTables(path)
    else:
        yield ColumnTables(path, {})


def is_lines(path: Path) -> bool:
    """Whether a file holds a JSON object per line, each of which names its table."""
    try:
        with path.open("rb") as stream:
            head = stream.read(1 << 12)
    except OSError:
        return False
    return head[:1] == b"{" and b'"table"' in head.split(b"\n", 1)[0]


def is_events_form(path: Path) -> bool:
    """Whether a file is the older JSON export: a line with all strings, then raw events without tables."""
    if path.suffix != ".json":
        return False
    try:
        with path.open("rb") as stream:
            if stream.read(16).replace(b" ", b"")[:9] != b'{"data":[':
                return False
            stream.readline(_LINE_BYTES)
            return stream.read(1 << 10).startswith(b'{"Type"')
    except OSError:
        return False


class Texts:
    """Texts of ``StringIds``: only those that are asked for are kept, as the others may be anything.

    Args:
        stored: Where they are.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._by_key = stored.is_key(TEXTS, "id")
        self._known: dict[int, str | None] = {}
        if not self._by_key:
            rows = stored.rows(TEXTS, "id", "value")
            self._known = {n: text[:_NAME_CHARACTERS] for n, text in rows if isinstance(text, str)}

    def of(self, text: object, number: object) -> str | None:
        """A text that stands by itself, or else under a number; None if neither tells."""
        if isinstance(text, str) and text:
            return text[:_NAME_CHARACTERS]
        if not isinstance(number, int):
            return None
        if self._by_key and number not in self._known:
            if len(self._known) >= _MOST_TEXTS:
                self._known.clear()
            self._known[number] = self._stored.text_by_key(TEXTS, "id", "value", number)
        return self._known.get(number)


class SqliteTables(Database):
    """Tables of a SQLite database."""

    again = _AGAIN

    def select(self, table: str, columns: Sequence[str], where: tuple[str, Any]) -> Iterator[Cells]:
        """See :class:`Stored`."""
        column, wanted = where
        if not self.has(table, column):
            return
        values: list[Any]
        if isinstance(wanted, str):
            condition, values = f'substr("{column}", 1, {len(wanted)}) = ?', [wanted]
        else:
            values = list(_numbers(wanted))
            condition = f'"{column}" IN ({", ".join("?" * len(values))})'
        if not self.is_sound(table, condition, values):
            yield from _chosen(self.rows(table, *columns, column), wanted)
            return
        chosen = ", ".join(f'"{c}"' if c in self.tables[table] else "NULL" for c in columns)
        yield from self._connection.execute(f'SELECT {chosen} FROM "{table}" WHERE {condition}', values)

    def is_sound(self, table: str, condition: str, values: Sequence[Any]) -> bool:
        """Whether all pages of a table can be read."""
        try:
            self._connection.execute(f'SELECT count(*) FROM "{table}" WHERE {condition}', values).fetchone()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            return False
        return True

    def combinations(self, table: str, *columns: str) -> set[Cells]:
        """See :class:`Stored`."""
        if table not in self.tables:
            return set()
        chosen = ", ".join(f'"{c}"' if c in self.tables[table] else "NULL" for c in columns)
        try:
            return set(self._connection.execute(f'SELECT DISTINCT {chosen} FROM "{table}"'))
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            return set(self.rows(table, *columns))


def _numbers(wanted: Any) -> set[int]:
    return {wanted} if isinstance(wanted, int) else set(wanted)


def _chosen(rows: Iterable[Cells], wanted: Any) -> Iterator[Cells]:
    """Rows whose last cell is wanted, without that cell."""
    if isinstance(wanted, str):
        yield from (row[:-1] for row in rows if isinstance(row[-1], str) and row[-1].startswith(wanted))
    else:
        numbers = _numbers(wanted)
        yield from (row[:-1] for row in rows if row[-1] in numbers)


class _FileTables:
    """What tables in files other than databases have in common."""

    again = _AGAIN

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, frozenset[str]] = {}
        self._gaps: dict[str, str] = {}

    def rows(self, table: str, *columns: str) -> Iterator[Cells]:
        """See :class:`Stored`."""
        raise NotImplementedError

    def select(self, table: str, columns: Sequence[str], where: tuple[str, Any]) -> Iterator[Cells]:
        """See :class:`Stored`."""
        yield from _chosen(self.rows(table, *columns, where[0]), where[1])

    def combinations(self, table: str, *columns: str) -> set[Cells]:
        """See :class:`Stored`."""
        return set(self.rows(table, *columns))

    def text_by_key(self, table: str, key: str, column: str, number: int) -> str | None:
        """See :class:`Stored`."""
        return next((str(value) for n, value in self.rows(table, key, column) if n == number), None)

    def is_key(self, table: str, column: str) -> bool:
        """See :class:`Stored`."""
        return False

    @property
    def damaged(self) -> bool:
        """Whether anything could not be read so far."""
        return bool(self._gaps)

    def malformed(self) -> MalformedTrace:
        """The error to raise where nothing can be read."""
        reason = next(iter(self._gaps.values()), "it has no tables")
        return MalformedTrace(f"{self.path}: nothing of this export can be read: {reason}.", hint=self.again)

    def record_gaps(self, report: SourceReport) -> None:
        """Count what could not be read."""
        for table, reason in self._gaps.items():
            report.drop(f"rest of {table} that cannot be read", FilePlace(str(self.path), 0), is_damage=True)
            report.note(
                SourceCode.TABLES_DAMAGED,
                f"{self.path.name}: {table} is damaged ({reason}): how many rows are lost is unknown",
            )


class ColumnTables(_FileTables):
    """A folder with a file per table (Arrow stream or Parquet), or one file of Arrow streams one after another."""

    def __init__(self, path: Path, files: Mapping[str, Path]) -> None:
        super().__init__(path)
        self._readers: dict[str, Callable[[list[str]], Iterator[pa.RecordBatch]]] = {}
        for name, file in files.items():
            self._open(name, file)
        if not path.is_dir() and path.stat().st_size:
            self._open_streams()

    def _open(self, name: str, file: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if file.suffix == ".parquet":
                parquet = pq.ParquetFile(file)
                self.tables[name] = frozenset(parquet.schema_arrow.names)
                self._readers[name] = lambda columns: parquet.iter_batches(_BATCH_ROWS, columns=columns)
            else:
                with pa.ipc.open_stream(file) as stream:
                    self.tables[name] = frozenset(stream.schema.names)
                self._readers[name] = lambda columns: _streamed(file, 0, columns)
        except _damage() as error:
            self._gaps[name] = _first_line(error)

    def _open_streams(self) -> None:
        import pyarrow as pa

        size = self.path.stat().st_size
        with pa.memory_map(str(self.path)) as raw:
            while (start := raw.tell()) < size:
                try:
                    stream = pa.ipc.open_stream(raw)
                    name = (stream.schema.metadata or {}).get(b"table_name", b"").decode(errors="replace")
                    for _ in stream:
                        pass
                    columns = frozenset(stream.schema.names)
                except _damage() as error:
                    self._gaps["a table"] = _first_line(error)
                    return
                self.tables[name] = columns
                self._readers[name] = lambda columns, start=start: _streamed(self.path, start, columns)  # type: ignore[misc]

    def rows(self, table: str, *columns: str) -> Iterator[Cells]:
        """See :class:`Stored`."""
        if table not in self.tables:
            return
        present = [c for c in dict.fromkeys(columns) if c in self.tables[table]]
        try:
            for batch in self._readers[table](present):
                cells = {name: _cells(batch.column(name)) for name in present}
                blank = [None] * batch.num_rows
                yield from zip(*(cells.get(c, blank) for c in columns), strict=True)
        except _damage() as error:
            self._gaps[table] = _first_line(error)


def _damage() -> tuple[type[Exception], ...]:
    """What reading damaged columns raises; names of columns may be any bytes, and sizes any numbers."""
    import pyarrow as pa

    return pa.ArrowException, OSError, ValueError, OverflowError, KeyError, MemoryError


def _cells(column: pa.Array) -> list[Any]:
    """The values of a column; what programs call things may be any bytes.

    Raises:
        ArrowInvalid: If it is damaged; reading it would end anywhere.
    """
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        if not pa.types.is_string(column.type):
            raise
        texts = column.cast(pa.binary())
        texts.validate(full=True)
        return [None if text is None else text.decode("utf-8", "replace") for text in texts.to_pylist()]
    values: list[Any] = [None] * len(column) if pa.types.is_nested(column.type) else column.to_pylist()
    return values


def _streamed(file: Path, start: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    # Mapped, so that a damaged size is an end of the file and no amount of memory.
    with pa.memory_map(str(file)) as raw:
        raw.seek(start)
        for batch in pa.ipc.open_stream(raw):
            yield batch.select(columns)


def _first_line(error: Exception) -> str:
    """What is wrong, without anything of the content."""
    return type(error).__name__


class LineTables(_FileTables):
    """A file of JSON lines, each of which is a row that names its table."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        columns: dict[str, set[str]] = {}
        for row in self._lines():
            columns.setdefault(str(row["table"]), set()).update(row)
        self.tables = {name: frozenset(names - {"table"}) for name, names in columns.items()}

    def rows(self, table: str, *columns: str) -> Iterator[Cells]:
        """See :class:`Stored`."""
        if table not in self.tables:
            return
        marked = f'"{table}"'.encode()
        for row in self._lines(marked):
            if row["table"] == table:
                yield tuple(_number_of(row.get(column)) for column in columns)

    def _lines(self, marked: bytes = b"") -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as stream:
            while line := stream.readline(_LINE_BYTES):
                if marked not in line:
                    continue
                try:
                    # Texts of programs may be any bytes.
                    row = msgspec.json.decode(line.decode("utf-8", "replace"))
                except (msgspec.DecodeError, RecursionError):
                    self._gaps["a line"] = "no JSON"
                    continue
                if isinstance(row, dict) and isinstance(row.get("table"), str):
                    yield row


def _number_of(value: Any) -> Any:
    """A number that is written as text, as such; what is nested as text."""
    if isinstance(value, (list, dict)):
        return msgspec.json.encode(value).decode()
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 20 else value
