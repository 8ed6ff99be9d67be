"""What is around moments of the host: spans of time that hold them, and what began last before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


def by_place(*columns: Integers) -> Iterator[tuple[tuple[int, ...], Integers]]:
    """Rows that agree in all columns: what they agree in, and their numbers in ascending order."""
    import numpy as np

    if len(columns[0]):
        order = np.lexsort(columns)
        changes = np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0)
        for rows in np.split(order, np.flatnonzero(changes) + 1):
            yield tuple(int(column[rows[0]]) for column in columns), rows


def holding(starts: Integers, ends: Integers, events: Integers, at: Integers, until: Integers) -> Integers:
    """Of the spans of one thread that hold each moment, their own ends included, the innermost and the outermost one.

    The innermost is the one that began last. Of spans that begin together, as in traces whose times are whole us, the
    longer one is around the other; of those that end together as well the first event counts.

    Args:
        starts: When each span begins, in ns, int64.
        ends: When it ends.
        events: Number of its event.
        at: When each moment begins.
        until: When it ends.

    Returns:
        The numbers of both for each moment, int64 of shape (2, moments); -1 where no span holds it.
    """
    import numpy as np

    order = np.lexsort((events, -ends, starts))
    starts, ends = starts[order], ends[order]
    last = np.searchsorted(starts, at, "right") - 1
    outer = np.searchsorted(np.maximum.accumulate(ends), until, "left")
    held = np.flatnonzero(outer <= last)
    inner, outer, until = last[held], outer[held], until[held]
    short = np.flatnonzero(ends[inner] < until)
    before = _later_ending(ends) if len(short) else inner
    while len(short):
        inner[short] = before[inner[short]]
        short = short[ends[inner[short]] < until[short]]
    again = np.concatenate([[False], (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])])
    if again.any():
        inner = np.maximum.accumulate(np.where(again, 0, np.arange(len(again))))[inner]
    around = np.full((2, len(at)), -1)
    around[:, held] = order[inner], order[outer]
    return around


def _later_ending(ends: Integers) -> Integers:
    """For each span the nearest one before it that ends later; -1 where there is none."""
    import numpy as np

    before = np.arange(-1, len(ends) - 1)
    rows = np.arange(len(ends))
    while len(rows := rows[(before[rows] >= 0) & (ends[before[rows]] <= ends[rows])]):
        # What lies between ends no later than what it was looked up for.
        before[rows] = before[before[rows]]
    return before


def begun_last(starts: Integers, ends: Integers, events: Integers, at: Integers) -> Integers:
    """The span that began last before each moment, by number; -1 where it is over, or there is none.

    Of those that begin together the first event counts.
    """
    import numpy as np

    order = np.lexsort((-events, starts))
    place = np.searchsorted(starts[order], at, "right") - 1
    last = np.full(len(at), -1)
    begun = np.flatnonzero(place >= 0)
    spans = order[place[begun]]
    last[begun] = np.where(at[begun] <= ends[spans], spans, -1)
    return last
