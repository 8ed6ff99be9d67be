"""The parts of a pipeline that may have changed, and pipelines with some parts of one side and some of the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tracetool.model.pipeline import Pipeline, RankProfile, StageProfile

T = TypeVar("T")
PartKind = Literal["compute", "link", "tail", "memory", "order", "everything"]


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A part of a pipeline that replay takes from one side or the other.

    Attributes:
        kind: ``compute`` (durations of a stage and kind), ``link`` (messages that leave a stage in one direction),
            ``tail`` (after a rank's last compute), ``memory`` (of a rank: static, or of its stage: what actions
            hold), ``order`` (order, p2p mode, microbatches), or ``everything`` where sides have no parts in common.
        stage: Stage of compute, link and a stage's memory, else -1.
        action: Kind of action or message, else empty.
        rank: Pipeline rank of tail and static memory, else -1.
    """

    kind: PartKind
    stage: int = -1
    action: str = ""
    rank: int = -1


ORDER = Part("order")
EVERYTHING = Part("everything")


def parts_of(base: Pipeline, new: Pipeline) -> list[Part]:
    """The parts in which two pipelines differ, in a fixed order; what is the same in both changes nothing."""
    if base.observed.shape.ranks != new.observed.shape.ranks or len(base.stages) != len(new.stages):
        return [EVERYTHING]
    parts = [ORDER] if _order(base) != _order(new) or _own_kinds(base, new) else []
    for before, after in zip(base.stages, new.stages, strict=True):
        parts += [
            Part("compute", before.stage, kind.value)
            for kind in sorted(before.costs.keys() & after.costs.keys())
            if [c.duration_ns for c in before.costs[kind]] != [c.duration_ns for c in after.costs[kind]]
        ]
        parts += [
            Part("link", before.stage, kind.value)
            for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
            if _message(before, kind) != _message(after, kind)
        ]
        if _held(before) != _held(after):
            parts.append(Part("memory", before.stage))
    for place, (rank, other) in enumerate(zip(base.ranks, new.ranks, strict=True)):
        if [(p.kind, p.duration_ns) for p in rank.tail] != [(p.kind, p.duration_ns) for p in other.tail]:
            parts.append(Part("tail", rank=place))
        if _static(rank) != _static(other):
            parts.append(Part("memory", rank=place))
    return parts


def holds_memory(base: Pipeline, new: Pipeline, part: Part) -> bool:
    """Whether a part may change what ranks hold: messages do by their size, for it is received into buffers."""
    if part.kind == "link":
        sides = (base.stages[part.stage], new.stages[part.stage])
        return len({(side.forward_payload_bytes, side.backward_payload_bytes) for side in sides}) > 1
    return part.kind in {"memory", "order", "everything"}


def mixed(base: Pipeline, new: Pipeline, taken: AbstractSet[Part]) -> Pipeline:
    """The base with some parts as the new side has them."""
    if EVERYTHING in taken:
        return new
    source = new if ORDER in taken else base
    stages = [
        _stage(before, after, source.stages[before.stage], taken)
        for before, after in zip(base.stages, new.stages, strict=True)
    ]
    ranks = [
        _rank(place, before, after, taken)
        for place, (before, after) in enumerate(zip(base.ranks, new.ranks, strict=True))
    ]
    return replace(source, stages=tuple(stages), ranks=tuple(ranks))


def _stage(before: StageProfile, after: StageProfile, ordered: StageProfile, taken: AbstractSet[Part]) -> StageProfile:
    memory = after if Part("memory", before.stage) in taken else before
    costs = {}
    for kind in ordered.costs:
        if kind not in before.costs or kind not in after.costs:
            costs[kind] = ordered.costs[kind]
            continue
        times = after if Part("compute", before.stage, kind.value) in taken else before
        # One side may have more microbatches: what it alone has goes with the order.
        most = len(ordered.costs[kind])
        durations = _to_length([c.duration_ns for c in times.costs[kind]], most)
        held = _to_length([(c.held_bytes, c.peak_bytes) for c in memory.costs[kind]], most)
        costs[kind] = tuple(ActionCost(ns, *sizes) for ns, sizes in zip(durations, held, strict=True))
    forward, backward = (after if Part("link", before.stage, kind) in taken else before for kind in "FB")
    return replace(
        before,
        costs=costs,
        forward_payload_bytes=forward.forward_payload_bytes,
        forward_transfer_ns=forward.forward_transfer_ns,
        backward_payload_bytes=backward.backward_payload_bytes,
        backward_transfer_ns=backward.backward_transfer_ns,
    )


def _to_length(values: list[T], length: int) -> list[T]:
    """So many values: the middle ones again where there are fewer."""
    return values[:length] + [values[len(values) // 2]] * (length - len(values))


def _rank(place: int, before: RankProfile, after: RankProfile, taken: AbstractSet[Part]) -> RankProfile:
    memory = after if Part("memory", rank=place) in taken else before
    return replace(
        before,
        tail=after.tail if Part("tail", rank=place) in taken else before.tail,
        static_bytes=memory.static_bytes,
        tail_peak_bytes=memory.tail_peak_bytes,
        receive_buffer_bytes=memory.receive_buffer_bytes,
    )


def _order(pipeline: Pipeline) -> tuple[object, ...]:
    return pipeline.observed.orders, pipeline.p2p, pipeline.buffered


def _own_kinds(base: Pipeline, new: Pipeline) -> bool:
    return any(b.costs.keys() != n.costs.keys() for b, n in zip(base.stages, new.stages, strict=True))


def _message(stage: StageProfile, kind: ActionKind) -> tuple[int | None, int]:
    if kind is ActionKind.FORWARD:
        return stage.forward_payload_bytes, stage.forward_transfer_ns
    return stage.backward_payload_bytes, stage.backward_transfer_ns


def _held(stage: StageProfile) -> list[tuple[ActionKind, list[tuple[int | None, int | None]]]]:
    return [(kind, [(c.held_bytes, c.peak_bytes) for c in costs]) for kind, costs in sorted(stage.costs.items())]


def _static(rank: RankProfile) -> tuple[int | None, int, int | None]:
    return rank.static_bytes, rank.tail_peak_bytes, rank.receive_buffer_bytes
