"""What waits on disk comes back as it was, as often as it is asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tracetool.readers.files.spill import Spill, TableSpill

LONG = 1 << 20


@given(st.lists(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)), max_size=5), max_size=5))
def test_integers(blocks: list[list[tuple[int, int]]]) -> None:
    spill = Spill(2)
    for rows in blocks:
        columns = np.array(rows, np.int64).reshape(-1, 2).T
        spill.add([columns[0], columns[1]])
        # A reader that stops in the middle disturbs nobody.
        next(spill.blocks(), None)
    expected = [row for rows in blocks for row in rows]
    for _ in range(2):
        assert [tuple(row) for row in spill.columns().T.tolist()] == expected
    spill.close()


def test_more_than_stays_in_memory() -> None:
    spill = Spill(1)
    for start in range(0, 3 * LONG, LONG):
        spill.add([np.arange(start, start + LONG)])
    first, second = spill.blocks(), spill.blocks()
    assert [(int(a[0, 0]), int(b[0, 0])) for a, b in zip(first, second, strict=True)] == [
        (start, start) for start in range(0, 3 * LONG, LONG)
    ]
    assert np.array_equal(spill.columns()[0], np.arange(3 * LONG))


def test_tables_of_any_columns() -> None:
    spill = TableSpill()
    tables = [
        pa.table({"a": pa.array(["x", None, "x"]).dictionary_encode(), "b": [1, None, 3]}),
        pa.table({"c": [True]}),
        pa.table({"d": pa.array(np.arange(LONG))}),
    ]
    numbers = [spill.add(table) for table in tables]
    for number in [*numbers, *reversed(numbers)]:
        assert spill.take(number).equals(tables[number])
    assert spill.take(spill.add(tables[0])).equals(tables[0])
    assert spill.take(numbers[1]).equals(tables[1])
    spill.close()
