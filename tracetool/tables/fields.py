"""Fields of the structs that JSON schemas are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tracetool.tables.columns import Table


def doc(text: str) -> msgspec.Meta:
    """What a field holds, as its schema says it; for ``Annotated``.

    Args:
        text: A sentence, with the unit where the name does not say it.
    """
    return msgspec.Meta(description=text)


def row_of(table: Table) -> msgspec.Meta:
    """That a dictionary is a row of a table by column name; for ``Annotated``."""
    return msgspec.Meta(description=table.doc, extra_json_schema=table.json_schema())
