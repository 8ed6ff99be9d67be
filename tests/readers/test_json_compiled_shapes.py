"""The compiled event scanner on events whose shape it has met: the same answers as by the general way.

What is expected comes from ``event_reference``, or is written out. Every event under test follows others of its
shape, and text enough stands after it, so that it is compared with them and not parsed from the start.
"""

from __future__ import annotations

import random
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from helpers.event_reference import CLOSED, DECLINED, MORE, Found, as_found, find
from helpers.event_soup import crowd
from helpers.thorough import some, spread

from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import CompiledScanner, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

pytestmark = pytest.mark.skipif(
    find_spec("tracetool.readers.chrome._scan") is None,
    reason="the compiled scanner was not built (no C compiler at install)",
)

FIELDS: list[tuple[str, Kind, bool]] = [
    ("ph", "text", False),
    ("cat", "text", False),
    ("name", "text", False),
    ("tid", "int", False),
    ("ts", "time", False),
    ("dur", "time", False),
    ("External id", "int", True),
    ("Sequence number", "int", True),
    ("dtype", "text", True),
    ("grid", "json", True),
]
WANTED: dict[bytes, frozenset[bytes] | None] = {b'"X"': frozenset({b'"cpu_op"', b'"kernel"'}), b'"i"': None}

OP = b"""  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mul \\n", "pid": 919, "tid": 1509,
    "ts": 4956234046869.398, "dur": 54.462,
    "args": {
      "External id": 1537,"Record function id": 0, "Sequence number": 12608, "Ev Idx": 12345678
    }
  }"""
KERNEL = b"""  {
    "ph": "X", "cat": "kernel", "name": "void at::native::copy_kernel<128, 4>(int, float const*)", "pid": 0, "tid": 7,
    "ts": 4956238979997.559, "dur": 270.1,
    "args": {
      "External id": 28,      "dtype": "BFloat16", "blocks per SM": 1.5,      "grid": [2, 66, 1],      "block": [384]
    }
  }"""
FLOW = b"""  {
    "ph": "f", "id": 895321, "pid": 0, "tid": 7, "ts": 4956238979997.559,
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }"""
COMPACT = (
    b'{"ts":16,"name":"b","args":{"grid":"[]","w":{"a":[1,{}]},"External id":"7"},"dur":-1.25,"cat":"kernel","ph":"X"}'
)
SAMPLES = [OP, KERNEL, FLOW, COMPACT]
IDS = ["op", "kernel", "flow", "compact"]
ROOM = b" " * 40  # what stands after an event, so that there are bytes enough to compare


def scan(text: bytes, stop: int | None = None, fields: Sequence[tuple[str, Kind, bool]] = FIELDS) -> Found:
    """What the scanner finds, which must be what the reference finds."""
    stop = len(text) if stop is None else stop
    found = as_found(CompiledScanner([Field(*f) for f in fields], WANTED).window(text, 0, stop), fields)
    assert found == find(text, 0, stop, fields, WANTED), text[:stop]
    return found


def after_its_like(event: bytes, *samples: bytes) -> bytes:
    """Text in which an event follows each sample twice: what stands before the first is of the window alone."""
    return b",\n".join([*samples, *samples, event, samples[0]]) + ROOM


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_every_byte_of_an_event_may_be_another(sample: bytes) -> None:
    for at in some(range(len(sample)), 12):
        for byte in b'"\\}], 09.e\x1f\xff' + bytes([sample[at] ^ 1]):
            scan(after_its_like(sample[:at] + bytes([byte]) + sample[at + 1 :], sample))


@pytest.mark.parametrize("sample", SAMPLES, ids=IDS)
def test_bytes_may_be_missing_or_too_many_anywhere(sample: bytes) -> None:
    for at in some(range(len(sample) + 1), 12):
        for more in (b" ", b"0", b'"', b",", b"}", b".", b"e1", b"\\", b'"a":1,'):
            scan(after_its_like(sample[:at] + more + sample[at:], sample))
        for less in (1, 7):
            scan(after_its_like(sample[:at] + sample[at + less :], sample))
            scan(after_its_like(sample[:at] + sample[at : at + less] + sample[at:], sample))


