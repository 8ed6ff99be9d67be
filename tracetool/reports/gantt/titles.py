"""What stands above a panel of the schedule picture, in as many lines as the width asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.reports.gantt.looks import idle_shares
from tracetool.reports.picture import GREY, PT, RED, text_width_pt, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracetool.reports.gantt.panel import Panel

LINE_IN = 0.17
"""Height of a line below the first."""

_NAME_PT, _DETAILS_PT = 9.5, 8.5
_BETWEEN_PT = 7
_SEPARATOR = "  ·  "


class TitleLine(NamedTuple):
    """A line below a panel's name."""

    text: str
    colour: str
    is_bold: bool = False


class Title(NamedTuple):
    """What stands above a panel.

    Attributes:
        beside: Key figures behind the name; empty if they stand below.
        lines: Lines below the name.
    """

    beside: str
    lines: tuple[TitleLine, ...]


def title_of(panel: Panel, width_pt: float) -> Title:
    """The title in a width: the name, the key figures, what is wrong with the memory, and why it idles."""
    beside = _SEPARATOR.join(panel.details)
    together = text_width_pt(panel.name, _NAME_PT, bold=True) + _BETWEEN_PT + text_width_pt(beside, _DETAILS_PT)
    lines = []
    if together > width_pt:
        lines += [TitleLine(text, "black") for text in wrapped(panel.details, width_pt, _DETAILS_PT)]
        beside = ""
    if panel.complaint:
        # Bold letters are up to an eighth wider.
        texts = wrapped([panel.complaint], width_pt / 1.13, _DETAILS_PT)
        lines += [TitleLine(text, GREY if panel.fits else RED, is_bold=True) for text in texts]
    shares = idle_shares(panel)
    if shares:
        shares[0] = f"idle by cause: {shares[0]}"
        lines += [TitleLine(text, GREY) for text in wrapped(shares, width_pt, _DETAILS_PT, between=", ")]
    return Title(beside, tuple(lines))


def draw_title(axes: Axes, panel: Panel, width_pt: float) -> None:
    """Write the title above the axes."""
    title = title_of(panel, width_pt)
    for number, line in enumerate(reversed(title.lines)):
        _above(axes, line.text, 2 + LINE_IN * PT * number, _DETAILS_PT, line.colour, is_bold=line.is_bold)
    bottom = 2 + LINE_IN * PT * len(title.lines)
    _above(axes, _fitting(panel, width_pt), bottom, _NAME_PT, "black", is_bold=True)
    left = text_width_pt(panel.name, _NAME_PT, bold=True) + _BETWEEN_PT
    _above(axes, title.beside, bottom, _DETAILS_PT, "black", left=left)


def _fitting(panel: Panel, width_pt: float) -> str:
    """A name that is too long for a line, without its beginning: the end of a path says more."""
    shown, schedule = panel.name, panel.schedule
    while text_width_pt(shown, _NAME_PT, bold=True) > width_pt and len(schedule) > 1:
        schedule = schedule[1:]
        shown = f"{panel.role}: …{schedule}"
    return shown


def _above(
    axes: Axes, text: str, bottom: float, size: float, colour: str, *, left: float = 0, is_bold: bool = False
) -> None:
    axes.annotate(
        text,
        (0, 1),
        (left, bottom),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=size,
        fontweight="bold" if is_bold else "normal",
        color=colour,
        va="bottom",
        annotation_clip=False,
    )
