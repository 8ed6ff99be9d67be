"""The lens on Runs: DuckDB with one view per table, the views and macros of ``sql/``, and queries that only read."""

from __future__ import annotations

import re
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import msgspec

from tracetool.errors import BadQuery, command_or_call
from tracetool.store import pattern
from tracetool.tables.fields import doc
from tracetool.tables.metrics import IN_REPORTS
from tracetool.tables.results import FIELDS, OF_A_PREDICTION, P2P_MODES
from tracetool.tables.run import OF_A_PIPELINE, TABLES, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    import duckdb
    import polars as pl
    import pyarrow as pa
    from numpy.typing import NDArray

    Parameters = Sequence[object] | Mapping[str, object] | None

T = TypeVar("T")
_COMMENT = "COMMENT ON "
_SQL_TYPES = {
    "int64": "BIGINT", "int32": "INTEGER", "float64": "DOUBLE", "bool": "BOOLEAN", "string": "VARCHAR",
    "category": "VARCHAR", "list<int32>": "INTEGER[]",
}  # fmt: skip
_QUERY_MEMORY = "1GB"
_SMALL_BYTES = 32_000_000
_MACRO = re.compile(r"CREATE MACRO (\w+)")
_LISTING = re.compile(
    r"information_schema|duckdb_|pg_|sqlite_|pragma|\b(?:show|describe|summarize)\b|^\s*desc\b", re.IGNORECASE
)


def connect(folders: Sequence[Path], size_bytes: int) -> duckdb.DuckDBPyConnection:
    """An in-memory DuckDB that reaches no file but those of some folders; ``seal`` takes the rest away.

    Args:
        folders: Those of the Runs to read.
        size_bytes: Of the files in them that may be asked for.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET enable_progress_bar = false")
    connection.execute(f"SET memory_limit = '{_QUERY_MEMORY}'")
    if size_bytes < _SMALL_BYTES:
        # Threads cost more than they bring on small tables, most of all beside other processes.
        connection.execute("SET threads = 1")
    # What each file holds takes longer to read than what is asked for, even of a few.
    connection.execute("SET parquet_metadata_cache = true")
    allowed = dict.fromkeys(name for folder in folders for name in (str(folder.absolute()), pattern(folder)))
    connection.execute(f"SET allowed_directories = [{', '.join(map(quoted, allowed))}]")
    connection.execute("SET enable_external_access = false")
    return connection


def seal(connection: duckdb.DuckDBPyConnection) -> None:
    """Let no query change the settings any more."""
    connection.execute("SET lock_configuration = true")


def table_sources(folder: Path) -> dict[str, str]:
    """For each table of a Run, what to select from to read it."""
    return {name: f"read_parquet({quoted(f'{pattern(folder)}/{name}/*.parquet')})" for name in TABLES}


def files_source(folder: Path, names: Iterable[str]) -> str:
    """What to select from to read some of a Run's files, named within it."""
    return f"read_parquet([{', '.join(quoted(f'{pattern(folder)}/{name}') for name in names)}])"


def empty_source(table: Table) -> str:
    """What to select from for a table without rows."""
    columns = ", ".join(f"NULL::{_SQL_TYPES[column.type]} AS {column.name}" for column in table.columns)
    return f"(SELECT {columns} WHERE false)"


