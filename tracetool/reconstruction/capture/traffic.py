"""What process groups across pipelines are for, from when their collectives run.

Seen from a first stage, whose last backward comes after all its messages: a tensor-parallel group works inside every
forward and backward, so its collectives lie between those messages; a data-parallel group reduces gradients once the
last backward has begun, so its collectives come before the first message of a step or after the last one. (Fully
sharded data parallelism gathers parameters inside every action: it looks like the former.)
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.process_groups import Dimension, ProcessGroup
    from tracetool.store.run import Run

_MOST_LISTED = 30


class Purpose(NamedTuple):
    """What a group across pipelines is for.

    Attributes:
        ranks: Its members, of one stage.
        dimension: tp or dp.
        confidence: Share of the first stages' ranks whose collectives say so.
        detail: What that was.
    """

    ranks: tuple[int, ...]
    dimension: Dimension
    confidence: float
    detail: str


# ``place``: between which two messages of its rank and step an operation lies; the members of a batch are one message.
_SQL = """
WITH placed AS (
    SELECT c.rank, c.operation, c.peer, c.batch, c.position, c.posted_ns, c.group_ranks, coalesce(s.step, -1) AS step
    FROM comms AS c ASOF LEFT JOIN steps AS s ON s.rank = c.rank AND s.start_ns <= c.posted_ns
    WHERE list_contains($heads, c.rank)
),
sends AS (
    SELECT rank, step, max(messages) AS messages FROM (
        SELECT rank, step, peer, count(*) AS messages FROM placed WHERE operation = 'send' GROUP BY ALL
    ) GROUP BY ALL
),
units AS (
    SELECT rank, step, min(posted_ns) AS posted_ns
    FROM placed WHERE operation IN ('send', 'recv') GROUP BY rank, step, coalesce(batch, -1 - position)
),
places AS (
    SELECT rank, step, posted_ns, row_number() OVER (PARTITION BY rank, step ORDER BY posted_ns) AS place,
           count(*) OVER (PARTITION BY rank, step) AS last
    FROM units
)
SELECT c.rank, c.group_ranks, (
           count(DISTINCT (c.step, p.place)) FILTER (p.place < p.last)
       ) AS used, (SELECT sum(messages - 1) FROM sends WHERE sends.rank = c.rank) AS microbatches
FROM placed AS c
ASOF LEFT JOIN places AS p ON p.rank = c.rank AND p.step = c.step AND p.posted_ns <= c.posted_ns
WHERE c.operation NOT IN ('send', 'recv', 'exchange', 'barrier') AND len(c.group_ranks) > 1
GROUP BY c.rank, c.group_ranks
ORDER BY ALL
"""


def purposes(run: Run, pipelines: Sequence[PipelineGroup], groups: Sequence[ProcessGroup]) -> list[Purpose]:
    """What each group is for whose members hold the same stage of different pipelines.

    Groups of the same shape have one purpose on all stages.

    Args:
        run: The Run.
        pipelines: Those that were found.
        groups: All process groups, with full lists of ranks.
    """
    if len(pipelines) < 2:
        return []
    stage = {rank: place for pipeline in pipelines for place, rank in enumerate(pipeline.ranks)}
    across = {g.ranks for g in groups if len(g.ranks) > 1 and len({stage.get(r, -1 - r) for r in g.ranks}) == 1}
    whole = {ranks[:_MOST_LISTED]: ranks for ranks in across}
    by_shape: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for _, listed, used, microbatches in run.rows(_SQL, {"heads": [p.ranks[0] for p in pipelines]}):
        ranks = whole.get(tuple(listed[:_MOST_LISTED]))
        if ranks is not None and microbatches:
            by_shape[_shape(ranks)].append((used, int(microbatches)))
    of_groups = []
    for shape, rows in by_shape.items():
        verdicts = [_verdict(*row) for row in rows]
        dimension: Dimension = "tp" if verdicts.count("tp") > verdicts.count("dp") else "dp"
        agreeing = verdicts.count(dimension) / len(verdicts)
        if agreeing <= 0.5:
            continue
        used, microbatches = (sum(column) for column in zip(*rows, strict=True))
        detail = f"collectives at {used:,} places between the messages of {microbatches:,} microbatches"
        of_groups += [Purpose(ranks, dimension, agreeing, detail) for ranks in sorted(across) if _shape(ranks) == shape]
    return of_groups


def _shape(ranks: tuple[int, ...]) -> tuple[int, int]:
    return ranks[1] - ranks[0], len(ranks)


def _verdict(used: int, microbatches: int) -> Dimension | None:
    """Inside every microbatch but the first one (which may precede all messages), or in far fewer places."""
    if used >= microbatches:
        return "tp"
    return "dp" if 2 * used <= microbatches else None
