"""The Python API: its names, what they take, and tables that lie on the memory of what they are made of."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa
import pytest
from helpers.recorded import ROOT, SAMPLES, derived

import tracetool as tt
from tracetool.cli import run as command
from tracetool.errors import BadTopology, ScenarioError, StoreError, UnknownName
from tracetool.model.action import ActionKind, CollectiveUse
from tracetool.model.pipeline import TailPart
from tracetool.tables.results import TABLES_OF
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from pathlib import Path

TWO = "1f1b,geopipe"
SAMPLE = SAMPLES / "h100-1f1b"
LINK = "dc0-dc1=25Gbit/s,10ms"


@cache
def _found() -> tt.Reconstruction:
    return tt.reconstruct(derived(SAMPLE))


@cache
def _answer() -> tt.Answer:
    return tt.answer(_found(), "1f1b,geopipe", tt.scenario(_found(), dc="0-1,2-3", link=LINK, hbm="13GiB"))


@pytest.fixture
def looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take what was reconstructed already: the same Run, with the same options."""
    found = _found()
    monkeypatch.setattr(sys.modules["tracetool.reconstruction"], "reconstruct", lambda *_, **__: found)


def _addresses(column: pa.ChunkedArray) -> list[int]:
    """Where the values of each chunk lie."""
    return [chunk.buffers()[1].address for chunk in column.chunks]


def _numbers(table: pa.Table) -> list[str]:
    wanted = (pa.types.is_integer, pa.types.is_floating)
    return [field.name for field in table.schema if any(is_one(field.type) for is_one in wanted)]


