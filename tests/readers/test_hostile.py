"""Kineto files made to hurt: absurd values, depth, sizes and counts. They cost little memory and time, and are told."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from helpers.peak_memory import ingest_peak_mb
from helpers.thorough import spread

from tracetool.ingestion import IngestOptions, ingest
from tracetool.readers import SourceReport
from tracetool.readers.chrome import Field
from tracetool.readers.chrome import scan as json_scan
from tracetool.readers.chrome.compiled import event_scanner
from tracetool.readers.chrome.members import head_facts
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.files import ByteStream
from tracetool.readers.kineto import rows as kineto_rows

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20
SCANNERS = (["compiled"] if find_spec("tracetool.readers.chrome._scan") else []) + ["plain"]
DIGITS = "9" * 5000
START = 1732300000000000


# That both scanners find the same is tried by default on what is drawn (test_soup, test_json_compiled_random): these
# files are larger, deeper and odder than what is drawn there.
@pytest.fixture(params=[SCANNERS[0], *(pytest.param(name, marks=pytest.mark.thorough) for name in SCANNERS[1:])])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRACETOOL_SCANNER", request.param)
    return str(request.param)


def _event(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": START, "dur": 1, "args": {"stream": 7}, **changes}


def _record(start: int = START, **args: Any) -> str:
    known = {"Collective name": "send", "dtype": "Float", "In msg nelems": 4, "Process Group Ranks": "[0, 1]"}
    return json.dumps(_event(cat="cpu_op", name="record_param_comms", ts=start, args={**known, **args}))


def _run(tmp_path: Path, *events: str, head: str = '"schemaVersion": 1', tail: str = "") -> Any:
    path = tmp_path / "rank0.json"
    path.write_text(f'{{{head}, "traceEvents": [{",".join([*events, json.dumps(_event())])}]{tail}}}', encoding="utf-8")
    return ingest([path], tmp_path / "x.run", force=True)


@spread(
    ("args", "comm"),
    [
        (
            {"Group size": 10**15, "Process Group Ranks": "[0, ...]", "Global rank start": 0, "Global rank stride": 1},
            {},
        ),
        ({"Process Group Ranks": f"[{DIGITS}]"}, {"group_ranks": []}),
        ({"Process Group Ranks": "[0, 999999999999]"}, {"group_ranks": []}),
        ({"Dst Rank": 10**12}, {"peer": None}),
        ({"In msg nelems": 9 * 10**18, "Dst Rank": 1}, {"payload_bytes": None}),
        ({"Dst Rank": 1}, {"peer": 1, "payload_bytes": 16, "group_ranks": [0, 1]}),
    ],
)
def test_absurd_communication_is_unknown(
    args: dict[str, Any], comm: dict[str, Any], scanner: str, tmp_path: Path
) -> None:
    rows = _run(tmp_path, _record(**args)).query("SELECT * FROM comms").to_dicts()
    assert len(rows) == 1
    assert {key: rows[0][key] for key in comm} == comm


@spread(
    ("changes", "reason"),
    [
        ({"ts": "DIGITS"}, "time is no number"),
        ({"ts": 10**30}, "time is no number"),
        ({"ts": 3 * 10**15}, "time is out of range"),
        ({"dur": 9 * 10**15}, "duration is out of range"),
        ({"name": "ncclDevKernel", "dur": 9 * 10**15}, "duration is out of range"),
        ({"cat": "user_annotation", "name": "ProfilerStep#1", "dur": 9 * 10**15}, "duration is out of range"),
    ],
)
def test_absurd_times_are_dropped_with_their_place(
    changes: dict[str, Any], reason: str, scanner: str, tmp_path: Path
) -> None:
    run = _run(tmp_path, json.dumps(_event(**changes)).replace('"DIGITS"', DIGITS))
    (source,) = run.manifest["sources"]
    assert source["dropped"] == {reason: 1}
    assert "byte" in source["places"][reason]
    assert run.rows("SELECT start_ns, duration_ns FROM events") == [(START * 1000, 1000)]


# What is of no use in one of the facts is in another.
@spread(
    "head",
    [
        '"deviceProperties": [{"name": "\\ud800", "numSms": 99999999999, "totalGlobalMem": %s}]' % ("9" * 30),
        '"host_name": "\\udc00", "deviceProperties": 7',
        '"distributedInfo": {"rank": 0, "world_size": true, "pg_config": [{"pg_name": "\\ud800", "ranks": [0, true]}]}',
        f'"distributedInfo": {"[" * 100_000}{"]" * 100_000}',
        f'"distributedInfo": {{"rank": {DIGITS}, "world_size": 4}}',
        f'"baseTimeNanoseconds": {DIGITS}',
        '"distributedInfo": {"rank": true, "world_size": 1}',
    ],
)
def test_absurd_facts_are_unknown(head: str, scanner: str, tmp_path: Path) -> None:
    run = _run(tmp_path, head=f'"schemaVersion": 1, {head}')
    assert run.rows("SELECT rank, sm_count, hbm_bytes FROM ranks") == [(0, None, None)]
    assert run.rows("SELECT count(*) FROM events") == [(1,)]


@spread("tail", ["5", '{"a": 1}', f'["Out-of-range = {DIGITS}"]', "[[[]]]", "null", '"x"'], ["5", "[[[]]]"])
def test_absurd_remarks_are_passed_over(tail: str, scanner: str, tmp_path: Path) -> None:
    assert _run(tmp_path, tail=f', "INFO": {tail}').rows("SELECT count(*) FROM events") == [(1,)]


# One half alone, of either kind, is the easier one.
@spread("text", ["\\ud800", "a\\udc00b", "\\ud83d\\ud83d\\ude00"], ["a\\udc00b", "\\ud83d\\ud83d\\ude00"])
def test_halves_of_surrogate_pairs_are_replaced(text: str, scanner: str, tmp_path: Path) -> None:
    run = _run(tmp_path, json.dumps(_event()).replace('"k"', f'"{text}"'))
    whole = text.replace("\\ud83d\\ude00", "😀").replace("\\ud83d", "\ufffd")
    expected = whole.replace("\\ud800", "\ufffd").replace("\\udc00", "\ufffd")
    assert run.rows("SELECT name FROM events ORDER BY event") == [(expected,), ("k",)]
    assert run.manifest["sources"][0]["repaired"] == {"half surrogate pairs replaced": 1}


@spread("args", ["[]", '"x"', "7", "true", "[{}]"], ["7", "[{}]"])
def test_arguments_that_are_no_object_cost_no_event(args: str, scanner: str, tmp_path: Path) -> None:
    event = json.dumps(_event(name="odd")).replace('{"stream": 7}', args)
    run = _run(tmp_path, event)
    assert run.rows("SELECT name FROM events ORDER BY event") == [("odd",), ("k",)]
    path = tmp_path / "rank0.json"
    kept = ingest([path], tmp_path / "kept.run", options=IngestOptions(keep=("args",)))
    assert kept.rows("SELECT name, args FROM events ORDER BY event") == [("odd", args), ("k", '{"stream": 7}')]


@spread("deep", ["[" * 50_000 + "]" * 50_000, '{"a":' * 50_000 + "1" + "}" * 50_000], 1)
def test_depth_costs_its_event_only(deep: str, scanner: str, tmp_path: Path) -> None:
    run = _run(tmp_path, json.dumps(_event(args={"x": 0})).replace('"x": 0', f'"x": {deep}'))
    assert run.rows("SELECT count(*) FROM events") == [(1,)]
    assert run.manifest["sources"][0]["dropped"] == {"damaged event": 1}


def test_many_categories_are_counted_as_others(scanner: str, tmp_path: Path) -> None:
    events = [json.dumps(_event(cat=f"c{n}" + "x" * 500)) for n in range(3000)]
    skipped = _run(tmp_path, *events).manifest["sources"][0]["skipped"]
    assert sum(skipped.values()) == 3000
    assert len(skipped) <= 1002
    assert skipped["other categories"] >= 1998
    assert max(map(len, skipped)) <= 100


def test_what_is_kept_to_the_end_is_limited(scanner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_rows, "_MOST_COMMUNICATIONS", 5)
    monkeypatch.setattr(kineto_rows, "_MOST_STEPS", 5)
    events = [_record(START + n, **{"Dst Rank": 1}) for n in range(8)]
    events += [json.dumps(_event(name="ncclDevKernel", ts=START + n)) for n in range(9)]
    events += [json.dumps(_event(cat="user_annotation", name=f"ProfilerStep#{n}")) for n in range(7)]
    run = _run(tmp_path, *events)
    dropped = run.manifest["sources"][0]["dropped"]
    assert dropped == {
        "more than 5 communication operations: no rows in comms": 3 + 4,
        "more than 5 marks of steps": 2,
    }
    assert run.rows("SELECT count(*) FROM events") == [(25,)]


def test_long_events_are_passed_over(scanner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scan, "LONGEST_EVENT_BYTES", 3 * MB)
    run = _run(tmp_path, json.dumps(_event(name="n" * (9 * MB))), json.dumps(_event(name="m" * MB)))
    assert run.rows("SELECT length(name) FROM events ORDER BY event") == [(MB,), (1,)]
    assert run.manifest["sources"][0]["dropped"] == {"event longer than 3 MiB": 1}


def test_a_comma_behind_a_damaged_last_event_costs_nothing_else(scanner: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"traceEvents": [{json.dumps(_event(dur=float("inf"))).replace("Infinity", "inf")},]}}')
    run = ingest([path], tmp_path / "x.run")
    assert run.manifest["sources"][0]["dropped"] == {}
    assert run.manifest["sources"][0]["repaired"] == {"inf or nan read as null": 1, "no duration: set to 0": 1}


def test_damage_all_over_is_left_out_in_pieces(scanner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_scan, "_CREDIT", 1 << 20)
    monkeypatch.setattr(json_scan, "_CREDIT_PER_BYTE", 1)
    broken = json.dumps(_event()).replace('"name":', '"name"')
    run = _run(tmp_path, *[broken] * 5000, *(json.dumps(_event(ts=START + n)) for n in range(1, 100)))
    dropped = run.manifest["sources"][0]["dropped"]
    assert {"damaged event", "damaged all over: up to 4 KiB left out at a time"} <= set(dropped)
    assert 50 < run.rows("SELECT count(*) FROM events")[0][0] <= 100


def test_values_around_the_events_are_limited() -> None:
    text = b'{"INFO": [%b1], "host_name": "node1", "distributedInfo": {"rank": 3, "world_size": 8}' % (
        b"1," * (5 * MB // 2)
    )
    found = head_facts(text, frozenset({"INFO", "host_name", "distributedInfo"}))
    assert found == {"host_name": "node1", "distributedInfo": {"rank": 3, "world_size": 8}}


# The other fillings open and close other states of the plain scanner: one that it does not leave is seen by its own.
@spread(
    "filling",
    [b" ", b",", b"\n", b"{", b"[", b"}", b'"', b'{"', b"\\", b"\0", b'{"a":', b']{"ph":'],
    [b"}", b'"'],
)
def test_no_filling_stops_reading(filling: bytes, scanner: str, tmp_path: Path) -> None:
    """Whatever stands between two events, the second one is found unless the first text opens a string."""
    path = tmp_path / "rank0.json"
    event = json.dumps(_event()).encode()
    path.write_bytes(b'{"traceEvents": [%b,%b,%b]}' % (event, filling * (3 * MB // len(filling)), event))
    report = SourceReport()
    fields = [Field("ph", "text"), Field("cat", "text"), Field("name", "text")]
    trace = ChromeTrace(ByteStream(path), event_scanner(fields, {b'"X"': None}), report)
    assert sum(table.num_rows for table in trace.tables()) == 2
    assert bool(report.dropped) == (filling not in (b" ", b",", b"\n"))


def _big(kind: str, path: Path) -> None:
    event = json.dumps(_event()).encode()
    unit, size = {
        "one string": (b"a" * MB, 60 * MB),
        "spaces": (b" " * MB, 60 * MB),
        "kernels": (json.dumps(_event(name="ncclDevKernel")).encode() + b",", 24 * MB),
        "remarks": (b"[]," * (MB // 2), 4.5 * MB),
        "long names": (json.dumps(_event(name="n" * (5 * MB))).encode() + b",", 60 * MB),
        "tails": (b'],[{"ph":"X"}', 2 * MB),
    }[kind]
    head = b'{"schemaVersion": 1, "traceEvents": [' + event + b","
    if kind == "one string":
        head += b'{"ph":"X","name":"'
    if kind == "remarks":
        head = b'{"schemaVersion": 1, "traceEvents": [' + event + b'], "INFO": ['
    with path.open("wb") as file:
        file.write(head)
        for _ in range(int(size) // len(unit)):
            file.write(unit)
        file.write(b"]}")


# Each kind fills another buffer: one that alone is not limited is found by its own file only. Limits themselves are
# held in this process by default (above).
# The peak of one large file is held by default (tests/ingestion/test_memory.py).
@pytest.mark.thorough
@spread(
    ("kind", "limit_mb"),
    # Remarks as Python's objects would take 64 bytes for three of text.
    [("one string", 400), ("spaces", 400), ("kernels", 400), ("remarks", 140), ("long names", 400), ("tails", 400)],
    [("long names", 400)],
)
def test_big_files_take_little_memory(kind: str, limit_mb: int, tmp_path: Path) -> None:
    _big(kind, tmp_path / "rank0.json")
    assert ingest_peak_mb(tmp_path / "rank0.json", tmp_path / "x.run") < limit_mb
