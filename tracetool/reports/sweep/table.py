"""Tables of a sweep within 80 columns, whatever they have to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.reports.answer.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 80

Cells = dict[str, str]
"""Cells of a row by the head of their column; in a head of two lines the second follows a line break."""


def table(rows: Sequence[Cells], expendable: Sequence[str]) -> list[str]:
    """Columns without any cell are left out, and expendable ones, first to last, as long as the rest is too wide.

    What is too wide even so gets single blanks between columns, then its first cells in lines of their own.
    """
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    while True:
        top = [head.partition("\n") for head in heads]
        lines = [[part[0] for part in top], [part[2] for part in top], *([row[head] for head in heads] for row in rows)]
        lines = [line for number, line in enumerate(lines) if number != 1 or any(line)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        drop = next((head for head in expendable if head in heads), None)
        if sum(widths) + 2 * len(widths) <= WIDTH:
            return [aligned(line, widths) for line in lines]
        if drop is None:
            return _squeezed(lines, widths)
        heads.remove(drop)


def _squeezed(lines: Sequence[Sequence[str]], widths: list[int]) -> list[str]:
    def narrow(line: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  " + " ".join([line[0].ljust(widths[0]), *cells]).rstrip()

    if sum(widths) + len(widths) + 1 <= WIDTH:
        return [narrow(line) for line in lines]
    widths = [max(2, WIDTH - sum(widths[1:]) - len(widths) - 1), *widths[1:]]
    parted = [[f"  {line[0]}", narrow(["", *line[1:]])] for line in lines]
    return [text.rstrip() for pair in parted for text in pair if text.strip()]
