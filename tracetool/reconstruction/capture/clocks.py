"""Clocks of the ranks against each other.

Two ranks that exchange messages both ways see each other's clock as NTP does: a receive ends a little after its
send, by the same lag in either direction, so that half the difference of the two lags seen is the offset. Ranks of
a collective end together. Differences of pairs are put together by least squares over all ranks, and their growth
over the capture is the drift.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.reconstruction.capture.clock_pairs import Anchors, join_pair, least_squares, slopes_of, tells_offset
from tracetool.units import format_count, format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.clock_pairs import Edge, Slope
    from tracetool.reconstruction.capture.collectives import Collective
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage

    Array = NDArray[np.float64]

NOISE_NS = 10_000
"""Offsets up to this are within what ends of kernels on one host differ by: such times are left as they are."""

_DRIFT_NS = 8_000
_MOST_DRIFT_PPM = 500.0
"""No clock that is kept drifts more: NTP corrects up to that (RFC 5905, its frequency tolerance)."""
_SHORT_COLLECTIVE_NS = 2_000_000
_SIGNIFICANT = 3.0


@dataclass(frozen=True, slots=True)
class Clock:
    """One rank's clock against the reference rank's, the lowest one that it is joined to.

    Attributes:
        reference_rank: Whose clock is kept.
        time_ns: Time on the rank's own clock at which the offset holds.
        offset_ns: What to add to the rank's times there; None if nothing joins it to the reference rank.
        drift_ppm: Growth of the offset with time, in parts per million; None if the anchors do not tell it.
        residual_ns: Median distance of the anchors from the alignment; None without anchors.
        anchors: Messages and collectives that were used.
        applied: Whether times are moved by it.
        confidence: Share of the rank's pairs that say the same as all pairs together.
        evidence: messages, or kernels where only the ends of collectives tell; assumed where nothing does.
    """

    reference_rank: int
    time_ns: int
    offset_ns: int | None
    drift_ppm: float | None
    residual_ns: int | None
    anchors: int
    applied: bool
    confidence: float = 0.0
    evidence: Evidence = "assumed"


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all recorded ranks; without an entry a rank's times are taken as they are."""

    by_rank: Mapping[int, Clock] = field(default_factory=dict)

    def agree_within(self, rank: int, time_ns: int) -> bool:
        """Whether a rank's anchors agree on its clock, so that it ran together with the reference rank."""
        clock = self.by_rank.get(rank)
        return clock is not None and clock.offset_ns is not None and (clock.residual_ns or 0) <= time_ns

    def aligned_ns(self, rank: int, time_ns: int) -> int:
        """A time on a rank's own clock, on the reference rank's clock."""
        clock = self.by_rank.get(rank)
        if clock is None or not clock.applied or clock.offset_ns is None:
            return time_ns
        drift = round((time_ns - clock.time_ns) * (clock.drift_ppm or 0.0) / 1e6)
        return time_ns + clock.offset_ns + drift


def find_clocks(
    ranks: Sequence[int], messages: Sequence[PairedMessage], collectives: Sequence[Collective], account: Account
) -> Clocks:
    """Offset and drift of every rank against the lowest one that it is joined to.

    Pipelines that exchange nothing with each other have a reference rank each.

    Args:
        ranks: Recorded ranks.
        messages: Matched messages of the capture.
        collectives: Matched collectives of the capture.
        account: Told how well clocks agree, and which ranks cannot be compared.
    """
    pairs, times = _collect(messages, collectives)
    if not ranks or not pairs:
        return Clocks()
    reference = min(ranks)
    two_way = [pair for pair, anchors in pairs.items() if tells_offset(anchors)]
    clocks: dict[int, Clock] = {}
    for rank in sorted({reference, *(rank for pair in two_way for rank in pair)}):
        if rank not in clocks:
            joined = _joined(rank, two_way)
            inside = {pair: pairs[pair] for pair in two_way if pair[0] in joined}
            if inside:
                clocks |= _clocks_of(rank, joined, inside, [time for time in times if time[0] in joined])
    unknown = Clock(reference, times[0][1], None, None, None, 0, applied=False)
    alone = {rank: replace(unknown, offset_ns=0) if rank == reference else unknown for rank in ranks}
    clocks = alone | clocks
    apart = [r for r in ranks if clocks[r].offset_ns is None or clocks[r].reference_rank != reference]
    _record_clocks(clocks, [r for r in apart if r != reference], sorted(set(pairs) - set(two_way)), account)
    return Clocks(clocks)


