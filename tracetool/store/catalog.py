"""Several Runs side by side under names, and a Run as a database for other clients."""

from __future__ import annotations

import re
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tracetool.errors import BadQuery
from tracetool.store.query import (
    Lens,
    Views,
    add_comments,
    connect,
    empty_source,
    make_views,
    quoted,
    seal,
    sql_text,
    table_sources,
    view_docs,
    view_statements,
)
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import duckdb

    from tracetool.store.run import Run

_SCHEMAS = frozenset({"main", "temp", "system", "memory", "information_schema", "pg_catalog"})


@cache
def _reserved() -> frozenset[str]:
    """Names that SQL takes for something else unless they are quoted."""
    import duckdb

    with duckdb.connect(":memory:") as connection:
        rows = connection.execute("SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category = 'reserved'")
        return _SCHEMAS.union(word for (word,) in rows.fetchall())


class Catalog(Lens):
    """Runs under names: each is a schema, and unqualified tables and views are those of all, with a column ``run``.

    Args:
        runs: Name to Run; names are identifiers, as ``names_for`` gives them.

    Raises:
        BadQuery: If a name is none that SQL can hold without quotes.
    """

    def __init__(self, runs: Mapping[str, Run]) -> None:
        for name in runs:
            if not re.fullmatch(r"[a-z_][a-z0-9_]*", name) or name in _reserved():
                raise BadQuery(
                    f"{name!r} cannot name a Run in a query"
                    + (" (SQL has a use for it)." if name in _reserved() else "."),
                    hint="name it with small letters, digits and _, as in base=path/to/x.run",
                )
        self.runs = dict(runs)

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with a schema per Run; queries reach no files beyond the Runs and change nothing."""
        for run in self.runs.values():
            run.have(TABLES)
        connection = connect(
            [run.folder for run in self.runs.values()], sum(run.size_bytes for run in self.runs.values())
        )
        connection.execute(sql_text("macros"))
        for name, run in self.runs.items():
            connection.execute(f'CREATE SCHEMA "{name}"')
            connection.execute(f"SET schema = '{name}'")
            make_views(connection, run.sources)
        _make_views_of_all(connection, list(self.runs))
        seal(connection)
        return connection

    def _connection_for(self, _sql: str) -> duckdb.DuckDBPyConnection:
        return self.connection


class Shapes(Lens):
    """Every table, view and macro as any Run has them, with comments and without rows: no file is opened."""

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """An in-memory DuckDB with all of them."""
        connection = Views(connect([], 0), {name: empty_source(table) for name, table in TABLES.items()}).all_made()
        add_comments(connection)
        return connection

    def _connection_for(self, _sql: str) -> duckdb.DuckDBPyConnection:
        return self.connection


def _make_views_of_all(connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> None:
    """Tables and views of all Runs one below another, each row with the name of its Run."""
    connection.execute("SET schema = 'main'")
    for view in (*TABLES, *view_docs()):
        each = " UNION ALL BY NAME ".join(f'SELECT {quoted(name)} AS run, * FROM "{name}".{view}' for name in names)
        connection.execute(f"CREATE VIEW {view} AS {each}")


def names_for(paths: Sequence[Path]) -> list[str]:
    """A name for each Run by its folder: ``base.run`` is ``base``, the second of a kind ``base_2``."""
    names: list[str] = []
    for path in paths:
        stem = re.sub(r"[^a-z0-9_]+", "_", path.name.removesuffix(".run").lower()).strip("_")
        base = f"run_{stem}" if not stem or stem[0].isdigit() or stem in _reserved() else stem
        name, number = base, 2
        while name in names:
            name, number = f"{base}_{number}", number + 1
        names.append(name)
    return names


def save_database(runs: Mapping[str, Run], path: Path) -> None:
    """Copy Runs into a DuckDB file with all tables, views, macros and comments.

    Args:
        runs: Name to Run; a single one needs no schema of its own, several get one each.
        path: File to make; it must not exist.
    """
    import duckdb

    with duckdb.connect(str(path)) as connection:
        connection.execute(sql_text("macros"))
        for name, run in runs.items():
            if len(runs) > 1:
                connection.execute(f'CREATE SCHEMA "{name}"')
                connection.execute(f"SET schema = '{name}'")
            run.have(TABLES)
            connection.execute(view_statements(table_sources(run.folder), tables="TABLE"))
        if len(runs) > 1:
            _make_views_of_all(connection, list(runs))
