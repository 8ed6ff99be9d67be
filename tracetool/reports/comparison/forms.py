"""The forms that a comparison is written in, by name and suffix.

A comparison for CI: JUnit, GitHub annotations, github-action-benchmark.

A comparison to look at: both sides' steps on one time axis, what changed outlined; as a picture, and as a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from tracetool.comparison.comparable import typical
from tracetool.comparison.job import typical_recordings
from tracetool.comparison.summary import from_to, main_causes, signed, summary
from tracetool.comparison.values import KNOWN, Key
from tracetool.errors import ScenarioError, UnknownName
from tracetool.model.notice import NoticeCode
from tracetool.model.scenario import Scenario
from tracetool.model.timeline import Op
from tracetool.replays.evaluation import evaluate
from tracetool.reports import as_json
from tracetool.reports.comparison.json import render_json
from tracetool.reports.comparison.text import (
    explained_metrics,
    gate_words,
    line_cells,
    render_markdown,
    render_text,
    verdict_words,
)
from tracetool.reports.html import Cell, PageTable, Row
from tracetool.reports.picture import PICTURE_SUFFIXES, RED, save
from tracetool.schedules.names import recognise
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

    from tracetool.comparison import Comparison
    from tracetool.comparison.sides import Side
    from tracetool.comparison.verdict import Line
    from tracetool.model.timeline import RankOp
    from tracetool.reports import CallFacts
    from tracetool.reports.gantt import Panel
    from tracetool.reports.picture import PictureFormat

_ANNOTATION_BYTES = 4000


def render_junit(done: Comparison, facts: CallFacts) -> bytes:
    """JUnit XML: a case per value and one per limit; what cannot be told is skipped, unless a limit is about it.

    Without values there is one case that passes, so that readers that refuse empty suites take it.
    """
    cases = [_case(done, line) for line in done.lines] or [_named_case("comparison", done.gate)]
    for check in done.checks:
        case = _named_case(check.limit.text, "limit")
        if done.fails(check):
            _fail(done, case, f"{check.outcome}: {check.detail}", check.outcome, check.detail)
        elif check.outcome != "held":
            ElementTree.SubElement(case, "skipped", message=_xml(f"{check.outcome}: {check.detail}"))
        cases.append(case)
    if done.gate == "tool" or not done.checks:
        gate = _named_case("gate", done.gate)
        if done.failures:
            _fail(done, gate, "; ".join(done.failures), "regressed", summary(done))
        cases.append(gate)
    failed = sum(case.find("failure") is not None for case in cases)
    skipped = sum(case.find("skipped") is not None for case in cases)
    counts = {"tests": str(len(cases)), "failures": str(failed), "errors": "0", "skipped": str(skipped)}
    root = ElementTree.Element("testsuites", {"name": "tracetool compare", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": "tracetool compare", **counts})
    properties = ElementTree.SubElement(suite, "properties")
    facts_by_name = {
        "summary": summary(done),
        "gate": gate_words(done),
        "command": facts.command,
        "version": facts.tool_version,
    }
    facts_by_name |= {f"base {s.name}": s.digest for s in done.base.sources} | {
        f"new {s.name}": s.digest for s in done.new.sources
    }
    for name, value in facts_by_name.items():
        ElementTree.SubElement(properties, "property", name=_xml(name), value=_xml(value))
    suite.extend(cases)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _named_case(name: str, group: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=f"tracetool.comparison.{group}", name=_xml(name), time="0")


def _case(done: Comparison, line: Line) -> ElementTree.Element:
    case = _named_case(line.key.text, line.key.metric)
    properties = ElementTree.SubElement(case, "properties")
    numbers = {
        "unit": line.metric.unit, "base": line.base, "new": line.new, "change_ratio": line.change_ratio,
        "p": line.p, "verdict": line.verdict,
    }  # fmt: skip
    for name, value in numbers.items():
        if value is not None:
            ElementTree.SubElement(properties, "property", name=name, value=str(value))
    if line.verdict == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=_xml(f"{line.verdict}: {line.why}"))
    elif _fails(done, line):
        _fail(done, case, f"{from_to(line)}: {verdict_words(line)}", line.verdict, _causes(done, line))
    return case


def _fail(done: Comparison, case: ElementTree.Element, message: str, kind: str, text: str) -> None:
    """Mark a case as failed; of an informational comparison as skipped, for readers fail on what has failed."""
    if done.informational:
        ElementTree.SubElement(case, "skipped", message=_xml(f"informational: {message}"))
    else:
        ElementTree.SubElement(case, "failure", message=_xml(message), type=kind).text = _xml(text)


def _fails(done: Comparison, line: Line) -> bool:
    """Whether a line by itself closes the gate: limits are cases of their own."""
    if done.gate == "tool":
        return line in done.drifted and not done.accepted
    return line in done.regressed and not done.checks


def _causes(done: Comparison, line: Line) -> str:
    named = main_causes(done, line)
    causes = [f"{cause.name} {signed(line.metric.unit, cause.value)}: {cause.detail}" for cause in named]
    return "\n".join([verdict_words(line), *causes])


def _xml(text: str) -> str:
    """Text that XML may hold: control characters (names of files may have them) become a question mark."""
    return "".join(
        c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "?"
        for c in text
    )


def render_github(done: Comparison) -> bytes:
    """GitHub workflow commands: one annotation for the whole, one per limit or value that fails, one per doubt."""
    level = {"fails": "error", "would fail": "warning", "unsure": "warning", "passes": "notice"}[done.level]
    failing = "warning" if done.informational else "error"
    notes: list[tuple[str, str, str]] = [(level, "tracetool compare", summary(done))]
    notes += [
        (failing if done.fails(c) else "warning", c.limit.text, f"{c.outcome}: {c.detail}")
        for c in done.checks
        if c.outcome != "held"
    ]
    for line in done.lines:
        if _fails(done, line):
            notes.append((failing, line.key.text, f"{from_to(line)}: {_causes(done, line)}"))
        elif line.verdict == "regressed":
            notes.append(("warning", line.key.text, f"{from_to(line)}: {_causes(done, line)}"))
    # Which pipeline of a job is compared is nothing to mend.
    notes += [
        ("notice" if note.code is NoticeCode.PIPELINES_LEFT_OUT else "warning", "tracetool compare", str(note))
        for note in done.notes
    ]
    return "".join(f"::{level} title={_property(title)}::{_message(text)}\n" for level, title, text in notes).encode()


def _message(text: str) -> str:
    """As the runner unescapes the text of a command (actions/toolkit, ``escapeData``)."""
    cut = text.encode()[:_ANNOTATION_BYTES].decode(errors="ignore")
    return cut.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """As it unescapes a property (``escapeProperty``)."""
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def render_benchmarks(done: Comparison) -> bytes:
    """JSON of github-action-benchmark (``customSmallerIsBetter``): the new side's values, the base's as extra.

    Every metric of a comparison is better where it is lower: those of the step and of replays, not of parts.
    """
    rows: list[dict[str, Any]] = []
    for line in (*done.headlines, *(line for line in done.lines if line.key.is_of_replay)):
        if line.new is None:
            continue
        unit = "ratio" if line.metric.unit == "1" else line.metric.unit
        row: dict[str, Any] = {"name": line.key.text, "unit": unit, "value": line.new}
        rows.append(row | {"extra": f"base {line.base}, {verdict_words(line)}"})
    return as_json(rows)


_OUTLINES: dict[str, tuple[str, Literal["-", "--", ":"]]] = {
    "regressed": (RED, "-"), "improved": ("#1A7F37", "--"), "inconclusive": ("#000000", ":"),
}  # fmt: skip
"""By verdict, how cells are outlined: told apart without colour, too."""


def timelines_figure(done: Comparison, *, is_alone: bool = True) -> Figure:
    """Both sides' steps, as replay gives them with the median costs of each side's steps, on one time axis.

    Args:
        done: The comparison; each side needs a recording.
        is_alone: Whether no text stands beside it, so that it says itself what changed.

    Raises:
        ScenarioError: If a side holds no costs.
        TraceToolError: If a side's order cannot be replayed.
    """
    from tracetool.reports.gantt.picture import panels_figure

    bare = [source.name for side in (done.base, done.new) if not side.recordings for source in side.sources]
    if bare:
        raise ScenarioError(
            f"no timelines: {', '.join(bare)} holds no costs (a report of copied ranks, or of an older version).",
            hint="compare Runs or traces, or write another form (.txt, .md, .json)",
        )
    panels = [_panel(done, side, role) for side, role in ((done.base, "Base"), (done.new, "New"))]
    return panels_figure(panels, [summary(done)] if is_alone else [], has_curves=False)


def _panel(done: Comparison, side: Side, role: str) -> Panel:
    """A side's typical step, with the actions and tails outlined whose times changed."""
    from tracetool.causes import idles_of
    from tracetool.reports.gantt import Outline, Panel

    usual = typical_recordings(side.recordings, side.values[Key("step_ns")].typical)
    pipeline = typical(usual)
    ran = evaluate(pipeline, pipeline.observed, Scenario(p2p=pipeline.p2p, interference=False))
    ops, known = ran.replayed.timeline.ops, recognise(pipeline.observed)
    least = done.rules.least_ratio
    verdicts = {line.key.text: line.verdict for line in done.lines if abs(line.change_ratio or 0) >= least}
    # Ranks of another pipeline of the same shape go by the numbers of the base's.
    named = [one.recordings[0].global_ranks for one in (done.base, side)]
    ranks = named[len(named[0]) != len(named[1])]
    marks = []
    for verdict, (colour, style) in _OUTLINES.items():
        changed = tuple(op for op in ops if verdicts.get(_key_of(op, ranks)) == verdict)
        label = f"{verdict}: by {100 * least:g} % or more" if verdict == "inconclusive" else verdict
        marks += [Outline(label, colour, style, changed)] if changed else []
    steps = sum(len(recording.steps) for recording in usual)
    shape = pipeline.observed.shape
    recorded = side.values[Key("step_ns")].typical
    details = (
        f"p = {shape.ranks}, m = {shape.microbatches}",
        f"{pipeline.p2p} transfers",
        f"step {format_duration(recorded)}",
        f"drawn: median costs of {format_count(steps, 'step')}, replayed ({format_duration(ran.metrics.step_ns)})",
    )
    return Panel(
        role, known.name if known is not None else "an order without a name", details, ran.replayed.timeline,
        ran.metrics, shape.microbatches, idles=idles_of(ran.replayed), marks=tuple(marks),
    )  # fmt: skip


