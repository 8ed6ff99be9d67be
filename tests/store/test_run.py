"""A Run on disk: whole or not there, and read-only for queries."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from helpers.recorded import SAMPLES, derived, run_of
from helpers.thorough import spread

from tracetool import store
from tracetool.causes import idle_by_cause, mean_by_cause
from tracetool.errors import AlreadyExists, BadQuery, NotARun, SchemaVersion, StoreError
from tracetool.ingestion import ingest
from tracetool.model.scenario import Scenario
from tracetool.readers import rows_table
from tracetool.reconstruction import reconstruct
from tracetool.store import PartWriter, read_parts, sources_of, write_part
from tracetool.store.run import Run, RunWriter
from tracetool.tables.run import SCHEMA_VERSION, TABLES
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from pathlib import Path

STEP_ROW = (0, 3, 10, 20, None, None)


def _written(path: Path, **manifest: object) -> Run:
    with RunWriter(path) as writer:
        writer.commit({"digest": "x", **manifest}, {"steps": rows_table("steps", [STEP_ROW])})
    return Run(path)


def test_what_is_written_is_read_back_and_every_table_exists(tmp_path: Path) -> None:
    run = _written(tmp_path / "x.run")
    assert run.rows("SELECT * FROM steps") == [STEP_ROW]
    assert {p.parent.name for p in run.path.glob("*/*.parquet")} == set(TABLES)
    assert run.rows("SELECT count(*) FROM events") == [(0,)]


@pytest.mark.parametrize("name", ["run [1]", "a*b?c", "[x", "it's"])
def test_folders_may_be_named_by_what_patterns_are_made_of(name: str, tmp_path: Path) -> None:
    assert _written(tmp_path / name / "x.run").rows("SELECT * FROM steps") == [STEP_ROW]


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunWriter(tmp_path / "x.run") as writer:  # noqa: PT012 - the block is the case
        write_part(writer.folder, "steps", rows_table("steps", [STEP_ROW]))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No space left"), RunWriter(tmp_path / "x.run"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_fails_leaves_no_row_and_those_beside_it_lose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small ones share a file as long as their numbers follow each other; of a large one rows were written before."""
    monkeypatch.setattr(store, "_GROUP_ROWS", 5)
    with PartWriter(tmp_path) as parts:
        for number, rows, fails in (
            (0, 1, False),
            (1, 2, False),
            (2, 1, True),
            (3, 1, False),
            (4, 7, True),
            (5, 7, False),
        ):
            with suppress(ZeroDivisionError), parts.source(number) as writer:
                for step in range(rows):
                    writer.write("steps", rows_table("steps", [(number, step, 10, 20, None, None)]))
                assert (tmp_path / "steps" / f"source-{number:05d}.parquet").exists() == (rows == 7)
                if fails:
                    raise ZeroDivisionError
    written = sorted((tmp_path / "steps").iterdir())
    assert [file.stem for file in written] == ["source-00000-00001", "source-00003", "source-00005"]
    assert sorted(parts.files) == written
    assert read_parts(written, "steps", ["rank"])["rank"].to_pylist() == [0, 1, 1, 3, *[5] * 7]
    assert [list(sources_of(part)) for part in ("source-00003", "source-00000-00002", "run")] == [[3], [0, 1, 2], []]


def test_an_existing_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    _written(tmp_path / "x.run", digest="old")
    with pytest.raises(AlreadyExists, match="exists"):
        RunWriter(tmp_path / "x.run")
    with RunWriter(tmp_path / "x.run", force=True) as writer:
        writer.commit({"digest": "new"}, {})
    assert Run(tmp_path / "x.run").manifest["digest"] == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["x.run"]


def test_a_folder_that_is_no_run_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(AlreadyExists, match="is no Run"):
        RunWriter(tmp_path / "notes", force=True)


def test_damaged_and_foreign_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=r"manifest\.json"):
        Run(tmp_path)
    run = _written(tmp_path / "x.run")
    manifest = run.path / "manifest.json"
    manifest.write_text(json.dumps({"schema_version": "99.0"}), encoding="utf-8")
    with pytest.raises(SchemaVersion, match=r"99\.0"):
        Run(run.path)
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(NotARun, match="damaged"):
        Run(run.path)
    manifest.write_text(json.dumps({"schema_version": SCHEMA_VERSION}), encoding="utf-8")
    (run.path / "ops" / "run.parquet").unlink()
    with pytest.raises(NotARun, match="lacks ops"):
        Run(run.path)


