"""Sound JSON is read alike however it is written: order of keys, white space, escapes, unknown keys, nested names.

The same trace as ``json.dumps`` writes it is the oracle; nothing may be dropped, repaired or refused.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data
from helpers.thorough import drawn, spread
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import IngestError
from tracetool.ingestion import discover, ingest

if TYPE_CHECKING:
    import random
    from pathlib import Path

SCANNERS = (["compiled"] if find_spec("tracetool.readers.chrome._scan") else []) + ["plain"]
# That both find the same is tried by default on what is drawn (test_soup, test_json_compiled_random).
BY_SCANNER = spread("scanner", SCANNERS, 1)
START = 1732300000000000
DISTRIBUTED = {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [*range(8)]}]}
NESTED: tuple[Any, ...] = (
    {"schemaVersion": 2, "distributedInfo": {"rank": 7, "world_size": 9}, "host_name": "other"},
    {"traceEvents": [{"ph": "X", "cat": "kernel", "name": "no event", "ts": START, "dur": 1}]},
    [{"ph": "X", "cat": "kernel", "name": "nor this"}, {"a": [{"b": 1}]}, []],
    'a text with "traceEvents": [{"ph": "X"}], "schemaVersion": 1}',
    "}]}", "{[\\", 1.5e-3, -0, True, None, {}, [],
)  # fmt: skip
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 10, "tid": 0, "ts": 0, "args": {"name": "python"}},
    {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 10, "tid": 10, "ts": START, "dur": 90},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm/out \u00e9\u4e2d", "pid": 10, "tid": 10,
     "ts": START + 1.125, "dur": 20, "args": {"External id": 1, "schemaVersion": 1, "Input Dims": [[1, 2], []]}},
    {"ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 10, "tid": 10, "ts": START + 2, "dur": 1,
     "args": {"External id": 2, "Collective name": "send", "dtype": "Float", "In msg nelems": 4, "Dst Rank": 1,
              "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 10, "ts": START + 5, "dur": 3,
     "args": {"correlation": 7, "nested": {"ph": "X", "traceEvents": [1]}}},
    {"ph": "X", "cat": "kernel", "name": "gemm<\"a\", {b}>, \\n", "pid": 0, "tid": 7, "ts": START + 12, "dur": 30,
     "args": {"device": 0, "stream": 7, "correlation": 7, "External id": 1, "grid": [4, 3, 1]}},
    {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 10, "tid": 10, "ts": START + 6, "s": "t",
     "args": {"Bytes": 512, "Addr": 1, "Device Type": 1, "Device Id": 0, "Total Allocated": 512}},
    {"ph": "X", "cat": "odd_category", "name": "x", "pid": 10, "tid": 10, "ts": START + 7, "dur": 1},
    {},
]  # fmt: skip
TRACE = {
    "schemaVersion": 1, "distributedInfo": DISTRIBUTED, "host_name": "node4",
    "deviceProperties": [{"name": "H100", "numSms": 132, "totalGlobalMem": 85017493504}],
    "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": EVENTS,
}  # fmt: skip


def _string(text: str, some: random.Random) -> str:
    plain = json.dumps(text, ensure_ascii=some.random() < 0.5)[1:-1]
    if some.random() < 0.6:
        return f'"{plain}"'
    characters = json.loads(f'"{plain}"')
    return '"' + "".join(f"\\u{ord(c):04x}" if some.random() < 0.2 else json.dumps(c)[1:-1] for c in characters) + '"'


def _written(value: Any, some: random.Random) -> str:
    """JSON text of a value as some writer may write it."""
    space = some.choice(["", "", "", " ", "\n", "\t ", "\r\n  ", " " * 70])
    if isinstance(value, dict):
        items = list(value.items())
        some.shuffle(items)
        members = [f"{_string(k, some)}{space}:{space}{_written(v, some)}" for k, v in items]
        return "{" + space + f"{space},{space}".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + space + f"{space},{space}".join(_written(v, some) for v in value) + space + "]"
    return _string(value, some) if isinstance(value, str) else json.dumps(value)


def _read(text: str, folder: Path) -> tuple[Any, ...]:
    folder.mkdir(exist_ok=True)
    path = folder / "trace.json"
    path.write_text(text, encoding="utf-8")
    run = ingest([path], folder / "x.run", force=True)
    (source,) = run.manifest["sources"]
    names = ("events", "comms", "memory", "steps", "groups")
    # Without a query: to connect takes longer than to read so little.
    tables = [sorted(map(repr, run.table(name).to_pylist())) for name in names]
    return source["dropped"], source["repaired"], source["skipped"], source["notes"], tables


@BY_SCANNER
def test_sound_json_is_read_alike_however_it_is_written(
    scanner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    expected = _read(json.dumps(TRACE), tmp_path / "plain")
    assert expected[:2] == ({}, {})
    assert len(expected[4][0]) == 5

    @drawn(25, first=4)
    @given(some=st.randoms(use_true_random=True))
    def alike(some: random.Random) -> None:
        unknown = {f"unknown {n}": some.choice(NESTED) for n in range(some.randrange(4))}
        assert _read(_written(TRACE | unknown, some), tmp_path / "odd") == expected

    alike()


def test_keys_written_with_escapes_alone_make_it_known(tmp_path: Path) -> None:
    text = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": TRACE["traceEvents"]})
    escaped = text.replace("baseTime", "base\\u0054ime").replace("traceEvents", "t\\u0072aceEvents")
    assert json.loads(escaped) == json.loads(text)
    assert _read(escaped, tmp_path / "escaped")[2:] == _read(text, tmp_path / "plain")[2:]


@pytest.mark.parametrize("space", ["", "\n"])
def test_a_bare_list_of_events_is_the_same_trace(space: str, tmp_path: Path) -> None:
    """Lists that torch_npu and msprof write hold ops of the framework too; what else they hold tells whose they are."""
    whole = _read(json.dumps({"traceEvents": EVENTS}), tmp_path / "whole")
    bare = _read(space + json.dumps(EVENTS), tmp_path / "bare")
    assert bare == whole
    assert bare[4][0]


# Small and large, before and after: the other two pairs tell whether a value is lost by its size or by its place.
@spread(("size", "front"), list(product([100_000, 5 << 20], [True, False])), [(100_000, True), (100_000, False)])
def test_long_values_may_stand_before_or_after_the_events(size: int, *, front: bool, tmp_path: Path) -> None:
    frames = [{"name": f"frame {n}", "ph": "no event"} for n in range(size // 50)]
    own = {
        "frames": frames,
        "events": {"traceEvents": EVENTS[:2]},
        "host_name": "node4",
        "distributedInfo": DISTRIBUTED,
    }
    trace = own | {"traceEvents": EVENTS} if front else {"traceEvents": EVENTS} | own
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    run = ingest([path], tmp_path / "x.run")
    (source,) = run.manifest["sources"]
    assert (source["rank"], source["dropped"], source["repaired"]) == (3, {}, {})
    assert run.rows("SELECT count(*) FROM events") == [(5,)]
    assert run.rows("SELECT host FROM ranks") == [("node4",)]


@BY_SCANNER
# An escape in the last place and none before it are two ways in which scanners leave their fast path, one by one.
@spread(
    ("spelling", "place"),
    list(product(["kernel", "kern\\u0065l"], [1, 5])),
    [("kern\\u0065l", 5)],
)
def test_a_long_event_is_sound_wherever_it_stands(
    scanner: str, spelling: str, place: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Almost three MiB of arguments, in an event that is read by itself: the last of a list, or one with escapes."""
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    kernel = EVENTS[5]
    long = kernel | {"name": "long", "args": kernel["args"] | {"note": ["x" * 20, {"a": 1}] * 90_000}}  # type: ignore[operator]
    events = [kernel | {"ts": 5_000 + n} for n in range(5)]
    events.insert(place, long)
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}).replace('"kernel"', f'"{spelling}"'), encoding="utf-8")
    assert path.stat().st_size > 2 << 20
    run = ingest([path], tmp_path / "x.run")
    assert (run.manifest["sources"][0]["dropped"], run.manifest["sources"][0]["repaired"]) == ({}, {})
    assert run.rows("SELECT count(*), count(*) FILTER (name = 'long') FROM events") == [(6, 1)]


