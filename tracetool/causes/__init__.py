"""Why ranks idle: every idle interval of a Timeline gets one cause.

The rule is that of the constraint that held the next action back longest. Where several had a part in it the interval
is cut: each action has a chain of what it waited for, and what that waited for, on whichever rank (``chain``); what the
chain grew by since the rank's action before is what the gap is made of (``balance``). This refinement is this tool's
own. So a link that delays every microbatch is in the gaps of all ranks, of those far from it too, and a cause has about
the time that the step would be shorter without it, where messages do not block each other and as long as the critical
path stays what it is. ``explain`` replays the step without each cause.
"""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from tracetool.causes.balance import Balance, Ledger, laid_out
from tracetool.causes.cause import IN_WINDOW, ON_LINKS, Cause, Idle
from tracetool.causes.chain import ChainPiece, Chains, OrderPlace
from tracetool.causes.removals import is_of_embedding
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BY_EDGE
from tracetool.model.timeline import RankOp
from tracetool.model.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tracetool.causes.balance import GapPart
    from tracetool.model.action import Action
    from tracetool.model.timeline import Op, TailCollective, Timeline
    from tracetool.replays import Replayed


def idle_intervals(
    timeline: Timeline,
    topology: Topology,
    *,
    cut_forwards: Sequence[int] = (),
    blocking: bool = True,
    by_edge: bool = False,
    overlapping: Collection[Action] = (),
) -> tuple[Idle, ...]:
    """Every idle time of every rank within the pipeline window, cut by cause.

    What the chain did says the cause:

    * Another rank computed: ``fill`` until the rank's first backward (ahead of its first action, and while the first
      microbatches go down the pipeline and come back), ``drain`` after its last forward, ``dependency`` in between.
      After a rank's last action the chain is the one that ends the window. Equal stages without delays leave nothing
      to ``dependency``: of 1F1B, rank r of p has r f + (p-1-r) b of fill and r b + (p-1-r) f of drain.
    * A message was on its way over a link (``cross_dc_latency``), or occupied it or waited for it to be free
      (``cross_dc_bandwidth``), or was behind another one that did.
    * A message moved inside a DC, or was behind another one on a communicator for other reasons (``channel``).
    * None of these: the action, or a message, came later than anything explains, while the profiler itself was at work
      (``profiler_overhead``) or not (``host``). In a replay only where hosts wait for their devices after batches of
      messages (``replay.launching``).
    * ``memory``, in a schedule whose depth memory limited, whatever else it would be: while forwards that the limit cut
      off had their inputs and did not run, in gaps that a link has a part in. It is at most what memory for these would
      have filled: their computes ahead of the first backward, where the rank waits for that alone; later forward and
      backward of each, by which it shortens every round trip over the link (by f + B).

    Within a gap a part is where the chain did that, as far as it did it there; how long it is counts, not where.

    Args:
        timeline: Observed or replayed.
        topology: With the links that its messages name, as they were replayed.
        cut_forwards: How many warm-up forwards of each pipeline rank a memory limit cut off; empty if none did.
        blocking: Whether computes wait for the sends ahead of them (``grouped`` transfers). Only in observed Timelines
            it matters: in a replay each message that held an action back ends just when that starts.
        by_edge: Whether each pair of ranks and direction has a communicator of its own; else each rank has one.
        overlapping: Actions that run as one with a neighbour (``Schedule.overlapping``).

    Returns:
        By rank, then by start; neighbours differ in cause or in the action held back. Per rank they sum to window minus
        compute, to the ns.
    """
    if not timeline.computes():
        return ()
    chains = Chains(timeline, topology, blocking=blocking, by_edge=by_edge, overlapping=overlapping)
    end_ns = chains.op(chains.last).end_ns
    ledger = Ledger(chains)
    idles: list[Idle] = []
    for rank, order in enumerate(chains.orders):
        phases, balance = _Phases(order), Balance()
        now = chains.start_ns
        for at in range(len(order) + 1):
            held = order[at] if at < len(order) else None
            place = OrderPlace(rank, at) if held else None
            until = held.start_ns if held else end_ns
            if at == phases.draining:
                balance.settle()
            spent = ledger.until(place)
            shares = balance.pass_on(spent, max(0, until - now))
            if until > now:
                parts = laid_out(list(_gap(chains, place, now)), shares, spent.messages)
                lacks = None
                if cut_forwards and _crosses(parts):
                    lacks = _room_lacks(chains, rank, at, cut_forwards[rank], is_filling=phases.of(at) is Cause.FILL)
                idles += _merged(parts, rank, held, phases.of(at), lacks)
            now = max(now, held.end_ns) if held else now
    return tuple(idles)


