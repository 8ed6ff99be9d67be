"""No number hangs on a sentence: with every text of the product replaced, answers and exit codes stay the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers.recorded import ROOT, SAMPLES
from helpers.thorough import is_asked

# A recording of two small ranks by default: the sample is ten times as large, and has no other kinds of answers.
SAMPLE = str(SAMPLES / "h100-1f1b" if is_asked() else ROOT / "tests" / "data" / "h200-pp2")
PLACES = "0-1,2-3" if is_asked() else "0,1"
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
        ["advise", run, "--schedule", "1f1b,geopipe", *WAN, "--json"],
        ["explain", run, "--schedule", "geopipe", *WAN, "--json"],
        ["compare", report, run, "--json"],
        ["compare", run, run, "--fail-on", "step_ns>1ms", "--json"],
        ["replay", run, "--schedule", "geopip", "--json"],
        ["replay", run, "--schedule", "geopipe", "--link", "nonsense", "--json"],
        ["replay", run, "--schedule", "1f1b", "--step", "99", "--json"],
        *(of_more(folder) if is_asked() else ()),
        *of_what_is_there(folder),
    ]  # fmt: skip


def of_more(folder: Path) -> list[list[str]]:
    """What takes most of the time: these alone show what Ascend's profiler lacks and what is compared with another
    device, knees, limits of a grid, parts equalized, pipelines that share a link, and orders given up."""
    run, other = str(folder / "x.run"), str(folder / "a.run")
    return [
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


def answers(how: str, asked: dict[Path, list[list[str]]]) -> dict[str, Any]:
    helper = ROOT / "tests" / "helpers" / "scrambled.py"
    done = subprocess.run(
        [sys.executable, helper, how],
        input=json.dumps({str(folder): listed for folder, listed in asked.items()}),
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
            "TRACETOOL_CACHE": str(next(iter(asked)) / "cache"),
            "COLUMNS": "100000",
        },
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_no_number_hangs_on_a_sentence(tmp_path: Path) -> None:
    folders = [tmp_path / "plain", tmp_path / "scrambled"]
    for folder in folders:
        folder.mkdir()
    everything, there = commands(Path()), of_what_is_there(Path())
    plain = answers("plain", {folders[0]: everything})
    # What was written in other words, as by an earlier version, is read alike.
    scrambled = answers("scrambled", {folders[1]: everything, folders[0]: there})
    assert plain["replaced"] == 0
    assert scrambled["replaced"] > 1000
    assert {answer["code"] for answer in plain["answers"]} == {0, 1, 2}
    assert not any(answer["crashed"] for answer in plain["answers"]), plain
    expected = [*plain["answers"], *plain["answers"][-len(there) :]]
    for command, before, after in zip([*everything, *there], expected, scrambled["answers"], strict=True):
        assert (command, before["code"], before["answer"]) == (command, after["code"], after["answer"]), after["said"]
