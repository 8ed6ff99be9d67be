"""Where recorded traces are, and Runs made of them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from tracetool.ingest import ingest
from tracetool.reconstruct import Reconstruction, reconstruct
from tracetool.runs import derive

if TYPE_CHECKING:
    from tracetool.store import Run

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_traces"


def data(*parts: str) -> Path:
    """A path in the shared data; skips the test where there is none."""
    folder = Path(os.environ.get("TRACETOOL_DATA", ROOT.parent / "shared" / "data"))
    path = folder.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no {path.name}: the recorded traces are not here (set TRACETOOL_DATA)")
    return path


@cache
def run_of(folder: Path) -> Run:
    """The Run of a folder of traces, made once per test process."""
    return ingest([folder], Path(mkdtemp(prefix="tracetool-test-")) / "x.run")


@cache
def derived(folder: Path) -> Run:
    """The same with the tables that reconstruction fills in."""
    return derive(run_of(folder))


def h100(name: str) -> Run:
    """The Run of one of the recorded H100 configurations."""
    return run_of(data("h100-pp4", "traces", name))


@cache
def rebuilt(name: str, **how: Any) -> Reconstruction:
    """What is reconstructed from one of the recorded H100 configurations, once per test process."""
    return reconstruct(h100(name), **how)


def small(name: str) -> Run:
    """The Run of one of the small recordings in tests/data (its README says what they are)."""
    return run_of(ROOT / "tests" / "data" / name)
