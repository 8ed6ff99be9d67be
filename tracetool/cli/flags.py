"""Options as they are typed: texts of the library call them by their arguments in Python."""

from __future__ import annotations

import click

_ARGUMENTS = {
    "as_json": "json", "copy_missing_ranks": "copy_missing", "no_interference": "interference",
    "schedule": "schedules", "time_limit": "time_limit_s",
}  # fmt: skip
"""What commands call otherwise than Python does."""


def flags_of(command: click.Command) -> dict[str, str]:
    """The flags of a command and of those below it, by the names of the arguments in Python.

    Args:
        command: Whose declarations say it.
    """
    flags: dict[str, str] = {}
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        flags |= flags_of(below)
    for option in (each for each in command.params if isinstance(each, click.Option)):
        name = option.name or ""
        flags[name] = flags[_ARGUMENTS.get(name, name)] = max(option.opts, key=len)
    return flags
