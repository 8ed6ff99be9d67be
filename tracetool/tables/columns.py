"""What a table is made of: columns, their types and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

SCHEMA_VERSION = "4.1"

ColumnType = Literal["int64", "int32", "float64", "bool", "string", "category", "list<int32>"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type (``category`` is a dictionary-encoded string) and what it means."""

    name: str
    type: ColumnType
    doc: str
    nullable: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, its columns, and the schema's minor version that brought it."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    since_minor: int = 0

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema, with the doc lines as field metadata.

        Args:
            names: Columns to have, in order; by default all.
        """
        import pyarrow as pa

        types = {
            "int64": pa.int64(),
            "int32": pa.int32(),
            "float64": pa.float64(),
            "bool": pa.bool_(),
            "string": pa.string(),
            "category": pa.dictionary(pa.int32(), pa.string()),
            "list<int32>": pa.list_(pa.int32()),
        }
        by_name = {column.name: column for column in self.columns}
        columns = self.columns if names is None else [by_name[name] for name in names]
        return pa.schema(
            [pa.field(c.name, types[c.type], nullable=c.nullable, metadata={"doc": c.doc}) for c in columns],
            metadata={"doc": self.doc, "schema_version": SCHEMA_VERSION},
        )


def table(name: str, doc: str, *columns: Column, since_minor: int = 0) -> Table:
    """A table, its columns listed one by one."""
    return Table(name, doc, columns, since_minor)


def nullable(name: str, kind: ColumnType, doc: str) -> Column:
    """A column whose value may be unknown."""
    return Column(name, kind, doc, nullable=True)
