"""``tracetool advise`` as a user runs it, on the sample that comes with the tool."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES

from tracetool.cli import run

pytestmark = pytest.mark.usefixtures("asked_once")

SAMPLE = str(SAMPLES / "h100-1f1b")
OVER = ["--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
FEW = ["--schedule", "1f1b,geopipe,zb-h1,zb-h2,zb-v", *OVER]
TUNING = ["--co-tune", "--mbs", "1", "--seq", "2048", "--also", SAMPLE, "--also-mbs", "3"]
"""Fitted to the same recording, said to have two sequences more."""


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["advise", SAMPLE, *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "advice.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    return report


def test_json_conforms_and_its_numbers_fit_together(capsys: pytest.CaptureFixture[str]) -> None:
    report = _report(capsys, *FEW, "--hbm", "80GiB", *TUNING)
    best = report["best"]
    assert (best["schedule"], best["extra_forwards"], best["evidence"]) == ("geopipe", [2, 2, 0, 0], "recorded")
    assert report["binds"] == "latency"
    for gain in report["gains"]:
        m = gain["plan"]["microbatches"]
        assert gain["gained_ns"] == best["step_ns"] - round(gain["plan"]["step_ns"] * 8 / m)
        assert gain["gain_ratio"] == pytest.approx(gain["gained_ns"] / best["step_ns"])
    half = next(g for g in report["gains"] if g["more"] == "latency / 2")
    assert {link["latency_ns"] for link in half["scenario"]["links"]} == {5_000_000}
    assert all(plan["step_ns"] < best["step_ns"] and plan["rests_on"] for plan in report["unproven"])
    assert any("two recordings" in assumption for assumption in report["co_tuning"]["assumptions"])
    sizes = report["co_tuning"]["candidates"]
    assert all(found["mbs"] * found["seq"] * found["microbatches"] == 8 * 2048 for found in sizes)
    assert [found["extrapolated"] for found in sizes].count(False) == 1


def test_text_says_it_in_a_few_lines_and_the_next_command_draws_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["advise", SAMPLE, *FEW, "--hbm", "80GiB", *TUNING, "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Next")) <= 80
    words = [line.split()[0] for line in lines if line.startswith("  ") and line.strip()]
    at = max(place for place, word in enumerate(words) if word == "best")
    assert [w for w in words[at:] if w in {"best", "as", "unproven", "binds", "memory"}] == [
        "best", "as", "unproven", "binds", "memory",
    ]  # fmt: skip
    assert any("zb-v" in line and "unproven" in line for line in lines), "-v lists what was tried"
    assert sum("extrapolated" in line for line in lines) >= 8
    following = shlex.split(lines[-1].removeprefix("Next: tracetool "))
    drawing = following.index("-o")
    assert run([*following[:drawing], "-q"]) == 0
    assert "geopipe +2,2,0,0 is best: 319.6 ms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--link"),
        ([*OVER, "--schedule", "geopip"], "geopipe"),
        ([*OVER, "--co-tune"], "--mbs 1 --seq 2048"),
        ([*OVER, "--mbs", "1"], "--co-tune"),
        ([*OVER, "--also", SAMPLE], "--co-tune"),
        ([*OVER, "--co-tune", "--mbs", "1", "--seq", "2048", "--also-mbs", "2"], "--also RUN"),
    ],
)
def test_what_cannot_be_answered_says_what_to_do(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", SAMPLE, *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
