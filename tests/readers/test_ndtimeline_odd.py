"""The NDTimeline reader on made-up jobs: chunks, other sizes, other forms, and damage.

What is expected is known from how the jobs were made (``labelled.py``).
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from helpers.labelled import Row, job, ndtimeline_events, write_events, write_table
from helpers.notices import texts
from helpers.thorough import drawn
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import DuplicateRank, MalformedTrace
from tracetool.ingestion import discover, ingest
from tracetool.readers import FilePlace, SourceReport
from tracetool.readers.ndtimeline import READER
from tracetool.readers.ndtimeline.layout import NamedMessage, messages_of
from tracetool.readers.ndtimeline.table import seconds_ns

Table = list[dict[str, Any]]


def read(*files: Path) -> tuple[dict[str, Table], dict[int, SourceReport]]:
    """All rows of the ranks found in the files, and what was said about each rank."""
    tables: dict[str, Table] = {"events": [], "comms": [], "steps": []}
    reports = {}
    for source in READER.find(files).sources:
        identity = READER.identify(source)
        assert identity.rank is not None
        report = reports[identity.rank] = SourceReport()
        advanced: list[int] = []
        for name, rows in READER.read(source, identity.rank, identity, frozenset(), report, advanced.append):
            tables[name] += rows.to_pylist()
        assert sum(advanced) == source.size_bytes
    return tables, reports


def columns(rows: list[Row]) -> Table:
    return [dict(row.columns) for row in rows]


def labels_of(rows: list[Row]) -> Counter[tuple[int, str]]:
    return Counter((row.columns["rank"], row.label) for row in rows if row.label)


def labels_in(tables: dict[str, Table]) -> Counter[tuple[int, str]]:
    return Counter((row["rank"], row["label"]) for name in ("events", "comms") for row in tables[name] if row["label"])


@given(st.floats(-(10**9), 10**9), st.booleans())
def test_seconds_are_rounded_once(value: float, single: bool) -> None:
    import numpy as np

    stored = float(np.float32(value)) if single else value
    assert seconds_ns(stored) == round(Fraction(stored) * 10**9)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, None, "1.0", 3])
def test_no_seconds(value: object) -> None:
    assert seconds_ns(value) is None


def test_names_of_batches() -> None:
    """Megatron's timer names: each lists what it holds."""
    assert messages_of("forward-send") == (NamedMessage("send", "F"),)
    assert messages_of("backward-send-forward-recv") == (NamedMessage("send", "B"), NamedMessage("recv", "F"))
    assert messages_of("forward-backward-send-forward-backward-recv") == (
        NamedMessage("send", "F"), NamedMessage("send", "B"), NamedMessage("recv", "F"), NamedMessage("recv", "B"),
    )  # fmt: skip
    assert messages_of("cross-mesh-recv") == (NamedMessage("recv", None),)
    for other in ("forward-compute", "send", "forward", "forward-send-", "xforward-send", "forward-send-x"):
        assert messages_of(other) == ()


@drawn(30, first=4)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 2), st.integers(1, 2), st.booleans(),
    st.booleans(), st.sets(st.sampled_from(["gmc", "seq_id", "note"])),
)  # fmt: skip
def test_every_job_gets_its_labels(
    pp: int, chunks: int, microbatches: int, dp: int, steps: int, idle: bool, interleaved: bool, changed: set[str]
) -> None:
    """Whatever its size, and whichever optional columns are missing or added."""
    rows = job(pp, chunks, microbatches, dp, steps=steps, idle=idle, interleaved=interleaved)
    shown = columns(rows)
    for row in shown:
        row.pop("gmc" if "gmc" in changed else "", None)
        row.pop("seq_id" if "seq_id" in changed else "", None)
        if "note" in changed:
            row["note"] = "x"
    with TemporaryDirectory() as folder:
        tables, reports = read(write_table(Path(folder) / "t", shown))
    assert labels_in(tables) == labels_of(rows)
    assert not any(report.dropped or report.repaired for report in reports.values())
    stages = pp * chunks
    for row in tables["comms"]:
        stage = int(row["label"].partition("SEND" if row["operation"] == "send" else "RECV")[0])
        ahead = (row["operation"] == "send") == ("_F" in row["label"])
        other = stage + (1 if ahead else -1)
        assert 0 <= other < stages
        assert row["peer"] == other % pp * dp + row["rank"] % dp
    silent = "send or receive that nothing is behind"
    assert sum(report.skipped[silent] for report in reports.values()) == 4 * microbatches * dp * steps * idle


