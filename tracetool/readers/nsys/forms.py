"""Exports in other forms than SQLite: Arrow or Parquet in a folder, Arrow streams, JSON lines."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace
from tracetool.readers.cann.db import connected, is_database
from tracetool.readers.nsys.columns import column_as, column_of, table_of
from tracetool.readers.nsys.stored import AGAIN, BLOCK_ROWS, LINE_BYTES, SqliteTables, chosen_rows, is_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.columns import Kind
    from tracetool.readers.nsys.stored import Cells, ProcessRows, Stored

_SUFFIXES = (".arrow", ".parquet")
_TEXTS = frozenset(("text", "value", "name", "jsonText"))
"""Columns of texts, any of which may be digits."""

_BLOBS = "binaryData"
"""A column that is declared as text."""


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


class _FileTables:
    """What tables in files other than databases have in common."""

    again = AGAIN

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tables: dict[str, frozenset[str]] = {}
        self._gaps: dict[str, str] = {}

    def rows(self, table: str, *columns: str) -> Iterator[Cells]:
        """See :class:`Stored`."""
        raise NotImplementedError

    def select(self, table: str, columns: Sequence[str], where: tuple[str, Any]) -> Iterator[Cells]:
        """See :class:`Stored`."""
        yield from chosen_rows(self.rows(table, *columns, where[0]), where[1])

    def blocks(self, table: str, kinds: Mapping[str, Kind], where: tuple[str, ProcessRows]) -> Iterator[pa.Table]:
        """See :class:`Stored`."""
        rows = self.select(table, list(kinds), where)
        while block := list(islice(rows, BLOCK_ROWS)):
            columns = zip(*block, strict=True)
            arrays = {name: column_of(c, kind) for (name, kind), c in zip(kinds.items(), columns, strict=True)}
            yield table_of(arrays, kinds, len(block))

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
        import pyarrow.parquet as pq

        try:
            if file.suffix == ".parquet":
                parquet = pq.ParquetFile(file)
                self.tables[name] = frozenset(parquet.schema_arrow.names)
                self._readers[name] = lambda columns: parquet.iter_batches(BLOCK_ROWS, columns=columns)
            else:
                with pa.ipc.open_stream(file) as stream:
                    self.tables[name] = frozenset(stream.schema.names)
                self._readers[name] = lambda columns: _streamed(file, 0, columns)
        except _damage() as error:
            self._gaps[name] = _first_line(error)

    def _open_streams(self) -> None:
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
                cells = {name: _cells(batch.column(name), is_text=name != _BLOBS) for name in present}
                blank = [None] * batch.num_rows
                yield from zip(*(cells.get(c, blank) for c in columns), strict=True)
        except _damage() as error:
            self._gaps[table] = _first_line(error)

    def blocks(self, table: str, kinds: Mapping[str, Kind], where: tuple[str, ProcessRows]) -> Iterator[pa.Table]:
        """See :class:`Stored`."""
        owner, wanted = where
        if owner not in self.tables.get(table, ()):
            return
        present = {name: kind for name, kind in kinds.items() if name in self.tables[table]}
        try:
            for batch in self._readers[table](list({**present, owner: None})):
                columns = {name: column_as(batch.column(name), kind) for name, kind in present.items()}
                owners = column_as(batch.column(owner), "number")
                pids = pc.bit_wise_and(pc.shift_right(owners, 24), 0xFFFFFF)
                yield table_of(columns, kinds, batch.num_rows).filter(pc.equal(pids, wanted.pid))
        except _damage() as error:
            self._gaps[table] = _first_line(error)


def _damage() -> tuple[type[Exception], ...]:
    """What reading damaged columns raises; names of columns may be any bytes, and sizes any numbers."""
    return pa.ArrowException, OSError, ValueError, OverflowError, KeyError, MemoryError


def _cells(column: pa.Array, *, is_text: bool) -> list[Any]:
    """The values of a column; what programs call things may be any bytes, as blobs are that are declared as text.

    Raises:
        ArrowInvalid: If it is damaged; reading it would end anywhere.
    """
    if not is_text and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.binary())
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
                yield tuple(_cell_of(row.get(column), is_text=column in _TEXTS) for column in columns)

    def _lines(self, marked: bytes = b"") -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as stream:
            while line := stream.readline(LINE_BYTES):
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


def _cell_of(value: Any, *, is_text: bool) -> Any:
    """A number that is written as text, as such where texts are not; what is nested as text."""
    if isinstance(value, (list, dict)):
        return msgspec.json.encode(value).decode()
    is_number = not is_text and isinstance(value, str) and value.isdecimal() and len(value) < 20
    return int(value) if is_number else value
