"""What stands above a panel of the schedule picture, in as many lines as the width asks for.

The scenario in words above the schedule picture: every link, those of equal speed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tracetool.reports.gantt import idle_shares
from tracetool.reports.picture import GREY, PT, RED, text_width_pt, wrapped
from tracetool.units import format_bandwidth, format_duration, format_size
from tracetool.whatif.wording import sharing_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tracetool.model.scenario import Scenario
    from tracetool.network.link import Link
    from tracetool.reports.gantt import Panel

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


_NAMED = 12
"""Links of one speed that are named; further ones are counted."""


def scenario_parts(scenario: Scenario) -> list[str]:
    """What a scenario differs in, part by part; empty if in nothing that the picture shows."""
    same: dict[tuple[int, int], list[str]] = {}
    topology = scenario.topology
    for name, link in _named(topology.links if topology.seating is None else ()):
        same.setdefault((link.bandwidth_bytes_per_s, link.latency_ns), []).append(name)
    parts = [] if topology.seating is None else ["; ".join(topology.lines())]
    for (bandwidth, latency), names in same.items():
        shown = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        colon, each = (":", " each") if len(names) > 1 else ("", "")
        parts.append(f"{shown}{colon} {format_bandwidth(bandwidth)}, {format_duration(latency)}{each}")
    parts += sharing_lines(scenario)
    if scenario.hbm_bytes is not None:
        parts.append(f"HBM limit {format_size(scenario.hbm_bytes)} per rank")
    if parts:
        parts[0] = f"Scenario: {parts[0]}"
    return parts


def _named(links: tuple[Link, ...]) -> list[tuple[str, Link]]:
    """Links by name, both directions as one where they are equal."""
    pairs = {(link.src_dc, link.dst_dc): link for link in links}
    named = []
    for number, link in enumerate(links):
        back = pairs.get((link.dst_dc, link.src_dc))
        same = back is not None and (back.bandwidth_bytes_per_s, back.latency_ns) == (
            link.bandwidth_bytes_per_s,
            link.latency_ns,
        )
        if same and back in links[:number]:
            continue
        named.append((f"{link.src_dc}{'↔' if same else '→'}{link.dst_dc}", link))
    return named