@drawn(60, first=4)
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.booleans(), st.booleans(), st.data())
def test_lost_rows_never_move_a_label(
    pp: int, chunks: int, microbatches: int, idle: bool, interleaved: bool, draw: st.DataObject
) -> None:
    """With any rows lost or damaged, what is labelled is labelled rightly."""
    rows = job(pp, chunks, microbatches, idle=idle, interleaved=interleaved)
    truth = {(r.columns["rank"], round(r.columns["start_ts"] * 10**9), r.columns["optype"]): r.label for r in rows}
    shown = columns(rows)
    for index in sorted(draw.draw(st.sets(st.integers(0, len(shown) - 1), max_size=3)), reverse=True):
        damage = draw.draw(st.sampled_from(["lost", "start_ts", "optype", "mb_id", "step", "rank"]))
        if damage == "lost":
            del shown[index]
        else:
            shown[index][damage] = None
    try:
        with TemporaryDirectory() as folder:
            tables, _ = read(write_table(Path(folder) / "t", shown, single=False))
    except MalformedTrace:
        return
    for name in ("events", "comms"):
        for row in tables[name]:
            kind = row["name"] if name == "events" else None
            if row["label"]:
                at = [k for k in truth if k[0] == row["rank"] and k[1] == row["start_ns"] and k[2] == (kind or k[2])]
                assert row["label"] in [truth[key] for key in at]


def test_loss_that_another_reading_fits_leaves_no_label(tmp_path: Path) -> None:
    """Two receives that nothing is behind are left of four: as many as the second chunk needs."""
    rows = job(2, 2, 2, idle=True, interleaved=True)
    shown = [c for c in columns(rows) if not (c["rank"] == 0 and c["optype"] == "forward-recv" and c["seq_id"] >= 2)]
    tables, _ = read(write_table(tmp_path / "t", shown))
    received = [row for row in tables["comms"] if row["rank"] == 0 and row["operation"] == "recv"]
    assert [row["label"] for row in received] == [None, None, *(row["label"] for row in received[2:])]
    missing = labels_of(rows) - labels_in(tables)
    assert set(missing) == {(0, "2RECV_F0"), (0, "2RECV_F1")}


def test_steps_are_laid_end_to_end(tmp_path: Path) -> None:
    """The n-th step begins where the one before ended, whatever its own clock said."""
    shown = columns(job(2, 1, 2, steps=3))
    for row in shown:
        row["start_ts"] += 8 - row["step"]
    tables, _ = read(write_table(tmp_path / "t", shown, single=False))
    spans = {
        step: (
            min(row["start_ns"] for row in tables["steps"] if row["step"] == step),
            max(row["end_ns"] for row in tables["steps"] if row["step"] == step),
        )
        for step in range(3)
    }
    assert spans[0][0] == 0
    assert spans[1][0] == spans[0][1]
    assert spans[2][0] == spans[1][1]


def test_unnumbered_events_of_a_damaged_rank_get_no_label(tmp_path: Path) -> None:
    events = ndtimeline_events(job(2, 1, 3))
    next(e for e in events if e["args"]["rank"] == 1 and e["name"] == "forward-compute")["ts"] = None
    tables, reports = read(write_events(tmp_path / "t", events))
    assert reports[1].dropped == {"time is no number": 1}
    assert {rank for rank, _ in labels_in(tables)} == {0}


def test_placement_that_is_no_loop_is_followed() -> None:
    """V-shaped: stages 0 and 3 on rank 0, 1 and 2 on rank 1; so says the global chunk of every compute."""
    rows = []
    for at, stage in enumerate([0, 1, 2, 3]):
        rank = min(stage, 3 - stage)
        rows.append({
            "dp_rank": 0, "stage": rank, "rank": rank, "step": 0, "optype": "forward-compute", "start_ts": at * 0.5,
            "duration": 0.25, "seq_id": stage // 2, "mc": stage // 2, "mb_id": 0, "gmc": stage,
        })  # fmt: skip
    with TemporaryDirectory() as folder:
        tables, reports = read(write_table(Path(folder) / "t", rows))
    assert {(e["rank"], e["label"]) for e in tables["events"]} == {(0, "0F0"), (1, "1F0"), (1, "2F0"), (0, "3F0")}
    assert any("not placed in loops" in note for note in texts(reports[0].notes))


