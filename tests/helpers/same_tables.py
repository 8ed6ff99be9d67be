"""Comparing what was read twice: as Arrow, which takes a tenth of what comparing Python's objects does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def assert_same_tables(found: Mapping[str, Sequence[pa.Table]], expected: Mapping[str, Sequence[pa.Table]]) -> None:
    """Fail unless both hold the same rows in the same order; how they are cut and encoded does not matter."""
    assert found.keys() == expected.keys()
    for name, parts in found.items():
        one, other = _decoded(parts), _decoded(expected[name])
        if not one.equals(other):
            # A failure that shows where.
            assert one.to_pydict() == other.to_pydict()
        assert one.equals(other)


def _decoded(parts: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(parts).unify_dictionaries()
    columns = {
        f.name: table[f.name].cast(f.type.value_type) if pa.types.is_dictionary(f.type) else table[f.name]
        for f in table.schema
    }
    return pa.table(columns)
