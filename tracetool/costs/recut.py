"""A pipeline cut into more stages: the chunks of interleaved schedules, from the costs of its layers.

What is ahead of the layers and after them (embedding, head, loss) stays with the layer next to it. Layers take with
them what they cost on the rank that recorded them: chunk ``i`` of the whole model may run on another one.

What ranks hold at rest when the ends of the model (embedding, head) sit on other ranks than in the recording.

A rank between the ends holds layers alone. With as many layers on every rank, an end rank holds as much, and what it
holds beyond that is its end's: weights, gradients and optimizer state of embedding or head. Buffers of received
messages are taken out of both first: ranks between the ends have twice as many.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from tracetool.errors import UnsupportedShape, command_or_call
from tracetool.model.action import Action, ActionKind
from tracetool.model.pipeline import ActionCost, StageProfile, sum_if_known
from tracetool.model.schedule import PipelineShape, Schedule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import Collectives, Costs, Launch, LayerCosts, Pipeline, RankProfile
    from tracetool.model.schedule import Placement


def ranks_at_rest(pipeline: Pipeline, shape: PipelineShape) -> tuple[RankProfile, ...]:
    """The ranks as they are under another shape of the same layers.

    Static bytes are None where they cannot be told: if no recorded rank is between the ends, the recording has both
    ends on one rank, or its memory or receive buffers are unknown.

    Args:
        pipeline: What was measured, with as many layers on every rank.
        shape: The other shape.
    """
    was, now = ends_of(pipeline.observed.shape), ends_of(shape)
    if was == now:
        return pipeline.ranks
    level, tail = _moved(_net_static(pipeline), was, now), _moved(_tails(pipeline), was, now)
    return tuple(
        replace(
            r,
            static_bytes=None if level is None else level[number] + (r.receive_buffer_bytes or 0),
            tail_peak_bytes=r.tail_peak_bytes if tail is None else max(0, tail[number]),
        )
        for number, r in enumerate(pipeline.ranks)
    )


def ends_of(shape: PipelineShape) -> tuple[int, int]:
    """The ranks of the first and the last stage of the model."""
    return shape.rank_of(0), shape.rank_of(shape.stages - 1)


def _moved(levels: list[int] | None, was: tuple[int, int], now: tuple[int, int]) -> list[int] | None:
    """Levels of the ranks with what is special to the two ends taken from where they were to where they are."""
    if levels is None or was[0] == was[1]:
        return None
    between = [level for rank, level in enumerate(levels) if rank not in was]
    if not between:
        return None
    usual = round(median(between))
    moved = [usual if rank in was else level for rank, level in enumerate(levels)]
    for before, after in zip(was, now, strict=True):
        moved[after] += levels[before] - usual
    return moved


def _net_static(pipeline: Pipeline) -> list[int] | None:
    """Static bytes without buffers of received messages; None if any are unknown."""
    pairs = [(r.static_bytes, r.receive_buffer_bytes) for r in pipeline.ranks]
    known = [static - buffers for static, buffers in pairs if static is not None and buffers is not None]
    return known if len(known) == len(pairs) else None


def _tails(pipeline: Pipeline) -> list[int]:
    return [r.tail_peak_bytes for r in pipeline.ranks]


F, B, R = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.RECOMPUTE
HALVES = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)


def recut(pipeline: Pipeline, chunks: int, *, placement: Placement = "loop") -> Pipeline:
    """Cut a pipeline into ``chunks`` stages per rank, each of as many layers.

    No order was observed for them: the result's holds all forwards, then all backwards, stage by stage. Its ranks
    hold as many layers as before, so weights and optimizer stay what they were; where the ends of the model move to
    other ranks (V placement), what they hold at rest moves with them (``at_rest.ranks_at_rest``). Where recorded
    stages hold different numbers of layers, what ranks hold at rest is unknown.

    Args:
        pipeline: What was measured.
        chunks: Stages per rank.
        placement: Which rank holds which stage.

    Raises:
        UnsupportedShape: If layers are unknown or do not divide.
    """
    return pipeline.each(lambda one: _recut(one, chunks, placement))


def _recut(pipeline: Pipeline, chunks: int, placement: Placement) -> Pipeline:
    shape = PipelineShape(pipeline.observed.shape.ranks, pipeline.observed.shape.microbatches, chunks, placement)
    parts = [_with_rest(_known(stage)) for stage in pipeline.stages]
    total = sum(len(layers) for layers in parts)
    if chunks < 1 or total % shape.stages:
        fitting = [v for v in range(1, total // shape.ranks + 1) if total % (v * shape.ranks) == 0]
        raise UnsupportedShape(
            f"{total} layers do not divide into {shape.stages} stages ({shape.ranks} ranks of {chunks} chunks).",
            hint=f"chunks that do: {', '.join(map(str, fitting))}"
            if fitting
            else "no number of chunks does: the recorded stages hold different numbers of layers",
        )
    owners = [stage for stage, layers in zip(pipeline.stages, parts, strict=True) for _ in layers]
    layers = [layer for of_stage in parts for layer in of_stage]
    size = total // shape.stages
    stages = tuple(
        _stage(i, layers[i * size : (i + 1) * size], owners[i * size : (i + 1) * size], pipeline, shape)
        for i in range(shape.stages)
    )
    uneven = len({len(of_stage) for of_stage in parts}) > 1
    ranks = tuple(replace(r, static_bytes=None) for r in pipeline.ranks) if uneven else ranks_at_rest(pipeline, shape)
    memory = None if pipeline.memory is None else _memory(pipeline.memory, chunks, placement)
    cut = replace(pipeline, stages=stages, ranks=ranks, observed=_order(shape), memory=None)
    return replace(cut, memory=_without_memory(cut) if pipeline.memory is not None and memory is None else memory)


def _memory(source: Pipeline, chunks: int, placement: Placement) -> Pipeline | None:
    """A recording that memory is from, cut alike; None if it cannot be."""
    try:
        return recut(source, chunks, placement=placement)
    except UnsupportedShape:
        return None


def _without_memory(pipeline: Pipeline) -> Pipeline:
    """The same pipeline with nothing known of its memory."""

    def unknown(costs: Costs) -> Costs:
        return {
            kind: tuple(replace(cost, held_bytes=None, peak_bytes=None) for cost in of_kind)
            for kind, of_kind in costs.items()
        }

    return replace(
        pipeline,
        stages=tuple(replace(s, costs=unknown(s.costs), derived=unknown(s.derived)) for s in pipeline.stages),
        ranks=tuple(
            replace(r, static_bytes=None, tail_peak_bytes=0, overhead_bytes=None, receive_buffer_bytes=None)
            for r in pipeline.ranks
        ),
    )


def _known(stage: StageProfile) -> LayerCosts:
    if stage.layers is None:
        says = command_or_call("tracetool info RUN", "found.notes")
        of_all = sum(map(len, stage.costs.values()))
        raise UnsupportedShape(
            f"{stage.layerless} of {of_all} actions of stage {stage.stage} show no layers, so it cannot be cut into "
            "chunks."
            if stage.layerless
            else f"the layers of stage {stage.stage} are unknown, so it cannot be cut into chunks.",
            hint="record a step whose actions all run the same kernels"
            if stage.layerless
            else f"{says} says why; a trace of a schedule with as many stages per rank needs no cutting",
        )
    return stage.layers


def _with_rest(costs: LayerCosts) -> list[list[Costs]]:
    """The layers of a stage, each with what stays beside it."""
    blocks = [[layer] for layer in costs.layers]
    blocks[0].insert(0, costs.ahead)
    blocks[-1].append(costs.after)
    return blocks


def _stage(
    number: int,
    layers: Sequence[Sequence[Costs]],
    owners: Sequence[StageProfile],
    pipeline: Pipeline,
    shape: PipelineShape,
) -> StageProfile:
    blocks = [block for layer in layers for block in layer]
    halves: Costs = {kind: _sums(blocks, kind) for kind in HALVES if all(kind in block for block in blocks)}
    if any(B in block for block in blocks):
        # Where the trace ran a backward as one, its halves are derived.
        costs = {F: _sums(blocks, F), B: _sums([_whole(block) for block in blocks], B)}
    else:
        costs, halves = {F: _sums(blocks, F), **halves}, {}
    _balance(costs)
    if halves and B in costs:
        halves = _with_memory(halves, blocks, costs[B], is_first=number == 0)
    if all(R in block for block in blocks):
        costs[R] = _sums(blocks, R)
    last = number == shape.stages - 1
    payload = None if last else _one([s.forward_payload_bytes for s in pipeline.stages[:-1]])
    if payload and not last and _hands_on(number, pipeline, shape):
        costs, halves = (_output_in_a_buffer(of_stage, payload) for of_stage in (costs, halves))
    return StageProfile(
        stage=number,
        costs=costs,
        forward_payload_bytes=payload,
        backward_payload_bytes=None if number == 0 else _one([s.backward_payload_bytes for s in pipeline.stages[1:]]),
        forward_transfer_ns=0 if last else _transfer_ns(pipeline, shape, number, 1),
        backward_transfer_ns=0 if number == 0 else _transfer_ns(pipeline, shape, number, -1),
        evidence=owners[0].evidence,
        derived=halves,
        collectives=_collectives(owners, pipeline, len(layers) * shape.stages),
        launches=_launches(owners, costs),
    )


def _hands_on(stage: int, pipeline: Pipeline, shape: PipelineShape) -> bool:
    """Whether a stage's output stays on its rank, in a runtime that has a buffer for each message of a step."""
    rank = shape.rank_of(stage)
    return shape.rank_of(stage + 1) == rank and bool(pipeline.ranks[rank].receive_buffer_bytes)


