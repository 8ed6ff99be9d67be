"""tracetool explore: failures, launching and files on the command line; JSON as its schema says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from helpers.recorded import ROOT

from tracetool.cli import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

MODEL = """
model = {name = "small", layers = 8, hidden = 2048, heads = 16, vocabulary = 32000, fused_attention = true}
training = {sequence = 2048, microbatches = 4, tensor = 2, pipeline = 2, data = 2}
device = {name = "A100", peak_tflops = 312, hbm = "80GB", efficiency = "70%", hbm_bandwidth = "1600GB/s"}
"""
FLEET = """
name = "two DCs"
[[tier]]
name = "node"
size = 2
bandwidth = "200GB/s"
[[tier]]
name = "dc"
size = 4
bandwidth = "20GB/s"
latency = "5us"
[[tier]]
name = "wan"
size = 8
shared_by = "pair"
bandwidth = "5GB/s"
latency = "1ms"
"""


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("explored")
    model, fleet = folder / "model.toml", folder / "fleet.toml"
    model.write_text(MODEL, encoding="utf-8")
    fleet.write_text(FLEET, encoding="utf-8")
    small = ["--fix", "tp=2", "--try", "schedule=1f1b,geopipe", "--leave", "recompute,microbatch,p2p,sharing"]
    return ["explore", str(model), "--network", str(fleet), *small, "--try", "placement=pp across wan;dp across wan"]


FAILURES = ["--failure", "wan.bandwidth=10%@5%", "--failure", "dc1.speed=80%@1%"]


@pytest.mark.usefixtures("undrawn")
def test_failures_and_how_to_launch(words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, data = (tmp_path / f"x.{suffix}" for suffix in ("html", "json"))
    assert run([*words, *FAILURES, "-v", "-o", str(page), "-o", str(data)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "wan.bandwidth=10% (5% of the time): " in text
    assert "dc1.speed=80% (1% of the time): " in text
    assert "at worst" in text
    assert "on average" in text
    assert "Megatron-LM core 0.14: --num-layers 8 --hidden-size 2048" in text
    assert "torchtitan 0.2: --training.seq_len 2048" in text
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    found = json.loads(data.read_text("utf-8"))
    schema = json.loads((ROOT / "schemas" / "exploration.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(found)
    assert [one["framework"] for one in found["launch"]] == ["Megatron-LM core 0.14", "torchtitan 0.2"]
    assert found["launch"][0]["flags"][:2] == ["--num-layers", "8"]
    outcomes = found["failures"]["outcomes"]
    assert [(one["failure"], one["weight_ratio"]) for one in outcomes] == [
        ("wan.bandwidth=10%", 0.05), ("dc1.speed=80%", 0.01),
    ]  # fmt: skip
    # The mean step by hand: 94 % of the time all is whole.
    steps = [found["best"]["step_ns"], *(one["kept"]["step_ns"] for one in outcomes)]
    mean = 0.94 * steps[0] + 0.05 * steps[1] + 0.01 * steps[2]
    assert found["failures"]["kept"]["expected_ns"] == pytest.approx(mean)
    assert found["failures"]["kept"]["worst_ns"] == max(steps)
    assert all(one["best"]["step_ns"] <= one["kept"]["step_ns"] for one in outcomes)


def test_without_failures_there_are_none(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["failures"] is None


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["-o", "x.txt"], "an exploration is not written to .txt"),
        (["--failure", "wan.bandwidth=0%"], "leaves 0%"),
        (["--failure", "lan.bandwidth=50%"], "lan"),
        (["--failure", "dc9.speed=50%"], "two DCs has no dc9"),
    ],
)
def test_what_is_refused(words: list[str], more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, *more]) == 2
    assert said in capsys.readouterr().err
