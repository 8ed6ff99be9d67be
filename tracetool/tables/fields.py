"""Fields of the structs that JSON schemas are made from, and structs filled from what has their fields."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from tracetool.errors import BadQuantity, BadTopology, ScenarioError
from tracetool.tables import SCHEMA_VERSION
from tracetool.tables.results import FIELDS, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from tracetool.tables import Column, ColumnType, Table

S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V")


def doc(text: str) -> msgspec.Meta:
    """What a field holds, as its schema says it; for ``Annotated``.

    Args:
        text: A sentence, with the unit where the name does not say it.
    """
    return msgspec.Meta(description=text)


def row_of(table: Table) -> msgspec.Meta:
    """That a dictionary is a row of a table by column name; for ``Annotated``."""
    return msgspec.Meta(description=table.doc, extra_json_schema=table.json_schema())


def as_struct(kind: type[S], /, *sources: object, **given: object) -> S:
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


_TEXT_EXPECTED = re.compile(r"Expected `str(?: \| null)?`, got `(\w+)`")

_BOUND_EXPECTED = re.compile(r"Expected `(int|float)(?: \| null)?` (>=|<=|>|<) (\S+)")


def read_toml(path: Path, kind: type[S], hint: str, *, short: Mapping[str, str] | None = None) -> S:
    """A struct from a TOML file.

    Args:
        path: The file.
        kind: The struct; those in it are known by their keys as well.
        hint: Where its form is told.
        short: Other names of keys at the top of the file.

    Raises:
        ScenarioError: If it cannot be read, is no TOML, says a key by both its names, or a key is unknown, missing or
            of another type.
    """
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(f"cannot read {path}: {why}.", hint=hint) from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path} is no TOML: {error}.", hint="text values need quotes") from error
    for name, whole in (short or {}).items():
        if name in document and whole in document:
            raise ScenarioError(f"{path} says both {name} and {whole}, which are the same.", hint="say one of both")
    document = {(short or {}).get(name, name): value for name, value in document.items()}
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: {_fault(error, kind)}", hint=hint) from error


def _fault(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """What msgspec found, as a sentence with the key in front, and what may be meant."""
    text, _, place = str(error).partition(" - at ")
    key = place.strip("`").removeprefix("$").removeprefix(".")
    unknown = re.search(r"unknown field `(.*)`", text)
    close = difflib.get_close_matches(unknown[1], _keys(kind), n=1) if unknown else []
    end = f"; is {close[0]!r} meant?" if close else "."
    if unknown and close == [unknown[1]]:
        end = f"; it belongs to {' or '.join(_tables_with(kind, unknown[1])) or 'the top of the file'}."
    expected = _TEXT_EXPECTED.fullmatch(text)
    if expected:
        text = f"{expected[1]} stands where text in quotes is expected, with its unit if it has one (such as '78%')"
    bound = _BOUND_EXPECTED.fullmatch(text)
    if bound:
        text = f"a {'whole number' if bound[1] == 'int' else 'number'} {bound[2]} {bound[3]} is expected"
    if text.startswith("Invalid enum value"):
        known = ", ".join(_known_values(kind, key))
        text = text.replace("Invalid enum value", "there is no") + (f"; known: {known}" if known else "")
    text = text.replace("Object missing required field", "it lacks the field").replace("Object", "it")
    return (f"{key}: " if key else "") + text.rstrip(".").replace("`", "'") + end


def _known_values(kind: type[msgspec.Struct], key: str) -> list[str]:
    """What a key may be, of those that have few values; none if that is not told."""
    name = re.sub(r"\[.*?\]", "", key).rpartition(".")[2]
    _, schemas = msgspec.json.schema_components([kind])
    fields = [schema["properties"][name] for schema in schemas.values() if name in schema.get("properties", {})]
    return list(dict.fromkeys(map(str, (value for field in fields for value in field.get("enum", ())))))


def _keys(kind: type[msgspec.Struct]) -> list[str]:
    """Keys of a struct, those of structs in it first."""
    _, schemas = msgspec.json.schema_components([kind])
    return [
        key for name, schema in schemas.items() if name != kind.__name__ for key in schema.get("properties", ())
    ] + [*kind.__struct_fields__]


def _tables_with(kind: type[msgspec.Struct], key: str) -> list[str]:
    """The tables of a file in which a key may stand."""
    _, schemas = msgspec.json.schema_components([kind])
    tables = schemas[kind.__name__].get("properties", {})
    return [
        f"[{table}]"
        for table, schema in tables.items()
        if any(f"/{name}'" in str(schema) and key in other.get("properties", ()) for name, other in schemas.items())
    ]


def parsed(key: str, text: str, parse: Callable[[str], V]) -> V:
    """A value of a file, as it is written there.

    Args:
        key: Where it stands, for messages.
        text: What stands there.
        parse: Reads it.

    Raises:
        ScenarioError: What ``parse`` raises of it, with the key in front.
    """
    try:
        return parse(text)
    except (BadQuantity, BadTopology) as error:
        raise type(error)(f"{key}: {error.message}", hint=error.hint) from error


class WithFigures(msgspec.Struct, kw_only=True):
    """A struct whose body takes figures up by ``fields_of``: they have no annotations that a type checker sees."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A figure."""


EMPTY: Any = msgspec.field(default_factory=list)
"""Default of a list of which files of earlier versions have none."""

SchemaId = Annotated[str, doc("Identifier of this schema.")]


class Versioned(WithFigures, kw_only=True, rename={"schema": "$schema"}):
    """What names the schema that it is by, which each kind of answer gives."""

    schema: SchemaId
    schema_version: Annotated[str, doc("Version of the schema.")] = SCHEMA_VERSION


class Head(Versioned, kw_only=True):
    """What begins every answer of a command."""

    tool_version: Annotated[str, doc("Version of tracetool.")]
    command: Annotated[str, doc("Command line that made it.")]


_PYTHON_TYPES: dict[ColumnType, Any] = {
    "int64": int,
    "int32": int,
    "float64": float,
    "bool": bool,
    "string": str,
    "category": str,
    "list<int32>": list[int],
    "list<string>": list[str],
}


def fields_of(*names: str, of: Table | None = None, null: Collection[str] = ()) -> dict[str, Any]:
    """Fields of results as annotations of a struct's.

    Args:
        names: Theirs, in order; of a table by default all.
        of: A table that has columns of these names; by default what all results share.
        null: Those that may be unknown here.
    """
    declared = columns(*names, null=null) if of is None else of.select(names or None)
    return {column.name: Annotated[_python_type(column), doc(column.doc)] for column in declared}


def _python_type(column: Column) -> Any:
    kind = _PYTHON_TYPES[column.type]
    return kind | None if column.nullable else kind


def per_rank(*names: str) -> dict[str, Any]:
    """Figures of each pipeline rank as annotations of a struct's fields."""
    return {name: Annotated[list[int | None], doc(f"{FIELDS[name].doc} Per pipeline rank.")] for name in names}
