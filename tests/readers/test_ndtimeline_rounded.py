"""Labelled jobs as they are published: rounded times, and tables and timelines that overlap in part.

What is expected is known from how the jobs were made (``labelled.py``): every label, of every message.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from helpers.labelled import SLOT_S, Row, job, ndtimeline_events, write_events, write_table
from helpers.recorded import data
from helpers.thorough import drawn, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import UnmatchedTransfer
from tracetool.ingestion import discover, ingest
from tracetool.ingestion.runs import open_run
from tracetool.reconstruction import reconstruct

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

STRETCH = 100
"""Slots of 100 ms, as real computes last: rounding to 0.1 ms is little beside them."""


def _shown(rows: list[Row], *, late_s: float = 0.0, tick_s: float = 0.0) -> list[dict[str, Any]]:
    """The rows with messages that reach into the computes beside them, and times rounded to a tick."""
    shown = []
    for row in rows:
        columns = dict(row.columns)
        columns["duration"] = SLOT_S * STRETCH
        columns["start_ts"] *= STRETCH
        if not columns["optype"].endswith("compute"):
            columns["start_ts"] -= late_s
            columns["duration"] += 2 * late_s
        if tick_s:
            columns |= {name: round(columns[name] / tick_s) * tick_s for name in ("start_ts", "duration")}
        shown.append(columns)
    return shown


def _labels(run: Run) -> Counter[tuple[int, str]]:
    found = run.rows("SELECT rank, label FROM events UNION ALL SELECT rank, label FROM comms")
    return Counter((rank, label) for rank, label in found if label)


def _expected(rows: list[Row]) -> Counter[tuple[int, str]]:
    return Counter((row.columns["rank"], row.label) for row in rows if row.label)


# Numbers of 32 bits are rounded, which those of 64 are not; by how much messages reach in is the other question.
@spread("late_us", [0, 40, 60, 130, 2000])
@spread("single", [True, False], 1)
def test_messages_that_reach_into_computes_are_labelled_by_number(
    late_us: int, *, single: bool, tmp_path: Path
) -> None:
    rows = job(3, 1, 4, steps=2)
    path = write_table(tmp_path / "t.parquet", _shown(rows, late_s=late_us / 1e6), single=single)
    assert _labels(ingest([path], tmp_path / "x.run")) == _expected(rows)


@drawn(25, first=4)
@given(
    tick_us=st.sampled_from([1, 61, 122, 131, 1000, 20000]),
    sizes=st.tuples(st.integers(2, 3), st.integers(1, 2), st.integers(1, 4)),
    idle=st.booleans(),
    base_s=st.sampled_from([0.0, 30.1, 1000.0]),
)
def test_rounded_times_cost_no_label(
    tmp_path_factory: pytest.TempPathFactory, tick_us: int, sizes: tuple[int, int, int], base_s: float, *, idle: bool
) -> None:
    """Times rounded to any tick below a fifth of a compute; at 1000 s the table's own floats are 61 us apart."""
    rows = job(*sizes, idle=idle)
    shown = _shown(rows, tick_s=tick_us / 1e6)
    for columns in shown:
        columns["start_ts"] += base_s
    folder = tmp_path_factory.mktemp("rounded")
    assert _labels(ingest([write_table(folder / "t.parquet", shown)], folder / "x.run")) == _expected(rows)


def test_the_published_overlap_is_labelled() -> None:
    run = open_run([data("cases", "straggler-table-overlap-60us")])
    labels = Counter(label.rstrip("0123456789")[-6:] for (label,) in run.rows("SELECT label FROM comms"))
    assert sum(labels.values()) == 32
    assert run.rows("SELECT count(DISTINCT microbatch) FROM ops") == [(4,)]


def _files(folder: Path, table: range, timeline: range, *, off_s: float = 0.0) -> list[Path]:
    rows = job(2, 1, 3, steps=6)
    drawn = ndtimeline_events([row for row in rows if row.columns["step"] in timeline])
    for event in drawn:
        event["ts"] += 10**6 * event["args"]["step"]
        event["dur"] += off_s * 10**6
    listed = [dict(row.columns) for row in rows if row.columns["step"] in table]
    return [write_events(folder / "timeline.json", drawn), write_table(folder / "t.parquet", listed, single=False)]