def _clocks_of(
    reference: int, ranks: set[int], pairs: Mapping[tuple[int, int], Anchors], times: Sequence[tuple[int, int]]
) -> dict[int, Clock]:
    """The clocks of ranks that are all joined to each other."""
    pairs, middle, span_ns = _at_one_time(reference, pairs, times)
    drifts = _drifts(reference, {p: slopes_of(a, middle) for p, a in sorted(pairs.items())}, span_ns)
    edges: dict[tuple[int, int], Edge] = {}
    for (one, other), anchors in sorted(pairs.items()):
        edge = join_pair(anchors, middle, (drifts.get(other) or 0.0) - (drifts.get(one) or 0.0))
        if edge is not None:
            edges[one, other] = edge
    clocks = _solve(reference, sorted(ranks), edges, drifts, middle)
    by_messages = {rank for pair, (there, back, both, _) in pairs.items() if there or back or both for rank in pair}
    return {
        rank: replace(
            clock,
            confidence=_agreement(rank, clocks, edges),
            evidence="messages" if rank in by_messages else "kernels" if clock.anchors else "assumed",
        )
        for rank, clock in clocks.items()
    }


def _collect(
    messages: Sequence[PairedMessage], collectives: Sequence[Collective]
) -> tuple[dict[tuple[int, int], Anchors], list[tuple[int, int]]]:
    """Anchors of each pair of ranks, and (rank, time) of all messages and collectives."""
    pairs: dict[tuple[int, int], Anchors] = defaultdict(lambda: Anchors([], [], [], []))
    # Several tensors for one peer in one kernel are one message.
    ways = {(op.rank, op.batch, op.peer, op.is_send) for message in messages for op in message if op.batch is not None}
    in_kernel = Counter((rank, batch) for rank, batch, _, _ in ways)
    collected: set[tuple[object, ...]] = set()
    times: list[tuple[int, int]] = []
    for send, recv in messages:
        if None in (send.end_ns, recv.end_ns) or send.rank == recv.rank or _is_host_work(send):
            continue
        kernels = (send.rank, send.batch, recv.rank, recv.batch)
        if None not in kernels and kernels in collected:
            continue
        collected.add(kernels)
        sent, received = send.end_ns or 0, recv.end_ns or 0
        low, high = sorted((send.rank, recv.rank))
        anchors = pairs[low, high]
        alone = all(op.batch is None or in_kernel[op.rank, op.batch] == 1 for op in (send, recv))
        difference = received - sent if recv.rank == high else sent - received
        at = sent if send.rank == low else received
        if alone:
            lasted = received - (received if recv.start_ns is None else recv.start_ns)
            (anchors.there if recv.rank == high else anchors.back).append((at, difference, lasted))
        else:
            anchors.both.append((at, difference, 0))
        times.append((send.rank, sent))
    # Large collectives end when each rank's own part is done: small ones are nearer together.
    short = {id(c) for c in collectives if c.own_ns <= _SHORT_COLLECTIVE_NS}
    joined_by_short = {(c.ops[0].rank, op.rank) for c in collectives if id(c) in short for op in c.ops[1:]}
    for collective in collectives:
        first = collective.ops[0]
        for op in collective.ops[1:]:
            if id(collective) in short or (first.rank, op.rank) not in joined_by_short:
                pairs[first.rank, op.rank].together.append((first.end_ns, op.end_ns - first.end_ns, 0))
        times.append((first.rank, first.end_ns))
    return dict(pairs), times


def _at_one_time(
    reference: int, pairs: Mapping[tuple[int, int], Anchors], times: Sequence[tuple[int, int]]
) -> tuple[dict[tuple[int, int], Anchors], int, int]:
    """Anchors with their times about as on the reference rank's clock; the middle and the length of the capture there.

    Clocks that drift differ by something else at another time: what all pairs say can be put together of one and the
    same moment only.
    """
    ahead = _roughly_ahead(reference, pairs)
    moved = {
        pair: Anchors(*([(at - ahead.get(pair[0], 0), d, lasted) for at, d, lasted in kind] for kind in anchors))
        for pair, anchors in pairs.items()
    }
    shared = [time - ahead.get(rank, 0) for rank, time in times]
    return moved, (min(shared) + max(shared)) // 2, max(shared) - min(shared)


