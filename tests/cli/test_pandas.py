"""Pandas is not loaded by what does not need it: Arrow would, for its first array, in a third of a second."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from helpers.recorded import ROOT
from helpers.thorough import some

if TYPE_CHECKING:
    from pathlib import Path

_LOADED = "print('pandas was loaded')"


def _output(folder: Path, *words: str) -> str:
    """What a process of its own prints that finds a pandas which says so when it is loaded."""
    (folder / "pandas.py").write_text(_LOADED)
    paths = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "TRACETOOL_CACHE": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert not done.returncode, done.stderr
    return done.stdout


def test_commands_that_read_traces_leave_it(tmp_path: Path) -> None:
    text = _output(tmp_path, "-m", "tracetool", "info", str(ROOT / "tests" / "data" / "ckpt_reentrant"))
    assert "1f1b" in text
    assert "pandas was loaded" not in text


def test_who_asks_for_it_gets_it(tmp_path: Path) -> None:
    """OR-tools does, whether Arrow was loaded before or not."""
    arrow = "import pyarrow as pa; pa.array([1])"
    for words in some(("leave_pandas(); " + arrow, arrow.partition(";")[0] + "; leave_pandas(); pa.array([1])"), 1):
        text = _output(
            tmp_path, "-c", f"from tracetool.tables import leave_pandas; {words}; print('then'); import pandas"
        )
        assert text.split("\n")[:2] == ["then", "pandas was loaded"]
