"""Whole Kineto files with odd but valid events, what must come out of them, and damage of every kind."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

Row = tuple[str, str, int, int]
"""Category, name, start and duration in ns."""

# As tables.py declares the categories: torch's names, those of old versions and of other devices.
CATEGORIES = {
    "kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "cuda_runtime": "launch",
    "cuda_driver": "launch", "xpu_runtime": "launch", "cpu_op": "op", "Operator": "op", "user_annotation": "annotation",
}  # fmt: skip
_TABLED = CATEGORIES | {"overhead": "overhead"}
_OTHER = ["python_function", "ac2g", "fwdbwd", "Trace", "gpu_user_annotation", "overhead", ""]
_SPACES = ["", "", "", "", " ", "  ", "\n", "\t", "\r\n", "\r", "\n      "]
_TIMES = [
    "1.5", "17", "0.001", "1732300000123456.789", "1732300000123456.7895", "-3.25", "1e3", "2.5E-1", "123456789012345",
    '"12.5"', '"1732300000123456.789"', '"7\\t"', "0.0005", "0.0015", "1.0000000",
]  # fmt: skip
_NO_TIMES = ["null", "true", "[]", "{}", '""', '"soon"', '"nan"', '"inf"', "0", "0.0", "9" * 19, "9" * 40, "9" * 5000]
_NO_TIMES += ["1e30", "-1e18", '"1e999999999"', "[1]", '{"a": 1}']
_DURATIONS = ["0", "1", "12.5", "0.001", '"3.25"', "-1", "-0.5", "null", '"x"', "[]", "true", "1e2"]
_NAMES = [r"é", "漢字", "😀", r"\"", r"\\", r"\/", r"\n", r"\u00e9", r"\ud83d\ude00", "{", "}", "[", "]", ",", ":", "'"]
_NAMES += ["aten::mm", "ncclDevKernel_SendRecv", "<void>", r"\ud800", r"\udc00", r"\\ud800", "},{", r"{\"ph\":\"X\"}"]
_VALUES = ["1", "-7", "0.5", "true", "false", "null", '""', '"x"', "[]", "{}", "[1, 2, 3]", '{"a": {"b": [null]}}']
_VALUES += ["9" * 30, "1e400", '"stream 7"', '"0x7f"', r'"\u0000"', '[{"a": 1}, {"b": [2]}]', "-0", '"[0, 1, ...]"']
_KEYS = ["stream", "correlation", "External id", "device", "grid", "Process Group Ranks", "In msg nelems", "x", "", "é"]
_KEYS += ["Collective name", "Group size", "Dst Rank", "dtype", "Process Group Name", "Global rank start", "bytes"]
_HALF = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Event:
    """Text of one event, where it is in the file, and the row it makes (None: it makes none)."""

    start: int
    end: int
    row: Row | None


@dataclass(frozen=True)
class File:
    """Text of a file, the offset after the bracket that opens its list, and its events."""

    text: bytes
    begin: int
    events: list[Event]


class KinetoSoup:
    """Makes files out of the decisions of a random generator."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._number = 0

    def _space(self) -> str:
        return self._random.choice(_SPACES)

    def _member(self, key: str, value: str) -> str:
        return f'"{key}"{self._space()}:{self._space()}{value}'

    def _object(self, members: list[str]) -> str:
        text = f"{self._space()},{self._space()}".join(members)
        return f"{{{self._space()}{text}{self._space()}}}"

    def _value(self) -> str:
        return self._random.choice(_VALUES)

    def _args(self) -> str:
        pick = self._random.choice
        if self._random.random() < 0.08:
            return pick(["null", "[]", '"x"', "7", "true", "[{}]"])
        return self._object([self._member(pick(_KEYS), self._value()) for _ in range(self._random.randint(0, 5))])

    def _name(self) -> str:
        pick, chance = self._random.choice, self._random.random()
        self._number += 1
        if chance < 0.05:
            return pick(["null", f"[{self._number}]", f"{self._number}.50", "true", f'{{"n": {self._number}}}'])
        return f'"n{self._number}{"".join(pick(_NAMES) for _ in range(pick([0, 0, 1, 3])))}"'

    def event(self) -> str:
        """One valid event; no member of its arguments is called ``ph``."""
        pick, chance = self._random.choice, self._random.random
        category = pick([*CATEGORIES, *CATEGORIES, *_OTHER])
        members = [
            self._member("ph", '"X"' if chance() < 0.9 else pick(['"i"', '"f"', '"s"', '"M"', '"x"', "null", "1"])),
            self._member("cat", f'"{category}"' if chance() < 0.95 else pick(["null", "1", "[]", '["kernel"]'])),
            self._member("name", self._name()),
            self._member("ts", pick(_TIMES) if chance() < 0.85 else pick(_NO_TIMES)),
            self._member("dur", pick(_DURATIONS) if chance() < 0.8 else str(self._random.randint(0, 10**6) / 8)),
            self._member("tid", pick(["7", '"7"', '"stream 7"', "null", "1.5", "[]", "9" * 25])),
            self._member("pid", self._value()),
            self._member("args", self._args()),
        ]
        members = [m for n, m in enumerate(members) if n == 0 or chance() < 0.96]
        members += [self._member(pick(["id", "bp", "x", "sf"]), self._value()) for _ in range(pick([0, 0, 0, 1, 2]))]
        if chance() < 0.1:
            members.append(self._member(*pick([("ts", "4.5"), ("dur", "8"), ("cat", '"kernel"'), ("args", "{}")])))
        if chance() < 0.2:
            self._random.shuffle(members)
        return self._object(members)

    def file(self, count: int) -> File:
        """A file of so many events, in a bare list or with members around it."""
        members = [
            self._member("schemaVersion", "1"),
            self._member("distributedInfo", '{"rank": 0, "world_size": 1, "pg_config": [{"pg_name": "0"}]}'),
            self._member("deviceProperties", '[{"id": 0, "name": "H100", "numSms": 132}]'),
            self._member("odd", self._value()),
        ]
        before = self._random.randint(1, len(members))
        head, tail = "[", "]"
        if self._random.random() < 0.85:
            joined = ", ".join(members[:before])
            head = f"{self._space()}{{{self._space()}{joined},{self._space()}{self._member('traceEvents', '[')}"
            rest = [*members[before:], self._member("traceName", '"x.json"')]
            tail = f"]{self._space()}{''.join(f',{self._space()}{m}' for m in rest)}{self._space()}}}"
        text = bytearray(head.encode())
        begin = len(text)
        events = []
        for number in range(count):
            text += f"{',' if number else ''}{self._space()}".encode()
            event = self.event().encode() if number else b'{"ph":"X","cat":"kernel","name":"n","ts":9,"dur":1}'
            events.append(Event(len(text), len(text) + len(event), row_of(event)))
            text += event + self._space().encode()
        return File(bytes(text + tail.encode()), begin, events)

    def damage(self, file: File) -> tuple[int, int, bytes]:
        """A span of the text, from the first event on, and what stands there instead."""
        pick, random = self._random.choice, self._random
        start = random.randint(file.begin, len(file.text))
        if random.random() < 0.3:
            # Where it hurts: at brackets, commas and quotes.
            marks = [m.start() for m in re.finditer(rb'[{}\[\],:"]', file.text[file.begin :])]
            start = file.begin + pick(marks)
        end = min(len(file.text), start + pick([0, 0, 1, 1, 2, 3, 10, 60, 500]))
        kind = random.randint(0, 5)
        if kind == 0:
            return start, len(file.text), b""
        if kind == 1:
            return start, end, b""
        if kind == 2:
            other = random.randint(file.begin, len(file.text))
            return start, start, file.text[other : other + pick([1, 5, 40, 300])].replace(b"schemaVersion", b"version")
        if kind == 3:
            return (
                start,
                end,
                bytes(random.choices(b'"\\{}[],:0123456789-.eEtfnu \n\t\r\x00\x1f\x7f\x80\xff/', k=pick([1, 2, 8]))),
            )
        if kind == 4:
            return start, end, random.randbytes(pick([1, 1, 4, 30]))
        return (
            start,
            end,
            pick(
                [b"\0" * 64, b"]", b"}", b"]}", b"},", b'"', b"{", b"[", b"null", b"NaN", b'{"a":1}', b"\xef\xbb\xbf"]
            ),
        )


