"""Settings of a project: options that files set for all commands or for one.

They are options by their names, as typed: in the nearest tracetool.toml, or under ``[tool.tracetool]`` of the
nearest pyproject.toml. They reach a command as click's ``default_map``, so what is typed wins.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from tracetool.cli.output import PATH_OR_URL, flag_of, is_given
from tracetool.errors import Option, ScenarioError, TraceToolError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ALIKE = ("info", "replay", "report", "advise", "sweep", "explain", "validate", "compare")
"""Commands that a setting outside their tables holds for: what others call the same means something else."""
_OTHERWISE = {("explain", "schedule")}
"""What one of them takes otherwise: one schedule."""
_TYPED_ONLY = frozenset({
    "accept", "as_json", "at", "chakra", "config", "debug", "dry_run", "equalize", "force", "label", "no_config",
    "output", "run_target", "save",
})  # fmt: skip
"""What one call is for: never a habit."""
_LISTED = "'tracetool config COMMAND' lists what can be set"
_LOOKS = frozenset({"verbose", "quiet"})
_KEPT, _IGNORED = "tracetool.settings", "tracetool.no-settings"


class SetOption(NamedTuple):
    """An option that a file sets.

    Attributes:
        option: Which.
        value: As click takes it.
        where: The file and the line.
        table: The command whose table it stands in; empty for one of several commands.
    """

    option: click.Option
    value: Any
    where: str
    table: str

    @property
    def words(self) -> list[str]:
        """It as typed."""
        if self.option.is_flag:
            off = self.option.secondary_opts
            return [flag_of(self.option)] if self.value else off[:1]
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        return [word for value in values for word in (flag_of(self.option), value)]


def key_of(option: click.Option) -> str:
    """An option as a file has it."""
    return flag_of(option).removeprefix("--")


def leaves(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands by their whole names, those of groups included.

    Args:
        group: The group.
        above: The names above it.
    """
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def settable(command: click.Command) -> dict[str, click.Option]:
    """What a file may set of a command, by key."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {key_of(option): option for option in options if option.name not in _TYPED_ONLY}


def commands_with_settings(root: click.Group) -> dict[str, click.Command]:
    """The commands that files may set options of, by whole name."""
    return {name: each for name, each in leaves(root) if any(option in each.params for option in _OPTIONS)}


def shared_options(root: click.Group) -> dict[str, dict[str, click.Option]]:
    """The keys outside tables: the options they are, by command."""
    shared: dict[str, dict[str, click.Option]] = {}
    for name in _ALIKE:
        for key, option in settable(root.commands[name]).items():
            if (name, option.name) not in _OTHERWISE:
                shared.setdefault(key, {})[name] = option
    return shared


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


def read_settings(path: Path, root: click.Group) -> dict[str, dict[str, SetOption]]:
    """What a file sets, by command and by name of the parameter.

    Args:
        path: The file: the table ``[tool.tracetool]`` if it has tools, else all of it.
        root: Whose options may be set.

    Raises:
        ScenarioError: If it cannot be read, or a value is none of its option.
        UnknownName: If there is no such option.
    """
    return _SettingsReader(path, root).settings()


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
        setting = SetOption(option, _value(option, value, self.folder, where), where, table)
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


def _value(option: click.Option, raw: object, folder: Path, where: str) -> Any:
    """A value of a file as click takes it: paths are those beside the file.

    Raises:
        ScenarioError: If it is none of the option.
    """
    key = key_of(option)
    if option.is_flag:
        if not isinstance(raw, bool):
            raise ScenarioError(f"{where}: {key} is true or false, not {raw!r}.", hint=f"write it as {key} = true")
        return raw
    parts = raw if isinstance(raw, list) else [raw]
    if not parts or any(isinstance(part, bool) or not isinstance(part, str | int | float) for part in parts):
        raise ScenarioError(
            f"{where}: {key} is {option.metavar or 'a value'} as typed behind {flag_of(option)}, not {raw!r}.",
            hint=f'write it as {key} = "{option.metavar or "..."}"',
        )
    texts = [_beside(option, str(part), folder) for part in parts]
    for text in texts:
        _check(option.name or "", text, f"{where}: {key}")
    if option.multiple:
        return tuple(texts)
    if len(texts) > 1 and "," not in (option.metavar or ""):
        raise ScenarioError(f"{where}: {key} takes one value, not {len(texts)}.", hint=f'write it as {key} = "..."')
    return ",".join(texts)


def _beside(option: click.Option, text: str, folder: Path) -> str:
    """A file that a setting names is looked for beside the settings."""
    is_path = isinstance(option.type, click.Path) or option.type is PATH_OR_URL
    if option.name == "schedule" and "csv:" in text:
        from tracetool.schedules.names import beside

        return ",".join(beside(name, folder) for name in text.split(","))
    if "://" in text or not (is_path or (option.name == "dc" and text.lower().endswith(".csv"))):
        return text
    return str(folder / text)


def _check(name: str, text: str, where: str) -> None:
    """Have a value that the library reads later refused with the place it is set in.

    Raises:
        ScenarioError: If it is none.
    """
    from tracetool.comparison.limits import parse_limit
    from tracetool.model.topology import parse_link
    from tracetool.schedules import parse_names
    from tracetool.schedules.names import check_schedules
    from tracetool.units import parse_duration_ns, parse_share_ratio, parse_size_bytes
    from tracetool.whatif.decision import split_fee
    from tracetool.whatif.wording import read_dc_map

    def sizes(listed: str) -> None:
        for size in listed.split(","):
            parse_size_bytes(size)

    checks: dict[str, Callable[[str], object]] = {
        "dc": read_dc_map, "link": lambda link: parse_link(split_fee(link)[0]), "hbm": sizes, "activation": sizes,
        "static": sizes, "schedule": lambda names: check_schedules(parse_names(names)), "fail_on": parse_limit,
        "least_change": parse_share_ratio, "time_limit": parse_duration_ns,
    }  # fmt: skip
    try:
        checks.get(name, len)(text)
    except TraceToolError as error:
        raise ScenarioError(f"{where}: {error.message}", hint=error.hint) from error


def place_of(context: click.Context, option: click.Option) -> str:
    """Where an option's value is from: the command line, a line of a file, or nowhere."""
    name = option.name or ""
    if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
        return str(context.meta[_KEPT][name].where)
    return "typed" if is_given(context, name) else "default"