def _output_in_a_buffer(costs: Costs, payload_bytes: int) -> dict[ActionKind, tuple[ActionCost, ...]]:
    """Costs of a stage whose output takes the place of the next stage's receive buffer, and so outlives its backward.

    That is what torch's ``set_local_fwd_input`` does; the buffer itself is among the static bytes
    (``MeasuredCosts.static_bytes``).
    """
    change = {F: -payload_bytes, B: payload_bytes, ActionKind.BACKWARD_WEIGHT: payload_bytes}
    return {kind: tuple(cost.holding(change.get(kind, 0)) for cost in of_kind) for kind, of_kind in costs.items()}


def _launches(owners: Sequence[StageProfile], costs: Costs) -> Mapping[ActionKind, Launch]:
    """Waits and lags of the stage that most layers come from, and launches in proportion to its time."""
    owner = max(owners, key=lambda stage: sum(each.stage == stage.stage for each in owners))
    launches = {}
    for kind, launch in owner.launches.items():
        if kind not in costs or kind not in owner.costs:
            continue
        part, whole = (sum(cost.duration_ns for cost in of_kind) for of_kind in (costs[kind], owner.costs[kind]))
        launches[kind] = replace(launch, issue_ns=round(launch.issue_ns * part / max(1, whole)))
    return launches