def row_of(text: bytes) -> Row | None:
    """The row of an event, worked out by the standard library alone; of equal keys the last counts."""
    pairs = json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=_Pairs)
    event: dict[str, Any] = dict(pairs)
    category = _TABLED.get(event["cat"]) if isinstance(event.get("cat"), str) else None
    start = _ns(event.get("ts"))
    duration = _ns(event.get("dur")) or 0
    if event.get("ph") != "X" or event["ph"] is None or category is None or not start or abs(start) > 2**61:
        return None
    if duration > 2**61:
        return None
    return category, _name_of(text, event.get("name")), start, max(duration, 0)


class _Pairs(list[tuple[str, Any]]):
    pass


def _name_of(text: bytes, name: Any) -> str:
    if name is None:
        return ""
    found = list(re.finditer(rb'"name"\s*:\s*', text))[-1].end()
    if text[found : found + 1] == b'"':
        return _HALF.sub("\ufffd", str(name).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))
    # What is no text keeps its JSON text.
    _, end = json.JSONDecoder().raw_decode(text.decode("latin-1"), found)
    return text[found:end].decode()


def _ns(value: Any) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        number = Decimal(value.strip('"\t '))
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 18:
        return None
    exact = int((number * 1000).to_integral_value(ROUND_HALF_EVEN))
    return exact if -(2**63) <= exact < 2**63 else None
