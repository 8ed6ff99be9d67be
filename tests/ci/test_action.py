"""The GitHub Action's and the GitLab snippet's shell steps, run here as their runners would."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from helpers.recorded import ROOT
from helpers.thorough import is_asked

if TYPE_CHECKING:
    from collections.abc import Mapping

HIDDEN = ROOT / ".github"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


ACTION = _read(HIDDEN / "actions" / "tracetool" / "action.yml")
(JOB,) = _read(HIDDEN / "workflows" / "tracetool.yml")["jobs"].values()
(USE,) = [step["with"] for step in JOB["steps"] if step.get("uses") == "./.github/actions/tracetool"]


def _environment(folder: Path) -> dict[str, str]:
    """What a runner sets, with this interpreter's ``tracetool`` on the PATH and no package to install."""
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GITHUB_OUTPUT": str(folder / "output.txt"),
        "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
    }


def _run(script: str, folder: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    bash = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script]
    return subprocess.run(
        bash, cwd=folder, env={**_environment(folder), **env}, capture_output=True, text=True, check=False
    )


def _act(folder: Path, *, begin: int = 0, **given: str) -> list[subprocess.CompletedProcess[str]]:
    """All steps of the action, or those from one on, until one fails; its inputs from the workflow, or as given."""
    inputs = {name: str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()} | USE | given
    done = []
    for step in ACTION["runs"]["steps"][begin:]:
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "expressions stand in env only, so that no input becomes a script"
        env = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: inputs[m[1]], text)
            for name, text in step["env"].items()
        }
        done.append(_run(step["run"], folder, env))
        if done[-1].returncode:
            break
    return done


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("sample_traces", ".github"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_workflow_passes_and_fails_by_its_baseline(checkout: Path) -> None:
    """By the stored baseline, by one that was 10 % shorter (the tool gate), with none yet, and told to allow that."""
    assert set(USE) <= set(ACTION["inputs"])
    done = _act(checkout, package="")
    assert [step.returncode for step in done] == [0] * 4, done[-1].stderr
    assert (checkout / "output.txt").read_text(encoding="utf-8").splitlines() == [
        "report=tracetool-report/report.json",
        "verdict=passed",
    ]
    assert "<!-- tracetool-compare -->" in (checkout / "summary.md").read_text(encoding="utf-8")
    assert (checkout / "tracetool-report" / "junit.xml").read_text(encoding="utf-8").startswith("<?xml")

    # The report is there: what differs is the comparison, the last step.
    mine = checkout / "kept" / "baseline.json"
    if is_asked():
        # That it becomes the first baseline: by default the one that is stored is changed.
        (first,) = _act(checkout, begin=3, baseline=str(mine))
        assert first.returncode == 0, first.stderr
        assert "::notice title=tracetool::there was no baseline" in first.stdout
    else:
        mine.parent.mkdir()
        shutil.copy(ROOT / USE["baseline"], mine)
    report = json.loads(mine.read_text(encoding="utf-8"))
    report["results"][-1]["step_ns"] = report["results"][-1]["step_ns"] * 9 // 10
    mine.write_text(json.dumps(report), encoding="utf-8")
    (again,) = _act(checkout, begin=3, baseline=str(mine))
    assert again.returncode == 1
    assert "::error" in again.stdout
    assert (checkout / "output.txt").read_text(encoding="utf-8").endswith("verdict=failed\n")
    if not is_asked():
        # What follows are answers of compare, which are tried by themselves, as the action passes them on.
        return
    (allowed,) = _act(checkout, begin=3, baseline=str(mine), compare="--informational --fail-on 'step_ns>+3%'")
    assert allowed.returncode == 0
    assert "::error" not in allowed.stdout
    before = (checkout / "summary.md").read_text(encoding="utf-8")
    (mistyped,) = _act(checkout, begin=3, baseline=str(mine), compare="--fail-on 'stepns>+3%'")
    assert mistyped.returncode == 2
    assert "::error title=tracetool::could not compare" in mistyped.stdout
    assert (checkout / "output.txt").read_text(encoding="utf-8").endswith("verdict=broken\n")
    assert (checkout / "summary.md").read_text(encoding="utf-8") == before, "no page of an earlier comparison"
    *_, other = _act(checkout, begin=2, baseline=str(mine), replay="--schedule 1f1b,geopipe")
    assert other.returncode == 1
    assert "the sides replayed different scenarios" in other.stdout


# It runs the same commands as the workflow's steps do (above), in one script.
@pytest.mark.thorough
def test_the_gitlab_snippet_runs(checkout: Path) -> None:
    job = _read(HIDDEN / "gitlab-ci.example.yml")["tracetool"]
    script = [line for line in job["script"] if "pip install" not in line]
    assert len(script) == len(job["script"]) - 1
    done = _run("\n".join(script), checkout, job["variables"])
    assert done.returncode == 0, done.stderr
    assert (checkout / job["artifacts"]["reports"]["junit"]).is_file()
