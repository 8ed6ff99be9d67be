"""Correlation ids of a process that started something on the device, and the operator around the launch of each.

A capture has tens of millions of them: an id takes two bytes, the number of an operator four, and those that were not
asked for lately wait on disk. Ids rise with time, so that whoever goes through a table asks for few at a time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracetool.readers.files.spill import TableSpill
from tracetool.readers.nsys.posts import MOST_KERNELS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tracetool.readers.nsys.columns import Flags, Numbers

NO_CORRELATION = -(2**63)
"""Stands for null."""

_UNKNOWN = -(2**63)
_LIMIT = 2**61
_BITS = 16
_MOST_PIECES = 8
_MOST_CHUNKS = 32
_NOT_LAUNCHED, _NO_OP = -2, -1
_LARGEST = 2**31


@dataclass(slots=True)
class _Chunk:
    """Ids that have their upper bits in common.

    Attributes:
        pieces: The lower bits, each piece in order; one piece once all are known.
        ops: Event of the operator around the launch of each, or why there is none; empty before the first launch.
        number: Under which it waits on disk, unless it was changed since.
    """

    pieces: list[NDArray[np.uint16]] = field(default_factory=list)
    ops: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int32))
    number: int | None = None

    def joined(self) -> NDArray[np.uint16]:
        """All ids, in order."""
        if len(self.pieces) > 1:
            self.pieces = [np.unique(np.concatenate(self.pieces))]
        return self.pieces[0]

    def places(self, ids: NDArray[np.uint16]) -> tuple[NDArray[np.intp], Flags]:
        """Where ids stand, and which of them do."""
        known = self.joined()
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        return at, known[at] == ids


class _Chunks:
    """Chunks by the upper bits of their ids, of which the latest are in memory."""

    def __init__(self) -> None:
        self._latest: OrderedDict[int, _Chunk] = OrderedDict()
        self._waiting: dict[int, int] = {}
        self._disk = TableSpill()

    def get(self, key: int, *, changes: bool) -> _Chunk | None:
        """A chunk, if there is one."""
        chunk = self._latest.get(key)
        if chunk is None and key in self._waiting:
            number = self._waiting[key]
            table = self._disk.take(number)
            ops = table["ops"].to_numpy() if "ops" in table.column_names else np.empty(0, np.int32)
            chunk = self._put(key, _Chunk([table["ids"].to_numpy()], ops.copy(), number))
        if chunk is not None:
            self._latest.move_to_end(key)
            chunk.number = None if changes else chunk.number
        return chunk

    def put(self, key: int) -> _Chunk:
        """A chunk that is to change, a new one if there is none."""
        return self.get(key, changes=True) or self._put(key, _Chunk())

    def _put(self, key: int, chunk: _Chunk) -> _Chunk:
        if len(self._latest) >= _MOST_CHUNKS:
            oldest, changed = self._latest.popitem(last=False)
            if changed.number is None:
                columns = {"ids": changed.joined()} | ({"ops": changed.ops} if len(changed.ops) else {})
                changed.number = self._disk.add(pa.table(columns))
            self._waiting[oldest] = changed.number
        self._latest[key] = chunk
        return chunk


class Correlations:
    """Ids that were added, and what is known of their launches."""

    def __init__(self) -> None:
        self._chunks = _Chunks()

    def add(self, ids: Numbers) -> None:
        """Add ids; those beyond what any program counts to are none."""
        for key, _, low in _parts(np.unique(ids)):
            if abs(key) < _LIMIT >> _BITS:
                chunk = self._chunks.put(key)
                chunk.pieces.append(low)
                if len(chunk.pieces) > _MOST_PIECES:
                    chunk.joined()

    def among(self, ids: Numbers) -> Flags:
        """Which of the ids were added."""
        known = np.zeros(len(ids), bool)
        for key, rows, low in _parts(ids):
            chunk = self._chunks.get(key, changes=False)
            if chunk is not None:
                known[rows] = chunk.places(low)[1]
        return known

    def launched_first(self, ids: Numbers) -> Flags:
        """Which of the launches are the first ones of their ids; the ids must have been added."""
        is_first = np.zeros(len(ids), bool)
        is_first[np.unique(ids, return_index=True)[1]] = True
        for key, rows, low in _parts(ids):
            chunk = self._chunks.put(key)
            at, _ = chunk.places(low)
            if not len(chunk.ops):
                chunk.ops = np.full(len(chunk.joined()), _NOT_LAUNCHED, np.int32)
            is_first[rows] &= chunk.ops[at] == _NOT_LAUNCHED
            chunk.ops[at] = np.maximum(chunk.ops[at], _NO_OP)
        return is_first

    def surround(self, ids: Numbers, ops: Numbers) -> None:
        """Note the operators around launches, by their events; negative ones are none."""
        for key, rows, low in _parts(ids[ops >= 0]):
            chunk, numbers = self._chunks.put(key), ops[ops >= 0][rows]
            if numbers.max() >= _LARGEST:
                chunk.ops = chunk.ops.astype(np.int64)
            chunk.ops[chunk.places(low)[0]] = numbers

    def ops_around(self, ids: Numbers) -> Numbers:
        """The operator around the launch of each id, -1 without one."""
        ops = np.full(len(ids), _NO_OP, np.int64)
        for key, rows, low in _parts(ids):
            chunk = self._chunks.get(key, changes=False)
            if chunk is not None and len(chunk.ops):
                at, is_known = chunk.places(low)
                ops[rows[is_known]] = np.maximum(chunk.ops[at[is_known]], _NO_OP)
        return ops


class CommLaunches:
    """Launches of communication kernels: when, and on which thread."""

    def __init__(self) -> None:
        self._ids = np.empty(0, np.int64)
        self._starts = np.empty(0, np.int64)
        self._threads = np.empty(0, np.int64)

    def add(self, ids: Numbers) -> None:
        """Add correlations of such kernels."""
        if len(ids) and len(self._ids) < MOST_KERNELS:
            self._ids = np.unique(np.concatenate([self._ids, ids[ids != NO_CORRELATION]]))
            self._starts, self._threads = np.full((2, len(self._ids)), _UNKNOWN)

    def note(self, ids: Numbers, starts: Numbers, threads: Numbers) -> None:
        """Note launches, of whichever kernels they are."""
        if not len(self._ids):
            return
        at = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        is_one = self._ids[at] == ids
        self._starts[at[is_one]], self._threads[at[is_one]] = starts[is_one], threads[is_one]

    def of(self, correlation: int) -> tuple[int, int] | None:
        """Start and thread of a launch; None if the capture lacks it."""
        at = int(np.searchsorted(self._ids, correlation))
        if at == len(self._ids) or self._ids[at] != correlation or self._starts[at] == _UNKNOWN:
            return None
        return int(self._starts[at]), int(self._threads[at])


def _parts(ids: Numbers) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.uint16]]]:
    """Ids by their upper bits: these, their rows, and the lower ones."""
    if not len(ids):
        return
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    high = ordered >> _BITS
    cuts = [0, *(np.flatnonzero(np.diff(high)) + 1).tolist(), len(ids)]
    for first, until in pairwise(cuts):
        low = (ordered[first:until] & ((1 << _BITS) - 1)).astype(np.uint16)
        yield int(high[first]), order[first:until], low