def _collectives(owners: Sequence[StageProfile], pipeline: Pipeline, total: int) -> Collectives:
    """Those of the stages that the layers come from, by as many of their layers as were taken: layers are alike."""
    per_stage = total / len(pipeline.stages)
    shares: dict[ActionKind, list[CollectiveUse]] = {}
    for stage in {owner.stage: owner for owner in owners}.values():
        share = sum(owner.stage == stage.stage for owner in owners) / per_stage
        for kind, uses in stage.collectives.items():
            shares.setdefault(kind, []).extend(replace(use, count=use.count * share) for use in uses)
    return {kind: tuple(uses) for kind, uses in shares.items()}


def _balance(costs: dict[ActionKind, tuple[ActionCost, ...]]) -> None:
    """Let a chunk's backward free what its forward keeps.

    A free counts with the layer whose launches surround it, which may be the one after (the head's output goes below
    a later layer); at a cut, what one chunk frees too much of every microbatch another one frees too little.
    """
    last = B if B in costs else ActionKind.BACKWARD_WEIGHT
    held = [[cost.held_bytes for cost in of_kind] for kind, of_kind in costs.items() if kind is not R]
    left = [sum(h for h in of_one if h is not None) for of_one in zip(*held, strict=True) if None not in of_one]
    if len(left) < 2 or len(left) < len(costs[last]):
        return
    too_much = round(median(left[1:]))  # the first microbatch makes gradients
    costs[last] = tuple(
        cost if cost.held_bytes is None else replace(cost, held_bytes=cost.held_bytes - too_much)
        for cost in costs[last]
    )


def _sums(blocks: Sequence[Costs], kind: ActionKind) -> tuple[ActionCost, ...]:
    """Per microbatch, the blocks of a stage one after another."""
    in_turn = blocks if kind in (F, R) else blocks[::-1]
    return tuple(_in_turn(costs) for costs in zip(*(block[kind] for block in in_turn), strict=True))


