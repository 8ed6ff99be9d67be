"""What is wrong with a value of a file of measured steps, in words."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import msgspec

FORM = "schemas/measured.schema.json and the README (Check it on your own machine) have the form"

_TYPES = {
    "float": "a number", "int": "a whole number", "str": "text in quotes", "array": "a list", "object": "an object",
    "bool": "true or false", "null": "null",
}  # fmt: skip
_LIMITS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below", "of length": "of length"}
_EXPECTED = re.compile(r"Expected `(?P<types>[^`]+)`(?: (?P<limit>>=|<=|>|<|of length) (?P<bound>[^,]+))?")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_STEPS = re.compile(r"[^.\[\]]+")
_LONGEST = 40


def fault(error: msgspec.ValidationError, value: Any) -> str:
    """What msgspec found, with the field in front and what stands there behind.

    Args:
        error: Its words, such as ``Expected `float` >= 1e-06 - at `$.step_ms```.
        value: The object that was read.
    """
    text, _, place = str(error).partition(" - at ")
    field = place.strip("`").removeprefix("$").removeprefix(".")
    missing, expected = _MISSING.match(text), _EXPECTED.match(text)
    at = f"field {field}: " if field else ""
    if missing is not None:
        return f"{at}the field {missing['field']!r} is missing"
    if expected is None:
        return at + text.rstrip(".").replace("`", "'")
    types = " or ".join(_TYPES.get(name, name) for name in expected["types"].split(" | "))
    limit = f" {_LIMITS[expected['limit']]} {_number(expected['bound'])}" if expected["limit"] else ""
    return f"{at}must be {types}{limit}, is {_shown(_at(value, field))}"


def _number(text: str) -> str:
    return f"{Decimal(text).normalize():,f}"


def _at(value: Any, field: str) -> Any:
    for step in _STEPS.findall(field):
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."
