"""What of the sides of tracetool compare counts as evidence, and which reports are refused."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from helpers.comparing import as_json, report, said, verdict
from helpers.thorough import spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json = dict[str, Any]


def changed(path: Path, name: str, change: Callable[[Json], object]) -> Path:
    """A copy of a report with something changed."""
    made = json.loads(path.read_text(encoding="utf-8"))
    change(made)
    other = path.with_name(f"{name}.json")
    other.write_text(json.dumps(made), encoding="utf-8")
    return other


def set_to(value: object, *keys: str | int) -> Callable[[Json], object]:
    def change(made: Json) -> None:
        at: Any = made
        for key in keys[:-1]:
            at = at[key]
        assert at[keys[-1]] != value
        at[keys[-1]] = value

    return change


# Figures are walked through by one function, whatever they are.
@spread(
    "keys",
    [("results", 0, "feasible"), ("results", 0, "peak_hbm_bytes", 3), ("results", 0, "overhead_bytes", 1),
     ("results", 0, "bubble_by_cause_ns", "drain", "rank_ns", 2), ("baseline", "step_ns"), ("fidelity", "replayed_ns"),
     ("step", "peak_hbm_bytes", 2), ("recording", "steps", 1, "messages", "0F", "transfer_ns"),
     ("recording", "steps", 2, "actions", "1F", "beside_ns", 3), ("results", 0, "each_step", 4, "window_ns")],
    3,
)  # fmt: skip
def test_of_the_same_traces_every_figure_of_a_report_counts(
    capsys: pytest.CaptureFixture[str], base: Path, keys: tuple[str | int, ...]
) -> None:
    other = changed(base, "other", set_to(False if keys[-1] == "feasible" else 12345, *keys))
    found = as_json(capsys, 1, base, other)
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)[1:]
    path = path.replace("results[0]", "results[gpipe]").replace("baseline.", "baseline[1f1b].")
    assert found["figures"] == [path]
    assert path in found["failures"][0]
    assert as_json(capsys, 0, base, other, "--accept")["passed"]


def test_reports_of_the_same_traces_need_not_ask_for_the_same_schedules(
    capsys: pytest.CaptureFixture[str], base: Path
) -> None:
    """What both asked for is the same; reductions are over another baseline there."""

    def more(made: Json) -> None:
        made["results"].insert(0, made["baseline"] | {"each_step": []})
        made["baseline"] = made["results"][1]
        for result in made["results"]:
            result["bubble_reduction"] = 0.123

    found = as_json(capsys, 0, base, changed(base, "more", more))
    assert (found["gate"], found["figures"]) == ("tool", [])


# Two processes: in one, the same commands are the same each time by default (tests/cli/test_commands).
@pytest.mark.thorough
def test_equal_input_gives_equal_bytes_whatever_the_hash_seed(base: Path, tmp_path: Path) -> None:
    """In processes of their own: sets are walked in another order there."""

    def several(made: Json) -> None:
        made["results"] += [made["results"][0] | {"schedule": name} for name in ("1f1b", "geopipe", "eager-1f1b")]

    sides = [changed(path, f"{path.stem}-all", several) for path in (base, report(tmp_path / "new.json", (1.1, 1.2)))]
    said_by = {
        subprocess.run(
            [sys.executable, "-m", "tracetool", "compare", *map(str, sides), "--json"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=False,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said_by) == 1
    assert b'"step_ns/geopipe": [' in said_by.pop()


def test_words_are_no_figures(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    other = changed(base, "other", lambda made: made.update(command="tracetool replay elsewhere", notes=["x"]))
    assert as_json(capsys, 0, base, other)["figures"] == []


def test_a_baseline_of_before_replays_by_each_step_still_holds(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    older = changed(base, "older", lambda made: made["results"][0].pop("each_step"))
    found = as_json(capsys, 0, older, base)
    assert (found["gate"], {line["verdict"] for line in found["lines"]}) == ("tool", {"unchanged"})


def test_what_was_taken_from_another_recording_is_another_question(
    capsys: pytest.CaptureFixture[str], base: Path
) -> None:
    other = changed(base, "other", lambda made: made["taken"].update(costs_from="ab12"))
    assert as_json(capsys, 1, base, other)["failures"] == ["the sides replayed different scenarios (costs_from, taken)"]

    def as_before(made: Json) -> None:
        del made["taken"]
        made["notes"].append("--costs-from x.run: of its kernels")

    older = changed(base, "older", as_before)
    assert as_json(capsys, 1, base, older)["failures"] == ["the sides replayed different scenarios (taken)"]


def test_the_same_traces_twice_are_still_the_same(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    found = as_json(capsys, 0, f"{base},again={base}", base)
    assert found["gate"] == "tool"
    drifted = changed(base, "drifted", set_to(1, "recording", "steps", 0, "step_ns"))
    assert as_json(capsys, 1, f"{base},again={base}", drifted)["gate"] == "tool"


def test_ranks_of_another_pipeline_are_other_traces(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    def elsewhere(made: Json) -> None:
        made["run"]["global_ranks"] = made["recording"]["global_ranks"] = [4, 5, 6, 7]

    assert as_json(capsys, 0, base, changed(base, "other", elsewhere))["gate"] == "workload"


def test_one_step_of_an_old_report_is_one_however_often_it_is_named(
    capsys: pytest.CaptureFixture[str], base: Path
) -> None:
    def bare(made: Json, factor: float, digest: str) -> None:
        del made["recording"], made["results"][0]["each_step"]
        made["run"]["digest"] = digest
        made["step"]["step_ns"] = round(factor * made["step"]["step_ns"])

    one = changed(base, "one", lambda made: bare(made, 1.0, "one"))
    other = changed(base, "two", lambda made: bare(made, 1.2, "two"))
    five = [",".join(f"n{n}={path}" for n in range(5)) for path in (one, other)]
    found = as_json(capsys, 0, *five)
    assert verdict(found, "step_ns") == "inconclusive"
    assert {line["base_count"] for line in found["lines"] if line["name"] == "step_ns"} == {1}


def test_steps_on_both_sides_are_told(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    other = report(tmp_path / "new.json")
    found = as_json(capsys, 0, base, f"{base},{other}")
    assert "7 steps of the same traces on both sides: leave them out of one" in found["notes"]


def test_a_schedule_that_one_side_replayed_in_two_ways_is_not_compared(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    other = report(tmp_path / "new.json")
    deeper = changed(other, "deeper", lambda made: made["results"][0].update(extra_forwards=[2, 2, 0, 0]))
    for side in (f"{other},{deeper}", f"{deeper},{other}"):
        found = as_json(capsys, 0, base, side)
        assert all(line["new"] is None for line in found["lines"] if line["name"] == "step_ns/gpipe")
        assert any("gpipe was replayed in several ways on one side (+2,2,0,0 in-order" in n for n in found["notes"])


@pytest.mark.parametrize(
    ("change", "answer"),
    [(set_to(-5, "recording", "steps", 0, "actions", "0F", "duration_ns", 0), "step 0 of its recording lacks times"),
     (set_to([], "recording", "steps", 1, "messages", "0F", "each_ns"), "step 1 of its recording lacks times"),
     (set_to([1, 2], "recording", "steps", 1, "actions", "0F", "duration_ns"), "step 1 of its recording cannot be run"),
     (set_to({}, "recording", "steps", 1, "actions"), "step 1 of its recording lacks times"),
     (set_to("shouted", "recording", "steps", 1, "p2p"), "step 1 of its recording cannot be run"),
     (set_to([["0F0 DROP"]], "recording", "orders"), "step 0 of its recording cannot be run: 'DROP' is not an action"),
     (set_to(1, "recording", "steps", 0, "number"), "two steps of one number"),
     (set_to(99, "recording", "version"), "its recording is of version 99"),
     (set_to("other", "recording", "digest"), "its recording is of other traces"),
     (set_to(10**30, "recording", "steps", 0, "step_ns"), "a step takes no time, more than a year"),
     (set_to(-1, "step", "step_ns"), "a step takes no time"),
     (set_to("", "results", 0, "schedule"), "a name in it is empty"),
     (set_to("a\n::error::b", "results", 0, "schedule"), "what cannot be printed"),
     (set_to("\x1b[31m", "tool_version"), "what cannot be printed")],
)  # fmt: skip
def test_reports_that_cannot_be_are_refused(
    capsys: pytest.CaptureFixture[str], base: Path, change: Callable[[Json], object], answer: str
) -> None:
    _, err = said(capsys, 2, base, changed(base, "other", change))
    assert "other.json is damaged: " in err
    assert answer in err
    assert "Unexpected error" not in err


def test_a_report_of_endless_depth_is_refused(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    deep = base.with_name("deep.json")
    deep.write_text('{"$schema": "urn:tracetool:schema:1:report", "x": ' + "[" * 10**5 + "]" * 10**5 + "}")
    assert "is damaged" in said(capsys, 2, base, deep)[1]


def test_a_change_of_a_few_microbatches_is_told(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    """Three of eight backwards of stage 3 twice as long, in every step: a third more on the mean, not of the median."""
    other = report(tmp_path / "new.json")

    def longer(made: Json) -> None:
        for number, step in enumerate(made["recording"]["steps"]):
            times = step["actions"]["3B"]["duration_ns"]
            step["actions"]["3B"]["duration_ns"] = [t * (2 if j < 3 else 1) + number for j, t in enumerate(times)]

    found = as_json(capsys, 1, base, changed(other, "longer", longer))
    (line,) = [line for line in found["lines"] if line["name"] == "action_ns/3B"]
    times = json.loads(other.read_text(encoding="utf-8"))["recording"]["steps"][0]["actions"]["3B"]["duration_ns"]
    assert line["verdict"] == "regressed"
    assert line["change_ratio"] == pytest.approx(sum(times[:3]) / sum(times), rel=1e-6)
    assert any(
        cause["name"] == "stage 3 B" and "microbatches 0-2" in cause["detail"] for cause in found["causes"]["step_ns"]
    )


def test_many_microbatches_of_few_steps_are_tested_quickly(base: Path) -> None:
    """Strata beyond two dozen are approximated; the exact and the approximate chance agree where both can be had."""
    from tracetool.comparison import verdict

    draws = [([float(n % 7), float(n % 5), 9.0], [float(n % 11) + 1, float(n % 3), 4.0]) for n in range(24)]
    exact = verdict.stratified_p(draws)
    assert verdict._approximate_strata(draws) == pytest.approx(exact, abs=0.01)
    assert 0 < verdict.stratified_p(copy.copy(draws) * 50) < 1


def test_other_devices_are_other_work(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    other = changed(report(tmp_path / "new.json"), "npu", set_to(["Ascend910B"], "recording", "devices"))
    found = as_json(capsys, 0, base, other)
    assert found["notes"] == ["the sides did other work: NVIDIA H100 80GB HBM3 against Ascend910B"]


def test_causes_told_by_a_replay_that_misses_the_step_are_doubted(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    """Steps recorded 20 % longer than their actions make them: replay is 17 % short of that."""
    found = as_json(capsys, 1, base, report(tmp_path / "new.json", (1.2, 1.201, 1.2, 1.199, 1.2, 1.2)))
    assert any("replay, which misses the recorded step by -17%" in note for note in found["notes"])


def test_names_in_markdown_call_nobody(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    other = report(tmp_path / "new.json")
    out, _ = said(capsys, 0, base, f"@team #12\x1b[31m={other}", "--format", "markdown")
    assert "@team" not in out.split("Again")[0]
    assert "#12" not in out.split("Again")[0]
    text, _ = said(capsys, 0, base, f"@team #12\x1b[31m={other}", "-v")
    assert "@team #12?[31m" in text
