"""``tracetool replay --equalize`` as a user runs it, on the sample that comes with the tool."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.made_job import MadeJob
from helpers.recorded import ROOT, SAMPLES, data, made

from tracetool.cli import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")


def _report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["replay", SAMPLE, "--equalize", *arguments, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "stragglers.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(schema).validate(report)
    return report


def test_json_conforms_and_its_numbers_fit_together(capsys: pytest.CaptureFixture[str]) -> None:
    """The sample's last stage has the head: it holds the step back (README of the samples)."""
    report = _report(capsys)
    steps, suspects = report["steps"], report["suspects"]
    assert all(abs(step["error_ratio"]) < 0.015 for step in steps)
    assert report["measured_ns"] == round(sum(step["measured_ns"] for step in steps) / len(steps))
    assert report["slowdown_ratio"] == pytest.approx(report["measured_ns"] / report["equalized_ns"])
    for found in suspects:
        assert len(found["without_ns"]) == len(found["alone_ns"]) == len(steps)
        assert found["saved_ns"] == report["measured_ns"] - found["step_ns"]
        assert found["slowdown_ratio"] == pytest.approx(found["step_ns"] / report["equalized_ns"])
    worst = next(s for s in suspects if s["axis"] == "stage")
    assert worst["name"] == "3"
    assert worst["saved_ns"] == max(s["saved_ns"] for s in suspects if s["axis"] == "stage") > 0
    # Every rank is a stage here and there is one pipeline: neither is listed twice.
    assert {s["axis"] for s in suspects} == {"kind", "stage"}


def test_text_names_the_worst_and_files_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "stragglers.json"
    assert run(["replay", SAMPLE, "--equalize", "-o", str(target), "-v"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Equal ranks and stages would take ")
    assert "stage 3 costs most" in text
    assert "Next: tracetool replay" in text
    assert max(len(line) for line in text.splitlines()[1:] if not line.startswith("Next")) <= 80
    assert {"steps", "suspects"} <= set(json.loads(target.read_text(encoding="utf-8")))


def test_one_step_is_looked_at_alone(capsys: pytest.CaptureFixture[str]) -> None:
    number = _report(capsys)["steps"][0]["number"]
    report = _report(capsys, "--step", str(number))
    assert [step["number"] for step in report["steps"]] == [number]
    assert any("of this step alone" in note for note in report["notes"])


# A recording of several steps is equalized over all of them, and then the one named: that the suggestion runs is tried
# with the sample among all commands (test_next), what averages of one step are beside those of all in tests/stragglers.
@pytest.mark.thorough
def test_a_step_of_several_is_suggested_with_what_changes(capsys: pytest.CaptureFixture[str]) -> None:
    """Averages of one step are others than those over all: both reports say over what they are."""
    several = str(data("h100-pp4", "traces", "1f1b_m8"))
    assert run(["replay", several, "--equalize", "-v"]) == 0
    text = capsys.readouterr().out
    assert "microbatches and steps;" in " ".join(text.split())
    line = text.splitlines()[-1]
    assert line.endswith("# the longest, by averages of that step alone")
    assert run([*shlex.split(line, comments=True)[2:], "--json"]) == 0
    assert any("of this step alone" in note for note in json.loads(capsys.readouterr().out)["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schedule", "geopipe", "--hbm", "80GiB"], "--schedule, --hbm"),
        (["--pipeline", "0"], "--pipeline"),
        (["-o", "x.png"], "x.png"),
        (["--step", "77"], "77"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["replay", SAMPLE, "--equalize", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("job", "recorded", "says", "lacks"),
    [
        # Ranks 1, 3, 5 and 7, the peers of these on each layer, were not recorded.
        (
            MadeJob(pp=2, dp=2, tp=2, microbatches=2, layers=1, jitter_ratio=0.01, slow={2: 1.2}),
            (0, 2, 4, 6),
            "peers of a slow rank look slow, too",
            "of microbatches alone",
        ),
        (
            MadeJob(pp=2, dp=2, tp=2, microbatches=2, layers=1, jitter_ratio=0.01, slow={3: 1.2}),
            range(8),
            "actions of rank 3 take",
            "peers of a slow rank",
        ),
        (
            MadeJob(pp=2, dp=2, microbatches=4, layers=1),
            range(4),
            "of microbatches alone, as no rank is slower than the others of its stage.",
            "peers of a slow rank",
        ),
    ],
    ids=["peers-unknown", "tensor-parallel", "equal"],
)
def test_ranks_that_cannot_be_told_apart_are_not_blamed(
    job: MadeJob,
    recorded: Sequence[int],
    says: str,
    lacks: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["replay", str(made(job, ranks=recorded).path), "--equalize", "-q"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert says in text
    assert lacks not in text
