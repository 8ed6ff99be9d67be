"""The command line with every sentence of the product replaced, to see whether anything but people reads them.

    python tests/helpers/scrambled.py < commands.json

reads lists of command lines by the folder to run them in, and prints for each its exit code and its answer without
words. Every text of three words and more that a module holds is another one in every place: what is cut out
of it, or compared with it, breaks.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

MARK = "§"
_SENTENCE = re.compile(r"\b[A-Za-z]*[a-z]{2,}[,:;.]? (?:[^ ]+ )*?[a-z]+[,:;.]? (?:[^ ]+ )*?[a-z]+")
# What other programs read: SQL, patterns, markup and styles.
_LANGUAGE = re.compile(
    r"\b(?:SELECT|FROM|WHERE|CREATE|COMMENT|GROUP BY|JOIN|AND|AS|IS|IN|NOT|CASE)\b|\b\w{1,4}\.[a-z_]+, "
    r"|[<>]/?[a-z]+[ >]|;\n|\(\?"
)
_FIELD = re.compile(r"(\{[^{}]*\}|\{\{|\}\})")


class Scrambler(ast.NodeTransformer):
    """Replaces the sentences of a module; each place gets words of its own.

    Args:
        module: Its name.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self.count = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
        if is_sentence(whole):
            node.values = [
                ast.copy_location(ast.Constant(self._instead_of(str(part.value))), part)
                if isinstance(part, ast.Constant)
                else part
                for part in node.values
            ]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str) or not is_sentence(node.value):
            return node
        # Fields of a template stay: str.format fills them.
        parts = [
            part if _FIELD.fullmatch(part) else part and self._instead_of(part) for part in _FIELD.split(node.value)
        ]
        return ast.copy_location(ast.Constant("".join(parts)), node)

    def _instead_of(self, text: str) -> str:
        """Another word for a text, with the blanks around it: they are no words."""
        self.count += 1
        before, after = (len(text) - len(stripped) for stripped in (text.lstrip(), text.rstrip()))
        return f"{text[:before]}{MARK}{self._module}{MARK}{self.count}{MARK}{text[len(text) - after :]}"


def is_sentence(text: str) -> bool:
    """Whether a text is for people: words, and no language that other programs read."""
    return _SENTENCE.search(text) is not None and _LANGUAGE.search(text) is None


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        scrambler = Scrambler(fullname)
        tree = scrambler.visit(ast.parse(self.get_data(path)))
        replaced[fullname] = scrambler.count
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        ours = fullname.split(".", maxsplit=1)[0] == "tracetool"
        spec = PathFinder.find_spec(fullname, path, target) if ours else None
        if spec is None or not isinstance(spec.loader, SourceFileLoader):
            return spec
        return importlib.util.spec_from_file_location(
            fullname, spec.origin, loader=_Loader(fullname, str(spec.origin)),
            submodule_search_locations=spec.submodule_search_locations,
        )  # fmt: skip


replaced: dict[str, int] = {}
"""Per module, how many texts were replaced."""


def without_words(value: Any) -> Any:
    """An answer with its sentences taken out, those that are keys included: numbers, names and order stay."""
    if isinstance(value, dict):
        return [[without_words(key), without_words(each)] for key, each in value.items()]
    if isinstance(value, list):
        return [without_words(each) for each in value]
    return "words" if isinstance(value, str) and (" " in value or MARK in value) else value


def indents(text: str) -> list[int]:
    """The shape of an answer for people: how far each line is indented."""
    return [len(line) - len(line.lstrip()) for line in text.splitlines()]


def answers_to(asked: dict[str, list[list[str]]]) -> list[dict[str, Any]]:
    """What commands answer, by the folders to run them in, by the product as it is imported here."""
    from tracetool.cli import run

    answers = []
    for folder, command in [(folder, each) for folder, listed in asked.items() for each in listed]:
        os.chdir(folder)
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            code = run(command)
        text = out.getvalue()
        answers.append({
            "code": code,
            "answer": without_words(json.loads(text)) if "--json" in command and text else indents(text),
            "crashed": "Unexpected error" in said.getvalue() or ("Error:" not in said.getvalue() and code == 2),
            "said": said.getvalue(),
        })  # fmt: skip
    return answers


def main() -> None:
    """Run the commands and print what they answered."""
    sys.meta_path.insert(0, _Finder())
    # Commands ask the same of the same Run: that is worked out once, from scrambled modules too.
    from helpers.recorded import reconstruct_once

    for room in ("tracetool.reconstruction", "tracetool.ingestion.runs", "tracetool.stragglers.measured"):
        vars(importlib.import_module(room))["reconstruct"] = reconstruct_once
    answers = answers_to(json.load(sys.stdin))
    json.dump({"answers": answers, "replaced": sum(replaced.values()), "modules": len(replaced)}, sys.stdout)


if __name__ == "__main__":
    main()