@pytest.mark.parametrize(
    ("change", "dropped", "repaired"),
    [
        ({"start_ts": math.nan}, "time is no number", None),
        ({"duration": math.inf}, "time is no number", None),
        ({"duration": -1.0}, None, "negative duration set to 0"),
        ({"mb_id": None}, None, "compute without its stage or microbatch: kept without label"),
        ({"mb_id": -1}, None, "compute without its stage or microbatch: kept without label"),
        ({"optype": "coffee"}, "row of an unknown optype", None),
        ({"optype": None}, "row of an unknown optype", None),
        ({"step": None}, "row without rank, dp_rank, stage or step", None),
        ({"rank": None}, "row without rank, dp_rank, stage or step", None),
        ({"stage": -1}, "row without rank, dp_rank, stage or step", None),
    ],
)
def test_damaged_row_is_counted_with_its_place(
    tmp_path: Path, change: dict[str, Any], dropped: str | None, repaired: str | None
) -> None:
    rows = job(2, 1, 3)
    shown = columns(rows)
    index = next(i for i, row in enumerate(shown) if row["rank"] == 0 and row["optype"] == "forward-compute")
    shown[index] |= change
    table = write_table(tmp_path / "t", shown)
    tables, reports = read(table)
    assert reports[0].dropped == Counter([dropped] if dropped else [])
    assert reports[0].repaired == Counter([repaired] if repaired else [])
    place = reports[0].places[dropped or repaired or ""]
    assert (place.file, place.at, place.unit) == (str(table), index + 1, "line")
    assert not reports[1].dropped
    assert len(tables["events"]) + len(tables["comms"]) == len(rows) - (dropped is not None)


