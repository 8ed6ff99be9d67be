"""Which event scanner is used, and what both do alike."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracetool.errors import TraceToolError, UnknownName
from tracetool.readers.chrome import Field, Scanner
from tracetool.readers.chrome.compiled import CompiledScanner, available
from tracetool.readers.chrome.plain import PlainScanner


@pytest.mark.skipif(find_spec("tracetool.readers.chrome._scan") is None, reason="the compiled scanner was not built")
def test_it_is_used_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACETOOL_SCANNER", raising=False)
    assert available()
    monkeypatch.setenv("TRACETOOL_SCANNER", "compiled")
    assert available()


def test_the_environment_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACETOOL_SCANNER", "plain")
    assert not available()
    monkeypatch.setenv("TRACETOOL_SCANNER", "plane")
    with pytest.raises(UnknownName, match="plane"):
        available()


def test_without_it_the_environment_may_insist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tracetool.readers.chrome._scan", None)
    monkeypatch.delenv("TRACETOOL_SCANNER", raising=False)
    assert not available()
    with pytest.raises(TraceToolError, match="not there"):
        CompiledScanner([Field("ph", "text"), Field("cat", "text")], {})
    monkeypatch.setenv("TRACETOOL_SCANNER", "compiled")
    with pytest.raises(TraceToolError, match="not there"):
        available()


SCANNERS = ["plain"] if find_spec("tracetool.readers.chrome._scan") is None else ["plain", "compiled"]
FIELDS = [Field("ph", "text"), Field("cat", "text"), Field("ts", "moment"), Field("ts", "time"), Field("dur", "time")]


def made(kind: str, unwanted: frozenset[bytes] = frozenset()) -> Scanner:
    scanner = CompiledScanner if kind == "compiled" else PlainScanner
    return scanner(FIELDS, {b'"X"': None, b'"i"': frozenset((b'"a"', b'"b"'))}, unwanted)


@pytest.mark.parametrize("kind", SCANNERS)
def test_an_unwanted_category_is_left_out_whatever_else_is_wanted(kind: str) -> None:
    events = [("X", "a"), ("X", "b"), ("X", ""), ("i", "a"), ("i", "b"), ("f", "b"), ("f", "last")]
    text = ", ".join(json.dumps({"ph": ph} | ({"cat": cat} if cat else {})) for ph, cat in events)
    # The plain scanner takes an event once it sees that another one follows.
    scanned = made(kind, frozenset((b'"b"',))).scan(text.encode(), 0, len(text))
    scanned.skipped.pop((b'"f"', b'"last"'), None)
    assert scanned.rows == 3
    assert scanned.skipped == {(b'"X"', b'"b"'): 1, (b'"i"', b'"b"'): 1, (b'"f"', b'"b"'): 1}


@pytest.mark.parametrize("kind", SCANNERS)
@given(
    st.lists(st.sampled_from(["1.5", '"1.5"', "15e-1", '"1.5E0"', "null", '"soon"', "1.2345678", '"7"']), min_size=2)
)
def test_a_moment_is_a_time_without_e_notation(kind: str, values: list[str]) -> None:
    text = ", ".join(f'{{"ph": "X", "ts": {v}, "dur": {v}}}' for v in values) + ', {"ph": "X"}, {"ph": "X"}]'
    table = made(kind).scan(text.encode(), 0, len(text)).table
    assert table is not None
    meaning = {"1.5": 1500, "15e-1": 1500, "1.5E0": 1500, "1.2345678": 1235, "7": 7000}
    expected = [meaning.get(v.strip('"')) for v in values]
    moments = [None if "e" in v.lower().replace("null", "") else e for v, e in zip(values, expected, strict=True)]
    count = len(values)
    assert table.column(2).to_pylist()[:count] == moments
    assert table.column(3).to_pylist()[:count] == table.column(4).to_pylist()[:count] == expected
