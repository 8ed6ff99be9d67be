"""Which collectives stand beside which products inside the actions of a pipeline."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.overlap.hosts import ONE_OF_EACH_KIND
from tracetool.overlap.recording import collective_kind, product_shape
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape

if TYPE_CHECKING:
    from tracetool.store.run import Run

_IN_ACTIONS = f"""
WITH chosen AS ({ONE_OF_EACH_KIND}),
kernels AS (
    SELECT
        a.rank, a.stage, a.kind, e.event, e.start_ns, e.stream, e.external_id,
        regexp_matches(lower(e.name), '^(nccl|rccl|mscclpp|hcom_)') AS communicates
    FROM kernel_actions a JOIN chosen USING (rank, stage, kind, microbatch)
    JOIN events e ON e.rank = a.rank AND e.event = a.event AND e.category = 'kernel'
),
around AS MATERIALIZED (
    SELECT
        *,
        last_value(CASE WHEN NOT communicates THEN external_id END IGNORE NULLS) OVER (
            PARTITION BY rank, stage, kind ORDER BY start_ns, event
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before_id,
        first_value(CASE WHEN NOT communicates THEN external_id END IGNORE NULLS) OVER (
            PARTITION BY rank, stage, kind ORDER BY start_ns, event
            ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING
        ) AS behind_id
    FROM kernels
),
products AS MATERIALIZED (
    SELECT o.rank, o.external_id, json_extract_string(o.args, '$."Input Dims"') AS dims
    FROM events o
    JOIN (
        SELECT rank, before_id AS external_id FROM around WHERE communicates
        UNION SELECT rank, behind_id FROM around WHERE communicates
    ) USING (rank, external_id)
    WHERE o.category = 'op' AND o.name IN ('aten::mm', 'aten::addmm')
)
SELECT a.stage, a.kind, c.operation, c.group_ranks, c.payload_bytes, b.dims, f.dims, count(*)
FROM around a
JOIN comms c ON c.rank = a.rank AND c.start_ns = a.start_ns AND c.stream = a.stream
LEFT JOIN products b ON b.rank = a.rank AND b.external_id = a.before_id
LEFT JOIN products f ON f.rank = a.rank AND f.external_id = a.behind_id
WHERE a.communicates AND c.operation NOT IN ('send', 'recv', 'barrier')
GROUP BY ALL
"""
_SIDES = {"gather": "ag", "scatter": "rs", "reduce": "ar"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Collectives of one kind and size beside products of one shape."""

    side: str
    shape: LayerShape
    ranks: int


class ActionPairs(NamedTuple):
    """What stands beside each other in actions.

    Attributes:
        pairs: Of one action of each stage and kind.
        left: How many collectives stand alone.
        groups: A group of ranks for each pair: what holds of one holds of all that run it.
    """

    pairs: dict[tuple[int, ActionKind], Counter[Pair]]
    left: int
    groups: dict[Pair, tuple[int, ...]]


def read_pairs(run: Run) -> ActionPairs:
    """What stands beside each other inside the actions of a Run."""
    pairs: dict[tuple[int, ActionKind], Counter[Pair]] = defaultdict(Counter)
    groups: dict[Pair, tuple[int, ...]] = {}
    left = 0
    for stage, kind, operation, group, payload, fed, eaten, count in run.rows(_IN_ACTIONS):
        pair = _pair(operation, len(group), payload, fed, eaten)
        if pair is None:
            left += count
        else:
            pairs[stage, ActionKind(kind)][pair] += count
            groups[pair] = min(groups.get(pair, tuple(group)), tuple(group))
    return ActionPairs(pairs, left, groups)


def _pair(operation: str, size: int, payload: int | None, fed: str | None, eaten: str | None) -> Pair | None:
    kind = collective_kind(operation)
    shape = None if kind is None else product_shape(eaten if kind == "gather" else fed)
    if kind is None or shape is None:
        return None
    width, other = (shape.depth, shape.columns) if kind == "gather" else (shape.columns, shape.depth)
    if shape.rows * width * ELEMENT_BYTES != payload or shape.rows % size:
        return None
    return Pair(_SIDES[kind], LayerShape(shape.rows, width, other), size)
