"""Cells of an export as columns of Arrow, whatever they are stored as: what is of another kind counts as null.

SQLite keeps any value in any column. Numbers that are stored as text count as such; ids of 64 bits without a sign, as
Arrow and JSON have them, get the sign that they have in SQLite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracetool.readers.cann.db import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Kind = Literal["number", "text", "bytes"]
    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

_UNSIGNED = 2**64
_LARGEST = 2**63 - 1


def column_of(cells: Sequence[Any], kind: Kind) -> pa.Array:
    """Cells of Python as int64, or as binary: what programs call things may be any bytes."""
    if kind == "number":
        return _numbers(cells)
    if kind == "bytes":
        # A text is none: what was no text before it became one is lost.
        return pa.array([cell if isinstance(cell, bytes) else None for cell in cells], pa.binary())
    try:
        return pa.array(cells, pa.binary())
    except (pa.ArrowException, UnicodeEncodeError):
        kept = (cell if isinstance(cell, (str, bytes)) else None for cell in cells)
        return pa.array([c.encode("utf-8", "replace") if isinstance(c, str) else c for c in kept], pa.binary())


def _numbers(cells: Sequence[Any]) -> pa.Array:
    try:
        column = pa.array(cells)  # with a type given, it would cut what is behind the point of a number
    except (pa.ArrowException, OverflowError):
        column = None
    if column is not None and (pa.types.is_int64(column.type) or pa.types.is_null(column.type)):
        return column.cast(pa.int64())
    return pa.array([_signed(whole(cell)) for cell in cells], pa.int64())


def _signed(number: int | None) -> int | None:
    if number is not None and number > _LARGEST:
        number -= _UNSIGNED
    return number if number is not None and -_LARGEST <= number <= _LARGEST else None


def column_as(column: pa.Array, kind: Kind) -> pa.Array:
    """A column of a file of Arrow or Parquet, likewise.

    Raises:
        ArrowInvalid: If it is damaged; reading it would end anywhere.
    """
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if is_text:
        column = column.cast(pa.binary())
    column.validate(full=True)
    if kind == "number" and pa.types.is_uint64(column.type):
        return column.view(pa.int64())
    if kind == "number" and pa.types.is_integer(column.type):
        return column.cast(pa.int64())
    if pa.types.is_binary(column.type) and (kind == "bytes" or (is_text and kind == "text")):
        return column
    if pa.types.is_nested(column.type):
        return column_of([None] * len(column), kind)
    cells = column.to_pylist()
    if is_text:
        cells = [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]
    return column_of(cells, kind)


def table_of(columns: Mapping[str, pa.Array | None], kinds: Mapping[str, Kind], count: int) -> pa.Table:
    """Columns as a table; those that are absent are null."""
    absent = {"number": pa.int64(), "text": pa.binary(), "bytes": pa.binary()}
    arrays = [pa.nulls(count, absent[kind]) if columns.get(n) is None else columns[n] for n, kind in kinds.items()]
    return pa.Table.from_arrays(arrays, names=list(kinds))


def values_of(rows: pa.Table, name: str, null: int) -> Numbers:
    """A column of numbers, with one that stands for null."""
    column = whole_column(rows, name)
    numbers: Numbers = (column if not column.null_count else pc.fill_null(column, null)).to_numpy(zero_copy_only=False)
    return numbers


def whole_column(rows: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = rows[name]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def coded(rows: pa.Table, name: str) -> tuple[list[int | None], Numbers]:
    """The different numbers of a column, and which of them each row has."""
    encoded = whole_column(rows, name).dictionary_encode("encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
