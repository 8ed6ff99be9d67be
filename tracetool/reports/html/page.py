"""The report as one HTML file: the answer first, then what it rests on; no network, and no scripts needed.

jinja2 is imported where it renders, so that importing this module stays cheap.

What to run, what binds and what one more unit buys: advice for the HTML report.

Pictures inside a page: as SVG where that is small enough, else as pixels, else left out, which is said.
"""

from __future__ import annotations

import re
from base64 import b64encode
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from tracetool.errors import TraceToolError
from tracetool.reports import Report, RunFacts
from tracetool.reports.advice import offer_rows, sentences
from tracetool.reports.advice.text import binds_text, listed
from tracetool.reports.answer.text import compared_results, is_baseline, result_name
from tracetool.reports.answer.verdict import verdict
from tracetool.reports.gantt.picture import pair_figure, render_gantt
from tracetool.reports.html import (
    Cell,
    PageTable,
    Row,
    comparison,
    details,
    fidelity,
    places,
    scenario,
    stages,
    what_if,
)
from tracetool.reports.html.sections import cause_styles, idle_view, recording
from tracetool.reports.picture import save
from tracetool.tables.run import SCHEMA_VERSION
from tracetool.units import format_duration
from tracetool.whatif.best import UNPROVEN_MARK, UNPROVEN_TEXT, nothing_fits, unchecked
from tracetool.whatif.depth import RELEVANT_RATIO
from tracetool.whatif.wording import way_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tracetool.advice import Advice, Decided
    from tracetool.advice.plans import Gain, Plan
    from tracetool.reports.html.sections import IdlesOf
    from tracetool.reports.picture import PictureFormat
    from tracetool.sweeps import Grid, Sweep
    from tracetool.whatif.decision import Decision
    from tracetool.whatif.results import Answer, Result


@dataclass(frozen=True, slots=True)
class Advised:
    """Lines of text, and what more of each resource buys; no table if nothing fits."""

    lines: tuple[str, ...]
    gains: PageTable | None


def advised_result(answer: Answer, advice: Advice | None) -> Result | None:
    """The result of an answer that is the plan to run; None if there is no advice or the answer lacks that plan."""
    if advice is None or advice.best is None:
        return None
    best = advice.best.result

    def what(result: Result) -> tuple[object, ...]:
        return result.schedule, result.extra_forwards, result.p2p, result.microbatches

    return next((result for result in compared_results(answer) if what(result) == what(best)), None)


def advised(answer: Answer, advice: Advice) -> Advised:
    """The advice in words and a table."""
    best = advice.best
    if best is None:
        return Advised((f"HBM binds: {nothing_fits(unchecked(advice.asked.plans))}.",), None)
    lines = []
    if advised_result(answer, advice) is None:
        lines.append(f"To run: {best.label} with {best.result.p2p} transfers, {format_duration(best.step_ns)} a step.")
    lines.append(f"What binds is {binds_text(advice)}.")
    if advice.other_transfers:
        lines.append(
            "With transfers issued otherwise it would be shorter (against the recorded order; "
            f"{UNPROVEN_MARK}: {UNPROVEN_TEXT}): {listed(advice, advice.other_transfers)}."
        )
    lines += [f"{more}: cannot be told: {reason}" for more, reason in advice.missing]
    lines.append(
        f"Best is the shortest step of what is predicted most surely; of steps within {RELEVANT_RATIO:.0%} of it the "
        "one that needs least memory, and the recorded order where the lead over it is within the error."
    )
    now = best.result.microbatches
    others = dict.fromkeys(str(m) for gain in advice.gains if (m := gain.plan.result.microbatches) != now)
    if others:
        lines.append(f"*: of every {now} microbatches, with {' or '.join(others)} in a step.")
    columns = ("One more unit", "Gain", "Share of step", "Step", "With")
    rows = tuple(_row(gain, best) for gain in advice.gains)
    return Advised(tuple(lines), PageTable("What one more unit buys, replayed", columns, rows))


def offers(decision: Decision) -> PageTable:
    """The offers under what was recorded, as the command line shows them."""
    columns = offer_rows(decision)
    heads = tuple(name[0].upper() + name[1:] for name in columns)
    rows = [
        Row(
            Cell(first),
            tuple(Cell(text, data=(("head", head),)) for head, text in zip(heads[1:], cells, strict=True)),
        )
        for first, *cells in zip(*columns.values(), strict=True)
    ]
    return PageTable("What to run over each offer", heads, (replace(rows[0], kind="observed"), *rows[1:]))


def subtitle(answer: Answer, decision: Decision | None) -> list[str]:
    """What was asked: the offers, where ranks sit, and today's step."""
    links = answer.scenario.topology.links
    named = (
        [offer.name for offer in decision.offers] if decision else [way_text(answer.scenario.topology)] if links else []
    )
    today = f"today {format_duration(answer.observed_metrics.step_ns)} a step"
    return [*([" or ".join(named), places(answer)] if named else []), today]