def test_a_run_that_lost_files_of_some_ranks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if those ranks had not been recorded, it would answer with fewer of them."""
    monkeypatch.setattr(store, "_GROUP_ROWS", 1)
    run = ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run")
    (run.path / "events" / "source-00002.parquet").unlink()
    with pytest.raises(NotARun, match=r"x\.run lacks events/source-00002\.parquet\."):
        Run(run.path)
    for number in range(4):
        (run.path / "memory" / f"source-{number:05d}.parquet").unlink()
        (run.path / "steps" / f"source-{number:05d}.parquet").unlink(missing_ok=number > 0)
    with pytest.raises(NotARun, match=r"lacks memory, steps, events/source-00002\.parquet\."):
        Run(run.path)
    for content in (5, "x", None):
        manifest = run.manifest | {"files": content}
        (run.path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
        with pytest.raises(NotARun):
            Run(run.path)


def test_a_run_that_does_not_list_its_files_opens(tmp_path: Path) -> None:
    run = ingest([SAMPLES / "h100-1f1b"], tmp_path / "x.run")
    manifest = {name: value for name, value in run.manifest.items() if name != "files"}
    (run.path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert Run(run.path).count("ranks") == 4


@pytest.mark.parametrize(
    "sql",
    [
        "COPY events TO 'stolen.csv'",
        "SELECT * FROM read_csv('/etc/hostname')",
        "SELECT * FROM 'events.parquet'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "EXPORT DATABASE 'stolen'",
        "SELECT * FROM TABLES",
    ],
)
def test_queries_reach_no_files_and_change_no_settings(
    sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(run_of(SAMPLES / "h100-1f1b").path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadQuery):
        run.query(sql)
    assert list(tmp_path.iterdir()) == []


# Each looks at the catalog in another way.
@spread(
    "sql",
    [
        'SELECT count(*) FROM "OPS"',
        "SELECT count(*) FROM bubbles_by_cause",
        "WITH busy AS (SELECT rank, start_ns, start_ns + duration_ns AS end_ns FROM ops) "
        "SELECT count(*) FROM interval_union('busy')",
        "SELECT count(*) FROM query_table('op' || 's')",
        "SELECT count(*) FROM duckdb_views() WHERE NOT internal",
        "SELECT count(*) FROM duckdb_functions() WHERE function_name = 'overlap_ns'",
        "SELECT count(*) FROM information_schema.tables",
        "SELECT count(*) FROM (SHOW TABLES)",
    ],
    3,
)
def test_a_first_query_sees_all_that_later_ones_do(sql: str) -> None:
    """Views and macros are made when a query names them; one that lists them finds all."""
    path = derived(SAMPLES / "h100-1f1b").path
    later = Run(path)
    assert later.connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchone() != (0,)
    first = Run(path).rows(sql)
    assert first == later.rows(sql)
    assert first[0][0] > 0


def test_a_mistyped_table_is_answered_with_candidates() -> None:
    with pytest.raises(BadQuery, match=r"\bbubbles\b"):
        Run(run_of(SAMPLES / "h100-1f1b").path).query("SELECT count(*) FROM bubblse")


def test_a_mistyped_column_is_answered_with_candidates() -> None:
    with pytest.raises(BadQuery, match="start_ns"):
        run_of(SAMPLES / "h100-1f1b").query("SELECT strat_ns FROM events")


def test_a_run_is_opened_by_a_path_or_its_text(tmp_path: Path) -> None:
    run = _written(tmp_path / "x.run")
    assert Run(str(run.path)).rows("SELECT * FROM steps") == [STEP_ROW]
    with pytest.raises(NotARun, match="nowhere is no Run"):
        Run("nowhere")


def test_a_run_seen_through_queries_keeps_the_rest_and_the_files(tmp_path: Path) -> None:
    run = _written(tmp_path / "x.run")
    later = run.overlay({"steps": "SELECT * REPLACE (step + 1 AS step) FROM {recorded}"})
    latest = later.overlay({"steps": "SELECT * FROM {recorded} UNION ALL SELECT * FROM {recorded} WHERE step = 4"})
    assert later.rows("SELECT step FROM steps") == [(4,)]
    assert latest.rows("SELECT step FROM steps") == [(4,), (4,)]
    assert run.rows("SELECT * FROM steps") == [STEP_ROW]
    with pytest.raises(BadQuery):
        run.overlay({"steps": "SELECT nothing FROM {recorded}"}).rows("SELECT * FROM steps")


def test_a_run_of_an_older_minor_version_has_what_came_later_empty() -> None:
    """Schema 4.0 had no table idles: bubbles are whole intervals there, without causes, and sum to the same."""
    run = Run(derived(SAMPLES / "h100-1f1b").path)
    older = Run(run.path)
    older._later = frozenset({"idles"})
    assert older.rows("SELECT count(*) FROM idles") == [(0,)]
    sums = "SELECT rank, sum(duration_ns)::BIGINT FROM bubbles GROUP BY rank ORDER BY rank"
    assert older.rows(sums) == run.rows(sums)
    assert older.rows("SELECT DISTINCT cause FROM bubbles") == [(None,)]
    (bubble,) = run.rows("SELECT value::BIGINT FROM metrics WHERE metric = 'bubble_ns'")
    assert run.rows("SELECT sum(mean_ns)::BIGINT FROM bubbles_by_cause") == [bubble]
    # The view rounds as mean_by_cause does, over the sums of ranks.
    observed = answer(reconstruct(run), ["observed"], Scenario())
    means = mean_by_cause(idle_by_cause(observed.observed_idles, len(observed.observed.global_ranks)))
    rows = run.rows("SELECT cause, mean_ns FROM bubbles_by_cause")
    assert dict(rows) == {cause.value: mean for cause, mean in means.items() if cause.value in dict(rows)}
