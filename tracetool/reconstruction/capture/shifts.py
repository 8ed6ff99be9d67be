"""Where two recordings of one sequence of operations meet: captures begin and end at different times on each rank."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.int64]

EARLY_NS = 1_000_000
"""A receive that ends so long before its send starts is that of another one, or a clock is wrong."""

STEADY_RATIO = 0.2
"""Distances between ends of one operation scatter far less than this share of the usual time from one to the next."""

MOST_TRIED = 256
"""Operations that are compared to see whether a shift may be the right one."""

NO_SIZE = -1
"""Stands for an unknown size in arrays."""

_MOST_CHECKED = 64
_SLACK = 64
_MOST_OVERLAPS = 4
_CLEAR = 4
_LEAST_PAIRS = 4
_SPREAD_NS = 20_000
_MOST_EARLY = 0.25
_NETWORK_TIME_NS = 5_000_000


class RankOperations(NamedTuple):
    """One rank's operations in order.

    Attributes:
        kinds: A number for what each one does.
        sizes: Bytes; NO_SIZE if unknown.
        starts: Start of each kernel; None if one has no kernel.
        ends: End of each kernel.
    """

    kinds: Array
    sizes: Array
    starts: Array | None
    ends: Array | None

    def cut(self, first: int, count: int, step: int = 1) -> RankOperations:
        """Some of the operations."""
        return RankOperations(*(None if c is None else c[first : first + count : step] for c in self))  # type: ignore[arg-type]


def side_of(
    kinds: Sequence[int], sizes: Sequence[int | None], spans: Sequence[tuple[int | None, int | None]]
) -> RankOperations:
    """Operations in columns."""
    import numpy as np

    timed = all(start is not None and end is not None for start, end in spans)
    times = np.array(spans, dtype=np.int64).reshape(-1, 2) if timed else None
    return RankOperations(
        np.array(kinds, dtype=np.int64),
        np.array([NO_SIZE if size is None else size for size in sizes], dtype=np.int64),
        None if times is None else times[:, 0],
        None if times is None else times[:, 1],
    )


def overlapping(
    one: RankOperations, other: RankOperations, shift: int, most: int | None = None
) -> tuple[RankOperations, RankOperations]:
    """Both sides where they meet if the first operation of the other one meets number ``shift`` of this one.

    Args:
        one: This side.
        other: The other side.
        shift: Where they meet; negative: the first one of this side meets number ``-shift`` of the other.
        most: Take about so many, evenly spread; by default all.
    """
    first, second = max(shift, 0), max(-shift, 0)
    count = max(0, min(len(one.kinds) - first, len(other.kinds) - second))
    step = max(1, count // most) if most else 1
    return one.cut(first, count, step), other.cut(second, count, step)


def agrees(
    one: RankOperations, other: RankOperations, shift: int, size_ratio: int = 1, most: int | None = None
) -> bool:
    """Whether kinds and known sizes are the same at a shift, sizes up to a factor."""
    a, b = overlapping(one, other, shift, most)
    known = (a.sizes > NO_SIZE) & (b.sizes > NO_SIZE)
    near = (a.sizes <= size_ratio * b.sizes) & (b.sizes <= size_ratio * a.sizes)
    return len(a.kinds) > 0 and bool((a.kinds == b.kinds).all() and (near | ~known).all())


def scatter(one: RankOperations, other: RankOperations, shift: int, most: int | None = None) -> float | None:
    """How far the distances between both ends scatter around their median, ns; None if they are not known."""
    import numpy as np

    a, b = overlapping(one, other, shift, most)
    if a.ends is None or b.ends is None or not len(a.ends):
        return None
    apart = b.ends - a.ends
    return float(np.median(np.abs(apart - np.median(apart))))


def find_shift(sends: RankOperations, recvs: RankOperations, ahead_ns: int | None, *, is_whole: bool) -> int | None:
    """At which send the first receive is met (negative: at which receive the first send is); None if not to be told.

    Kernels of a message run at one time unless its payload was buffered; those of different messages between two
    ranks never do. So the shift at which most kernels meet is the right one, where the clocks are known roughly.
    Without that, the one at which ends are at the most constant distance. No receive ends before its send starts.

    Args:
        sends: All sends of one rank to another one, in order.
        recvs: All receives of that rank from the first one.
        ahead_ns: How far the receiver's clock is ahead, to half a millisecond or so; None if unknown.
        is_whole: Nothing else says that the capture of either rank begins or ends in the middle.
    """
    known = ahead_ns is not None
    # Most clocks are set by the network's: kernels that end together by them are told from all others.
    met = _most_meetings(sends, recvs, ahead_ns or 0)
    if (
        met is not None
        and agrees(sends, recvs, met)
        and not is_early(sends, recvs, met, ahead_ns or 0)
        and (known or _level(sends, recvs, met) <= EARLY_NS)
    ):
        return met
    steady = _steadiest(sends, recvs, ahead_ns)
    if steady is None and is_whole and len(sends.kinds) == len(recvs.kinds) and agrees(sends, recvs, 0):
        # As many on both sides: single kernels may be where they cannot be, but not most of them.
        usual = early_ratio(sends, recvs, 0, ahead_ns or 0) <= _MOST_EARLY if known else is_steady(sends, recvs, 0)
        return 0 if usual else None
    return steady


def is_steady(one: RankOperations, other: RankOperations, shift: int) -> bool:
    """Whether the distances between both ends scatter far less than one operation is from the next; or are unknown."""
    import numpy as np

    apart = scatter(one, other, shift)
    ends = overlapping(one, other, shift)[0].ends
    return apart is None or ends is None or len(ends) < 2 or apart <= STEADY_RATIO * float(np.median(np.diff(ends)))


def _level(sends: RankOperations, recvs: RankOperations, shift: int) -> float:
    """Usual distance between both ends, whichever is first; 0 if unknown."""
    import numpy as np

    a, b = overlapping(sends, recvs, shift)
    return 0.0 if a.ends is None or b.ends is None else abs(float(np.median(b.ends - a.ends)))


def is_early(sends: RankOperations, recvs: RankOperations, shift: int, ahead_ns: int) -> bool:
    """Whether a receive is over before its send begins."""
    return early_ratio(sends, recvs, shift, ahead_ns) > 0


def early_ratio(sends: RankOperations, recvs: RankOperations, shift: int, ahead_ns: int) -> float:
    """Share of the receives that are over before their send begins."""
    a, b = overlapping(sends, recvs, shift)
    if a.starts is None or b.ends is None or not len(b.ends):
        return 0.0
    return float((b.ends - ahead_ns < a.starts - EARLY_NS).mean())


def meetings(sends: RankOperations, recvs: RankOperations, shift: int, ahead_ns: int) -> int:
    """How many pairs of kernels run at one time."""
    a, b = overlapping(sends, recvs, shift)
    if a.starts is None or a.ends is None or b.starts is None or b.ends is None:
        return 0
    return int(((b.starts - ahead_ns < a.ends) & (a.starts < b.ends - ahead_ns)).sum())


def _most_meetings(sends: RankOperations, recvs: RankOperations, ahead_ns: int) -> int | None:
    """The shift at which clearly most kernels run at one time."""
    import numpy as np

    if sends.starts is None or sends.ends is None or recvs.starts is None or recvs.ends is None:
        return None
    # Kernels of one communicator follow each other; where streams run beside each other order is kept by the ends.
    starts = np.maximum.accumulate(recvs.starts) - ahead_ns
    ends = np.maximum.accumulate(recvs.ends) - ahead_ns
    low = np.searchsorted(ends, sends.starts, side="right")
    high = np.searchsorted(starts, sends.ends, side="left")
    votes: Counter[int] = Counter()
    for nth in range(_MOST_OVERLAPS):
        at = np.flatnonzero(high - low > nth)
        votes.update((at - low[at] - nth).tolist())
    ranked = votes.most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] < 2 * ranked[1][1]):
        return None
    return ranked[0][0]


def _steadiest(sends: RankOperations, recvs: RankOperations, ahead_ns: int | None) -> int | None:
    """The shift at which both ends are at a clearly more constant distance than at any other one."""
    n, m = len(sends.kinds), len(recvs.kinds)
    least = min(n, m, max(_LEAST_PAIRS, min(n, m) // 2))
    candidates: list[tuple[float, int]] = []
    for shift in range(min(0, n - m) - _SLACK, max(0, n - m) + _SLACK + 1):
        if min(n - max(shift, 0), m - max(-shift, 0)) < max(least, 1):
            continue
        apart = scatter(sends, recvs, shift, MOST_TRIED)
        if apart is not None and agrees(sends, recvs, shift, most=MOST_TRIED):
            candidates.append((apart, shift))
    # A sample tells which shifts are worth looking at as a whole.
    candidates = sorted(candidates)[:_MOST_CHECKED]
    candidates = [
        (apart, shift)
        for apart, shift in candidates
        if agrees(sends, recvs, shift) and (ahead_ns is None or not is_early(sends, recvs, shift, ahead_ns))
    ]
    if not candidates or (len(candidates) == 1 and least < _LEAST_PAIRS):
        return None
    best = candidates[0][1]
    if ahead_ns is None and _level(sends, recvs, best) > _NETWORK_TIME_NS:
        return None  # steps are alike: one step later the distance is as constant
    clear = len(candidates) == 1 or _CLEAR * (candidates[0][0] + _SPREAD_NS) < candidates[1][0]
    return best if clear else None


class RoughClocks:
    """How far clocks of ranks are ahead of each other, to a fraction of a millisecond: enough to order kernels.

    Args:
        pairs: How far the second rank's clock is ahead of the first one's.
    """

    def __init__(self, pairs: Mapping[tuple[int, int], int]) -> None:
        near: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (one, other), ahead in pairs.items():
            near[one].append((other, ahead))
            near[other].append((one, -ahead))
        self._ahead: dict[int, tuple[int, int]] = {}
        for root in sorted(near):
            if root in self._ahead:
                continue
            self._ahead[root] = (root, 0)
            queue = [root]
            for rank in queue:
                for other, ahead in near[rank]:
                    if other not in self._ahead:
                        self._ahead[other] = (root, self._ahead[rank][1] + ahead)
                        queue.append(other)

    def ahead_ns(self, one: int, other: int) -> int | None:
        """How far the other rank's clock is ahead; None if nothing joins the two."""
        first, second = self._ahead.get(one), self._ahead.get(other)
        if first is None or second is None or first[0] != second[0]:
            return None
        return second[1] - first[1]


def rough_pairs(lags: Iterable[tuple[int, int, int]]) -> dict[tuple[int, int], int]:
    """How far clocks are ahead, by the shortest lag of messages (source, destination, lag) each way."""
    least: dict[tuple[int, int], int] = {}
    for src, dst, lag in lags:
        least[src, dst] = min(least.get((src, dst), lag), lag)
    return {
        (src, dst): (lag - least[dst, src]) // 2 if (dst, src) in least else lag
        for (src, dst), lag in sorted(least.items())
        if src < dst or (dst, src) not in least
    }