def _row(gain: Gain, best: Plan) -> Row:
    label, step_ns = gain.plan.label, best.step_ns - gain.gained_ns
    star = "*" if gain.plan.result.microbatches != best.result.microbatches else ""
    return Row(
        Cell(gain.more.text),
        (
            Cell(f"{gain.gained_ns / 1e6:.1f} ms" if gain.gained_ns > 0 else "no gain", gain.gained_ns),
            Cell(f"{gain.gain_ratio:.1%}" if gain.gained_ns > 0 else "", gain.gain_ratio),
            Cell(f"{format_duration(step_ns)}{star}", step_ns),
            Cell("the same" if label == best.label else label),
        ),
    )


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


_PAIR_IN = 11.5
"""Wider than the page shows it, so that it is less high: with the sentence and the offers it fits a screen."""
_PHONE_IN = 4.6


def pictures(answer: Answer, best: Result, most_bytes: int) -> tuple[Picture, Picture, Picture]:
    """The pictures of a page in at most so many bytes: those of its first screen, the second for phones, then all."""
    base = answer.baseline
    caption = f"as recorded {answer.observed_schedule or 'an order without a name'}"
    caption += f" ({format_duration(answer.observed_metrics.step_ns)})"
    planned = f"{result_name(best)} ({format_duration(best.metrics.step_ns)})"
    ranks = f"of {len(answer.observed.global_ranks)} pipeline ranks over one step"
    pair = Picture(
        "pair",
        "As recorded, and the plan",
        f"Timelines {ranks}: {caption}; {planned}. The tables say the same in numbers.",
        "A row is a pipeline rank, the axis is time; what is hatched is idle.",
    )
    small = fitted(
        replace(pair, name="small"),
        lambda form: save(lambda: pair_figure(answer, best, _PHONE_IN), form),
        most_bytes // 4,
    )
    pair = fitted(pair, lambda form: save(lambda: pair_figure(answer, best, _PAIR_IN), form), most_bytes // 2)
    panels = [caption, f"baseline {result_name(base)} ({format_duration(base.metrics.step_ns)})"]
    if not is_baseline(answer, best):
        panels.append(planned)
    gantt = Picture(
        "schedule",
        "When each rank computes",
        f"Schedule picture {ranks}: {'; '.join(panels)}. The tables say the same in numbers.",
        "A row is a pipeline rank, the axis is time; what is hatched or empty is idle. All panels share one axis.",
    )
    left = most_bytes - sum(len(one.markup.encode()) + len(one.pixels) for one in (pair, small))
    return pair, small, fitted(gantt, lambda form: render_gantt(answer, best, format=form), left)


def fitted(picture: Picture, draw: Callable[[PictureFormat], bytes], most_bytes: int) -> Picture:
    """The picture with the first form of it that fits so many bytes."""
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


MOST_BYTES = 1_500_000
"""A page is smaller: it is mailed, and opened on phones."""

_PAGE = "report.html.jinja"


def render(answer: Answer, facts: RunFacts, _suffix: str) -> bytes:
    """The report as a page."""
    return page(answer, facts)


REPORT = Report((".html", ".htm"), render)


class Around(NamedTuple):
    """A sweep round what is asked about, and its grid."""

    grid: Grid
    swept: Sweep


def page(
    answer: Answer,
    facts: RunFacts,
    idles_of: IdlesOf = attrgetter("idles"),
    decided: Decided | None = None,
    around: Around | None = None,
) -> bytes:
    """The report as a page.

    Args:
        answer: What to report.
        facts: About the Run and the call.
        idles_of: The idle intervals of a result, each with its cause.
        decided: What to run over each offer, where links are given; what it names for the first is then named best.
        around: What other links and limits give, for readers to try.

    Returns:
        The file; equal input gives equal bytes.
    """
    advice = None if decided is None else decided.advice[0]
    chosen = verdict(answer, advised_result(answer, advice))
    headline, *others = [chosen.headline] if decided is None else sentences(decided.decision)
    parts: dict[str, Any] = {
        "answer": answer,
        "facts": facts,
        "schema_version": SCHEMA_VERSION,
        "verdict": chosen,
        "headline": headline,
        "beside": others,
        "asked": subtitle(answer, None if decided is None else decided.decision),
        "what_if": None if around is None else what_if(around.swept, around.grid, answer.scenario),
        "offers": None if decided is None else offers(decided.decision),
        "advised": None if advice is None else advised(answer, advice),
        "comparison": comparison(answer, chosen.best),
        "details": details(answer),
        "idle": idle_view(answer, chosen.best, idles_of),
        "fidelity": fidelity(answer),
        "stages": stages(answer),
        "scenario": scenario(answer),
        "recording": None if facts.run is None else recording(facts.run),
    }
    bare = rendered(_PAGE, parts, pictures=())
    drawn = pictures(answer, chosen.best, int(0.98 * MOST_BYTES) - len(bare))
    return rendered(_PAGE, parts, pictures=drawn)


def rendered(template: str, parts: dict[str, Any], **more: Any) -> bytes:
    """A page by its template."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = files("tracetool.reports.html") / "static"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    script = read("report.js")
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    # Names of ranks, hosts and files are anybody's: everything is escaped unless the template says otherwise.
    environment = Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template(template).render(
        parts, style=read("report.css") + cause_styles(), script=script, script_digest=f"sha256-{allowed}", **more
    )
    # Names of files may be any bytes.
    return text.encode(errors="backslashreplace")
