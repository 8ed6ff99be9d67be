"""The event scanner in C, where it was built: several times as fast as the plain one, and stricter.

It takes only what is strictly valid JSON of the usual shape and declines the rest, so that one place, in
Python, decides about everything unusual.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from tracetool.errors import TraceToolError, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.readers import _scan

Kind = Literal["text", "json", "int", "time"]
Column = tuple[bytearray, bytearray] | tuple[bytearray, list[bytes]]

CHOICE = "TRACETOOL_SCANNER"


class Window(NamedTuple):
    """What was found in a window of text.

    Attributes:
        end: Offset after the last event taken or skipped, or after the ``]`` that closed the list.
        status: 0 if more text is needed, 1 if the next thing is not plainly a valid event, 2 if the list closed.
        rows: Number of events taken.
        columns: One per field. Numbers: int64 values and a byte per row that says whether there is one. Text:
            int32 codes (-1: absent) and the distinct raw values.
        odd: (field, row, raw value) of numbers in another form than the plain one; not valid in the column.
        skipped: (raw ``ph``, raw ``cat``) to number of events that were not wanted.
    """

    end: int
    status: Literal[0, 1, 2]
    rows: int
    columns: list[Column]
    odd: list[tuple[int, int, bytes]]
    skipped: dict[tuple[bytes, bytes], int]


def available() -> bool:
    """Whether the compiled scanner is there and not turned off by ``TRACETOOL_SCANNER=plain``.

    Raises:
        TraceToolError: If ``TRACETOOL_SCANNER=compiled`` insists on it but it is not there.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in {"", "plain", "compiled"}:
        raise UnknownName("scanner", choice, ["plain", "compiled"], hint=f"set {CHOICE} to plain, compiled or nothing")
    if choice == "plain":
        return False
    try:
        _load()
    except TraceToolError:
        if choice == "compiled":
            raise
        return False
    return True


def _load() -> type[_scan.Scanner]:
    try:
        module = import_module("tracetool.readers._scan")
    except ImportError as error:
        raise TraceToolError(
            f"the compiled scanner is not there: {error}.",
            hint=f"install tracetool where a C compiler is, or unset {CHOICE}",
        ) from error
    return cast("type[_scan.Scanner]", module.Scanner)


class CompiledScanner:
    """Takes events out of text.

    Args:
        fields: (key, kind, whether it is a key of ``args``) of each column; the first two are ``ph`` and ``cat``.
        wanted: Raw text of ``ph``, quotes included, to the raw texts of ``cat`` that are taken (empty: no
            category); None for any.

    Raises:
        TraceToolError: If it was not built.
    """

    def __init__(
        self, fields: Sequence[tuple[str, Kind, bool]], wanted: Mapping[bytes, frozenset[bytes] | None]
    ) -> None:
        self._scanner = _load()([(key.encode(), kind, in_args) for key, kind, in_args in fields], wanted)

    def scan(self, data: bytes, start: int, stop: int) -> Window:
        """Take whole events from the front of the window ``data[start:stop]``."""
        return Window(*self._scanner.scan(data, start, stop))
