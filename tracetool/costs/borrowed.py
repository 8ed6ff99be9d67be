"""What another recording of the same model tells better: slowdown beside communication, and memory.

A trace whose computes never ran beside a communication kernel (blocking batches) cannot tell by how much they slow
down there; one of another schedule of the same stages can. Recording memory slows a step down, so times and memory
may come from two recordings.

Whether two recordings are of one model, as far as both tell.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.costs.recut import recut
from tracetool.errors import Option, ScenarioError, UnsupportedShape
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import sum_if_known

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.pipeline import ActionCost, Costs, Pipeline, StageProfile


def mismatch(one: Pipeline, other: Pipeline) -> str | None:
    """In what two Runs' pipelines differ that one's figures could not stand for the other's, or None."""
    for name, a, b in (
        ("pipeline ranks", one.observed.shape.ranks, other.observed.shape.ranks),
        ("layers", known_layers(one), known_layers(other)),
        ("bytes per message", hop_bytes(one), hop_bytes(other)),
    ):
        if a is not None and b is not None and a != b:
            return f"{a:,} {name} in one Run, {b:,} in the other"
    if len(one.stages) != len(other.stages):
        return None
    for stage, (a, b) in enumerate(zip(layers_of_stages(one), layers_of_stages(other), strict=True)):
        if a is not None and b is not None and a != b:
            return f"{a:,} layers on stage {stage} in one Run, {b:,} in the other"
    return None


def layers_of_stages(pipeline: Pipeline) -> list[int | None]:
    """Number of layers that each of a Run's stages holds; None where they are unknown."""
    return [None if stage.layers is None else len(stage.layers.layers) for stage in pipeline.stages]


def known_layers(pipeline: Pipeline) -> int | None:
    """Number of layers that a Run's stages hold; None unless all of them are known."""
    return sum_if_known(layers_of_stages(pipeline))


def hop_bytes(pipeline: Pipeline) -> int | None:
    """Bytes of one activation between stages; None if unknown or not the same everywhere."""
    sizes = {stage.forward_payload_bytes for stage in pipeline.stages[:-1]}
    return sizes.pop() if len(sizes) == 1 else None


_BACKWARDS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


def with_factors_of(pipeline: Pipeline, other: Pipeline) -> Pipeline:
    """A pipeline whose actions slow down beside communication as those of another recording do.

    Each (stage, kind) takes the other's ratio of time beside communication to time alone, over all its microbatches.

    Args:
        pipeline: Where all other costs come from.
        other: The recording to take the slowdown from.

    Raises:
        ScenarioError: If the other one has other stages, or does not tell its slowdown.
    """
    wanted = "take a recording of the same model, cut into the same stages"
    if len(other.stages) != len(pipeline.stages):
        raise ScenarioError(
            f"{Option.COSTS_FROM}: that recording has {len(other.stages)} stages, this one {len(pipeline.stages)}.",
            hint=wanted,
        )
    pairs = list(zip(pipeline.stages, other.stages, strict=True))
    for mine, theirs in pairs:
        counts = [None if stage.layers is None else len(stage.layers.layers) for stage in (theirs, mine)]
        if None not in counts and counts[0] != counts[1]:
            raise ScenarioError(
                f"{Option.COSTS_FROM}: stage {mine.stage} of that recording has {counts[0]} layers, here it has "
                f"{counts[1]}.",
                hint=wanted,
            )
    return replace(pipeline, stages=tuple(_stage(mine, theirs) for mine, theirs in pairs))


def with_memory_of(pipeline: Pipeline, other: Pipeline) -> Pipeline:
    """A pipeline whose memory figures are those of another recording of the same model.

    Args:
        pipeline: Where times, messages and order come from.
        other: Where memory comes from; cut into the same stages at its layers if it was recorded in others.

    Raises:
        ScenarioError: If the other one is of another model, or cannot be cut into the same stages.
    """
    if why := mismatch(pipeline, other):
        raise ScenarioError(f"memory figures of another model do not fit: {why}.", hint="record both with one model")
    mine, theirs = pipeline.observed.shape, other.observed.shape
    if (mine.chunks, mine.placement) != (theirs.chunks, theirs.placement):
        try:
            other = recut(other, mine.chunks, placement=mine.placement)
        except UnsupportedShape as error:
            raise ScenarioError(
                f"memory figures of {theirs.stages} stages do not fit {mine.stages}: {error.message}", hint=error.hint
            ) from error
    memory = replace(other, memory=None)
    return pipeline.each(lambda one: replace(one, memory=memory))


def _stage(mine: StageProfile, theirs: StageProfile) -> StageProfile:
    def slowed(costs: Costs) -> Costs:
        return {kind: _slowed(of_kind, _ratio(theirs, kind)) for kind, of_kind in costs.items()}

    layers = mine.layers
    if layers is not None:
        layers = replace(
            layers,
            ahead=slowed(layers.ahead),
            layers=tuple(map(slowed, layers.layers)),
            after=slowed(layers.after),
        )
    return replace(mine, costs=slowed(mine.costs), derived=slowed(mine.derived), layers=layers)


def _slowed(costs: Iterable[ActionCost], ratio: float) -> tuple[ActionCost, ...]:
    return tuple(
        cost if cost.uncontended_ns is None else replace(cost, contended_ns=round(cost.uncontended_ns * ratio))
        for cost in costs
    )


def _ratio(stage: StageProfile, kind: ActionKind) -> float:
    """Time beside communication over time alone of one kind; a backward and its halves stand for one another."""
    known = kind in stage.costs or kind in stage.derived or kind not in _BACKWARDS
    kinds = [kind] if known else _BACKWARDS
    costs = [
        cost
        for each in kinds
        for cost in stage.costs.get(each, stage.derived.get(each, ()))
        if cost.uncontended_ns and cost.contended_ns is not None
    ]
    if not costs:
        raise ScenarioError(
            f"{Option.COSTS_FROM}: that recording does not tell by how much {kind.value} of stage {stage.stage} "
            "slows down.",
            hint="take one of an order with single sends and receives (not grouped), or leave the option out",
        )
    return sum(c.contended_ns or 0 for c in costs) / sum(c.uncontended_ns or 0 for c in costs)
