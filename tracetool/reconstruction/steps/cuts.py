"""Where one step ends and the next begins in a trace that marks no steps."""

from __future__ import annotations

from itertools import groupby, pairwise
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.messages import read_p2p
from tracetool.reconstruction.steps.periods import drains

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.capture.account import Account, Evidence
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.store.run import Run


class Cut(NamedTuple):
    """Steps as spans.

    Attributes:
        spans: Per step and rank, where it begins and ends.
        evidence: How that is known.
    """

    spans: dict[int, dict[int, tuple[int, int]]]
    evidence: Evidence


_OPTIMIZER_KERNELS = "Adam|Sgd|SGD|Optimizer|ApplyMomentum|Adagrad|addcdiv|LAMBStage|ApplyLamb|Muon"
"""Names of kernels that optimizers alone run, as a DuckDB regular expression."""

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
