"""What all pictures share: file formats, one style whatever the user's own, and how wide texts come out."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

PictureFormat = Literal["png", "svg", "pdf"]

PICTURE_SUFFIXES: dict[str, PictureFormat] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}

RASTER_ABOVE = 4_000
"""Shapes from which SVG and PDF hold them as pixels: as paths they would take megabytes and seconds."""

_SVG_DPI = 130
"""Of the pixels in SVG, which are seen on screens: HTML reports hold several."""

PT = 72
"""Points per inch."""

RED = "#B00020"
"""Of what does not fit."""

GREY = "#555555"
"""Of what is said beside."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Of schedules: after Okabe and Ito, whose colours people with colour-blindness can tell apart."""

_METADATA: dict[PictureFormat, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
STYLE = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "tracetool",
    "text.parse_math": False,
}
"""A $ in a name is no formula. Text stays text (searchable, and editable in a paper); DejaVu is wider than what a
viewer without it takes instead, so that nothing overlaps there. The salt keeps ids in SVG the same."""


def save(draw: Callable[[], Figure], picture_format: PictureFormat) -> bytes:
    """Draw in the style of all pictures, and write the file; equal figures give equal bytes."""
    from matplotlib.style import context

    out = io.BytesIO()
    # The user's own matplotlibrc must not change the picture.
    with context(["default", STYLE]):
        figure = draw()
        dpi = min(_SVG_DPI, figure.dpi) if picture_format == "svg" else figure.dpi
        figure.savefig(out, format=picture_format, dpi=dpi, metadata=_METADATA[picture_format])
    return out.getvalue()


@lru_cache(maxsize=4096)
def text_width_pt(text: str, size_pt: float, *, bold: bool = False) -> float:
    """Width of a line of text in points, as wide as it comes out on a coarse grid of pixels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="DejaVu Sans", size=size_pt, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return 1.03 * float(width)


def wrapped(parts: Sequence[str], width_pt: float, size_pt: float, *, between: str = "  ·  ") -> list[str]:
    """Parts of a text in as few lines as hold them; a part is broken, between words, if it is longer than a line."""
    lines: list[str] = []
    for part in parts:
        if lines and text_width_pt(f"{lines[-1]}{between}{part}", size_pt) <= width_pt:
            lines[-1] += between + part
            continue
        words = [part] if text_width_pt(part, size_pt) <= width_pt else part.split(" ")
        lines.append(words[0])
        for word in words[1:]:
            if text_width_pt(f"{lines[-1]} {word}", size_pt) <= width_pt:
                lines[-1] += f" {word}"
            else:
                lines.append(word)
    return lines


Corner = Literal["lower left", "lower center"]

LEGEND_PT = 7.5
_SPACING, _HANDLE, _HANDLE_PAD = 1.5, 1.5, 0.5


def legend_columns(labels: Sequence[str], width_pt: float) -> int:
    """The most columns of a legend that fit a width; filled column by column, as matplotlib does."""
    beside = (_HANDLE + _HANDLE_PAD) * LEGEND_PT
    for rows in range(1, len(labels)):
        columns = -(-len(labels) // rows)
        # matplotlib gives the first columns one entry more where they do not come out even.
        more, fewer = len(labels) % columns, len(labels) // columns
        sizes = [fewer + (n < more) for n in range(columns)]
        at, total = 0, (columns - 1) * _SPACING * LEGEND_PT
        for size in sizes:
            total += beside + max(text_width_pt(label, LEGEND_PT) for label in labels[at : at + size])
            at += size
        if total <= width_pt:
            return columns
    return 1


def legend(figure: Figure, marks: Sequence[Artist], columns: int, *, x: float, y_in: float, loc: Corner) -> Legend:
    """A legend of the figure, as narrow as ``legend_columns`` takes it to be.

    Args:
        figure: Where to.
        marks: What is explained, with labels.
        columns: How many columns.
        x: Where it is anchored, as a share of the width.
        y_in: Where it is anchored, in inches from the bottom.
        loc: Which of its corners or edges is there.
    """
    return figure.legend(
        handles=list(marks),
        loc=loc,
        bbox_to_anchor=(x, y_in / figure.get_figheight()),
        ncols=columns,
        fontsize=LEGEND_PT,
        frameon=False,
        columnspacing=_SPACING,
        handlelength=_HANDLE,
        handletextpad=_HANDLE_PAD,
        borderpad=0,
        borderaxespad=0,
    )
