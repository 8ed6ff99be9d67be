"""The compiled event scanner, case by case."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from helpers.event_reference import CLOSED, DECLINED, MORE, Found, as_found, find

from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import CompiledScanner, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.skipif(
    find_spec("tracetool.readers.chrome._scan") is None,
    reason="the compiled scanner was not built (no C compiler at install)",
)

TOP: list[tuple[str, Kind, bool]] = [("ph", "text", False), ("cat", "text", False)]
ANY: dict[bytes, frozenset[bytes] | None] = {b'"X"': None}


def scan(text: bytes, *fields: tuple[str, Kind, bool], wanted: dict[bytes, frozenset[bytes] | None] = ANY) -> Found:
    """All of a text, with ph, cat and these fields."""
    all_fields = [*TOP, *fields]
    return as_found(CompiledScanner([Field(*f) for f in all_fields], wanted).window(text, 0, len(text)), all_fields)


def value(raw: bytes, kind: Kind, *, in_args: bool = False) -> tuple[object, list[bytes]]:
    """What one event gives for a field ``v`` that stands as ``raw`` in it, and the raw values that are odd."""
    member = b'"v":%b' % raw
    event = b'{"ph":"X",%b}' % (b'"args":{%b}' % member if in_args else member)
    found = scan(event, ("v", kind, in_args))
    assert (found.status, found.end, found.rows) == (MORE, len(event), 1), raw
    assert {(field, row) for field, row, _ in found.odd} <= {(2, 0)}
    return found.cells[2][0], [odd for _, _, odd in found.odd]


# Between events


@pytest.mark.parametrize(
    ("text", "end", "status", "rows"),
    [
        (b"", 0, MORE, 0),
        (b" \t\r\n", 0, MORE, 0),
        (b",", 0, MORE, 0),
        (b" , ", 0, MORE, 0),
        (b'{"ph":"X"}', 10, MORE, 1),
        (b' ,\n{"ph":"X"} , ', 13, MORE, 1),
        (b'{"ph":"X"}{"ph":"X"}', 20, MORE, 2),
        (b'{"ph":"X"},{"ph":"X"}]', 22, CLOSED, 2),
        (b'{"ph":"X"} ] , 1', 12, CLOSED, 1),
        (b"]", 1, CLOSED, 0),
        (b",]", 2, CLOSED, 0),
        (b",,", 0, DECLINED, 0),
        (b'{"ph":"X"},,{"ph":"X"}', 10, DECLINED, 1),
        (b'{"ph":"X"},null', 10, DECLINED, 1),
        (b'{"ph":"X"},[', 10, DECLINED, 1),
        (b'{"ph":"X"}}', 10, DECLINED, 1),
        (b'{"ph":"X"}\x0b', 10, DECLINED, 1),
        (b'{"ph":"X"}\x00', 10, DECLINED, 1),
        (b"\xef\xbb\xbf", 0, DECLINED, 0),
    ],
)
def test_between_events(text: bytes, end: int, status: int, rows: int) -> None:
    found = scan(text)
    assert (found.end, found.status, found.rows) == (end, status, rows)


def test_nothing_outside_the_window_counts() -> None:
    text = b'{"ph":"X","v":1}{"ph":"X","v":2}{"ph":"X","v":3}]'
    fields: list[tuple[str, Kind, bool]] = [*TOP, ("v", "int", False)]
    scanner = CompiledScanner([Field(*f) for f in fields], ANY)
    found = as_found(scanner.window(text, 16, 32), fields)
    assert (found.end, found.status, found.cells[2]) == (32, MORE, [2])
    assert scanner.window(text, 16, 31)[:3] == (16, MORE, 0)
    assert scanner.window(text, 48, 48)[:3] == (48, MORE, 0)
    for start, stop in [(-1, 3), (3, 2), (0, len(text) + 1), (-5, -3)]:
        with pytest.raises(ValueError, match="outside"):
            scanner.window(text, start, stop)


# What is taken


def test_events_that_are_not_wanted_are_counted() -> None:
    wanted: dict[bytes, frozenset[bytes] | None] = {b'"X"': frozenset({b'"kernel"', b""}), b'"i"': None}
    text = b"""{"ph":"X","cat":"kernel"},{"ph":"X","cat":"op"},{"cat":"op","ph":"X"},{"ph":"X"},{"ph":"X","cat":null},
        {"ph":"i","cat":"op"},{"ph":"i"},{"ph":"f","cat":"kernel"},{"ph":"f"},{},{"cat":"kernel"},{"ph":null},
        {"ph":7},{"ph":"X","cat":"Kernel"},{"ph":"\\u0058","cat":"kernel"}]"""
    declined = text.index(b',{"ph":"\\u0058"')
    found = scan(text, wanted=wanted)
    # Spelled otherwise it means the same: that is for the plain scanner to find.
    assert (found.status, found.end) == (DECLINED, declined)
    assert found.cells == [
        [b'"X"', b'"X"', b'"X"', b'"i"', b'"i"'],
        [b'"kernel"', None, None, b'"op"', None],
    ]
    assert found.skipped == {
        (b'"X"', b'"op"'): 2,
        (b'"f"', b'"kernel"'): 1,
        (b'"f"', b""): 1,
        (b"", b""): 2,
        (b"", b'"kernel"'): 1,
        (b"7", b""): 1,
        (b'"X"', b'"Kernel"'): 1,
    }


def test_an_event_without_phase_can_be_wanted() -> None:
    found = scan(b'{"a":1},{"ph":"X"}]', wanted={b"": frozenset({b""})})
    assert found.cells == [[None], [None]]
    assert found.skipped == {(b'"X"', b""): 1}


@pytest.mark.parametrize("kind", ["text", "json"])
@pytest.mark.parametrize("in_args", [False, True])
@pytest.mark.parametrize(
    "raw",
    [b'"a"', b'""', rb'"\u00e9\n\\"', b'"\xff\x80"', b"[1, 2 ,\t3]", b'{"a" : null}', b"{}", b"-1.50e+3", b"true"],
)
def test_text_is_kept_as_it_stands(raw: bytes, kind: Kind, in_args: bool) -> None:
    assert value(raw, kind, in_args=in_args) == (raw, [])


@pytest.mark.parametrize("kind", ["text", "json", "int", "time"])
@pytest.mark.parametrize("in_args", [False, True])
def test_null_is_absent(kind: Kind, in_args: bool) -> None:
    assert value(b"null", kind, in_args=in_args) == (None, [])


@pytest.mark.parametrize("digits", ["0", "-0", "7", "-12", "1" * 18, "-" + "9" * 18])
@pytest.mark.parametrize("quote", ["", '"'])
def test_plain_integers(digits: str, quote: str) -> None:
    assert value(f"{quote}{digits}{quote}".encode(), "int") == (int(digits), [])


@pytest.mark.parametrize("digits", ["0", "-0.5", "7", "12.3", "-12.34", "9" * 15 + ".999", "-" + "9" * 15, "0.001"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_plain_times_are_exact_nanoseconds(digits: str, quote: str) -> None:
    assert value(f"{quote}{digits}{quote}".encode(), "time") == (int(Decimal(digits) * 1000), [])


def test_leading_zeros_are_plain_inside_quotes_only() -> None:
    assert value(b'"007"', "int") == (7, [])
    assert value(b'"-007.25"', "time") == (-7250, [])
    for raw in (b"007", b"-01", b"00"):
        assert scan(b'{"ph":"X","v":%b}' % raw, ("v", "int", False)).status == DECLINED


ODD = [b'"0x0"', b'"stream 7"', b"1e3", b"1.5e0", b"true", b"false", b"[1]", b'{"a":1}', b'""', b'"-"', b'"+1"']
ODD += [b'" 1"', b'"1 "', rb'"1\t"', b'"1."', b'".5"', b'"--1"', b'"1_0"', rb'"\u0031"', b'"\xd9\xa1"']


@pytest.mark.parametrize("raw", [*ODD, b"1.5", b'"1.0"', b"1" * 19, b'"%b"' % (b"0" * 19), b"-" + b"9" * 30])
def test_integers_of_another_form_are_odd(raw: bytes) -> None:
    assert value(raw, "int") == (None, [raw])


@pytest.mark.parametrize("raw", [*ODD, b"1.2345", b"9" * 16, b"1" * 17 + b".5", b'"0.0000"', b'"1.5.5"', b'"1.-5"'])
def test_times_of_another_form_are_odd(raw: bytes) -> None:
    assert value(raw, "time") == (None, [raw])


def test_odd_values_name_field_and_row() -> None:
    text = b'{"ph":"X","n":1},{"ph":"f","n":true},{"ph":"X","n":true},{"ph":"X","args":{"t":"x"}},{"ph":"X","n":2}'
    found = scan(text, ("n", "int", False), ("t", "time", True))
    assert found.odd == [(2, 1, b"true"), (3, 2, b'"x"')]
    assert found.cells[2:] == [[1, None, None, 2], [None] * 4]


def test_the_last_of_equal_keys_counts() -> None:
    text = b"""{"ph":"f","ph":"X","n":1,"n":2},{"ph":"X","n":"x","n":3},{"ph":"X","n":4,"n":null},
        {"ph":"X","n":5,"n":true},
        {"ph":"X","args":{"m":1,"m":2}},{"ph":"X","args":{"m":3},"args":{}},{"ph":"X","args":{"m":4},"args":null},
        {"ph":"X","args":null,"args":{"m":5}},{"ph":"X","ph":"f"}"""
    found = scan(text, ("n", "int", False), ("m", "int", True))
    assert found.cells[2] == [2, 3, None, None, None, None, None, None]
    assert found.cells[3] == [None, None, None, None, 2, None, None, 5]
    assert found.odd == [(2, 3, b"true")]
    assert found.skipped == {(b'"f"', b""): 1}


def test_keys_belong_to_their_level_and_may_serve_several_fields() -> None:
    text = b'{"ph":"X","m":1,"x":{"m":2,"n":3},"args":{"n":4,"args":{"n":5},"x":{"n":6}}}'
    fields: Sequence[tuple[str, Kind, bool]] = [
        ("m", "int", False),
        ("m", "int", True),
        ("n", "int", True),
        ("n", "json", True),
        ("n", "int", False),
        ("args", "json", False),
        ("args", "json", True),
    ]
    args = b'{"n":4,"args":{"n":5},"x":{"n":6}}'
    assert [column[0] for column in scan(text, *fields).cells[2:]] == [1, None, 4, b"4", None, args, b'{"n":5}']


@pytest.mark.parametrize("args", [b"[]", b"1", b'"x"', b"true", b"false"])
def test_args_that_are_no_object_are_declined(args: bytes) -> None:
    text = b'{"ph":"X"},{"ph":"X","args":%b}' % args
    found = scan(text)
    assert (found.end, found.status, found.rows) == (10, DECLINED, 1)


# What JSON it takes

VALID = [b"0", b"-0", b"1e5", b"1E+5", b"0.5e-05", b'"\\ud83d\\ude00"', rb'"\"\\\/\b\f\n\r\t\uabCD"', b"[ ]", b"{ }"]
VALID += [b"[[],{}]", b'[{"a":[{"b":1}]}]', b'"\x7f\x80\xc0"', b'"%b"' % (b"x" * 100)]
INVALID = [b"01", b"-", b"-x", b"+1", b".5", b"1.", b"1.e5", b"1e", b"1e+", b"0x1", b"NaN", b"Infinity", b"-Infinity"]
INVALID += [b"True", b"nul", b"nullx", b"tru", b"'a'", b"a", b"[1,]", b"[,1]", b"[1 2]", b"[1", b"[1}", b'{"a":1]']
INVALID += [b'{"a":1,}', b'{"a" 1}', b'{"a":}', b"{1:2}", b'{"a":1 "b":2}', b'{,"a":1}', b"{a:1}", b"1 2", b"//", b""]
INVALID += [
    b'"\x01"',
    b'"\x1f"',
    b'"\n"',
    b'"\x00"',
    b'"%b\x00"' % (b"x" * 20),
    rb'"\x"',
    rb'"\0"',
    rb'"\u12"',
    rb'"\u00g0"',
]
INVALID += [
    rb'"\ud83d"',
    rb'"\ude00"',
    rb'"\ud83dx"',
    rb'"\ud83d\n"',
    rb'"\ud83d\u0041"',
    rb'"\ud83d\ud83d"',
    rb'"\U0041"',
]
NEEDED = [b'{"\\u0061":1}', rb'[{"a\\":1}]']


@pytest.mark.parametrize("place", [b'{"ph":"X","x":%b}', b'{"ph":"f","x":%b}', b'{"ph":"X","args":{"x":[{"y":%b}]}}'])
@pytest.mark.parametrize(
    ("raw", "taken"), [*((v, True) for v in VALID), *((v, False) for v in INVALID), *((v, False) for v in NEEDED)]
)
def test_only_strict_json_is_taken_even_where_it_is_skipped(place: bytes, raw: bytes, taken: bool) -> None:
    event = place % raw
    found = scan(b'{"ph":"X"},' + event + b',{"ph":"X"}]')
    assert found.status == (CLOSED if taken else DECLINED)
    assert found.end == (10 + 1 + len(event) + 12 if taken else 10)
    assert find(event, 0, len(event), TOP, ANY).status == (MORE if taken else DECLINED)


@pytest.mark.parametrize(
    "event", [b'{"ph":"X",}', b"{,}", b'{"ph"}', b'{"ph":}', b"{:}", b"{1:1}", b'{"p\\u0068":"X"}', b"{]"]
)
def test_events_that_are_no_objects_are_declined(event: bytes) -> None:
    found = scan(b'{"ph":"X"},' + event + b"]")
    assert (found.end, found.status) == (10, DECLINED)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize(
    ("event", "used"), [(b'{"ph":"X","x":%b}]', 1), (b'{"ph":"f","x":%b}]', 1), (b'{"ph":"X","args":{"x":%b}}]', 2)]
)
def test_a_hundred_levels_are_taken(opening: bytes, closing: bytes, event: bytes, used: int) -> None:
    def nested(levels: int) -> bytes:
        return opening * levels + b"1" + closing * levels

    assert scan(event % nested(100 - used)).status == CLOSED
    assert scan(event % nested(101 - used)).status == DECLINED
    assert scan(event.partition(b"%b")[0] + opening * 100_000).status == DECLINED


def test_many_rows_and_many_distinct_values() -> None:
    names = [f'"name {n * 7919 % 5000:05}"'.encode() for n in range(20_000)]
    text = b",".join(b'{"ph":"X","name":%b,"ts":%d.%03d}' % (name, n, n % 1000) for n, name in enumerate(names))
    found = scan(text, ("name", "text", False), ("ts", "time", False))
    assert found.rows == 20_000
    assert found.cells[2] == names
    assert found.cells[3] == [n * 1000 + n % 1000 for n in range(20_000)]


def test_many_distinct_skipped_pairs() -> None:
    text = b"".join(b'{"ph":"%d","cat":"%d"}' % (n % 7, n % 300) for n in range(4200))
    expected = Counter((b'"%d"' % (n % 7), b'"%d"' % (n % 300)) for n in range(4200))
    assert scan(text).skipped == expected


def test_every_byte_in_every_place_of_a_string() -> None:
    for n in range(256):
        for string in (
            b"%b",
            b"x%bx",
            b"%b" + b"x" * 40,
            b"\\%b",
            b"\\%b0041",
            b"\\u%b000",
            b"\\u000%b",
            b"\\ud83d\\u%be00",
        ):
            text = b'{"ph":"X","v":"%b"},{"%b":1}]' % (string % bytes([n]), bytes([n]))
            assert scan(text, ("v", "text", False)) == find(text, 0, len(text), [*TOP, ("v", "text", False)], ANY)


UNITS = [0, 0xD7FF, 0xD800, 0xDABC, 0xDBFF, 0xDC00, 0xDDEF, 0xDFFF, 0xE000, 0xFFFF]


def test_surrogates_come_in_pairs() -> None:
    for first in UNITS:
        for second in UNITS:
            text = f'{{"ph":"X","v":"\\u{first:04x}\\u{second:04X}"}}]'.encode()
            try:
                json.loads(b'"\\u%04x\\u%04x"' % (first, second)).encode()  # UTF-8 has no lone surrogates
                taken = True
            except UnicodeEncodeError:
                taken = False
            assert scan(text).status == (CLOSED if taken else DECLINED), text


def test_texts_that_differ_in_one_byte_are_kept_apart() -> None:
    for length in range(1, 41):
        whole = b"k" * length
        near = [whole[:n] + b"K" + whole[n + 1 :] for n in range(length)] + [whole + b"k", whole[1:]]
        values = [b'"%b"' % name for name in (whole, *near, whole)]
        text = b",".join(b'{"ph":"X","v":%b}' % value for value in values)
        assert scan(text, ("v", "text", False)).cells[2] == values
        text = b",".join(b'{"ph":"X","%b":1}' % name for name in (whole, *near, whole))
        assert scan(text, (whole.decode(), "int", False)).cells[2] == [1, *[None] * len(near), 1]


def test_the_text_is_let_go() -> None:
    text = bytearray(b'{"ph":"X"}')
    scanner: Any = CompiledScanner([Field(*f) for f in TOP], ANY)
    assert scanner.window(text, 0, len(text)).rows == 1
    with pytest.raises(ValueError, match="outside"):
        scanner.window(text, 0, 99)
    text += b" " * 1000  # BufferError if it were still held


# Making one


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ([], ValueError),
        ([("cat", "text", False), ("ph", "text", False)], ValueError),
        ([("ph", "text", True), ("cat", "text", False)], ValueError),
        ([("ph", "int", False), ("cat", "text", False)], ValueError),
        ([*TOP, ("x", "float", False)], ValueError),
    ],
)
def test_fields_it_cannot_have_are_refused(fields: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        CompiledScanner([Field(*f) for f in fields], ANY)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (7, {}),
        ([7], {}),
        ([("ph", "text", False)], {}),
        ([(b"ph", "text")], {}),
        ([(b"ph", "text", False), (b"cat", "text", False)], 7),
        ([(b"ph", "text", False), (b"cat", "text", False)], {"X": None}),
        ([(b"ph", "text", False), (b"cat", "text", False)], {b"X": ["kernel"]}),
        ([(b"ph", "text", False), (b"cat", "text", False)], {b"X": 7}),
    ],
)
def test_the_module_refuses_other_types(fields: Any, wanted: Any) -> None:
    from tracetool.readers.chrome import _scan

    with pytest.raises((TypeError, ValueError, AttributeError)):
        _scan.Scanner(fields, wanted)
