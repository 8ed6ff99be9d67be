"""A step kernel by kernel: layers, halves of backwards, slowdown beside communication, launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.pipeline import ActionCost, Costs, LayerCosts
from tracetool.reconstruction.actions.pieces import SCALING_OPS
from tracetool.reconstruction.closeup.action_view import ActionView, BlockMemory, memory_of_blocks, record_recompute
from tracetool.reconstruction.closeup.contention import Resident, kernels_beside_ns, pieces, read_resident
from tracetool.reconstruction.closeup.layers import AFTER, AHEAD, LayerPlace, StageLayers, find_layers
from tracetool.reconstruction.closeup.split import Part, agreement, gradient_parts, read_feeders
from tracetool.reconstruction.closeup.split_memory import HalfMemory, HalvesMemory, memory_of_halves
from tracetool.reconstruction.closeup.uncontended import take_slowdown_out
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.model.pipeline import StageProfile
    from tracetool.reconstruction.actions import Kernel, RankWork
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.closeup.launches import Launches
    from tracetool.reconstruction.memory.log import Log
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading
    from tracetool.store.run import Run


Row = tuple[object, ...]


_HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
_PARTS: dict[ActionKind, Part] = dict(zip(_HALVES, ("input", "weight"), strict=True))
_MOST_REST = 0.02
"""Share of a backward that may belong to neither gradient; beyond it the halves count as unknown."""


@dataclass(frozen=True)
class Closeup:
    """What the kernels of a step tell beyond its actions.

    Attributes:
        views: Every action, in order of rank and start.
        layers: Layers of each stage; None where they are unknown.
        split: Stages whose backwards ran as one and can be told apart.
        memory: Memory of each part of an action, where single allocations are logged.
        halves: Memory of the halves of backwards that ran as one, per stage and microbatch, where it is known.
        launches: What launching takes where hosts wait for their devices.
    """

    views: tuple[ActionView, ...]
    layers: Mapping[int, StageLayers | None]
    split: frozenset[int]
    memory: Mapping[tuple[int, ActionKind, int], Mapping[int, BlockMemory]]
    halves: Mapping[tuple[int, int], HalfMemory]
    launches: Launches

    @cached_property
    def by_stage(self) -> dict[int, dict[tuple[ActionKind, int], ActionView]]:
        """Actions of each stage by kind and microbatch."""
        of_stages: dict[int, dict[tuple[ActionKind, int], ActionView]] = defaultdict(dict)
        for view in self.views:
            of_stages[view.segment.stage][view.segment.kind, view.segment.microbatch] = view
        return of_stages

    def complete(self, profile: StageProfile) -> StageProfile:
        """Add to a stage's costs what its kernels tell: uncontended times, halves of the backward, layers."""
        views = self.by_stage[profile.stage]
        whole = {kind: sorted(m for k, m in views if k is kind) for kind in profile.costs}
        costs = {
            kind: tuple(
                replace(
                    cost,
                    uncontended_ns=sum(views[kind, m].alone_ns),
                    contended_ns=sum(views[kind, m].contended_ns),
                )
                for m, cost in zip(whole[kind], of_kind, strict=True)
            )
            for kind, of_kind in profile.costs.items()
        }
        derived = self._derived(profile, views) if profile.stage in self.split else {}
        stage_layers = self.layers[profile.stage]
        layerless = 0 if stage_layers is None else sum(view.places is None for view in views.values())
        return replace(
            profile,
            costs=costs,
            derived=derived,
            layers=None if stage_layers is None or layerless else self._layer_costs(stage_layers, views, whole),
            layerless=layerless,
            launches={kind: launch for (stage, kind), launch in self.launches.of.items() if stage == profile.stage},
        )

    def _derived(self, profile: StageProfile, views: Mapping[tuple[ActionKind, int], ActionView]) -> Costs:
        """Costs of the halves of a stage's backwards that ran as one."""
        whole = _backward(profile.costs)
        halves: dict[ActionKind, list[ActionCost]] = {kind: [] for kind in _HALVES}
        for m, cost in zip(sorted(m for k, m in views if k is whole), profile.costs[whole], strict=True):
            of_input, of_weight = (views[whole, m].whole_half(kind).cost for kind in _HALVES)
            known = self.halves.get((profile.stage, m))
            if known is not None and (memory := known.whole) is not None:
                of_input, of_weight = memory.input_half(of_input), memory.weight_half(of_weight, cost)
            halves[ActionKind.BACKWARD_INPUT].append(of_input)
            halves[ActionKind.BACKWARD_WEIGHT].append(of_weight)
        return {kind: tuple(costs) for kind, costs in halves.items()}

    def _layer_costs(
        self,
        stage_layers: StageLayers,
        views: Mapping[tuple[ActionKind, int], ActionView],
        whole: Mapping[ActionKind, Sequence[int]],
    ) -> LayerCosts:
        stage = next(iter(views.values())).segment.stage
        backward = _backward(whole)

        def of_layer(layer: int) -> Costs:
            costs = {
                kind: tuple(self._block(views[kind, m], layer) for m in of_kind) for kind, of_kind in whole.items()
            }
            if ActionKind.BACKWARD_INPUT not in costs and backward in costs:
                costs[ActionKind.BACKWARD] = costs.pop(backward)
            if stage in self.split:
                pairs = [self._halves_of(views[backward, m], layer) for m in whole[backward]]
                costs |= dict(zip(_HALVES, zip(*pairs, strict=True), strict=True))
            return costs

        return LayerCosts(of_layer(AHEAD), tuple(of_layer(i) for i in range(stage_layers.count)), of_layer(AFTER))

    def _halves_of(self, view: ActionView, layer: int) -> tuple[ActionCost, ActionCost]:
        """I and W of one layer of a backward that ran as one."""
        of_input, of_weight = (view.half(kind, layer).cost for kind in _HALVES)
        known = self.halves.get((view.segment.stage, view.segment.microbatch))
        if known is None or not known.layers:
            return of_input, of_weight
        memory = known.layers.get(layer, HalvesMemory(0, 0, 0))
        return memory.input_half(of_input), memory.weight_half(of_weight, self._block(view, layer))

    def _block(self, view: ActionView, layer: int) -> ActionCost:
        cost = view.layer(layer).cost
        s = view.segment
        blocks = self.memory.get((s.stage, s.kind, s.microbatch))
        if blocks is None:
            return cost
        held, peak = blocks.get(layer, BlockMemory(0, 0))
        return replace(cost, held_bytes=held, peak_bytes=peak)

    def layer_rows(self) -> list[Row]:
        """Rows of the table ``layers``."""
        rows: list[Row] = []
        by_action: dict[tuple[int, ActionKind], list[ActionView]] = defaultdict(list)
        for view in self.views:
            if view.places is not None:
                by_action[view.segment.stage, view.segment.kind].append(view)
        for (stage, kind), views in sorted(by_action.items()):
            stage_layers = self.layers[stage]
            if stage_layers is None:
                continue
            for layer in (AHEAD, *range(stage_layers.count), AFTER):
                kernels, duration, alone, _ = (
                    round(median(values)) for values in zip(*(v.layer(layer) for v in views), strict=True)
                )
                if kernels:
                    rows.append(
                        (stage, kind.value, layer, kernels, duration, alone, "kernels", stage_layers.confidence)
                    )
        return rows

    def kernel_rows(self) -> list[Row]:
        """Rows of the table ``kernel_actions`` for the kernels of actions."""
        rows: list[Row] = []
        for view in self.views:
            s = view.segment
            places: Sequence[LayerPlace | None] = view.places or [None] * len(s.kernels)
            parts: Sequence[Part | None] = view.parts or [None] * len(s.kernels)
            for kernel, place, part in zip(s.kernels, places, parts, strict=True):
                layer = place.layer if place is not None and place.layer >= 0 else None
                if kernel.event is not None:
                    rows.append((view.rank, kernel.event, s.stage, s.kind.value, s.microbatch, part, layer))
        return rows


