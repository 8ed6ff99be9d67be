"""One word per thing: a class name stands for one class, and values are named by what they hold."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import pytest
from helpers.parsed import nodes
from helpers.recorded import ROOT

from tracetool.tables.results import FIELDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PRODUCT = ROOT / "tracetool"
ROOMS = sorted({path.relative_to(PRODUCT).parts[0] for path in PRODUCT.glob("*/*.py")})
VAGUE = {"found", "told", "seen"}
"""What a value went through, but not what it holds."""
PROSE = ("look", "tell", "told", "found", "seen", "distrust")
"""Functions match, infer, detect, record and overlay."""


@cache
def _walked() -> list[tuple[Path, list[ast.AST]]]:
    """Every file of the product with its classes, functions and bindings."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.Name, ast.Attribute, ast.arg)
    return [(path, [node for node in every if isinstance(node, kinds)]) for path, every in nodes().items()]


def _nodes(*rooms: str) -> Iterator[tuple[str, ast.AST]]:
    for path, every in _walked():
        if not rooms or path.parts[0] in rooms:
            for node in every:
                yield f"{path}:{getattr(node, 'lineno', 0)}", node


def _bound(node: ast.AST) -> str | None:
    """The name that a node gives to a value."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.id if isinstance(node, ast.Name) else node.attr
    return node.arg if isinstance(node, ast.arg) else None


def test_a_class_name_stands_for_one_class() -> None:
    classes: dict[str, list[str]] = defaultdict(list)
    for where, node in _nodes():
        if isinstance(node, ast.ClassDef):
            classes[node.name].append(where)
    assert len(classes) > 300
    assert {name: places for name, places in classes.items() if len(places) > 1} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_values_are_named_by_what_they_hold(room: str) -> None:
    vague = [where for where, node in _nodes(room) if (_bound(node) or "").strip("_") in VAGUE]
    assert vague == []


@pytest.mark.parametrize("room", ROOMS)
def test_functions_are_named_by_the_fields_verbs(room: str) -> None:
    prose = [
        f"{where} {node.name}"
        for where, node in _nodes(room)
        if isinstance(node, ast.FunctionDef) and node.name.strip("_").split("_")[0] in PROSE and node.name not in FIELDS
    ]
    assert prose == []
