"""The map in tests/README.md against the tree: the first line of each docstring is the source."""

from __future__ import annotations

import ast
import re
import symtable
from typing import TYPE_CHECKING

from helpers.recorded import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _purpose(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def _table(section: str) -> dict[str, str]:
    text = (ROOT / "tests" / "README.md").read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))


def test_the_map_lists_every_room() -> None:
    rooms = {path.parent.name: _purpose(path) for path in (ROOT / "tracetool").glob("*/__init__.py")}
    assert _table("Rooms") == rooms


def test_the_map_lists_every_helper() -> None:
    helpers = {path.stem: _purpose(path) for path in (ROOT / "tests" / "helpers").glob("*.py")}
    assert _table("Helpers") == helpers


def _free_names(table: symtable.SymbolTable) -> set[str]:
    of_module = table.get_type() == "module"
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and not symbol.is_imported() and (symbol.is_global() or of_module)
    }
    return names.union(*map(_free_names, table.get_children()))


def test_no_package_uses_a_name_that_a_module_of_it_takes() -> None:
    """Importing a module binds its name in its package: ``map`` in the package is that module from then on."""
    for path in (ROOT / "tracetool").rglob("__init__.py"):
        text = path.read_text("utf-8")
        imported = {name.asname or name.name for node in ast.parse(text).body for name in getattr(node, "names", ())}
        modules = {other.stem for other in path.parent.glob("*.py")} - {"__init__"}
        assert not modules & _free_names(symtable.symtable(text, str(path), "exec")) - imported, path
