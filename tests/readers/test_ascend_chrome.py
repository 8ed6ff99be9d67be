"""Damaged timelines of Ascend's tools: whole events are kept, the rest is counted with its byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracetool.readers import SourceReport
from tracetool.readers.ascend_chrome import chrome_events

if TYPE_CHECKING:
    from pathlib import Path

EVENTS = [
    {"name": "process_name", "ph": "M", "pid": 3, "tid": 0, "args": {"name": "Ascend Hardware"}},
    {"ph": "X", "name": 'a "quoted" [name] }, {', "pid": 3, "tid": 2, "ts": "1736408883704643.212", "dur": 53.742},
    {"ph": "X", "name": "b", "pid": 3, "tid": 2, "ts": 56635864652.490005, "dur": 0, "args": {"Input Dims": ";\r\n"}},
    {"name": "c", "ph": "X", "pid": 3, "tid": 4, "ts": "1736408883704643.999", "dur": 1, "args": {"name": "of args"}},
]
PIECES = [json.dumps(event) for event in EVENTS]
SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def read(path: Path, text: bytes) -> tuple[list[object], SourceReport]:
    path.write_bytes(text)
    report = SourceReport()
    shown: list[int] = []
    names: list[object] = [event.name for event in chrome_events(path, report, shown.append)]
    assert sum(shown) == len(text)
    return names, report


NAMES = [event["name"] for event in EVENTS]


def test_whole_file(tmp_path: Path) -> None:
    names, report = read(tmp_path / "x.json", json.dumps(EVENTS, indent=1).encode())
    assert names == NAMES
    assert report == SourceReport()


@pytest.mark.parametrize(
    ("text", "repaired", "at"),
    [
        (f"[{PIECES[0]},{PIECES[1]}][{PIECES[2]},{PIECES[3]}]", "one after the other", 3 + sum(map(len, PIECES[:2]))),
        (f"[{PIECES[0]},{PIECES[1]},]\n[{PIECES[2]},{PIECES[3]}]", "comma before", 3 + sum(map(len, PIECES[:2]))),
        (f"[{PIECES[0]},{PIECES[1]}],{PIECES[2]},{PIECES[3]}]", "", None),
        (f"[{','.join(PIECES)},]", "comma before the end", 4 + sum(map(len, PIECES)) + 1),
        (f"[{','.join(PIECES)}", "end of the events is missing", 4 + sum(map(len, PIECES))),
    ],
)
def test_careless_joins_cost_no_event(tmp_path: Path, text: str, repaired: str, at: int | None) -> None:
    names, report = read(tmp_path / "x.json", text.encode())
    assert names == NAMES
    assert report.dropped.total() == 0
    if at is not None:
        (reason,) = [r for r in report.repaired if repaired in r]
        assert (report.places[reason].at, report.places[reason].unit) == (at, "byte")


@pytest.mark.parametrize(
    "damage",
    [
        lambda piece: piece.replace('"ph"', '"ph', 1),
        lambda piece: piece.replace('"pid": 3', '"pid": NaN', 1),
        lambda piece: piece.replace('"pid": 3', '"pid": 3\0', 1),
        lambda piece: piece[:-1],
        lambda piece: piece.replace('"name": "', '"name": "\udcff', 1),
        lambda piece: piece.replace("{", "", 1),
        lambda _: "",
    ],
    ids=["quote", "nan", "nul", "bracket", "bytes", "opening", "nothing"],
)
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_damaged_event_costs_no_other(tmp_path: Path, damage: object, place: int) -> None:
    assert callable(damage)
    pieces = [damage(piece) if n == place else piece for n, piece in enumerate(PIECES)]
    names, report = read(tmp_path / "x.json", f"[{','.join(pieces)}]".encode(errors="surrogateescape"))
    assert [n for n in names if n in NAMES] == [n for i, n in enumerate(NAMES) if i != place]
    if pieces[place]:
        (at,) = (p.at for reason, p in report.places.items() if reason in report.dropped)
        assert at == 1 + sum(len(p.encode(errors="surrogateescape")) + 1 for p in pieces[:place])


@SAME_FILE
@given(cut=st.integers(0, sum(map(len, PIECES)) + 4))
def test_cut_anywhere_keeps_what_is_whole(tmp_path: Path, cut: int) -> None:
    text = f"[{','.join(PIECES)}]".encode()[:cut]
    ends = [1 + sum(len(p) + 1 for p in PIECES[: n + 1]) - 1 for n in range(len(PIECES))]
    names, report = read(tmp_path / "x.json", text)
    assert names == [name for name, end in zip(NAMES, ends, strict=True) if end <= cut]
    inside = cut > 1 and not any(end <= cut <= end + 1 for end in ends)
    assert report.dropped.total() == int(inside)
    # A cut right behind a bracket looks like an end.
    if inside and not text.endswith(b"]"):
        assert report.dropped == {"event cut off at the end of the file": 1}