def _key_of(op: Op | RankOp, ranks: Sequence[int]) -> str:
    """The key of what a cell's time is compared by.

    Args:
        op: The cell.
        ranks: The numbers that pipeline ranks go by.
    """
    if isinstance(op, Op):
        return Key("action_ns", f"{op.stage}{op.kind.value}").text
    return Key.of_rank("tail_ns", ranks[op.rank]).text


def render_timelines(
    done: Comparison,
    _facts: CallFacts,
    _max_bytes: int,
    format: PictureFormat = "png",  # noqa: A002
) -> bytes:
    """The picture of ``timelines_figure``, as a file."""
    return save(lambda: timelines_figure(done), format)


def render_page(done: Comparison, facts: CallFacts) -> bytes:
    """The comparison as one HTML file: the sentence, both timelines, what changed and why; no network, no scripts."""
    from tracetool.reports.html.page import Picture, fitted, rendered

    picture: Picture | None = None
    if done.base.recordings and done.new.recordings:
        names = [", ".join(source.name for source in side.sources) for side in (done.base, done.new)]
        alt = f"Timelines of a step of {names[0]} and of {names[1]}, on one time axis. The tables say what changed."
        caption = "A row is a pipeline rank, the axis is time; what changed is outlined."
        plain = Picture("timelines", "Both steps on one time axis", alt, caption)
        picture = fitted(
            plain, lambda form: save(lambda: timelines_figure(done, is_alone=False), form), _MOST_PICTURE_BYTES
        )
    rest = [line for line in done.lines if line not in done.shown]
    parts = {
        "headline": summary(done),
        "level": done.level,
        "why": "; ".join(done.failures) or gate_words(done),
        "picture": picture,
        "lines": lines_table(done, done.shown, "What changed"),
        "causes": [_causes_table(done, metric, title) for metric, title in explained_metrics(done)],
        "checks": [f"{check.limit.text}: {check.outcome}: {check.detail}" for check in done.checks],
        "notes": list(map(str, done.notes)),
        "rest": lines_table(done, rest, "Everything else") if rest else None,
        "sources": [
            f"{label} {source.name}: {format_count(len(source.steps), 'step')}, traces {source.digest}"
            for label, side in (("base", done.base), ("new", done.new))
            for source in side.sources
        ],
        "facts": facts,
    }
    return rendered("compare.html.jinja", parts)


