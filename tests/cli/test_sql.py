"""tracetool sql: several Runs, every form, files; and what queries must not reach."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import duckdb
import polars as pl
import pytest
from helpers.recorded import ROOT, SAMPLES, derived
from helpers.thorough import is_asked, some, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.cli import run
from tracetool.errors import BadQuery
from tracetool.store.catalog import Catalog, names_for, save_database
from tracetool.store.query import Example, examples, sql_text
from tracetool.store.run import Run
from tracetool.tables.results import OF_A_PREDICTION

SAMPLE = str(SAMPLES / "h100-1f1b")
OTHER = str(SAMPLES / "ascend-1f1b")
COUNT = "select rank, count(*) as n from ops where stage >= 0 group by rank order by rank"

Interval = tuple[int, int]
intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


def _moments(spans: list[Interval]) -> set[int]:
    """Each whole ns that is covered."""
    return {moment for start, length in spans for moment in range(start, start + length)}


@cache
def _with_macros() -> duckdb.DuckDBPyConnection:
    client = duckdb.connect(":memory:")
    client.execute(sql_text("macros"))
    return client


@given(intervals, intervals)
def test_interval_macros_agree_with_sets_of_moments(one: list[Interval], other: list[Interval]) -> None:
    client = _with_macros()
    for name, spans in (("one", one), ("other", other)):
        client.execute(f"CREATE OR REPLACE TABLE {name} (rank INTEGER, start_ns BIGINT, end_ns BIGINT)")
        if spans:
            rows = ", ".join(f"(0, {start}, {start + length})" for start, length in spans)
            client.execute(f"INSERT INTO {name} VALUES {rows}")

    def found(call: str) -> set[int]:
        rows = client.execute(f"SELECT start_ns, end_ns - start_ns, duration_ns FROM {call}").fetchall()
        assert all(length == duration for _, length, duration in rows)
        assert sum(length for _, length, _ in rows) == len(_moments([row[:2] for row in rows])), "they do not overlap"
        return _moments([row[:2] for row in rows])

    here, there = _moments(one), _moments(other)
    assert found("interval_union(one)") == here
    assert found("interval_gaps(one)") == (set(range(min(here), max(here))) - here if here else set())
    assert found("interval_overlap(one, other)") == here & there


@pytest.mark.parametrize("example", examples(), ids=lambda one: one.question)
def test_every_example_answers_on_a_sample(example: Example) -> None:
    assert not derived(SAMPLES / "h100-1f1b").query(example.query).is_empty()


@cache
def _beside_itself() -> Catalog:
    sample = derived(SAMPLES / "h100-1f1b")
    return Catalog({"a": sample, "b": sample})


@cache
def _beside_another() -> Catalog:
    return Catalog({"h100_1f1b": derived(SAMPLES / "h100-1f1b"), "npu": derived(SAMPLES / "ascend-1f1b")})


# Each example groups by other columns.
@spread("example", examples("several"), 1, ids=lambda one: one.question)
def test_every_example_of_several_tells_them_apart(example: Example) -> None:
    """The sample beside itself: every figure of the one is that of the other."""
    found = _beside_itself().query(example.query)
    if "run" not in found.columns:
        assert found["apart_ms"].to_list() == [0] * len(found)
        assert all(pair.split(", ")[0][2:] == pair.split(", ")[1][2:] for pair in found["ms"])
        return
    one, other = (found.filter(run=name).drop("run") for name in ("a", "b"))
    assert not one.is_empty()
    assert one.equals(other)


def test_there_are_ten_examples_and_the_cookbook_has_them() -> None:
    cookbook = (ROOT / "schemas" / "README.md").read_text(encoding="utf-8")
    assert len(examples()) >= 10
    assert all(one.query in cookbook for one in (*examples(), *examples("several")))


def test_ranks_of_several_runs_are_several_in_the_interval_macros() -> None:
    """One Run beside itself has twice the intervals of the one, none united with or hidden by those of the other."""
    sample = derived(SAMPLES / "h100-1f1b")
    both = _beside_itself()
    spans = "SELECT {}, start_ns, start_ns + duration_ns AS end_ns FROM ops"
    for call in ("interval_union(spans)", "interval_gaps(spans)", "interval_overlap(spans, spans)"):
        of_one = sample.query(f"WITH spans AS ({spans.format('rank')}) FROM {call}")
        of_both = both.query(f"WITH spans AS ({spans.format('run, rank')}) FROM {call}")
        assert not of_one.is_empty()
        for name in ("a", "b"):
            assert of_both.filter(run=name).drop("run").equals(of_one)
    mixed = f"WITH spans AS ({spans.format('run, rank')}), bare AS ({spans.format('rank')} WHERE rank = 1)"
    mixed = mixed.replace("FROM ops WHERE", "FROM a.ops WHERE")
    of_rank = sample.rows("SELECT sum(duration_ns) FROM ops WHERE rank = 1")
    per_run = f"{mixed} SELECT sum(duration_ns) FROM interval_overlap(spans, bare) GROUP BY run"
    assert both.rows(per_run) == of_rank * 2, "an interval without a run is one of any of them"


# Tables of replayed Timelines are held by default (tests/store); here they are asked for by commands.
@pytest.mark.thorough
def test_replayed_timelines_stand_beside_the_observed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures are those that replay prints, every view tells the Timelines apart, and the Run is as before."""
    target, kept = tmp_path / "what-if.run", tmp_path / "kept.run"
    shutil.copytree(derived(SAMPLES / "h100-1f1b").path, kept)
    asked = ["--schedule", "geopipe,observed", "--dc", "0-1,2-3", "--link", "dc0-dc1=25Gbit/s,10ms"]
    assert run(["replay", str(kept), *asked, "--run", str(target), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    replayed = {
        ("observed replayed" if one["schedule"] == "observed" else one["schedule"]): one
        for one in (report["baseline"], *report["results"])
    }
    made = Run(target)
    figures = made.records("FROM schedule_comparison")
    assert {row.pop("timeline"): row for row in figures} == {
        name: {key: one[key] for key in ("step_ns", "window_ns", "bubble_ns", "bubble_ratio")}
        | {"peak_hbm_bytes": max(one["peak_hbm_bytes"])}
        | {key: one.get(key) for key in OF_A_PREDICTION}
        | {"p2p": one["p2p"]}
        | {"fits": None, "unproven": None if name == "observed" else one["evidence"] == "unproven"}
        for name, one in {"observed": report["step"], **replayed}.items()
    }
    per_rank = "SELECT timeline, rank, idle_ns FROM step_breakdown ORDER BY ALL"
    assert [row[1:] for row in made.rows(per_rank) if row[0] == "observed"] == [
        row[1:] for row in Run(kept).rows(per_rank)
    ]
    of_causes = "SELECT timeline, rank, sum(duration_ns)::BIGINT FROM bubbles GROUP BY ALL ORDER BY ALL"
    assert made.rows(of_causes) == made.rows(per_rank), "causes sum to the idle time of each rank, Timeline by Timeline"
    gaps = (
        "WITH busy AS (SELECT *, start_ns + duration_ns AS end_ns FROM ops WHERE stage >= 0) FROM interval_gaps(busy)"
    )
    assert made.query(gaps)["timeline"].n_unique() == 1 + len(replayed)
    assert run(["compare", str(kept), str(target)]) == 0
    before = sorted(kept.rglob("*.parquet"))
    assert run(["replay", str(target), "--schedule", "gpipe", "--run", str(target), "--force"]) == 0
    assert Run(target).rows("SELECT timeline FROM schedule_comparison ORDER BY ALL") == [
        ("1f1b",),
        ("gpipe",),
        ("observed",),
    ]
    assert Run(kept).rows("SELECT DISTINCT timeline FROM ops") == [("observed",)], "shared files are never changed"
    assert sorted(kept.rglob("*.parquet")) == before
    capsys.readouterr()
    assert run(["info", str(target)]) == 0
    assert "replayed timelines: 1f1b, gpipe (by tracetool replay" in " ".join(capsys.readouterr().out.split())
    assert run(["replay", str(kept), "--run", str(target)]) == 2
    assert "exists" in capsys.readouterr().err
    assert run(["replay", str(kept), "--step", "1", "--run", str(tmp_path / "y.run")]) == 2
    assert "usual step" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["table", "markdown", "csv", "json", "parquet"])
def test_every_type_of_duckdb_is_written_in_every_form(form: str, tmp_path: Path) -> None:
    query = (
        "SELECT INTERVAL 3 DAY AS i, [INTERVAL 1 HOUR] AS j, MAP {'a': 1} AS m, 'x'::BLOB AS b, [1, 2] AS l, "
        "{'a': 1} AS s, 1.5::DECIMAL(5, 2) AS d, sum(9)::HUGEINT AS h, DATE '2026-01-01' AS t, uuid() AS u, "
        "'101'::BIT AS w, NULL AS n"
    )
    target = tmp_path / "x"
    assert run(["sql", SAMPLE, query, "--format", form, "-o", str(target)]) == 0
    assert target.stat().st_size
    if form == "json":
        (row,) = json.loads(target.read_text(encoding="utf-8"))
        assert (row["i"], row["l"], row["d"], row["h"]) == ("3 days", [1, 2], 1.5, 9)
    if form == "csv":
        assert target.read_text(encoding="utf-8").splitlines()[1].startswith("3 days,['01:00:00'],")


def test_sums_of_integers_are_integers_and_floats_keep_their_digits(capsys: pytest.CaptureFixture[str]) -> None:
    sample = derived(SAMPLES / "h100-1f1b")
    of_all = "SELECT sum(duration_ns) AS s FROM ops"
    expected = sum(sample.table("ops", ["duration_ns"]).column("duration_ns").to_pylist())
    assert sample.query(of_all).schema == {"s": pl.Int64}
    assert sample.query(of_all).item() == expected
    assert sample.arrow(of_all).to_pydict() == {"s": [expected]}
    assert run(["sql", SAMPLE, of_all, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"s": expected}]
    large = "SELECT sum(9e18::HUGEINT) AS s FROM range(10)"
    assert sample.query(large).item() == sample.arrow(large).to_pylist()[0]["s"] == 9 * 10**19
    assert run(["sql", SAMPLE, "select 13394339.5 as a, 5328589.125::double as b, 5.3::double as c"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["|", "13394339.5", "|", "5328589.125", "|", "5.3", "|"]


def test_answers_do_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sql", SAMPLE, "select chr(27) || '[31m' as x"]) == 0
    assert "?[31m" in capsys.readouterr().out


def test_nulls_overlap_with_nothing() -> None:
    client = duckdb.connect(":memory:")
    client.execute(sql_text("macros"))
    one_missing = "SELECT overlap_ns(null, 3, 0, 5), overlap_ns(0, null, 0, 5), overlap_ns(0, 3, null, 5)"
    assert client.execute(one_missing).fetchone() == (None, None, None)
    assert client.execute("SELECT overlap_ns(0, 3, 1, 5), overlap_ns(0, 3, 4, 5)").fetchone() == (2, 0)


def test_what_cannot_be_asked_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.sql").write_bytes(b"select '\xff'")
    assert run(["sql", SAMPLE, "-f", str(tmp_path / "bad.sql")]) == 2
    assert "is no text (not UTF-8)" in capsys.readouterr().err
    assert run(["sql", SAMPLE, "pivot ops on kind using sum(duration_ns)"]) == 2
    assert "name PIVOT's values" in capsys.readouterr().err
    assert run(["sql", SAMPLE, "pivot ops on kind in ('F', 'B') using sum(duration_ns) group by rank"]) == 0


def test_markdown_cells_hold_bars_and_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    query = """select 'a|b' || chr(10) || 'c' as "x|y", 1 as z"""
    assert run(["sql", SAMPLE, query, "--format", "markdown"]) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    assert (head.split(), row.split()) == (["|", "x\\|y", "|", "z", "|"], ["|", "a\\|b", "c", "|", "1", "|"])


def test_several_runs_are_schemas_and_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    both = f"{SAMPLE},npu={OTHER}"
    assert run(["sql", both, "select run, count(distinct rank) as n from ops group by run order by run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"run": "h100_1f1b", "n": 4}, {"run": "npu", "n": 4}]
    query = "select (select max(rank) from npu.ops) - (select max(rank) from h100_1f1b.ops) as apart"
    assert run(["sql", both, query, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"apart": 0}]
    assert run(["sql", f"a={SAMPLE},a={OTHER}", "select 1"]) == 2
    assert "two Runs are named a" in capsys.readouterr().err
    assert run(["sql", f"mine={SAMPLE}", "select count(*) > 0 as found from mine.ops where rank = 0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"found": True}]
    for bad, answer in (
        ("=x.run", "gives an empty name"),
        ("A", "small letters"),
        ("main", "SQL has a use for it"),
        ("order", "SQL has a use"),
    ):
        assert run(["sql", f"{bad}={SAMPLE}" if bad[0] != "=" else bad, "select 1"]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a; drop", 'x" AS y', "Main", "main", "1st", ""])
def test_names_are_identifiers_or_refused(name: str) -> None:
    with pytest.raises(BadQuery, match="cannot name a Run"):
        Catalog({name: derived(SAMPLES / "h100-1f1b")})


def test_names_come_from_folders(tmp_path: Path) -> None:
    paths = [
        tmp_path / name for name in ("Base.run", "x'; DROP--.run", "base", "2nd.run", "main.run", "only.run", "...")
    ]
    assert names_for(paths) == ["base", "x_drop", "base_2", "run_2nd", "run_main", "run_only", "run_"]


# What one Run refuses several do: that all of these are refused is tried of one (tests/store).
@spread(
    "query",
    [
        "COPY h100_1f1b.events TO 'stolen.csv'",
        "ATTACH 'other.db'",
        "INSTALL httpfs",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM query_table('/etc/hostname')",
        "SELECT * FROM glob('/etc/*')",
        "SET schema = 'npu'",
        "PRAGMA database_list",
        "SELECT 1; SELECT 2",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW main.ops",
        "CALL pragma_version()",
    ],
    2,
)
def test_queries_over_several_runs_reach_nothing_else(
    query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    catalog = _beside_another()
    with pytest.raises(BadQuery):
        catalog.query(query)
    assert list(tmp_path.iterdir()) == []
    assert catalog.rows("SELECT count(DISTINCT run) FROM ops") == [(2,)]


def test_the_query_comes_from_a_file_or_stdin_and_the_answer_goes_to_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q.sql").write_text(COUNT, encoding="utf-8")
    made = {}
    for suffix in (".parquet", ".csv", ".json", ".md"):
        path = tmp_path / f"answer{suffix}"
        assert run(["sql", SAMPLE, "-f", str(tmp_path / "q.sql"), "-o", str(path)]) == 0
        made[suffix] = path
    expected = pl.DataFrame({"rank": [0, 1, 2, 3], "n": [16] * 4})
    assert pl.read_parquet(made[".parquet"]).cast(pl.Int64).equals(expected)
    assert pl.read_csv(made[".csv"]).equals(expected)
    assert made[".md"].read_text(encoding="utf-8").splitlines()[1].startswith("|---")
    before = made[".csv"].read_bytes()
    capsys.readouterr()
    assert run(["sql", SAMPLE, "select 1", "-o", str(made[".csv"])]) == 2
    assert "--force" in capsys.readouterr().err
    assert made[".csv"].read_bytes() == before
    monkeypatch.setattr("sys.stdin", io.StringIO("select 41 + 1 as answer"))
    assert run(["sql", SAMPLE, "-", "--format", "csv"]) == 0
    assert capsys.readouterr().out == "answer\n42\n"
    assert run(["sql", SAMPLE, "select 1", "-f", str(tmp_path / "q.sql")]) == 2


def test_a_saved_database_opens_elsewhere_with_comments_and_macros(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ROOT / "tests" / "data" / "ckpt_reentrant"
    assert run(["sql", str(derived(small).path), "--save", str(tmp_path / "x.duckdb")]) == 0
    assert run(["sql", str(small), "--save", str(tmp_path / "x.duckdb")]) == 2
    capsys.readouterr()
    with duckdb.connect(str(tmp_path / "x.duckdb"), read_only=True) as client:
        # All of them are asked above, of a recording that answers each; this one has no memory.
        assert all(client.execute(one.query).fetchall() for one in some(examples(), 3) if "peak" not in one.query)
        bare = "SELECT table_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
        assert client.execute(bare).fetchall() == []
    assert run(["sql", SAMPLE, "select 1", "-o", str(tmp_path / "x.xlsx")]) == 2
    assert run(["sql", f"{SAMPLE},", "select 1"]) == 2
    if not is_asked():
        # Several are the same beside each other, which is asked above without a file.
        return
    both = {"a": derived(small), "b": derived(small)}
    save_database(both, tmp_path / "both.duckdb")
    with duckdb.connect(str(tmp_path / "both.duckdb"), read_only=True) as client:
        assert client.execute("SELECT count(*) FROM a.bubbles").fetchone() != (0,)
        assert client.execute("SELECT count(*) FROM b.ops").fetchone() != (0,)
        assert client.execute("SELECT count(DISTINCT run) FROM step_breakdown").fetchone() == (2,)


def test_the_duckdb_shell_opens_a_run() -> None:
    shell = shutil.which("duckdb", path=str(Path(sys.executable).parent)) or shutil.which("duckdb")
    if shell is None:
        pytest.skip("no duckdb shell: pip install duckdb-cli")
    folder = derived(SAMPLES / "h100-1f1b").path
    script = f"SET VARIABLE run = '{folder}';\n.read {ROOT / 'schemas' / 'duckdb.sql'}\n{COUNT};\n"
    done = subprocess.run([shell, "-csv"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["rank,n", "0,16", "1,16", "2,16", "3,16"]
