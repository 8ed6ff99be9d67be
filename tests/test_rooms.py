"""The map in tests/README.md against the tree: the first line of each docstring is the source."""

from __future__ import annotations

import ast
import re
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