def critical_path(
    timeline: Timeline,
    topology: Topology,
    *,
    blocking: bool = True,
    by_edge: bool = False,
    overlapping: Collection[Action] = (),
) -> tuple[ChainPiece, ...]:
    """The chain that ends the window: what each moment of it was spent with, from its start on and without holes.

    Args:
        timeline: As for ``idle_intervals``, like the others.
        topology: Likewise.
        blocking: Likewise.
        by_edge: Likewise.
        overlapping: Likewise.
    """
    chains = Chains(timeline, topology, blocking=blocking, by_edge=by_edge, overlapping=overlapping)
    return tuple(chains.until(None))[::-1]


def profiler_ns(timeline: Timeline, *, blocking: bool, by_edge: bool) -> int:
    """How much longer the window is as the profiler itself was at work: what it takes of the critical path.

    Args:
        timeline: The observed one.
        blocking: As for ``idle_intervals``.
        by_edge: Likewise.
    """
    if not any(timeline.profiler):
        return 0
    pieces = critical_path(timeline, Topology(), blocking=blocking, by_edge=by_edge)
    return sum(piece.end_ns - piece.start_ns for piece in pieces if piece.cause is Cause.PROFILER_OVERHEAD)


def idles_of(replayed: Replayed, *, cut_forwards: Sequence[int] = ()) -> tuple[Idle, ...]:
    """``idle_intervals`` of a replay.

    Args:
        replayed: What was replayed.
        cut_forwards: As for ``idle_intervals``.
    """
    return idle_intervals(
        replayed.timeline,
        replayed.topology,
        cut_forwards=cut_forwards,
        by_edge=replayed.p2p in BY_EDGE,
        overlapping=replayed.schedule.overlapping(),
    )


def idle_after_window(timeline: Timeline) -> tuple[Idle, ...]:
    """Why the step goes on after its window: on every rank one cause at a time, from the end of the one to the other's.

    That is what the rank itself does then. While it waits at a collective it is what the rank does that comes to it
    last; once it is through it is what the rank does that ends the step.

    Args:
        timeline: Observed or replayed.

    Returns:
        By rank, then by start; neighbours differ in cause. Per rank they sum to step minus window.
    """
    window_ns = max(op.end_ns for op in timeline.computes())
    last = max(timeline.ops, key=lambda op: (op.end_ns, -op.rank))
    lanes = _lanes(timeline, window_ns, last.end_ns, last.rank)
    idles: list[Idle] = []
    for rank in range(len(timeline.global_ranks)):
        pieces = _awaited(lanes, rank, window_ns, last.end_ns, frozenset())
        for cause, spans in groupby(pieces, key=attrgetter("cause")):
            first, *others = spans
            idles.append(Idle(rank, first.start_ns, (others[-1] if others else first).end_ns, cause))
    return tuple(idles)


class _Doing(NamedTuple):
    """What a rank does after the window; of waiting None, and the rank that it waits for, if that was recorded."""

    start_ns: int
    end_ns: int
    cause: Cause | None
    awaited: int | None = None


_OF_TAIL = {ActionKind.REDUCE_GRAD: Cause.GRADIENT_REDUCTION, ActionKind.OPTIMIZER: Cause.OPTIMIZER}


