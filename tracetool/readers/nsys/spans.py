"""Spans of a process in order of time: rows of two tables that are nearly in order, each beside the other.

Calls are stored as they end, which is a handful of rows out of order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracetool.readers.nsys.columns import values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracetool.readers.nsys.columns import Flags, Numbers

_AHEAD = 1 << 12
"""Rows that wait for earlier ones."""


def in_order(batches: Iterable[pa.Table], late: Callable[[int, int], None]) -> Iterator[pa.Table]:
    """Batches of rows with ``start``, ``end`` and ``number``, in order of start.

    Args:
        batches: Rows in any order.
        late: Told the number of the first of some rows that came too late, and how many they are.
    """
    waiting: pa.Table | None = None
    last: int | None = None
    for batch in batches:
        waiting = _sorted(batch if waiting is None else pa.concat_tables([waiting, batch]))
        ready, waiting = waiting[: max(len(waiting) - _AHEAD, 0)], waiting[-_AHEAD:]
        if not len(ready):
            continue
        starts = values_of(ready, "start", 0)
        count = 0 if last is None else int(np.searchsorted(starts, last))
        if count:
            late(int(ready["number"][0].as_py()), count)
        last = int(starts[-1]) if last is None else max(last, int(starts[-1]))
        yield ready
    if waiting is not None and len(waiting):
        yield waiting


def _sorted(rows: pa.Table) -> pa.Table:
    """By start; of those that begin together the longest is around the others."""
    start, end, number = (values_of(rows, name, 0) for name in ("start", "end", "number"))
    order = np.lexsort((number, -end, start))
    rows = rows.combine_chunks()
    return rows if np.array_equal(order, np.arange(len(order))) else rows.take(pa.array(order))


def side_by_side(
    first: Iterator[pa.Table], second: Iterator[pa.Table], no_first: pa.Table, no_second: pa.Table
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Rows of two tables, each in order of start: all rows of a pair begin before those of the pairs behind it.

    Of rows that begin together, those of the first table count as the earlier ones. Where either is at its end, its
    empty table stands for it.
    """
    one, two = next(first, None), next(second, None)
    while one is not None and two is not None:
        of_one, of_two = values_of(one, "start", 0), values_of(two, "start", 0)
        until = min(of_one[-1], of_two[-1])
        upto = int(np.searchsorted(of_one, until, "right"))
        # What is as late in the batches to come of the first stands before it.
        behind = int(np.searchsorted(of_two, until, "left" if upto == len(of_one) else "right"))
        yield one[:upto], two[:behind]
        one = one[upto:] if upto < len(one) else next(first, None)
        two = two[behind:] if behind < len(two) else next(second, None)
    while one is not None:
        yield one, no_second
        one = next(first, None)
    while two is not None:
        yield no_first, two
        two = next(second, None)


class OpenOps:
    """The innermost operator around each launch, of those that began on its thread and did not end."""

    def __init__(self) -> None:
        self._open: dict[int, list[tuple[int, int]]] = {}

    def around(self, starts: Numbers, ends: Numbers, threads: Numbers, events: Numbers, launches: Flags) -> list[int]:
        """The event of the operator around each launch, -1 without one.

        Args:
            starts: Start of each operator and launch, in order of time.
            ends: Their ends.
            threads: Their threads.
            events: Numbers of their events.
            launches: Which of them are launches.
        """
        around: list[int] = []
        of_thread: int | None = None
        opened: list[tuple[int, int]] = []
        rows = (starts.tolist(), ends.tolist(), threads.tolist(), events.tolist(), launches.tolist())
        for start, end, thread, event, is_launch in zip(*rows, strict=True):
            if thread != of_thread:
                of_thread, opened = thread, self._open.setdefault(thread, [])
            while opened and opened[-1][0] < start:
                opened.pop()
            if is_launch:
                around.append(opened[-1][1] if opened else -1)
            else:
                opened.append((end, event))
        return around
