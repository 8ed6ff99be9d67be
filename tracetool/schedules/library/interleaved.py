"""Interleaved 1F1B: several stages per rank, so that the pipeline fills sooner.

Source: Narayanan et al., arXiv 2104.04473; torch's ``ScheduleInterleaved1F1B`` and Megatron-LM's
``forward_backward_pipelining_with_interleaving``, which agree where m is a multiple of p.
Microbatches go round in groups: one through the first chunk, then through the second. torch's groups have
m / max(1, m // p) microbatches. Megatron's have p, or as many as ``microbatch_group_size_per_vp_stage`` says (here the
option ``group``), at least p; the last one may be smaller, but not below p.
Phases on rank r: 2(p - r - 1) + (v - 1) * group forwards, (F, B) pairs, the remaining Bs.
Shape: v >= 2, looped; m a multiple of max(1, m // p), or with a group g: g >= p, and m mod g is 0 or at least p.
Memory: rank r holds 2(p - r - 1) + (v - 1) * group + 1 stages' microbatches.
Bubble: (p - 1)(f + b) / v at equal stages and zero delay, f and b those of a whole rank.
"""

from __future__ import annotations

from tracetool.errors import UnsupportedShape
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape, Schedule
from tracetool.schedules import ScheduleKind, ScheduleOptions
from tracetool.schedules.orders import require_chunks, rounds_of, torch_group


def build(shape: PipelineShape, options: ScheduleOptions) -> Schedule:
    """Groups of microbatches through one chunk after another, backwards through the chunks in reverse."""
    require_chunks("interleaved", shape, placement="loop")
    group = torch_group("interleaved", shape) if options.group is None else _megatron_group(shape, options.group)
    turns = rounds_of(shape, group)
    orders = tuple(_order(rank, shape, group, turns) for rank in range(shape.ranks))
    return Schedule("interleaved", shape, orders, blocking=False, batched=True)


def _megatron_group(shape: PipelineShape, group: int) -> int:
    p, m = shape.ranks, shape.microbatches
    if group < p or 0 < m % group < p:
        fitting = [g for g in range(p, m + 1) if m % g == 0 or m % g >= p]
        raise UnsupportedShape(
            f"interleaved: groups of {group} do not fit {m} microbatches on {p} ranks: a group, the last one too, "
            f"needs at least {p}.",
            hint=f"groups that fit: {', '.join(map(str, fitting))}" if fitting else f"use at least {p} microbatches",
        )
    return group


def _order(rank: int, shape: PipelineShape, group: int, turns: list[tuple[int, int]]) -> tuple[Action, ...]:
    p, v, total = shape.ranks, shape.chunks, len(turns)
    forwards = [Action(chunk * p + rank, ActionKind.FORWARD, j) for chunk, j in turns]
    backwards = [Action((v - 1 - chunk) * p + rank, ActionKind.BACKWARD, j) for chunk, j in turns]
    warm_up = min(total, (v - 1) * group + 2 * (p - 1 - rank))
    pairs = [action for pair in zip(forwards[warm_up:], backwards, strict=False) for action in pair]
    return (*forwards[:warm_up], *pairs, *backwards[total - warm_up :])


def _options_in(observed: Schedule) -> tuple[ScheduleOptions, ...]:
    """Groups as torch has them, or Megatron: the last rank's forwards of its first stage ahead of another action."""
    order, stage = observed.orders[-1], observed.shape.ranks - 1
    ahead = (i for i, a in enumerate(order) if a.kind is not ActionKind.FORWARD or a.stage != stage)
    return ScheduleOptions(), ScheduleOptions(group=next(ahead, len(order)) or None)


SCHEDULE = ScheduleKind(
    name="interleaved",
    summary="interleaved 1F1B: several stages per rank, groups of p microbatches (or more) in turn",
    source="arXiv 2104.04473; torch ScheduleInterleaved1F1B, Megatron-LM",
    constraints="v >= 2, looped; m a multiple of max(1, m // p), or a group g >= p with m mod g = 0 or >= p",
    bubble="(p-1)(f+b)/v",
    in_flight="2(p-r-1)+(v-1)p+1 chunks on rank r (p: the group)",
    build=build,
    aliases=("Interleaved1F1B", "VPP"),
    least_chunks=2,
    heeds=frozenset({"group"}),
    recognition_rank=0,
    options_in=_options_in,
    is_compared=True,
    is_compared_recut=True,
)
