"""No number hangs on a sentence: with every text of the product replaced, answers and exit codes stay the same."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.parsed import last_name, nodes
from helpers.recorded import ROOT, SAMPLES
from helpers.scrambled import answers_to, is_sentence

SAMPLE = str(SAMPLES / "h100-1f1b")
PLACES = "0-1,2-3"
WAN = ["--dc", PLACES, "--link", "dc0-dc1=25Gbit/s,10ms", "--hbm", "80GiB"]


def commands(folder: Path) -> list[list[str]]:
    """Of every kind that answers with numbers, and some that are refused or fail a check."""
    run = str(folder / "x.run")
    report = str(folder / "report.json")
    return [
        ["ingest", SAMPLE, "-o", run, "--jobs", "1", "--json"],
        ["info", run, "--dc", PLACES, "--json"],
        ["replay", run, "--schedule", "gpipe,geopipe,zb-h1,dualpipe", *WAN, "-o", report, "--json"],
        ["replay", run, "--schedule", "geopipe", *WAN[:4], "--hbm", "1GiB", "--costs-from", run, "--json"],
        ["compare", report, run, "--json"],
        ["compare", run, run, "--fail-on", "step_ns>1ms", "--json"],
        ["replay", run, "--schedule", "geopip", "--json"],
        ["replay", run, "--schedule", "geopipe", "--link", "nonsense", "--json"],
        ["replay", run, "--schedule", "1f1b", "--step", "99", "--json"],
        *of_more(folder),
        *of_what_is_there(folder),
    ]  # fmt: skip


def of_more(folder: Path) -> list[list[str]]:
    """These alone show advice and causes, what Ascend's profiler lacks and what is compared with another device, knees,
    limits of a grid, parts equalized, pipelines that share a link, and orders given up."""
    run, other = str(folder / "x.run"), str(folder / "a.run")
    return [
        ["advise", run, "--schedule", "1f1b,geopipe", *WAN, "--json"],
        ["explain", run, "--schedule", "geopipe", *WAN, "--json"],
        ["ingest", str(SAMPLES / "ascend-1f1b"), "-o", other, "--jobs", "1", "--json"],
        ["info", other, "--json"],
        ["replay", other, "--schedule", "1f1b,gpipe", *WAN, "--json"],
        ["compare", run, other, "--json"],
        ["replay", run, "--schedule", "geopipe", *WAN, "--no-interference", "--pipelines-on-link", "2", "--json"],
        ["sweep", run, "--schedule", "geopipe", "--dc", PLACES, "--bandwidth", "10Gbit/s,100Gbit/s",
         "--latency", "10ms", "--jobs", "1", "--no-knees", "--json"],
        ["replay", run, "--equalize", "--json"],
        ["sweep", run, "--schedule", "1f1b,geopipe", "--dc", PLACES, "--bandwidth", "10Gbit/s,100Gbit/s",
         "--latency", "1ms,10ms", "--hbm", "2GiB,80GiB", "--jobs", "1", "--json"],
        ["replay", run, "--schedule", "chimera,dualpipe,hanayo", "--step", "1", "--pipelines-on-link", "2", "--json"],
    ]  # fmt: skip


def of_what_is_there(folder: Path) -> list[list[str]]:
    """What reads Runs and reports alone, for scripts and for people."""
    run, report = str(folder / "x.run"), str(folder / "report.json")
    return [
        ["info", run, "--json"],
        ["info", run, "-q"],
        ["info", run, "-v", "-q"],
        ["compare", report, run, "--json"],
        ["compare", report, run],
        ["sql", run, "SELECT fact, subject, confidence FROM findings ORDER BY ALL", "--json"],
    ]


def scrambled_answers(asked: dict[str, list[list[str]]], cache: Path) -> dict[str, Any]:
    helper = ROOT / "tests" / "helpers" / "scrambled.py"
    paths = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, helper],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths, "TRACETOOL_CACHE": str(cache)},
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


READING = {
    "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit", "find",
    "index", "count", "replace", "search", "match", "fullmatch", "findall", "finditer",
}  # fmt: skip
"""Methods and functions that look for their first argument in a text."""


KEPT = {"store/query.py", "tables/fields.py"}
"""Where placeholders of a template are filled, and words of msgspec's put into ours."""


def _read(module: list[ast.AST]) -> list[int]:
    """Lines that compare a text with a sentence, or look for one in it."""
    sought: list[tuple[int, list[ast.expr]]] = []
    for node in module:
        if isinstance(node, ast.Compare):
            sought.append((node.lineno, [node.left, *node.comparators]))
        elif isinstance(node, ast.Call) and last_name(node.func) in READING:
            sought.append((node.lineno, node.args[:1]))
    return [
        line
        for line, every in sought
        if any(isinstance(e, ast.Constant) and isinstance(e.value, str) and is_sentence(e.value) for e in every)
    ]


def test_nothing_is_compared_with_a_sentence_or_looked_for_by_one() -> None:
    assert {path.as_posix() for path, every in nodes().items() if _read(every)} == KEPT
    read = 'if "was not read here" in note: ...\nnote.partition(" of the other ")\nkind == "forward"\n'
    module = ast.parse(read + 're.search("lacks so many bytes", text)')
    assert sorted(_read(list(ast.walk(module)))) == [1, 2, 4]


# What is compared with a literal is seen above; here also what is cut out of sentences by place or by pattern.
@pytest.mark.thorough
def test_no_number_hangs_on_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100000")
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "plain", tmp_path / "scrambled"]
    for folder in folders:
        folder.mkdir()
    everything, there = commands(Path()), of_what_is_there(Path())
    plain = answers_to({str(folders[0]): everything})
    # What was written in other words, as by an earlier version, is read alike.
    scrambled = scrambled_answers({str(folders[1]): everything, str(folders[0]): there}, tmp_path / "cache")
    assert scrambled["replaced"] > 1000
    assert {answer["code"] for answer in plain} == {0, 1, 2}
    assert not any(answer["crashed"] for answer in plain), plain
    expected = [*plain, *plain[-len(there) :]]
    for command, before, after in zip([*everything, *there], expected, scrambled["answers"], strict=True):
        assert (command, before["code"], before["answer"]) == (command, after["code"], after["answer"]), after["said"]