@pytest.mark.parametrize("after", [b"", b"\n]", b",\n" + FLOW, ROOM])
def test_a_window_may_end_anywhere_in_an_event_of_a_known_shape(after: bytes) -> None:
    text = b",\n".join([*SAMPLES, *SAMPLES, *SAMPLES]) + after
    for cut in some(range(text.rindex(OP) - 1, len(text) + 1), 40):
        found = scan(text, cut)
        assert found.status in (MORE, CLOSED)
        assert found.rows + found.skipped.total() >= 8


def test_a_window_may_begin_between_any_events() -> None:
    text = b",\n".join(SAMPLES * 3) + b"]"
    whole = scan(text)
    assert whole.rows == 9
    for start in [text.index(sample) for sample in SAMPLES]:
        rest = as_found(CompiledScanner([Field(*f) for f in FIELDS], WANTED).window(text, start, len(text)), FIELDS)
        assert rest == find(text, start, len(text), FIELDS, WANTED)
        assert rest.end == whole.end


_DECIMALS = (b".", b".0", b".1", b".12", b".123", b".1234", b"." + b"7" * 9)


def numbers() -> Iterator[bytes]:
    """Numbers of every length, good and bad."""
    for digits in range(21):
        for whole in {b"9" * digits, b"1234567890123456789012"[:digits], b"8" * digits, b"0" * digits, b"01" * digits}:
            for rest in (b"", *_DECIMALS, b"e5", b".5E-7", b"-", b"x"):
                yield whole + rest
                yield b"-" + whole + rest
                if len(rest) < 5:
                    yield b'"%b%b"' % (whole, rest)
    yield from (b"null", b"nul", b"true", b"[]", b'"0x0"', b'"stream 7"', b'""', b"--1", b"+1", b".5", b"1..5")


@pytest.mark.parametrize("key", [b"ts", b"tid", b"pid", b"name"])
def test_numbers_of_every_form_in_a_known_shape(key: bytes) -> None:
    begin = OP.index(b'"%b": ' % key) + len(key) + 4
    end = begin + len(OP[begin:].split(b",")[0].split(b"\n")[0])
    for number in some(numbers(), 60):
        scan(after_its_like(OP[:begin] + number + OP[end:], OP))


def test_numbers_are_exact_in_a_known_shape() -> None:
    times = [b"%d.%03d" % (16**n % 10**15, n) for n in range(300)]
    text = b",".join(b'{"ph":"X","cat":"kernel","ts":%b,"tid":%d}' % (t, n - 150) for n, t in enumerate(times)) + ROOM
    found = scan(text)
    assert found.cells[4] == [(16**n % 10**15) * 1000 + n for n in range(300)]
    assert found.cells[3] == [n - 150 for n in range(300)]


def test_texts_that_follow_each_other_and_begin_alike() -> None:
    base = [b'"%b"' % (b"x" * n) for n in range(40)] + [b'"%b"' % (b"x" * n + b"y") for n in range(40)]
    base += [b'"%by%b"' % (b"x" * n, b"x" * (39 - n)) for n in range(40)]
    base += [rb'"a\"b"', rb'"a\""', rb'"a\\"', b"1", b"12", b"1.5", b"1.55", b"true", b"[1]", b"[1, 2]", b"null", b'""']
    pick = random.Random(7)  # noqa: S311 - cases of a test, repeatable
    values = base * 3 + pick.choices(base, k=600) + pick.choices(base[:3], k=300)
    text = b",".join(b'{"ph":"X","cat":"cpu_op","name":%b,"x":%b}' % (v, v) for v in values) + ROOM
    assert scan(text).cells[2] == [None if v == b"null" else v for v in values]


