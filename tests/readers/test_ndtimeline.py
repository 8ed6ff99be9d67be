"""The NDTimeline reader on the straggler analysis' published job (4 stages x 2 data-parallel ranks, 32 steps).

Expectations come from an independent parse in this file (pyarrow rows and exact fractions, json), from the
published results, and from the closed form of 1F1B.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from functools import cache
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import ROOT, data, run_of

from tracetool.ingestion import discover
from tracetool.model.action import Action
from tracetool.readers import READERS
from tracetool.readers.ndtimeline import READER

if TYPE_CHECKING:
    from pathlib import Path

JOB = ("torch", "ByteDance-Seed+StragglerAnalysis")
COMPUTES = ("forward-compute", "backward-compute")
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")


@cache
def table_rows() -> list[dict[str, Any]]:
    """The table, with times in ns: the stored binary values as fractions, rounded half to even."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(data(*JOB, "trace-ST.parquet")).to_pylist()
    for row in rows:
        row["start_ns"] = round(Fraction(row["start_ts"]) * 10**9)
        row["duration_ns"] = round(Fraction(row["duration"]) * 10**9)
    return rows


@cache
def timeline_events(name: str) -> list[dict[str, Any]]:
    """The spans of a timeline, their numbers as decimals; rank is the thread over the five classes."""
    text = gzip.decompress(data(*JOB, name).read_bytes())
    spans = [e for e in json.loads(text, parse_float=Decimal) if e["ph"] == "X"]
    return [
        {
            "rank": e["tid"] // 5, "step": e["args"]["step"], "optype": e["name"], "seq_id": e["args"]["seq_id"],
            "start_ns": round(Decimal(e["ts"]) * 1000), "duration_ns": round(Decimal(e["dur"]) * 1000),
        }
        for e in spans
    ]  # fmt: skip


def published() -> dict[str, Any]:
    """The published what-if results."""
    results: dict[str, Any] = json.loads(data(*JOB, "result-ST.json").read_text())
    return results


