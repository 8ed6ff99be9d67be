"""Plain data out of a pickle, without running any of it.

A pickle is a program for a stack machine that may import and call anything. This one knows only the instructions
that make dicts, lists, tuples, texts, bytes and numbers, so that nothing else can happen: no import, no call, no
class. Every instruction and every size is checked before it is followed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tracetool.errors import MalformedTrace

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_BYTES = 512 << 20
"""Size of a pickle that is read: what it makes is held in memory as a whole, at up to ten times the size."""
MOST_INSTRUCTIONS = 40_000_000
MOST_CONTAINERS = 10_000_000
_LONGEST_NUMBER = 9  # bytes: any 64-bit number, and too few of one hash to slow a dict down
_MARK = object()

_CALLS = {
    b"c": "GLOBAL", b"\x93": "STACK_GLOBAL", b"i": "INST", b"o": "OBJ", b"\x81": "NEWOBJ", b"\x92": "NEWOBJ_EX",
    b"R": "REDUCE", b"b": "BUILD", b"P": "PERSID", b"Q": "BINPERSID", b"\x82": "EXT1", b"\x83": "EXT2",
    b"\x84": "EXT4",
}  # fmt: skip
_OLD = frozenset(b"IFLSUTVpg.")  # text forms of protocol 0 and byte strings of Python 2


def is_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a pickle of protocol 2 to 5 whose value is a dict."""
    if len(head) < 3 or head[0] != 0x80 or not 2 <= head[1] <= 5:
        return False
    at = 11 if head[2:3] == b"\x95" else 2
    return head[at : at + 1] == b"}"


def plain_data(data: bytes, name: str) -> Any:
    """The value that a pickle of protocol 2 to 5 holds, if it is plain data.

    Args:
        data: The whole pickle.
        name: What to call it in messages.

    Raises:
        MalformedTrace: If it is cut off, too large, or anything but plain data; with the byte.
    """
    if len(data) > MOST_BYTES:
        raise MalformedTrace(
            f"{name}: {len(data):,} bytes are more than the {MOST_BYTES:,} that are read of a pickle.",
            hint="record a shorter history (max_entries), or without call stacks (stacks=None)",
        )
    machine = _Machine(data, name)
    try:
        return machine.run()
    except (LookupError, struct.error, ValueError) as error:
        raise machine.damaged(f"damaged instruction ({type(error).__name__}: {error})") from error


