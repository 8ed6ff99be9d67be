"""tracetool explore: the answer first, one screen, JSON as its schema says, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT
from helpers.thorough import is_asked, spread

from tracetool.cli import run
from tracetool.errors import ScenarioError
from tracetool.estimates.training import Training
from tracetool.explore.file import read_plan
from tracetool.explore.plan import JobPlan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

MODEL = """
[model]
name = "small"
layers = 8
hidden = 4096
heads = 16
ffn = 8192
vocabulary = 32000
gated = true
fused_attention = true
[training]
sequence = 2048
microbatches = 8
tensor = 2
pipeline = 2
data = 2
[device]
name = "X"
peak_tflops = 300
hbm = "80GB"
efficiency = "60%"
"""
FLEET = """
placement = "tp,dp,pp"
[[tier]]
name = "hb"
size = 2
bandwidth = "300GB/s"
[[tier]]
name = "wan"
size = 8
shared_by = "pair"
bandwidth = "10GB/s"
latency = "1ms"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("explored")
    (folder / "model.toml").write_text(MODEL)
    (folder / "fleet.toml").write_text(FLEET)
    return [str(folder / "model.toml"), "--network", str(folder / "fleet.toml")]


FEW = ["--try", "schedule=1f1b,zb-h1", "--leave", "placement,microbatch,recompute,sharing"]


def test_the_answer_comes_first_and_fits_a_screen(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explore", *files, *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Run ")
    assert len(lines) <= 24
    assert max(map(len, lines[:-1])) <= 80
    assert lines[-1].startswith("Next: tracetool explore")


