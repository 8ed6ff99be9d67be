"""Traces and Runs on object stores, by fsspec's file system in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, derived

from tracetool.cli import run as command
from tracetool.errors import AlreadyExists, BadQuery, IngestError
from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.store import as_path, remove_tree
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("upath")


@pytest.fixture
def bucket() -> Iterator[Path]:
    """A bucket with the four ranks of a sample."""
    folder = as_path("memory://bucket")
    for path in sorted((SAMPLES / "h100-1f1b").glob("*.gz")):
        target = folder / "traces" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    yield folder
    remove_tree(folder)


def test_from_and_to_a_bucket(bucket: Path) -> None:
    run = derive(ingest(["memory://bucket/traces"], "memory://bucket/x.run"))
    here = derived(SAMPLES / "h100-1f1b")
    for table in ("events", "comms", "steps", "ops", "transfers", "stages"):
        assert run.query(f"SELECT * FROM {table}").equals(here.query(f"SELECT * FROM {table}")), table
    assert Run(as_path("memory://bucket/x.run")).manifest == run.manifest
    with pytest.raises(BadQuery):
        run.query("SELECT * FROM read_parquet('memory://bucket/traces/rank0.json.gz')")
    with pytest.raises(AlreadyExists):
        ingest(["memory://bucket/traces"], "memory://bucket/x.run")


def test_what_fails_leaves_nothing(bucket: Path) -> None:
    (bucket / "traces" / "rank1.json.gz").write_bytes((bucket / "traces" / "rank0.json.gz").read_bytes())
    with pytest.raises(IngestError, match="both say rank 0"):
        ingest(["memory://bucket/traces"], "memory://bucket/y.run")
    (bucket / "bad" / "rank0.json").parent.mkdir()
    (bucket / "bad" / "rank0.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(IngestError, match="holds no events"):
        ingest(["memory://bucket/bad"], "memory://bucket/y.run")
    assert not (bucket / "y.run").exists()


def test_other_formats_are_left_with_the_reason(bucket: Path) -> None:
    (bucket / "traces" / "kernel_details.csv").write_bytes(b"Name,Start Time(us),Duration(us)\nx,1,2\n")
    run = ingest(["memory://bucket/traces"], "memory://bucket/z.run")
    ((reason,),) = run.rows("SELECT reason FROM sources WHERE status = 'left'")
    assert "read from this machine only" in reason


def test_the_commands_take_urls(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["ingest", "memory://bucket/traces", "-o", "memory://bucket/x.run", "-q"]) == 0
    assert command(["sql", "memory://bucket/x.run", "select count(*) as n from ranks", "--format", "csv"]) == 0
    assert capsys.readouterr().out.endswith("n\n4\n")
    assert command(["info", "nosuch://bucket/x.run"]) == 2
    assert "nosuch://bucket/x.run cannot be opened" in capsys.readouterr().err
