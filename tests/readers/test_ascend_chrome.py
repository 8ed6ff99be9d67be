"""Damaged timelines of Ascend's tools: whole spans are kept, the rest is counted with its byte."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from helpers.thorough import spread
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracetool.errors import MalformedTrace
from tracetool.readers import SourceReport
from tracetool.readers.cann.chrome import SpanColumns, take_spans
from tracetool.readers.cann.tracks import Track, Tracks
from tracetool.readers.chrome.compiled import available
from tracetool.readers.files.spill import TableSpill

if TYPE_CHECKING:
    from pathlib import Path

EVENTS: list[dict[str, Any]] = [
    {"name": "process_name", "ph": "M", "pid": 3, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": 'a "quoted" [name] }, {', "pid": 3, "tid": 2, "ts": "1736408883704643.212", "dur": 53.742},
    {"ph": "X", "name": "b", "pid": 3, "tid": 2, "ts": 56635864652.490005, "dur": 0, "args": {"Input Dims": ";\r\n"}},
    {"name": "c", "ph": "X", "pid": 3, "tid": 4, "ts": "1736408883704643.999", "dur": 1, "args": {"name": "of args"}},
]
PIECES = [json.dumps(event) for event in EVENTS]
NAMES = [event["name"] for event in EVENTS if event["ph"] == "X"]
# Times by hand: microseconds times 1000, half to even.
TIMES = {NAMES[0]: (1736408883704643212, 53742), "b": (56635864652490, 0), "c": (1736408883704643999, 1000)}
SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

Span = tuple[str, int, int]


@pytest.fixture(params=["plain", "compiled"])
def scanner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "compiled" and not available():
        pytest.skip("the compiled scanner was not built here")
    monkeypatch.setenv("TRACETOOL_SCANNER", request.param)
    return str(request.param)


def read(path: Path, text: bytes) -> tuple[list[Span], Tracks, SourceReport]:
    path.write_bytes(text)
    report, tracks, spill = SourceReport(), Tracks(), TableSpill()
    shown: list[int] = []
    found: list[Span] = []
    for number in take_spans(path, tracks, spill, frozenset(), report, shown.append):
        spans = SpanColumns(spill.take(number))
        places, names = spans.texts("name")
        times = zip(spans.integers("start").tolist(), spans.integers("duration").tolist(), strict=True)
        found += [(names[place], *time) for place, time in zip(places.tolist(), times, strict=True)]
    assert sum(shown) == len(text)
    return found, tracks, report


def whole(*names: str) -> list[Span]:
    return [(name, *TIMES[name]) for name in names]


@pytest.mark.parametrize("form", ["list", "object", "gzip"])
def test_whole_file(tmp_path: Path, scanner: str, form: str) -> None:
    text = json.dumps({"traceEvents": EVENTS} if form == "object" else EVENTS, indent=1).encode()
    spans, tracks, report = read(tmp_path / "x.json", gzip.compress(text) if form == "gzip" else text)
    assert spans == whole(*NAMES)
    assert tracks.processes == {3: "Ascend Hardware"}
    assert dict(tracks.spans) == {Track.HARDWARE: 3}
    assert report == SourceReport(rows=4)


@pytest.mark.parametrize(
    ("text", "repaired", "dropped"),
    [
        (f"[{PIECES[0]},{PIECES[1]}][{PIECES[2]},{PIECES[3]}]", {"lists of events run together": 1}, {}),
        (f"[{PIECES[0]},{PIECES[1]},]\n[{PIECES[2]},{PIECES[3]}]", {"lists of events run together": 1}, {}),
        (f"[{PIECES[0]},{PIECES[1]}],{PIECES[2]},{PIECES[3]}]", {"lists of events run together": 1}, {}),
        (f"[{PIECES[0]}]{PIECES[1]},{PIECES[2]},{PIECES[3]}]", {"lists of events run together": 1}, {}),
        (
            f"[{PIECES[0]},{PIECES[1]}], x{PIECES[2]},{PIECES[3]}]",
            {},
            {"text between events that is none": 1},
        ),
        (f"[{','.join(PIECES)}]\n \n", {}, {}),
        (f"[{','.join(PIECES)},]", {}, {}),
        (f"[{','.join(PIECES)}", {}, {"the file ends before its list of events does": 1}),
    ],
)
def test_careless_joins_cost_no_event(
    tmp_path: Path, scanner: str, text: str, repaired: dict[str, int], dropped: dict[str, int]
) -> None:
    spans, _, report = read(tmp_path / "x.json", text.encode())
    assert spans == whole(*NAMES)
    assert (report.repaired, report.dropped) == (repaired, dropped)


@pytest.mark.parametrize(
    ("damage", "mended"),
    [
        (lambda piece: piece.replace('"ph"', '"ph', 1), False),
        (lambda piece: piece.replace('"pid": 3', '"pid": 3\0', 1), False),
        (lambda piece: piece[:-1], False),
        (lambda piece: piece.replace("{", "", 1), False),
        (lambda _: "", False),
        (lambda piece: piece.replace('"pid": 3', '"pid": NaN', 1), True),
    ],
    ids=["quote", "nul", "bracket", "opening", "nothing", "nan"],
)
@spread("place", [1, 2, 3], [2])
def test_a_damaged_event_costs_no_other(tmp_path: Path, scanner: str, damage: Any, mended: bool, place: int) -> None:
    pieces = [damage(piece) if n == place else piece for n, piece in enumerate(PIECES)]
    spans, _, report = read(tmp_path / "x.json", f"[{','.join(pieces)}]".encode())
    others = [n for i, n in enumerate(NAMES, 1) if i != place]
    assert [s for s in spans if s[0] in others] == whole(*others)
    assert (len(spans) == len(NAMES)) is mended
    if pieces[place]:
        (at,) = (p.at for p in report.places.values())
        assert at == 1 + sum(len(p) + 1 for p in pieces[:place])


@SAME_FILE
@given(cut=st.integers(1, sum(map(len, PIECES)) + 4))
def test_cut_anywhere_keeps_what_is_whole(tmp_path: Path, cut: int) -> None:
    text = f"[{','.join(PIECES)}]".encode()[:cut]
    ends = [1 + sum(len(p) + 1 for p in PIECES[: n + 1]) - 1 for n in range(len(PIECES))]
    spans, _, report = read(tmp_path / "x.json", text)
    assert spans == whole(*(name for name, end in zip(NAMES, ends[1:], strict=True) if end <= cut))
    # Text in a name that looks like the end of an event counts as a loss of its own where the event is cut.
    apart = int(ends[0] < cut < ends[1] and b"}, {" in text[ends[0] :])
    assert int(cut < ends[-1] + 1) <= report.dropped.total() <= int(cut < ends[-1] + 1) + apart
    assert report.repaired.total() == 0


def test_a_file_without_a_list_says_so(tmp_path: Path, scanner: str) -> None:
    with pytest.raises(MalformedTrace, match="no list of events"):
        read(tmp_path / "x.json", b'"nothing"')


def test_times_and_numbers_that_mean_none(tmp_path: Path, scanner: str) -> None:
    """E notation lacks the digits of a moment; -1 in 32 bits stands for none."""
    path = tmp_path / "x.json"
    span = {"ph": "X", "name": "a", "pid": 3, "tid": 2, "ts": 1, "dur": 2}
    none = 2**32 - 1
    events = [
        span | {"args": {"connection_id": 5, "size(Byte)": none}},
        span | {"ts": "1.7643E+15", "args": {"connection_id": none}},
        span | {"ts": "soon", "dur": 1e-3, "args": {"connection_id": "6"}},
        span | {"ts": None, "dur": "N/A", "pid": "3", "args": None},
    ]
    path.write_text(json.dumps(events))
    tracks, spill = Tracks(), TableSpill()
    numbers = take_spans(path, tracks, spill, frozenset(), SourceReport(), lambda _count: None)
    found = [SpanColumns(spill.take(number)) for number in numbers]
    absent = -(2**63)
    for name, expected in (
        ("start", [1000, absent, absent, absent]),
        ("duration", [2000, 2000, 1, absent]),
        ("connection", [5, absent, 6, absent]),
        ("size", [absent] * 4),
    ):
        assert [value for spans in found for value in spans.integers(name).tolist()] == expected
    assert len(tracks.numbers) == 1