def test_damaged_row_group_costs_its_own_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = write_table(tmp_path / "t", columns(job(2, 1, 10)))
    whole, _ = read(table)
    column = pq.ParquetFile(table).metadata.row_group(1).column(0)
    content = bytearray(table.read_bytes())
    at = column.dictionary_page_offset or column.data_page_offset
    content[at : at + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    table.write_bytes(bytes(content))
    tables, reports = read(table)
    lost = reports[0].dropped["row in a damaged part of the table (of any rank)"]
    assert lost == 16  # of 80 rows in groups of 64
    assert reports[0].places["row in a damaged part of the table (of any rank)"].at == 65
    assert len(tables["events"]) + len(tables["comms"]) == len(whole["events"]) + len(whole["comms"]) - lost


def test_truncated_table_is_left(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", columns(job(2, 1, 2)))
    table.write_bytes(table.read_bytes()[:-100])
    finding = READER.find([table])
    assert not finding.sources
    assert "cannot be opened" in finding.left[0].reason


def test_other_parquet_files_are_unknown(tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "optype"} for row in columns(job(2, 1, 2))]
    finding = READER.find([write_table(tmp_path / "t", rows)])
    assert not finding.sources
    assert not finding.left


def test_description_of_another_job_is_not_used(tmp_path: Path) -> None:
    table = write_table(tmp_path / "t", columns(job(2, 1, 2)))
    for name, pp in (("own", 2), ("other", 4)):
        text = f"trial_name: X\ndp_size: 1\npp_size: {pp}\ntp_size: 8\nworld_size: {8 * pp}\n"
        (tmp_path / name).write_text(text)
    (source, _) = READER.find([table, tmp_path / "other", tmp_path / "own"]).sources
    assert [file.name for file in source.files] == ["t", "own"]
    assert READER.identify(source).world_size == 16


@pytest.mark.parametrize("as_object", [False, True])
def test_ndtimeline(tmp_path: Path, as_object: bool) -> None:
    """No microbatches are named: they are numbered by start. Times are Unix microseconds."""
    rows = job(3, 1, 4, dp=2)
    path = write_events(tmp_path / "trace_step0_0", ndtimeline_events(rows), as_object=as_object)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert {f.reader for f in discover([path]).sources} == {"ndtimeline"}
    tables, reports = read(path)
    assert labels_in(tables) == labels_of(rows)
    assert all(row["start_ns"] >= 1_700_000_000 * 10**9 for name in tables for row in tables[name])
    assert {row["evidence"] for row in tables["comms"]} == {"inferred"}
    assert any("numbered in order of start" in note for note in texts(reports[0].notes))
    assert READER.identify(READER.find([path]).sources[3]).groups[0].ranks == (1, 3, 5)


@pytest.mark.parametrize("longer_us", [0, 5])
def test_timeline_is_left_only_if_it_shows_the_table(tmp_path: Path, longer_us: int) -> None:
    """The same ranks and steps are not enough: their computes must last equally long."""
    rows = job(2, 1, 3)
    table = write_table(tmp_path / "table", columns(rows), single=False)
    events = ndtimeline_events(rows)
    for event in events:
        event["dur"] += longer_us
    timeline = write_events(tmp_path / "timeline", events)
    finding = READER.find([table, timeline])
    assert [one.path for one in finding.left] == ([] if longer_us else [timeline])
    assert {source.path for source in finding.sources} == {table, *([timeline] if longer_us else [])}
    if longer_us:
        with pytest.raises(DuplicateRank):
            discover([tmp_path])


def test_unnamed_chunks_are_not_guessed(tmp_path: Path) -> None:
    tables, reports = read(write_events(tmp_path / "t", ndtimeline_events(job(3, 2, 4))))
    assert not labels_in(tables)
    assert any("no model chunks are named" in note for note in texts(reports[0].notes))
    assert all(row["peer"] in ((row["rank"] + 1) % 3, (row["rank"] - 1) % 3) for row in tables["comms"])


def test_batched_operations_share_a_batch(tmp_path: Path) -> None:
    """Rank 1 of three sends an activation on and receives a gradient in one operation."""
    rows = job(3, 1, 1)
    events = [e for e in ndtimeline_events(rows) if e["args"]["rank"] != 1 or e["name"] != "backward-recv"]
    (send,) = (e for e in events if e["args"]["rank"] == 1 and e["name"] == "forward-send")
    backward = next(e for e in events if e["args"]["rank"] == 1 and e["name"] == "backward-compute")
    send |= {"name": "forward-send-backward-recv", "cat": "forward-send-backward-recv"}
    send["dur"] = backward["ts"] - send["ts"]
    tables, _ = read(write_events(tmp_path / "t", events))
    assert labels_in(tables) == labels_of(rows)
    batches = Counter((row["rank"], row["batch"]) for row in tables["comms"])
    pair = [row for row in tables["comms"] if batches[row["rank"], row["batch"]] == 2]
    assert [row["label"] for row in pair] == ["1SEND_F0", "1RECV_B0"]
    assert {(row["start_ns"], row["end_ns"], row["peer"]) for row in pair} == {
        (send["ts"] * 1000, backward["ts"] * 1000, 2)
    }


def test_files_of_one_job_are_read_together(tmp_path: Path) -> None:
    """NDTimeline writes a file per host and flush; ranks and steps are spread over them."""
    events = ndtimeline_events(job(2, 1, 2, steps=2))
    for event in events:
        event["ts"] += event["args"]["step"] * 10**6
    parts = [
        write_events(tmp_path / f"{part}", [e for e in events if (e["args"]["rank"], e["args"]["step"]) == part])
        for part in itertools.product(range(2), range(2))
    ]
    run = ingest(parts, tmp_path / "x.run")
    whole = ingest([write_events(tmp_path / "all", events)], tmp_path / "y.run")
    for table in ("events", "comms", "steps", "groups"):
        query = f"SELECT * FROM {table} ORDER BY ALL"
        assert run.rows(query) == whole.rows(query)
        assert run.rows(query)


@pytest.mark.parametrize("bad", ["NaN", "Infinity", '"soon"', "1e999", "null"])
def test_damaged_event_costs_no_other(tmp_path: Path, bad: str) -> None:
    events = ndtimeline_events(job(2, 1, 3))
    text = json.dumps(events).replace(f'"ts": {events[5]["ts"]}', f'"ts": {bad}', 1)
    path = tmp_path / "t"
    path.write_text(text)
    tables, reports = read(path)
    assert sum(report.dropped.total() for report in reports.values()) == 1
    assert len(tables["events"]) + len(tables["comms"]) == len(events) - 1
    assert [r.places["time is no number"] for r in reports.values() if r.dropped] == [FilePlace(str(path), 6, "event")]
    mended = [r.places[reason] for r in reports.values() for reason in r.repaired]
    assert len(mended) == (bad in ("NaN", "Infinity"))
    for place in mended:
        assert text.encode()[place.at :].startswith(b'{"name": "%s"' % events[5]["name"].encode())


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_timeline_keeps_what_is_whole(tmp_path: Path, share: float, zipped: bool) -> None:
    rows = job(2, 1, 40)
    text = json.dumps(ndtimeline_events(rows)).encode()
    path = tmp_path / "t"
    path.write_bytes(gzip.compress(text)[:-8] if zipped else text[: int(len(text) * share)])
    tables, reports = read(path)
    kept = len(tables["events"]) + len(tables["comms"])
    assert kept == len(rows) if zipped else abs(kept / len(rows) - share) < 0.02
    (reason,) = reports[0].dropped
    assert reason.startswith("data after a break") if zipped else reason == "the file ends inside an event"
    assert labels_in(tables) == Counter()  # the number of a microbatch is known from nothing but the whole


@pytest.mark.parametrize("text", ["[]", "[1]", "{}", "", "[{", '[{"ph": "X", "name": "aten::add"}]', "[[[["])
def test_other_json_is_unknown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    finding = READER.find([path])
    assert not finding.sources
    assert not finding.left