def _lanes(timeline: Timeline, window_ns: int, end_ns: int, last: int) -> dict[int, list[_Doing]]:
    """What each rank does from the end of the window to that of the step, without holes; other pipelines' ranks too."""
    latest: dict[str, TailCollective] = {}
    for one in timeline.collectives:
        if one.use.meeting:
            latest[one.use.meeting] = max(one, latest.get(one.use.meeting, one), key=attrgetter("came_ns"))
    doings: dict[int, list[_Doing]] = {rank: [] for rank in range(len(timeline.global_ranks))}
    for one in timeline.collectives:
        awaited = latest.get(one.use.meeting, one).rank
        is_embedding = one.kind is ActionKind.REDUCE_GRAD and is_of_embedding(one.use, timeline.global_ranks)
        cause = Cause.EMBEDDING_ALLREDUCE if is_embedding else _OF_TAIL[one.kind]
        doings.setdefault(one.rank, []).extend(
            (
                _Doing(one.came_ns, one.start_ns, None, None if awaited == one.rank else awaited),
                _Doing(one.start_ns, one.end_ns, cause),
            )
        )
    for op in timeline.ops:
        if isinstance(op, RankOp):
            doings[op.rank].append(_Doing(op.start_ns, op.end_ns, _OF_TAIL[op.kind]))
    return {rank: _without_holes(of_rank, window_ns, end_ns, last) for rank, of_rank in doings.items()}


def _without_holes(doings: Sequence[_Doing], start_ns: int, end_ns: int, last: int) -> list[_Doing]:
    """One thing at a time: what stands first where several are told; for what is told of nothing, a rank is awaited."""
    within = [d for d in doings if d.end_ns > start_ns and d.start_ns < end_ns]
    bounds = {start_ns, end_ns, *(min(max(ns, start_ns), end_ns) for d in within for ns in d[:2])}
    lane = []
    for start, end in pairwise(sorted(bounds)):
        doing = next((d for d in within if d.start_ns <= start < d.end_ns), _Doing(start, end, None, last))
        if doing.cause is None and doing.awaited is None:  # for ranks that were not recorded
            doing = next((d for d in within if d.cause is not None and d.start_ns > start), doing)
        lane.append(doing._replace(start_ns=start, end_ns=end))
    return lane


def _awaited(
    lanes: Mapping[int, Sequence[_Doing]], rank: int, start_ns: int, end_ns: int, asked: frozenset[int]
) -> Iterator[_Doing]:
    """What a rank does within a time; while it waits, what the rank does that it waits for."""
    for doing in lanes[rank]:
        start, end = max(doing.start_ns, start_ns), min(doing.end_ns, end_ns)
        if start >= end:
            continue
        if doing.cause is not None:
            yield doing._replace(start_ns=start, end_ns=end)
        elif doing.awaited is None or doing.awaited == rank or doing.awaited in asked:
            yield _Doing(start, end, Cause.GRADIENT_REDUCTION)
        else:
            yield from _awaited(lanes, doing.awaited, start, end, asked | {rank})


def idle_by_cause(
    idles: Iterable[Idle], ranks: int, causes: Iterable[Cause] = IN_WINDOW
) -> dict[Cause, tuple[int, ...]]:
    """Idle time in ns of each pipeline rank by cause.

    Args:
        idles: All of one Timeline.
        ranks: How many there are.
        causes: Every cause that these may have, in the order of ``Cause``.
    """
    sums = {cause: [0] * ranks for cause in causes}
    for idle in idles:
        sums[idle.cause][idle.rank] += idle.duration_ns
    return {cause: tuple(rank_ns) for cause, rank_ns in sums.items()}


