"""Several equal pipelines that share the links between DCs (data parallel replicas).

Temporal sharing (Atlas, arXiv 2411.14458, as its abstract describes it; the model is this tool's own): a message has
the whole bandwidth for its payload, messages of all pipelines one after another, first come first served. Spatial
sharing: every pipeline has its share of the bandwidth all the time. Equal pipelines that start together stay in step
then, so that one of them over a link of that share is all of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.costs.over_links import pipelines_joined
from tracetool.errors import Option, UnsupportedShape
from tracetool.model.timeline import Op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import Pipeline, RankProfile, TailPart
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import Timeline
    from tracetool.model.topology import Topology


def with_shares(pipeline: Pipeline, pipelines: int) -> Pipeline:
    """The pipeline over its shares of the links: a collective has those of all pipelines that it joins."""
    ranks = [profile.rank for profile in pipeline.ranks]

    def own(uses: tuple[CollectiveUse, ...]) -> tuple[CollectiveUse, ...]:
        return tuple(replace(use, shares=min(pipelines, pipelines_joined(use, ranks))) for use in uses)

    stages = tuple(
        replace(stage, collectives={kind: own(uses) for kind, uses in stage.collectives.items()})
        for stage in pipeline.stages
    )
    profiles = tuple(
        replace(
            profile,
            tail=tuple(replace(part, collectives=own(part.collectives)) for part in profile.tail),
            overlapped=own(profile.overlapped),
        )
        for profile in pipeline.ranks
    )
    return replace(pipeline, stages=stages, ranks=profiles)


def side_by_side(
    pipeline: Pipeline, schedule: Schedule, topology: Topology, pipelines: int
) -> tuple[Pipeline, Schedule, Topology]:
    """So many copies of a pipeline as one: its stages and ranks again and again, no messages between copies.

    Copies stand for the pipelines that the groups of collectives join: a collective with ranks of two pipelines is
    one of every two copies.

    Raises:
        UnsupportedShape: If the pipeline itself holds two copies of its stages.
    """
    copies = [_copy(pipeline, copy) for copy in range(pipelines)]
    return as_one(copies, schedule.shape.stages), repeated(schedule, pipelines), topology.beside(pipelines)


def repeated(schedule: Schedule, pipelines: int) -> Schedule:
    """The order of so many pipelines as one.

    Raises:
        UnsupportedShape: If the order itself holds two copies of its stages.
    """
    shape = schedule.shape
    if shape.is_bidirectional:
        raise UnsupportedShape(
            f"{schedule.name} runs two opposed pipelines already: several of them over shared links are not modelled.",
            hint=f"take another schedule, or give this pipeline the links for itself ({Option.PIPELINES_ON_LINK(1)})",
        )
    orders = tuple(
        tuple(action._replace(stage=action.stage + copy * shape.stages) for action in order)
        for copy in range(pipelines)
        for order in schedule.orders
    )
    many = replace(shape, ranks=shape.ranks * pipelines, copies=pipelines)
    return replace(schedule, shape=many, orders=orders, overlaps=schedule.overlaps * pipelines)


def as_one(pipelines: Sequence[Pipeline], stages: int) -> Pipeline:
    """Pipelines of the same shape as one, the stages and ranks of one after those of the other.

    Args:
        pipelines: At least one; what is no cost of a stage or rank is the first one's.
        stages: Of each, as its schedule has them.
    """
    memories = [pipeline.memory for pipeline in pipelines if pipeline.memory is not None]
    return replace(
        pipelines[0],
        stages=tuple(
            replace(s, stage=s.stage + place * stages) for place, one in enumerate(pipelines) for s in one.stages
        ),
        ranks=tuple(rank for one in pipelines for rank in one.ranks),
        memory=as_one(memories, stages) if len(memories) == len(pipelines) else None,
    )


def _copy(pipeline: Pipeline, copy: int) -> Pipeline:
    memory = None if pipeline.memory is None else _copy(pipeline.memory, copy)
    return replace(pipeline, ranks=tuple(_copied_rank(rank, pipeline, copy) for rank in pipeline.ranks), memory=memory)


def _copied_rank(profile: RankProfile, pipeline: Pipeline, copy: int) -> RankProfile:
    """A rank of a copy: its collectives are named apart from those of copies that have no part in them."""
    ranks = [other.rank for other in pipeline.ranks]

    def own(use: CollectiveUse, name: str) -> CollectiveUse:
        return replace(use, meeting=f"{use.meeting or name} of {copy // pipelines_joined(use, ranks)}")

    def part(number: int, tail: TailPart) -> TailPart:
        names = [tail.meet or f"{number}.0 of rank {profile.rank}"]
        names += [f"{number}.{place} of rank {profile.rank}" for place in range(1, len(tail.collectives))]
        uses = tuple(own(use, name) for use, name in zip(tail.collectives, names, strict=False))
        if tail.meet is None:
            return replace(tail, collectives=uses)
        return replace(tail, meet=uses[0].meeting if uses else f"{tail.meet} of {copy}", collectives=uses)

    return replace(
        profile,
        tail=tuple(part(number, each) for number, each in enumerate(profile.tail)),
        overlapped=tuple(own(use, f"{n} beside rank {profile.rank}") for n, use in enumerate(profile.overlapped)),
    )


def slowest(timeline: Timeline, ranks: int, stages: int) -> Timeline:
    """Of a timeline of copies of a pipeline, the one that ends last, as if it were alone.

    Args:
        timeline: All of them.
        ranks: Ranks of one pipeline.
        stages: Stages of one pipeline.
    """
    last = max(timeline.ops, key=lambda op: (op.end_ns, -op.rank)).rank // ranks
    # What copies do on the links that they share is part of why it took so long.
    shared = tuple(replace(one, rank=one.rank - last * ranks) for one in timeline.collectives)
    return replace(
        one_of(timeline, last, ranks, stages), global_ranks=timeline.global_ranks[:ranks], collectives=shared
    )


def one_of(timeline: Timeline, place: int, ranks: int, stages: int) -> Timeline:
    """Of a timeline of several pipelines, one as if it were alone.

    Args:
        timeline: All of them.
        place: Which.
        ranks: Ranks of one pipeline.
        stages: Stages of one pipeline.
    """
    first_rank, first_stage = place * ranks, place * stages
    mine = range(first_rank, first_rank + ranks)
    return replace(
        timeline,
        global_ranks=timeline.global_ranks[first_rank : first_rank + ranks],
        ops=tuple(
            replace(op, rank=op.rank - first_rank, stage=op.stage - first_stage)
            if isinstance(op, Op)
            else replace(op, rank=op.rank - first_rank)
            for op in timeline.ops
            if op.rank in mine
        ),
        transfers=tuple(
            replace(
                t,
                src_rank=t.src_rank - first_rank,
                dst_rank=t.dst_rank - first_rank,
                src_stage=t.src_stage - first_stage,
                dst_stage=t.dst_stage - first_stage,
            )
            for t in timeline.transfers
            if t.src_rank in mine
        ),
        collectives=tuple(replace(one, rank=one.rank - first_rank) for one in timeline.collectives if one.rank in mine),
        memory=timeline.memory[first_rank : first_rank + ranks],
        overhead_bytes=timeline.overhead_bytes[first_rank : first_rank + ranks],
    )
