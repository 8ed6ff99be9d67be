"""Bytes that a plan's step moves over each tier, all ranks together.

A tier's are those of pairs that meet there. Collectives count as what rings carry, all-to-alls as what each rank sends
every other one, as in ``network.traffic``. Over the outer tiers other ways to run a collective carry fewer: of n ranks
in s groups a ring passes s edges with 2 (n - 1)/n V, hierarchical all-reduces and trees carry 2 (s - 1) V in all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.estimates.seats import seats
from tracetool.estimates.volumes import volumes
from tracetool.network.phases import ROUNDS
from tracetool.network.traffic import EMBEDDING, MESSAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracetool.estimates.seats import Groups
    from tracetool.estimates.training import Group
    from tracetool.explore.candidates import Base
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.replays.flow import Int64s


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


def outer_bytes(workload: Workload, bases: Sequence[Base], needed: Sequence[bool]) -> Int64s:
    """Bytes that the steps of all plans of bases move over the outermost tier: they depend on where stages are alone.

    Args:
        workload: What is trained, and on what.
        bases: Which.
        needed: Of each plan, whether its bytes are asked for; of others they are 0.
    """
    import numpy as np

    outer = np.zeros(len(needed), np.int64)
    at = 0
    for base in bases:
        known: dict[tuple[int, str], int] = {}
        for order in base.orders:
            uses = slice(at, at := at + len(base.uses))
            if not any(needed[uses]):
                continue
            placed = order.chunks, order.placement
            if placed not in known:
                plan = replace(base.plan, training=order.of(base.plan.training))
                known[placed] = tier_bytes(workload, plan)[-1]
            outer[uses] = known[placed]
    return outer


_GROUPS: dict[tuple[str, ...], Group] = {("cp", "ep", "dp"): "gradients", ("cp", "dp"): "expert_gradients"}
"""Groups by the dimensions that they lie along, where it is several."""


def _moved(workload: Workload, plan: JobPlan) -> Iterator[tuple[Sequence[int], float]]:
    """How many edges or pairs of each tier carry how many bytes each."""
    how = plan.training
    seated_at = seats(workload.choice.network, plan.placement, how.degrees)
    wide: dict[Group, int] = {
        "tp": how.tensor, "cp": how.context, "ep": how.expert, "gradients": how.data * how.context,
        "expert_gradients": how.data * how.context // how.expert,
    }  # fmt: skip
    for name, moved in volumes(workload.model, how).items():
        for volume in moved:
            if volume.kind == MESSAGES or name == EMBEDDING:
                # Neighbours hand each other messages; the two ends of a pipeline a gradient that both have a half of.
                one, other = volume.members
                hop = min(one, other) if abs(one - other) == 1 else max(one, other)
                yield seated_at.lines[0].hops[hop].pairs, 2 * volume.payload_bytes
                continue
            kind = _GROUPS.get(volume.along) or _kind(name)
            payload = volume.payload_bytes / (1 if volume.stage is None else how.stages)
            if volume.kind == "alltoall":
                yield seated_at.groups[kind].pairs, payload / wide[kind]
            else:
                yield _ring(seated_at.groups[kind], wide[kind], ROUNDS[volume.kind] * payload)


def _kind(name: str) -> Group:
    return next(kind for kind in ("tp", "cp", "ep") if kind == name)


def _ring(groups: Groups, ranks: int, payload_bytes: float) -> tuple[Sequence[int], float]:
    return groups.edges, payload_bytes * (ranks - 1) / ranks
