"""Option values that are more than a word: lists and quantities."""

from __future__ import annotations

from tracetool.errors import ScenarioError


def parse_counts(text: str) -> tuple[int, ...]:
    """Read ``2,2,0,0``.

    Raises:
        ScenarioError: If a part is no whole number.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ScenarioError(
            f"{text!r} is no list of whole numbers.", hint="write one per pipeline rank, as in 2,2,0,0"
        ) from None