class _Machine:
    """Follows the instructions of a pickle.

    Args:
        data: The pickle.
        name: What to call it in messages.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._containers = 0

    def damaged(self, why: str) -> MalformedTrace:
        """The error for the instruction that was last looked at."""
        return MalformedTrace(f"{self._name}: byte {self._at:,}: {why}.", hint="dump the snapshot again")

    def run(self) -> Any:
        """Follow all instructions; the one value that is left."""
        data, stack, memo = self._data, self._stack, self._memo
        actions = self._actions()
        for _ in range(MOST_INSTRUCTIONS):
            if self._at >= len(data):
                raise self.damaged("the pickle ends without its last instruction: it was cut off")
            code = data[self._at]
            # The most frequent ones by far.
            if code == 0x68:  # BINGET
                stack.append(memo[data[self._at + 1]])
                self._at += 2
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
                self._at += 1
            elif code == 0x2E:  # STOP
                if len(stack) != 1:
                    raise self.damaged(f"{len(stack)} values are left, not one")
                return stack[0]
            else:
                action = actions[code]
                if action is None:
                    raise self._refusal(code)
                action()
        raise self.damaged(f"more than {MOST_INSTRUCTIONS:,} instructions")

    def _refusal(self, code: int) -> MalformedTrace:
        called = _CALLS.get(bytes([code]))
        if called is not None:
            return MalformedTrace(
                f"{self._name}: byte {self._at:,}: {called} would import or call code{self._named(code)}; "
                "only dicts, lists, tuples, texts and numbers are read from a pickle.",
                hint="a file of torch.cuda.memory._dump_snapshot() holds nothing else: do not trust this one",
            )
        if code in _OLD:
            return self.damaged(f"instruction {chr(code)!r} of pickle protocol 0 or 1: only 2 to 5 are read")
        return self.damaged(f"0x{code:02x} is no instruction for plain data")

    def _named(self, code: int) -> str:
        """What a GLOBAL names, or what lies on the stack for STACK_GLOBAL."""
        if code == 0x63:
            words = self._data[self._at + 1 : self._at + 201].split(b"\n")[:2]
            return f" ({b'.'.join(words).decode(errors='replace')})"
        texts = [part for part in self._stack[-2:] if isinstance(part, str)]
        return f" ({'.'.join(texts)[:200]})" if code == 0x93 and texts else ""

    def _actions(self) -> list[Callable[[], None] | None]:
        table: list[Callable[[], None] | None] = [None] * 256
        push = self._stack.append
        for code, value in ((0x4E, None), (0x88, True), (0x89, False)):
            table[code] = self._constant(value)
        for code, make in ((0x7D, dict), (0x5D, list), (0x29, tuple)):
            table[code] = self._fresh(make)
        table[0x28] = self._constant(_MARK)
        table[0x4B] = self._number("<B")
        table[0x4D] = self._number("<H")
        table[0x4A] = self._number("<i")
        table[0x47] = self._number(">d")
        table[0x8A] = self._long("<B")
        table[0x8B] = self._long("<i")
        for code, size in ((0x8C, "<B"), (0x58, "<I"), (0x8D, "<Q")):
            table[code] = self._text(size, lambda raw: push(raw.decode("utf-8", "surrogatepass")))
        for code, size in ((0x43, "<B"), (0x42, "<I"), (0x8E, "<Q")):
            table[code] = self._text(size, push)
        table[0x71] = self._put("<B")
        table[0x72] = self._put("<I")
        table[0x6A] = self._get
        table[0x61], table[0x65] = self._append, self._appends
        table[0x73], table[0x75] = self._set_item, self._set_items
        for code, count in ((0x85, 1), (0x86, 2), (0x87, 3)):
            table[code] = self._tuple_of(count)
        table[0x74] = self._tuple
        table[0x80], table[0x95] = self._skip(2), self._skip(9)
        return table

    def _skip(self, size: int) -> Callable[[], None]:
        def action() -> None:
            self._at += size

        return action

    def _constant(self, value: object) -> Callable[[], None]:
        def action() -> None:
            self._stack.append(value)
            self._at += 1

        return action

    def _fresh(self, make: type) -> Callable[[], None]:
        def action() -> None:
            self._push_container(make())

        return action

    def _push_container(self, value: object) -> None:
        self._containers += 1
        if self._containers > MOST_CONTAINERS:
            raise self.damaged(f"more than {MOST_CONTAINERS:,} containers")
        self._stack.append(value)
        self._at += 1

    def _number(self, form: str) -> Callable[[], None]:
        unpack, size = struct.Struct(form).unpack_from, 1 + struct.calcsize(form)

        def action() -> None:
            self._stack.append(unpack(self._data, self._at + 1)[0])
            self._at += size

        return action

    def _long(self, form: str) -> Callable[[], None]:
        def action() -> None:
            raw = self._sized(form, _LONGEST_NUMBER)
            self._stack.append(int.from_bytes(raw, "little", signed=True))

        return action

    def _text(self, form: str, push: Callable[[bytes], None]) -> Callable[[], None]:
        def action() -> None:
            push(self._sized(form, None))

        return action

    def _sized(self, form: str, most: int | None) -> bytes:
        """The bytes behind an instruction and their length, which is at most ``most``."""
        (length,) = struct.unpack_from(form, self._data, self._at + 1)
        begin = self._at + 1 + struct.calcsize(form)
        if length < 0 or (most is not None and length > most):
            raise self.damaged(f"a number of {length:,} bytes")
        if begin + length > len(self._data):
            raise self.damaged(f"a text of {length:,} bytes where {len(self._data) - begin:,} are left: it was cut off")
        self._at = begin + length
        return self._data[begin : self._at]

    def _put(self, form: str) -> Callable[[], None]:
        unpack, size = struct.Struct(form).unpack_from, 1 + struct.calcsize(form)

        def action() -> None:
            # In a dict, a number that was made up takes no more room than another.
            self._memo[unpack(self._data, self._at + 1)[0]] = self._stack[-1]
            self._at += size

        return action

    def _get(self) -> None:
        self._stack.append(self._memo[struct.unpack_from("<I", self._data, self._at + 1)[0]])
        self._at += 5

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        begin = len(stack) - 1
        while stack[begin] is not _MARK:
            begin -= 1
            if begin < 0:
                raise self.damaged("values without their beginning")
        items = stack[begin + 1 :]
        del stack[begin:]
        return items

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if type(target) is not list:
            raise self.damaged("values are appended to something that is no list")
        return target

    def _append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)
        self._at += 1

    def _appends(self) -> None:
        values = self._since_mark()
        self._list().extend(values)
        self._at += 1

    def _store(self, pairs: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(pairs) % 2:
            raise self.damaged("keys and values for something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | int):
                raise self.damaged(f"a key that is neither text nor number but {type(key).__name__}")
            target[key] = value
        self._at += 1

    def _set_item(self) -> None:
        pair = self._stack[-2:]
        del self._stack[-2:]
        self._store(pair)

    def _set_items(self) -> None:
        self._store(self._since_mark())

    def _tuple(self) -> None:
        self._push_container(tuple(self._since_mark()))

    def _tuple_of(self, count: int) -> Callable[[], None]:
        def action() -> None:
            values = tuple(self._stack[-count:])
            if len(values) < count:
                raise self.damaged("a tuple of values that are not there")
            del self._stack[-count:]
            self._push_container(values)

        return action
