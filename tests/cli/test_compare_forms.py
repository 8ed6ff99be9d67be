"""The forms that tracetool compare writes, read by what they are made for."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import junitparser
import numpy as np
import pytest
from helpers.comparing import report, said
from helpers.drawn import laid_out, texts_of

from tracetool import compare
from tracetool.reports import CallFacts
from tracetool.reports.comparison.forms import render_page, timelines_figure
from tracetool.reports.gantt.cells import MARK_PT

if TYPE_CHECKING:
    from pathlib import Path

    from helpers.browser import Browser

MARKER = "<!-- tracetool-compare -->"


def unescaped(text: str) -> str:
    """As GitHub's runner reads a command: actions/runner, ActionCommand.Unescape."""
    for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, sign)
    return text


def test_every_form_at_once(capsys: pytest.CaptureFixture[str], base: Path, slower: Path, tmp_path: Path) -> None:
    files = ["x.md", "x.json", "x.xml", "x.txt", "github:x.gh", "benchmark-action:bench.json"]
    outputs = [word for name in files for word in ("-o", name)]
    out, _ = said(capsys, 1, base, slower, *outputs, "--fail-on", "step_ns>+3%", "-q", "-v")
    assert (tmp_path / "x.txt").read_text(encoding="utf-8") == out
    written = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert written["command"].startswith("tracetool compare ")
    assert [s["digest"] for s in (*written["base"]["sources"], *written["new"]["sources"])] == ["base", "new"]
    assert written["base"]["scenario"]["p2p"] is None

    suite = junitparser.JUnitXml.fromfile(str(tmp_path / "x.xml"))
    (inner,) = list(suite)
    cases = {case.name: case for case in inner}
    assert (suite.tests, suite.failures) == (len(cases), 1)
    assert suite.tests == len(written["lines"]) + 1
    (failed,) = cases["step_ns>+3%"].result
    assert failed.message == "exceeded: step_ns changed by +5.00%"
    numbers = ElementTree.parse(  # noqa: S314 - written here
        tmp_path / "x.xml"
    ).findall(".//testcase[@name='step_ns']//property[@name='new']")
    assert float(numbers[0].get("value", "")) == written["lines"][0]["new"]

    first, *others = (tmp_path / "x.gh").read_text(encoding="utf-8").splitlines()
    level, title, text = re.fullmatch(r"::(\w+) title=(.*?)::(.*)", first).groups()  # type: ignore[union-attr]
    assert (level, unescaped(title), unescaped(text)) == ("error", "tracetool compare", written["summary"])
    assert any(line.startswith("::error title=step_ns>+3%25::exceeded") for line in others)

    benchmarks = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert {"name": "step_ns", "unit": "ns", "value": written["lines"][0]["new"]}.items() <= benchmarks[0].items()
    markdown = (tmp_path / "x.md").read_text(encoding="utf-8")
    assert markdown.startswith(MARKER + "\n**step\\_ns 246.4 ms → 258.7 ms (+5.00%, regressed)")
    assert "exists" in said(capsys, 2, base, slower, "-o", "x.md")[1]
    assert "no form is written to .doc" in said(capsys, 2, base, slower, "-o", "x.doc")[1]
    assert "Did you mean 'junit'" in said(capsys, 2, base, slower, "--format", "junitt")[1]


def test_what_is_only_informational_fails_nowhere(capsys: pytest.CaptureFixture[str], base: Path, slower: Path) -> None:
    """Readers of JUnit fail on failures, and GitHub marks a step with error annotations as failed."""
    outputs = [word for name in ("x.xml", "github:x.gh", "x.md", "x.json") for word in ("-o", name)]
    for limit in ((), ("--fail-on", "step_ns>+3%")):
        said(capsys, 0, base, slower, *limit, "--informational", "--force", *outputs)
        junit, github, markdown, told = (
            base.with_name(name).read_text(encoding="utf-8") for name in ("x.xml", "x.gh", "x.md", "x.json")
        )
        suite = junitparser.JUnitXml.fromstring(junit.encode())
        assert (suite.failures, suite.errors) == (0, 0)
        assert any("informational: " in (case.result[0].message or "") for case in next(iter(suite)) if case.result)
        levels = [line.split()[0] for line in github.splitlines()]
        assert levels[0] == "::warning"
        assert "::error" not in levels
        assert "🟡 would fail (informational): " in markdown
        assert "🔴 fails" not in markdown
        assert json.loads(told)["informational"]
    allowed = (base, report(base.with_name("one.json"), (1.0,)), "--fail-on", "step_ns>+3%", "--allow-inconclusive")
    said(capsys, 0, *allowed, "--force", *outputs)
    suite = junitparser.JUnitXml.fromstring((base.with_name("x.xml")).read_bytes())
    assert suite.failures == 0, "what is allowed to be inconclusive is no failure"
    assert "::error" not in base.with_name("x.gh").read_text(encoding="utf-8")


