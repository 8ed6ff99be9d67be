"""Bytes that a plan's step moves over each tier, all ranks together.

A tier's are those of pairs that meet there. Collectives count as what rings carry, all-to-alls as what each rank sends
every other one, as in ``network.traffic``; other ways to run a collective carry other bytes over the outer tiers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.estimates.layer_costs import BYTES
from tracetool.estimates.memory import GRADIENT_BYTES, WEIGHT_BYTES
from tracetool.explore.seats import seats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.seats import Groups


def tier_bytes(workload: Workload, plan: JobPlan) -> tuple[int, ...]:
    """By tier, from the inside out.

    Args:
        workload: What is trained, and on what.
        plan: How.
    """
    network = workload.choice.network
    sums = [0.0] * len(network.tiers)
    for counts, size in _moved(workload, plan):
        for number, count in enumerate(counts):
            sums[number] += count * size
    sums[-1] *= plan.compression_ratio
    return tuple(map(round, sums))


def _moved(workload: Workload, plan: JobPlan) -> Iterator[tuple[Sequence[int], float]]:
    """How many edges or pairs of each tier carry how many bytes each."""
    model, how = workload.model, plan.training
    found = seats(workload.choice.network, plan.placement, how.degrees)
    tokens = how.batch * how.sequence // how.context
    passes = how.microbatches * model.layers // how.stages
    # Forward, backward, and forward once more where it is recomputed.
    often = passes * (3 if how.recompute == "full" else 2)
    yield _ring(found.groups["tp"], how.tensor, often * 4 * BYTES * tokens * model.hidden)
    keys = BYTES * 2 * how.batch * how.sequence * model.kv_width // how.tensor
    yield _ring(found.groups["cp"], how.context, (often + passes) * keys)
    if model.experts:
        sent = BYTES * tokens * model.experts.top * model.hidden // how.tensor
        yield found.groups["ep"].pairs, often * 2 * sent / how.expert
    layers = model.layers / how.stages
    ends = (model.embedding_parameters + model.head_parameters) / how.stages
    per_parameter = GRADIENT_BYTES + WEIGHT_BYTES if how.sharded_optimizer else 2 * GRADIENT_BYTES
    shared = (layers * model.shared_parameters + ends) / how.tensor
    yield _ring(found.groups["gradients"], how.data * how.context, per_parameter * shared)
    experts = layers * model.expert_parameters / how.expert / how.tensor
    yield _ring(found.groups["expert_gradients"], how.data * how.context // how.expert, per_parameter * experts)
    message = BYTES * tokens * model.hidden // how.tensor
    shape = how.shape
    for stage in range(shape.stages - 1):
        one, other = shape.rank_of(stage), shape.rank_of(stage + 1)
        if one != other:
            hop = min(one, other) if abs(one - other) == 1 else max(one, other)
            yield found.lines[0].hops[hop].pairs, 2 * how.microbatches * message


def _ring(groups: Groups, ranks: int, payload_bytes: float) -> tuple[Sequence[int], float]:
    return groups.edges, payload_bytes * (ranks - 1) / ranks
