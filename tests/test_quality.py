"""The house rules that a machine can check."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.recorded import ROOT

TOOLS = {
    "ruff": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "import-linter": ["importlinter.cli", "lint"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_clean(name: str) -> None:
    module, *arguments = TOOLS[name]
    if module == "importlinter.cli":
        code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
        command = [sys.executable, "-c", code]
    else:
        command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("tracetool", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    }
    assert long == {}
