"""What only ``--thorough`` runs: whole matrices, and what hypothesis draws beyond its first examples."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any

T = TypeVar("T")

ASKED = "TRACETOOL_TESTS_THOROUGH"
"""Set in the environment, with ``--thorough``, before tests are imported."""
FIRST_EXAMPLES = 10
"""How many examples the default run draws of a property."""


def is_asked() -> bool:
    """Whether this run is thorough."""
    return ASKED in os.environ


def drawn(examples: int, first: int = FIRST_EXAMPLES, **other: Any) -> settings:
    """Settings of a property that a thorough run tries so often, and the default run ``first`` times at most."""
    return settings(max_examples=examples if is_asked() else min(examples, first), deadline=None, **other)


def some(cases: Iterable[T], most: int) -> list[T]:
    """Of many cases so many as the default run takes: the first, the last, those evenly between; a thorough run all."""
    every = list(cases)
    if is_asked() or len(every) <= most:
        return every
    return [every[round(n * (len(every) - 1) / max(most - 1, 1))] for n in range(most)]


def spread(
    names: str | tuple[str, ...],
    cases: Iterable[Any],
    default: int | Collection[Any] = 3,
    *,
    ids: Callable[[Any], str] | None = None,
) -> pytest.MarkDecorator:
    """``pytest.mark.parametrize``, of whose cases the default run takes some and a thorough run all.

    Args:
        names: Of the parameters.
        cases: In an order in which neighbours are alike: by size, by kind.
        default: Those of the default run; a number takes the first, the last and those evenly between.
        ids: What values are called.
    """
    every = list(cases)
    taken = some(every, default) if isinstance(default, int) else list(default)
    unknown = [case for case in taken if case not in every]
    if unknown or not taken:
        raise ValueError(f"not among the cases: {unknown}" if unknown else "no case is left to the default run")
    is_one = isinstance(names, str) and "," not in names
    return pytest.mark.parametrize(
        names, [case if case in taken else _left(case, is_one=is_one) for case in every], ids=ids
    )


def _left(case: Any, *, is_one: bool) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.thorough])
    return pytest.param(*([case] if is_one else case), marks=pytest.mark.thorough)
