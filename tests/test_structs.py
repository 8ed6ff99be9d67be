"""Structs filled from what has their fields: what is nowhere, or in two places and not the same, is an error."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from tracetool.tables.fields import as_struct


class Wheel(msgspec.Struct, kw_only=True):
    """A struct as schemas are made from."""

    schema: str = msgspec.field(name="$schema", default="urn:wheel")
    spokes: int
    sizes: list[int]
    maker: str | None = None


class Drawn(NamedTuple):
    schema: str
    spokes: int
    sizes: tuple[int, ...]


class Sold(NamedTuple):
    spokes: int
    maker: str


def test_fields_come_from_where_they_are_and_a_schema_is_the_structs_own() -> None:
    made = as_struct(Wheel, Drawn("urn:other", 32, (26, 28)), Sold(32, "ACME"))
    assert made == Wheel(spokes=32, sizes=[26, 28], maker="ACME")
    assert msgspec.to_builtins(made)["$schema"] == "urn:wheel"


def test_two_that_do_not_agree_are_refused_unless_it_is_said() -> None:
    drawn, sold = Drawn("", 32, ()), Sold(36, "ACME")
    with pytest.raises(TypeError, match=r"Wheel\.spokes"):
        as_struct(Wheel, drawn, sold)
    assert as_struct(Wheel, drawn, sold, spokes=36).spokes == 36


def test_what_is_nowhere_is_an_error_and_not_left_out() -> None:
    with pytest.raises(TypeError, match="sizes"):
        as_struct(Wheel, Sold(32, "ACME"))
