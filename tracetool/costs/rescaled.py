"""Costs of actions that were not recorded: at another speed of compute, or of microbatches of other sizes.

A microbatch of other sizes is extrapolated, by rules of this tool (derived, not any paper's):

- FLOPs of an action grow with b s (1 + s / (6h)): products with the tokens b s of a microbatch, attention with s
  besides (24 b s h² (1 + s / (6h)) per layer forward: Narayanan et al., arXiv 2104.04473, appendix).
- Of its time a fixed part stays, the rest grows with the FLOPs. Fixed are the gaps between its kernels, as many as
  before, and the sums of weight gradients, as large as before (``advise.fixed``); or what two recordings of different
  sizes tell (``fixed_by_fit``).
- What it holds in memory, but for gradients, and its messages grow with the tokens.

Of a Llama-like layer on one H200, forward and backward together were within 5 % of it, from half to four times the
tokens and half to twice the sequence (tests/data/batches). Kernels that skip what a causal mask hides compute half of
that attention, so the rule errs to the long side as sequences grow: at four times 2048 tokens (h 4096) by 12 % of a
forward, 4 % of both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import Option, ScenarioError
from tracetool.model.action import ActionKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracetool.model.pipeline import ActionCost, Costs, LayerCosts, LayerOverlap, Pipeline, StageProfile

Place = tuple[int, ActionKind, int]
"""Stage, kind and microbatch of an action."""


@dataclass(frozen=True, slots=True)
class MicrobatchSize:
    """What a microbatch is made of.

    Attributes:
        sequences: Its sequences (micro-batch size).
        length: Tokens of each (sequence length).
    """

    sequences: int
    length: int

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch."""
        return self.sequences * self.length

    def flops(self, hidden: int) -> int:
        """A number that FLOPs grow with: tokens (6h + s)."""
        return self.tokens * (6 * hidden + self.length)


def with_faster_compute(pipeline: Pipeline, ratio: float) -> Pipeline:
    """The pipeline with forwards and backwards that many times as fast; messages and optimizer stay.

    Args:
        pipeline: What was measured.
        ratio: Speed over the measured one.
    """

    def faster(_kind: ActionKind, _microbatch: int, cost: ActionCost) -> ActionCost:
        return _with_times(cost, lambda time_ns: round(time_ns / ratio))

    return pipeline.each(lambda one: replace(one, stages=tuple(_stage(stage, faster) for stage in one.stages)))


def with_slower_ranks(pipeline: Pipeline, factors: Sequence[float]) -> Pipeline:
    """The pipeline with forwards and backwards that take so many times as long; messages and optimizer stay.

    Args:
        pipeline: What was measured.
        factors: Of each pipeline rank.
    """
    shape = pipeline.observed.shape

    def slower(stage: StageProfile) -> StageProfile:
        factor = factors[shape.rank_of(stage.stage)]
        return _stage(stage, lambda _kind, _number, cost: _with_times(cost, lambda time_ns: round(time_ns * factor)))

    return replace(pipeline, stages=tuple(map(slower, pipeline.stages)))


def with_changed_actions(pipeline: Pipeline, changes_ns: Mapping[tuple[int, ActionKind], int]) -> Pipeline:
    """The pipeline with actions that take so much more time (less, if negative), at least 1 ns; layers share it.

    Args:
        pipeline: What was measured.
        changes_ns: Per stage and kind; of the halves of a whole backward, that of the input gradient takes all of it.
    """
    stages = []
    for stage in pipeline.stages:
        change = {kind: change for (number, kind), change in changes_ns.items() if number == stage.stage and change}
        if change:
            whole = change.get(ActionKind.BACKWARD, 0)
            halves = {ActionKind.BACKWARD_INPUT: whole} | change
            layers = stage.layers
            if layers is not None and layers.layers:
                share = {kind: round(of_kind / len(layers.layers)) for kind, of_kind in change.items()}
                layers = replace(layers, layers=tuple(_longer(layer, share) for layer in layers.layers))
            costs, derived = _longer(stage.costs, change), _longer(stage.derived, halves)
            stage = replace(stage, costs=costs, derived=derived, layers=layers)  # noqa: PLW2901 - the same one, changed
        stages.append(stage)
    return replace(pipeline, stages=tuple(stages))


def with_layers(pipeline: Pipeline, overlap: LayerOverlap) -> Pipeline:
    """The pipeline with layers that run in another way, or over other links.

    Args:
        pipeline: With layers as recorded.
        overlap: How they are to run.

    Raises:
        ScenarioError: If it is replayed together with others: what overlap changes is known of one.
    """
    if overlap.is_as_recorded:
        return pipeline
    if pipeline.job is not None:
        raise ScenarioError(
            "layers that overlap are replayed of one pipeline alone.", hint=f"choose it ({Option.PIPELINE(0)})"
        )
    changes = {(change.stage, change.kind): change.change_ns for change in overlap.actions}
    return replace(with_changed_actions(pipeline, changes), overlap=overlap, unchanged=pipeline)


def _longer(costs: Costs, changes_ns: Mapping[ActionKind, int]) -> Costs:
    def longer(kind: ActionKind, _microbatch: int, cost: ActionCost) -> ActionCost:
        return _with_times(cost, lambda time_ns: max(1, time_ns + changes_ns.get(kind, 0)))

    return _changed(costs, longer)