def mean_by_cause(by_cause: Mapping[Cause, Sequence[int]]) -> dict[Cause, int]:
    """Idle time of each cause as a mean over ranks, in whole ns: together the bubble, to the ns.

    The bubble is the mean of all idle time, rounded down. So is each cause's, and the ns that then lack go to the
    causes that lost most (of equal ones the first by name), as the view ``bubbles_by_cause`` has it.

    Args:
        by_cause: As ``idle_by_cause`` gives it.
    """
    totals = {cause: sum(rank_ns) for cause, rank_ns in by_cause.items()}
    ranks = max(1, *(len(rank_ns) for rank_ns in by_cause.values()))
    means = {cause: total // ranks for cause, total in totals.items()}
    missing = sum(totals.values()) // ranks - sum(means.values())
    for cause in sorted(totals, key=lambda cause: (-(totals[cause] % ranks), cause.value))[:missing]:
        means[cause] += 1
    return means


class _Phases:
    """Where a rank's gaps are: in the filling of the pipeline, in its draining or in between."""

    def __init__(self, order: Sequence[Op]) -> None:
        ends = len(order)
        # Without backwards the pipeline is full once a rank's first forward runs.
        self._first_backward = next((at for at, op in enumerate(order) if op.kind is not ActionKind.FORWARD), 0)
        self.draining = 1 + max((at for at, op in enumerate(order) if op.kind is ActionKind.FORWARD), default=ends)

    def of(self, at: int) -> Cause:
        """The cause of computes elsewhere, in the gap ahead of an action by its position."""
        if at <= self._first_backward:
            return Cause.FILL
        return Cause.DRAIN if at >= self.draining else Cause.DEPENDENCY


def _gap(chains: Chains, place: OrderPlace | None, since_ns: int) -> Iterator[ChainPiece]:
    """The chain within a gap, latest first."""
    for piece in chains.until(place):
        if piece.start_ns <= since_ns:
            yield piece._replace(start_ns=since_ns)
            return
        yield piece


def _crosses(parts: Sequence[GapPart]) -> bool:
    return any(part.kind in ON_LINKS for part in parts)


def _room_lacks(chains: Chains, rank: int, at: int, cut: int, *, is_filling: bool) -> tuple[int, int] | None:
    """From when the next forwards could have run in the gap ahead of an action, and for how long; None if none could.

    Args:
        chains: Of the Timeline.
        rank: The pipeline rank.
        at: Position of the action.
        cut: How many forwards there was no memory for.
        is_filling: Whether the gap is ahead of the first backward.
    """
    order = chains.orders[rank]
    if at >= len(order) or order[at].kind is ActionKind.FORWARD:
        return None
    until = order[at].start_ns
    forwards = [n for n in range(at, len(order)) if order[n].kind is ActionKind.FORWARD][:cut]
    ready = [(n, moment) for n in forwards if (moment := chains.ready_ns(OrderPlace(rank, n), at)) is not None]
    ready = [(n, moment) for n, moment in ready if moment < until]
    if not ready:
        return None
    filled = sum(_length_ns(order[n]) for n, _ in ready)
    if not is_filling:
        backwards = [op for op in order[at:] if op.kind is not ActionKind.FORWARD][: len(ready)]
        filled += sum(map(_length_ns, backwards))
    return min(moment for _, moment in ready), filled


def _length_ns(op: Op) -> int:
    return op.end_ns - op.start_ns


def _merged(
    parts: Sequence[GapPart], rank: int, held: Op | None, phase: Cause, lacks: tuple[int, int] | None
) -> list[Idle]:
    """Idle intervals of the parts of one gap; neighbours of one cause are one, with the message that took longest."""
    merged: list[Idle] = []
    cause, start, longest_ns, transfer = phase, parts[0].start_ns, 0, None
    end = start
    for part in _cut(parts, lacks):
        part_cause = part.kind or phase
        if part_cause is not cause:
            if end > start:
                merged.append(Idle(rank, start, end, cause, held, transfer))
            cause, start, longest_ns, transfer = part_cause, part.start_ns, 0, None
        end = part.end_ns
        if part.transfer is not None and end - part.start_ns > longest_ns:
            longest_ns, transfer = end - part.start_ns, part.transfer
    merged.append(Idle(rank, start, end, cause, held, transfer))
    return merged


def _cut(parts: Sequence[GapPart], lacks: tuple[int, int] | None) -> Iterator[GapPart]:
    """The parts of a gap; while room for forwards lacked, from a moment on and for some time, as memory's."""
    if lacks is None:
        yield from parts
        return
    since = max(lacks[0], parts[0].start_ns)
    edges = since, since + lacks[1]
    for part in parts:
        cuts = [part.start_ns, *(edge for edge in edges if part.start_ns < edge < part.end_ns), part.end_ns]
        for start, end in pairwise(cuts):
            is_memory = edges[0] <= start and end <= edges[1]
            yield part._replace(start_ns=start, end_ns=end, kind=Cause.MEMORY if is_memory else part.kind)
