"""tracetool paper: runs without traces, fits 80 columns, conforms to its schema."""

from __future__ import annotations

import json
from inspect import unwrap
from typing import TYPE_CHECKING

import jsonschema
import polars as pl
import pytest
from helpers.recorded import ROOT

from tracetool.cli import run
from tracetool.studies.geopipe import reproduce

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("asked_once")

SMALL = ["--efficiency", "50%", "--microbatches", "16", "--distances", "80km,800km"]


def test_the_report_fits_80_columns_and_says_what_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = tmp_path / "points.parquet"
    outputs = ["-o", str(table), "-o", str(tmp_path / "report.txt")]
    assert run(["paper", "geopipe", "--model", "13b", *SMALL, "-v", *outputs]) == 0
    text = capsys.readouterr().out
    *lines, following = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert following.startswith("Next: tracetool paper geopipe")
    flat = " ".join(text.split())
    for said in (
        "nothing here was measured",
        "not a claim about the paper",
        "reduced by up to 78.91 % [abstract]",
        "in 3 regions [1 note, unconfirmed]",
        "the paper's own definition is not known",
        "it takes m 288 for fill and drain to be that short",
        "MindSpeed-LLM's README tells 2,016",
    ):
        assert said in flat
    assert (tmp_path / "report.txt").read_text(encoding="utf-8") in text
    points = pl.read_parquet(table)
    assert points.height == 1 * 1 * 1 * 4 * 4 * 3 * 2
    one = points.row(7, named=True)
    assert one["latency_ns"] == 5000 * one["distance_km"]
    assert one["grouped_iteration_reduction_ratio"] == 1 - one["window_ns"] / one["grouped_1f1b_window_ns"]


def test_one_screen_says_whether_the_figures_arise(capsys: pytest.CaptureFixture[str]) -> None:
    """The definitions that the sentence names are those of which JSON has points."""
    asked = ["paper", "geopipe", "--model", "13b", *SMALL]
    assert run([*asked, "--json"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    counted = {"bubble_ratio": "idle share", "bubble_ns": "idle time", "cross_dc_bubble_ns": "cross-DC time"}
    arise = {
        pick: [
            words
            for name, words in counted.items()
            if any(f["points"] and f["definition"] == name for f in model[pick])
        ]
        for pick in ("bubbles", "both")
    }
    assert run(asked) == 0
    *lines, following = capsys.readouterr().out.splitlines()
    assert following.startswith("Next: tracetool paper geopipe --model 13b ")
    assert len(lines) + 1 <= 24
    assert max(map(len, lines)) <= 80
    sentence = " ".join(" ".join(lines[: lines.index("")]).split())
    assert sentence.startswith("In a model of GeoPipe's setting (13b), 78.91 % fewer bubbles arise ")
    for pick, told in (("bubbles", "fewer bubbles arise"), ("both", "both arise in one configuration")):
        assert f"{told} {'as ' + ', '.join(arise[pick]) if arise[pick] else 'nowhere'}" in sentence
    assert "nothing here was measured" in " ".join(lines)


# What is worked out is so once for all of this module: to work it out anew takes as long as they do together.
@pytest.mark.thorough
def test_json_is_the_same_every_time(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = []
    monkeypatch.setattr(reproduce, "study_geopipe", unwrap(reproduce.study_geopipe))
    for _ in range(2):
        assert run(["paper", "geopipe", "--model", "13b", *SMALL, "--json"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_json_conforms_to_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", "geopipe", "--model", "13b", *SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    schema = json.loads((ROOT / "schemas" / "geopipe.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(found)
    assert found["derived"] is True
    (model,) = found["models"]
    assert model["parameters"] == 13_015_864_320
    assert [f["definition"] for f in model["bubbles"]][::2] == ["bubble_ratio", "bubble_ns", "cross_dc_bubble_ns"]


# Two studies more; what is said is read by the options of estimates, which are tried by default.
@pytest.mark.thorough
def test_what_the_user_says_replaces_what_is_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    """Half the peak at twice the efficiency is the same; what does not fit is told, not left out."""
    cycles = []
    for peak, efficiency in (("200", "60%"), ("400", "30%")):
        said = ["--peak-tflops", peak, "--efficiency", efficiency, "--tensor-bandwidth", "100GB/s", *SMALL[2:]]
        assert run(["paper", "geopipe", "--model", "13b", *said, "--json"]) == 0
        (model,) = json.loads(capsys.readouterr().out)["models"]
        cycles.append(model["middle_cycle_ns"])
    assert cycles[0] == cycles[1]
    assert run(["paper", "geopipe", "--model", "70b", *SMALL, "--hbm", "24GB", "-v"]) == 0
    flat = " ".join(capsys.readouterr().out.split())
    assert "fit the HBM limit: 70b 0" in flat
    assert "not looked for: 1F1B does not fit the HBM limit" in flat


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["--efficiency", "55"], "%"),
        (["--efficiency", "0%"], "efficiency"),
        (["--hbm", "64"], "unit"),
        (["--distances", "80"], "km"),
        (["--microbatches", "16,x"], "whole number"),
        (["-o", "x.html"], ".parquet"),
    ],
)
def test_what_cannot_be_read_is_refused(said: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", "geopipe", *said]) == 2
    assert expected in capsys.readouterr().err
