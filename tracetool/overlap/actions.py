"""What a way to overlap changes of a pipeline's actions: every collective in them with the product beside it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.costs.rescaled import with_changed_actions
from tracetool.errors import Option, ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.notice import Notice, NoticeCode
from tracetool.overlap.answer import ASYNC_TP, NONE, variant_of
from tracetool.overlap.calibration import calibrate
from tracetool.overlap.measured import Timing
from tracetool.overlap.prediction import call_time
from tracetool.overlap.recording import collective_kind, product_shape, read_recording
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape, refusal
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.overlap.machine import Machine
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

_IN_ACTIONS = """
WITH chosen AS (
    -- One action of each kind: the others have the same kernels.
    SELECT rank, stage, kind, quantile_disc(microbatch, 0.5) AS microbatch
    FROM kernel_actions WHERE kind IN ('F', 'B', 'I', 'W') AND microbatch IS NOT NULL GROUP BY ALL
),
kernels AS (
    SELECT
        a.rank, a.stage, a.kind, e.event, e.start_ns, e.stream, e.external_id,
        regexp_matches(lower(e.name), '^(nccl|rccl|mscclpp|hcom_)') AS communicates
    FROM kernel_actions a JOIN chosen USING (rank, stage, kind, microbatch)
    JOIN events e ON e.rank = a.rank AND e.event = a.event AND e.category = 'kernel'
),
around AS (
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
products AS (
    SELECT rank, external_id, json_extract_string(args, '$."Input Dims"') AS dims
    FROM events WHERE category = 'op' AND name IN ('aten::mm', 'aten::addmm')
)
SELECT a.stage, a.kind, c.operation, len(c.group_ranks), c.payload_bytes, b.dims, f.dims, count(*)
FROM around a
JOIN comms c ON c.rank = a.rank AND c.start_ns = a.start_ns AND c.stream = a.stream
LEFT JOIN products b ON b.rank = a.rank AND b.external_id = a.before_id
LEFT JOIN products f ON f.rank = a.rank AND f.external_id = a.behind_id
WHERE a.communicates AND c.operation NOT IN ('send', 'recv', 'barrier')
GROUP BY ALL
"""
_SIDES = {"gather": "ag", "scatter": "rs", "reduce": "ar"}
_IN_A_ROW = Timing(calls=8)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Collectives of one kind and size beside products of one shape."""

    side: str
    shape: LayerShape
    ranks: int


def with_overlap(found: Reconstruction, run: Run, way: str) -> Reconstruction:
    """What was reconstructed, with layers that overlap in another way, and a note on what that changes.

    Args:
        found: The pipeline.
        run: Its Run, with the shapes of products.
        way: Such as slice:4; none changes nothing.

    Raises:
        ReconstructError: If no action holds a collective with a matrix product beside it that could run so.
    """
    if way == NONE:
        return found
    pairs, left = _pairs(run)
    if not pairs:
        raise ReconstructError(
            "no action holds a collective beside a matrix product of its bytes.",
            hint="record with record_shapes=True and name the traces, not a Run; CUDA graphs and compiled kernels hide "
            "them",
        )
    machine = _machine(run, {pair.ranks for of_action in pairs.values() for pair in of_action})
    if way == ASYNC_TP and not machine.gather.is_fast:
        raise ReconstructError(
            "the collectives of these actions did not run over NVLink, and copy engines were timed over that alone.",
            hint=f"slices and peer-to-peer parts go over any link: {Option.OVERLAP('slice:4')}",
        )
    changes: dict[tuple[int, ActionKind], float] = defaultdict(float)
    untouched = left
    for place, of_action in pairs.items():
        for pair, count in of_action.items():
            change = _change_ns(pair, way, machine)
            if change is None:
                untouched += count
            else:
                changes[place] += change * count
    whole = {place: round(change) for place, change in changes.items()}
    if not whole:
        raise ReconstructError(
            f"{way} is no way for the collectives of these actions.",
            hint="all-reduces are sliced (slice:4); peer-to-peer parts and async-tp need sequence parallelism",
        )
    pipeline = with_changed_actions(found.pipeline, whole)
    return replace(found, pipeline=pipeline, notes=(*found.notes, _note(way, whole, untouched)))


def _note(way: str, changes: Mapping[tuple[int, ActionKind], int], untouched: int) -> Notice:
    told = ", ".join(
        f"{stage}{kind.value} {'+' if change > 0 else '-'}{format_duration(abs(change))}"
        for (stage, kind), change in sorted(changes.items(), key=lambda item: (item[0][0], item[0][1].value))
    )
    left = (
        f"; {format_count(untouched, 'collective')} an action with no product to run beside left alone"
        if untouched
        else ""
    )
    return Notice(NoticeCode.OVERLAP_CHANGED, f"layers overlap by {way}: an action takes {told}{left}")


def _pairs(run: Run) -> tuple[dict[tuple[int, ActionKind], Counter[_Pair]], int]:
    """Of one action of each stage and kind, what stands beside each other; and how many collectives stand alone."""
    pairs: dict[tuple[int, ActionKind], Counter[_Pair]] = defaultdict(Counter)
    left = 0
    for stage, kind, operation, size, payload, fed, eaten, count in run.rows(_IN_ACTIONS):
        pair = _pair(operation, size, payload, fed, eaten)
        if pair is None:
            left += count
        else:
            pairs[stage, ActionKind(kind)][pair] += count
    return pairs, left


def _pair(operation: str, size: int, payload: int | None, fed: str | None, eaten: str | None) -> _Pair | None:
    kind = collective_kind(operation)
    shape = None if kind is None else product_shape(eaten if kind == "gather" else fed)
    if kind is None or shape is None:
        return None
    width, other = (shape.depth, shape.columns) if kind == "gather" else (shape.columns, shape.depth)
    if shape.rows * width * ELEMENT_BYTES != payload or shape.rows % size:
        return None
    return _Pair(_SIDES[kind], LayerShape(shape.rows, width, other), size)


def _machine(run: Run, sizes: set[int]) -> Machine:
    """The machine from the Run alone, by collectives of groups of the size that the pairs are of."""
    recording = read_recording(run)
    collectives = tuple(one for one in recording.collectives if one.ranks in sizes)
    return calibrate([replace(recording, collectives=collectives)], with_exchanges=True)


def _change_ns(pair: _Pair, way: str, machine: Machine) -> float | None:
    """What a way takes more than the pair as it is; None if it is none for such a pair."""
    variants = [variant_of(each, pair.side) for each in (NONE, way)]
    if any(refusal(variant, pair.shape, pair.ranks) is not None for variant in variants):
        return None
    as_is, changed = (call_time(variant, pair.shape, machine, _IN_A_ROW) for variant in variants)
    return changed.call_ns - as_is.call_ns