_MOST_PICTURE_BYTES = 1_000_000


def lines_table(done: Comparison, lines: Sequence[Line], caption: str) -> PageTable:
    """Values side by side."""
    rows = []
    for line in lines:
        name, base, new, change, verdict = line_cells(done, line)
        cells = Cell(base, line.base), Cell(new, line.new), Cell(change, line.change_ratio), Cell(verdict)
        rows.append(Row(Cell(name), cells, line.verdict))
    return PageTable(caption, ("Value", "Base", "New", "Change", "Verdict"), tuple(rows), remarked=True)


def _causes_table(done: Comparison, metric: str, title: str) -> PageTable:
    unit = KNOWN[metric.partition("/")[0]].unit
    rows = tuple(
        Row(Cell(cause.name), (Cell(signed(unit, cause.value), float(cause.value)), Cell(cause.detail)))
        for cause in done.causes[metric]
        if cause.value
    )
    return PageTable(title, ("Cause", "Of it", "Why"), rows, remarked=True)


@dataclass(frozen=True, slots=True)
class Form:
    """A form.

    Attributes:
        name: Its name.
        suffixes: Files it is written to without being named.
        render: Makes it, given the greatest size of Markdown.
        is_text: Whether it can be printed.
    """

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Comparison, CallFacts, int], bytes]
    is_text: bool = True


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("text", (".txt",), lambda done, facts, _: render_text(done, facts)),
        Form("markdown", (".md",), render_markdown),
        Form("json", (".json",), lambda done, facts, _: render_json(done, facts)),
        Form("junit", (".xml",), lambda done, facts, _: render_junit(done, facts)),
        Form("github", (), lambda done, _facts, _: render_github(done)),
        Form("html", (".html", ".htm"), lambda done, facts, _: render_page(done, facts)),
        *(
            Form(kind, (suffix,), partial(render_timelines, format=kind), is_text=False)
            for suffix, kind in PICTURE_SUFFIXES.items()
        ),
        Form("benchmark-action", (), lambda done, _facts, _: render_benchmarks(done)),
    )
}


def form_named(name: str) -> Form:
    """The form of a name.

    Raises:
        UnknownName: If there is none.
    """
    if name not in FORMS:
        raise UnknownName("form", name, FORMS)
    return FORMS[name]


def form_of_suffix(suffix: str) -> Form | None:
    """The form that files of a suffix get, or None."""
    return next((form for form in FORMS.values() if suffix.lower() in form.suffixes), None)
