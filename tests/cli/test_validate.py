"""tracetool validate as a user runs it: text, JSON, exit codes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from helpers.recorded import ROOT, SAMPLES, h100

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = str(SAMPLES / "h100-1f1b")
LINK = {"between_pipeline_ranks": [1, 2], "latency_ms": 10.0, "bandwidth_gbit_per_s": 25}
ROW = {"schedule": "1f1b", "microbatches": 8, "pipeline_ranks": 4}
# Two configurations of sample_traces/h100-1f1b's machine, measured: shared/data/h100-pp4/measured.json.
ROWS = [
    {**ROW, "name": "1f1b_m8", "step_ms": 246.06, "peak_allocated_gib": [12.149, 10.079, 8.89, 9.402]},
    {**ROW, "name": "1f1b_m8_L2", "step_ms": 352.088, "links": [LINK]},
    {**ROW, "name": "half as many", "step_ms": 100.0, "pipeline_ranks": 2},
]


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json"
    path.write_text(json.dumps({"model": {"layers": 16}, "results": ROWS}), encoding="utf-8")
    return path


def report(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    assert run(["validate", *map(str, arguments), "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "validation.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(result)
    return result


def test_json_has_the_promised_keys_and_they_agree(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    found = report(capsys, SAMPLE, measured)
    keys = {
        "name", "measured_ms", "predicted_ms", "error_ratio", "peak_measured_bytes", "peak_predicted_bytes", "reason",
    }  # fmt: skip
    assert {"rows", "mape_ratio", "max_error_ratio", "kendall_tau", "not_predicted"} <= set(found)
    first, second, third = found["rows"]
    assert all(keys <= set(row) for row in found["rows"])
    errors = [row["predicted_ms"] / row["measured_ms"] - 1 for row in (first, second)]
    assert [row["error_ratio"] for row in (first, second)] == pytest.approx(errors)
    assert found["mape_ratio"] == pytest.approx(sum(map(abs, errors)) / 2)
    assert found["max_error_ratio"] == pytest.approx(max(map(abs, errors)))
    assert found["kendall_tau"] == 1.0
    assert found["not_predicted"] == 1
    assert (third["predicted_ms"], third["error_ratio"]) == (None, None)
    assert third["reason"] == "pipeline_ranks is 2 in the row and 4 in the Run."
    assert (first["reason"], second["reason"]) == (None, None)
    # The sample records memory: peaks of its own order are those measured, to 0.5 %.
    assert first["peak_measured_bytes"] == [round(gib * 2**30) for gib in (12.149, 10.079, 8.89, 9.402)]
    assert first["peak_predicted_bytes"] == pytest.approx(first["peak_measured_bytes"], rel=0.005)
    assert second["peak_measured_bytes"] == []
    assert found["measured"]["digest"] == hashlib.sha256(measured.read_bytes()).hexdigest()
    assert found["memory_run"] is None


def test_text_says_the_same_in_80_columns(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    found = report(capsys, SAMPLE, measured)
    assert run(["validate", SAMPLE, str(measured)]) == 0
    text = capsys.readouterr().out
    for row in found["rows"][:2]:
        line = next(line for line in text.splitlines() if line.strip().startswith(row["name"] + " "))
        for part in (f"{row['measured_ms']:.1f}", f"{row['predicted_ms']:.1f}", f"{row['error_ratio']:+.2%}"):
            assert part in line.split()
    assert f"MAPE {found['mape_ratio']:.2%}" in text
    assert "half as many: not predicted: pipeline_ranks is 2" in text
    assert "2 of 3 rows compared, 1 not predicted" in " ".join(text.split())
    assert "Next: tracetool replay" in text
    assert max(map(len, text.splitlines()[2:-1])) <= 80
    assert run(["validate", SAMPLE, str(measured), "-q"]) == 0
    assert "Next:" not in capsys.readouterr().out


def test_a_reason_of_many_rows_stands_there_once(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    other = [{**ROWS[2], "name": f"other {n}"} for n in range(10)]
    measured.write_text(json.dumps({"results": [*ROWS, *other]}), encoding="utf-8")
    assert run(["validate", SAMPLE, str(measured)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("not predicted: pipeline_ranks is 2") == 1
    assert "half as many, other 0, other 1, other 2, other 3, other 4, other 5, other 6 and 3 more: not" in text
    assert "11 not predicted" in text


def test_memory_from_another_recording(capsys: pytest.CaptureFixture[str], measured: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(SAMPLE, other)
    found = report(capsys, SAMPLE, measured, "--memory-from", other)
    assert found["memory_run"]["name"] == str(other)
    assert (
        found["rows"][0]["peak_predicted_bytes"] == report(capsys, SAMPLE, measured)["rows"][0]["peak_predicted_bytes"]
    )


@pytest.mark.parametrize("option", ["--max-mape", "--max-error"])
def test_limits_decide_the_exit_code(option: str, capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    found = report(capsys, SAMPLE, measured)
    error = found["mape_ratio" if option == "--max-mape" else "max_error_ratio"]
    above, below = f"{100 * error + 0.001:.4f}%", f"{100 * error - 0.001:.4f}%"
    assert run(["validate", SAMPLE, str(measured), option, above]) == 0
    capsys.readouterr()
    assert run(["validate", SAMPLE, str(measured), option, below, "--json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["mape_ratio"] == found["mape_ratio"], "the result is printed all the same"
    assert "allowed are" in output.err


def test_a_limit_cannot_hold_where_nothing_was_compared(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    measured.write_text(json.dumps({"results": ROWS[2:]}), encoding="utf-8")
    assert run(["validate", SAMPLE, str(measured)]) == 0
    assert run(["validate", SAMPLE, str(measured), "--max-mape", "50%"]) == 1
    assert "no row could be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ('{"results": [\n{"name": }]}', [], "measured.json, line 2, column 10"),
        ('{"results": [{"name": "x"}]}', [], "row 1 (x): "),
        (None, ["--max-mape", "0.02"], "has no unit"),
        (None, ["--max-error", "2 ms"], "not a unit of a share"),
        (None, ["--memory-from", "nowhere.run"], "nowhere.run"),
        (None, ["--step", "77"], "77"),
    ],
)
def test_what_could_not_run_is_2(
    content: str | None, options: list[str], said: str, capsys: pytest.CaptureFixture[str], measured: Path
) -> None:
    if content is not None:
        measured.write_text(content, encoding="utf-8")
    assert run(["validate", SAMPLE, str(measured), *options]) == 2
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""


def test_slowdown_from_another_recording(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """edge_k0_m8 of measured.json runs beside transfers, which the grouped sample does not show: see its error."""
    path = tmp_path / "measured.json"
    row = {"name": "edge_k0_m8", "schedule": "geopipe", "extra_forwards": [0, 0, 0, 0], "p2p": "per-edge"}
    grouped = {"name": "1f1b_m8", "schedule": "1f1b", "p2p": "grouped", "step_ms": 246.06}
    shape = {"microbatches": 8, "pipeline_ranks": 4}
    rows = [{**shape, **row, "step_ms": 262.871}, {**shape, **grouped}]
    path.write_text(json.dumps({"results": rows}), encoding="utf-8")
    own = report(capsys, SAMPLE, path)
    borrowed = report(capsys, SAMPLE, path, "--costs-from", h100("rt1f1b_m8").path)
    first, second = (r["rows"][0]["error_ratio"] for r in (own, borrowed))
    assert first != second
    assert abs(second) < 0.02
    assert own["rows"][1] == borrowed["rows"][1]
    assert run(["validate", SAMPLE, str(path), "--costs-from", str(ROOT / "tests" / "data" / "ckpt_reentrant")]) == 2
    assert "has 2 stages, this one 4" in capsys.readouterr().err


def test_a_file_without_rows_is_no_crash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text('{"model": {}, "results": []}', encoding="utf-8")
    assert run(["validate", SAMPLE, str(path)]) == 0
    assert "0 of 0 rows compared" in capsys.readouterr().out


def test_every_limit_that_is_exceeded_is_named(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    assert run(["validate", SAMPLE, str(measured), "--max-mape", "0.001%", "--max-error", "0.002%"]) == 1
    told = capsys.readouterr().err
    assert "the mean absolute error is" in told
    assert "the largest error is" in told


def test_what_replay_leaves_out_is_told(capsys: pytest.CaptureFixture[str], measured: Path) -> None:
    notes = report(capsys, SAMPLE, measured)["notes"]
    assert any("host's time around a step" in note for note in notes)


def test_columns_of_peaks_are_named_and_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With measured peaks the table says of which rank they are; without, that the column is a predicted peak."""
    heads = []
    for number, row in enumerate(ROWS[:2]):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps({"model": {"layers": 16}, "results": [row]}), encoding="utf-8")
        assert run(["validate", SAMPLE, str(path)]) == 0
        text = capsys.readouterr().out
        head = next(line for line in text.splitlines() if line.endswith(("GiB", "error")))
        heads.append(re.split(r"  +", head.strip()))
        explained = "rN is the pipeline rank, from 0, whose predicted peak is furthest off" in " ".join(text.split())
        assert explained == ("peak GiB" in text)
    assert heads == [
        ["ms", "predicted", "error", "peak GiB", "predicted GiB", "error"],
        ["ms", "predicted", "error", "predicted GiB"],
    ]
