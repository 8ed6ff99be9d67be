"""Rows that wait on disk until a file was read to its end, so that memory does not grow with it.

Events that a file holds more than once: exporters that flush twice, files put together from overlapping parts.
"""

from __future__ import annotations

import tempfile
import weakref
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracetool.store import check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_IN_MEMORY_BYTES = 4 << 20


class _Waiting:
    """A temporary file, made once it is needed; it is gone with its owner at the latest."""

    @cached_property
    def _file(self) -> IO[bytes]:
        file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
        weakref.finalize(self, file.close)
        return file

    def close(self) -> None:
        """Give the disk space back."""
        if "_file" in self.__dict__:
            self._file.close()


class Spill(_Waiting):
    """Rows of a fixed number of int64 columns; the first few stay in memory, the rest lies in a temporary file.

    Args:
        width: Number of columns.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._held: list[NDArray[np.int64]] = []
        self._held_bytes = 0
        self._lengths: list[int] = []

    def add(self, columns: Sequence[NDArray[np.int64]]) -> None:
        """Append rows: one array per column, all of one length."""
        import numpy as np

        if not len(columns[0]):
            return
        block = np.stack(columns).astype(np.int64, copy=False)
        self._held_bytes += block.nbytes
        if self._held_bytes <= _IN_MEMORY_BYTES:
            block.flags.writeable = False
            self._held.append(block)
            return
        check_room(Path(tempfile.gettempdir()))
        self._lengths.append(block.shape[1])
        self._file.seek(0, 2)
        self._file.write(block.tobytes())

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """What was added, in order, as arrays of (columns, rows)."""
        import numpy as np

        yield from self._held
        at = 0
        for length in self._lengths:
            # Two readers may take turns.
            self._file.seek(at)
            block = np.frombuffer(self._file.read(8 * self._width * length), np.int64)
            at += block.nbytes
            yield block.reshape(self._width, length)

    def columns(self) -> NDArray[np.int64]:
        """All of it at once, as an array of (columns, rows)."""
        import numpy as np

        return np.concatenate([np.empty((self._width, 0), np.int64), *self.blocks()], axis=1)


class TableSpill(_Waiting):
    """Arrow tables of any columns; the first few stay in memory, the rest lies in a temporary file."""

    def __init__(self) -> None:
        self._ends = [0]

    def add(self, table: pa.Table) -> int:
        """Put a table away; returns the number by which it is got back."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self._file.seek(self._ends[-1])
        self._ends.append(self._ends[-1] + self._file.write(sink.getvalue()))
        return len(self._ends) - 2

    def take(self, number: int) -> pa.Table:
        """A table that was put away; it may be taken again."""
        import pyarrow as pa

        self._file.seek(self._ends[number])
        text = self._file.read(self._ends[number + 1] - self._ends[number])
        return pa.ipc.open_stream(pa.py_buffer(text)).read_all()


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
        # Of most files all rows come at once: without others, nothing is looked up in a table.
        self._first: NDArray[np.uint64] | None = None
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

        hashes = _hashes(columns)
        ordered = np.sort(hashes)
        if self._first is None and not np.any(ordered[1:] == ordered[:-1]):
            self._first = ordered
            return np.ones(len(hashes), bool)
        if self._first is not None and not self._count:
            self._add(self._first)
        self._first = ordered[:0]
        is_fresh = np.zeros(len(hashes), bool)
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