# By default all modules are imported for it (tests/test_packaging); here it is some of them, in this order.
@pytest.mark.thorough
def test_rooms_do_not_hide_the_verbs_that_they_define() -> None:
    """Importing a room sets it in the package: whichever comes first, the verb stays a function."""
    clash = ["ingest", "reconstruct", "replay", "sweep", "explain", "advise", "compare"]
    program = f"""
import tracetool.cli.replay, tracetool.reports.columnar
import tracetool as tt
for name in {clash}:
    assert callable(getattr(tt, name)), name
import tracetool.ingestion.executors, tracetool.replays.engine, tracetool.sweeps.grid
from tracetool.replays import engine
assert callable(tt.replay) and engine.__name__ == "tracetool.replays.engine"
from tracetool import sweep, replay
assert callable(sweep) and callable(replay)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.usefixtures("looked_at_once")
def test_a_users_script_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """mypy checks it, too (test_quality.py); as measured, 1F1B is the recording (README: within 4 %)."""
    script = ROOT / "tests" / "api" / "user_script.py"
    monkeypatch.setattr(sys, "argv", [str(script), str(derived(SAMPLE).path)])
    runpy.run_path(str(script), run_name="__main__")
    best, alone = map(int, capsys.readouterr().out.split())
    observed = tt.measure(_found().observed).step_ns
    assert alone == pytest.approx(observed, rel=0.04)
    assert best > alone


@pytest.mark.usefixtures("looked_at_once")
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ({"link": LINK, "hbm": "13GiB", "dc": "0-1,2-3"}, ["--link", LINK, "--hbm", "13GiB", "--dc", "0-1,2-3"]),
        (
            {"p2p": "per-edge", "microbatches": 4, "activation": "1GiB", "static": "2GiB", "interference": False},
            ["--p2p", "per-edge", "--microbatches", "4", "--activation", "1GiB", "--static", "2GiB",
             "--no-interference"],
        ),
        (
            {"dc": "0,1-3", "link": [LINK], "pipelines_on_link": 2, "link_sharing": "spatial"},
            ["--dc", "0,1-3", "--link", LINK, "--pipelines-on-link", "2", "--link-sharing", "spatial"],
        ),
    ],
)  # fmt: skip
def test_text_means_what_it_means_on_the_command_line(
    words: dict[str, Any], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The same numbers as ``replay --json`` with the options of the same words."""
    path = str(derived(SAMPLE).path)
    assert command(["replay", path, "--schedule", "1f1b,geopipe", *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    answer = tt.answer(_found(), "1f1b,geopipe", tt.scenario(_found(), **words))
    frame = tt.to_polars(answer)["results"].filter(pl.col("role") == "result")
    for key in ("step_ns", "window_ns", "bubble_ns", "bubble_ratio", "cross_dc_bubble_ns", "feasible", "p2p"):
        assert frame[key].to_list() == [result[key] for result in told["results"]]


@pytest.mark.usefixtures("looked_at_once")
def test_a_grid_as_text_sweeps_what_the_command_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(derived(SAMPLE).path)
    options = ["--bandwidth", "10..40Gbit/s*1", "--distance", "400km", "--hbm", "13GiB,80GiB", "--no-knees"]
    for maps in (["0-1,2-3"], ["0-1,2-3", "0,1-3"]):
        asked = [part for text in maps for part in ("--dc", text)]
        assert command(["sweep", path, "--schedule", TWO, *asked, *options, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["points"]
        grid = tt.grid(_found(), TWO, dc=maps, bandwidth="10..40Gbit/s*1", distance="400km", hbm="13GiB,80GiB")
        points = tt.to_polars(tt.sweep(_found(), grid, knees=False))["points"]
        assert len(points) == len(told) == len(maps) * 3 * 2 * 2
        for key in ("schedule", "step_ns", "bandwidth_bytes_per_s", "latency_ns", "hbm_bytes", "dcs", "feasible"):
            assert points[key].to_list() == [point[key] for point in told]


SMALL = """
model = {name = "small", layers = 8, hidden = 1024, heads = 16, vocabulary = 32000, fused_attention = true}
training = {sequence = 2048, microbatches = 4, pipeline = 2, data = 2}
device = {name = "A100", peak_tflops = 312, hbm = "80GB", efficiency = "70%"}
"""


def test_the_tables_of_results_are_those_declared_and_those_that_the_docstring_names(tmp_path: Path) -> None:
    for kind, tables in TABLES_OF.items():
        named = re.search(rf"^ +{kind}  +(.*)$", tt.to_arrow.__doc__ or "", re.MULTILINE)
        assert named is not None
        assert named[1].split(", ") == [table.name for table in tables]
    why = tt.explain(_found(), "1f1b", _answer().scenario)
    small = tmp_path / "small.toml"
    small.write_text(SMALL, encoding="utf-8")
    models = small, ROOT / "schemas" / "networks" / "a100.toml"
    estimated = tt.estimate(*models)
    on_network = tt.traffic(*models, sizes=(8,))
    made_by = {
        "an Answer": tt.to_arrow(_answer()), "an Explanation": tt.to_arrow(why),
        "an Estimated": tt.to_arrow(estimated), "an OnNetwork": tt.to_arrow(on_network),
    }  # fmt: skip
    for kind, made in made_by.items():
        assert list(made) == [table.name for table in TABLES_OF[kind]]
        for table in TABLES_OF[kind]:
            assert made[table.name].schema.equals(table.arrow_schema(), check_metadata=True)


def test_frames_lie_on_the_memory_of_the_arrow_tables() -> None:
    """A Polars column exported again has the address of the Arrow column that it was made of."""
    why = tt.explain(_found(), "1f1b", _answer().scenario)
    seen = 0
    for result in (_answer(), _answer().results[1], _found(), why):
        for table in tt.to_arrow(result).values():
            frame = pl.from_arrow(table, rechunk=False)
            assert isinstance(frame, pl.DataFrame)
            for name in _numbers(table):
                if len(table):
                    seen += 1
                    assert _addresses(pa.chunked_array([frame[name].to_arrow()])) == _addresses(table[name]), name
    assert seen > 40


def test_tables_of_a_run_are_read_from_parquet_and_frames_take_them_over() -> None:
    run = derived(SAMPLE)
    for name, declared in TABLES.items():
        table = run.table(name)
        assert table.schema.equals(declared.arrow_schema(), check_metadata=True)
        assert table.num_rows == run.rows(f"SELECT count(*) FROM {name}")[0][0]
    events = run.table("events", ["duration_ns", "rank"])
    assert events.column_names == ["duration_ns", "rank"]
    sums = run.rows("SELECT rank, sum(duration_ns) FROM events GROUP BY ALL ORDER BY ALL")
    frame = pl.from_arrow(events, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    assert frame.group_by("rank").agg(pl.col("duration_ns").sum()).sort("rank").rows() == sums
    pieces = [piece.to_arrow() for piece in frame["duration_ns"].get_chunks()]
    assert len(pieces) == len(list((run.path / "events").iterdir())) > 0, "one of each file"
    assert [piece.buffers()[1].address for piece in pieces] == _addresses(events["duration_ns"])


def test_what_sql_answers_comes_as_arrow_and_frames_take_it_over() -> None:
    run = derived(SAMPLE)
    text = "SELECT rank, duration_ns FROM ops ORDER BY start_ns, rank"
    table = run.arrow(text)
    assert [tuple(row.values()) for row in table.to_pylist()] == run.rows(text) == run.query(text).rows()
    frame = pl.from_arrow(table, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    assert _addresses(pa.chunked_array([frame["duration_ns"].to_arrow()])) == _addresses(table["duration_ns"])


def test_tables_seen_through_a_query_keep_their_types() -> None:
    run = derived(SAMPLE).overlay({"ops": "SELECT * FROM {recorded} WHERE rank = 3"})
    table = run.table("ops")
    assert table.schema.equals(TABLES["ops"].arrow_schema(), check_metadata=True)
    assert table.num_rows == 18
    assert set(table["rank"].to_pylist()) == {3}


def test_the_tables_say_what_the_objects_say() -> None:
    answer = _answer()
    tables = tt.to_polars(answer)
    peaks = [max(p or 0 for p in result.metrics.peak_hbm_bytes) for result in answer.results]
    rows = tables["results"].filter(pl.col("role") == "result")
    assert rows["peak_hbm_bytes"].to_list() == peaks
    assert rows["needed_hbm_bytes"].to_list() == [max(r.metrics.needed_hbm_bytes) for r in answer.results]  # type: ignore[type-var]
    assert tables["results"]["role"].to_list() == ["observed", "baseline", "result", "result"]
    ranks = tables["ranks"].group_by("role", "schedule", maintain_order=True).agg(pl.col("compute_ns").sum())
    assert (
        ranks["compute_ns"].to_list()
        == tables["results"].unique(["role", "schedule"], maintain_order=True)["compute_ns"].to_list()
    )
    result = answer.results[1]
    one = tt.to_polars(result)
    idle = one["idles"].group_by("rank").agg(pl.col("duration_ns").sum()).sort("rank")["duration_ns"].to_list()
    assert idle == [result.metrics.window_ns - busy for busy in result.metrics.rank_compute_ns]
    why = tt.explain(_found(), "1f1b", answer.scenario)
    told = tt.to_polars(why)
    assert told["path"]["duration_ns"].sum() == why.metrics.window_ns
    rounded_ns = len(why.causes) + 1
    idle_ns = told["causes"]["idle_ns"].sum() + why.rest_ns
    # Causes are of the step: the window's bubble, and what ranks do or wait for after it.
    whole_ns = why.metrics.bubble_ns + why.metrics.step_ns - why.metrics.window_ns
    assert whole_ns - rounded_ns <= idle_ns <= whole_ns


def test_advice_and_sweeps_have_tables() -> None:
    advice = tt.advise(_found(), _answer().scenario, ["1f1b", "geopipe"])
    tables = tt.to_polars(advice)
    assert advice.best is not None
    (best,) = tables["plans"].filter(pl.col("verdict") == "best")["step_ns"].to_list()
    assert best == advice.best.step_ns
    assert tables["gains"]["gained_ns"].to_list() == [gain.gained_ns for gain in advice.gains]
    swept = tt.sweep(_found(), tt.grid(_found(), "1f1b", dc="0-1,2-3", bandwidth="25Gbit/s", latency="10ms"))
    assert tt.to_polars(swept)["knees"]["hidden_latency_ns"].to_list() == [k.hidden_latency_ns for k in swept.knees]


def test_a_comparison_has_tables() -> None:
    """Of the same Run nothing changes, and a limit on a value is held as its step says."""
    run = derived(SAMPLE)
    step_ns = tt.measure(_found().observed).step_ns
    limits = [f"step_ns>{step_ns}ns", f"step_ns>{step_ns - 1}ns"]
    comparison = tt.compare(run, str(run.path), fail_on=limits)
    tables = tt.to_polars(comparison)
    assert len(comparison.failures) == 1
    assert tables["checks"]["outcome"].to_list() == ["held", "exceeded"]
    assert set(tables["lines"]["verdict"]) == {"unchanged"}
    row = tables["lines"].filter(pl.col("metric") == "step_ns", pl.col("scope").is_null())
    assert row["base"].to_list() == row["new"].to_list() == [step_ns]


def test_a_result_is_shown_in_a_line() -> None:
    """Interactive users see what it is, not the megabytes that it holds."""
    run, answer = derived(SAMPLE), _answer()
    shown = (run, _found(), _found().pipeline, _found().observed, answer, answer.results[1], answer.results[1].replayed)
    for each in (*shown, tt.explain(_found(), "1f1b", answer.scenario), tt.advise(_found(), answer.scenario, "1f1b")):
        assert len(repr(each)) < 200
        assert type(each).__name__ in repr(each)
    assert repr(_found()) == "<Reconstruction: <Pipeline of step 1: p=4 v=1 m=8, grouped transfers>>"


def test_what_makes_no_sense_is_an_error_of_this_package() -> None:
    found, run = _found(), derived(SAMPLE)
    with pytest.raises(BadTopology, match=r"covers pipeline ranks 0\.\.5"):
        tt.scenario(found, dc="0-1,2-5", link=LINK)
    with pytest.raises(BadTopology, match="not which ranks sit in which DC"):
        tt.scenario(found, link=LINK)
    with pytest.raises(UnknownName, match="p2p mode named 'edge'"):
        tt.scenario(found, p2p="edge")  # type: ignore[arg-type]
    with pytest.raises(BadTopology, match=r"covers pipeline ranks 0\.\.5"):
        tt.grid(found, dc="0-1,2-5", bandwidth="25Gbit/s", latency="2ms")
    with pytest.raises(ScenarioError, match="no latency"):
        tt.grid(found, dc="0-1,2-3", bandwidth="25Gbit/s")
    for words in ({"microbatches": 0}, {"overlap_ratio": 0.0}, {"pipelines_on_link": 0}, {"activation": "1GiB"}):
        with pytest.raises(ScenarioError):
            tt.scenario(found, **words)
    with pytest.raises(ScenarioError, match="names no schedule"):
        tt.answer(found, " , ")
    with pytest.raises(UnknownName, match="Did you mean 'ops'"):
        run.table("op")
    with pytest.raises(UnknownName, match="column of ops"):
        run.table("ops", ["duration"])
    with pytest.raises(TypeError, match="a Run is no result"):
        tt.to_arrow(run)  # type: ignore[arg-type]


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    run = tt.Run(shutil.copytree(derived(SAMPLE).path, tmp_path / "x.run"))
    (file,) = (run.path / "ops").glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[4:40] = b"\0" * 36
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"ops.*cannot be read"):
        run.table("ops")


def test_places_of_other_pipelines_count_in_scenarios_and_sweeps() -> None:
    """A gradient reduction with a second pipeline whose ranks sit in the other DC crosses the link.

    Of two ranks, a ring of 100 MB sends 100 MB over the link each way (32 ms at 25 Gbit/s) in two hops (20 ms), instead
    of the 1 ms that it took; rank 0, which ends the window, is the only one that has a reduction.
    """
    found = _found()
    places = {0: "a0", 1: "a1", 2: "b0", 3: "b1", 4: "b2", 5: "b3", 6: "a2", 7: "a3"}
    reduction = CollectiveUse("allreduce", (0, 4), 100_000_000, 1_000_000)
    tail = TailPart(ActionKind.REDUCE_GRAD, 1_000_000, None, (reduction,))
    ranks = tuple(replace(rank, tail=() if rank.rank else (tail,)) for rank in found.pipeline.ranks)
    row = found.coordinates[0]
    found = replace(
        found,
        pipeline=replace(found.pipeline, ranks=ranks),
        coordinates=tuple(row._replace(rank=rank, pp=rank % 4) for rank in places),
        hosts=places,
    )
    steps = {}
    maps = ("dc0=a*,dc1=b*", "0-1,2-3")
    for text in maps:
        scenario = tt.scenario(found, dc=text, link=LINK)
        (result,) = tt.answer(found, "1f1b", scenario).results
        grid = tt.grid(found, "1f1b", dc=text, bandwidth="25Gbit/s", latency="10ms")
        (point,) = tt.sweep(found, grid, knees=False).points
        assert point.step_ns == result.metrics.step_ns
        steps[text] = point.step_ns
    both = tt.sweep(found, tt.grid(found, "1f1b", dc=maps, bandwidth="25Gbit/s", latency="10ms"), knees=False)
    assert [point.step_ns for point in both.points] == list(steps.values())
    assert steps["dc0=a*,dc1=b*"] - steps["0-1,2-3"] == 51_000_000