@pytest.mark.parametrize("bad", [b'"x\ny"', b'"x', b'"x"y"', rb'"\ud800"', rb'"\x"', b"[1,]", b"[1", b'{"a"}', b"tru"])
@pytest.mark.parametrize("key", [b"name", b"w"])
def test_bad_texts_after_good_ones(key: bytes, bad: bytes) -> None:
    event = b'{"ph":"X","cat":"cpu_op","%b":%b,"ts":1}'
    good = [event % (key, v) for v in (b'"x"', b'"xy"', b'"x"', b'"xy"', b"[1]", b'"x"')]
    text = b",".join([*good, event % (key, bad), *good]) + ROOM
    found = scan(text)
    assert (found.rows, found.status) == (6, DECLINED)


@pytest.mark.parametrize("levels", [98, 99, 100])
def test_levels_are_counted_in_a_known_shape(levels: int) -> None:
    event = b'{"ph":"X","cat":"kernel","args":{"w":%b,"dtype":%b},"w":%b,"name":%b}'
    plain = event % ((b"[]",) * 4)
    for place in range(4):
        depths = [levels + place // 2 if n == place else 1 for n in range(4)]
        deep = event % tuple(b"[" * depth + b"]" * depth for depth in depths)
        found = scan(after_its_like(deep, plain))
        assert found.status == (MORE if levels < 99 else DECLINED)


def test_events_of_one_shape_are_kept_or_skipped_by_their_kind() -> None:
    kinds = [
        (ph, cat) for ph in (b'"X"', b'"f"', b"null", b"7") for cat in (b'"kernel"', b'"cpu_op"', b'"other"', b"null")
    ]
    pick = random.Random(3)  # noqa: S311 - cases of a test, repeatable
    events = pick.choices(kinds, k=400)
    text = b",".join(b'{"name":"%d","ts":%d,"cat":%b,"ph":%b}' % (n % 9, n, c, p) for n, (p, c) in enumerate(events))
    found = scan(text + ROOM)
    taken = [n for n, (p, c) in enumerate(events) if p == b'"X"' and c in (b'"kernel"', b'"cpu_op"')]
    assert found.cells[2] == [b'"%d"' % (n % 9) for n in taken]
    assert found.cells[4] == [n * 1000 for n in taken]
    assert found.skipped.total() == 400 - len(taken)


def test_events_without_category_of_a_known_shape() -> None:
    events = [b'{"ph":"i","ts":%d}', b'{"ph":"i","cat":null,"ts":%d}', b'{"ph":"X","cat":"kernel","ts":%d}']
    found = scan(b",".join(events[n % 3] % n for n in range(60)) + ROOM)
    assert found.cells[0] == [b'"i"', b'"i"', b'"X"'] * 20
    assert found.cells[1] == [None, None, b'"kernel"'] * 20


def test_keys_met_twice_are_not_taken_for_a_shape() -> None:
    twice = [
        b'{"ph":"X","cat":"kernel","ts":1,"ts":%d}',
        b'{"ph":"X","cat":"kernel","args":{"External id":1,"External id":%d}}',
        b'{"ph":"X","cat":"kernel","args":{"External id":1},"args":{"dtype":%d}}',
        b'{"ph":"X","cat":"kernel","args":{"External id":%d},"args":null}',
        b'{"ph":"f","ph":"X","cat":"kernel","ts":%d}',
        b'{"ph":"X","ph":"f","cat":"kernel","ts":%d}',
    ]
    found = scan(b",".join(event % n for n in range(1, 6) for event in twice) + ROOM)
    assert found.cells[4] == [None if k in (1, 2, 3) else n * 1000 for n in range(1, 6) for k in range(5)]
    assert found.cells[6] == [n if k == 1 else None for n in range(1, 6) for k in range(5)]
    assert found.skipped == Counter({(b'"f"', b'"kernel"'): 5})


def test_a_key_that_serves_several_fields() -> None:
    fields: list[tuple[str, Kind, bool]] = [
        *FIELDS[:3],
        ("ts", "time", False),
        ("ts", "json", False),
        ("ph", "json", False),
    ]
    text = b",".join(b'{"ph":"X","cat":"kernel","ts":%d}' % n for n in range(50)) + ROOM
    found = scan(text, fields=fields)
    assert found.cells[3:] == [[n * 1000 for n in range(50)], [b"%d" % n for n in range(50)], [b'"X"'] * 50]
    whole: list[tuple[str, Kind, bool]] = [*FIELDS[:3], ("args", "json", False), ("External id", "int", True)]
    text = b",".join(b'{"ph":"X","cat":"kernel","args":{"External id":%d}}' % n for n in range(50)) + ROOM
    found = scan(text, fields=whole)
    assert found.cells[3:] == [[b'{"External id":%d}' % n for n in range(50)], list(range(50))]


def test_columns_that_few_events_fill() -> None:
    event = b'{"ph":"X","cat":"kernel","name":"k"%b}'
    some = {
        17: b',"ts":5',
        18: b',"tid":1',
        900: b',"args":{"dtype":"f","Sequence number":3}',
        901: b',"ts":null,"tid":"x"',
    }
    text = b",".join(event % some.get(n, b"") for n in range(1500)) + ROOM
    found = scan(text)
    assert [n for n, v in enumerate(found.cells[4]) if v is not None] == [17]
    assert [n for n, v in enumerate(found.cells[8]) if v is not None] == [900]
    assert found.odd == [(3, 901, b'"x"')]
    window = CompiledScanner([Field(*f) for f in FIELDS], WANTED).window(text, 0, len(text))
    values, valid = window.columns[5]
    assert (bytes(values), bytes(valid)) == (bytes(1500 * 8), bytes(1500))  # type: ignore[arg-type]
    assert bytes(window.columns[3][0]) == b"".join((n == 18).to_bytes(8, "little") for n in range(1500))


@spread("branches", [3, 30, 700], [700])
def test_more_shapes_than_are_remembered(branches: int) -> None:
    shapes = [b'{"ph":"X","cat":"kernel","k%d":1,"ts":%%d,"l%d":{},"dur":2}' % (n, n) for n in range(branches)]
    found = scan(b",\n".join(shapes[n * 7919 % branches] % n for n in range(1400)) + ROOM)
    assert found.cells[4] == [n * 1000 for n in range(1400)]
    assert found.cells[5] == [2000] * 1400


def test_more_steps_than_are_remembered() -> None:
    assert scan(crowd(2000) + ROOM).rows == 2000


@pytest.mark.parametrize("values", [63, 64, 65, 200])
def test_more_values_than_a_shape_holds(values: int) -> None:
    event = b'{"ph":"X","cat":"kernel",%b,"ts":%%d}' % b",".join(b'"k%d":%d' % (n, n) for n in range(values))
    assert scan(b",".join(event % n for n in range(20)) + ROOM).cells[4] == [n * 1000 for n in range(20)]


def test_a_known_shape_after_many_unknown_ones() -> None:
    unknown = [b'{"ph":"X","cat":"kernel","u%d":"%d","ts":1}' % (n, n) for n in range(600)]
    known = [b'{"ph":"X","cat":"cpu_op","name":"n","ts":%d}' % n for n in range(600)]
    found = scan(b",".join(known[:300] + unknown + known[300:]) + ROOM)
    assert found.cells[4] == [n * 1000 for n in range(300)] + [1000] * 600 + [n * 1000 for n in range(300, 600)]


@pytest.mark.parametrize("space", [b"", b" ", b"\t", b"\r\n", b"  \n"])
@pytest.mark.parametrize("comma", [b"", b",", b",,", b"x", b"null,", b",]"])
def test_what_stands_between_events_of_a_known_shape(space: bytes, comma: bytes) -> None:
    for event in (COMPACT, FLOW):
        for usual in (b",", space + comma + space):
            text = event + usual + event + usual + event + space + comma + space + event + b"," + event + ROOM
            scan(text)
