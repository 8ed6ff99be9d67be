"""Fields of the structs that JSON schemas are made from."""

from __future__ import annotations

import msgspec


def doc(text: str) -> msgspec.Meta:
    """What a field holds, as its schema says it; for ``Annotated``.

    Args:
        text: A sentence, with the unit where the name does not say it.
    """
    return msgspec.Meta(description=text)