def in_effect(context: click.Context) -> list[SetOption]:
    """The settings that a command runs with: those that nothing typed went ahead of."""
    held: dict[str, SetOption] = context.meta.get(_KEPT, {})
    return [one for name, one in held.items() if context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP]


def alone(*kept: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback of an option that other options do not go with: what it is typed with counts, what is set does not.

    Args:
        kept: What is heeded beside it.
    """

    def drop(context: click.Context, _option: click.Parameter, value: Any) -> Any:
        if value:
            context.default_map = {k: v for k, v in (context.default_map or {}).items() if k in kept}
        return value

    return drop


def ahead_of(*others: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback of an option that, where it is typed, goes ahead of other options that are set.

    Args:
        others: Them.
    """

    def drop(context: click.Context, option: click.Parameter, value: Any) -> Any:
        if context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            context.default_map = {k: v for k, v in (context.default_map or {}).items() if k not in others}
        return value

    return drop


def _load(context: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Give a command what a file sets, before any other option is seen to."""
    root = context.find_root().command
    with suppress(FileNotFoundError):
        # The current folder may be gone.
        path = path or find_settings(Path.cwd())
    if path is None or _IGNORED in context.meta or not isinstance(root, click.Group):
        return
    command = next(name for name, each in commands_with_settings(root).items() if each is context.command)
    held = read_settings(path, root)[command]
    context.meta[_KEPT] = held
    context.default_map = {name: setting.value for name, setting in held.items()}


def _ignore(context: click.Context, _option: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        context.meta[_IGNORED] = True
        context.meta.pop(_KEPT, None)
        context.default_map = None


_OPTIONS = (
    click.Option(
        ["--config"], type=click.Path(path_type=Path), metavar="x.toml", is_eager=True, expose_value=False,
        callback=_load, help="Settings; default: the nearest tracetool.toml or [tool.tracetool].",
    ),
    click.Option(
        ["--no-config"], is_flag=True, is_eager=True, expose_value=False, callback=_ignore, help="Heed no settings."
    ),
)  # fmt: skip


def heeding_settings(command: click.Command) -> None:
    """Have a command heed what files set, and say what it heeds."""
    run = command.callback
    if run is None:
        return

    @wraps(run)
    def heeding(*args: Any, **kwargs: Any) -> Any:
        held = [one for one in in_effect(click.get_current_context()) if one.option.name not in _LOOKS]
        if held:
            files = ", ".join(dict.fromkeys(one.where.rpartition(":")[0] or one.where for one in held))
            words = shown_words(held)
            click.echo(f"note: as {files} says: {words} (--no-config ignores it)", err=True)
        return run(*args, **kwargs)

    command.callback = heeding
    command.params = [*command.params, *_OPTIONS]


def shown_words(held: list[SetOption]) -> str:
    """Settings as they would be typed."""
    return shlex.join([word for one in held for word in one.words])


def set_where(error: click.BadParameter) -> str | None:
    """Where a value was set that click refuses; None if it was typed."""
    if error.ctx is None or error.param is None:
        return None
    place = place_of(error.ctx, error.param) if isinstance(error.param, click.Option) else "typed"
    return None if place in ("typed", "default") else place