def _roughly_ahead(reference: int, pairs: Mapping[tuple[int, int], Anchors]) -> dict[int, int]:
    """By how much each rank's clock is ahead of the reference's, lags included: the middle one of its anchors."""
    near: dict[int, dict[int, int]] = defaultdict(dict)
    for (one, other), anchors in pairs.items():
        differences = [difference for kind in anchors for _, difference, _ in kind]
        if differences:
            middle = round(median(differences))
            near[one][other], near[other][one] = middle, -middle
    ahead, queue = {reference: 0}, [reference]
    for rank in queue:
        for other, difference in near[rank].items():
            if other not in ahead:
                ahead[other] = ahead[rank] + difference
                queue.append(other)
    return ahead


def _is_host_work(op: P2POp) -> bool:
    """Whether the host itself moved the bytes (gloo): such work ends when somebody waits for it."""
    return op.stream is None and op.thread is not None


def _joined(reference: int, edges: Iterable[tuple[int, int]]) -> set[int]:
    near: dict[int, set[int]] = defaultdict(set)
    for one, other in edges:
        near[one].add(other)
        near[other].add(one)
    reached, queue = {reference}, [reference]
    while queue:
        fresh = near[queue.pop()] - reached
        reached |= fresh
        queue += fresh
    return reached


def _drifts(reference: int, slopes: Mapping[tuple[int, int], Sequence[Slope]], span_ns: int) -> dict[int, float]:
    """How much faster each rank's clock goes than the reference's, where the anchors tell; 0 where not for sure.

    Lags that grow with load look like drift, but with the opposite sign the other way: kinds of anchors that
    disagree widen the error by as much, and one kind alone is not believed.
    """
    import numpy as np

    measured = [(pair, slope) for pair, of_pair in slopes.items() for slope in of_pair]
    joined = _joined(reference, dict.fromkeys(pair for pair, _ in measured)) - {reference}
    measured = [(pair, slope) for pair, slope in measured if set(pair) & joined]
    at = {rank: n for n, rank in enumerate(sorted(joined))}
    matrix = _differences([pair for pair, _ in measured], at)
    gains, errors = least_squares(matrix, values := [(s.value, s.sd) for _, s in measured])
    freedom = len(measured) - len(at)
    if freedom > 0:
        off = np.array([(value - row @ gains) / sd for row, (value, sd) in zip(matrix, values, strict=True)])
        errors = errors * max(1.0, float(np.sqrt(np.sum(off**2) / freedom)))
    kinds = Counter(rank for pair, _ in measured for rank in pair)
    return {
        rank: float(gains[n])
        if kinds[rank] > 1 and abs(gains[n]) > _SIGNIFICANT * errors[n] and abs(gains[n]) * span_ns > _DRIFT_NS
        else 0.0
        for rank, n in at.items()
    }


def _differences(pairs: Sequence[tuple[int, int]], at: Mapping[int, int]) -> Array:
    """One row per pair: second rank minus first; ranks without a column have the reference clock."""
    import numpy as np

    matrix = np.zeros((len(pairs), len(at)))
    for row, (one, other) in enumerate(pairs):
        if one in at:
            matrix[row, at[one]] -= 1
        if other in at:
            matrix[row, at[other]] += 1
    return matrix


def _solve(
    reference: int,
    ranks: Sequence[int],
    edges: Mapping[tuple[int, int], Edge],
    drifts: Mapping[int, float],
    middle: int,
) -> dict[int, Clock]:
    """Weighted least squares over the graph of ranks; the reference rank's clock is kept."""
    used = sorted(edges.items())
    of_rank: dict[int, list[Edge]] = defaultdict(list)
    for pair, edge in used:
        for rank in pair:
            of_rank[rank].append(edge)
    at = {rank: n for n, rank in enumerate(r for r in ranks if r != reference)}
    matrix = _differences([pair for pair, _ in used], at)
    ahead, errors = least_squares(matrix, [(e.offset_ns, e.offset_sd) for _, e in used])
    clocks = {reference: _clock(reference, middle, 0.0, 0.0, None, of_rank[reference])}
    for rank, n in at.items():
        drift = None if rank not in drifts else 0.0 - drifts[rank] * 1e6
        clocks[rank] = _clock(reference, middle, float(ahead[n]), float(errors[n]), drift, of_rank[rank])
    return clocks


