"""Options that can be set otherwise than by typing them: by what name, of which commands, and to what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tracetool.cli.output import PATH_OR_URL, flag_of
from tracetool.errors import ScenarioError, TraceToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_ALIKE = ("info", "replay", "report", "advise", "sweep", "explain", "validate", "compare")
"""Commands that a setting outside their tables holds for: what others call the same means something else."""
_OTHERWISE = {("explain", "schedule")}
"""What one of them takes otherwise: one schedule."""
_TYPED_ONLY = frozenset({
    "accept", "as_json", "at", "chakra", "config", "debug", "dry_run", "equalize", "force", "label", "no_config",
    "output", "run_target", "save",
})  # fmt: skip
"""What one call is for: never a habit."""


class SetOption(NamedTuple):
    """An option that is set.

    Attributes:
        option: Which.
        value: As click takes it.
        where: The file and the line, or the variable.
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
    """What may be set of a command, by key."""
    options = (each for each in command.params if isinstance(each, click.Option))
    return {key_of(option): option for option in options if option.name not in _TYPED_ONLY}


def commands_with_settings(root: click.Group) -> dict[str, click.Command]:
    """The commands whose options may be set, by whole name."""
    return {name: each for name, each in leaves(root) if any(option.name == "no_config" for option in each.params)}


def shared_options(root: click.Group) -> dict[str, dict[str, click.Option]]:
    """The keys outside tables: the options they are, by command."""
    shared: dict[str, dict[str, click.Option]] = {}
    for name in _ALIKE:
        for key, option in settable(root.commands[name]).items():
            if (name, option.name) not in _OTHERWISE:
                shared.setdefault(key, {})[name] = option
    return shared


def value_of(option: click.Option, raw: object, folder: Path, where: str) -> Any:
    """A value that is set as click takes it: paths are those beside the file that sets it.

    Args:
        option: Of which.
        raw: As a TOML file has it.
        folder: Where paths start.
        where: In which line it stands, for errors.

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
