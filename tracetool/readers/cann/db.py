"""SQLite databases of profilers, read without a trace beside them and in spite of damage.

A database is opened as immutable: SQLite then makes no ``-wal``, ``-shm`` or ``-journal`` file, not even for
one in WAL mode. Where such a file with unmerged changes lies beside it, a copy of both is opened instead.
Only named tables are read. A damaged page costs the rows on it, not the rest of the table.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import FilePlace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracetool.readers import SourceReport

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_UNMERGED = ("-wal", "-journal")
_BESIDE = (*_UNMERGED, "-shm")
# No row of a profiler is near this: a larger one is damage or malice and counts as unreadable.
_ROW_BYTES = 16 << 20
_NAME_CHARACTERS = 4096
FIRST_ROWID, _LAST_ROWID = -(2**63), 2**63 - 1
_MOST_GAPS = 1000
_MOST_NAMES = 1 << 17
NO_NUMBERS = frozenset({2**32 - 1, 2**63 - 1})
_NO_ID = 2**63
_EXACT_FLOAT = 2**53


def is_database(path: Path) -> bool:
    """Whether a file begins as SQLite databases do."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def unmerged(path: Path) -> tuple[Path, ...]:
    """Files beside a database that hold changes it does not: a write-ahead log or a rollback journal."""
    beside = (path.with_name(path.name + suffix) for suffix in _UNMERGED)
    return tuple(file for file in beside if file.is_file() and file.stat().st_size > 0)


def whole(value: object) -> int | None:
    """A whole number that a column holds as such or as decimal text; None for anything else.

    A float counts only as long as it still tells neighbouring numbers apart.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _EXACT_FLOAT else None
    if not isinstance(value, str) or len(value) > 40:  # longer than any time
        return None
    try:
        number = Decimal(value.strip())
        return int(number) if number.is_finite() and number == number.to_integral_value() else None
    except InvalidOperation:
        return None


def known(value: object) -> int | None:
    """The same for ids, ranks and streams, whose highest unsigned numbers mean that there is none."""
    number = value if type(value) is int else whole(value)
    return None if number is None or not 0 <= number < _NO_ID or number in NO_NUMBERS else number


def companions(databases: Iterable[Path], files: Iterable[Path]) -> list[Path]:
    """Those of the files that SQLite keeps beside one of the databases, with changes of its own or without."""
    names = {database.with_name(database.name + suffix) for database in databases for suffix in _BESIDE}
    return sorted(names & set(files))


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a database, for reading only.

    Args:
        path: The file; nothing is written beside it.

    Raises:
        MalformedTrace: If changes lie beside it, and there is no room for a copy to merge them in.
    """
    beside = unmerged(path)
    with TemporaryDirectory(prefix="tracetool-") as folder:
        if beside:
            copy = Path(folder) / "copy.db"
            try:
                shutil.copyfile(path, copy)
                for file, suffix in ((f, f.name.removeprefix(path.name)) for f in beside):
                    shutil.copyfile(file, f"{copy}{suffix}")
            except OSError as error:
                raise MalformedTrace(
                    f"{path}: {beside[0].name} holds changes, but both cannot be copied to merge them: {error}.",
                    hint="make room in the folder for temporary files (TMPDIR)",
                ) from error
            uri = f"{copy.as_uri()}?mode=rw"
        else:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            yield connection


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """A database, for reading only; see :func:`connected`."""
    with connected(path) as connection:
        yield Database(path, connection)


