"""The product's modules as syntax trees, parsed once per worker and not while tests are collected."""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from helpers.recorded import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def modules_with(text: str) -> dict[Path, ast.Module]:
    """Those in whose source it stands, by their place within the package; nobody changes them."""
    product = ROOT / "tracetool"
    found = (path for path in sorted(product.rglob("*.py")) if text in path.read_text(encoding="utf-8"))
    return {path.relative_to(product): _parsed(path) for path in found}


@cache
def modules() -> dict[Path, ast.Module]:
    """All of them, likewise."""
    return modules_with("")


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """All of each module: to walk through them takes as long as a third of parsing."""
    return {path: list(ast.walk(tree)) for path, tree in modules().items()}


def last_name(node: ast.expr) -> str | None:
    """What a call's function, or an attribute, is called in the end: ``c`` of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
