"""Fields of the structs that JSON schemas are made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tracetool.tables.metrics import METRICS

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


class WithFigures(msgspec.Struct, kw_only=True):
    """A struct whose body takes figures up by ``fields_of``: they have no annotations that a type checker sees."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A figure."""


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    """Metrics as annotations of a struct's fields."""
    return {name: Annotated[float if METRICS[name].unit == "1" else int, doc(METRICS[name].doc)] for name in names}