def test_json_is_as_its_schema_says(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best plan is no slower than what each choice alone reaches; its plan is a baseline of the next call."""
    assert run(["explore", *files, *FEW, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, json.loads((ROOT / "schemas" / "exploration.schema.json").read_text()))
    best, base = found["best"], found["base"]
    assert best["step_ns"] <= min(one["best"]["step_ns"] for one in found["alone"])
    assert found["faster_ratio"] == pytest.approx(base["step_ns"] / best["step_ns"] - 1)
    assert found["shorter_ratio"] == pytest.approx(1 - best["step_ns"] / base["step_ns"])
    assert found["candidates"] == found["replayed"] + sum({**found["pruned"], **found["refused"]}.values())
    plan = {key: value for key, value in best["plan"].items() if value is not None}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in plan.items())
    (tmp_path / "best.toml").write_text(text)
    assert run(["explore", *files, *FEW, "--json", "--baseline", str(tmp_path / "best.toml")]) == 0
    again = json.loads(capsys.readouterr().out)["baselines"][0]
    assert (again["name"], again["best"]["step_ns"]) == ("best", best["step_ns"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--fix", "tp=3"], "do not divide into tp 3"),
        (["--fix", "tp=3"], "tp=1, 2, 4 or 8 would fit"),
        (["--fix", "microbatch=3"], "16 sequences a step do not divide into microbatches of 3 at any degrees"),
        (["--fix", "microbatch=3"], "microbatch=1, 2, 4 or 8 would fit"),
        (["--fit", "foo"], "has none: add [[measured]]"),
        (["--fix", "pp=5"], "do not divide into pp 5"),
        (["--fix", "tp=2", "--fix", "pp=8"], "would fit"),
        (["--fix", "tp=2", "--leave", "tp"], "both given and left"),
        (["--fix", "tp=1,2"], "fixes tp at 2 values"),
        (["--fix", "width=2"], "no axis named 'width'"),
        (["--try", "schedule=1f1c"], "1f1b"),
    ],
)
def test_what_cannot_be_is_said_ahead_of_the_search(
    files: list[str], capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert run(["explore", *files, *words]) == 2
    assert says in capsys.readouterr().err


def test_a_fleet_that_is_too_small_is_said(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET.replace("size = 8", "size = 6"))
    assert run(["explore", *files[:2], str(tmp_path / "fleet.toml")]) == 2
    told = capsys.readouterr().err
    assert "the job has 8 devices" in told
    assert "make wan at least 8 devices large" in told


def test_a_measured_run_that_does_not_fit_on_the_fleet_stops_nothing(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two, the one of 8 devices tells the error; that of 16 is said to tell nothing."""
    run_of = '[[measured]]\nname = "{}"\nstep_s = 1.0\ntraining = {{data = {}}}\n'
    model = tmp_path / "model.toml"
    model.write_text(MODEL + run_of.format("here", 2) + run_of.format("too wide", 4))
    asked = ["explore", str(model), *files[1:], *FEW, "--leave", "tp,pp,dp"]
    assert run([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["misfits"] == ["too wide"]
    assert told["error_ratio"] > 0


def test_a_plan_in_a_file_says_degrees_by_either_name(files: list[str], tmp_path: Path) -> None:
    base = JobPlan(Training(2, 2, 8, 1, 2048, 0.6, data=2))
    path = tmp_path / "plan.toml"
    path.write_text("tp = 4\npp = 1\nmicrobatch = 2\n")
    short = read_plan(path, base)
    path.write_text("tensor = 4\npipeline = 1\nbatch = 2\n")
    assert files
    assert short == read_plan(path, base) != base
    path.write_text("tp = 4\ntensor = 4\n")
    with pytest.raises(ScenarioError, match="both tp and tensor"):
        read_plan(path, base)


# Other candidates are refused between the limits that are met and the one above the device, and counted as those are.
@spread("hbm", ["80GB", "14GB", "6GB", "100GiB"], ["6GB"])
def test_all_candidates_are_accounted_for_and_a_limit_above_the_device_is_said(
    files: list[str], capsys: pytest.CaptureFixture[str], hbm: str
) -> None:
    """Replayed, not replayed by each bound, and refused: the counts on the screen are all candidates."""
    few = () if is_asked() else ("--try", "schedule=1f1b,zb-h1")
    assert run(["explore", *files, *few, "--leave", "placement,sharing", "--hbm", hbm]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    counts = re.search(r"([\d,]+) candidates, ([\d,]+) replayed; not replayed: (.*?)(?:note:|Next:)", shown)
    assert counts is not None
    others = re.findall(r"([\d,]+) by ", counts[3])
    every, *parts = (int(number.replace(",", "")) for number in (counts[1], counts[2], *others))
    assert every == sum(parts) > 0
    assert ("cannot run: " in shown) == (hbm == "6GB")
    assert ("the HBM limit is above what X has (74.51 GiB)" in shown) == (hbm == "100GiB")


def test_a_plan_that_takes_longer_is_not_said_to_be_faster(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    left = ["--leave", "tp,pp,dp,cp,ep,placement,microbatch,schedule,sharing,depth,p2p,chunks,beside,collectives"]
    assert run(["explore", *files, *left, "--fix", "recompute=full"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("Stay with the declared plan's ")
    assert "of what was asked for the best is tp 2 · dp 2 · pp 2 with 1f1b" in shown
    assert "faster than" not in shown
    assert run(["explore", *files, *left, "--fix", "recompute=none"]) == 0
    assert "as the declared plan takes: nothing that was asked for is shorter" in " ".join(
        capsys.readouterr().out.split()
    )


# By default failures are on the screen in test_explore, and other fleets in tests/explore.
@pytest.mark.thorough
def test_what_is_asked_for_besides_is_on_the_screen(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another fleet and a failure, ahead of choices and counts that nobody asked for."""
    (tmp_path / "other.toml").write_text('name = "other"\n' + FLEET.replace("10GB/s", "40GB/s"))
    assert run(["explore", *files, *FEW, "--or", str(tmp_path / "other.toml"), "--failure", "wan.bandwidth=50%"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert any(line.startswith("  on other: ") for line in lines)
    assert any(line.startswith("  wan.bandwidth=50%: ") for line in lines)


@pytest.mark.parametrize(("schedule", "is_compared"), [("1f1b", True), ("zb-h2", False)])
def test_a_plan_of_a_schedule_that_was_never_compared_is_called_unproven(
    files: list[str], capsys: pytest.CaptureFixture[str], schedule: str, is_compared: bool
) -> None:
    assert (
        run(["explore", *files, "--fix", f"schedule={schedule}", "--leave", "placement,microbatch,recompute,tp,pp,dp"])
        == 0
    )
    assert ("unproven" in capsys.readouterr().out.split(" a step", 1)[0]) == (not is_compared)
