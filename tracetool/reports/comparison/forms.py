"""The forms that a comparison is written in, by name and suffix.

A comparison for CI: JUnit, GitHub annotations, github-action-benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tracetool.comparison.summary import from_to, main_causes, signed, summary
from tracetool.errors import UnknownName
from tracetool.reports import as_json
from tracetool.reports.comparison.json import render_json
from tracetool.reports.comparison.text import gate_words, render_markdown, render_text, verdict_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.comparison import Comparison
    from tracetool.comparison.verdict import Line
    from tracetool.reports import CallFacts

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
    told = {"summary": summary(done), "gate": gate_words(done), "command": facts.command, "version": facts.tool_version}
    told |= {f"base {s.name}": s.digest for s in done.base.sources} | {
        f"new {s.name}": s.digest for s in done.new.sources
    }
    for name, value in told.items():
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
    return line.verdict == "regressed" and not done.checks


def _causes(done: Comparison, line: Line) -> str:
    named = main_causes(done, line)
    told = [f"{cause.name} {signed(line.metric.unit, cause.value)}: {cause.detail}" for cause in named]
    return "\n".join([verdict_words(line), *told])


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
    notes += [("warning", "tracetool compare", str(note)) for note in done.notes]
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


@dataclass(frozen=True, slots=True)
class Form:
    """A form.

    Attributes:
        name: Its name.
        suffixes: Files it is written to without being named.
        render: Makes it, given the greatest size of Markdown.
    """

    name: str
    suffixes: tuple[str, ...]
    render: Callable[[Comparison, CallFacts, int], bytes]


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("text", (".txt",), lambda done, facts, _: render_text(done, facts)),
        Form("markdown", (".md",), render_markdown),
        Form("json", (".json",), lambda done, facts, _: render_json(done, facts)),
        Form("junit", (".xml",), lambda done, facts, _: render_junit(done, facts)),
        Form("github", (), lambda done, _facts, _: render_github(done)),
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