@pytest.mark.parametrize("joint", ["", "\n", "\n\n "])
def test_two_whole_traces_in_a_row_are_refused(joint: str, tmp_path: Path) -> None:
    behind = json.dumps({"traceEvents": EVENTS, "schemaVersion": 1, "distributedInfo": DISTRIBUTED})
    path = tmp_path / "t.json"
    path.write_text(behind + joint + behind, encoding="utf-8")
    place = len(behind) + len(joint)
    with pytest.raises(IngestError, match=rf"second trace begins at byte {place:,}"):
        ingest([path], tmp_path / "x.run")


def test_events_behind_a_bracket_that_damage_put_in_are_no_second_trace(tmp_path: Path) -> None:
    """The rest of the events and of the object stand behind a list that was closed too early."""
    text = json.dumps({"schemaVersion": 1, "traceEvents": EVENTS, "distributedInfo": DISTRIBUTED, "traceName": "x"})
    path = tmp_path / "rank3.json"
    path.write_text(text.replace('}, {"ph": "X", "cat": "kernel"', '}]}{"ph": "X", "cat": "kernel"'), encoding="utf-8")
    whole = tmp_path / "whole" / "rank3.json"
    whole.parent.mkdir()
    whole.write_text(text, encoding="utf-8")
    runs = [ingest([each], tmp_path / f"{n}.run") for n, each in enumerate((whole, path))]
    assert path.read_text(encoding="utf-8") != text
    assert len({run.rows("SELECT count(*) FROM events")[0] for run in runs}) == 1
    assert runs[1].manifest["sources"][0]["dropped"] or runs[1].manifest["sources"][0]["repaired"]


