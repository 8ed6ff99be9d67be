"""Messages that only ``c10d`` ops tell of; traces are written by hand in the form of the recorded gloo runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data, run_of
from helpers.thorough import spread

from tracetool.ingestion import ingest

if TYPE_CHECKING:
    from pathlib import Path

GROUP = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 3, "ranks": [2, 5, 7]}
COLUMNS = 'operation, peer, payload_bytes, "group", group_ranks, posted_ns, start_ns, end_ns, evidence'


def _op(name: str, ts: int, dur: int, peer: int | None = None, dims: list[list[int]] | None = None) -> dict[str, Any]:
    args: dict[str, Any] = {"External id": ts}
    if peer is not None:
        args |= {"Concrete Inputs": ["", "", str(peer), "0"], "Input Dims": [dims, [], [], []]}
        args["Input type"] = ["TensorList", "", "Scalar", "Scalar"]
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def _title(name: str, ts: int, dur: int, element: str) -> dict[str, Any]:
    args = {"Input type": [element], "Input Dims": [[1]]}
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def _comms(folder: Path, events: list[dict[str, Any]], groups: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 2, "world_size": 8, "pg_config": groups},
        "baseTimeNanoseconds": 0,
        "traceEvents": events,
    }
    (folder / "rank2.json").write_text(json.dumps(trace), encoding="utf-8")
    return ingest([folder / "rank2.json"], folder / "x.run").rows(f"SELECT {COLUMNS} FROM comms ORDER BY position")


@pytest.mark.parametrize(("element", "size"), [("float", 4), ("c10::BFloat16", 2), ("something new", None)])
def test_an_op_names_the_peer_inside_its_group_and_the_title_the_type(
    tmp_path: Path, element: str, size: int | None
) -> None:
    events = [
        _op("c10d::send", 10, 5, peer=2, dims=[[4, 8], [3]]), _title("gloo:send", 12, 100, element),
        _op("c10d::recv_", 20, 5, peer=1, dims=[[4, 8]]), _title("gloo:recv", 24, 7, element),
    ]  # fmt: skip
    known = "metadata" if size else "unknown"
    assert _comms(tmp_path, events, [GROUP]) == [
        ("send", 7, size and 35 * size, "0", [2, 5, 7], 10_000, 10_000, 112_000, known),
        ("recv", 5, size and 32 * size, "0", [2, 5, 7], 20_000, 20_000, 31_000, known),
    ]


def test_a_title_belongs_to_the_op_it_begins_in(tmp_path: Path) -> None:
    events = [
        _op("c10d::recv_", 10, 5, peer=0, dims=[[8]]),
        _op("c10d::recv_", 20, 5, peer=0, dims=[[8]]), _title("gloo:recv", 22, 3, "float"),
    ]  # fmt: skip
    assert [row[6] for row in _comms(tmp_path, events, [GROUP])] == [None, 20_000]


def test_without_recorded_inputs_or_with_several_groups_the_peer_stays_unknown(tmp_path: Path) -> None:
    bare = [_op("c10d::send", 10, 5), _title("gloo:send", 12, 1, "float")]
    (tmp_path / "a").mkdir()
    assert [row[1:3] for row in _comms(tmp_path / "a", bare, [GROUP])] == [(None, None)]
    named = [_op("c10d::send", 10, 5, peer=1, dims=[[8]]), _title("gloo:send", 12, 1, "float")]
    (tmp_path / "b").mkdir()
    groups = [GROUP, {**GROUP, "pg_name": "1", "ranks": [2, 3]}]
    assert [row[1:3] for row in _comms(tmp_path / "b", named, groups)] == [(None, 32)]


@spread(
    ("more", "peer", "found"),
    [
        ([("3", [2, 5, 7]), ("1", [2, 5, 7])], 1, (5, "0")),
        # Groups of one, without this rank, without a rank in that place, or with this one there, are not meant.
        ([("1", [2]), ("2", [5, 7, 2, 3]), ("3", [3, 4, 6])], 2, (7, "0")),
        ([("1", [2, 3])], 2, (7, "0")),
        ([("1", [])], 2, (7, "0")),
        ([("1", [2, 3]), ("2", [2, 5, 7])], 1, (None, "")),
    ],
)
def test_of_groups_that_could_be_meant_only_their_ranks_count(
    tmp_path: Path, more: list[tuple[str, list[int]]], peer: int, found: tuple[int | None, str]
) -> None:
    groups = [{**GROUP, "pg_name": name, "ranks": ranks} for name, ranks in more]
    events = [_op("c10d::send", 10, 5, peer=peer, dims=[[8]]), _title("gloo:send", 12, 1, "float")]
    ((_, to, size, group, *_),) = _comms(tmp_path, events, [*groups, GROUP])
    assert ((to, group), size) == (found, 32)


def test_an_op_around_a_record_fills_in_its_peer_and_is_not_counted_twice(tmp_path: Path) -> None:
    """Torch 2.4: ``record_param_comms`` has sizes and ranks, but not whom it sends to."""
    record = _op("record_param_comms", 11, 2)
    record["args"] = {
        "Collective name": "send", "dtype": "BFloat16", "In msg nelems": 16, "Out msg nelems": 16,
        "Process Group Name": "0", "Process Group Ranks": "[2, 5, 7]", "Group size": 3,
    }  # fmt: skip
    rows = _comms(tmp_path, [_op("c10d::send", 10, 5, peer=1, dims=[[16]]), record], [GROUP])
    assert [row[:3] for row in rows] == [("send", 5, 32)]
    assert rows[0][-1] == "metadata"


@spread("inputs", [7, "[", '["", "", "x"]', "[[], [], {}]", ["", "", "-1"], ["", "", "99999999999"], '["", "", "²"]'])
def test_inputs_of_any_other_form_name_no_peer(tmp_path: Path, inputs: object) -> None:
    event = _op("c10d::send", 10, 5)
    event["args"] |= {"Concrete Inputs": inputs, "Input Dims": [[[-1]], "x"]}
    assert [row[1:3] for row in _comms(tmp_path, [event], [GROUP])] == [(None, None)]


@pytest.mark.parametrize(("name", "pairs"), [("ScheduleInterleaved1F1B", 224), ("ScheduleZBVZeroBubble", 192)])
def test_no_recorded_message_arrives_before_it_was_sent(name: str, pairs: int) -> None:
    """Matched by order per source and destination; one host, one clock.

    Two steps of 8 microbatches over 7 hops between 8 stages, both ways; a V has 6 hops between ranks.
    """
    run = run_of(data("cpu-gloo-pp4", name))
    order = "row_number() OVER (PARTITION BY rank, operation, peer ORDER BY posted_ns)"
    lags = run.rows(
        f"WITH c AS (SELECT *, {order} AS n FROM comms) "
        "SELECT r.end_ns - s.start_ns, r.payload_bytes - s.payload_bytes "
        "FROM c AS s JOIN c AS r ON s.peer = r.rank AND r.peer = s.rank AND s.n = r.n "
        "WHERE s.operation = 'send' AND r.operation = 'recv'"
    )
    assert len(lags) == pairs
    assert min(lag for lag, _ in lags) > 0
    assert {difference for _, difference in lags} == {0}