def loose_rows(work: Mapping[int, RankWork]) -> list[Row]:
    """Rows of the table ``kernel_actions`` for kernels that belong to no action."""
    rows: list[Row] = []
    for rank, of_rank in work.items():
        end = max(s.end_ns for s in of_rank.segments)
        rows += [
            (rank, kernel.event, None, _loose_kind(kernel, end), None, None, None)
            for kernel in of_rank.loose
            if kernel.event is not None
        ]
    return rows


def _loose_kind(kernel: Kernel, end_ns: int) -> str:
    if kernel.is_p2p or kernel.is_barrier:
        return "COMMUNICATION"
    if kernel.is_optimizer:
        return ActionKind.OPTIMIZER.value
    is_reduction = kernel.is_collective or kernel.op_name in SCALING_OPS
    return ActionKind.REDUCE_GRAD.value if is_reduction and kernel.end_ns > end_ns else "OTHER"


def closeup_of(
    reading: StepReading,
    group: PipelineGroup,
    step: Step,
    work: Mapping[int, RankWork],
    beside: Mapping[int, Sequence[list[int]]],
    logs: Mapping[int, Log],
    window_ns: int,
    launches: Launches,
    account: Account,
) -> Closeup:
    """Look at the kernels of every action of a step.

    Args:
        reading: What the Run holds of the step.
        group: The pipeline.
        step: The step.
        work: What each global rank computed.
        beside: Per rank and action, of each kernel how long a communication kernel was beside it.
        logs: The allocator's log of each rank that has one.
        window_ns: From the start of the first action to the end of the last one.
        launches: What launching takes where hosts wait for their devices.
        account: Takes up how things were found.
    """
    run = reading.run
    every = [(rank, s) for rank in group.ranks for s in work[rank].segments]
    segments = [(rank, s) for rank, s in every if s.kernels]
    first, last = min(start for start, _ in step.spans.values()), max(end for _, end in step.spans.values())
    weights = read_feeders(run, group.ranks, first, last)
    layers = find_layers([s for _, s in segments])
    messages = read_residents(run, group, [work], messages=True)
    beside_messages = {rank: kernels_beside_ns(work[rank].segments, messages[rank]) for rank in group.ranks}
    both = ([one for rank in group.ranks for one in of_ranks[rank]] for of_ranks in (beside, beside_messages))
    views = []
    for (rank, s), beside_ns, beside_messages_ns in zip(every, *both, strict=True):
        if not s.kernels:
            continue
        times = [piece.gap_ns + piece.run_ns for piece in pieces(s.kernels)]
        stage_layers = layers[s.stage]
        places = stage_layers.places.get((s.kind, s.microbatch)) if stage_layers else None
        views.append(
            ActionView(
                rank=rank, segment=s, times_ns=times, alone_ns=times, contended_ns=times,
                beside_ns=beside_ns, beside_messages_ns=beside_messages_ns,
                late_ns=launches.gaps_of(s), places=places,
            )
        )  # fmt: skip
    if not reading.evidence.lists_actions:  # there, what differs between runs of an action is no kernel's slowdown
        held = any(len(resident.starts) for resident in messages.values())
        take_slowdown_out(views, reading.devices, window_ns, account, held=held)
    split = _split_backwards(views, weights, account)
    _record_layers(layers, account)
    record_recompute(views, account)
    halves = memory_of_halves(views, split, logs, weights)
    return Closeup(tuple(views), layers, split, memory_of_blocks(views, logs), halves, launches)


