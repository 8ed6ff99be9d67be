"""Jobs of several equal pipelines: what a question of one costs does not grow with the others, nor does its answer."""

from __future__ import annotations

import gc
import gzip
import re
from collections import Counter
from pathlib import Path
from shutil import copytree
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from helpers.recorded import SAMPLES, derived, run_of
from helpers.renumbered import write_renumbered
from helpers.same_tables import assert_same_tables
from helpers.thorough import spread

from tracetool import store, tables
from tracetool.errors import ReconstructError
from tracetool.ingestion import discover, ingest, runs
from tracetool.ingestion.runs import derive
from tracetool.readers.files import ByteStream
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.capture import Account, clock_pairs
from tracetool.reconstruction.capture.survey import survey_run
from tracetool.reports.recording.summary import run_summary
from tracetool.store import query as store_query
from tracetool.store import run as store_run
from tracetool.store.query import Lens
from tracetool.store.run import Run
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import duckdb

ONE = SAMPLES / "h100-1f1b"
AHEAD_NS = {5: 40_000_000, 6: -3_000_000}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(Path(copytree(derived(ONE).path, tmp_path_factory.mktemp("one") / "x.run")))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With so few rows to a file that each holds those of four ranks, of some 7,700 events."""
    folder = tmp_path_factory.mktemp("two")
    traces = write_renumbered(ONE, folder / "traces", 2, clocks_ns=AHEAD_NS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_GROUP_ROWS", 28_000)
        return ingest([traces], folder / "x.run", complete=derive)


IN_SOURCES = ("events", "comms", "steps", "memory")
"""Tables whose rows are written source by source."""


def _files(run: Run, table: str) -> list[str]:
    return sorted(file.stem for file in (run.path / table).iterdir())


# By four as others, or each in one of its own, they are by default, too: above, and in every Run of a few ranks.
@spread(
    ("most_rows", "expected"),
    [(1 << 17, ["source-00000-00007"]), (1, [f"source-{number:05d}" for number in range(8)])],
    1,
)
def test_small_ranks_share_files_and_rows_do_not_tell(
    two: Run, most_rows: int, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight ranks in a file per table, by four as others here, or each in one of its own, as Runs were once."""
    monkeypatch.setattr(store, "_GROUP_ROWS", most_rows)
    run = ingest([two.path.parent / "traces"], tmp_path / "x.run")
    assert len(list(run.path.rglob("*.parquet"))) == len(TABLES) + len(IN_SOURCES) * (len(expected) - 1)
    monkeypatch.setattr(store_run, "_WORTH_FILES", 1)
    for table in IN_SOURCES:
        assert _files(two, table) == ["source-00000-00003", "source-00004-00007"]
        assert _files(run, table) == expected
        assert_same_tables({table: [run.table(table)]}, {table: [two.table(table)]})
        of_some = [one.of_ranks([3, 4]).rows(f"SELECT * FROM {table} WHERE rank IN (3, 4)") for one in (run, two)]
        assert of_some[0] == of_some[1] != []


def _measured(found: Reconstruction) -> list[Any]:
    """All that neither says which ranks they are nor depends on their clocks."""
    pipe = found.pipeline
    return [
        [(stage.costs, stage.forward_payload_bytes, stage.collectives) for stage in pipe.stages],
        pipe.observed.orders, pipe.p2p, pipe.step,
        [(op.rank, op.duration_ns) for op in found.observed.ops if not hasattr(op, "stage")],
    ]  # fmt: skip


# The first is the recorded one by its numbers, too.
@spread("number", [0, 1], [1])
def test_each_of_equal_pipelines_is_the_one_that_was_recorded(one: Run, two: Run, number: int) -> None:
    found = reconstruct(two, pipeline=number)
    assert found.observed.global_ranks == tuple(range(4 * number, 4 * number + 4))
    assert _measured(found) == _measured(reconstruct(one))


def test_clocks_that_were_set_apart_are_found(two: Run) -> None:
    clocks = survey_run(two, Account()).clocks.by_rank
    for rank, ahead in AHEAD_NS.items():
        alike = clocks[rank % 4].offset_ns or 0
        assert (clocks[rank].offset_ns or 0) + ahead == pytest.approx(alike, abs=60_000)


