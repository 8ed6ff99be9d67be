"""Tables of an export, whatever it was exported as: SQLite, Arrow or Parquet in a folder, Arrow streams, JSON lines.

Tables without rows are absent, and columns come and go with versions: whatever is absent reads as null.
"""

from __future__ import annotations

import sqlite3
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracetool.readers.cann.db import FIRST_ROWID, Database, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.errors import MalformedTrace
    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.columns import Kind

    Cells = tuple[Any, ...]

TEXTS = "StringIds"
_MOST_TEXTS = 1 << 16
NAME_CHARACTERS = 4096
BLOCK_ROWS = 1 << 14
LINE_BYTES = 16 << 20
AGAIN = "export the report again: nsys export -t sqlite --include-blobs=true --include-json=true REPORT.nsys-rep"


class ProcessRows(NamedTuple):
    """Rows of one process are wanted."""

    pid: int


def process_of(identifier: object) -> int | None:
    """The pid in a ``globalTid`` or ``globalPid``, which are negative where their highest bit is set."""
    number = identifier if type(identifier) is int else whole(identifier)
    return None if number is None else (number >> 24) & 0xFFFFFF


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
        """The same of the rows in which a column has one of some numbers, begins with a text, or is of a process."""

    def blocks(self, table: str, kinds: Mapping[str, Kind], where: tuple[str, ProcessRows]) -> Iterator[pa.Table]:
        """The same by columns, in blocks: numbers as int64, texts and bytes as binary, anything else as null."""

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
            stream.readline(LINE_BYTES)
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
            self._known = {n: text[:NAME_CHARACTERS] for n, text in rows if isinstance(text, str)}

    def of(self, text: object, number: object) -> str | None:
        """A text that stands by itself, or else under a number; None if neither tells."""
        if isinstance(text, str) and text:
            return text[:NAME_CHARACTERS]
        if not isinstance(number, int):
            return None
        if self._by_key and number not in self._known:
            if len(self._known) >= _MOST_TEXTS:
                self._known.clear()
            self._known[number] = self._stored.text_by_key(TEXTS, "id", "value", number)
        return self._known.get(number)


class SqliteTables(Database):
    """Tables of a SQLite database."""

    again = AGAIN

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        super().__init__(path, connection)
        try:
            (encoding,) = connection.execute("PRAGMA encoding").fetchone()
        except sqlite3.Error:
            encoding = ""
        self._is_utf8 = encoding == "UTF-8"

    def select(self, table: str, columns: Sequence[str], where: tuple[str, Any]) -> Iterator[Cells]:
        """See :class:`Stored`."""
        for block in self._matching(table, columns, [self._cell(table, name) for name in columns], where):
            yield from (row[:-1] for row in block)

    def blocks(self, table: str, kinds: Mapping[str, Kind], where: tuple[str, ProcessRows]) -> Iterator[pa.Table]:
        """See :class:`Stored`."""
        from tracetool.readers.nsys.columns import column_of, table_of

        if table not in self.tables:
            return
        present = {name: kind for name, kind in kinds.items() if name in self.tables[table]}
        cells = [self._cell(table, name, kind) for name, kind in present.items()]
        for block in self._matching(table, list(present), cells, where):
            columns = zip(present.items(), zip(*block, strict=True), strict=False)
            yield table_of({name: column_of(column, kind) for (name, kind), column in columns}, kinds, len(block))

    def _cell(self, table: str, name: str, kind: Kind | None = None) -> str:
        """What to select for a column."""
        if name not in self.tables.get(table, ()):
            return "NULL"
        if kind == "text" and self._is_utf8:
            # As bytes, for which SQLite's module calls nothing of Python.
            return f'CAST("{name}" AS BLOB)'
        return f'"{name}"'

    def _matching(
        self, table: str, columns: Sequence[str], cells: Sequence[str], where: tuple[str, Any]
    ) -> Iterator[list[Cells]]:
        """Rows in blocks, each with its rowid as the last cell; of a damaged table those that can be read."""
        column, wanted = where
        if not self.has(table, column):
            return
        values: list[Any]
        if isinstance(wanted, ProcessRows):
            condition, values = f'("{column}" >> 24) & {0xFFFFFF} = ?', [wanted.pid]
        elif isinstance(wanted, str):
            condition, values = f'substr("{column}", 1, {len(wanted)}) = ?', [wanted]
        else:
            values = list(numbers_of(wanted))
            # Without an index that somebody may have added: rows are to come in order.
            condition = f'+"{column}" IN ({", ".join("?" * len(values))})'
        query = f'SELECT {", ".join([*cells, "_rowid_"])} FROM "{table}" WHERE {condition} ORDER BY _rowid_'
        start = FIRST_ROWID
        try:
            matching = self._connection.execute(query, values)
            while block := matching.fetchmany(BLOCK_ROWS):
                start = block[-1][-1] + 1
                yield block
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            rows = chosen_rows(self.rows_from(start, table, *columns, column), wanted)
            while block := [(*row, 0) for row in islice(rows, BLOCK_ROWS)]:
                yield block

    def combinations(self, table: str, *columns: str) -> set[Cells]:
        """See :class:`Stored`."""
        if table not in self.tables:
            return set()
        chosen = ", ".join(self._cell(table, name) for name in columns)
        try:
            return set(self._connection.execute(f'SELECT DISTINCT {chosen} FROM "{table}"'))
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            return set(self.rows(table, *columns))


def numbers_of(wanted: Any) -> set[Any]:
    """One number, or several."""
    return {wanted} if isinstance(wanted, int) else set(wanted)


def chosen_rows(rows: Iterable[Cells], wanted: Any) -> Iterator[Cells]:
    """Rows whose last cell is wanted, without that cell."""
    if isinstance(wanted, ProcessRows):
        yield from (row[:-1] for row in rows if process_of(row[-1]) == wanted.pid)
    elif isinstance(wanted, str):
        yield from (row[:-1] for row in rows if isinstance(row[-1], str) and row[-1].startswith(wanted))
    else:
        numbers = numbers_of(wanted)
        yield from (row[:-1] for row in rows if row[-1] in numbers)
