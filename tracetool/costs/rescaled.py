"""Costs of actions at another speed of compute: what is extrapolated from the measured ones, and by which rule."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.action import ActionKind
    from tracetool.model.pipeline import ActionCost, Costs, LayerCosts, Pipeline, StageProfile


def with_faster_compute(pipeline: Pipeline, ratio: float) -> Pipeline:
    """The pipeline with forwards and backwards that many times as fast; messages and optimizer stay.

    Args:
        pipeline: What was measured.
        ratio: Speed over the measured one.
    """

    def faster(_kind: ActionKind, cost: ActionCost) -> ActionCost:
        return with_times(cost, lambda time_ns: round(time_ns / ratio))

    return replace(pipeline, stages=tuple(_stage(stage, faster) for stage in pipeline.stages))


def with_times(cost: ActionCost, change: Callable[[int], int]) -> ActionCost:
    """A cost with each of its times changed by the same rule."""

    def changed(time_ns: int | None) -> int | None:
        return None if time_ns is None else change(time_ns)

    return replace(
        cost,
        duration_ns=change(cost.duration_ns),
        uncontended_ns=changed(cost.uncontended_ns),
        contended_ns=changed(cost.contended_ns),
    )


def _stage(stage: StageProfile, change: Callable[[ActionKind, ActionCost], ActionCost]) -> StageProfile:
    return replace(
        stage,
        costs=_changed(stage.costs, change),
        derived=_changed(stage.derived, change),
        layers=None if stage.layers is None else _layers(stage.layers, change),
    )


def _layers(layers: LayerCosts, change: Callable[[ActionKind, ActionCost], ActionCost]) -> LayerCosts:
    return replace(
        layers,
        ahead=_changed(layers.ahead, change),
        layers=tuple(_changed(layer, change) for layer in layers.layers),
        after=_changed(layers.after, change),
    )


def _changed(costs: Costs, change: Callable[[ActionKind, ActionCost], ActionCost]) -> Costs:
    return {kind: tuple(change(kind, cost) for cost in of_kind) for kind, of_kind in costs.items()}