def with_batch(
    pipeline: Pipeline, recorded: MicrobatchSize, wanted: MicrobatchSize, *, hidden: int, fixed_ns: Mapping[Place, int]
) -> Pipeline:
    """The pipeline with microbatches of other sizes, extrapolated as this module says.

    Args:
        pipeline: What was measured.
        recorded: What its microbatches were made of.
        wanted: What they are to be made of.
        hidden: Hidden size h of the model.
        fixed_ns: Of each action's time, what does not grow; none where it says nothing.
    """
    flops = Fraction(wanted.flops(hidden), recorded.flops(hidden))
    tokens = Fraction(wanted.tokens, recorded.tokens)
    stages = []
    for stage in pipeline.stages:
        forwards = stage.costs.get(ActionKind.FORWARD, ())

        def changed(
            kind: ActionKind,
            microbatch: int,
            cost: ActionCost,
            number: int = stage.stage,
            forwards: tuple[ActionCost, ...] = forwards,
        ) -> ActionCost:
            fixed = fixed_ns.get((number, kind, microbatch), 0)
            grown = _with_times(cost, lambda time_ns: _grown(time_ns, fixed, flops))
            kept = forwards[microbatch].held_bytes if microbatch < len(forwards) else None
            return _with_memory(grown, kind, kept, tokens)

        stages.append(_with_messages(replace(_stage(stage, changed), layers=None), tokens))
    memory = pipeline.memory
    if memory is not None:
        memory = with_batch(memory, recorded, wanted, hidden=hidden, fixed_ns=fixed_ns)
    return replace(pipeline, stages=tuple(stages), memory=memory)


def _grown(value: int, fixed: int, ratio: Fraction) -> int:
    fixed = min(fixed, value)
    return fixed + round((value - fixed) * ratio)


def _with_memory(cost: ActionCost, kind: ActionKind, kept: int | None, tokens: Fraction) -> ActionCost:
    """What an action holds: activations grow; gradients, which a first backward leaves behind, do not."""
    held, peak = cost.held_bytes, cost.peak_bytes
    if held is None or kind is ActionKind.FORWARD:
        return replace(cost, held_bytes=_times(held, tokens), peak_bytes=_times(peak, tokens))
    gradients = 0 if kept is None else max(0, held + kept)
    if peak is not None:
        # When they are allocated in the course of it is unknown: the larger of both guesses.
        peak = max(round(peak * tokens), _grown(peak, gradients, tokens))
    return replace(cost, held_bytes=gradients + round((held - gradients) * tokens), peak_bytes=peak)


def _with_messages(stage: StageProfile, tokens: Fraction) -> StageProfile:
    return replace(
        stage,
        forward_payload_bytes=_times(stage.forward_payload_bytes, tokens),
        backward_payload_bytes=_times(stage.backward_payload_bytes, tokens),
        forward_transfer_ns=round(stage.forward_transfer_ns * tokens),
        backward_transfer_ns=round(stage.backward_transfer_ns * tokens),
    )


def _times(value: int | None, ratio: Fraction) -> int | None:
    return None if value is None else round(value * ratio)


def fixed_by_fit(
    pipeline: Pipeline, recorded: MicrobatchSize, other: Pipeline, theirs: MicrobatchSize, *, hidden: int
) -> dict[Place, int]:
    """The fixed part of each action's time, from two recordings of the same stages with microbatches of other sizes.

    A line through the medians of both, over FLOPs, per stage and kind; where it would begin below 0, or the larger
    microbatch is not slower, at 0 or the recorded time.

    Args:
        pipeline: What was measured.
        recorded: What its microbatches were made of.
        other: The other recording.
        theirs: What its microbatches were made of.
        hidden: Hidden size h of the model.
    """
    here, there = recorded.flops(hidden), theirs.flops(hidden)
    fixed: dict[Place, int] = {}
    for mine, its in zip(pipeline.stages, other.stages, strict=True):
        for kind in mine.costs.keys() & its.costs.keys():
            first, second = _usual_ns(mine, kind), _usual_ns(its, kind)
            start = round(Fraction(first * there - second * here, there - here))
            for microbatch in range(len(mine.costs[kind])):
                fixed[mine.stage, kind, microbatch] = min(max(0, start), first)
    return fixed


def _usual_ns(stage: StageProfile, kind: ActionKind) -> int:
    """Median time of a kind, by itself where that is known, without the first microbatch (it sums no gradients)."""
    costs = stage.costs[kind][1:] or stage.costs[kind]
    alone = [cost.uncontended_ns for cost in costs if cost.uncontended_ns is not None]
    return round(median(alone if len(alone) == len(costs) else [cost.duration_ns for cost in costs]))


def _with_times(cost: ActionCost, change: Callable[[int], int]) -> ActionCost:
    """A cost with each of its times changed by the same rule."""

    def changed(time_ns: int | None) -> int | None:
        return None if time_ns is None else change(time_ns)

    return replace(
        cost,
        duration_ns=change(cost.duration_ns),
        uncontended_ns=changed(cost.uncontended_ns),
        contended_ns=changed(cost.contended_ns),
    )


def _stage(stage: StageProfile, change: Callable[[ActionKind, int, ActionCost], ActionCost]) -> StageProfile:
    return replace(
        stage,
        costs=_changed(stage.costs, change),
        derived=_changed(stage.derived, change),
        layers=None if stage.layers is None else _layers(stage.layers, change),
    )


def _layers(layers: LayerCosts, change: Callable[[ActionKind, int, ActionCost], ActionCost]) -> LayerCosts:
    return replace(
        layers,
        ahead=_changed(layers.ahead, change),
        layers=tuple(_changed(layer, change) for layer in layers.layers),
        after=_changed(layers.after, change),
    )


def _changed(costs: Costs, change: Callable[[ActionKind, int, ActionCost], ActionCost]) -> Costs:
    return {kind: tuple(change(kind, i, cost) for i, cost in enumerate(of_kind)) for kind, of_kind in costs.items()}
