"""tracetool compare as a user runs it: gates, limits, settings, refusals."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from helpers.comparing import QUIET_STEPS, as_json, report, said, sample, sample_report, verdict
from helpers.recorded import ROOT

from tracetool.store.place import RECORDING

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_itself_and_says_so_in_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, 0, sample(), sample())
    assert (found["gate"], found["passed"], found["failures"]) == ("tool", True, [])
    assert {line["verdict"] for line in found["lines"]} == {"unchanged"}
    text, _ = said(capsys, 0, sample(), sample())
    assert said(capsys, 0, sample(), sample()) == (text, "")
    assert text.startswith("step_ns ")
    assert "Next: tracetool explain" in text
    assert max(map(len, text.splitlines()[:-1])) <= 80


def test_what_a_run_keeps_is_what_its_tables_tell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A Run of before recordings were kept compares like one of today: the tables are looked at again."""
    older = tmp_path / "older.run"
    shutil.copytree(sample(), older)
    (older / RECORDING).unlink()
    found = as_json(capsys, 0, sample(), older)
    assert (found["gate"], {line["verdict"] for line in found["lines"]}) == ("tool", {"unchanged"})


def test_two_runs_are_compared_in_three_seconds_of_a_processor() -> None:
    """In a process of its own, imports and all. Processor time, for a busy machine makes no program slow."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "tracetool", "compare", str(sample()), str(sample())]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3


def test_other_results_of_the_same_traces_are_drift(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    """One ns suffices, and --accept takes it."""
    made = json.loads(base.read_text(encoding="utf-8"))
    made["recording"]["steps"][3]["step_ns"] += 1
    made["tool_version"] = "0.2.0"
    other = base.with_name("other.json")
    other.write_text(json.dumps(made), encoding="utf-8")
    out, err = said(capsys, 1, base, other)
    assert "same traces, other results: 1 of " in err
    assert "--accept" in err
    assert "same traces: every value must be the same" in out
    assert "measured by tracetool 0.1.0 and 0.2.0" in out
    assert as_json(capsys, 0, base, other, "--accept")["accepted"]


def test_steps_that_are_slower_for_certain_regress(
    capsys: pytest.CaptureFixture[str], base: Path, slower: Path
) -> None:
    found = as_json(capsys, 1, base, slower)
    assert (found["gate"], found["passed"]) == ("workload", False)
    assert verdict(found, "step_ns") == "regressed"
    assert found["summary"].startswith("step_ns 246.4 ms → 258.7 ms (+5.00%, regressed)")
    # All seven of the one are above all seven of the other: 2 / (14 over 7).
    assert next(line["p"] for line in found["lines"] if line["name"] == "step_ns") == pytest.approx(2 / 3432)
    # No cost differs, so nothing of it can be replayed.
    (rest,) = [cause for cause in found["causes"]["step_ns"] if cause["value"]]
    assert (rest["kind"], rest["value"]) == ("not replayed", found["lines"][0]["change"] // 1)
    out, err = said(capsys, 0, base, slower, "--informational")
    assert "informational: regressed: step_ns" in err
    assert "informational: this would fail" in out
    assert verdict(as_json(capsys, 0, slower, base), "step_ns") == "improved"


def test_too_few_steps_never_pass_a_limit(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    single = report(tmp_path / "single.json", (1.0,))
    found = as_json(capsys, 0, base, single)
    assert verdict(found, "step_ns") == "inconclusive"
    out, err = said(capsys, 1, base, single, "--fail-on", "step_ns>+3%")
    assert "step_ns>+3%: inconclusive" in out
    assert "--allow-inconclusive" in err
    assert said(capsys, 0, base, single, "--fail-on", "step_ns>+3%", "--allow-inconclusive")
    # A value needs no test.
    assert as_json(capsys, 0, base, single, "--fail-on", "step_ns>400ms")["passed"]
    assert not as_json(capsys, 1, base, single, "--fail-on", "step_ns>200ms")["passed"]


def test_several_of_a_side_are_taken_together(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    few = [report(tmp_path / f"part{n}.json", QUIET_STEPS[n : n + 3]) for n in (0, 3)]
    found = as_json(capsys, 0, base, ",".join(map(str, few)))
    assert next(line["new_count"] for line in found["lines"] if line["name"] == "step_ns") == 6
    assert verdict(found, "step_ns") == "unchanged"
    assert [source["steps"] for source in found["new"]["sources"]] == [[0, 1, 2], [0, 1, 2]]


def test_the_same_steps_twice_are_no_more_evidence(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    few = report(tmp_path / "few.json", (1.05, 1.051, 1.052))
    found = as_json(capsys, 0, base, f"{few},again={few}")
    assert next(line["new_count"] for line in found["lines"] if line["name"] == "step_ns") == 3
    assert any("3 steps of the same traces given twice" in note for note in found["notes"])


EXCEEDED = {
    "step_ns>+3%": True, "step_ns>+6%": False, "step_ns>+5ms": True, "step_ns>+20ms": False, "step_ns>250ms": True,
    "bubble_ratio>+2%": False, "bubble_ratio>0.3": True, "peak_hbm_bytes>12GiB": True, "peak_hbm_bytes>13GiB": False,
    "action_ns>+1%": False, "action_ns/3B>+1%": False, "step_ns/gpipe>+1%": True, "step_ns/gpipe>+6%": False,
    "bubble_ratio/gpipe>+1%": False, "step_ns<100ms": False,
}  # fmt: skip


@pytest.mark.parametrize("code", [0, 1])
def test_limits(capsys: pytest.CaptureFixture[str], base: Path, slower: Path, code: int) -> None:
    """246.4 ms plus 5 %, its bubble at 34.5 %, its peak at 12.15 GiB; GPipe by each step is 5 % longer, too."""
    asked = [limit for limit in EXCEEDED if code or not EXCEEDED[limit]]
    found = as_json(capsys, code, base, slower, *(word for limit in asked for word in ("--fail-on", limit)))
    assert found["passed"] is (code == 0)
    assert {check["limit"]: check["outcome"] for check in found["checks"]} == {
        limit: "exceeded" if EXCEEDED[limit] else "held" for limit in asked
    }


@pytest.mark.parametrize(
    ("limit", "answer"),
    [("action_ns/9B>+1%", "no value named 'action_ns/9B'"), ("step_ns/gpip>+1%", "Did you mean 'step_ns/gpipe'"),
     ("peak_hbm_bytes/rnk3>+1%", "Did you mean 'peak_hbm_bytes/rank3'"),
     ("bubble_ration>+2%", "Did you mean 'bubble_ratio'"), ("step_ns>3%", "write +3% for a change"),
     ("step_ns>400", "has no unit"), ("step_ns", "is no limit"), ("step_ns>+3kg", "'kg'"),
     ("bubble_ratio>x", "no ratio")],
)  # fmt: skip
def test_limits_that_cannot_be_read(capsys: pytest.CaptureFixture[str], base: Path, limit: str, answer: str) -> None:
    assert answer in said(capsys, 2, base, base, "--fail-on", limit)[1]


def test_a_replay_that_alone_regresses_is_what_the_summary_is_about(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    """Steps as long as before, but GPipe would take 5 % longer by each of them: the gate closes, and says what for."""
    made = json.loads(report(tmp_path / "same.json").read_text(encoding="utf-8"))
    (result,) = made["results"]
    for part in (result, *result["each_step"]):
        part["step_ns"] = round(1.05 * part["step_ns"])
    other = tmp_path / "other.json"
    other.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 1, base, other)
    assert found["summary"].startswith("step_ns/gpipe 2")
    assert "(+5.00%, regressed): not replayed +12.3 ms; step_ns 246.4 ms → 246.4 ms (+0.00%" in found["summary"]
    assert found["failures"] == ["regressed: step_ns/gpipe"]


def test_a_flag_goes_ahead_of_the_project_file(capsys: pytest.CaptureFixture[str], base: Path, slower: Path) -> None:
    folder = base.parent / "inside"
    folder.mkdir()
    project = base.parent / "pyproject.toml"
    project.write_text('[tool.tracetool]\nfail-on = ["step_ns>+20%"]\n', encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert [c["limit"] for c in as_json(capsys, 0, base, slower)["checks"]] == ["step_ns>+20%"]
        assert [c["limit"] for c in as_json(capsys, 1, base, slower, "--fail-on", "step_ns>+1%")["checks"]] == [
            "step_ns>+1%"
        ]
        own = folder / "own.toml"
        own.write_text('fail-on = ["step_ns>+2%"]\ninformational = true\nleast-change = "9%"\n', encoding="utf-8")
        found = as_json(capsys, 0, base, slower, "--config", own)
        assert (found["passed"], found["rules"]["least_ratio"]) == (False, 0.09)
        own.write_text('fail_on = "step_ns>+2%"\n', encoding="utf-8")
        assert "Did you mean 'fail-on'" in said(capsys, 2, base, slower, "--config", own)[1]
        project.write_text("[tool", encoding="utf-8")
        assert "is no TOML" in said(capsys, 2, base, slower)[1]


def test_a_change_too_small_to_count_is_shown_where_a_limit_is_about_it(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    """Eight messages of 0F, of 96 us, are 0.3 % of the step: 10 % more of that is nothing, but beyond the limit."""
    made = json.loads(base.read_text(encoding="utf-8"))
    made["run"]["digest"] = made["recording"]["digest"] = "other"
    for step in made["recording"]["steps"]:
        message = step["messages"]["0F"]
        message["each_ns"] = [round(1.1 * taken) for taken in message["each_ns"]]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(made), encoding="utf-8")
    out, err = said(capsys, 1, base, other, "--fail-on", "transfer_ns/0F>+5%")
    assert "transfer_ns/0F>+5% exceeded: transfer_ns/0F changed by +1" in err
    (line,) = [line for line in out.splitlines() if line.startswith("  transfer_ns/0F (link 0→1)")]
    assert "unchanged" in line
    assert "transfer_ns/0F: less than 0.5% of the step" in out
    assert "transfer_ns/0F (link" not in said(capsys, 0, base, other)[0], "nothing is said where nobody asked"


def test_other_work_is_no_improvement(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    """Half the microbatches take less time, and that is no reason to be glad; nor are they steps of one job."""
    made = json.loads(base.read_text(encoding="utf-8"))
    made["run"]["digest"] = made["recording"]["digest"] = "other"
    made["recording"]["orders"] = [
        [" ".join(a for a in rank.split() if int(a[2:]) < 4) for rank in made["recording"]["orders"][0]]
    ]
    for step in made["recording"]["steps"]:
        step["step_ns"] //= 2
        for action in step["actions"].values():
            for name in ("duration_ns", "held_bytes", "peak_bytes", "beside_ns"):
                action[name] = action[name][:4]
    half = tmp_path / "half.json"
    half.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 1, base, half)
    assert found["failures"] == ["the sides did other work: 8 against 4 microbatches"]
    assert verdict(found, "step_ns") == "inconclusive"
    assert next(line["why"] for line in found["lines"] if line["name"] == "step_ns") == "8 microbatches against 4"
    assert any("other work: 8 against 4 microbatches" in note for note in found["notes"])
    assert not as_json(capsys, 1, base, half, "--fail-on", "step_ns>+3%")["passed"]
    allowed = said(capsys, 0, base, half, "--format", "markdown", "--allow-inconclusive")[0]
    assert "🟡 passes, as it cannot be told" in allowed
    _, err = said(capsys, 2, base, f"{base},{half}")
    assert "base.json and half.json are not of one job: 8 against 4 microbatches" in err.replace(f"{tmp_path}/", "")


def test_replays_in_other_ways_are_told(capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path) -> None:
    """A schedule is called the same whatever its depth, so that it can be gated; how it was run is said."""
    made = json.loads(base.read_text(encoding="utf-8"))
    made["run"]["digest"] = made["recording"]["digest"] = "other"
    made["results"][0]["extra_forwards"] = [3, 3, 0, 0]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 0, base, other, "--fail-on", "step_ns/gpipe>+1%")
    assert verdict(found, "step_ns/gpipe") == "unchanged"
    assert "gpipe was replayed as in-order, then as +3,3,0,0 in-order" in found["notes"]
    made["run"]["digest"] = made["recording"]["digest"] = "base"
    made["step"]["number"] = 1
    other.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 1, base, other)
    assert (found["gate"], {line["verdict"] for line in found["lines"]}) == ("tool", {"unchanged"})
    assert found["failures"] == ["the sides replayed other steps of the same traces"]
    assert as_json(capsys, 0, base, other, "--allow-inconclusive")["passed"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [('{"$schema": "urn:tracetool:schema:1:report", "schema_version": "3.9", "command": "tracetool replay x --json"}',
      "has schema version 3.9"),
     ('{"$schema": "urn:tracetool:schema:1:sweep", "schema_version": "4.0"}', "a report is urn:tracetool"),
     ('{"$schema": "urn:tracetool:schema:1:report", "schema_version": "4.0", "run"', "is damaged"),
     ('{"$schema": "urn:tracetool:schema:1:report", "schema_version": "4.0", "run": 3}', "is damaged"),
     ('["urn:tracetool:schema:1:report"]', "is damaged")],
)  # fmt: skip
def test_reports_that_cannot_be_read(capsys: pytest.CaptureFixture[str], base: Path, text: str, answer: str) -> None:
    bad = base.with_name("bad.json")
    bad.write_text(text, encoding="utf-8")
    _, err = said(capsys, 2, base, bad)
    assert answer in err
    assert "Hint: " in err


def test_a_report_of_before_recordings_is_compared_as_far_as_it_goes(
    capsys: pytest.CaptureFixture[str], base: Path, tmp_path: Path
) -> None:
    made = json.loads(sample_report())
    del made["recording"], made["step"]["overhead_bytes"]
    made["run"]["digest"] = "older"
    older = tmp_path / "older.json"
    older.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, 0, older, base)
    assert verdict(found, "step_ns") == "inconclusive"
    assert found["causes"] == {}
    assert any("holds no costs" in note for note in found["notes"])


def test_a_damaged_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "bad.run"
    shutil.copytree(sample(), bad)
    next((bad / "ops").glob("*.parquet")).unlink()
    assert "lacks ops" in said(capsys, 2, sample(), bad)[1]
    manifest = json.loads((bad / "manifest.json").read_text(encoding="utf-8"))
    (bad / "manifest.json").write_text(json.dumps(manifest | {"schema_version": "3.0"}), encoding="utf-8")
    _, err = said(capsys, 2, sample(), bad)
    assert "has schema version 3.0" in err
    assert "ingest the traces again" in err


@pytest.mark.parametrize(("factor", "code"), [(0.9, 0), (1.0, 1)])
def test_a_shorter_step_outweighs_what_it_is_made_of(
    factor: float, code: int, capsys: pytest.CaptureFixture[str], base: Path
) -> None:
    """Computes that take a tenth longer close the gate unless the step is shorter; a limit on them closes it anyway."""
    new = report(base.with_name("new.json"), tuple(factor * each for each in QUIET_STEPS))
    made = json.loads(new.read_text(encoding="utf-8"))
    for step in made["recording"]["steps"]:
        step["compute_ns"] = round(step["compute_ns"] * 1.1 / factor)
    new.write_text(json.dumps(made), encoding="utf-8")
    found = as_json(capsys, code, base, new)
    assert verdict(found, "step_ns") == ("improved" if factor < 1 else "unchanged")
    assert verdict(found, "compute_ns") == "regressed"
    assert found["failures"] == (["regressed: compute_ns"] if code else [])
    assert as_json(capsys, 1, base, new, "--fail-on", "compute_ns>+2%")["failures"]


def test_a_limit_that_is_exceeded_is_not_hinted_away(capsys: pytest.CaptureFixture[str], base: Path) -> None:
    """--accept takes other results of the same traces; these are the same, and too long."""
    _, err = said(capsys, 1, base, base, "--fail-on", "step_ns>1ms")
    assert "step_ns>1ms exceeded" in err
    assert "--accept" not in err
    said(capsys, 1, base, base, "--fail-on", "step_ns>1ms", "--accept")
