"""Values of the product as bytes: what a Run keeps beside its tables.

A pickle that holds nothing but the product's own values. Of a type whose fields are plain (a kernel, an operation), all
values are written field by field: one at a time, each takes a call to write and another one to read.
"""

from __future__ import annotations

import gc
import io
import pickle
import zlib
from array import array
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PACKAGE = __name__.partition(".")[0]
_PROTOCOL = 5
_PLAIN = (int, float, str, Enum, type(None))


def to_bytes(value: object) -> bytes:
    """A value as bytes.

    Args:
        value: Made of the product's own dataclasses, named tuples and enumerations, and of plain data.
    """
    main = io.BytesIO()
    writer = _Writer(main)
    writer.dump(value)
    columns = [(of, _columns(of, rows)) for of, rows in writer.rows.items()]
    return zlib.compress(pickle.dumps(columns, _PROTOCOL) + main.getbuffer(), 1)


def from_bytes(text: bytes) -> object:
    """The value; what comes once in it comes once again.

    Raises:
        Exception: Of many kinds, where the bytes are damaged, or hold anything but values of the product.
    """
    stream = io.BytesIO(zlib.decompress(text))
    with _no_collection():
        columns = _OwnValues(stream, {}).load()
        return _OwnValues(stream, {of: _rows(of, of_type) for of, of_type in columns}).load()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Values that are all kept are no garbage: to look for some among them takes a third of reading them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _row(of: type) -> object:
    """Stands in a pickle for what gives the next value of a type; nothing calls it."""
    raise pickle.UnpicklingError(f"{of!r} has no rows")


@dataclass(frozen=True, slots=True)
class _NextRow:
    """Pickled as what gives the next value of a type."""

    of: type

    def __call__(self) -> object:
        """Pickle asks for something that can be called."""
        return _row(self.of)

    def __reduce__(self) -> tuple[Callable[[type], object], tuple[type]]:
        return _row, (self.of,)


class _Writer(pickle.Pickler):
    """Writes in place of each value of a plain type that it is the next one."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, _PROTOCOL)
        self.rows: dict[type, list[Any]] = {}
        self._next: dict[type, tuple[_NextRow, tuple[()]] | None] = {}

    def reducer_override(self, value: object) -> Any:
        """What Pickler asks for each value that is not built in, the first time it comes."""
        of = type(value)
        if of not in self._next:
            self._next[of] = (_NextRow(of), ()) if _is_plain(value) else None
        reduced = self._next[of]
        if reduced is None:
            return NotImplemented
        self.rows.setdefault(of, []).append(value)
        return reduced


def _is_plain(value: object) -> bool:
    """Whether a value is a row: of a named tuple or of a dataclass that is made from its fields, all of them plain."""
    of = type(value)
    names = _names(of)
    if not of.__module__.startswith(f"{_PACKAGE}.") or not names or hasattr(of, "__post_init__"):
        return False
    return all(isinstance(each, _PLAIN) or each == () for each in map(value.__getattribute__, names))


def _names(of: type) -> tuple[str, ...]:
    """The fields that a value of a type is made from, in order; none if it is made otherwise."""
    if issubclass(of, tuple):
        return tuple(getattr(of, "_fields", ()))
    if not (is_dataclass(of) and hasattr(of, "__slots__")):
        return ()
    declared = fields(of)
    return () if any(one.kw_only or not one.init for one in declared) else tuple(one.name for one in declared)


def _columns(of: type, rows: Sequence[Any]) -> list[object]:
    """The fields of rows, each a sequence."""
    names = _names(of)
    if issubclass(of, tuple):
        return [_packed(column) for column in zip(*rows, strict=True)]
    return [_packed(tuple(map(attrgetter(name), rows))) for name in names]


def _packed(column: tuple[Any, ...]) -> object:
    kinds = set(map(type, column))
    if kinds == {int}:
        try:
            return array("q", column).tobytes()
        except OverflowError:
            return column
    if str in kinds and kinds <= {str, type(None)}:
        # A pickle knows a text again by where it is, not by what it says.
        one_of: dict[str | None, str | None] = {}
        return tuple(map(one_of.setdefault, column, column))
    return column


def _rows(of: type[Any], columns: Sequence[object]) -> Iterator[Any]:
    """The values of a type, from their fields."""
    unpacked: list[Any] = [_unpacked(column) if isinstance(column, bytes) else column for column in columns]
    if issubclass(of, tuple):
        # As the _make of named tuples, without a call of Python for each.
        return map(tuple.__new__, repeat(of), zip(*unpacked, strict=True))
    return map(of, *unpacked)


def _unpacked(column: bytes) -> list[int]:
    numbers = array("q")
    numbers.frombytes(column)
    return numbers.tolist()


class _OwnValues(pickle.Unpickler):
    """Reads values of the product's own types, and nothing that runs anything else: a Run may come from anywhere.

    Args:
        stream: What to read.
        rows: Values of plain types, in the order in which they come.
    """

    def __init__(self, stream: io.BytesIO, rows: dict[type, Iterator[Any]]) -> None:
        super().__init__(stream)
        self._rows = rows

    def find_class(self, module: str, name: str) -> Any:
        """A dataclass, named tuple or enumeration of the product."""
        if (module, name) == ("builtins", "getattr"):
            return _member  # how Python 3.11.2 writes members of enumerations
        if (module, name) == (__name__, _row.__name__):
            return self._next_row
        value = getattr(import_module(module), name) if module.startswith(f"{_PACKAGE}.") else None
        if isinstance(value, type) and (issubclass(value, Enum | tuple) or is_dataclass(value)):
            return value
        raise pickle.UnpicklingError(f"{module}.{name} is no value")

    def _next_row(self, of: type) -> Callable[[], object]:
        return self._rows[of].__next__


def _member(of: object, name: str) -> Enum:
    if not (isinstance(of, type) and issubclass(of, Enum)):
        raise pickle.UnpicklingError(f"{of!r} is no enumeration")
    return of[name]