class Views:
    """Views of tables, the views and the macros of ``sql/``, without comments: each is made once a query names it.

    To make all of them takes longer than most queries.

    Args:
        connection: They are made in its current schema.
        sources: For each table, what its view selects from.
        tables: Whether tables are views of that, or copies.
        have: Told which of them are wanted before they are opened.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        sources: Mapping[str, str],
        *,
        tables: Literal["VIEW", "TABLE"] = "VIEW",
        have: Callable[[Iterable[str]], None] = lambda _names: None,
    ) -> None:
        self._connection = connection
        self._have = have
        self._waiting = _creating(sources, tables)
        self._macros = sql_text("macros")

    def made_for(self, query: str) -> duckdb.DuckDBPyConnection:
        """The connection, with all that the words of a query name; with everything if it may ask what there is."""
        if self._waiting or self._macros:
            self._make(None if _LISTING.search(query) else _words(query))
        return self._connection

    def all_made(self) -> duckdb.DuckDBPyConnection:
        """The connection, with everything."""
        self._make(None)
        return self._connection

    def _make(self, words: set[str] | None) -> None:
        wanted = set(self._waiting) if words is None else words
        # Each stands behind all that it selects from.
        for name in reversed(self._waiting):
            if name in wanted:
                wanted |= _words(self._waiting[name])
        if self._macros and (words is None or not wanted.isdisjoint(_MACRO.findall(self._macros))):
            self._connection.execute(self._macros)
            self._macros = ""
        made = [name for name in self._waiting if name in wanted]
        self._have(name for name in made if name in TABLES)
        for name in made:
            self._connection.execute(self._waiting[name])
            del self._waiting[name]


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def make_views(connection: duckdb.DuckDBPyConnection, sources: Mapping[str, str]) -> None:
    """Make every view in the current schema, without comments."""
    connection.execute(";\n".join(_creating(sources).values()))


def _creating(sources: Mapping[str, str], tables: Literal["VIEW", "TABLE"] = "VIEW") -> dict[str, str]:
    """What makes each view, in order."""
    return {name: f"CREATE {tables} {name} AS SELECT * FROM {sources[name]}" for name in TABLES} | _view_texts()


def add_comments(connection: duckdb.DuckDBPyConnection) -> None:
    """Give the views of the current schema, and their columns, their comments."""
    lines = view_statements(dict.fromkeys(TABLES, "")).splitlines()
    connection.execute("\n".join(line for line in lines if line.startswith(_COMMENT)))


class Lens:
    """Read-only queries; a subclass has the connection."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """What queries run on, with every view."""
        raise NotImplementedError

    def _connection_for(self, sql: str) -> duckdb.DuckDBPyConnection:
        """The same with the views that this query needs, at least."""
        raise NotImplementedError

    @cached_property
    def _statements(self) -> dict[str, duckdb.Statement]:
        """Texts that were parsed before: of the same small question again and again, that is a fifth."""
        return {}

    def query(self, sql: str, parameters: Parameters = None) -> pl.DataFrame:
        """Run a query over the Run's tables and views.

        Raises:
            BadQuery: If DuckDB refuses it; its own message is kept.

        Example:
            >>> run.query("SELECT kind, count(*) AS actions FROM ops GROUP BY ALL ORDER BY ALL").rows()
            [('B', 32), ('F', 32), ('OPTIMIZER', 4)]
        """
        return self._answer(sql, parameters, _frame)

    def arrow(self, sql: str, parameters: Parameters = None) -> pa.Table:
        """Run a query and return its rows as an Arrow table; see :meth:`query`.

        Example:
            >>> run.arrow("SELECT src_rank, count(*) AS sent FROM transfers GROUP BY ALL ORDER BY ALL").to_pydict()
            {'src_rank': [0, 1, 2, 3], 'sent': [8, 16, 16, 8]}
        """
        return self._answer(sql, parameters, lambda relation: _with_int64(relation.to_arrow_table()))

    def rows(self, sql: str, parameters: Parameters = None) -> list[tuple[Any, ...]]:
        """Run a query and return its rows as tuples; see :meth:`query`."""
        return self._fetched(sql, parameters)[1]

    def records(self, sql: str, parameters: Parameters = None) -> list[dict[str, Any]]:
        """Run a query and return its rows by column name; see :meth:`query`."""
        columns, rows = self._fetched(sql, parameters)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def columns(self, sql: str, parameters: Parameters = None) -> dict[str, NDArray[Any]]:
        """Run a query and return its columns as NumPy arrays, masked where there are nulls; see :meth:`query`."""
        return self._executed(sql, parameters, lambda done: done.fetchnumpy())

    def count(self, table: str, column: str = "*") -> int:
        """Rows of a table in which a column, by default any, is not null."""
        ((count,),) = self.rows(f"SELECT count({column}) FROM {table}")
        return int(count)

    def _fetched(self, sql: str, parameters: Parameters) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Names of columns, and rows."""
        return self._executed(sql, parameters, lambda done: ([c[0] for c in done.description], done.fetchall()))

    def _executed(self, sql: str, parameters: Parameters, take: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        def taken(connection: duckdb.DuckDBPyConnection) -> T:
            parsed = self._statements.get(sql) or self._statements.setdefault(sql, _statement(connection, sql))
            # A relation is bound once to know its columns, and again to run: of many small queries that is a fifth.
            return take(connection.execute(parsed, parameters or None))

        return self._asked(sql, taken)

    def _answer(self, sql: str, parameters: Parameters, take: Callable[[duckdb.DuckDBPyRelation], T]) -> T:
        def taken(connection: duckdb.DuckDBPyConnection) -> T:
            _statement(connection, sql)
            relation = connection.sql(sql, params=parameters or None)
            if relation is None:
                raise BadQuery("the statement returns no rows.")
            return take(relation)

        return self._asked(sql, taken)

    def _asked(self, sql: str, ask: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        import duckdb

        try:
            try:
                return ask(self._connection_for(sql))
            except duckdb.CatalogException:
                # What it names may be put together from parts; and candidates are suggested out of all there is.
                return ask(self.connection)
        except duckdb.Error as error:
            raise _refused(error) from error


def _statement(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The one statement of a text; it only reads."""
    import duckdb

    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise BadQuery(str(error)) from error
    reading = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in reading:
        raise BadQuery(
            f"one statement that reads is expected, found {len(statements) or 'none'}"
            + (f" ({', '.join(s.type.name for s in statements)})" if statements else "")
            + ".",
            hint="name PIVOT's values, as in PIVOT ops ON kind IN ('F', 'B') USING sum(duration_ns)"
            if [s.type for s in statements] == [duckdb.StatementType.MULTI]
            else "a Run is read-only: use a single SELECT, or none to list tables and views",
        )
    return statements[0]


def _refused(error: Exception) -> BadQuery:
    lists = command_or_call("tracetool sql RUN", "run.query('DESCRIBE')")
    return BadQuery(str(error), hint=f"{lists} lists tables, views and columns")


def _frame(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """The rows as a frame: sums of integers as int64 where they fit, intervals of time as text (Polars has none)."""
    import polars as pl

    kinds = dict(zip(relation.columns, map(str, relation.types), strict=True))
    if any("INTERVAL" in kind for kind in kinds.values()):
        columns = [
            f"{identifier(name)}::VARCHAR AS {identifier(name)}" if "INTERVAL" in kind else identifier(name)
            for name, kind in kinds.items()
        ]
        relation = relation.project(", ".join(columns))
    frame = cast("pl.DataFrame", relation.pl())
    whole = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Decimal) and not kind.scale]
    casts = [frame[name].cast(pl.Int64, strict=False) for name in whole]
    return frame.with_columns(column for column in casts if column.null_count() == frame[column.name].null_count())


def _with_int64(table: pa.Table) -> pa.Table:
    """Sums of integers (DuckDB's HUGEINT, in Arrow decimals of 38 digits) as int64 where they fit."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and not field.type.scale:
            try:
                table = table.set_column(place, field.name, table.column(place).cast(pa.int64()))
            except pa.ArrowInvalid:
                continue
    return table


def view_statements(sources: Mapping[str, str], *, tables: Literal["VIEW", "TABLE"] = "VIEW") -> str:
    """SQL that makes every view, with comments on views and columns.

    Args:
        sources: For each table, what it selects from.
        tables: Whether tables are views of that, or copies.
    """
    statements = []
    for name, table in TABLES.items():
        statements.append(f"CREATE {tables} {name} AS SELECT * FROM {sources[name]};")
        statements.append(f"COMMENT ON {tables} {name} IS {quoted(table.doc)};")
        statements += [f"COMMENT ON COLUMN {name}.{c.name} IS {quoted(c.doc)};" for c in table.columns]
    return "\n".join(statements) + "\n" + _views()


def _views() -> str:
    """The views of ``sql/views.sql``, with the figures of a step as they are declared."""
    views, comments = sql_text("views"), []
    for place, names, added in (("a step", IN_REPORTS, ""), ("a prediction", OF_A_PREDICTION, " NULL if observed.")):
        columns = []
        for name in names:
            whole = "::BIGINT" if FIELDS[name].type == "int64" else ""
            columns.append(f"max(value) FILTER (metric = '{name}'){whole} AS {name}")
            comments.append(f"COMMENT ON COLUMN schedule_comparison.{name} IS {quoted(FIELDS[name].doc + added)}")
        views = views.replace(f"{{figures of {place}}}", ",\n    ".join(columns))
    issued = f"{FIELDS['p2p'].doc} NULL of what was only recorded."
    comments.append(f"COMMENT ON COLUMN schedule_comparison.p2p IS {quoted(issued)}")
    views = views.replace("{modes of transfers}", f"[{', '.join(map(quoted, P2P_MODES))}]")
    return views.replace("{what they mean}", ";\n".join(comments))


def _view_texts() -> dict[str, str]:
    """What makes each view of ``sql/views.sql``, in order."""
    return {name: text for text, name in re.findall(r"(CREATE VIEW (\w+) AS.*?);", _views(), re.DOTALL)}


def sql_text(name: str) -> str:
    """The text of a file in ``tracetool/store/sql``."""
    return (files("tracetool.store") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def view_docs() -> dict[str, str]:
    """Name and comment of each view in ``sql/views.sql``."""
    return _docs(r"COMMENT ON VIEW (\w+)", sql_text("views"))


def of_a_pipeline() -> set[str]:
    """Tables and views that only a reconstructed pipeline fills: those of it, and views of any such."""
    names = {table.name for table in OF_A_PIPELINE}
    for view, text in _view_texts().items():
        names |= {view} if names.intersection(re.findall(r"(?:FROM|JOIN)\s+(\w+)", text)) else set()
    return names


def macro_docs() -> dict[str, str]:
    """Call and comment of each macro in ``sql/macros.sql``."""
    text = sql_text("macros")
    calls = {call.partition("(")[0]: call for call in re.findall(r"CREATE MACRO (\w+\([^)]*\))", text)}
    return {calls[name]: doc for name, doc in _docs(r"COMMENT ON MACRO (?:TABLE )?(\w+)", text).items()}


def _docs(pattern: str, text: str) -> dict[str, str]:
    docs = re.findall(pattern + r" IS '((?:[^']|'')*)'", text)
    return {name: doc.replace("''", "'") for name, doc in cast("list[tuple[str, str]]", docs)}


class Example(msgspec.Struct, frozen=True):
    """A query to learn from."""

    question: Annotated[str, doc("What it answers.")]
    query: Annotated[str, doc("The SQL.")]


def examples(of: Literal["one", "several"] = "one") -> list[Example]:
    """The queries of ``sql/examples.sql``, or of ``sql/several.sql``: each has its question as a comment above it.

    Args:
        of: Whether they are for one Run, or compare several.
    """
    text = sql_text("examples" if of == "one" else "several")
    parts = re.split(r"^-- ", text, flags=re.MULTILINE)[1:]
    return [Example(*(text.strip().rstrip(";") for text in part.split("\n", 1))) for part in parts]


def identifier(text: str) -> str:
    """Text as the name of a column."""
    return '"' + text.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """Text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