LISTED = """{"ph": "X", "cat": "kernel", "name": "listed", "ts": 1732300000000900, "dur": 1,
             "args": {"a": [{"b": 1}, {"c": 2}], "d": 0}}"""
LAST = '{"ph": "X", "cat": "kernel", "name": "last", "ts": 1732300000000950, "dur": 1}'


@BY_SCANNER
def test_a_name_is_not_mended_across_the_event_behind_it(
    scanner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Damage took the end of one event and the front of another: what is left looks like a name with quotes in it."""
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    events = json.dumps(EVENTS)[1:-1]
    damaged = '{"pid": 1, "name": "n1}anks" : 5},"sf": false},'
    path = tmp_path / "rank3.json"
    head = json.dumps({"schemaVersion": 1, "distributedInfo": DISTRIBUTED})[:-1]
    path.write_text(f'{head}, "traceEvents": [{events}, {damaged} {LAST}]}}', encoding="utf-8")
    run = ingest([path], tmp_path / "x.run")
    assert sum(run.manifest["sources"][0]["dropped"].values()) == 1
    assert run.rows("SELECT count(*) FROM events WHERE name = 'last'") == [(1,)]
    assert run.rows("SELECT count(*) FROM events WHERE name != 'last'") == [(5,)]


@BY_SCANNER
@pytest.mark.parametrize(
    "damaged",
    [
        # Of the event its last brace is gone, of what follows it the comma became a bracket: a list in it looks like
        # the list of events, and the others like a list by itself.
        LISTED[:-1] + "[",
        # The end of the file stands in the middle of an event once more: what is left of the event opens with a list.
        LISTED + '], "traceName": "x"} [{"b": 1}, {"c": 2}], "args": {}},',
    ],
    ids=["bracket", "copied end"],
)
def test_a_list_inside_a_damaged_event_is_no_list_of_events(
    scanner: str, damaged: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    events = json.dumps(EVENTS)[1:-1]
    path = tmp_path / "rank3.json"
    head = json.dumps({"schemaVersion": 1, "distributedInfo": DISTRIBUTED})[:-1]
    path.write_text(f'{head}, "traceEvents": [{events}, {damaged} {LAST}], "traceName": "x"}}', encoding="utf-8")
    run = ingest([path], tmp_path / "x.run")
    assert run.manifest["sources"][0]["dropped"]
    assert run.rows("SELECT count(*) FROM events WHERE name NOT IN ('listed', 'last')") == [(5,)]
    assert run.rows("SELECT count(*) FROM events WHERE name = 'last'") == [(1,)]


@BY_SCANNER
def test_a_bare_list_behind_a_trace_is_refused_though_an_event_was_damaged(
    scanner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", scanner)
    text = json.dumps({"schemaVersion": 1, "distributedInfo": DISTRIBUTED, "traceEvents": EVENTS})
    damaged = text.replace('{"ph": "X", "cat": "kernel"', '{"ph" "X", "cat": "kernel"', 1)
    damaged = damaged.removesuffix("]}") + f", {LAST}]}}"
    path = tmp_path / "rank3.json"
    path.write_text(f"{damaged}\n[{LAST}]", encoding="utf-8")
    with pytest.raises(IngestError, match=rf"second trace begins at byte {len(damaged) + 1:,}"):
        ingest([path], tmp_path / "x.run")


def test_a_version_behind_the_events_is_no_second_trace(tmp_path: Path) -> None:
    case = data("cases", "schema-version-after-events")
    assert [found.rank for found in discover([case]).sources] == [0]
    run = ingest([case], tmp_path / "x.run")
    assert run.manifest["sources"][0]["dropped"] == {}
    assert run.rows("SELECT category, name, duration_ns FROM events ORDER BY start_ns") == [
        ("op", "aten::mm", 20000), ("launch", "cudaLaunchKernel", 3000), ("kernel", "gemm", 30000),
    ]  # fmt: skip


def test_damage_beside_a_version_behind_the_events_is_no_second_trace(tmp_path: Path) -> None:
    """The list is not closed: what stands behind is lost text of the same trace."""
    text = json.dumps({"traceEvents": EVENTS, "schemaVersion": 1, "distributedInfo": DISTRIBUTED})
    path = tmp_path / "rank3.json"
    path.write_text(text.replace('{}], "schemaVersion"', '{}, "schemaVersion"'), encoding="utf-8")
    run = ingest([path], tmp_path / "x.run")
    assert run.rows("SELECT count(*) FROM events") == [(5,)]
    assert "text between events that is none" in run.manifest["sources"][0]["dropped"]
