"""Columns of integers that wait on disk until a file was read to its end, so that memory does not grow with it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tracetool.parts import check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray


class Spill:
    """Rows of a fixed number of int64 columns; the first few stay in memory, the rest lies in a temporary file.

    Args:
        width: Number of columns.
    """

    _IN_MEMORY_BYTES = 4 << 20

    def __init__(self, width: int) -> None:
        self._width = width
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=self._IN_MEMORY_BYTES)  # noqa: SIM115
        self._lengths: list[int] = []

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()

    def add(self, columns: Sequence[NDArray[np.int64]]) -> None:
        """Append rows: one array per column, all of one length."""
        import numpy as np

        if len(columns[0]):
            check_room(Path(tempfile.gettempdir()))
            self._lengths.append(len(columns[0]))
            self._file.write(np.stack(columns).astype(np.int64, copy=False).tobytes())

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """What was added, in order, as arrays of (columns, rows)."""
        import numpy as np

        self._file.seek(0)
        for length in self._lengths:
            block = np.frombuffer(self._file.read(8 * self._width * length), np.int64)
            yield block.reshape(self._width, length)
        self._file.seek(0, 2)

    def columns(self) -> NDArray[np.int64]:
        """All of it at once, as an array of (columns, rows)."""
        import numpy as np

        return np.concatenate([np.empty((self._width, 0), np.int64), *self.blocks()], axis=1)
