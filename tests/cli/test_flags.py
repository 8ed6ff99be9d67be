"""Texts of the library name options by their arguments; the command line shows them as they are typed."""

from __future__ import annotations

import ast
import re
import shlex
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING

import click
import pytest
from helpers.parsed import modules_with
from helpers.recorded import SAMPLES

from tracetool.cli import cli, run
from tracetool.cli.output import flags_of
from tracetool.errors import BadTopology, Option, flags_now, typed_as
from tracetool.model.topology import parse_link

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")
COMMAND = re.compile(r"\b(?:tracetool|pip|msprof|nsys)\b[^'`]*")
"""A whole command line within a text, for people to type."""

# Properties of a style sheet; and what is declared once for all faces: the map of schemas,
# comments of columns.
KEPT = {
    "reports/html/sections.py": {"--angle", "--line-of", "--tint"},
    "reports/schemas.py": {"--save"},
    "tables/run.py": {"--keep", "--run"},
}

LAUNCHING = "explore/launch.py"
"""What it says are flags of Megatron-LM and torchtitan, and a command of tracetool word by word."""


def _texts(tree: ast.Module) -> Iterator[str]:
    """String literals that are no docstrings, those of an f-string as one with {} for what it holds."""
    aside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            aside |= {id(part) for part in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in aside:
            yield node.value


@cache
def _library() -> list[tuple[str, str]]:
    return [
        (room.as_posix(), text)
        for room, tree in modules_with("--").items()
        if room.parts[0] not in ("cli", "__main__.py")
        for text in _texts(tree)
    ]


def test_texts_of_the_library_name_no_flags() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for room, text in _library():
        if flags := FLAG.findall(COMMAND.sub("", text)):
            named[room].update(flags)
    assert named.pop(LAUNCHING)
    assert named == KEPT


def test_commands_that_texts_of_the_library_show_have_these_flags() -> None:
    shown = [
        (words, FLAG.findall(match[0]))
        for _, text in _library()
        for match in COMMAND.finditer(text)
        if (words := match[0].split())[0] == "tracetool" and FLAG.search(match[0])
    ]
    assert len(shown) > 10
    for words, flags in shown:
        command: click.Command = cli
        for word in words[1:]:
            if not isinstance(command, click.Group):
                break
            command = command.commands[word]
        known = {flag for option in command.params if isinstance(option, click.Option) for flag in option.opts}
        assert known.issuperset(flags), (words, flags)


def test_every_option_is_declared_and_called_the_same_by_all_commands() -> None:
    assert {option.value for option in Option} <= flags_of(cli).keys()
    called: dict[str, set[str]] = defaultdict(set)
    commands: list[click.Command] = [cli]
    for command in commands:
        commands += command.commands.values() if isinstance(command, click.Group) else []
        if not isinstance(command, click.Group):
            for name, flag in flags_of(command).items():
                called[name].add(flag)
    assert {option: called[option.value] for option in Option if len(called[option.value]) != 1} == {}


def test_python_reads_arguments_and_the_command_line_flags() -> None:
    with pytest.raises(BadTopology) as refused:
        parse_link("nonsense")
    assert refused.value.hint == "write it as in link='dc0-dc1=25Gbit/s,10ms'"
    with typed_as(flags_of(cli)), pytest.raises(BadTopology) as refused:
        parse_link("nonsense")
    assert refused.value.hint == "write it as in --link dc0-dc1=25Gbit/s,10ms"
    assert flags_now() == {}


def test_values_are_quoted_for_the_shell_and_shown_as_python_has_them() -> None:
    assert [Option.DC("a=x*,b=y"), Option.EXTRA_FORWARDS((2, 0)), Option.FORCE.on, Option.INTERFERENCE.off] == [
        "dc='a=x*,b=y'", "extra_forwards=(2, 0)", "force=True", "interference=False",
    ]  # fmt: skip
    with typed_as(flags_of(cli)):
        assert shlex.split(Option.DC("a=x*,b=y")) == ["--dc", "a=x*,b=y"]
        assert [Option.EXTRA_FORWARDS((2, 0)), Option.FORCE.on, Option.INTERFERENCE.off, str(Option.STEP)] == [
            "--extra-forwards 2,0", "--force", "--no-interference", "--step",
        ]  # fmt: skip


def test_a_renamed_flag_is_renamed_in_every_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in cli.commands.values():
        for option in command.params:
            if option.name == "link":
                monkeypatch.setattr(option, "opts", ["--wire"])
    assert run(["replay", str(SAMPLES / "h100-1f1b"), "--schedule", "1f1b", "--dc", "0-1,2-3"]) == 2
    assert "Hint: add --wire dc0-dc1=25Gbit/s,10ms\n" in capsys.readouterr().err
