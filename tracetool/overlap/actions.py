"""What a way to overlap changes of a pipeline's actions: every collective in them with the product beside it."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.costs.rescaled import with_changed_actions
from tracetool.errors import ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.notice import Notice, NoticeCode
from tracetool.model.timeline import Op
from tracetool.overlap.answer import NONE, variant_of
from tracetool.overlap.calibration import calibrate
from tracetool.overlap.measured import Timing
from tracetool.overlap.prediction import call_time
from tracetool.overlap.recording import collective_kind, product_shape, read_recording
from tracetool.overlap.variants import ELEMENT_BYTES, LayerShape
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.overlap.machine import Machine
    from tracetool.reconstruction import Reconstruction
    from tracetool.store.run import Run

_IN_ACTIONS = """
WITH products AS (
    SELECT k.rank, k.start_ns, o.args
    FROM events k JOIN events o ON o.rank = k.rank AND o.external_id = k.external_id
    WHERE k.category = 'kernel' AND o.category = 'op' AND o.name IN ('aten::mm', 'aten::addmm')
)
SELECT
    c.stage, c.kind, c.operation, c.group_size, c.payload_bytes,
    CASE WHEN c.fed_by IS NOT NULL THEN b.args END, CASE WHEN c.eaten_by IS NOT NULL THEN a.args END, count(*)
FROM layer_overlaps c
ASOF LEFT JOIN products b ON b.rank = c.rank AND b.start_ns < c.start_ns
ASOF LEFT JOIN products a ON a.rank = c.rank AND a.start_ns >= c.start_ns + c.duration_ns
WHERE c.kind IN ('F', 'B', 'I', 'W') AND NOT c.is_fused
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
            hint="record with record_shapes=True and name the traces instead of a Run; CUDA graphs and compiled kernels "
            "hide them",
        )
    machine = _machine(run, {pair.ranks for of_action in pairs.values() for pair in of_action})
    actions = Counter((op.stage, op.kind) for op in found.observed.ops if isinstance(op, Op))
    changes: dict[tuple[int, ActionKind], float] = defaultdict(float)
    untouched = left
    for place, of_action in pairs.items():
        for pair, count in of_action.items():
            change = _change_ns(pair, way, machine)
            if change is None:
                untouched += count
            else:
                changes[place] += change * count / max(1, actions[place])
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
    left = f"; {format_count(untouched, 'collective')} with no product to run beside left alone" if untouched else ""
    return Notice(NoticeCode.OVERLAP_CHANGED, f"layers overlap by {way}: an action takes {told}{left}")


def _pairs(run: Run) -> tuple[dict[tuple[int, ActionKind], Counter[_Pair]], int]:
    """Per stage and kind of action, what stands beside each other; and how many collectives stand alone."""
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
    as_is, changed = (call_time(variant_of(each, pair.side), pair.shape, machine, _IN_A_ROW) for each in (NONE, way))
    return None if as_is is None or changed is None else changed.call_ns - as_is.call_ns
