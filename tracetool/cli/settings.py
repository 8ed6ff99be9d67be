"""Settings: options that the environment or a file of the project sets for all commands or for one.

They are options by their names, as typed: in variables (``TRACETOOL_HBM``), in the nearest tracetool.toml, or under
``[tool.tracetool]`` of the nearest pyproject.toml. They reach a command as click's ``default_map``: what is typed wins.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tracetool.cli.output import is_given
from tracetool.cli.set_options import commands_with_settings
from tracetool.cli.setting_sources import find_settings, settings_in_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.cli.set_options import SetOption

_LOOKS = frozenset({"verbose", "quiet"})
_KEPT, _IGNORED = "tracetool.settings", "tracetool.no-settings"


def place_of(context: click.Context, option: click.Option) -> str:
    """Where an option's value is from: the command line, a variable, a line of a file, or nowhere."""
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
    """Give a command what is set, before any other option is seen to."""
    root = context.find_root().command
    if _IGNORED in context.meta or not isinstance(root, click.Group):
        return
    with suppress(FileNotFoundError):
        # The current folder may be gone.
        path = path or find_settings(Path.cwd())
    settings = settings_in_effect(root, path)
    if settings:
        command = next(name for name, each in commands_with_settings(root).items() if each is context.command)
        context.meta[_KEPT] = held = settings.get(command, {})
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
    """Have a command heed what is set, and say what it heeds."""
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
