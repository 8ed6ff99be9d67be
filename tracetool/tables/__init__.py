"""Every table and its columns, declared once.

What a table is made of: columns, their types and what they mean.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    import pyarrow as pa


SCHEMA_VERSION = "4.1"

ColumnType = Literal["int64", "int32", "float64", "bool", "string", "category", "list<int32>", "list<string>"]

_JSON_TYPES: dict[str, dict[str, Any]] = {
    "int64": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "int32": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "float64": {"type": "number"},
    "bool": {"type": "boolean"},
    "string": {"type": "string"},
    "category": {"type": "string"},
    "list<int32>": {"type": "array", "items": {"type": "integer"}},
    "list<string>": {"type": "array", "items": {"type": "string"}},
}
_UNITS = (("_bytes_per_s", "B/s"), ("_bytes", "B"), ("_ns", "ns"), ("_ratio", "1"))


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its type (``category`` is a dictionary-encoded string) and what it means."""

    name: str
    type: ColumnType
    doc: str
    nullable: bool = False

    def json_schema(self) -> dict[str, Any]:
        """What a value is as JSON."""
        kind = dict(_JSON_TYPES[self.type])
        if self.nullable:
            kind["type"] = [kind["type"], "null"]
        kind |= {"description": self.doc, "x-arrow-type": self.type}
        unit = next((unit for suffix, unit in _UNITS if self.name.endswith(suffix)), None)
        return kind | ({"x-unit": unit} if unit else {})


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what a row is, its columns, and the schema's minor version that brought it."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    since_minor: int = 0

    def json_schema(self) -> dict[str, Any]:
        """What a row is as JSON."""
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [column.name for column in self.columns],
            "properties": {column.name: column.json_schema() for column in self.columns},
        }

    def select(self, names: Sequence[str] | None = None) -> Sequence[Column]:
        """Columns by name, in order; without names all."""
        by_name = {column.name: column for column in self.columns}
        return [by_name[name] for name in names] if names else self.columns

    def arrow_schema(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The Arrow schema, with the doc lines as field metadata.

        Args:
            names: Columns to have, in order; by default all.
        """
        return _arrow_schema(self, None if names is None else tuple(names))

    def arrow(self, rows: Sequence[Sequence[object]]) -> pa.Table:
        """Rows as Arrow.

        Args:
            rows: What each is of: mappings by column name, or objects with attributes of these names. The first that
                has a column gives its value, and without any it is null.
        """
        import pyarrow as pa

        schema = self.arrow_schema()
        values = [[_value(sources, field.name) for sources in rows] for field in schema]
        arrays = [pa.array(each, field.type) for each, field in zip(values, schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=schema)


@cache
def _arrow_schema(table: Table, names: tuple[str, ...] | None) -> pa.Schema:
    import pyarrow as pa

    types = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "string": pa.string(),
        "category": pa.dictionary(pa.int32(), pa.string()),
        "list<int32>": pa.list_(pa.int32()),
        "list<string>": pa.list_(pa.string()),
    }
    return pa.schema(
        [pa.field(c.name, types[c.type], nullable=c.nullable, metadata={"doc": c.doc}) for c in table.select(names)],
        metadata={"doc": table.doc, "schema_version": SCHEMA_VERSION},
    )


def _value(sources: Sequence[object], name: str) -> object:
    for source in sources:
        if isinstance(source, Mapping):
            if name in source:
                return source[name]
        elif hasattr(source, name):
            return getattr(source, name)
    return None


def table(name: str, doc: str, *columns: Column, since_minor: int = 0) -> Table:
    """A table, its columns listed one by one."""
    return Table(name, doc, columns, since_minor)


def nullable(name: str, kind: ColumnType, doc: str) -> Column:
    """A column whose value may be unknown."""
    return Column(name, kind, doc, nullable=True)


class _NoPandas:
    """Finds modules as long as Arrow looks for pandas: none of that name."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


class _BehindArrow:
    """Finds Arrow, and has it look for pandas in vain as soon as it is loaded."""

    @classmethod
    def find_spec(cls, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != "pyarrow":
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                leave_pandas()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def leave_pandas() -> None:
    """Keep Arrow from loading pandas for its first array, in a process of this tool's own; Arrow itself is not loaded.

    It would be of no use here, and takes a third of a second where it is installed.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None:
        sys.meta_path.insert(0, _BehindArrow)
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        arrow.array(())  # Arrow looks once
    finally:
        sys.meta_path.remove(_NoPandas)


RARELY = (50_000, 20, 1000)
"""Thresholds of Python's collector for what makes millions of rows and hardly a cycle: what is kept for good is never
looked through again for some, which took up to a quarter of the time."""


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Have Python look for cycles as seldom as ``RARELY`` says, then as often as before."""
    before = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*before)
