"""Schedules as other people write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracetool.schedules import SCHEDULES, is_sourced, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def normalised(name: str) -> str:
    """A name without case, separators and torch's ``Schedule`` in front."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    return bare.removeprefix("schedule") or bare


def schedule_name(name: str) -> str:
    """The registered name of a schedule.

    Raises:
        UnknownName: If none is like it; the message suggests close names.
    """
    if is_sourced(name):
        return name
    known = {normalised(registered): registered for registered in SCHEDULES.names()}
    asked = normalised(name)
    if asked in known:
        return known[asked]
    aliases = {
        normalised(alias): registered for registered in known.values() for alias in SCHEDULES.get(registered).aliases
    }
    if asked in aliases:
        return aliases[asked]
    SCHEDULES.get(name)
    return name


def named_here(asked: str) -> str | None:
    """What to tell who named a schedule by a word that is not its name here; None if nothing is to be told.

    Raises:
        UnknownName: If no schedule is like it.
    """
    name = schedule_name(asked)
    is_ours = normalised(asked) == normalised(name) and not asked.lower().startswith("schedule")
    return None if is_ours else f"{asked} is {name} here"


def check_schedules(names: Iterable[str]) -> list[str]:
    """Refuse schedules that there are not, and files that hold none, before the long work.

    Returns:
        The names as registered, where they were written otherwise (torch's classes, other cases).

    Raises:
        UnknownName: If there is none of such a name.
        InvalidSchedule: If a file cannot be read or holds none.
    """
    known = [schedule_name(name) for name in names]
    for name in known:
        kind_of(name)
    return list(dict.fromkeys(known))


def beside(name: str, folder: Path | None) -> str:
    """A name that was written in a folder: an order that it says where to find is found from there."""
    if folder is None or not is_sourced(name):
        return name
    source, _, file = name.partition(":")
    return f"{source}:{folder / file}"
