"""Where recorded traces are, and Runs made of them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import pytest

from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.reconstruction import Reconstruction, reconstruct

if TYPE_CHECKING:
    from tracetool.store.run import Run

ROOT = Path(__file__).resolve().parents[2]
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


def small(name: str) -> Run:
    """The Run of one of the small recordings in tests/data (its README says what they are)."""
    return run_of(ROOT / "tests" / "data" / name)


def looked_at(run: Run, *, step: int | None = None, pipeline: int = 0, use_labels: bool = True) -> Reconstruction:
    """What is reconstructed from a Run of ``run_of``, once per test process: it takes a second and stays the same."""
    return _looked_at(run, step, pipeline, use_labels)


@cache
def _looked_at(run: Run, step: int | None, pipeline: int, use_labels: bool) -> Reconstruction:
    return reconstruct(run, step=step, pipeline=pipeline, use_labels=use_labels)


def rebuilt(name: str, *, step: int | None = None, pipeline: int = 0, use_labels: bool = True) -> Reconstruction:
    """What is reconstructed from one of the recorded H100 configurations, once per test process."""
    return looked_at(h100(name), step=step, pipeline=pipeline, use_labels=use_labels)
