"""Costs as measured: each action costs what the same (stage, kind, microbatch) cost in the trace.

Microbatches the trace does not have cost the median of the measured ones, without the first: its backward
makes the gradients that the later ones only add to.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, sum_if_known

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.pipeline import Pipeline, StageProfile
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule

_GRADIENTS = (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)


class MeasuredCosts:
    """Costs of a pipeline's actions and messages, with the scenario's own memory figures if it has any.

    Args:
        pipeline: What was measured.
        scenario: May replace activation and static bytes.
        schedule: What is replayed: where it runs no I on a stage, its W there is the whole backward.
    """

    def __init__(self, pipeline: Pipeline, scenario: Scenario, schedule: Schedule) -> None:
        self._pipeline = pipeline
        self._scenario = scenario
        self._shape = schedule.shape
        self._splitting = {a.stage for order in schedule.orders for a in order if a.kind is ActionKind.BACKWARD_INPUT}
        self.action = cache(self._action)

    def _action(self, action: Action) -> ActionCost:
        if action.kind is ActionKind.BACKWARD_WEIGHT and action.stage not in self._splitting:
            action = action._replace(kind=ActionKind.BACKWARD)
        cost = _measured(self._pipeline.stages[action.stage], action)
        activation = self._scenario.activation_bytes
        if activation is None:
            return cost
        if action.kind is ActionKind.FORWARD:
            return replace(cost, held_bytes=activation, peak_bytes=activation)
        return replace(cost, held_bytes=-activation if action.kind in _GRADIENTS else 0, peak_bytes=0)

    def static_bytes(self, rank: int) -> int | None:
        """Bytes a pipeline rank has allocated when the step starts; None if unknown."""
        if self._scenario.static_bytes is not None:
            return self._scenario.static_bytes
        profile = self._pipeline.ranks[rank]
        if profile.static_bytes is None or not (profile.receive_buffer_bytes or self._scenario.receive_copies):
            return profile.static_bytes
        received = self._received_bytes(rank)
        if received is None:
            return None
        standing = received - profile.receive_buffer_bytes if profile.receive_buffer_bytes else 0
        return profile.static_bytes + standing + self._scenario.receive_copies * received

    def _received_bytes(self, rank: int) -> int | None:
        """Bytes of all messages that a rank receives in a step; None if a size is unknown."""
        shape = self._shape
        sizes = [
            self.payload_bytes(src, kind)
            for stage in range(shape.stages)
            if shape.rank_of(stage) == rank
            for src, kind in ((stage - 1, ActionKind.FORWARD), (stage + 1, ActionKind.BACKWARD))
            if 0 <= src < shape.stages and shape.rank_of(src) != rank
        ]
        total = sum_if_known(sizes)
        return None if total is None else total * shape.microbatches

    def tail_peak_bytes(self, rank: int) -> int:
        """Highest allocation of a rank's optimizer, above the level at its start; 0 with memory from the scenario."""
        return 0 if self._scenario.static_bytes is not None else self._pipeline.ranks[rank].tail_peak_bytes

    def overhead_bytes(self, rank: int) -> int | None:
        """Device memory a rank needs beyond its highest allocation, as measured; None with memory from the scenario.

        A constant of the recording: what the allocator reserved beyond its highest allocation (blocks of sizes
        that do not fit, and what it kept of earlier steps), and what else the process held. Taking it for every
        schedule errs to the safe side where the allocator would give cached blocks back under pressure.
        """
        return None if self._scenario.static_bytes is not None else self._pipeline.ranks[rank].overhead_bytes

    def payload_bytes(self, src_stage: int, kind: ActionKind) -> int | None:
        """Bytes of one message that leaves a stage; None if unknown."""
        stage = self._pipeline.stages[src_stage]
        return stage.forward_payload_bytes if kind is ActionKind.FORWARD else stage.backward_payload_bytes

    def transfer_ns(self, src_stage: int, kind: ActionKind) -> int:
        """Measured time of one message inside a DC, once both sides are ready."""
        stage = self._pipeline.stages[src_stage]
        return stage.forward_transfer_ns if kind is ActionKind.FORWARD else stage.backward_transfer_ns


def _measured(stage: StageProfile, action: Action) -> ActionCost:
    halves = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
    # A trace that has W alone runs the whole backward as W.
    is_half = action.kind in halves and not all(kind in stage.costs for kind in halves)
    costs = stage.derived.get(action.kind) if is_half else stage.costs.get(action.kind)
    if costs is not None:
        cost = _of_microbatch(costs, action.microbatch)
        # The first stage has no input gradient to run apart: torch runs its whole backward as one.
        run_apart = is_half and action.kind is ActionKind.BACKWARD_WEIGHT and action.stage > 0
        return _with_sums(cost) if run_apart else cost
    parts = [stage.costs.get(k) for k in halves]
    if action.kind is ActionKind.BACKWARD and any(parts):
        return _sum([_of_microbatch(p, action.microbatch) for p in parts if p])
    raise UnsupportedShape(
        f"the trace does not tell what {action} costs: stage {stage.stage} has only "
        f"{', '.join(sorted(k.value for k in stage.costs))}"
        + (", and its kernels do not tell input gradients from weight gradients." if is_half else "."),
        hint="a schedule that splits the backward needs a trace that splits it, or one with autograd's nodes",
    )


_WEIGHT_SUMS = 0.09
"""What torch adds to the weight gradients of a backward that it runs in two halves, as a share of them.

Ahead of every product it sums the gradients of the layer's outputs, one of them, from zero: an elementwise kernel more
(``stage_backward_weight``). Kernels of zbh1_m8 against those of rt1f1b_m8, which ran whole backwards of the same
stages: 0.56 of 6.24 ms on stages 1 and 2, 0.65 of 7.27 ms on stage 3.
"""


def _with_sums(cost: ActionCost) -> ActionCost:
    """Derived weight gradients as torch runs them by themselves."""

    def longer(time_ns: int | None) -> int | None:
        return None if time_ns is None else round(time_ns * (1 + _WEIGHT_SUMS))

    return replace(
        cost,
        duration_ns=round(cost.duration_ns * (1 + _WEIGHT_SUMS)),
        uncontended_ns=longer(cost.uncontended_ns),
        contended_ns=longer(cost.contended_ns),
    )


def _of_microbatch(costs: Sequence[ActionCost], microbatch: int) -> ActionCost:
    if microbatch < len(costs):
        return costs[microbatch]
    later = costs[1:] or costs
    return ActionCost(
        round(median(c.duration_ns for c in later)),
        _median([c.held_bytes for c in later]),
        _median([c.peak_bytes for c in later]),
        _median([c.uncontended_ns for c in later]),
        _median([c.contended_ns for c in later]),
    )


def _median(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return round(median(known)) if known else None


def _sum(parts: Sequence[ActionCost]) -> ActionCost:
    peak = [c.peak_bytes for c in parts]
    return ActionCost(
        sum(c.duration_ns for c in parts),
        sum_if_known([c.held_bytes for c in parts]),
        None if None in peak else max(p for p in peak if p is not None),
        sum_if_known([c.uncontended_ns for c in parts]),
        sum_if_known([c.contended_ns for c in parts]),
    )
