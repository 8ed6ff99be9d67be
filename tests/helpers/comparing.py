"""Reports as of recordings whose steps took other times, and what tracetool compare says of them."""

from __future__ import annotations

import copy
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import jsonschema
from helpers.recorded import ROOT, SAMPLES, derived

from tracetool.cli import run

if TYPE_CHECKING:
    import pytest

QUIET_STEPS = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0015, 0.9985)


@cache
def sample() -> Path:
    """A Run of the sample whose folder may be changed."""
    path = Path(mkdtemp(prefix="tracetool-test-")) / "sample.run"
    shutil.copytree(derived(SAMPLES / "h100-1f1b").path, path)
    return path


@cache
def sample_report() -> str:
    from click.testing import CliRunner

    from tracetool.cli import cli

    arguments = ["replay", str(sample()), "--schedule", "gpipe", "--json"]
    result = CliRunner().invoke(cli, arguments, obj=arguments)
    assert result.exit_code == 0
    return str(result.stdout)


def report(path: Path, steps: tuple[float, ...] = QUIET_STEPS, *, digest: str = "", **changes: Any) -> Path:
    """A report as of a recording whose steps take so many times what the sample's step took."""
    made = json.loads(sample_report()) | changes
    (step,) = made["recording"]["steps"]
    made["recording"]["steps"] = []
    for number, factor in enumerate(steps):
        one = copy.deepcopy(step) | {"number": number}
        for name in ("step_ns", "window_ns", "compute_ns", "bubble_ns"):
            one[name] = round(step[name] * factor)
        made["recording"]["steps"].append(one)
    names = ("step_ns", "window_ns", "bubble_ns", "bubble_ratio", "cross_dc_bubble_ns")
    for result in made["results"]:
        by_step = [{name: result[name] * (1 if "ratio" in name else factor) for name in names} for factor in steps]
        result["each_step"] = [
            {name: value if "ratio" in name else round(value) for name, value in each.items()} | {"number": number}
            for number, each in enumerate(by_step)
        ]
    made["step"]["number"] = 0
    for result in made["results"]:
        result.update({name: result["each_step"][0][name] for name in names})
    made["run"]["digest"] = made["recording"]["digest"] = digest or path.stem
    path.write_text(json.dumps(made), encoding="utf-8")
    return path


def said(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> tuple[str, str]:
    assert run(["compare", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def as_json(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, code, *arguments, "--json")[0])
    _comparisons().validate(found)
    return found


@cache
def _comparisons() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "schemas" / "comparison.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def verdict(found: dict[str, Any], name: str) -> str:
    return str(next(line["verdict"] for line in found["lines"] if line["name"] == name))