def read_residents(
    run: Run, group: PipelineGroup, works: Iterable[Mapping[int, RankWork]], *, messages: bool = False
) -> dict[int, Resident]:
    """When communication kernels (of messages alone, if asked) were on the devices of a pipeline's ranks.

    Args:
        run: The ingested traces.
        group: The pipeline.
        works: What each rank computed, in each of the steps that are asked about.
        messages: Whether only those of messages count.
    """
    segments = [s for work in works for rank in group.ranks for s in work[rank].segments]
    first, last = min(s.start_ns for s in segments), max(s.end_ns for s in segments)
    return read_resident(run, group.ranks, first, last, messages=messages)


def _backward(costs: Mapping[ActionKind, object]) -> ActionKind:
    """The kind that is a stage's whole backward: torch runs that of its first stage as W."""
    return ActionKind.BACKWARD if ActionKind.BACKWARD in costs else ActionKind.BACKWARD_WEIGHT


def _split_backwards(
    views: Sequence[ActionView], weights: Mapping[int, frozenset[int]], account: Account
) -> frozenset[int]:
    """Give the kernels of unsplit backwards their parts; return the stages where that tells both halves."""
    kinds: dict[int, set[ActionKind]] = defaultdict(set)
    for view in views:
        kinds[view.segment.stage].add(view.segment.kind)
    unsplit = {
        stage: _backward(dict.fromkeys(kinds_of_stage))
        for stage, kinds_of_stage in kinds.items()
        if ActionKind.BACKWARD_INPUT not in kinds_of_stage
    }
    by_stage: dict[int, list[ActionView]] = defaultdict(list)
    for view in views:
        kind = view.segment.kind
        if unsplit.get(view.segment.stage) is kind:
            by_stage[view.segment.stage].append(view)
        elif kind in _PARTS:
            view.parts = [_PARTS[kind]] * len(view.segment.kernels)
    silent = [
        s
        for s, of_stage in by_stage.items()
        if not any(k.node is not None for v in of_stage for k in v.segment.kernels)
    ]
    if silent:
        account.note(
            NoticeCode.SPLIT_UNKNOWN,
            f"stages {', '.join(map(str, sorted(silent)))}: no autograd nodes around kernels, so the gradients "
            "of input and weights are not told apart",
        )
    return frozenset(
        stage
        for stage, of_stage in sorted(by_stage.items())
        if stage not in silent and _split_stage(stage, of_stage, weights, account)
    )


