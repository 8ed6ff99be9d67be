"""Traces and Runs on object stores, by fsspec's file system in memory."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest
from helpers.recorded import ROOT, derived, run_of
from helpers.spoiled_files import FORMATS

from tracetool.cli import run as command
from tracetool.errors import AlreadyExists, BadQuery, IngestError, StoreError
from tracetool.ingestion import ingest
from tracetool.ingestion.runs import derive
from tracetool.model.notice import Silent
from tracetool.store import as_path
from tracetool.store.objects import Objects, remove_objects
from tracetool.store.run import Run
from tracetool.stragglers import find_stragglers
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("upath")

FOUR_RANKS = ROOT / "tests" / "data" / "megatron-vpp2"


@pytest.fixture
def bucket() -> Iterator[Path]:
    """A bucket with the four ranks of a small recording."""
    folder = as_path("memory://bucket")
    for path in sorted((FOUR_RANKS).glob("*.gz")):
        target = folder / "traces" / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    yield folder
    remove_objects(folder, Objects(folder, is_absent=True).sizes)


def test_from_and_to_a_bucket(bucket: Path) -> None:
    run = ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    here = run_of(FOUR_RANKS)
    for table in ("events", "comms", "steps"):
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


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_as_from_a_folder(name: str, bucket: Path, tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    FORMATS[name](tmp_path / "traces")
    for file in (tmp_path / "traces").rglob("*"):
        if file.is_file():
            target = bucket / "others" / file.relative_to(tmp_path / "traces").as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    there, here = (
        ingest(["memory://bucket/others"], tmp_path / "there.run"),
        ingest([tmp_path / "traces"], tmp_path / "x.run"),
    )
    for table in TABLES:
        if table not in ("sources", "problems"):
            assert there.table(table).equals(here.table(table)), table
    named = there.table("sources").column("path").to_pylist()
    assert all(path.startswith("memory://bucket/others") for path in named)
    cut = len(str(tmp_path / "traces"))
    assert [path.removeprefix("memory://bucket/others") for path in named] == [
        path[cut:] for path in here.table("sources").column("path").to_pylist()
    ]


def test_what_opens_like_no_trace_is_copied_only_if_it_is_small(bucket: Path, tmp_path: Path) -> None:
    (bucket / "traces" / "weights.pt").write_bytes(b"PK\x03\x04\0\0" + bytes(5 << 20))
    (bucket / "traces" / "small.pt").write_bytes(b"PK\x03\x04\0\0")
    run = ingest(["memory://bucket/traces"], tmp_path / "z.run")
    assert run.rows("SELECT path, reason FROM sources WHERE status = 'left' ORDER BY path") == [
        ("memory://bucket/traces/small.pt", "no trace of a known format"),
        ("memory://bucket/traces/weights.pt", "not copied from there: it opens like no trace"),
    ]
    assert "PK" not in {file.read_bytes()[:2].decode("latin1") for file in Objects(bucket / "traces").folder.glob("w*")}


def test_an_object_that_changes_is_copied_anew(bucket: Path, tmp_path: Path) -> None:
    ingest(["memory://bucket/traces"], tmp_path / "x.run")
    (bucket / "traces" / "rank3.json.gz").unlink()
    changed = (FOUR_RANKS / "rank1.json.gz").read_bytes() + b"\0"
    (bucket / "traces" / "rank1.json.gz").write_bytes(changed)
    run = ingest(["memory://bucket/traces"], tmp_path / "y.run")
    assert run.rows("SELECT rank, size_bytes FROM sources ORDER BY rank")[1] == (1, len(changed))
    assert run.manifest["missing_ranks"] == [3]


def test_a_question_copies_what_it_needs(bucket: Path) -> None:
    ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    run = Run("memory://bucket/x.run")

    def copies() -> set[str]:
        return {file.relative_to(run.folder).as_posix() for file in run.folder.rglob("*") if file.is_file()}

    assert copies() == {"manifest.json"}
    assert run.rows("SELECT count(*) FROM ranks") == [(4,)]
    assert copies() == {"manifest.json", "ranks/run.parquet"}
    assert len(run.table("comms", ["rank"])) == run.count("comms")
    assert copies() == {"manifest.json", "ranks/run.parquet", "comms/source-00000-00003.parquet"}


def test_a_list_of_what_there_is_copies_nothing(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    assert command(["sql", "memory://bucket/x.run", "--json"]) == 0
    listed = {(each["name"], each["column_name"]): each for each in json.loads(capsys.readouterr().out)["columns"]}
    assert not (run.folder / "events").exists()
    # DuckDB says of the Run's own files which columns there are, and of which types.
    rows = run.rows("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal")
    assert {(table, column): kind for table, column, kind in rows} == {
        name: each["data_type"] for name, each in listed.items()
    }
    assert all(each["doc"] and each["column_doc"] for each in listed.values())


def test_progress_is_told_of_what_is_copied(bucket: Path, tmp_path: Path) -> None:
    class Told(Silent):
        def __init__(self) -> None:
            self.starts, self.done = list[int](), 0

        def start(self, total: int) -> None:
            self.starts.append(total)

        def advance(self, count: int) -> None:
            self.done += count

    told = Told()
    for file in Objects(bucket / "traces").folder.glob("*"):
        file.unlink()
    ingest(["memory://bucket/traces"], tmp_path / "told.run", progress=told)
    size = sum(file.stat().st_size for file in (FOUR_RANKS).glob("*.gz"))
    assert (told.starts, told.done) == ([size, size], 2 * size)


def test_a_run_that_is_replaced_is_not_mixed_with_its_successor(bucket: Path) -> None:
    before = ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    assert before.count("ranks") == 4
    again = ingest(["memory://bucket/traces"], "memory://bucket/x.run", force=True)
    with pytest.raises(StoreError, match="changed while it was read"):
        before.count("steps")
    assert again.count("ranks") == 4
    after = ingest(["memory://bucket/traces/rank0.json.gz"], "memory://bucket/x.run", force=True)
    assert after.count("ranks") == 1
    assert before.count("ranks") == again.count("ranks") == 4
    with pytest.raises(StoreError, match="changed while it was read"):
        again.count("comms")
    assert Run("memory://bucket/x.run").count("comms") == after.count("comms")


def test_a_run_takes_derived_tables_there(bucket: Path) -> None:
    run = ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    assert run.count("ops") == 0
    run.keep("thing", [1, 2])
    derive(run)
    again = Run("memory://bucket/x.run")
    assert again.count("ops") == run.count("ops") > 0
    assert "reconstruction" in again.manifest
    assert again.kept("thing") == [1, 2]
    for table in ("ops", "transfers", "stages"):
        assert derived(FOUR_RANKS).table(table).equals(again.table(table))


def test_what_a_stopped_writer_left_is_no_run(
    bucket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest is put last: whoever is stopped before that left objects that nothing takes for a Run."""

    with monkeypatch.context() as patch:
        patch.setattr(cast("Any", bucket).fs, "put_file", _until_the_manifest(cast("Any", bucket).fs.put_file))
        patch.setattr("tracetool.store.objects.remove_objects", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            ingest(["memory://bucket/traces"], "memory://bucket/x.run", force=True)
    assert (bucket / "x.run" / "ranks" / "run.parquet").exists()
    assert command(["info", "memory://bucket/x.run"]) == 2
    assert "memory://bucket/x.run is a Run that was not finished." in capsys.readouterr().err
    with pytest.raises(AlreadyExists, match="was not finished") as caught:
        ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    assert "force" in str(caught.value.hint)
    assert ingest(["memory://bucket/traces"], "memory://bucket/x.run", force=True).count("ranks") == 4


def _until_the_manifest(put: Callable[..., None]) -> Callable[..., None]:
    def put_file(source: str, target: str, **options: object) -> None:
        if target.endswith("manifest.json"):
            raise KeyboardInterrupt
        put(source, target, **options)

    return put_file


def test_what_is_there_and_no_run_is_never_touched(bucket: Path) -> None:
    with pytest.raises(AlreadyExists, match="is no Run"):
        ingest(["memory://bucket/traces"], "memory://bucket/traces", force=True)
    (bucket / "notes" / "run.parquet").parent.mkdir()
    (bucket / "notes" / "run.parquet").write_bytes(b"x")
    with pytest.raises(AlreadyExists, match="is no Run"):
        ingest(["memory://bucket/traces"], "memory://bucket/notes", force=True)
    assert (bucket / "notes" / "run.parquet").read_bytes() == b"x"
    with pytest.raises(StoreError, match="is a pattern"):
        ingest(["memory://bucket/traces"], "memory://bucket/*.run", force=True)


def test_names_that_no_file_here_can_have_are_left(bucket: Path, tmp_path: Path) -> None:
    """An object's name is any text: none of them leads out of the folder of copies."""
    store = cast("Any", bucket).fs.store
    template = next(iter(store.values()))
    for name in ("/bucket/traces/../../../escaped.json", "/bucket/traces/a//b.json"):
        store[name] = type(template)(template.fs, name, b'{"traceEvents": []}')
    run = ingest(["memory://bucket/traces"], tmp_path / "x.run")
    left = run.rows("SELECT reason FROM sources WHERE status = 'left'")
    for name in ("/bucket/traces/../../../escaped.json", "/bucket/traces/a//b.json"):
        del store[name]
    assert [reason for (reason,) in left] == ["not copied from there: its name cannot be a file's here"] * 2


def test_the_commands_take_urls(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["ingest", "memory://bucket/traces", "-o", "memory://bucket/x.run", "-q"]) == 0
    assert command(["sql", "memory://bucket/x.run", "select count(*) as n from ranks", "--format", "csv"]) == 0
    assert capsys.readouterr().out.endswith("n\n4\n")
    assert command(["info", "nosuch://bucket/x.run"]) == 2
    assert "nosuch://bucket/x.run cannot be opened" in capsys.readouterr().err


def test_what_refuses_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As s3fs says that there is no bucket, and that it may not look."""

    store = import_module("fsspec.implementations.memory").MemoryFileSystem

    for error, told, hint in (
        (FileNotFoundError("No such bucket"), "x.run cannot be written: No such bucket", "make the bucket first"),
        (PermissionError("Forbidden"), "x.run cannot be read: Forbidden", "check credentials and address"),
    ):

        def refuse(*_: object, _error: Exception = error, **__: object) -> NoReturn:
            raise _error

        with monkeypatch.context() as patch:
            patch.setattr(store, "find", refuse)
            with pytest.raises(StoreError, match=told) as caught:
                ingest([FOUR_RANKS], "memory://nowhere/x.run")
        assert hint in (caught.value.hint or "")


def test_a_question_puts_nothing_on_an_object_store(bucket: Path) -> None:
    """What a Run here keeps for the next question would need the right to write there."""
    ingest(["memory://bucket/traces"], "memory://bucket/x.run")
    before = Objects(bucket).sizes
    assert find_stragglers(Run("memory://bucket/x.run")).steps
    assert Objects(bucket).sizes == before


def test_a_dry_run_names_what_it_leaves_by_its_url(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bucket / "traces" / "notes.txt").write_bytes(b"x")
    assert command(["ingest", "memory://bucket/traces", "--dry-run"]) == 0
    assert "  memory://bucket/traces/notes.txt: no trace of a known format" in capsys.readouterr().out.splitlines()
