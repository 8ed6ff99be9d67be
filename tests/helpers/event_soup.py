"""Random events of every shape, whole and damaged, for trying event scanners."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from tracetool.readers.chrome.compiled import Kind

FIELDS: list[tuple[str, Kind, bool]] = [
    ("ph", "text", False),
    ("cat", "text", False),
    ("name", "text", False),
    ("tid", "int", False),
    ("ts", "time", False),
    ("dur", "time", False),
    ("args", "json", False),
    ("tid", "json", False),
    ("ts", "int", True),
    ("External id", "int", True),
    ("dtype", "text", True),
    ("Process Group Ranks", "text", True),
    ("grid", "json", True),
    ("", "text", True),
    ("ключ", "json", True),
]
OWN_KEYS: list[tuple[str, Kind, bool]] = [
    f
    for n, f in enumerate(FIELDS)
    if f[0] != "args" and f[::2] not in {(key, in_args) for key, _, in_args in FIELDS[:n]}
]
"""The same without ``args`` as a whole, and one field to a key: as the readers ask, and as shapes are learned."""

WANTED: dict[bytes, frozenset[bytes] | None] = {
    b'"X"': frozenset({b'"kernel"', b'"cpu_op"', b""}),
    b'"i"': None,
    b"": frozenset({b""}),
    b"7": None,
}

_SPACES = ["", "", "", " ", " ", "\n    ", "\t", "\r\n", " " * 40]
_KEYS = ["name", "tid", "ts", "dur", "id", "bp", "Ev Idx", "", "External Id", "phh", "argsargsargsargsargs"]
_PIECES = ["a", "aten::", "é", "漢字", "😀", "/", "'", "{", "]", ",", ":", "0123456789abcdef", "\x7f", "null"]
_ESCAPES = [
    r"\"",
    r"\\",
    r"\/",
    r"\b",
    r"\f",
    r"\n",
    r"\r",
    r"\t",
    r"\u00e9",
    r"\uD83D\uDE00",
    r"\ud800\udfff",
    r"\uFFFF",
]
_BROKEN = [r"\x", r"\u12", r"\uD83D", r"\uDE00", r"\ud83d\u0041", r"\u00g0", "\\", "\x01", "\n", '"']
_NUMBERS = ["0", "-0", "7", "-12", "1.5", "-0.25", "3.125", "1.2345", "1e3", "-2E-4", "1.5e+10", "1E400"]
_NUMBERS += ["9" * n for n in (15, 16, 18, 19, 30)] + ["-" + "8" * 18, "9" * 15 + ".999", "-" + "9" * 15 + ".001"]
_BAD_NUMBERS = ["01", "-01", "+1", ".5", "1.", "-", "1e", "1e+", "0x10", "NaN", "Infinity", "-Infinity", "1_0", "--1"]
_QUOTED = [
    "007",
    "-007",
    "12",
    "-3.5",
    "0x0",
    "stream 7",
    "+5",
    "1.",
    ".5",
    "1.2345",
    " 1",
    "1 ",
    r"12\t",
    "",
    "-",
    "1e3",
]
_WORDS = ["true", "false", "null", "null", "null"]
_BAD_WORDS = ["True", "nul", "nulll", "undefined", "tru e"]
_OTHERWISE = {
    "aten::": ["é", "aten", r"\n"],
    "漢字": ["x"],
    "null": ["1", '""'],
    "true": ["null", "[]"],
    "[]": ["{}", "7"],
}
_BYTES = b'"\\{}[],:0123456789-.eEtfnu \n\t\r\x00\x1f\x7f\x80\xff/'


def crowd(count: int) -> bytes:
    """Events of more shapes than a scanner has room for, each of which is met four times."""
    event = '{"ph":"X","cat":"kernel","a%d":1,"b%d":2,"c%d":"x","ts":%d}'
    return ",".join(event % (n // 4 % 7, n // 28 % 8, n // 224 % 9, n) for n in range(count)).encode()


class Soup:
    """Makes text out of the decisions of a random generator.

    Args:
        random: Decides everything.
        faults: How often something is not valid JSON, of 1.
    """

    def __init__(self, random: Random, faults: float = 0.0) -> None:
        self._random = random
        self._faults = faults

    def _fault(self) -> bool:
        return self._faults > 0 and self._random.random() < self._faults

    def _space(self) -> str:
        return self._random.choice(_SPACES)

    def _string(self) -> str:
        pick = self._random.choice
        pieces = [pick(pick([_PIECES, _PIECES, _ESCAPES])) for _ in range(pick([0, 1, 1, 2, 3, 9, 20]))]
        if self._fault():
            pieces.insert(self._random.randint(0, len(pieces)), pick(_BROKEN))
        return f'"{"".join(pieces)}"'

    def _number(self) -> str:
        if self._fault():
            return self._random.choice(_BAD_NUMBERS)
        if self._random.random() < 0.5:
            return self._random.choice(_NUMBERS)
        decimals = self._random.choice(
            ["", "", f".{self._random.randint(0, 999):03}", f".{self._random.randint(0, 99)}"]
        )
        return f"{self._random.randint(-(10**6), 10 ** self._random.randint(1, 20))}{decimals}"

    def _scalar(self) -> str:
        kind = self._random.randint(0, 9)
        if kind < 3:
            return self._string()
        if kind < 6:
            return self._number()
        if kind < 8:
            return f'"{self._random.choice(_QUOTED)}"'
        return self._random.choice(_BAD_WORDS if self._fault() else _WORDS)

    def _value(self, depth: int = 0) -> str:
        kind = self._random.randint(0, 40)
        if depth > 3 or kind > 8:
            return self._scalar()
        if kind == 0:
            return self._deep(self._random.choice([20, 96, 97, 98, 99, 100, 101, 130]))
        inner = [self._value(depth + 1) for _ in range(self._random.randint(0, 3))]
        if kind < 5:
            return self._joined("[", inner, "]")
        return self._joined("{", [self._member(self._random.choice(_KEYS), value) for value in inner], "}")

    def _deep(self, levels: int) -> str:
        openings = [self._random.choice(["[", '{"":']) for _ in range(levels)]
        return "".join(openings) + "1" + "".join("]" if o == "[" else "}" for o in reversed(openings))

    def _joined(self, opening: str, items: list[str], closing: str) -> str:
        if self._fault():
            items = [*items, self._random.choice(["", "1 2", '"a" "b"', '"a":', ":"])]
        if self._fault():
            closing = self._random.choice(["]", "}", ""])
        text = f"{self._space()},{self._space()}".join(items)
        return f"{opening}{self._space()}{text}{self._space()}{closing}"

    def _member(self, key: str, value: str) -> str:
        quoted = f'"{key}"'
        if self._fault():
            quoted = self._random.choice([r'"p\u0068"', key, f"'{key}'", r'"a\"b"', '"a\nb"', "1"])
        return f"{quoted}{self._space()}:{self._space()}{value}"

    def _args(self) -> str:
        if self._fault():
            return self._random.choice(["[]", '"x"', "1", "true", "nul"])
        if self._random.random() < 0.1:
            return "null"
        known = [key for key, _, in_args in FIELDS if in_args]
        keys = self._random.choices([*known, *known, *_KEYS], k=self._random.randint(0, 6))
        return self._joined("{", [self._member(key, self._value(1)) for key in keys], "}")

    def event(self) -> str:
        """One event."""
        pick, chance = self._random.choice, self._random.random
        members = []
        if chance() < 0.95:
            members.append(self._member("ph", pick(['"X"', '"X"', '"X"', '"i"', '"f"', "7", "null", '"x"'])))
        if chance() < 0.9:
            cats = ['"kernel"', '"kernel"', '"cpu_op"', '"ac2g"', "null", '""', '["kernel"]', "1.0"]
            members.append(self._member("cat", pick(cats)))
        members += [
            self._member(key, self._value()) for key in self._random.choices(_KEYS, k=self._random.randint(0, 6))
        ]
        members += [self._member("args", self._args()) for _ in range(pick([0, 1, 1, 1, 2]))]
        if chance() < 0.1:
            members.append(self._member(*pick([("ph", '"X"'), ("cat", '"kernel"'), ("ph", "null"), ("cat", "null")])))
        if chance() < 0.2:
            self._random.shuffle(members)
        return self._joined("{", members, "}")

    def text(self) -> bytes:
        """A few events as they stand in a list."""
        parts = [self._space(), self._random.choice(["", "", "", ","])]
        for _ in range(self._random.randint(0, 6)):
            comma = self._random.choice(["", ",,", "x", "null,"]) if self._fault() else ","
            parts += [self._space(), self.event(), self._space(), comma]
        parts.append(self._random.choice(["", "", " ", "]", "\n]", "]}", "{"]))
        return "".join(parts).encode("utf-8", "surrogatepass")

    def alike(self) -> bytes:
        """Many events of few shapes, as a writer makes them, but some with small differences."""
        pick, chance = self._random.choice, self._random.random
        shapes = [self.event() for _ in range(pick([1, 1, 2, 4, 8]))]
        between = pick([",", ",\n  ", " ,", "\r\n,\t", " "])
        events = [self._another(pick(shapes)) if chance() < 0.9 else pick(shapes) for _ in range(pick([4, 10, 40]))]
        return (between.join(events) + pick(["", "]", "\n]", between + "]", between])).encode("utf-8", "surrogatepass")

    def _another(self, event: str) -> str:
        pick, chance = self._random.choice, self._random.random
        digits, words = chance() < 0.8, pick([0.0, 0.0, 0.1])

        def other(run: re.Match[str]) -> str:
            if run[0].startswith("\\u"):
                return run[0]
            if not run[0].isdigit():
                return pick(_OTHERWISE[run[0]]) if words and chance() < words else run[0]
            kept = run[0] if chance() < 0.5 else run[0] * 2 if chance() < 0.2 else run[0][-1]
            return "".join(pick("123456789") if digits and d != "0" else d for d in kept)

        event = re.sub(rf"\\u.{{4}}|{'|'.join(map(re.escape, _OTHERWISE))}|\d+", other, event)
        if self._fault():
            at = self._random.randrange(len(event))
            event = (
                event[:at]
                + pick([" ", "0", "9", ".", "e", "-", '"', "}", "]", ",", "\\", ""])
                + event[at + pick([0, 1]) :]
            )
        return event

    def damaged(self, text: bytes) -> bytes:
        """The text with a few bytes changed, put in, taken out or cut off."""
        damaged = bytearray(text)
        for _ in range(self._random.randint(0, 3)):
            at = self._random.randint(0, len(damaged))
            what = self._random.randint(0, 5)
            if what == 0:
                del damaged[at:]
            elif what == 1:
                del damaged[at : at + self._random.randint(1, 4)]
            elif what == 2:
                damaged[at:at] = damaged[: self._random.randint(0, 20)]
            elif what == 3:
                damaged[at : at + 1] = bytes([self._random.randint(0, 255)])
            else:
                damaged[at : at + self._random.randint(0, 1)] = bytes([self._random.choice(_BYTES)])
        return bytes(damaged)
