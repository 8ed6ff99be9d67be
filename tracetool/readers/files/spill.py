"""Rows that wait on disk until a file was read to its end, so that memory does not grow with it."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracetool.store.parts import check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

_IN_MEMORY_BYTES = 4 << 20


class _Waiting:
    """A temporary file that first stays in memory, and is gone with its owner at the latest."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
        self._close = weakref.finalize(self, self._file.close)

    def close(self) -> None:
        """Give the disk space back."""
        self._close()


class Spill(_Waiting):
    """Rows of a fixed number of int64 columns; the first few stay in memory, the rest lies in a temporary file.

    Args:
        width: Number of columns.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width
        self._lengths: list[int] = []

    def add(self, columns: Sequence[NDArray[np.int64]]) -> None:
        """Append rows: one array per column, all of one length."""
        import numpy as np

        if len(columns[0]):
            check_room(Path(tempfile.gettempdir()))
            self._lengths.append(len(columns[0]))
            self._file.seek(0, 2)
            self._file.write(np.stack(columns).astype(np.int64, copy=False).tobytes())

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """What was added, in order, as arrays of (columns, rows)."""
        import numpy as np

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
        super().__init__()
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
