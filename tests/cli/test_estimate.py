"""tracetool estimate: answers first, one screen, JSON as its schema says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers.recorded import ROOT, data

from tracetool.cli import run

NETWORKS = ROOT / "schemas" / "networks"
MODEL = """
[model]
name = "GPT-22B"
layers = 48
hidden = 6144
heads = 64
vocabulary = 51200
[training]
sequence = 2048
batch = 4
tensor = 8
recompute = "selective"
[device]
name = "A100 80GB"
peak_tflops = 312
hbm = "40GB"
hbm_bandwidth = "1631GB/s"
processors = 108
[[measured]]
name = "as it is"
step_s = 1.10
[[measured]]
name = "full"
step_s = 1.42
training = { recompute = "full" }
"""
TWO_NODES = """[[measured]]
name = "two nodes"
step_s = 1
training = { pipeline = 2 }
"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.toml"
    path.write_text(MODEL, encoding="utf-8")
    return str(path)


@pytest.fixture
def sailor() -> list[str]:
    plans, layers = (str(data("sailor-gh200", name)) for name in ("plans.json", "layers.json"))
    return ["--plans", plans, "--layers", layers, "--network", str(NETWORKS / "gh200.toml")]


def _json(words: list[str], schema: str, capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["estimate", *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    declared = json.loads((ROOT / "schemas" / f"{schema}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(declared)
    jsonschema.Draft202012Validator(declared).validate(printed)
    assert set(printed) == set(declared["properties"])
    return printed


def test_a_model(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = [model, "--network", str(NETWORKS / "a100.toml"), "--fit", "as it is"]
    assert run(["estimate", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert lines[0] == "Step 1.100 s, 41.7% MFU (42.4% HFU), 57.37 GiB of HBM on the fullest rank, more"
    assert lines[1] == "  than the device's 37.25 GiB."
    found = _json(words, "estimate", capsys)
    assert found["step_ns"] == pytest.approx(1.1e9, rel=2e-5)
    assert found["mfu_ratio"] < found["hfu_ratio"] < 0.43
    assert len(found["peak_hbm_bytes"]) == 1
    assert found["shared_tiers"] == []
    assert found["fitted_on"] == ["as it is"]
    assert [row["fitted"] for row in found["rows"]] == [True, False]
    assert found["mape_ratio"] == found["max_error_ratio"] == abs(found["rows"][1]["error_ratio"])


def test_an_efficiency_may_be_given(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "given.toml"
    path.write_text(MODEL.replace("processors", 'efficiency = "75%"\nnode_bandwidth = "210GB/s"\nprocessors'), "utf-8")
    found = _json([str(path)], "estimate", capsys)
    assert (found["efficiency_ratio"], found["network"], found["fitted_on"]) == (0.75, None, [])
    assert found["step_ns"] == found["window_ns"]  # without a network nothing follows


def test_timed_layers_take_the_place_of_the_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages of two layers: embedding 1 ms, layers 2 and 4 ms, head 3 and 5 ms, updates 0.5 ms each."""
    layers = tmp_path / "layers.json"
    rows = [[0.001, 0, 0.0005], *[[0.002, 0.004, 0.0005]] * 4, [0.003, 0.005, 0.0005]]
    columns = ["forward_s", "backward_s", "update_s"]
    layers.write_text(json.dumps({"columns": columns, "layers": {"GPT-22B": {"4": {"8": rows}}}}), "utf-8")
    path = tmp_path / "small.toml"
    small = MODEL.replace("layers = 48", "layers = 4").replace("batch = 4", "batch = 4\npipeline = 2\nmicrobatches = 3")
    path.write_text(small.partition("[[measured]]")[0], "utf-8")
    found = _json([str(path), "--layers", str(layers)], "estimate", capsys)
    # F 5 and 7 ms, B 8 and 13 ms; free messages: 5 + 3 (7 + 13) + 8.
    assert found["window_ns"] == 73_000_000
    assert found["efficiency_ratio"] is None
    found = _json([str(path), "--layers", str(layers), "--network", str(NETWORKS / "a100.toml")], "estimate", capsys)
    assert found["optimizer_ns"] == 1_500_000


def test_plans(sailor: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["estimate", *sailor]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("14 of 14 plans compared: steps off by 6.2% on average")
    assert run(["estimate", *sailor, "-v"]) == 0
    assert "which no reduction takes" in " ".join(capsys.readouterr().out.split())
    found = _json(sailor, "plan-predictions", capsys)
    errors = [abs(row["error_ratio"]) for row in found["rows"]]
    assert found["mape_ratio"] == pytest.approx(sum(errors) / 14)
    assert found["max_error_ratio"] == max(errors)
    assert found["mape_sound_ratio"] < found["mape_ratio"]
    assert {row["name"] for row in found["rows"] if row["doubtful"]} == {"gptneo27-n8_d2", "opt350-n4_d4"}


TWO_DCS = str(NETWORKS / "two-dcs.toml")


@pytest.mark.parametrize(("replicas", "shared"), [(2, ["wan"]), (1, [])])
def test_tiers_that_pipelines_share_are_said(
    replicas: int, shared: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Two stages over a link that all devices of a DC share: of two replicas, and of one pipeline that has it alone."""
    network, job = tmp_path / "n.toml", tmp_path / "job.toml"
    inner = f'[[tier]]\nname = "hb"\nsize = {replicas}\nbandwidth = "450GB/s"\n' if replicas > 1 else ""
    wan = f'[[tier]]\nname = "wan"\nsize = {2 * replicas}\nbandwidth = "10GB/s"\nshared_by = "pair"\n'
    network.write_text(inner + wan, encoding="utf-8")
    shape = MODEL.split("[[measured]]", maxsplit=1)[0]
    shape = shape.replace("tensor = 8", f"tensor = 1\npipeline = 2\ndata = {replicas}\nmicrobatches = 4")
    job.write_text(shape + 'efficiency = "50%"\n', encoding="utf-8")
    words = [str(job), "--network", str(network)]
    assert _json(words, "estimate", capsys)["shared_tiers"] == shared
    assert run(["estimate", *words]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("devices share wan: all pipelines are taken to send at once" in said) is bool(shared)


ONE_NODE = '[[tier]]\nname = "hb"\nsize = 8\nbandwidth = "450GB/s"\nlatency = "1us"\n'
"""What TWO_DCS has inside a node."""
SLOW_NODES = (
    '[[tier]]\nname = "hb"\nsize = 2\nbandwidth = "100GB/s"\n[[tier]]\nname = "fabric"\nsize = 8\nbandwidth = "5GB/s"\n'
)


def test_runs_smaller_than_the_fleet_are_fitted_on_the_tiers_that_they_reach(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As over these tiers alone, though the job's stages are spread over two DCs: fit, rows and errors."""
    (tmp_path / "node.toml").write_text(ONE_NODE, encoding="utf-8")
    alone = _json([model, "--network", str(tmp_path / "node.toml"), "--fit", "as it is"], "estimate", capsys)
    large = tmp_path / "large.toml"
    large.write_text(
        MODEL.replace("tensor = 8", "tensor = 8\npipeline = 16\ndata = 8\nmicrobatches = 16")
        .replace("step_s = 1.10", "step_s = 1.10\ntraining = { pipeline = 1, data = 1, microbatches = 1 }")
        .replace('{ recompute = "full" }', '{ pipeline = 1, data = 1, microbatches = 1, recompute = "full" }')
    )
    found = _json([str(large), "--network", TWO_DCS, "--fit", "as it is"], "estimate", capsys)
    assert found["efficiency_ratio"] == alone["efficiency_ratio"]
    assert found["rows"] == alone["rows"]
    assert found["max_error_ratio"] == alone["max_error_ratio"] > 0
    assert found["devices"] == 1024


def test_a_run_may_name_the_network_that_it_ran_over(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its row is what the job takes over that one; the others stay over the one asked about."""
    (tmp_path / "slow.toml").write_text(SLOW_NODES, encoding="utf-8")
    plain = _json([model, "--network", TWO_DCS, "--fit", "as it is"], "estimate", capsys)
    own = tmp_path / "own.toml"
    own.write_text(MODEL.replace("step_s = 1.42", 'step_s = 1.42\nnetwork = "slow.toml"'), encoding="utf-8")
    found = _json([str(own), "--network", TWO_DCS, "--fit", "as it is"], "estimate", capsys)
    given = f'efficiency = "{found["efficiency_ratio"] * 100!r}%"\n[[measured]]'
    slow = tmp_path / "full.toml"
    slow.write_text(MODEL.replace('"selective"', '"full"').replace("[[measured]]", given, 1), encoding="utf-8")
    over = _json([str(slow), "--network", str(tmp_path / "slow.toml")], "estimate", capsys)
    assert found["rows"][0] == plain["rows"][0]
    assert found["rows"][1]["predicted_s"] == pytest.approx(over["step_ns"] / 1e9, rel=1e-9)
    assert found["rows"][1]["predicted_s"] > 1.2 * plain["rows"][1]["predicted_s"]
    assert (found["rows"][1]["network"], plain["rows"][1]["network"]) == ("hb 2 · fabric 8", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to estimate"),
        (["MODEL"], "does not say how efficient A100 80GB is.\nHint: add --fit 'as it is'"),
        (["MODEL", "--fit", "as it was"], "Did you mean 'as it is'"),
        (["MODEL", "--plans", "MODEL"], "plans are predicted from layer timings alone"),
        (["--plans", "MODEL"], "plans are predicted from layer timings over a network"),
        (["MODEL", "--fit", "as it is"], "how fast tensor-parallel ranks reach each other"),
        (["MODEL", "--fit", "two nodes", "--network", TWO_DCS], "two nodes: nothing uses tier rail"),
        (
            ["MODEL", "--fit", "two nodes", "--network", TWO_DCS],
            'Hint: say what two nodes ran over: network = "FILE.toml"',
        ),
        (["absent.toml"], "cannot read absent.toml"),
    ],
)
def test_what_is_refused(words: list[str], said: str, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "two nodes" in words:
        Path(model).write_text(MODEL + TWO_NODES, encoding="utf-8")
    assert run(["estimate", *(model if word == "MODEL" else word for word in words)]) == 2
    assert said in capsys.readouterr().err.replace("tracetool: ", "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("layers = 48", "layer = 48", "is 'layers' meant?"),
        ("layers = 48", 'layers = 48\nefficiency = "50%"', "it belongs to [device]."),
        ('hbm = "40GB"', 'hbm = "40"', "device.hbm"),
        ('"full"\nstep_s', '"as it is"\nstep_s', "two measured runs are called 'as it is'"),
        ('{ recompute = "full" }', '{ recompute = "all" }', "full: "),
        ("step_s = 1.10", "step_s = 0.1", "even at the peak as it is would take"),
        ("step_s = 1.10", "step_s = 1000", "took longer than at 1 % of the peak"),
        ("peak_tflops = 312", "peak_tflops = 312e12", "TFLOP/s, which no device has"),
        ("layers = 48", "layers = 48\nkv_heads = 64\n[model.experts]\ncount = 8\ntop = 2", ""),
    ],
)
def test_what_a_file_may_say(old: str, new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.toml"
    text = MODEL.replace(old, new)
    if "experts" in new:
        text = MODEL.replace("[training]", new.partition("\n")[2].partition("\n")[2] + "\n[training]")
    path.write_text(text, encoding="utf-8")
    words = ["estimate", str(path), "--network", str(NETWORKS / "a100.toml"), "--fit", "as it is"]
    assert run(words) == (2 if said or "experts" in new else 0)
    assert said in capsys.readouterr().err