def _asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Queries of all that ingest derives, by their text without numbers."""
    asked: Counter[str] = Counter()
    before = Lens._asked

    def counted(self: Lens, sql: str, ask: Callable[..., Any]) -> object:
        asked[re.sub(r"\d+", "0", sql)] += 1
        return before(self, sql, ask)

    with monkeypatch.context() as patch:
        patch.setattr(Lens, "_asked", counted)
        for kept in run.path.glob("*.kept"):
            kept.unlink()
        derive(Run(run.path))
    return asked


# How fast many ranks are is held by what a question opens by default (below), and by the benchmarks.
@pytest.mark.thorough
def test_two_pipelines_ask_no_more_queries_than_one(one: Run, two: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """But one: what groups across pipelines are for."""
    more = _asked(two, monkeypatch) - _asked(one, monkeypatch)
    assert [text.split()[:3] for text in more.elements()] == [["WITH", "placed", "AS"]]


def test_a_question_of_one_pipeline_opens_the_files_of_its_ranks(two: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_run, "_WORTH_FILES", 1)
    narrowed = Run(two.path).of_ranks(range(4, 8))
    for table in IN_SOURCES:
        assert re.findall(rf"/{table}/([^/]+)\.parquet", narrowed.sources[table]) == ["source-00004-00007"]
        ((rows,),) = narrowed.rows(f"SELECT count(*) FROM {table}")
        assert rows == two.rows(f"SELECT count(*) FROM {table} WHERE rank BETWEEN 4 AND 7")[0][0] > 0
    assert narrowed.count("ranks") == 8
    opened: list[str] = []
    before = store_query.files_source

    def recorded(folder: Path, names: list[str]) -> str:
        opened.extend(names)
        return before(folder, names)

    monkeypatch.setattr(store_run, "files_source", recorded)
    assert _measured(reconstruct(Run(two.path), pipeline=1)) == _measured(reconstruct(two, pipeline=1))
    assert {name for name in opened if name.startswith("events/")} == {"events/source-00004-00007.parquet"}


def test_who_a_trace_is_of_is_known_by_the_beginning_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of text that are inflated to discover a rank: 16 KiB of its 2 MB, however many readers ask."""
    traces = write_renumbered(ONE, tmp_path / "traces", 2)
    given: Counter[str] = Counter()
    before = ByteStream.blocks

    def blocks(self: ByteStream, size: int) -> Iterator[bytes]:
        for block in before(self, size):
            given[self.name] += len(block)
            yield block

    monkeypatch.setattr(ByteStream, "blocks", blocks)
    found = discover([traces])
    assert [item.rank for item in found.sources] == list(range(8))
    assert set(given) == {str(item.source.path) for item in found.sources}
    assert set(given.values()) == {1 << 14}
    assert len(gzip.decompress((traces / "rank5.json.gz").read_bytes())) > 2_000_000
    # A group that several ranks list is kept once.
    assert len({id(group) for item in found.sources for group in item.identity.groups}) == len(
        {group for item in found.sources for group in item.identity.groups}
    )


def test_a_summary_goes_through_large_tables_once(two: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for what of collectives lies in actions, for which only files of the ranks that have actions are opened."""
    asked: list[tuple[Run, str]] = []
    before = Lens._asked

    def noted(self: Lens, sql: str, ask: Callable[[duckdb.DuckDBPyConnection], object]) -> object:
        assert isinstance(self, Run)
        asked.append((self, sql))
        return before(self, sql, ask)

    monkeypatch.setattr(store_run, "_WORTH_FILES", 1)
    monkeypatch.setattr(Lens, "_asked", noted)
    summary = run_summary(run := Run(two.path))
    of_all = Counter(re.findall(r"FROM (\w+)", "\n".join(sql for one, sql in asked if one is run)))
    assert [of_all[table] for table in ("events", "comms", "memory")] == [1, 1, 1]
    (narrowed,) = {id(one): one for one, sql in asked if "overlap_by_layer" in sql}.values()
    assert re.findall(r"/events/([^/]+)\.parquet", narrowed.sources["events"]) == ["source-00000-00003"]
    assert summary["kernels"] == two.rows("SELECT count(*) FROM events WHERE category = 'kernel'")[0][0]
    monkeypatch.setattr(store_run, "_WORTH_FILES", 1 << 20)
    assert summary == run_summary(Run(two.path))


def test_clocks_of_many_ranks_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of solving for many ranks, on a recording of few: the same offsets to the ns."""
    run = run_of(ONE)
    few = survey_run(run, Account()).clocks
    monkeypatch.setattr(clock_pairs, "_MANY", 0)
    many = survey_run(run, Account()).clocks
    assert {r: c.offset_ns for r, c in many.by_rank.items()} == {r: c.offset_ns for r, c in few.by_rank.items()}


def test_what_derives_tables_looks_for_cycles_rarely_and_then_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own thresholds made ingesting 2.4 million events from Python a quarter slower than from a shell."""
    rarely = (60_000, 20, 900)  # as no test and no command has them
    before, during = gc.get_threshold(), []
    monkeypatch.setattr(tables, "RARELY", rarely)

    def fail(*_given: object) -> NoReturn:
        during.append(gc.get_threshold())
        raise ReconstructError("as if")

    monkeypatch.setattr(runs, "survey_run", fail)
    with pytest.raises(ReconstructError, match="as if"):
        derive(derived(ONE))
    assert (during, gc.get_threshold()) == ([rarely], before)
