"""Communication that waits on disk until a capture was read: what the host posted, and the kernels that ran it.

There are millions in a capture of ten gigabytes; what is known of each is a handful of numbers.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracetool.readers.cuda import CommKernel
from tracetool.readers.files.spill import Spill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_ROWS = 1 << 12
_NONE = -1
"""Stands for None: none of these numbers is negative."""

_SLICE = 1 << 12
MOST_KERNELS = 1 << 20
"""Of those that communicate: they are put in order of their launches, all at once."""


class Post(NamedTuple):
    """An operation that the host posted.

    Attributes:
        operation: As in ``comms``.
        posted_ns: Unix time.
        thread: Host thread.
        size_bytes: Bytes of one message, or of all that a collective is made of; None if they are not known.
        place: Rank of the other side within the communicator, if it is known.
        communicator: Id, as unsigned decimal text.
    """

    operation: str
    posted_ns: int
    thread: int
    size_bytes: int | None = None
    place: int | None = None
    communicator: str | None = None


class _Numbered:
    """Rows of numbers and texts; the texts are few."""

    def __init__(self, width: int) -> None:
        self._spill = Spill(width)
        self._rows: list[tuple[int, ...]] = []
        self._codes: dict[str, int] = {}
        self.count = 0

    def _append(self, text: str, *numbers: int | None) -> None:
        code = self._codes.setdefault(text, len(self._codes))
        self._rows.append((code, *(_NONE if number is None else number for number in numbers)))
        self.count += 1
        if len(self._rows) >= _ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._spill.add(list(np.array(self._rows, np.int64).T))
            self._rows.clear()

    def _texts(self) -> list[str]:
        return list(self._codes)


class CommPosts(_Numbered):
    """What the host posted, as it comes; in order of time afterwards."""

    def __init__(self) -> None:
        super().__init__(6)
        self._last_ns: int | None = None
        self._is_ordered = True

    def add(self, post: Post) -> None:
        """Add one."""
        self._is_ordered &= self._last_ns is None or self._last_ns <= post.posted_ns
        self._last_ns = post.posted_ns
        # Ids take all 64 bits; none of them is 0.
        identifier = int(post.communicator or 0)
        signed = identifier - (identifier >> 63 << 64)
        self._append(post.operation, post.posted_ns, post.thread, post.size_bytes, post.place, signed)

    def __iter__(self) -> Iterator[Post]:
        self._flush()
        texts = self._texts()
        for block in self._spill.blocks() if self._is_ordered else [_by(self._spill.columns(), 1)]:
            for code, posted_ns, thread, size, place, identifier in block.T.tolist():
                yield Post(
                    texts[code], posted_ns, thread, _known(size), _known(place),
                    str(identifier % 2**64) if identifier else None,
                )  # fmt: skip


class CommKernels(_Numbered):
    """Kernels that communicate, as they come; in order of their launches afterwards."""

    def __init__(self) -> None:
        super().__init__(6)

    def add(self, kernel: CommKernel) -> None:
        """Add one."""
        self._append(
            kernel.name, kernel.start_ns, kernel.end_ns, kernel.stream, kernel.launch_ns, kernel.launch_thread
        )  # fmt: skip

    def last_of_threads(self) -> dict[int | None, int]:
        """Number of the last launch of each thread, in their order; None are kernels whose launch is unknown."""
        different, behind = np.unique(self._ordered[5][::-1], return_index=True)
        last = self.count - 1 - behind
        return {_known(thread): at for thread, at in zip(different.tolist(), last.tolist(), strict=True)}

    def slices(self) -> Iterator[list[CommKernel]]:
        """Some at a time."""
        texts, columns = self._texts(), self._ordered
        for first in range(0, self.count, _SLICE):
            yield [
                CommKernel(
                    name=texts[code], start_ns=start, end_ns=end, stream=_known(stream), external_id=None,
                    launch_ns=launch_ns, launch_thread=_known(thread),
                )
                for code, start, end, stream, launch_ns, thread in columns[:, first : first + _SLICE].T.tolist()
            ]  # fmt: skip

    @cached_property
    def _ordered(self) -> NDArray[np.int64]:
        self._flush()
        return _by(self._spill.columns(), 4)


def _by(columns: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    return columns[:, np.argsort(columns[key], kind="stable")]


def _known(number: int) -> int | None:
    return None if number == _NONE else number