@spread(
    ("table", "timeline", "said"),
    [
        (range(4), range(4), []),
        (range(4), range(6), ["has 2 steps more, not read: 4-5"]),
        (range(6), range(2), ["lacks 4 steps: 2-5"]),
        (range(1, 4), range(5), ["has 2 steps more, not read: 0, 4"]),
        (range(4), range(2, 6), ["has 2 steps more, not read: 4-5", "lacks 2 steps: 0-1"]),
    ],
)
def test_the_table_is_taken_whatever_steps_the_timeline_has(
    table: range, timeline: range, said: list[str], tmp_path: Path
) -> None:
    files = _files(tmp_path, table, timeline)
    found = discover(files)
    assert {item.source.path for item in found.sources} == {files[1]}
    (left,) = found.left
    assert left.path == files[0]
    assert "t.parquet" in left.reason
    assert all(words in left.reason for words in said)
    assert left.reason.count(";") == len(said)
    run = ingest(files, tmp_path / "x.run")
    assert [step for (step,) in run.rows("SELECT DISTINCT step FROM steps ORDER BY ALL")] == list(table)


def test_other_operations_under_the_same_ranks_are_a_conflict(tmp_path: Path) -> None:
    """Two measurements of the same ranks and steps: nothing tells which of them is meant."""
    found = discover(_files(tmp_path, range(4), range(6), off_s=0.0001), keep_conflicts=True)
    assert any("both say rank 0" in conflict.message for conflict in found.conflicts)


def test_of_two_tables_with_the_same_operations_the_longer_is_taken(tmp_path: Path) -> None:
    rows = job(2, 1, 2, steps=3)
    short = write_table(tmp_path / "a.parquet", [dict(r.columns) for r in rows if r.columns["step"] < 2])
    whole = write_table(tmp_path / "b.parquet", [dict(r.columns) for r in rows])
    found = discover([short, whole])
    assert {item.source.path for item in found.sources} == {whole}
    assert [left.path for left in found.left] == [short]


def test_the_published_timeline_with_more_steps_is_left() -> None:
    found = discover([data("cases", "straggler-timeline-has-more-steps")])
    assert {item.source.path.name for item in found.sources} == {"trace-X.parquet"}
    assert any("1 step more, not read: 12" in left.reason for left in found.left)


def test_the_hint_is_about_the_table(tmp_path: Path) -> None:
    """Messages begin before the middle of their computes: no reading fits, and no profiler's activity would help."""
    shown = _shown(job(2, 1, 4), late_s=0.8 * SLOT_S * STRETCH)
    run = ingest([write_table(tmp_path / "t.parquet", shown)], tmp_path / "x.run")
    with pytest.raises(UnmatchedTransfer) as error:
        reconstruct(run)
    assert "ProfilerActivity" not in (error.value.hint or "")
    assert "export the table anew" in (error.value.hint or "")


def test_of_two_timelines_that_overlap_the_longer_is_taken(tmp_path: Path) -> None:
    rows = job(2, 1, 2, steps=5)
    paths = []
    for name, steps in (("a.json", range(2)), ("b.json", range(4)), ("c.json", range(4, 5))):
        events = ndtimeline_events([row for row in rows if row.columns["step"] in steps])
        for event in events:
            event["ts"] += 10**6 * event["args"]["step"]
        paths.append(write_events(tmp_path / name, events))
    found = discover(paths)
    assert {item.source.files for item in found.sources} == {(paths[1], paths[2])}
    assert [left.path for left in found.left] == [paths[0]]
    run = ingest(paths, tmp_path / "x.run")
    assert [step for (step,) in run.rows("SELECT DISTINCT step FROM steps ORDER BY ALL")] == [0, 1, 2, 3, 4]
