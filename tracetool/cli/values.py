"""Option values that are more than a word: lists and quantities."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracetool.errors import BadTopology, ScenarioError

if TYPE_CHECKING:
    from tracetool.model.dc_map import DCMap


def read_dc_map(text: str) -> DCMap:
    """Read a DC map in any of its forms; a name that ends in .csv is a file.

    Raises:
        BadTopology: If it is malformed, or its file cannot be read.
    """
    from tracetool.model.dc_map import parse_map, parse_table

    if not text.lower().endswith(".csv"):
        return parse_map(text)
    try:
        return parse_table(Path(text).read_text(encoding="utf-8"), text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadTopology(f"cannot read the DC map {text}: {error}.", hint="give a CSV file in UTF-8") from error


def parse_counts(text: str) -> tuple[int, ...]:
    """Read ``2,2,0,0``.

    Raises:
        ScenarioError: If a part is no whole number.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(
            f"{text!r} is no list of whole numbers.", hint="write one per pipeline rank, as in 2,2,0,0"
        ) from None


def parse_names(text: str) -> list[str]:
    """Read ``1f1b,gpipe``.

    Raises:
        ScenarioError: If there is no name in it.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise ScenarioError("--schedule names no schedule.", hint="as in --schedule 1f1b,geopipe")
    return list(dict.fromkeys(names))


def check_schedules(names: list[str]) -> list[str]:
    """Refuse schedules that there are not, and files that hold none, before the long work.

    Returns:
        The names as registered, where they were written otherwise (torch's classes, other cases).

    Raises:
        UnknownName: If there is none of such a name.
        InvalidSchedule: If a file cannot be read or holds none.
    """
    from tracetool.schedules import read_order
    from tracetool.schedules.names import schedule_name

    known = [schedule_name(name) for name in names]
    for name in known:
        if name.startswith("csv:"):
            read_order(name)
    return list(dict.fromkeys(known))
