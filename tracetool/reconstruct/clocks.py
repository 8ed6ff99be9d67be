"""Clocks of the ranks against each other.

Two ranks that exchange messages both ways see each other's clock as NTP does: a receive ends a little after its
send, by the same lag in either direction, so that half the difference of the two lags seen is the offset. Ranks of
a collective end together. Differences of pairs are put together by least squares over all ranks, and their growth
over the capture is the drift.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.collectives import Collective
    from tracetool.reconstruct.messages import Message, P2POp

    Array = NDArray[np.float64]

NOISE_NS = 10_000
"""Offsets up to this are within what ends of kernels on one host differ by: such times are left as they are."""

_DRIFT_NS = 5_000

_MOST_ANCHORS = 512
_LOW_QUANTILE = 0.05
_BUFFERED_NS = 1_000_000
_LAG_NS = 200_000
_COLLECTIVE_NS = 2_000.0  # ends of a collective differ by its topology, whatever their number
_SIGNIFICANT = 3.0


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clock against the reference rank's.

    Attributes:
        time_ns: Time on the rank's own clock at which the offset holds.
        offset_ns: What to add to the rank's times there; None if nothing joins it to the reference rank.
        drift_ppm: Growth of the offset with time, in parts per million; None if the anchors do not tell it.
        residual_ns: Median distance of the anchors from the alignment; None without anchors.
        anchors: Messages and collectives that were used.
        applied: Whether times are moved by it.
    """

    time_ns: int
    offset_ns: int | None
    drift_ppm: float | None
    residual_ns: int | None
    anchors: int
    applied: bool


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all recorded ranks; without an entry a rank's times are taken as they are."""

    reference_rank: int | None = None
    by_rank: Mapping[int, Clock] = field(default_factory=dict)

    def aligned_ns(self, rank: int, time_ns: int) -> int:
        """A time on a rank's own clock, on the reference rank's clock."""
        clock = self.by_rank.get(rank)
        if clock is None or not clock.applied or clock.offset_ns is None:
            return time_ns
        drift = round((time_ns - clock.time_ns) * (clock.drift_ppm or 0.0) / 1e6)
        return time_ns + clock.offset_ns + drift


class _Anchors(NamedTuple):
    """Differences of ends between two ranks (second minus first), by how they came about.

    Attributes:
        there: Of receives on the second rank and their sends on the first.
        back: Of sends on the second rank and their receives on the first.
        both: Of kernels that carried messages both ways: which one ended last is not known.
        together: Of collectives.
    """

    there: list[tuple[int, int]]
    back: list[tuple[int, int]]
    both: list[tuple[int, int]]
    together: list[tuple[int, int]]


class _Edge(NamedTuple):
    """What the anchors of two ranks say of the second one's clock against the first's.

    Attributes:
        offset_ns: Difference of the clocks at the middle of the capture.
        offset_sd: Its standard error, ns.
        drift: Growth of the difference, ns per ns.
        drift_sd: Its standard error; None if the anchors do not tell.
        residuals: Distances of the anchors from what is usual for their kind, ns.
        anchors: Number of anchors.
    """

    offset_ns: float
    offset_sd: float
    drift: float
    drift_sd: float | None
    residuals: Array
    anchors: int


def find_clocks(
    ranks: Sequence[int], messages: Sequence[Message], collectives: Sequence[Collective], account: Account
) -> Clocks:
    """Offset and drift of every rank against the lowest one that it is joined to.

    Args:
        ranks: Recorded ranks.
        messages: Matched messages of the capture.
        collectives: Matched collectives of the capture.
        account: Told how well clocks agree, and which ranks cannot be compared.
    """
    pairs, times = _collect(messages, collectives)
    if not ranks or not pairs:
        return Clocks()
    middle = (min(times) + max(times)) // 2
    edges: dict[tuple[int, int], _Edge] = {}
    one_way: list[tuple[int, int]] = []
    for pair, anchors in sorted(pairs.items()):
        edge = _edge(anchors, middle)
        if edge is None:
            one_way.append(pair)
        else:
            edges[pair] = edge
    reference = min(ranks)
    joined = _joined(reference, edges)
    clocks = _solve(reference, sorted(joined), edges, middle, max(times) - min(times))
    apart = [rank for rank in ranks if rank not in joined]
    clocks |= {rank: Clock(middle, None, None, None, 0, applied=False) for rank in apart}
    _tell(reference, clocks, edges, apart, one_way, account)
    return Clocks(reference, clocks)


