"""The compiled event scanner against independent readings: of random, cut and recorded text."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from helpers.event_reference import CLOSED, MORE, as_found, find
from helpers.event_soup import FIELDS, OWN_KEYS, WANTED, Soup
from helpers.recorded import SAMPLES
from hypothesis import given
from hypothesis import strategies as st

from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import CompiledScanner, Kind

if TYPE_CHECKING:
    from random import Random

pytestmark = pytest.mark.skipif(
    find_spec("tracetool.readers.chrome._scan") is None,
    reason="the compiled scanner was not built (no C compiler at install)",
)


@given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.02]), st.booleans())
def test_random_text_gives_what_the_reference_finds(rng: Random, faults: float, damage: bool) -> None:
    soup = Soup(rng, faults)
    text = soup.text()
    if damage:
        text = soup.damaged(text)
    start = rng.choice([0, rng.randint(0, len(text))])
    stop = rng.choice([len(text), rng.randint(start, len(text))])
    found = as_found(CompiledScanner([Field(*f) for f in FIELDS], WANTED).window(text, start, stop), FIELDS)
    assert found == find(text, start, stop, FIELDS, WANTED)


@given(st.randoms(use_true_random=False), st.sampled_from([0.0, 0.0, 0.02]), st.booleans(), st.booleans())
def test_events_of_few_shapes_give_what_the_reference_finds(
    rng: Random, faults: float, damage: bool, cut: bool
) -> None:
    soup = Soup(rng, faults)
    text = soup.alike()
    if damage:
        text = soup.damaged(text)
    stop = rng.randint(0, len(text)) if cut else len(text)
    found = as_found(CompiledScanner([Field(*f) for f in OWN_KEYS], WANTED).window(text, 0, stop), OWN_KEYS)
    assert found == find(text, 0, stop, OWN_KEYS, WANTED)


@given(st.binary(max_size=60) | st.text('"\\{}[],:0123456789-.eEtruefalsn \n', max_size=60).map(str.encode))
def test_any_bytes_give_what_the_reference_finds(inner: bytes) -> None:
    for text in (inner, b'{"ph":"X","a":%b},{"ph":"X"}]' % inner, b'{"ph":"X",%b}' % inner):
        found = as_found(CompiledScanner([Field(*f) for f in FIELDS], WANTED).window(text, 0, len(text)), FIELDS)
        assert found == find(text, 0, len(text), FIELDS, WANTED)


WHOLE = rb"""
  {
    "ph": "X", "cat": "kernel", "name": "aten::\u00e9\ud83d\ude00 \"x\" and more than sixteen", "tid": "stream 7",
    "ts": 12.5, "args": {"External id": 77, "grid": [1, 2, {"a": null}], "dtype": "f\\", "": true}
  }, {"ph":"i","ts":-3.25e1,"dur":"0012.125"} ,
{"ph":"f", "cat":"ac2g", "args":null},{"ph":"X","cat":"cpu_op","tid":42,"args":{},"x":[false,[[]],-0.5E-3]}
] , "more": 1}"""


def test_a_window_may_end_anywhere() -> None:
    scanner = CompiledScanner([Field(*f) for f in FIELDS], WANTED)
    whole = as_found(scanner.window(WHOLE, 0, len(WHOLE)), FIELDS)
    assert (whole.rows, whole.status, whole.skipped.total()) == (3, CLOSED, 1)
    for cut in range(whole.end):
        first = as_found(scanner.window(WHOLE, 0, cut), FIELDS)
        assert first.status == MORE
        assert first == find(WHOLE, 0, cut, FIELDS, WANTED)
        rest = as_found(scanner.window(WHOLE, first.end, len(WHOLE)), FIELDS)
        assert (rest.end, rest.status) == (whole.end, CLOSED)
        assert [a + b for a, b in zip(first.cells, rest.cells, strict=True)] == whole.cells
        assert first.odd + [(n, row + first.rows, raw) for n, row, raw in rest.odd] == whole.odd
        assert first.skipped + rest.skipped == whole.skipped


RECORDED: list[tuple[str, Kind, bool]] = [
    ("ph", "text", False),
    ("cat", "text", False),
    ("name", "text", False),
    ("ts", "time", False),
    ("dur", "time", False),
    ("External id", "int", True),
    ("stream", "int", True),
    ("Process Group Ranks", "text", True),
    ("grid", "json", True),
]


def _expected(event: dict[str, Any], key: str, kind: Kind, in_args: bool) -> object:
    found = (event.get("args") or {} if in_args else event).get(key)
    if found is None or kind not in ("int", "time"):
        return found
    return int(Decimal(found) * 1000) if kind == "time" else int(found)


def test_a_recorded_trace_gives_what_json_reads() -> None:
    text = gzip.decompress((SAMPLES / "h100-1f1b" / "rank0.json.gz").read_bytes())
    events = json.loads(text, parse_int=str, parse_float=str)["traceEvents"]
    wanted = [e for e in events if e["ph"] == "X" and e["cat"] in ("kernel", "cpu_op")]
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    window = CompiledScanner([Field(*f) for f in RECORDED], {b'"X"': frozenset({b'"kernel"', b'"cpu_op"'})}).window(
        text, start, len(text)
    )
    found = as_found(window, RECORDED)
    assert (found.status, found.odd, found.rows) == (CLOSED, [], len(wanted))
    assert found.rows + found.skipped.total() == len(events)
    for (key, kind, in_args), cells in zip(RECORDED, found.cells, strict=True):
        read = cells
        if kind in ("text", "json"):
            read = [None if c is None else json.loads(bytes(c), parse_int=str) for c in cells]  # type: ignore[call-overload]
        assert read == [_expected(event, key, kind, in_args) for event in wanted], key
