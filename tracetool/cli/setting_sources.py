"""What sets options: a file of the project, and the environment, which goes ahead of it."""

from __future__ import annotations

import difflib
import os
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracetool.cli.set_options import SetOption, commands_with_settings, settable, shared_options, value_of
from tracetool.errors import Option, ScenarioError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

_LISTED = "'tracetool config COMMAND' lists what can be set"
_PREFIX = "TRACETOOL_"
_MISTYPED_RATIO = 0.65
"""How alike a variable's name is to that of a setting that was meant; those of other purposes are left alone."""


def settings_in_effect(root: click.Group, path: Path | None) -> dict[str, dict[str, SetOption]]:
    """What a file and the environment set, by command and by name of the parameter.

    Args:
        root: Whose options may be set.
        path: The file; None if there is none.

    Raises:
        ScenarioError: If the file cannot be read, or a value is none of its option.
        UnknownName: If there is no such option.
    """
    held = {} if path is None else _SettingsReader(path, root).settings()
    variables = {name.removeprefix(_PREFIX): value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    if variables:
        for command, options in _read_variables(variables, root).items():
            held.setdefault(command, {}).update(options)
    return held


def _read_variables(variables: Mapping[str, str], root: click.Group) -> dict[str, dict[str, SetOption]]:
    """``HBM`` for the key ``hbm`` of all commands, ``EXPLAIN_SCHEDULE`` for that of one."""
    known = {
        _variable(key): [("", name, option) for name, option in of.items()] for key, of in shared_options(root).items()
    }
    for name, command in commands_with_settings(root).items():
        for key, option in settable(command).items():
            known.setdefault(_variable(f"{name} {key}"), [(name, name, option)])
    for variable in sorted(variables):
        if variable not in known and _is_mistyped(variable, frozenset(known)):
            hint = f"{_LISTED}; unset it, or add --no-config"
            raise UnknownName(f"setting for ${_PREFIX}{variable}", variable, known, hint=hint)
    held: dict[str, dict[str, SetOption]] = {}
    # Those of all commands first: those of one go ahead of them.
    for variable in sorted(known.keys() & variables, key=lambda each: (known[each][0][0], each)):
        where = f"${_PREFIX}{variable}"
        for table, name, option in known[variable]:
            value = value_of(option, _raw(option, variables[variable], where), Path(), where)
            held.setdefault(name, {})[option.name or ""] = SetOption(option, value, where, table)
    return held


@cache
def _is_mistyped(variable: str, known: frozenset[str]) -> bool:
    return bool(difflib.get_close_matches(variable, known, n=1, cutoff=_MISTYPED_RATIO))


def _variable(key: str) -> str:
    return re.sub(r"[\s-]", "_", key).upper()


def _raw(option: click.Option, text: str, where: str) -> object:
    """The text of a variable as a file would have it: several values are parted by blanks.

    Raises:
        ScenarioError: If that of a flag is neither true nor false.
    """
    if option.is_flag:
        try:
            return click.BOOL.convert(text, option, None)
        except click.BadParameter as error:
            raise ScenarioError(f"{where} is true or false, not {text!r}.", hint="set it to true") from error
    return text.split() if option.multiple else text


def find_settings(folder: Path) -> Path | None:
    """The nearest file with settings, from a folder upwards; None if there is none.

    Raises:
        ScenarioError: If a pyproject.toml on the way is no TOML.
    """
    for place in (folder, *folder.parents):
        if (own := place / "tracetool.toml").is_file():
            return own
        if (shared := place / "pyproject.toml").is_file() and "tracetool" in _read(shared).get("tool", {}):
            return shared
    return None


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(
            f"{path} cannot be read: {error.strerror}.", hint=f"name another file: {Option.CONFIG}"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is no TOML: {error}.", hint="correct it, or add --no-config") from error


class _SettingsReader:
    """Reads one file."""

    def __init__(self, path: Path, root: click.Group) -> None:
        read = _read(path)
        self.above = ("tool", "tracetool") if "tool" in read else ()
        self.table: dict[str, Any] = read.get("tool", {}).get("tracetool", {}) if self.above else read
        self.lines = _lines(path.read_text(encoding="utf-8"))
        self.name = path.name if path.parent == Path.cwd() else str(path)
        self.folder = path.resolve().parent
        self.commands = commands_with_settings(root)
        self.shared = shared_options(root)
        self.options: dict[str, dict[str, SetOption]] = {name: {} for name in self.commands}

    def settings(self) -> dict[str, dict[str, SetOption]]:
        """All that it sets."""
        names = {part for name in self.commands for part in (name, name.split()[0])}
        tables = {key: value for key, value in self.table.items() if isinstance(value, dict) and key in names}
        for key, value in self.table.items():
            if key in tables:
                continue
            if key not in self.shared:
                raise UnknownName(f"setting in {self._where(key)}", key, [*self.shared, *names], hint=_LISTED)
            for command, option in self.shared[key].items():
                self._take(command, "", option, value, self._where(key))
        for key, held in tables.items():
            self._take_table(held, key)
        return self.options

    def _take_table(self, held: Mapping[str, Any], *keys: str) -> None:
        """The options of one command, or the tables of a group of them."""
        command = " ".join(keys)
        own = settable(self.commands[command]) if command in self.commands else {}
        below = {name.split()[-1] for name in self.commands if name.startswith(f"{command} ")}
        for key, value in held.items():
            if key in below and isinstance(value, dict):
                self._take_table(value, *keys, key)
            elif key in own:
                self._take(command, command, own[key], value, self._where(*keys, key))
            else:
                raise UnknownName(
                    f"setting of {command} in {self._where(*keys, key)}", key, {*own, *below}, hint=_LISTED
                )

    def _take(self, command: str, table: str, option: click.Option, value: object, where: str) -> None:
        setting = SetOption(option, value_of(option, value, self.folder, where), where, table)
        self.options[command][option.name or ""] = setting

    def _where(self, *keys: str) -> str:
        line = self.lines.get((*self.above, *keys)) or self.lines.get((*self.above, *keys[:-1]))
        return f"{self.name}:{line}" if line else self.name


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """The line that each table and key of a TOML file begins in."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if head := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = tuple(part.strip(" \"'") for part in head[1].split("."))
            lines.setdefault(table, number)
        elif key := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            lines.setdefault((*table, *(part.strip("\"'") for part in key[1].split("."))), number)
    return lines
