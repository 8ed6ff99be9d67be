"""Where two outputs differ: places of JSON, or lines of anything else."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Difference(NamedTuple):
    """A place of JSON (by its pointer) and what stands there before and after."""

    pointer: str
    before: str
    after: str


def differences(before: object, after: object, pointer: str = "") -> Iterator[Difference]:
    """Where two values of JSON differ: in a value, its type, the keys or their order, the number of items."""
    if isinstance(before, dict) and isinstance(after, dict):
        orders = [key for key in before if key in after], [key for key in after if key in before]
        if orders[0] != orders[1]:
            yield Difference(pointer, *(f"keys {shown(order)}" for order in orders))
        for key in {**before, **after}:
            place = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            if key in before and key in after:
                yield from differences(before[key], after[key], place)
            else:
                yield Difference(place, *(shown(side[key]) if key in side else "absent" for side in (before, after)))
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield Difference(pointer, f"{len(before)} items", f"{len(after)} items")
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            yield from differences(one, other, f"{pointer}/{number}")
    elif json.dumps(before) != json.dumps(after):
        yield Difference(pointer, shown(before), shown(after))


def shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def changes(before: str, after: str, allowed: Sequence[str] = ()) -> list[Difference]:
    """What differs between two outputs: places of JSON, but for those allowed; of anything else, lines."""
    if before == after:
        return []
    try:
        found = list(differences(json.loads(before), json.loads(after)))
    except json.JSONDecodeError:
        found = list(differences(before.splitlines(), after.splitlines()))
    # JSON of equal values that is written differently is no equal answer either.
    found = found or [Difference("", "the same values, in other bytes", "")]
    return [d for d in found if not any(PurePosixPath(d.pointer or "/").match(pattern) for pattern in allowed)]