def test_a_clean_comparison_has_cases_that_pass(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    out, _ = said(capsys, 0, base, base, "--format", "junit")
    suite = junitparser.JUnitXml.fromstring(out.encode())
    assert (suite.failures, suite.errors, suite.skipped) == (0, 0, 0)
    assert suite.tests > 10


def test_names_cannot_break_out_of_a_form(capsys: pytest.CaptureFixture[str], base: Path, slower: Path) -> None:
    bad = "a\n::error::x|<b>`%0A\x01"
    named = f"{bad}={slower}"
    markdown, _ = said(capsys, 1, base, named, "--format", "markdown")
    assert "\n::error::x" not in markdown
    assert "<b>" not in markdown.replace("`", "")[: markdown.index("Again")]
    github, _ = said(capsys, 1, base, named, "--format", "github")
    assert all(line.startswith("::") and "\x01" not in line for line in github.splitlines())
    suite = junitparser.JUnitXml.fromstring(said(capsys, 1, base, named, "--format", "junit")[0].encode())
    assert suite.tests > 10


@pytest.mark.parametrize("size", [500, 900, 2_000, 64_000])
def test_markdown_fits_and_keeps_its_marker(
    capsys: pytest.CaptureFixture[str], base: Path, slower: Path, size: int
) -> None:
    out, _ = said(capsys, 1, base, slower, "--format", "markdown", "--max-bytes", size)
    assert len(out.encode()) <= size
    assert out.startswith(MARKER)
    assert ("Left out, for the size" in out) is (size < 4_000)


def with_slower(path: Path, stage: int, kind: str, ratio: float) -> Path:
    """The report with one kind of action on one stage so many times as long in every step."""
    made = json.loads(report(path, digest="slower").read_text(encoding="utf-8"))
    for number, step in enumerate(made["recording"]["steps"]):
        action = step["actions"][f"{stage}{kind}"]
        action["duration_ns"] = [round(ns * ratio) + number for ns in action["duration_ns"]]
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def test_timelines_share_an_axis_and_outline_what_changed(base: Path, tmp_path: Path) -> None:
    """Every backward of stage 2 takes half as long again: its eight cells are outlined on both sides, no others."""
    done = compare(base, with_slower(tmp_path / "b.json", 2, "B", 1.5))
    regressed = [line.key.text for line in done.lines if line.verdict == "regressed"]
    assert regressed == ["action_ns/2B"]
    figure = laid_out(lambda: timelines_figure(done))
    assert len(figure.axes) == 2
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()
    titles = [text.get_text() for text in texts_of(figure)]
    assert {"Base: 1f1b", "New: 1f1b", "regressed"} <= set(titles)
    outlined = []
    for axes in figure.axes:
        (marked,) = [p for p in axes.patches if p.get_linewidth() == MARK_PT]
        edges: np.ndarray = np.reshape(np.array(marked.get_path().vertices, np.float64), (-1, 5, 2))
        outlined.append(sorted((edges[:, 1, 0] - edges[:, 0, 0]).tolist()))
    assert len(outlined[0]) == len(outlined[1]) == 8
    took = json.loads(base.read_text(encoding="utf-8"))["recording"]["steps"][0]["actions"]["2B"]["duration_ns"]
    assert outlined[0] == pytest.approx(sorted(ns / 1e6 for ns in took))
    assert outlined[1] == pytest.approx(sorted(ns * 1.5 / 1e6 for ns in took), abs=1e-5)


def test_the_page_of_a_comparison_begins_with_its_answer(
    capsys: pytest.CaptureFixture[str], base: Path, slower: Path, tmp_path: Path
) -> None:
    said(capsys, 1, base, slower, "-o", "x.html", "-o", "x.png", "-q")
    assert (tmp_path / "x.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "<h1>step_ns 246.4 ms → 258.7 ms (+5.00%, regressed)" in text
    assert "<svg" in text


# What a browser says of pages is asked by default of those of reports (tests/reports), which have the same style.
@pytest.mark.thorough
def test_the_page_of_a_comparison_is_whole_in_itself(
    capsys: pytest.CaptureFixture[str], base: Path, slower: Path, tmp_path: Path, browser_: Browser
) -> None:
    said(capsys, 1, base, slower, "-o", "x.html", "-q")
    for width in (390, 1280, 1920):
        seen = browser_.open(tmp_path / "x.html", width=width, scheme="dark" if width == 390 else "light")
        assert (seen.overflow_px, seen.requests, seen.complaints) == (0, [], [])


def test_timelines_that_cannot_be_drawn_are_refused(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    assert "a picture is not printed: png" in said(capsys, 2, base, base, "--format", "png")[1]
    bare = tmp_path / "bare.json"
    made = json.loads(base.read_text(encoding="utf-8"))
    made["recording"] = None
    bare.write_text(json.dumps(made), encoding="utf-8")
    assert "no timelines: " in said(capsys, 2, base, bare, "-o", "y.png")[1]
    assert "a side holds no costs" in render_page(compare(base, bare), CallFacts("9.9", "tracetool compare")).decode()
