"""Where recorded traces are, and Runs made of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shutil import copytree, rmtree
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from helpers.made_traces import write_job
from helpers.shared import once, place_of

from tracetool.ingestion import ingest, write_run
from tracetool.ingestion.runs import derive
from tracetool.ingestion.runs import ingest as ingest_run
from tracetool.model.notice import Notice
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.capture import Account, Finding
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from helpers.made_job import MadeJob

    from tracetool.ingestion.discover import Discovery
    from tracetool.store.query import Lens, Parameters, Views

OWN_CACHE = "TRACETOOL_TESTS_CACHE"
"""Names the cache that commands of this worker have unless a test gives them one, in the environment."""

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
    """The Run of a folder of traces, made once in a run of the tests."""
    return _kept(lambda path: ingest([folder], path), "read", _files(folder))


def made(job: MadeJob, *, ranks: Sequence[int] | None = None) -> Run:
    """The Run of a made job, or of its ranks that were recorded, with all tables; made once in a run of the tests."""

    def make(path: Path) -> Run:
        with TemporaryDirectory() as folder:
            write_job(Path(folder), job, ranks=ranks)
            return ingest_run(folder, path)

    return _kept(make, "made", repr(job), ranks)


_as_read: set[Path] = set()


@cache
def derived(folder: Path) -> Run:
    """The same with the tables that reconstruction fills in."""

    def make(path: Path) -> Run:
        copied = Run(Path(copytree(run_of(folder).path, path)))
        _as_read.add(path)
        return derive(copied)

    return _kept(make, "derived", _files(folder))


def _kept(make: Callable[[Path], Run], *key: object) -> Run:
    with place_of(*key) as place:
        path = (Path(mkdtemp(prefix="tracetool-test-")) if place is None else place) / "x.run"
        run = Run(path) if path.exists() else make(path)
    _as_read.add(run.path)
    return run


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """What tells two folders apart: their files' paths, sizes and times."""
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    stats = [(file, file.stat()) for file in files if file.is_file()]
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def write_once(discovery: Discovery, output: Path, **how: Any) -> Run:
    """``write_run``, into the cache of this worker from what another one has read of the same content."""
    with _of_the_cache("written", output) as kept:
        if kept is not None and kept.exists():
            return Run(copytree(kept, output))
        run = write_run(discovery, output, **how)
        if kept is not None:
            copytree(output, kept)
        return run


def derive_once(run: Run) -> Run:
    """``derive``, likewise."""
    with _of_the_cache("derived", run.path) as kept:
        if kept is not None and kept.exists():
            rmtree(run.path)
            return Run(copytree(kept, run.path), name=run.name)
        derive(run)
        if kept is not None:
            copytree(run.path, kept)
        return run


@contextmanager
def _of_the_cache(what: str, path: Path) -> Iterator[Path | None]:
    """Where a Run of this worker's cache is kept for the others; None of any other Run.

    The cache names a Run by the content that it is of.
    """
    if path.parent == Path(os.environ.get(OWN_CACHE, os.devnull)):
        with place_of(what, path.name) as kept:
            yield kept
    else:
        yield None


def h100(name: str) -> Run:
    """The Run of one of the recorded H100 configurations."""
    return run_of(data("h100-pp4", "traces", name))


def small(name: str) -> Run:
    """The Run of one of the small recordings in tests/data (its README says what they are)."""
    return run_of(ROOT / "tests" / "data" / name)


def looked_at(run: Run, *, step: int | None = None, pipeline: int = 0, use_labels: bool = True) -> Reconstruction:
    """What is reconstructed from a Run of ``run_of``, once in a run of the tests: that takes a second."""
    return reconstruct_once(run, step=step, pipeline=pipeline, use_labels=use_labels)


def reconstruct_once(run: Run, *, account: Account | None = None, **how: Any) -> Reconstruction:
    """``reconstruct``, once in a run of the tests for the same question of the same Run.

    Runs that tests never change, those of ``run_of`` and of the cache, are the same where they were read from the same.
    """
    given = {"step": None, "pipeline": 0, "copy_missing": False, "use_labels": True, "every_step": False} | how
    # A survey is the Run's own, but what it noted when it was made is not noted again.
    given["survey"] = given.get("survey") is not None
    before = None if account is None else (tuple(account.notes), tuple(account.findings))
    key = _content(run), *sorted(given.items()), before

    def make() -> _Reconstructed:
        # Asked without any wish, a Run gives what it keeps.
        found = reconstruct(run, **how) if account is None else reconstruct(run, account=account, **how)
        return found, *(
            (found.notes, found.findings) if account is None else (tuple(account.notes), tuple(account.findings))
        )

    if key not in _known:
        _known[key] = once(make, "reconstructed", key)
    found, notes, findings = _known[key]
    if account is not None:
        account.notes[:], account.findings[:] = notes, findings
    return found


_Reconstructed = tuple[Reconstruction, tuple[Notice, ...], tuple[Finding, ...]]
_known: dict[object, _Reconstructed] = {}


def _content(run: Run) -> tuple[str, ...]:
    manifest = run.manifest
    read = json.dumps([manifest.get("digest"), manifest.get("sources"), manifest.get("missing_ranks")])
    if run.is_overlaid:
        return read, str(run.path), json.dumps(run.sources)
    return (read,) if _is_never_changed(run) else (read, str(run.path))


def _is_never_changed(run: Run) -> bool:
    return run.path.parent == Path(os.environ.get("TRACETOOL_CACHE", os.devnull)) or run.path in _as_read


_Rows = tuple[list[str], list[tuple[Any, ...]]]
_MOST_ROWS = 2_000


def fetched_once(fetch: Callable[..., _Rows]) -> Callable[..., _Rows]:
    """The rows of a query, once per worker for the same question of the same Run: each command opens its Run anew.

    Of Runs that tests never change, those of ``run_of`` and of the cache; larger answers are fetched again.
    """
    known: dict[object, _Rows] = {}

    def fetched(run: Lens, sql: str, parameters: Parameters) -> _Rows:
        if not isinstance(run, Run) or not _is_never_changed(run):
            return fetch(run, sql, parameters)
        asked = tuple(parameters.items() if isinstance(parameters, Mapping) else parameters or ())
        key = repr((run.path, run.size_bytes, sorted(run.sources.items()), sql, asked))
        if key not in known:
            columns, rows = fetch(run, sql, parameters)
            if len(rows) > _MOST_ROWS:
                return columns, rows
            known[key] = columns, rows
        columns, rows = known[key]
        return columns, [*rows]

    return fetched


_MOST_OPEN = 12


def views_once(make: Callable[[Run], Views]) -> Callable[[Run], Views]:
    """The views of a Run, once per worker for the same files of it: each DuckDB takes 40 ms of a processor to begin.

    Of Runs that tests never change; queries only read, so none tells who asked before.
    """
    known: dict[object, Views] = {}

    def viewed(run: Run) -> Views:
        # What begins with a dot is being written.
        if not _is_never_changed(run) or run.path.name.startswith("."):
            return make(run)
        key = repr((run.path, run.size_bytes, sorted(run.sources.items()), run._is_held))
        views = known.pop(key) if key in known else make(run)
        known[key] = views
        if len(known) > _MOST_OPEN:
            del known[next(iter(known))]
        return views

    return viewed


def rebuilt(name: str, *, step: int | None = None, pipeline: int = 0, use_labels: bool = True) -> Reconstruction:
    """What is reconstructed from one of the recorded H100 configurations, once per test process."""
    return looked_at(h100(name), step=step, pipeline=pipeline, use_labels=use_labels)
