"""Damaged Kineto files: every whole event is kept, what was lost is counted with its place."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import zlib
from collections import Counter
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from helpers.recorded import SAMPLES, data, run_of
from helpers.thorough import drawn, spread
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tracetool.errors import IngestError, MalformedTrace
from tracetool.ingestion import IngestOptions, ingest
from tracetool.readers import SourceReport
from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import event_scanner
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.files import ByteStream, fastest_inflater

FIELDS = (Field("ph", "text"), Field("cat", "text"), Field("name", "text"), Field("ts", "time"), Field("dur", "time"))


def _event(number: int, **extra: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": number + 0.5, "dur": 1, "args": {"x": {}}, **extra}


def _text(count: int, *, indent: int | None = None) -> bytes:
    trace = {"schemaVersion": 1, "traceEvents": [_event(n) for n in range(count)], "traceName": "x"}
    return json.dumps(trace, indent=indent).encode()


def _scan(text: bytes) -> tuple[list[tuple[str, int]], SourceReport]:
    """Name and start of every event, and the report."""
    path = Path(mkdtemp(prefix="tracetool-salvage-")) / "t.json"
    path.write_bytes(text)
    report = SourceReport()
    trace = ChromeTrace(ByteStream(path), event_scanner(FIELDS, {b'"X"': None}), report)
    rows = [row for table in trace.tables() for row in table.select(["name", "ts"]).to_pylist()]
    shutil.rmtree(path.parent)
    return [(row["name"], row["ts"]) for row in rows], report


def _whole_before(text: bytes, cut: int) -> list[str]:
    """Names of the events that end before the cut, found by the standard library."""
    decoder = json.JSONDecoder()
    whole, at = text.decode(), text.index(b"[") + 1
    names: list[str] = []
    while True:
        at = whole.index("{", at)
        event, at = decoder.raw_decode(whole, at)
        if at > cut:
            return names
        names.append(event["name"])
        if whole[at:].lstrip()[:1] == "]":
            return names


@drawn(200)
@given(cut=st.integers(min_value=0, max_value=10**6), indent=st.sampled_from([None, 2]))
@example(cut=10**6 - 1, indent=None)
def test_a_file_cut_anywhere_keeps_its_whole_events(cut: int, indent: int | None) -> None:
    text = _text(40, indent=indent)
    begin = text.index(b"[") + 1
    at = begin + cut % (len(text) - begin)
    found, report = _scan(text[:at])
    assert [name for name, _ in found] == _whole_before(text, at)
    closed = at > text.rindex(b"]")
    assert report.dropped.total() == (0 if closed else 1)
    if not closed:
        (place,) = report.places.values()
        assert begin <= place.at <= at


DAMAGE = {
    "a bare quote in a name": (b'"k7"', b'"k"7"', "bare quotes in text escaped"),
    "JSON in a name": (b'"k7"', b'"{"device": "cpu"}k7"', "bare quotes in text escaped"),
    "a lone backslash": (b'"k7"', b'"C:\\Users\\k7"', "lone backslashes doubled"),
    "a control byte": (b'"k7"', b'"k\x0b7"', "control characters in text escaped"),
    "a line break in a name": (b'"k7"', b'"k\n7"', "control characters in text escaped"),
    "bytes that are no UTF-8": (b'"k7"', b'"k\xff7"', "text that is not UTF-8, replaced"),
    "inf": (b'"ts": 7.5, "dur": 1', b'"bw": inf, "ts": 7.5, "dur": 1', "inf or nan read as null"),
    "-Infinity": (b'"ts": 7.5, "dur": 1', b'"bw": -Infinity, "ts": 7.5, "dur": 1', "inf or nan read as null"),
    "NaN": (b'"ts": 7.5, "dur": 1', b'"bw": [NaN, 1], "ts": 7.5, "dur": 1', "inf or nan read as null"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_known_damage_is_repaired_and_counted(case: str) -> None:
    old, new, reason = DAMAGE[case]
    text = _text(40)
    at = text.index(b'{"ph": "X", "cat": "kernel", "name": "k7"')
    found, report = _scan(text.replace(old, new))
    assert [start for _, start in found] == [n * 1000 + 500 for n in range(40)]
    assert report.repaired == Counter({reason: 1})
    assert not report.dropped
    if reason != "text that is not UTF-8, replaced":  # its place is that of the batch
        assert report.places[reason].at == at


def test_repaired_names_keep_their_characters() -> None:
    text = _text(40)
    names = {
        case: next(name for name, start in _scan(text.replace(*DAMAGE[case][:2]))[0] if start == 7500)
        for case in ("a bare quote in a name", "JSON in a name", "a lone backslash", "a control byte")
    }
    assert list(names.values()) == ['k"7', '{"device": "cpu"}k7', "C:\\Users\\k7", "k\x0b7"]


BEYOND_REPAIR = {
    "a missing colon": (b'"name": "k7"', b'"name" "k7"'),
    "a missing brace": (b'"args": {"x": {}}}, {"ph": "X", "cat": "kernel", "name": "k8"', None),
    "half an event": (b'"cat": "kernel", "name": "k7", "ts": 7.5', b""),
    "text between events": (b'{"ph": "X", "cat": "kernel", "name": "k7"', None),
}


@pytest.mark.parametrize("case", ["a missing colon", "half an event"])
def test_damage_beyond_repair_costs_one_event(case: str) -> None:
    old, new = BEYOND_REPAIR[case]
    found, report = _scan(_text(40).replace(old, new or b""))
    assert [name for name, _ in found] == [f"k{n}" for n in range(40) if n != 7]
    assert report.dropped == Counter({"damaged event": 1})


def test_text_between_events_costs_no_event() -> None:
    text = _text(40)
    at = text.index(b'{"ph": "X", "cat": "kernel", "name": "k7"')
    found, report = _scan(text[:at] + b"%%%" + text[at:])
    assert len(found) == 40
    assert report.dropped == Counter({"text between events that is none": 1})
    assert report.places["text between events that is none"].at == at


def test_lists_that_run_together_are_read_and_said() -> None:
    one, two = json.dumps([_event(1)]), json.dumps([_event(2), _event(3)])
    for joint in ("", ",", "\n"):
        found, report = _scan((one + joint + two).encode())
        assert [name for name, _ in found] == ["k1", "k2", "k3"]
        assert report.repaired == Counter({"lists of events run together": 1})


def test_two_traces_in_one_file_are_refused_with_the_place(tmp_path: Path) -> None:
    one, two = _text(40), _text(30, indent=2)
    middle = one.index(b'{"ph": "X", "cat": "kernel", "name": "k20"') + 30
    path = tmp_path / "rank0.json"
    for text in (one[:middle] + two + one[middle:], one + two):
        path.write_bytes(text)
        with pytest.raises((MalformedTrace, IngestError), match=r"second trace begins at byte [\d,]+"):
            ingest([path], tmp_path / "x.run")
        assert not (tmp_path / "x.run").exists()


# Each is made up and read by default, too (test_sound_json, test_hostile, above): these were written by programs.
@spread("case", ["NaN", "ctrl", "inf", "negdur", "norank", "nostep", "quote", "trunc"], ["NaN", "quote", "trunc"])
def test_the_recorded_damage(case: str, tmp_path: Path) -> None:
    """The good file tells what should come out; the differences are those that the damage explains."""
    good = _events(data("broken", "ok"), tmp_path / "ok.run")
    found = _events(data("broken", case), tmp_path / "x.run")
    if case == "trunc":
        assert found == good[: len(found)]
        assert len(found) == 20
    elif case == "nostep":
        assert found == [row for row in good if row[1] != "ProfilerStep#100"]
    elif case == "negdur":
        assert [row[:3] for row in found] == [row[:3] for row in good]
        assert sum(a != b for a, b in zip(found, good, strict=True)) == 1
    else:
        assert [(row[0], *row[2:]) for row in found] == [(row[0], *row[2:]) for row in good]
        assert sum(a != b for a, b in zip(found, good, strict=True)) == (1 if case in ("ctrl", "quote") else 0)


def _events(path: Path, output: Path) -> list[tuple[Any, ...]]:
    run = ingest([path], output)
    return run.rows("SELECT category, name, start_ns, duration_ns FROM events ORDER BY event")


@cache
def _sample() -> bytes:
    return (SAMPLES / "h100-1f1b" / "rank0.json.gz").read_bytes()


@drawn(15, first=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.floats(min_value=0.02, max_value=0.99))
def test_a_cut_gzip_keeps_what_was_compressed_whole(part: float, tmp_path: Path) -> None:
    whole = gzip.decompress(_sample())
    cut = _sample()[: int(len(_sample()) * part)]
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(cut)
    kept = b"".join(ByteStream(path).blocks(1 << 16))
    assert whole.startswith(kept)
    if kept.count(b'"ph"') > 1:
        run = ingest([path], tmp_path / "x.run", force=True)
        (source,) = run.manifest["sources"]
        assert sum(source["dropped"].values()) >= 1
        assert any("compressed data" in reason for reason in source["dropped"])


def test_a_damaged_rank_costs_the_others_nothing(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    shutil.copytree(SAMPLES / "h100-1f1b", traces)
    (traces / "rank2.json.gz").write_bytes(_sample()[:40])
    whole = run_of(SAMPLES / "h100-1f1b")
    run = ingest([traces], tmp_path / "x.run")
    count = "SELECT rank, count(*) FROM events WHERE rank <> 2 GROUP BY rank ORDER BY rank"
    assert run.rows(count) == whole.rows(count)
    assert run.rows("SELECT rank FROM ranks ORDER BY rank") == [(0,), (1,), (3,)]
    ((path, reason),) = run.rows("SELECT path, reason FROM sources WHERE status <> 'read'")
    assert path.endswith("rank2.json.gz")
    assert reason
    with pytest.raises(IngestError, match=r"rank2\.json\.gz"):
        ingest([traces], tmp_path / "strict.run", options=IngestOptions(strict=True))
    assert not (tmp_path / "strict.run").exists()


@spread("part", [0.1, 0.5, 0.9], [0.5])
def test_a_file_without_its_beginning_keeps_its_whole_events(part: float, tmp_path: Path) -> None:
    text = gzip.decompress(_sample())
    begin = int(len(text) * part)
    (tmp_path / "rank2.json").write_bytes(text[begin:])
    run = ingest([tmp_path], tmp_path / "x.run")
    whole = json.loads(text)["traceEvents"]
    rest = text[begin:]
    names = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "user_annotation"}
    # Of the events that open after the cut, by the standard library: those at the end of the list.
    opened = rest.count(b'{"ph":"X","cat"')
    spans = [e for e in whole if e["ph"] == "X"][-opened:]
    kept = sum(e["cat"] in names for e in spans)
    ((count,),) = run.rows("SELECT count(*) FROM events")
    assert kept - 1 <= count <= kept  # the cut may lie inside the first of them
    assert run.rows("SELECT action FROM problems LIMIT 1") == [("dropped",)]


def test_strict_refuses_any_loss_and_names_the_place(tmp_path: Path) -> None:
    strict = IngestOptions(strict=True)
    with pytest.raises(IngestError, match=r"1 dropped: the file ends inside an event \(the first at byte [\d,]+\)"):
        ingest([data("broken", "trunc")], tmp_path / "x.run", options=strict)
    ingest([data("broken", "ok")], tmp_path / "x.run", options=strict)


def _random_text(seed: int, size: int) -> bytes:
    return bytes(random.Random(seed).choices(b'{}"abc0123,:[]', k=size))  # noqa: S311 - no secret


@spread("size", [1 << 10, 1 << 18], 1)
def test_members_of_a_gzip_larger_than_a_block_are_read_one_after_the_other(size: int, tmp_path: Path) -> None:
    """As ``cat a.gz b.gz`` and parallel compressors write them."""
    text = _random_text(1, 1_000_000)
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join(gzip.compress(text[at : at + 400_000]) for at in range(0, 1_000_000, 400_000)))
    for inflater in (zlib, fastest_inflater()):
        stream = ByteStream(path, inflater=inflater)
        assert b"".join(stream.blocks(size)) == text
        assert stream.broken is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.data())
def test_what_a_damaged_gzip_gives_does_not_depend_on_what_inflates_it(drawn: st.DataObject, tmp_path: Path) -> None:
    text = _random_text(drawn.draw(st.integers(0, 9)), 60_000)
    whole = bytearray(gzip.compress(text[:40_000]) + gzip.compress(text[40_000:], 1))
    at = drawn.draw(st.integers(3, len(whole) - 1))
    damage = drawn.draw(st.sampled_from(("cut", "flip", "more")))
    if damage == "flip":
        whole[at] ^= 1 << drawn.draw(st.integers(0, 7))
    (path := tmp_path / "t.json.gz").write_bytes(whole[:at] if damage == "cut" else whole + b"x" * (damage == "more"))
    size = drawn.draw(st.sampled_from((1 << 10, 1 << 14, 1 << 18)))
    seen = []
    for inflater in (zlib, fastest_inflater()):
        stream = ByteStream(path, inflater=inflater)
        seen.append((b"".join(stream.blocks(size)), stream.broken))
    # A reserved bit of a header stops zlib alone: all that was compressed is there.
    assert seen[0] == seen[1] or seen[1] == (text, None)
