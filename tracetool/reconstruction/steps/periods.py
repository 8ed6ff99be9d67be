"""Steps of a trace that marks nothing: the messages of a pipeline repeat, and between two steps it is empty.

On a rank, the messages that went downstream and have not come back as gradients are in flight; whatever the
schedule, none is when a step ends. On the first stage none is only then (a warm-up keeps the count above zero);
ranks further down run empty more often (the last one after every microbatch), so their cuts are those next to the
cuts of their upstream neighbour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.store.run import Run

_NEVER = 2**63 - 1
"""A cut behind all that a rank recorded."""

_LEAST_ALIKE = 0.5
"""At least this share of the pieces between two cuts must hold the same messages, for them to be steps."""


def drains(
    run: Run, p2p: Mapping[int, Sequence[P2POp]], ranks: Sequence[int], clocks: Clocks
) -> dict[int, list[int | None]] | None:
    """Per rank, the times at which steps are cut; None if the messages do not repeat.

    Args:
        run: The Run.
        p2p: Sends and receives per rank in order of posting.
        ranks: The pipeline's ranks in stage order.
        clocks: How the ranks' clocks differ.
    """
    if len(ranks) < 2 or any(len(p2p.get(rank, ())) < 2 for rank in ranks):
        return None
    head = p2p[ranks[0]]
    places = _empty(head, ranks[1], sending=True)
    if not _repeats(head, places):
        return None
    cuts = {ranks[0]: places}
    for upstream, rank in pairwise(ranks):
        candidates = _empty(p2p[rank], upstream, sending=False)
        if not candidates:
            return None
        cuts[rank] = _beside(p2p[rank], candidates, p2p[upstream], cuts[upstream], clocks)
    if any(len(set(of_rank)) != len(places) for of_rank in cuts.values()):
        return None
    times: dict[int, list[int | None]] = {
        rank: [p2p[rank][place].posted_ns if place < len(p2p[rank]) else _NEVER for place in cuts[rank]]
        for rank in ranks
    }
    times[ranks[0]] = _before_forwards(run, ranks[0], head, places)
    return times


def _empty(ops: Sequence[P2POp], peer: int, *, sending: bool) -> list[int]:
    """Where nothing is in flight between a rank and a neighbour: the operations that come next.

    Args:
        ops: The rank's, in order of posting.
        peer: Its neighbour.
        sending: Whether the rank is the upstream one of the two.
    """
    levels = [0, *accumulate((1 if op.is_send == sending else -1) if op.peer == peer else 0 for op in ops)]
    lowest = min(levels)
    # A batch is posted as one: between its members nothing ends.
    inner = [
        place
        for place in range(1, len(ops))
        if levels[place] == lowest
        and ops[place].peer == peer
        and (ops[place].batch is None or ops[place].batch != ops[place - 1].batch)
    ]
    if sending:
        return inner
    # A rank may have nothing of the step in which the capture begins, or ends.
    return [0] * (levels[0] == lowest) + inner + [len(ops)] * (levels[-1] == lowest)


def _repeats(ops: Sequence[P2POp], places: Sequence[int]) -> bool:
    """Whether most pieces hold the same messages; those at the ends of the capture may be cut."""
    if not places:
        return False
    edges = [0, *places, len(ops)]
    pieces = [tuple((op.peer, op.is_send, op.payload_bytes) for op in ops[a:b]) for a, b in pairwise(edges)]
    usual, count = max(Counter(pieces).items(), key=lambda item: (item[1], len(item[0])))
    first, last, inner = pieces[0], pieces[-1], pieces[1:-1]
    cut = (first != usual and usual[-len(first) :] == first) + (last != usual and usual[: len(last)] == last)
    return len(usual) > 2 and count + cut > 1 and count >= _LEAST_ALIKE * (len(inner) or 1)


def _beside(
    ops: Sequence[P2POp], candidates: Sequence[int], others: Sequence[P2POp], cuts: Sequence[int], clocks: Clocks
) -> list[int]:
    """The candidates that cut a rank's messages where its upstream neighbour's are cut."""
    upstream = others[0].rank
    mine = [n for n, op in enumerate(ops) if op.peer == upstream]
    theirs = [n for n, op in enumerate(others) if op.peer == ops[0].rank]
    counts = [bisect_left(theirs, cut) for cut in cuts]
    mine_begin = clocks.aligned_ns(ops[0].rank, ops[0].posted_ns)
    if len(mine) == len(theirs):
        # Each message has two sides, so as many come before a cut on either.
        places = [mine[count] if count < len(mine) else len(ops) for count in counts]
        if set(places) <= set(candidates):
            return places
    # A capture that begins or ends inside a step lacks one side of some messages; the last one before a cut ends on
    # both sides at once.
    ends = [
        (place, _end(ops[mine[bisect_left(mine, place) - 1]], clocks) if place else mine_begin) for place in candidates
    ]
    anchors = [_end(others[theirs[count - 1]], clocks) if count else mine_begin for count in counts]
    return [min(ends, key=lambda end: abs(end[1] - anchor))[0] for anchor in anchors]


def _end(op: P2POp, clocks: Clocks) -> int:
    return clocks.aligned_ns(op.rank, op.posted_ns if op.end_ns is None else op.end_ns)


def _before_forwards(run: Run, rank: int, ops: Sequence[P2POp], places: Sequence[int]) -> list[int | None]:
    """On the first stage a forward precedes the first message: where it begins.

    Autograd counts the nodes that ops make. After the last backward the count stands still until a forward makes
    the next node, so the forward begins with the last op of the lowest number; without a record of the host, at the
    end of the longest pause between two kernels.
    """
    nodes: list[int] = []
    starts: list[int] = []
    numbers: list[int] = []
    for is_node, start, end, number in run.rows(
        "SELECT starts_with(name, 'autograd::engine::evaluate_function'), start_ns, start_ns + duration_ns, "
        "sequence_number FROM events "
        "WHERE rank = ? AND category = 'op' AND sequence_number IS NOT NULL ORDER BY start_ns",
        [rank],
    ):
        if is_node:
            nodes.append(end)
        else:
            starts.append(start)
            numbers.append(number)
    nodes.sort()
    pauses = _Pauses(run, rank) if not nodes else None
    times: list[int | None] = []
    for place in places:
        first, last = ops[place - 1].posted_ns, ops[place].posted_ns
        if pauses is not None:
            times.append(pauses.longest_until(first, last))
            continue
        backward = max(first, nodes[bisect_left(nodes, last) - 1])
        inside = range(bisect_left(starts, backward), bisect_left(starts, last))
        lowest = min((numbers[n] for n in inside), default=None)
        times.append(max((starts[n] for n in inside if numbers[n] == lowest), default=last))
    return times


class _Pauses:
    """Pauses between the kernels of a rank."""

    def __init__(self, run: Run, rank: int) -> None:
        sql = "SELECT start_ns, start_ns + duration_ns FROM events WHERE rank = ? AND category = 'kernel' ORDER BY ALL"
        self._kernels = run.rows(sql, [rank])

    def longest_until(self, first: int, last: int) -> int:
        """The end of the longest one between two times; the later time if there is none."""
        inside = self._kernels[bisect_left(self._kernels, (first, 0)) : bisect_left(self._kernels, (last, 0))]
        return max(((b[0] - a[1], b[0]) for a, b in pairwise(inside)), default=(0, last))[1]