class Database:
    """The tables of one file.

    Attributes:
        path: The file.
        tables: Table names to their column names; empty if the schema cannot be read.
        failure: Why the schema cannot be read; empty if it can.
        again: How to get a whole one.
    """

    again = "copy the file again, or parse the capture again with the profiler's own analysis"

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.tables: dict[str, frozenset[str]] = {}
        self.failure = ""
        self._connection = connection
        self._gaps: dict[str, list[str]] = {}
        self._keys: dict[str, str] = {}
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _ROW_BYTES)
        try:
            # The second lets damaged or newer declarations of other tables be passed over.
            for setting in ("trusted_schema=OFF", "writable_schema=ON", "query_only=ON", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {setting}")
            self._read_schema()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            self.failure = str(error)
        if not self.tables and not self.failure and self._short():
            self.failure = "its tables are cut off"

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with all these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def is_key(self, table: str, column: str) -> bool:
        """Whether a column is the table's integer primary key, so that rows are found by it at once."""
        return self._keys.get(table) == column

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The named columns of every row that can be read, in order of rowid; absent columns are None.

        Args:
            table: Its name; without such a table there are no rows.
            columns: Their names.
        """
        return self.rows_from(FIRST_ROWID, table, *columns)

    def rows_from(self, start: int, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The same from a rowid on."""
        if table not in self.tables:
            return
        chosen = ", ".join(f'"{c}"' if c in self.tables[table] else "NULL" for c in columns) or "NULL"
        for _ in range(_MOST_GAPS):
            query = f'SELECT _rowid_, {chosen} FROM "{table}" WHERE _rowid_ >= ? ORDER BY _rowid_'
            try:
                for numbered in self._connection.execute(query, (start,)):
                    start = numbered[0] + 1
                    yield numbered[1:]
                return
            except (sqlite3.Error, UnicodeDecodeError) as error:
                reason = str(error)
            # The sqlite3 module steps ahead: the row before the damage was not handed out yet.
            ahead = self._row(table, chosen, start)
            if ahead:
                start = ahead[0] + 1
                yield ahead[1:]
            self._lose(table, f"{reason}, from row {max(start, 0)} on")
            resumed = self._resume(table, chosen, max(start, 0))
            if resumed is None:
                return
            start = resumed
        self._lose(table, "too many damaged places: the rest is left")

    def text_by_key(self, table: str, key: str, column: str, number: int) -> str | None:
        """The beginning of a text in the row of a key; None if there is none or it cannot be read."""
        query = f'SELECT substr("{column}", 1, {_NAME_CHARACTERS}) FROM "{table}" WHERE "{key}" = ?'
        try:
            row = self._connection.execute(query, (number,)).fetchone()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as error:
            self._lose(table, str(error))
            return None
        (name,) = row or (None,)
        return None if name is None else str(name)

    def distinct(self, table: str, column: str) -> set[object]:
        """The values of a column; of a table that is absent there are none."""
        if not self.has(table, column):
            return set()
        try:
            return {value for (value,) in self._connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}"')}
        except (sqlite3.Error, UnicodeDecodeError):
            return {value for (value,) in self.rows(table, column)}

    def count(self, table: str) -> int:
        """Rows that can be read."""
        return sum(1 for _ in self.rows(table))

    @property
    def damaged(self) -> bool:
        """Whether anything of it could not be read so far."""
        return bool(self._gaps or self.failure)

    def malformed(self) -> MalformedTrace:
        """The error to raise where nothing of it can be read."""
        reasons = [self.failure, *(reason for gaps in self._gaps.values() for reason in gaps)]
        reason = next(filter(None, reasons), "it has no tables")
        return MalformedTrace(
            f"{self.path}: nothing of this database can be read: {reason}{self._short()}.",
            hint=self.again,
        )

    def record_gaps(self, report: SourceReport) -> None:
        """Count what could not be read, and say what the file is short of."""
        if not self._gaps and not self.failure:
            return
        if self.failure:
            report.drop("database that cannot be read", FilePlace(str(self.path), 0))
            report.note(
                SourceCode.FILES_DAMAGED, f"{self.path.name}: nothing of it can be read: {self.failure}{self._short()}"
            )
        for table, reasons in self._gaps.items():
            reason = f"stretch of {table} that cannot be read, of how many rows is unknown{self._short()}"
            report.drop(reason, FilePlace(str(self.path), 0), len(reasons))
            report.note(
                SourceCode.TABLES_DAMAGED,
                f"{self.path.name}: {table} is damaged in {len(reasons)} places (the first {reasons[0]}): "
                f"how many of its rows are lost is unknown{self._short()}",
            )

    def _short(self) -> str:
        with self.path.open("rb") as stream:
            header = stream.read(_HEADER_BYTES)
        size, expected = self.path.stat().st_size, 0
        if len(header) == _HEADER_BYTES and not unmerged(self.path):
            page = int.from_bytes(header[16:18], "big")
            expected = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
        return f"; the file has {size:,} of {expected:,} bytes" if size < expected else ""

    def _read_schema(self) -> None:
        listed = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE TABLE%' AND length(name) < 200"
        )
        for name in [name for name in (str(name) for (name,) in listed) if '"' not in name]:
            try:
                listed_columns = self._connection.execute(f'PRAGMA table_info("{name}")').fetchall()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self._lose(name, str(error))
                continue
            if listed_columns:
                self.tables[name] = frozenset(str(column) for _, column, *_ in listed_columns)
            keys = [(str(column), str(kind)) for _, column, kind, _, _, is_key in listed_columns if is_key]
            if [kind.upper() for _, kind in keys] == ["INTEGER"]:
                ((self._keys[name], _),) = keys

    def _lose(self, table: str, reason: str) -> None:
        self._gaps.setdefault(table, [])
        if reason not in self._gaps[table]:
            self._gaps[table].append(reason)

    def _resume(self, table: str, chosen: str, bad: int) -> int | None:
        """A rowid after this unreadable one from which on rows can be read; None if there is none."""
        step, is_readable = 1, False
        good = bad
        while not is_readable and good < _LAST_ROWID:
            good = min(bad + step, _LAST_ROWID)
            row = self._row(table, chosen, good)
            if row is None:
                break  # beyond the last row: those between may be whole
            is_readable = bool(row)
            if not is_readable:
                bad, step = good, step * 2
        while good - bad > 1:
            middle = (good + bad) // 2
            row = self._row(table, chosen, middle)
            if row == ():
                bad = middle
            else:
                good, is_readable = middle, is_readable or row is not None
        return good if is_readable else None

    def _row(self, table: str, chosen: str, start: int) -> tuple[Any, ...] | None:
        """The row at or after this rowid, an empty one if it cannot be read; None if there is none."""
        query = f'SELECT _rowid_, {chosen} FROM "{table}" WHERE _rowid_ >= ? ORDER BY _rowid_ LIMIT 1'
        try:
            row: tuple[Any, ...] | None = self._connection.execute(query, (start,)).fetchone()
        except (sqlite3.Error, OverflowError, UnicodeDecodeError):
            return ()
        return row


class Names:
    """Text of ``STRING_IDS`` by id: looked up one by one, as long captures keep their call stacks there too.

    Args:
        database: Where the table is.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._texts: dict[int, str | None] = {}
        self._by_key = database.is_key("STRING_IDS", "id")
        if not self._by_key:
            texts = database.rows("STRING_IDS", "id", "value")
            self._texts = {number: str(text)[:_NAME_CHARACTERS] for number, text in texts if text is not None}

    def text(self, number: object) -> str | None:
        """What an id stands for; None if nothing tells."""
        if isinstance(number, str):
            return number
        if not isinstance(number, int):
            return None
        if number not in self._texts and self._by_key and self._database.has("STRING_IDS", "value"):
            if len(self._texts) >= _MOST_NAMES:
                self._texts.clear()
            self._texts[number] = self._database.text_by_key("STRING_IDS", "id", "value", number)
        return self._texts.get(number)


def enumeration(database: Database, table: str) -> dict[int, str]:
    """An ``ENUM_`` table: number to name."""
    numbered = ((whole(number), name) for number, name in database.rows(table, "id", "name"))
    return {number: str(name) for number, name in numbered if number is not None}
