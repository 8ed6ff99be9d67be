"""Kineto traces: nothing lost, nothing invented, every nanosecond exact."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.recorded import SAMPLES, data, h100, run_of
from helpers.thorough import some, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import IngestError
from tracetool.ingestion import ingest
from tracetool.readers.chrome import nanoseconds_of
from tracetool.readers.chrome.compiled import CompiledScanner
from tracetool.readers.chrome.plain import PlainScanner
from tracetool.readers.files import spill
from tracetool.readers.kineto.batch import EventSpans

if TYPE_CHECKING:
    from pathlib import Path

    from tracetool.store.run import Run

CATEGORIES = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "cpu_op": "op",
    "user_annotation": "annotation",
    "overhead": "overhead",
}


def _independent(path: Path) -> tuple[Counter[str], int, int]:
    """Counts per category, and the sums of start and duration, by the standard library and Decimal."""
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    trace = json.loads(text, parse_float=Decimal)
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e.get("cat") in CATEGORIES]
    base = int(trace.get("baseTimeNanoseconds", 0))
    start = sum(base + int(e["ts"] * 1000) for e in spans)
    return Counter(CATEGORIES[e["cat"]] for e in spans), start, sum(int(e["dur"] * 1000) for e in spans)


@spread("name", ["h100-1f1b", "h100-1f1b-annotated"], 1)
def test_samples_are_read_to_the_nanosecond(name: str) -> None:
    _same_as_independent(run_of(SAMPLES / name), SAMPLES / name)


# Further recordings of the samples' job on the same machine have other spans between which times are rounded.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["1f1b_m8_mem", "gpipe_m8"])
def test_recorded_traces_are_read_to_the_nanosecond(name: str) -> None:
    _same_as_independent(h100(name), data("h100-pp4", "traces", name))


def _same_as_independent(run: Run, folder: Path) -> None:
    # Each rank has its own spans between which times are rounded.
    for rank in some(range(4), 1):
        counts, start, duration = _independent(folder / f"rank{rank}.json.gz")
        rows = run.rows("SELECT category, count(*) FROM events WHERE rank = ? GROUP BY category", [rank])
        assert dict(rows) == counts
        sums = run.rows("SELECT sum(start_ns), sum(duration_ns) FROM events WHERE rank = ?", [rank])
        assert sums == [(start, duration)]


@given(st.integers(-(2**60), 2**60))
def test_times_are_taken_from_their_digits(value: int) -> None:
    # Expected: the value itself, written as microseconds with three decimals.
    sign = "-" if value < 0 else ""
    text = f"{sign}{abs(value) // 1000}.{abs(value) % 1000:03d}"
    assert nanoseconds_of(text.encode()) == value
    assert nanoseconds_of(f'"{text}"'.encode()) == value


@pytest.mark.parametrize(
    ("text", "value"), [("5", 5000), ("0.5", 500), ("1e3", 1_000_000), ("1.0005", 1000), ("-0.5", -500)]
)
def test_other_spellings_of_times(text: str, value: int) -> None:
    assert nanoseconds_of(text.encode()) == value


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", '"'])
def test_what_is_no_time_is_refused(text: str) -> None:
    assert nanoseconds_of(text.encode()) is None


def test_small_chunks_give_the_same_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for scanner in (PlainScanner, CompiledScanner):
        monkeypatch.setattr(scanner, "block_bytes", 3000)
    small = ingest([SAMPLES / "h100-1f1b" / "rank1.json.gz"], tmp_path / "small.run")
    whole = run_of(SAMPLES / "h100-1f1b")
    for table in ("events", "comms", "memory", "steps"):
        of_rank = f"SELECT * FROM {table} WHERE rank = 1"
        assert small.query(of_rank).equals(whole.query(of_rank))


def test_allocator_records_are_sorted_however_the_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill, "_IN_MEMORY_BYTES", 100)
    for scanner in (PlainScanner, CompiledScanner):
        monkeypatch.setattr(scanner, "block_bytes", 2000)
    args = {"Device Type": 1, "Device Id": 0, "Total Allocated": 5, "Total Reserved": 9}
    times = list(range(10, 210))
    for number, order in enumerate((times, times[::-1], times[100:] + times[:100])):
        events = [_kernel(1, device=0)] + [
            {"ph": "i", "s": "t", "name": "[memory]", "pid": 0, "tid": 1, "ts": t, "args": {**args, "Bytes": t}}
            for t in order
        ]
        (tmp_path / str(number)).mkdir()
        run = _read(tmp_path / str(number), _trace(events))
        assert run.rows("SELECT time_ns, delta_bytes FROM memory") == [(1000 * t, t) for t in times]


def test_every_send_and_receive_has_its_kernel_and_bytes() -> None:
    """Counted by hand in 1f1b_m8: 72 mixed batches, 24 lone sends, 24 lone receives in two steps."""
    batches = h100("1f1b_m8").rows(
        "SELECT string_agg(operation, '+' ORDER BY operation), count(DISTINCT start_ns), min(payload_bytes), "
        "max(payload_bytes) FROM comms WHERE operation IN ('send', 'recv') GROUP BY rank, batch"
    )
    assert Counter(kinds for kinds, *_ in batches) == {"recv+send": 72, "send": 24, "recv": 24}
    assert {(kernels, low, high) for _, kernels, low, high in batches} == {(1, 16_777_216, 16_777_216)}


def _trace(events: list[dict[str, Any]], **top: Any) -> dict[str, Any]:
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events, **top}


def _kernel(ts: object, dur: object = 1, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def _read(tmp_path: Path, trace: dict[str, Any]) -> Run:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    return ingest([path], tmp_path / "x.run")


def test_absolute_and_relative_times(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    absolute = _read(tmp_path / "a", _trace([_kernel(1_700_000_000_000_001)]))
    assert absolute.rows("SELECT start_ns FROM events") == [(1_700_000_000_000_001_000,)]
    relative = _read(tmp_path, _trace([_kernel(2.001)], baseTimeNanoseconds=1_700_000_000_000_000_000))
    assert relative.rows("SELECT start_ns FROM events") == [(1_700_000_000_000_002_001,)]


def test_metadata_after_the_events_counts(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = json.dumps([_kernel(1, grid=[1, 1, 1])] * 3)
    tail = '"distributedInfo": {"rank": 5, "world_size": 8, "pg_config": [{"pg_name": "1", "ranks": "[4, 5]"}]}'
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": {events}, {tail}, "traceName": "x"}}', encoding="utf-8")
    run = ingest([path], tmp_path / "x.run")
    assert run.rows("SELECT DISTINCT rank FROM events") == [(5,)]
    assert run.rows("SELECT name, ranks FROM groups") == [("1", [4, 5])]


def test_zero_times_are_dropped_and_negative_durations_repaired_and_both_counted(tmp_path: Path) -> None:
    run = _read(tmp_path, _trace([_kernel(0), _kernel(5, -3), _kernel(7, 2)]))
    assert run.rows("SELECT start_ns, duration_ns FROM events") == [(5000, 0), (7000, 2000)]
    (source,) = run.manifest["sources"]
    assert source["dropped"] == {"time is zero": 1}
    assert source["repaired"] == {"negative duration set to 0": 1}


def test_streams_and_ids_of_any_spelling(tmp_path: Path) -> None:
    events = [_kernel(1, stream="0x10", correlation=2**64 - 1), _kernel(2, stream=4294967295), _kernel(3)]
    run = _read(tmp_path, _trace(events))
    assert run.rows("SELECT stream, correlation FROM events") == [(16, -1), (4294967295, None), (7, None)]


def test_an_empty_shell_is_named(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match="holds no events"):
        _read(tmp_path, _trace([]))
    assert not (tmp_path / "x.run").exists()


def test_arguments_are_those_that_are_there_as_json_has_them() -> None:
    """Texts come in codes, as scanners write them; a column that none of the rows has is in none of them."""
    words = pa.array(["allreduce", None, "allreduce", "send"]).dictionary_encode()
    table = pa.table({
        **{key: pa.nulls(4, pa.int64()) for key in ("tid", "correlation")},
        "name": pa.array(["record_param_comms"] * 4).dictionary_encode(),
        "Collective name": words,
        "In msg nelems": pa.array([0, 7, None, 2**62], pa.int64()),
        "dtype": pa.array([None] * 4, pa.string()).dictionary_encode(),
        "Rank": pa.array([None, 5, None, None], pa.int64()),
    })  # fmt: skip
    # Of the batch, all but the first event are spans.
    spans = EventSpans(table, np.arange(1, 4), np.full(3, 4, np.int32), np.arange(3), np.ones(3, np.int64))
    keys = ("Collective name", "In msg nelems", "dtype", "Rank")
    assert spans.args([2, 1], keys) == [
        {"Collective name": "send", "In msg nelems": 2**62},
        {"Collective name": "allreduce"},
    ]
    assert spans.args([0], keys) == [{"In msg nelems": 7, "Rank": 5}]
    assert spans.args([0, 2], ("Rank",)) == [{"Rank": 5}, {}]
