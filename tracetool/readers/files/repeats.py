"""Events that a file holds more than once: exporters that flush twice, files put together from overlapping parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

TWICE = "recorded more than once: counted once"
"""What is said of them."""

_FIRST_SLOTS, _MOST_SLOTS = 1 << 12, 1 << 22
"""Of the table of what was seen: it takes 32 MiB at most."""

_FULL = 0.6
_FACTORS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9)


class Repeats:
    """Tells rows that equal an earlier one, by 64 bits of hash.

    Once some 2.5 million different rows were seen, no more are kept: later rows are compared with those.
    """

    def __init__(self) -> None:
        import numpy as np

        self._table = np.zeros(_FIRST_SLOTS, np.uint64)
        self._count = 0
        self._texts: dict[str | None, int] = {}

    def numbers_of(self, texts: Sequence[str | None]) -> NDArray[np.int64]:
        """A number for each text, the same whenever it is asked for."""
        import numpy as np

        return np.array([self._texts.setdefault(text, len(self._texts)) for text in texts], np.int64)

    def fresh(self, columns: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Which rows equal none before them; they count as seen from then on.

        Args:
            columns: All that a row consists of.
        """
        import numpy as np

        is_fresh = np.zeros(len(columns[0]), bool)
        hashes = _hashes(columns)
        different, first = np.unique(hashes, return_index=True)
        new = ~self._known(different)
        is_fresh[first[new]] = True
        self._add(different[new])
        return is_fresh

    def _known(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        import numpy as np

        is_known = np.zeros(len(hashes), bool)
        rows = np.arange(len(hashes))
        mask = np.uint64(len(self._table) - 1)
        step = np.uint64(0)
        while len(rows):
            held = self._table[(hashes[rows] + step) & mask]
            is_known[rows[held == hashes[rows]]] = True
            rows = rows[(held != 0) & (held != hashes[rows])]
            step += np.uint64(1)
        return is_known

    def _add(self, hashes: NDArray[np.uint64]) -> None:
        import numpy as np

        while (self._count + len(hashes)) > _FULL * len(self._table):
            if len(self._table) >= _MOST_SLOTS:
                return
            old = self._table[self._table != 0]
            self._table = np.zeros(2 * len(self._table), np.uint64)
            self._put(old)
        self._put(hashes)
        self._count += len(hashes)

    def _put(self, hashes: NDArray[np.uint64]) -> None:
        import numpy as np

        mask = np.uint64(len(self._table) - 1)
        step = np.uint64(0)
        rest = hashes
        while len(rest):
            slots = (rest + step) & mask
            free = self._table[slots] == 0
            self._table[slots[free]] = rest[free]
            rest = rest[self._table[slots] != rest]
            step += np.uint64(1)


def _hashes(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.uint64]:
    import numpy as np

    hashes = np.zeros(len(columns[0]), np.uint64)
    shift = np.uint64(31)
    with np.errstate(over="ignore"):
        for column in columns:
            hashes = (hashes ^ column.astype(np.int64).view(np.uint64)) * np.uint64(_FACTORS[0])
            hashes = (hashes ^ (hashes >> shift)) * np.uint64(_FACTORS[1])
    hashes[hashes == 0] = 1  # an empty slot holds 0
    return hashes
