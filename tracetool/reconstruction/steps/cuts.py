"""Where one step ends and the next begins in a trace that marks no steps.

Steps of a trace that marks nothing: the messages of a pipeline repeat, and between two steps it is empty.

On a rank, the messages that went downstream and have not come back as gradients are in flight; whatever the
schedule, none is when a step ends. On the first stage none is only then (a warm-up keeps the count above zero);
ranks further down run empty more often (the last one after every microbatch), so their cuts are those next to the
cuts of their upstream neighbour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.messages import read_p2p

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture import Account, Evidence
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


class Cut(NamedTuple):
    """Steps as spans.

    Attributes:
        spans: Per step and rank, where it begins and ends.
        evidence: How that is known.
    """

    spans: dict[int, dict[int, tuple[int, int]]]
    evidence: Evidence


_OPTIMIZER_KERNELS = (
    "Adam|Sgd|SGD|Optimizer|ApplyMomentum|Adagrad|addcdiv|LAMBStage|ApplyLamb|Muon|PointwiseOpScalarListFunctor"
)
"""Names of kernels that optimizers alone run, as a DuckDB regular expression; the last is addcdiv of many tensors."""

_ANNOTATED_SQL = """
SELECT rank, start_ns + duration_ns AS end_ns FROM events
WHERE list_contains($ranks, rank) AND category = 'annotation' AND starts_with(name, 'Optimizer.step')
ORDER BY rank, end_ns
"""

# On the host's time where launches were recorded, as steps are there.
_KERNELS_SQL = """
WITH chosen AS (
    SELECT rank, correlation, start_ns + duration_ns AS end_ns FROM events
    WHERE list_contains($ranks, rank) AND category = 'kernel' AND (
        regexp_matches(name, $names) OR coalesce(regexp_matches(kernel_class, $names), false)
    )
),
timed AS (
    SELECT k.rank, coalesce(l.start_ns + l.duration_ns, k.end_ns) AS end_ns
    FROM chosen AS k
    LEFT JOIN events AS l ON l.rank = k.rank AND l.correlation = k.correlation AND l.category = 'launch'
),
messages AS (
    SELECT rank, posted_ns, row_number() OVER (PARTITION BY rank ORDER BY posted_ns) AS number
    FROM comms WHERE list_contains($ranks, rank) AND operation IN ('send', 'recv')
)
SELECT t.rank, max(t.end_ns) + 1 AS end_ns
FROM timed AS t ASOF LEFT JOIN messages AS m ON m.rank = t.rank AND m.posted_ns <= t.end_ns
GROUP BY t.rank, m.number ORDER BY t.rank, end_ns
"""


def cuts_of(run: Run, ranks: Sequence[int], account: Account, clocks: Clocks) -> Cut:
    """Steps cut where the optimizer ends, else where the pipeline has run empty, else all of it as one.

    Args:
        run: The Run, which marks no steps.
        ranks: The pipeline's ranks in stage order.
        account: Told which of them it was.
        clocks: How the ranks' clocks differ.
    """
    bounds = {
        rank: (first, last)
        for rank, first, last in run.rows(
            "SELECT rank, min(least(first, posted)), max(greatest(last, posted)) + 1 FROM ("
            "SELECT rank, start_ns AS first, start_ns + duration_ns AS last, start_ns AS posted FROM events UNION ALL "
            "SELECT rank, posted_ns, coalesce(end_ns, posted_ns), posted_ns FROM comms"
            ") WHERE list_contains(?, rank) GROUP BY rank",
            [list(ranks)],
        )
    }
    chosen: dict[str, object] = {"ranks": list(ranks)}
    ways: tuple[tuple[str, dict[str, object], Evidence, str], ...] = (
        (_ANNOTATED_SQL, chosen, "label", "where the optimizer ends"),
        (_KERNELS_SQL, chosen | {"names": _OPTIMIZER_KERNELS}, "kernels", "after the optimizer's last kernel"),
    )
    for sql, parameters, evidence, where in ways:
        ends: dict[int, list[int]] = {rank: [] for rank in ranks}
        for rank, rows in groupby(run.rows(sql, parameters), key=itemgetter(0)):
            ends[rank] = [end for _, end in rows]
        if all(ends.values()):
            account.note(NoticeCode.STEPS_CUT, f"the trace marks no steps: they are cut {where}, and numbered from 0")
            return Cut(_between(_aligned(ends, clocks), bounds, _last_message(run, ranks)), evidence)
    drained = drains(run, read_p2p(run), ranks, clocks)
    if drained is not None:
        account.note(
            NoticeCode.STEPS_CUT,
            "the trace marks neither steps nor the optimizer: they are cut where the pipeline has run empty "
            "and its messages begin to repeat, and numbered from 0",
        )
        return Cut(_between(drained, bounds, _last_message(run, ranks)), "messages")
    account.note(
        NoticeCode.STEPS_CUT,
        "the trace marks neither steps nor the optimizer: all of it is taken as one step, number 0",
    )
    return Cut({0: {rank: bounds[rank] for rank in ranks if rank in bounds}}, "assumed")


def _last_message(run: Run, ranks: Sequence[int]) -> dict[int, int]:
    sql = (
        "SELECT rank, max(posted_ns) FROM comms "
        "WHERE operation IN ('send', 'recv') AND list_contains(?, rank) GROUP BY rank"
    )
    return dict(run.rows(sql, [list(ranks)]))


def _aligned(ends: Mapping[int, Sequence[int]], clocks: Clocks) -> dict[int, list[int | None]]:
    """Cuts by step: captures may begin and end in different steps, so those near each other in time belong together."""
    longest = max(ends, key=lambda rank: len(ends[rank]))
    reference = [clocks.aligned_ns(longest, cut) for cut in ends[longest]]
    aligned: dict[int, list[int | None]] = {}
    for rank, cuts in ends.items():
        shifts = range(len(reference) - len(cuts) + 1)
        times = [clocks.aligned_ns(rank, cut) for cut in cuts]
        shift = min(shifts, key=lambda n: median(abs(t - reference[i + n]) for i, t in enumerate(times)))
        behind = len(reference) - len(cuts) - shift
        aligned[rank] = [None] * shift + list(cuts) + [None] * behind
    return aligned


def _between(
    cuts: Mapping[int, Sequence[int | None]],
    bounds: Mapping[int, tuple[int, int]],
    last_message: Mapping[int, int],
) -> dict[int, dict[int, tuple[int, int]]]:
    """Spans between cuts, the pieces before the first and (if it holds messages) behind the last one included."""
    spans: dict[int, dict[int, tuple[int, int]]] = {}
    for rank, of_rank in cuts.items():
        first, last = bounds[rank]
        inner = [first if cut is None else min(cut, last) for cut in of_rank]
        edges = [first, *inner]
        if of_rank and of_rank[-1] is not None and last_message.get(rank, -1) >= edges[-1]:
            edges.append(last)
        for number, (start, end) in enumerate(pairwise(edges)):
            if start < end:
                spans.setdefault(number, {})[rank] = (start, end)
    return dict(sorted(spans.items()))
