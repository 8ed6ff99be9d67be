"""Where recorded traces are, and Runs made of them."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.capture.account import Account, Finding

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
    run = ingest([folder], Path(mkdtemp(prefix="tracetool-test-")) / "x.run")
    _as_read.add(run.path)
    return run


_as_read: set[Path] = set()


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
    return reconstruct_once(run, step=step, pipeline=pipeline, use_labels=use_labels)


def reconstruct_once(run: Run, *, account: Account | None = None, **how: Any) -> Reconstruction:
    """``reconstruct``, once per test process for the same question of the same Run.

    Runs that tests never change, those of ``run_of`` and of the cache, are the same where they were read from the same.
    """
    given = {"step": None, "pipeline": 0, "copy_missing": False, "use_labels": True, "every_step": False} | how
    # A survey is the Run's own, but what it noted when it was made is not noted again.
    given["survey"] = given.get("survey") is not None
    before = None if account is None else (tuple(account.notes), tuple(account.findings))
    key = _content(run), *sorted(given.items()), before
    if key not in _known:
        own = Account() if account is None else account
        found = reconstruct(run, account=own, **how)
        _known[key] = found, tuple(own.notes), tuple(own.findings)
    found, notes, findings = _known[key]
    if account is not None:
        account.notes[:], account.findings[:] = notes, findings
    return found


_known: dict[object, tuple[Reconstruction, tuple[str, ...], tuple[Finding, ...]]] = {}


def _content(run: Run) -> tuple[str, ...]:
    manifest = run.manifest
    read = json.dumps([manifest.get("digest"), manifest.get("sources"), manifest.get("missing_ranks")])
    unchanged = run.path.parent == Path(os.environ["TRACETOOL_CACHE"]) or run.path in _as_read
    return (read,) if unchanged else (read, str(run.path))


def rebuilt(name: str, *, step: int | None = None, pipeline: int = 0, use_labels: bool = True) -> Reconstruction:
    """What is reconstructed from one of the recorded H100 configurations, once per test process."""
    return looked_at(h100(name), step=step, pipeline=pipeline, use_labels=use_labels)