def _split_stage(
    stage: int, views: Sequence[ActionView], weights: Mapping[int, frozenset[int]], account: Account
) -> bool:
    good = checks = rest = 0
    unclear: Counter[str] = Counter()
    for view in views:
        kernels = view.segment.kernels
        view.parts = gradient_parts(kernels, weights[view.rank])
        agreeing, of_all = agreement(kernels, weights[view.rank])
        good, checks = good + agreeing, checks + of_all
        for kernel, part, time in zip(kernels, view.parts, view.times_ns, strict=True):
            if part is None:
                rest += time
                unclear[kernel.node_name or "no node"] += 1
    whole = sum(sum(v.times_ns) for v in views)
    names = ", ".join(name for name, _ in unclear.most_common(3))
    why = None
    if not checks or rest > _MOST_REST * whole:
        why = f"{rest / whole:.0%} of it does not tell which it is ({names})" if rest else "it has no linear layer"
    elif 2 * good < checks:
        why = f"{checks - good} of its {checks} linear layers hold other products than a gradient of each needs"
    if why is not None:
        account.note(
            NoticeCode.SPLIT_UNKNOWN,
            f"stage {stage}: its backward is not split into input and weight gradients: {why}",
            subject=SubjectKind.STAGE(stage),
        )
        return False
    halves = [round(median(v.whole_half(kind).duration_ns for v in views)) for kind in _HALVES]
    account.find(
        "split", SubjectKind.STAGE(stage),
        f"input gradient {format_duration(halves[0])}, weight gradients {format_duration(halves[1])}, derived from a "
        "backward that ran as one",
        "kernels", good / checks * (1 - rest / whole),
        f"{rest / whole:.1%} tells neither and counts with the input's ({names})" if rest else None,
    )  # fmt: skip
    return True


def _record_layers(layers: Mapping[int, StageLayers | None], account: Account) -> None:
    unknown = [stage for stage, stage_layers in layers.items() if stage_layers is None]
    if unknown:
        account.note(
            NoticeCode.LAYERS_UNKNOWN,
            f"stages {', '.join(map(str, unknown))}: no pattern of kernels repeats in most actions, so layers are "
            "unknown",
        )
    for stage, stage_layers in layers.items():
        if stage_layers is not None:
            account.find(
                "layers", SubjectKind.STAGE(stage), f"{stage_layers.count} layers", "kernels", stage_layers.confidence,
                "; ".join(stage_layers.remarks) or None,
            )  # fmt: skip