def _with_memory(halves: Costs, blocks: Sequence[Costs], whole: Sequence[ActionCost], *, is_first: bool) -> Costs:
    """The halves of backwards that ran as one, with memory as torch's split has it.

    What a half frees goes when it ends (``reconstruct.split_memory``), so the layers of a stage add up without it;
    both leave what the whole backward leaves. A first stage has an empty I, and its W is the whole backward.
    """
    inputs, weights = [], []
    for m, (of_input, of_weight, both) in enumerate(zip(*(halves[kind] for kind in HALVES), whole, strict=True)):
        left = both.held_bytes
        parts = [[block[kind][m] for block in blocks[::-1]] for kind in HALVES]
        held = 0 if is_first else sum_if_known([cost.held_bytes for cost in parts[0]])
        made = [_gradient_bytes(block) if m == 0 else 0 for block in blocks[::-1]]
        peaks = [_peak_freed_last(costs, more) for costs, more in zip(parts, ([0] * len(made), made), strict=True)]
        if held is None or left is None or both.peak_bytes is None or None in peaks:
            inputs.append(replace(of_input, held_bytes=None, peak_bytes=None))
            weights.append(replace(of_weight, held_bytes=None, peak_bytes=None))
            continue
        peak = both.peak_bytes if is_first else peaks[1] or 0
        inputs.append(replace(of_input, held_bytes=held, peak_bytes=0 if is_first else peaks[0]))
        weights.append(replace(of_weight, held_bytes=left - held, peak_bytes=max(peak, left - held)))
    return dict(zip(HALVES, (tuple(inputs), tuple(weights)), strict=True))


def _peak_freed_last(costs: Sequence[ActionCost], made: Sequence[int]) -> int | None:
    """Highest level over costs one after another if what they free goes at the end; None if unknown.

    Args:
        costs: The costs.
        made: What each allocates at least to stay.
    """
    level = peak = 0
    for cost, stays in zip(costs, made, strict=True):
        if cost.held_bytes is None or cost.peak_bytes is None:
            return None
        peak = max(peak, level + cost.peak_bytes)
        level += max(stays, cost.held_bytes)
    return peak


def _gradient_bytes(block: Costs) -> int:
    """What the first microbatch's backward leaves in a block beyond the later ones: the gradients of its weights."""
    held = [cost.held_bytes for cost in _whole(block)[B] if cost.held_bytes is not None]
    return max(0, round(held[0] - median(held[1:]))) if len(held) > 1 else 0


def _whole(block: Costs) -> Costs:
    """A block with its backward as one action, if it ran as two."""
    return block if B in block else {**block, B: tuple(map(_in_turn, zip(*(block[k] for k in HALVES), strict=True)))}


def _in_turn(costs: Sequence[ActionCost]) -> ActionCost:
    level: int | None = 0
    peak: int | None = 0
    for cost in costs:
        if level is None or peak is None or cost.held_bytes is None or cost.peak_bytes is None:
            level = peak = None
            continue
        peak = max(peak, level + cost.peak_bytes)
        level += cost.held_bytes
    return ActionCost(
        sum(cost.duration_ns for cost in costs),
        level,
        peak,
        sum_if_known([cost.uncontended_ns for cost in costs]),
        sum_if_known([cost.contended_ns for cost in costs]),
    )


def _one(sizes: Sequence[int | None]) -> int | None:
    return sizes[0] if len(set(sizes)) == 1 else None


def _transfer_ns(pipeline: Pipeline, shape: PipelineShape, stage: int, step: int) -> int:
    """Time of a message to the next stage or the one before: as measured between the two ranks, else the median."""
    was = pipeline.observed.shape
    measured = {
        (was.rank_of(s.stage), was.rank_of(s.stage + step)): s.forward_transfer_ns
        if step > 0
        else s.backward_transfer_ns
        for s in pipeline.stages
        if 0 <= s.stage + step < was.stages
    }
    ends = shape.rank_of(stage), shape.rank_of(stage + step)
    if ends[0] == ends[1] or not measured:
        return 0
    return measured[ends] if ends in measured else round(median(measured.values()))


def _order(shape: PipelineShape) -> Schedule:
    orders = []
    for rank in range(shape.ranks):
        mine = [stage for stage in range(shape.stages) if shape.rank_of(stage) == rank]
        forwards = [Action(s, F, m) for s in mine for m in range(shape.microbatches)]
        backwards = [Action(s, B, m) for s in reversed(mine) for m in range(shape.microbatches)]
        orders.append((*forwards, *backwards))
    return Schedule("re-cut", shape, tuple(orders)).validate()