def _clock(
    reference: int, middle: int, ahead_ns: float, error_ns: float, drift_ppm: float | None, edges: Sequence[Edge]
) -> Clock:
    import numpy as np

    residuals = np.concatenate([e.residuals for e in edges]) if edges else np.zeros(0)
    residual = round(float(np.median(residuals))) if len(residuals) else None
    return Clock(
        reference_rank=reference,
        time_ns=middle + round(ahead_ns),
        offset_ns=-round(ahead_ns),
        drift_ppm=drift_ppm,
        residual_ns=residual,
        anchors=sum(e.anchors for e in edges),
        applied=abs(ahead_ns) > max(NOISE_NS, residual or 0, _SIGNIFICANT * error_ns) or bool(drift_ppm),
    )


def _record_clocks(
    clocks: Mapping[int, Clock],
    apart: Sequence[int],
    one_way: Sequence[tuple[int, int]],
    account: Account,
) -> None:
    known = {r: c for r, c in sorted(clocks.items()) if r != c.reference_rank and c.offset_ns is not None}
    for kept in sorted({clock.reference_rank for clock in known.values()}):
        left = [rank for rank, clock in known.items() if not clock.applied and clock.reference_rank == kept]
        if not left:
            continue
        most = max(abs(known[rank].offset_ns or 0) for rank in left)
        account.find(
            "clocks", format_ranks(left),
            f"within {format_duration(most)} of rank {kept}'s, no more than the anchors scatter: left as they are",
            known[left[0]].evidence, min(known[rank].confidence for rank in left),
            f"{format_count(sum(known[rank].anchors for rank in left), 'anchor')}",
        )  # fmt: skip
    for rank, clock in known.items():
        if clock.applied:
            drift = "" if not clock.drift_ppm else f", drift {clock.drift_ppm:+.1f} ppm"
            account.find(
                "clocks", SubjectKind.RANK(rank),
                f"{_signed(clock.offset_ns or 0)} added{drift} to agree with rank {clock.reference_rank}; "
                f"anchors agree within {format_duration(clock.residual_ns or 0)}",
                clock.evidence, clock.confidence, format_count(clock.anchors, "anchor"),
            )  # fmt: skip
    jumped = [rank for rank, clock in known.items() if abs(clock.drift_ppm or 0.0) > _MOST_DRIFT_PPM]
    if jumped:
        account.note(
            NoticeCode.CLOCKS_DRIFT,
            f"the clocks of {format_ranks(jumped)} seem to drift by more than {_MOST_DRIFT_PPM:.0f} ppm, as no clock "
            "does: they were set during the capture, and times on both sides of that do not fit each other",
        )
    if apart:
        account.note(
            NoticeCode.CLOCKS_APART,
            f"the {'clock' if len(apart) == 1 else 'clocks'} of {format_ranks(apart)} cannot be compared with that of "
            f"rank {min(clocks)}: "
            + (
                "messages go one way only between " + ", ".join(f"{a} and {b}" for a, b in one_way[:4])
                if one_way
                else "no message or collective joins them"
            )
            + ". Waits, transfers and idle time across them are off by as much as the clocks are",
        )


def _agreement(rank: int, clocks: Mapping[int, Clock], edges: Mapping[tuple[int, int], Edge]) -> float:
    """Share of the rank's pairs whose own difference is what all pairs together say."""
    mine = [(pair, edge) for pair, edge in edges.items() if rank in pair]
    agree = 0
    for (one, other), edge in mine:
        whole = -(clocks[other].offset_ns or 0) + (clocks[one].offset_ns or 0)
        agree += abs(edge.offset_ns - whole) <= max(_SIGNIFICANT * edge.offset_sd, NOISE_NS)
    return agree / len(mine) if mine else 1.0


def _signed(offset_ns: int) -> str:
    return f"{'-' if offset_ns < 0 else '+'}{format_duration(abs(offset_ns))}"