def _collect(
    messages: Sequence[Message], collectives: Sequence[Collective]
) -> tuple[dict[tuple[int, int], _Anchors], list[int]]:
    pairs: dict[tuple[int, int], _Anchors] = defaultdict(lambda: _Anchors([], [], [], []))
    in_kernel = Counter((op.rank, op.batch) for message in messages for op in message if op.batch is not None)
    times: list[int] = []
    for send, recv in messages:
        if None in (send.end_ns, recv.end_ns) or send.rank == recv.rank or _is_host_work(send):
            continue
        sent, received = send.end_ns or 0, recv.end_ns or 0
        low, high = sorted((send.rank, recv.rank))
        anchors = pairs[low, high]
        alone = all(op.batch is None or in_kernel[op.rank, op.batch] == 1 for op in (send, recv))
        difference = received - sent if recv.rank == high else sent - received
        kind = anchors.both if not alone else anchors.there if recv.rank == high else anchors.back
        kind.append((sent if send.rank == low else received, difference))
        times.append(sent)
    for collective in collectives:
        first = collective.ops[0]
        for op in collective.ops[1:]:
            pairs[first.rank, op.rank].together.append((first.end_ns, op.end_ns - first.end_ns))
        times.append(first.end_ns)
    return dict(pairs), times


def _is_host_work(op: P2POp) -> bool:
    """Whether the host itself moved the bytes (gloo): such work ends when somebody waits for it."""
    return op.stream is None and op.thread is not None


def _edge(anchors: _Anchors, middle: int) -> _Edge | None:
    """Offset and drift of two ranks; None if messages went one way only."""
    there, back, both, together = (_arrays(a, middle) for a in anchors)
    # A send that was buffered ends long before its receive: it shows no lag.
    there, back = _prompt(there, 1, _BUFFERED_NS), _prompt(back, -1, _BUFFERED_NS)
    drift, drift_sd = _drift([there, back, both, together])
    there, back, both, together = ((t, d - drift * t) for t, d in (there, back, both, together))
    there, back = _prompt(there, 1, _LAG_NS), _prompt(back, -1, _LAG_NS)
    return _offset(there[1], back[1], both[1], together[1], drift, drift_sd, sum(map(len, anchors)))


def _offset(
    there: Array, back: Array, both: Array, together: Array, drift: float, drift_sd: float | None, anchors: int
) -> _Edge | None:
    import numpy as np

    estimates: list[tuple[float, float]] = []
    residuals = []
    if len(there) and len(back):
        out, home = np.quantile(there, _LOW_QUANTILE), np.quantile(-back, _LOW_QUANTILE)
        estimates.append(((out - home) / 2, max(_error(there, out), _error(-back, home))))
        residuals += [np.abs(there - out), np.abs(-back - home)]
    if len(together):
        level = float(np.median(together))
        estimates.append((level, max(_COLLECTIVE_NS, _error(together, level))))
        residuals.append(np.abs(together - level))
    if not estimates and len(both):
        # Unknown by half a lag: which side ended last is the same in all of them, or random.
        estimates.append((float(np.median(both)), 30_000.0))
        residuals.append(np.abs(both - np.median(both)))
    if not estimates:
        return None
    weights = np.array([1 / error**2 for _, error in estimates])
    offset = float(np.dot(weights, [value for value, _ in estimates]) / weights.sum())
    return _Edge(offset, float(weights.sum() ** -0.5), drift, drift_sd, np.concatenate(residuals), anchors)