@pytest.fixture(scope="module")
def timeline_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the recorded timeline."""
    folder = tmp_path_factory.mktemp("timeline")
    shutil.copy(data(*JOB, "timeline-ST.json.gz"), folder / "any name")
    return folder


def test_each_rank_is_a_source() -> None:
    finding = READER.find(sorted(data(*JOB).iterdir()))
    assert [s.member for s in finding.sources] == [f"rank {rank}" for rank in range(8)]
    assert {tuple(f.name for f in s.files) for s in finding.sources} == {("trace-ST.parquet", "meta-ST.yaml")}
    left = {one.path.name: one.reason for one in finding.left}
    assert left.keys() == {"timeline-ST.json.gz", "ideal-timeline-ST.json.gz"}
    assert "drawn from the same operations as trace-ST.parquet" in left["timeline-ST.json.gz"]
    assert "simulated" in left["ideal-timeline-ST.json.gz"]


def test_simulated_timeline_alone_is_left() -> None:
    finding = READER.find([data(*JOB, "ideal-timeline-ST.json.gz")])
    assert not finding.sources
    assert "simulated" in finding.left[0].reason


def test_ranks_and_groups() -> None:
    """The published description: dp 2, pp 4, tp 1; the table: rank = stage * 2 + dp_rank."""
    run = run_of(data(*JOB))
    ranks = run.rows("SELECT rank, world_size, pp_rank, dp_rank, tp_rank FROM ranks ORDER BY rank")
    assert ranks == [(rank, 8, rank // 2, rank % 2, 0) for rank in range(8)]
    groups = {(rank, name): ranks for rank, name, ranks in run.rows("SELECT rank, name, ranks FROM groups")}
    for rank in range(8):
        assert groups[rank, "pp"] == [rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6]
        assert groups[rank, "dp"] == [rank // 2 * 2, rank // 2 * 2 + 1]


def test_counts_and_sums_of_every_operation() -> None:
    run = run_of(data(*JOB))
    expected: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in table_rows():
        expected[row["rank"], row["optype"]][0] += 1
        expected[row["rank"], row["optype"]][1] += row["duration_ns"]
    events = run.rows("SELECT rank, name, count(*), sum(duration_ns) FROM events GROUP BY ALL")
    assert {(rank, name): [count, total] for rank, name, count, total in events} == {
        key: value for key, value in expected.items() if key[1] in (*COMPUTES, "optimizer")
    }
    comms = run.rows(
        "SELECT rank, CASE WHEN operation IN ('send', 'recv') THEN (CASE WHEN label LIKE '%_F%' THEN 'forward' ELSE "
        "'backward' END) || '-' || operation ELSE operation || ' ' || \"group\" END AS name, count(*), "
        "sum(end_ns - start_ns) FROM comms GROUP BY ALL"
    )
    names = {name: name for name in MESSAGES} | {
        "allgather dp": "params-all-gather", "reducescatter dp": "grads-reduce-scatter",
        "allreduce embedding": "embedding-grads-all-reduce", "allreduce tp": "layernorm-grads-all-reduce",
        "allreduce world": "optimizer-clip-main-grad",
    }  # fmt: skip
    assert {(rank, names[name]): [count, total] for rank, name, count, total in comms} == {
        key: value for key, value in expected.items() if key[1] not in (*COMPUTES, "optimizer", "gc")
    }
    reports = run.manifest["sources"]
    assert all(r["dropped"] == {} and r["repaired"] == {} for r in reports)
    assert sum(r["skipped"]["garbage collection of the host"] for r in reports) == sum(
        count for (_, name), (count, _) in expected.items() if name == "gc"
    )


def test_starts_within_each_step() -> None:
    """Steps are laid end to end, in order of number: the offset is the sum of all extents before."""
    run = run_of(data(*JOB))
    offsets, end = {}, 0
    for step in sorted({row["step"] for row in table_rows()}):
        members = [row for row in table_rows() if row["step"] == step]
        offsets[step] = end - min(r["start_ns"] for r in members)
        end += max(r["start_ns"] + r["duration_ns"] for r in members) - min(r["start_ns"] for r in members)
    expected = Counter((r["rank"], r["start_ns"] + offsets[r["step"]]) for r in table_rows() if r["optype"] != "gc")
    starts = run.rows("SELECT rank, start_ns FROM events UNION ALL SELECT rank, start_ns FROM comms")
    assert Counter(starts) == expected


def test_step_times_are_the_published_ones() -> None:
    """``step_t_base`` is the time of a step in seconds, of 32-bit floats: one of their distances may be missing."""
    run = run_of(data(*JOB))
    steps = run.rows("SELECT step, max(end_ns) - min(start_ns) FROM steps GROUP BY step")
    base = published()["step_t_base"]
    assert {str(step) for step, _ in steps} == base.keys()
    for step, length in steps:
        assert abs(length - Decimal(base[str(step)]) * 10**9) <= 240


def test_order_is_1f1b() -> None:
    """Closed form: stage s runs min(p - 1 - s, m) forwards, then forward and backward in turn, then the rest."""
    run = run_of(data(*JOB))
    p, m = 4, 4
    orders: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, step, label in run.rows(
        "SELECT e.rank, s.step, e.label FROM events AS e JOIN steps AS s ON s.rank = e.rank "
        "AND e.start_ns >= s.start_ns AND e.start_ns < s.end_ns WHERE e.label IS NOT NULL ORDER BY e.start_ns"
    ):
        orders[rank, step].append(label)
    assert len(orders) == 8 * 32
    for (rank, _), order in orders.items():
        s = rank // 2
        warmup = p - 1 - s
        steady = [text for i in range(m - warmup) for text in (f"{s}F{warmup + i}", f"{s}B{i}")]
        assert order == [
            *(f"{s}F{i}" for i in range(warmup)), *steady, *(f"{s}B{i}" for i in range(m - warmup, m)),
        ]  # fmt: skip


def test_sends_and_receives_match() -> None:
    """First in, first out per source and destination: labels are those of one message, ends agree."""
    run = run_of(data(*JOB))
    queues: dict[tuple[int, int], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for rank, operation, peer, label, end, payload in run.rows(
        "SELECT rank, operation, peer, label, end_ns, payload_bytes FROM comms "
        "WHERE operation IN ('send', 'recv') ORDER BY rank, position"
    ):
        assert payload is None
        sent = operation == "send"
        queues[(rank, peer) if sent else (peer, rank)][not sent].append((Action.parse(label), end))
    assert len(queues) == 2 * 3 * 2  # pipelines x neighbours x directions
    for (src, dst), (sends, recvs) in queues.items():
        assert len(sends) == len(recvs) == 4 * 32
        for (send, sent_ns), (recv, received_ns) in zip(sends, recvs, strict=True):
            assert (send.stage, recv.stage) == (src // 2, dst // 2)
            assert send.kind.value[-1] == recv.kind.value[-1] == ("F" if dst > src else "B")
            assert send.microbatch == recv.microbatch
            assert abs(sent_ns - received_ns) < 200_000  # both ends of one transfer; clocks of different hosts


def test_batches_are_pairs_of_one_span() -> None:
    run = run_of(data(*JOB))
    spans: dict[tuple[int, int, int, int], set[str]] = defaultdict(set)
    for row in table_rows():
        if row["optype"] in MESSAGES:
            key = (row["rank"], row["step"], row["start_ns"], row["duration_ns"])
            spans[key].add(row["optype"].split("-")[1])
    grouped = sum(sides == {"send", "recv"} for sides in spans.values())
    pairs = run.rows("SELECT rank, batch FROM comms GROUP BY ALL HAVING count(*) = 2")
    singles = run.rows("SELECT rank, batch FROM comms GROUP BY ALL HAVING count(*) <> 2")
    assert len(pairs) == grouped > 0
    assert len(singles) == sum(row["optype"] not in COMPUTES for row in table_rows()) - 512 - 2 * grouped


def test_timeline_alone(timeline_only: Path) -> None:
    """Every operation of the timeline's own text is there, at its time; labels are those of the table."""
    run = run_of(timeline_only)
    starts = run.rows(
        "SELECT rank, start_ns, duration_ns FROM events UNION ALL SELECT rank, start_ns, end_ns - start_ns FROM comms"
    )
    events = [e for e in timeline_events("timeline-ST.json.gz") if e["optype"] != "gc"]
    assert Counter(starts) == Counter((e["rank"], e["start_ns"], e["duration_ns"]) for e in events)
    labels = "SELECT rank, label, count(*) FROM events GROUP BY ALL UNION ALL SELECT rank, label, count(*) FROM comms"
    assert Counter(run.rows(f"{labels} GROUP BY ALL")) == Counter(run_of(data(*JOB)).rows(f"{labels} GROUP BY ALL"))


