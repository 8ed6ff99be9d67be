"""Pictures inside a page: as SVG where that is small enough, else as pixels, else left out, which is said."""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from tracetool.errors import TraceToolError
from tracetool.reports.answer.text import is_baseline, result_name
from tracetool.reports.gantt.picture import render_gantt
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.reports.picture import PictureFormat
    from tracetool.whatif.results import Answer, Result

_XLINK = "{http://www.w3.org/1999/xlink}href"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the page.

    Attributes:
        name: What its ids begin with.
        title: Its heading.
        alt: What it shows, for those who do not see it.
        caption: How to read it.
        markup: An ``svg`` element without a title; empty if it is in pixels, or left out.
        pixels: A ``data:`` address of a PNG; empty if not needed.
        left_out: Why it is not there; empty if it is.
    """

    name: str
    title: str
    alt: str
    caption: str
    markup: str = ""
    pixels: str = ""
    left_out: str = ""


def pictures(answer: Answer, best: Result, most_bytes: int) -> tuple[Picture, ...]:
    """The pictures of a page, in at most so many bytes together."""
    base = answer.baseline
    seen = f"observed {answer.observed_schedule or 'order'} ({format_duration(answer.observed_metrics.step_ns)})"
    panels = [seen, f"baseline {result_name(base)} ({format_duration(base.metrics.step_ns)})"]
    if not is_baseline(answer, best):
        panels.append(f"{result_name(best)} ({format_duration(best.metrics.step_ns)})")
    gantt = Picture(
        "schedule",
        "When each rank computes",
        f"Schedule picture of {len(answer.observed.global_ranks)} pipeline ranks over one step: {'; '.join(panels)}. "
        "The tables say the same in numbers.",
        "A row is a pipeline rank, the axis is time; what is hatched or empty is idle. All panels share one axis.",
    )
    return (_fitted(gantt, lambda form: render_gantt(answer, best, format=form), most_bytes),)


def _fitted(picture: Picture, draw: Callable[[PictureFormat], bytes], most_bytes: int) -> Picture:
    """The picture with the first form of it that fits."""
    from dataclasses import replace

    try:
        markup = inline_svg(draw("svg"), f"{picture.name}-")
        if len(markup.encode()) <= most_bytes:
            return replace(picture, markup=markup)
    except ET.ParseError:
        # A name with characters that XML has not: its pixels can still be shown.
        pass
    except TraceToolError as error:
        return replace(picture, left_out=error.message)
    pixels = "data:image/png;base64," + b64encode(draw("png")).decode()
    if len(pixels) <= most_bytes:
        return replace(picture, pixels=pixels)
    return replace(
        picture, left_out=f"It would take {len(pixels):,} bytes: draw it with tracetool replay ... -o picture.png."
    )


def inline_svg(svg: bytes, prefix: str) -> str:
    """An SVG file as an element of an HTML page: without metadata, its ids apart from those of other pictures.

    Args:
        svg: The file.
        prefix: What its ids shall begin with.

    Raises:
        xml.etree.ElementTree.ParseError: If it is not well-formed.
    """
    root = ET.fromstring(svg)  # noqa: S314 - drawn by ourselves
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        if "id" in element.attrib:
            element.set("id", prefix + element.attrib["id"])
        if (target := element.attrib.pop(_XLINK, None)) is not None:
            element.set("href", f"#{prefix}{target[1:]}" if target.startswith("#") else re.sub(r"\s+", "", target))
        for name, value in element.attrib.items():
            if "url(#" in value:
                element.set(name, value.replace("url(#", f"url(#{prefix}"))
    # matplotlib says this for every element, in a style sheet that would be the whole page's.
    root.set("style", "stroke-linejoin: round; stroke-linecap: butt")
    del root.attrib["version"]
    return ET.tostring(root, encoding="unicode")
