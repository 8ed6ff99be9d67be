"""Records are built by the names of their fields, and rows are read by the names of their columns."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from helpers.parsed import last_name, nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MOST_BY_POSITION = 6
ROWS = ("rows", "fetchall", "fetchone")


def _records(module: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Dataclasses, named tuples and structs of a module, and how many fields each has of its own."""
    for node in module:
        if isinstance(node, ast.ClassDef):
            signs = [ast.unparse(each) for each in (*node.decorator_list, *node.bases)]
            if any(word in sign for sign in signs for word in ("dataclass", "NamedTuple", "Struct")):
                yield node.name, sum(isinstance(each, ast.AnnAssign) for each in node.body)


def _built_by_position(module: Iterable[ast.AST], fields: dict[str, int]) -> list[int]:
    """Lines that build a record from more values than a reader can count, or from a row of unknown length."""
    return [
        node.lineno
        for node in module
        if isinstance(node, ast.Call)
        and (name := last_name(node.func)) in fields
        and (
            len(node.args) > MOST_BY_POSITION
            or (fields[name] > MOST_BY_POSITION and any(isinstance(each, ast.Starred) for each in node.args))
        )
    ]


def _read_by_position(module: Iterable[ast.AST]) -> list[int]:
    """Lines that take a value of a row by its number."""
    return [
        node.lineno
        for node in module
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and isinstance(node.slice.value, int)
        and (
            (isinstance(node.value, ast.Name) and node.value.id in ("row", "record"))
            or (isinstance(node.value, ast.Call) and last_name(node.value.func) in ROWS)
        )
    ]


def test_no_record_of_the_product_is_built_from_many_values_by_position() -> None:
    fields: dict[str, int] = {}
    for module in nodes().values():
        for name, count in _records(module):
            fields[name] = max(count, fields.get(name, 0))
    assert len(fields) > 100
    found = {
        str(path): lines
        for path, module in nodes().items()
        if (lines := _built_by_position(module, fields | dict(_records(module))))
    }
    assert found == {}


def test_no_row_is_read_by_position() -> None:
    found = {str(p): lines for p, m in nodes().items() if (lines := _read_by_position(m))}
    assert found == {}


def _nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


def test_what_is_not_wanted_is_found() -> None:
    module = _nodes_of("Wide(1, 2, 3, 4, 5, 6, 7)\nWide(*row)\nNarrow(*row)\nWide(1, a=2)")
    assert _built_by_position(module, {"Wide": 7, "Narrow": 2}) == [1, 2]
    assert _read_by_position(_nodes_of("row[3]\nrun.rows(sql)[0]\nrow['a']\ncells[0]")) == [1, 2]