def test_timeline_shows_the_tables_operations() -> None:
    """Same operations, same ends; only what waits for others starts later in the timeline.

    A timeline begins a communication when the last of its ranks has begun it, and puts a tenth of a step
    between steps. Its ends are sums of 32-bit floats, hence the microsecond.
    """
    table = {(r["rank"], r["step"], r["optype"], r["seq_id"]): r for r in table_rows()}
    timeline = {(e["rank"], e["step"], e["optype"], e["seq_id"]): e for e in timeline_events("timeline-ST.json.gz")}
    assert table.keys() == timeline.keys()
    shifts: dict[int, set[int]] = defaultdict(set)
    for key, row in table.items():
        event = timeline[key]
        if row["optype"] in COMPUTES or row["optype"] == "optimizer":
            assert event["duration_ns"] == row["duration_ns"]
            shifts[row["step"]].add(event["start_ns"] - row["start_ns"])
    assert all(max(some) - min(some) <= 1 for some in shifts.values())
    for key, row in table.items():
        event, shift = timeline[key], min(shifts[row["step"]])
        end = event["start_ns"] + event["duration_ns"] - shift
        assert abs(end - row["start_ns"] - row["duration_ns"]) <= 1000
        assert event["duration_ns"] <= row["duration_ns"] + 1000


def test_transfer_times_are_those_of_the_simulation() -> None:
    """The ideal timeline gives every compute the mean and every transfer the median over the whole job."""
    ideal = {e["optype"]: e["duration_ns"] for e in timeline_events("ideal-timeline-ST.json.gz")}
    run = run_of(data(*JOB))
    for name in (*COMPUTES, "optimizer"):
        durations = [d for (d,) in run.rows("SELECT duration_ns FROM events WHERE name = ?", [name])]
        assert abs(mean(durations) - ideal[name]) <= 10  # their mean is one of 32-bit floats
    rows = run.rows(
        "SELECT rank, peer, operation, start_ns, end_ns, label FROM comms "
        "WHERE operation IN ('send', 'recv') ORDER BY rank, position"
    )
    queues: dict[tuple[int, int], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for rank, peer, operation, start, end, label in rows:
        sent = operation == "send"
        queues[(rank, peer) if sent else (peer, rank)][not sent].append((start, end, label))
    moving: dict[str, list[int]] = defaultdict(list)
    for sends, recvs in queues.values():
        for send, recv in zip(sends, recvs, strict=True):
            both = max(send[0], recv[0])
            for (_, end, label), side in ((send, "send"), (recv, "recv")):
                moving[f"{'forward' if '_F' in label else 'backward'}-{side}"].append(end - both)
    for name, durations in moving.items():
        assert abs(median(durations) - ideal[name]) <= 240


def test_nobody_takes_the_others_files() -> None:
    kineto = READERS.get("kineto")
    own = sorted(data(*JOB).iterdir())
    assert not kineto.find(own).sources
    others = [*data("torch").glob("[!B]*/**/*"), *data("broken").rglob("*"), *(ROOT / "sample_traces").rglob("*")]
    finding = READER.find([f for f in others if f.is_file()])
    assert not finding.sources
    assert not finding.left
    assert {f.reader for f in discover([ROOT / "sample_traces" / "h100-1f1b"]).sources} == {"kineto"}
