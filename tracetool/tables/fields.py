"""Fields of the structs that JSON schemas are made from, and structs filled from what has their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from tracetool.tables.metrics import METRICS

if TYPE_CHECKING:
    from tracetool.tables import Table

S = TypeVar("S", bound=msgspec.Struct)


def doc(text: str) -> msgspec.Meta:
    """What a field holds, as its schema says it; for ``Annotated``.

    Args:
        text: A sentence, with the unit where the name does not say it.
    """
    return msgspec.Meta(description=text)


def row_of(table: Table) -> msgspec.Meta:
    """That a dictionary is a row of a table by column name; for ``Annotated``."""
    return msgspec.Meta(description=table.doc, extra_json_schema=table.json_schema())


def as_struct(kind: type[S], *sources: object, **given: object) -> S:
    """A struct of a schema, each field as given, else as the sources have it that have an attribute of its name.

    Args:
        kind: The struct.
        sources: What it tells of.
        given: Fields that no source has, or has otherwise. What stands in a list is taken as it is.

    Raises:
        TypeError: If a field that must be there is nowhere, or two sources do not agree on it.
    """
    for member in msgspec.structs.fields(kind):
        if member.name in given or member.encode_name.startswith("$"):
            continue
        values = [getattr(source, member.name) for source in sources if hasattr(source, member.name)]
        if any(value != values[0] for value in values):
            raise TypeError(f"sources do not agree on {kind.__name__}.{member.name}")
        if values:
            given[member.name] = list(values[0]) if isinstance(values[0], tuple) else values[0]
    return kind(**given)


class WithFigures(msgspec.Struct, kw_only=True):
    """A struct whose body takes figures up by ``fields_of``: they have no annotations that a type checker sees."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A figure."""


def fields_of(names: tuple[str, ...]) -> dict[str, Any]:
    """Metrics as annotations of a struct's fields."""
    return {name: Annotated[float if METRICS[name].unit == "1" else int, doc(METRICS[name].doc)] for name in names}
