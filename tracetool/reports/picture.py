"""What all pictures share: file formats, one style whatever the user's own, and how wide texts come out."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
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


def drawn(draw: Callable[[], Figure]) -> Figure:
    """A figure in the style of all pictures, which a cell of a notebook shows by itself."""
    from matplotlib.style import context

    with context(["default", STYLE]):
        figure = draw()
    setattr(figure, "_repr_png_", lambda: save(lambda: figure, "png"))  # noqa: B010 - of IPython, none of matplotlib's
    return figure


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


def is_dark(colour: str | tuple[float, float, float]) -> bool:
    """Whether white is read better on it than black."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(colour)
    return 0.3 * red + 0.59 * green + 0.11 * blue < 0.55


USED_GBIT_PER_S = (1, 2.5, 5, 10, 25, 50, 100, 200, 400, 800, 1600, 3200)
"""Bandwidths that links come in: where an axis of them has ticks."""

_MOST_TICKS = 9
_MOST_LEVELS = 7


def link_ticks(xs: Sequence[float]) -> list[float]:
    """The bandwidths that people use within a range, or as ``log_ticks`` where it holds too few or too many."""
    ticks = [x for x in USED_GBIT_PER_S if xs[0] * 0.999 <= x <= xs[-1] * 1.001]
    return ticks if 2 < len(ticks) <= _MOST_TICKS else log_ticks(xs)


def log_ticks(xs: Sequence[float]) -> list[float]:
    """At most nine round numbers within a range, or a few of the values where it holds too few."""
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [s * 10.0**e for e in range(-9, 10) for s in steps if xs[0] * 0.999 <= s * 10.0**e <= xs[-1] * 1.001]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks if len(ticks) > 2 else list(xs[:: max(1, len(xs) // 5)])


def round_levels(low: float, high: float) -> list[float]:
    """At most seven values between two, at equal ratios, rounded so far that they stay apart."""
    wanted = [low * (high / low) ** ((n + 1) / (_MOST_LEVELS + 1)) for n in range(_MOST_LEVELS)]
    for digits in (1, 2, 3):
        levels = sorted({float(f"{value:.{digits}g}") for value in wanted})
        if len(levels) >= _MOST_LEVELS - 2:
            break
    return [level for level in levels if low < level < high]


def label_value_axis(axes: Axes, figured: str, values: Sequence[float]) -> float:
    """The y axis, logarithmic where values span more than a factor of eight.

    Returns:
        By what values are divided.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

    axes.tick_params(labelsize=8, width=0.6, length=3)
    axes.grid(visible=True, color="#D0D0D0", linewidth=0.5, linestyle=":")
    axes.set_axisbelow(True)
    for side in ("right", "top"):
        axes.spines[side].set_visible(False)
    low, high = min(values), max(values)
    if figured == "bubble_ratio":
        axes.set_ylabel("bubble", fontsize=8.5)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_ylim(0, min(1.0, high * 1.1) or 1.0)
        return 1.0
    factor, unit = (1e9, "s") if low >= 1e9 else (1e6, "ms")
    axes.set_ylabel(f"step ({unit})", fontsize=8.5)
    if high > 8 * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(FixedLocator(log_ticks([low / factor, high / factor])))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.set_ylim(low / factor / 1.15, high / factor * 1.15)
    else:
        axes.set_ylim(0, high / factor * 1.08)
    return factor


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