def _arrays(anchors: Sequence[tuple[int, int]], middle: int) -> tuple[Array, Array]:
    """Times from the middle of the capture, and differences; evenly chosen if there are very many."""
    import numpy as np

    step = max(1, len(anchors) // _MOST_ANCHORS)
    found = np.array(sorted(anchors)[::step], dtype=np.int64).reshape(-1, 2)
    return (found[:, 0] - middle).astype(float), found[:, 1].astype(float)


def _prompt(found: tuple[Array, Array], sign: int, within_ns: int) -> tuple[Array, Array]:
    """The anchors with nearly the shortest lag seen."""
    if not len(found[1]):
        return found
    lags = sign * found[1]
    near = lags <= lags.min() + within_ns
    return found[0][near], found[1][near]


def _error(values: Array, level: float) -> float:
    """Standard error of a level, from how far the middle one of the values is from it; never below 500 ns."""
    import numpy as np

    return max(500.0, 1.48 * float(np.median(np.abs(values - level))) / math.sqrt(len(values)))


def _drift(classes: Sequence[tuple[Array, Array]]) -> tuple[float, float | None]:
    """Common slope of several kinds of anchors, each with a level of its own.

    Each kind gives a slope by least absolute residuals. Lags that grow with load look like drift in one kind, but
    then not in the others: at least two kinds have to agree.

    Returns:
        Slope and its standard error; 0 and None if the anchors do not tell.
    """
    import numpy as np

    slopes = [_slope(t, d) for t, d in classes if len(t) >= 4 and np.ptp(t) > 0]
    if len(slopes) < 2:
        return 0.0, None
    weights = np.array([1 / sd**2 for _, sd in slopes])
    slope = float(np.dot(weights, [value for value, _ in slopes]) / weights.sum())
    sure = [value for value, sd in slopes if sd * _SIGNIFICANT < abs(slope)]
    agree = len(sure) >= 2 and all(0.5 < value / slope < 2 for value in sure)
    return (slope if agree else 0.0), float(weights.sum() ** -0.5)


def _slope(t: Array, d: Array) -> tuple[float, float]:
    """Slope of one kind of anchors and its standard error, by iteratively reweighted least squares."""
    import numpy as np

    weights = np.ones(len(t))
    slope, spread = 0.0, 1.0
    for _ in range(20):
        tc, dc = t - np.average(t, weights=weights), d - np.average(d, weights=weights)
        slope = float(np.sum(weights * tc * dc) / np.sum(weights * tc * tc))
        residuals = np.abs(dc - slope * tc)
        spread = max(1.48 * float(np.median(residuals)), 100.0)
        weights = 1 / np.maximum(residuals, spread / 10)
    scatter: float = ((t - t.mean()) ** 2).sum()
    return slope, spread / math.sqrt(scatter)


def _joined(reference: int, edges: Mapping[tuple[int, int], _Edge]) -> set[int]:
    near: dict[int, set[int]] = defaultdict(set)
    for one, other in edges:
        near[one].add(other)
        near[other].add(one)
    seen, queue = {reference}, [reference]
    while queue:
        fresh = near[queue.pop()] - seen
        seen |= fresh
        queue += fresh
    return seen


def _solve(
    reference: int, ranks: Sequence[int], edges: Mapping[tuple[int, int], _Edge], middle: int, span_ns: int
) -> dict[int, Clock]:
    """Weighted least squares over the graph of ranks; the reference rank's clock is kept."""
    import numpy as np

    used = [(pair, edge) for pair, edge in sorted(edges.items()) if pair[0] in ranks]
    at = {rank: n for n, rank in enumerate(r for r in ranks if r != reference)}
    matrix = np.zeros((len(used), len(at)))
    for row, ((one, other), _) in enumerate(used):
        if one in at:
            matrix[row, at[one]] -= 1
        if other in at:
            matrix[row, at[other]] += 1
    ahead, ahead_sd = _least_squares(matrix, [(e.offset_ns, e.offset_sd) for _, e in used])
    told = [(e.drift, e.drift_sd if e.drift_sd is not None else 1.0) for _, e in used]
    gains, gain_sd = _least_squares(matrix, told)
    known = {rank: any(e.drift_sd is not None for pair, e in used if rank in pair) for rank in at}
    clocks = {reference: _clock(middle, 0.0, 0.0, None, [e for p, e in used if reference in p])}
    for rank, n in at.items():
        sure = known[rank] and abs(gains[n]) > _SIGNIFICANT * gain_sd[n] and abs(gains[n]) * span_ns > _DRIFT_NS
        drift = -float(gains[n]) * 1e6 if sure else (0.0 if known[rank] else None)
        clocks[rank] = _clock(middle, float(ahead[n]), float(ahead_sd[n]), drift, [e for p, e in used if rank in p])
    return clocks


def _clock(middle: int, ahead_ns: float, error_ns: float, drift_ppm: float | None, edges: Sequence[_Edge]) -> Clock:
    import numpy as np

    residuals = np.concatenate([e.residuals for e in edges]) if edges else np.zeros(0)
    residual = round(float(np.median(residuals))) if len(residuals) else None
    return Clock(
        time_ns=middle + round(ahead_ns),
        offset_ns=-round(ahead_ns),
        drift_ppm=drift_ppm,
        residual_ns=residual,
        anchors=sum(e.anchors for e in edges),
        applied=abs(ahead_ns) > max(NOISE_NS, residual or 0, _SIGNIFICANT * error_ns) or bool(drift_ppm),
    )


def _least_squares(matrix: Array, told: Sequence[tuple[float, float]]) -> tuple[Array, Array]:
    import numpy as np

    if not matrix.size:
        return np.zeros(matrix.shape[1]), np.ones(matrix.shape[1])
    values, errors = (np.array(column) for column in zip(*told, strict=True))
    scaled = matrix / errors[:, None]
    solution, *_ = np.linalg.lstsq(scaled, values / errors, rcond=None)
    covariance = np.linalg.pinv(scaled.T @ scaled)
    return solution, np.sqrt(np.maximum(np.diag(covariance), 0))


def _tell(
    reference: int,
    clocks: Mapping[int, Clock],
    edges: Mapping[tuple[int, int], _Edge],
    apart: Sequence[int],
    one_way: Sequence[tuple[int, int]],
    account: Account,
) -> None:
    known = {r: c for r, c in sorted(clocks.items()) if r != reference and c.offset_ns is not None}
    left = [rank for rank, clock in known.items() if not clock.applied]
    if left:
        most = max(abs(known[rank].offset_ns or 0) for rank in left)
        account.find(
            "clocks", format_ranks(left),
            f"within {format_duration(most)} of rank {reference}'s, no more than the anchors scatter: left as they are",
            "messages", min(_agreement(rank, clocks, edges) for rank in left),
            f"{format_count(sum(known[rank].anchors for rank in left), 'anchor')}",
        )  # fmt: skip
    for rank, clock in known.items():
        if clock.applied:
            drift = "" if not clock.drift_ppm else f", drift {clock.drift_ppm:+.1f} ppm"
            account.find(
                "clocks", f"rank {rank}",
                f"{_signed(clock.offset_ns or 0)} added{drift} to agree with rank {reference}; anchors agree within "
                f"{format_duration(clock.residual_ns or 0)}",
                "messages", _agreement(rank, clocks, edges), format_count(clock.anchors, "anchor"),
            )  # fmt: skip
    if apart:
        account.note(
            f"the {'clock' if len(apart) == 1 else 'clocks'} of {format_ranks(apart)} cannot be compared with that of "
            f"rank {reference}: "
            + (
                "messages go one way only between " + ", ".join(f"{a} and {b}" for a, b in one_way[:4])
                if one_way
                else "no message or collective joins them"
            )
            + ". Waits, transfers and idle time across them are off by as much as the clocks are"
        )


def _agreement(rank: int, clocks: Mapping[int, Clock], edges: Mapping[tuple[int, int], _Edge]) -> float:
    """Share of the rank's pairs whose own difference is what all pairs together say."""
    mine = [(pair, edge) for pair, edge in edges.items() if rank in pair]
    agree = 0
    for (one, other), edge in mine:
        whole = -(clocks[other].offset_ns or 0) + (clocks[one].offset_ns or 0)
        agree += abs(edge.offset_ns - whole) <= max(_SIGNIFICANT * edge.offset_sd, NOISE_NS)
    return agree / len(mine) if mine else 0.0


def _signed(offset_ns: int) -> str:
    return f"{'-' if offset_ns < 0 else '+'}{format_duration(abs(offset_ns))}"
