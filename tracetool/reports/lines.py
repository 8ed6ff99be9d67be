"""Lines of text: broken at words, and as many as a screen has room for."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TYPE_CHECKING

from tracetool.units import BANDWIDTH_BYTES_PER_S, SIZE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WIDTH = 80
_LEAST_WIDTH = 40


def terminal_width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def table_width() -> int:
    """Columns of the terminal, of wide ones no more than texts have."""
    return min(WIDTH, terminal_width())


_SCREEN_LINES = 24
_LONGEST_NEXT = 160
"""What to run next is not broken; commands that are longer than so many columns scroll."""


def lines_left(lines: Sequence[str], width: int | None = None, after: str | None = None) -> int:
    """How many lines fit on a screen below some, with what to run next below them.

    Args:
        lines: As they are broken.
        width: Columns; by default the terminal's.
        after: What to run next, where that is known.
    """
    longest = _LONGEST_NEXT if after is None else len(f"Next: {after}")
    return _SCREEN_LINES - len(lines) - 1 - -(-longest // (width or terminal_width()))


def first_fitting(screens: Iterable[list[str]], width: int | None = None, after: str | None = None) -> list[str]:
    """The first of answers that say less and less which leaves room for a line of notes; else the last.

    Args:
        screens: The answers as lines.
        width: As ``lines_left`` takes it.
        after: Likewise.
    """
    lines: list[str] = []
    for lines in screens:
        if lines_left(lines, width, after) >= 1:
            break
    return lines


class Note(str):
    """A line that is broken under what it says, behind its label."""

    __slots__ = ()

    def __new__(cls, text: object) -> Note:
        """The line of a notice."""
        return super().__new__(cls, f"note: {text}")


def wrapped(lines: Sequence[str], width: int | None = None) -> list[str]:
    """Lines broken to a width, by default the terminal's; what follows is indented under where they began.

    A word that is longer (a path) is broken behind a slash.
    """
    width = width or terminal_width()
    broken: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + (6 if isinstance(line, Note) else 2))
        broken += wrap(line, width, indent)
    return broken


def on_one_screen(head: Sequence[str], after: Sequence[str], below: Sequence[str] = ()) -> list[str]:
    """What stands ahead and below, and as much in between as a screen has room for, with how much it has not.

    Args:
        head: Lines as they are shown.
        after: Lines to be broken, in the order of how much they weigh.
        below: Lines to be broken, which are always shown.
    """
    shown, left, last = list(head), list(after), wrapped(below)
    while left:
        broken = wrapped(left[:1])
        if lines_left([*shown, *broken, *last]) < (len(left) > 1):
            return [*shown, f"  {len(left)} more: -v", *last]
        shown += broken
        left.pop(0)
    return [*shown, *last]


_UNITS = ("ns", "us", "ms", "s", "%", "EUR", *SIZE_BYTES, *BANDWIDTH_BYTES_PER_S)
_QUANTITY = re.compile(rf"(?<=\d) (?=(?:{'|'.join(sorted(map(re.escape, _UNITS), key=len, reverse=True))})(?!\w))")
"""The space within a quantity, where no line is broken."""


def wrap(line: str, width: int, indent: str) -> list[str]:
    """One line broken to a width, with an indent before what follows."""
    wrapped_lines = []
    whole = _QUANTITY.sub("\N{NO-BREAK SPACE}", line)
    for part in textwrap.wrap(whole, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False):
        rest = part.replace("\N{NO-BREAK SPACE}", " ")
        while len(rest) > width:
            at = rest.rfind("/", len(indent) + 1, width) + 1 or width
            wrapped_lines.append(rest[:at])
            rest = indent + rest[at:]
        wrapped_lines.append(rest)
    return wrapped_lines or [""]
