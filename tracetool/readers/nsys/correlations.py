"""Correlation ids of a process that started something on the device, and the operator around the launch of each.

A capture has tens of millions of them: an id takes two bytes, the number of an operator four.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tracetool.readers.nsys.columns import Flags, Numbers

NO_CORRELATION = -(2**63)
"""Stands for null."""

MOST_COMMUNICATIONS = 1 << 19
"""Of those that are kept until the end: no real job comes near."""

_UNKNOWN = -(2**63)
_LIMIT = 2**61
_BITS = 16
_MOST_PIECES = 8
_NOT_LAUNCHED, _NO_OP = -2, -1
_LARGEST = 2**31


@dataclass(slots=True)
class _Chunk:
    """Ids that have their upper bits in common.

    Attributes:
        pieces: The lower bits, each piece in order; one piece once all are known.
        ops: Event of the operator around the launch of each, or why there is none; empty before the first launch.
    """

    pieces: list[NDArray[np.uint16]] = field(default_factory=list)
    ops: NDArray[Any] = field(default_factory=lambda: np.empty(0, np.int32))

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


class Correlations:
    """Ids that were added, and what is known of their launches."""

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}

    def add(self, ids: Numbers) -> None:
        """Add ids; those beyond what any program counts to are none."""
        for key, _, low in _parts(np.unique(ids)):
            if abs(key) < _LIMIT >> _BITS:
                chunk = self._chunks.setdefault(key, _Chunk())
                chunk.pieces.append(low)
                if len(chunk.pieces) > _MOST_PIECES:
                    chunk.joined()

    def among(self, ids: Numbers) -> Flags:
        """Which of the ids were added."""
        known = np.zeros(len(ids), bool)
        for key, rows, low in _parts(ids):
            if key in self._chunks:
                known[rows] = self._chunks[key].places(low)[1]
        return known

    def launched_first(self, ids: Numbers) -> Flags:
        """Which of the launches are the first ones of their ids; the ids must have been added."""
        is_first = np.zeros(len(ids), bool)
        is_first[np.unique(ids, return_index=True)[1]] = True
        for key, rows, low in _parts(ids):
            chunk = self._chunks[key]
            at, _ = chunk.places(low)
            if not len(chunk.ops):
                chunk.ops = np.full(len(chunk.joined()), _NOT_LAUNCHED, np.int32)
            is_first[rows] &= chunk.ops[at] == _NOT_LAUNCHED
            chunk.ops[at] = np.maximum(chunk.ops[at], _NO_OP)
        return is_first

    def surround(self, ids: Numbers, ops: Numbers) -> None:
        """Note the operators around launches, by their events; negative ones are none."""
        for key, rows, low in _parts(ids[ops >= 0]):
            chunk, numbers = self._chunks[key], ops[ops >= 0][rows]
            if numbers.max() >= _LARGEST:
                chunk.ops = chunk.ops.astype(np.int64)
            chunk.ops[chunk.places(low)[0]] = numbers

    def ops_around(self, ids: Numbers) -> Numbers:
        """The operator around the launch of each id, -1 without one."""
        ops = np.full(len(ids), _NO_OP, np.int64)
        for key, rows, low in _parts(ids):
            chunk = self._chunks.get(key)
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
        if len(ids) and len(self._ids) < MOST_COMMUNICATIONS:
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
