"""Ranks that work on the same layers (tensor, context, expert parallel): what each takes, and what it waits for others.

They meet in the collectives of their actions, so that an action takes on all of them what it takes on the slowest.
Its own time on a rank is what is left without the waits in those collectives. Together it takes the longest own time,
and what it took besides on every rank, as peers are not slow in the same layers. What it took on some ranks alone is
left out: a rank that is through sooner begins the next action sooner, and waits in it for the others.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.capture.waits import Union
from tracetool.stragglers.step import global_rank, with_times
from tracetool.units import format_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tracetool.model.pipeline import Pipeline
    from tracetool.reconstruction.actions import Segment
    from tracetool.reconstruction.actions.tails import StepCollective
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.recorded_step import RecordedStep
    from tracetool.replays.flow import Bools, Int64s
    from tracetool.stragglers.step import OwnTimes, Peers

InsideWaits = dict[tuple[int, ActionKind], tuple[int, ...] | None]
"""By stage and kind, what each action waited in its collectives, by microbatch, in ns; None if that is unknown."""


def waits_inside(recorded: RecordedStep) -> InsideWaits:
    """What actions of a step waited for ranks that share their layers: those of stages and kinds that meet any.

    A wait counts for as long as no kernel of its rank computes beside it.
    """
    inside: InsideWaits = {}
    for rank, work in recorded.work.ranks.items():
        segments = sorted(work.segments, key=lambda s: s.start_ns)
        groups = {
            (stage.stage, kind): {use.group_ranks for use in uses if len(use.group_ranks) > 1}
            for stage in recorded.pipeline.stages
            for kind, uses in stage.collectives.items()
        }
        groups = {(s.stage, s.kind): groups.get((s.stage, s.kind), set()) for s in segments}
        if not any(groups.values()):
            continue
        collectives = recorded.collectives.get(rank, ())
        waited = _waited_ns(segments, groups, collectives)
        unmatched = {one.group_ranks for one in collectives if one.name is None}
        ordered = sorted(zip(segments, waited, strict=True), key=lambda pair: pair[0].microbatch)
        for key, awaited in groups.items():
            if awaited:
                mine = tuple(ns for segment, ns in ordered if (segment.stage, segment.kind) == key)
                inside[key] = None if awaited & unmatched else mine
    return inside


def _waited_ns(
    segments: Sequence[Segment],
    groups: Mapping[tuple[int, ActionKind], Collection[tuple[int, ...]]],
    collectives: Iterable[StepCollective],
) -> list[int]:
    """What each action of a rank waited in the collectives of its groups."""
    import numpy as np

    starts = [s.start_ns for s in segments]
    waits: list[tuple[int, int, int]] = []
    until = 0
    for one in collectives:
        place = bisect_right(starts, one.start_ns) - 1
        segment = segments[max(0, place)]
        if place < 0 or one.group_ranks not in groups[segment.stage, segment.kind]:
            continue
        begin = max(one.start_ns, until)
        until = max(until, min(one.end_ns - one.own_ns, segment.end_ns))
        if until > begin:
            waits.append((place, begin, until))
    if not waits:
        return [0] * len(segments)
    places, begins, ends = np.array(waits, np.int64).T
    computing = sorted(
        (k.start_ns, k.end_ns) for s in segments for k in s.kernels if k.is_compute and not k.is_collective
    )
    computed = Union(*np.array(computing, np.int64).T).within(begins, ends) if computing else 0
    waited: list[int] = np.bincount(places, ends - begins - computed, len(segments)).astype(np.int64).tolist()
    return waited


class Together(NamedTuple):
    """Pipelines with what their actions take together.

    Attributes:
        pipelines: Their costs.
        own: Per pipeline, by stage and kind, what each action takes by itself, by microbatch; only of ranks that share
            layers.
        peers: By pipeline, stage and kind, the pipelines whose ranks meet in its actions, itself among them; likewise.
    """

    pipelines: tuple[Pipeline, ...]
    own: tuple[OwnTimes, ...]
    peers: Peers


def put_together(pipelines: Sequence[Pipeline], inside: Sequence[InsideWaits], account: Account) -> Together:
    """What actions take together, on ranks that share layers.

    Args:
        pipelines: Those of a job.
        inside: Per pipeline, what its actions waited.
        account: Told of ranks whose waits are not known: their actions take what they took.
    """
    own: list[OwnTimes] = [{} for _ in pipelines]
    stages = [list(one.stages) for one in pipelines]
    peers: Peers = {}
    unknown: set[int] = set()
    for stage, part, are_known in _parts(pipelines, inside):
        if not are_known:
            unknown |= {global_rank(pipelines[number], stage) for number in part}
        elif len(part) > 1:
            for kind in pipelines[part[0]].stages[stage].costs:
                waits = [of_kind for number in part if (of_kind := inside[number].get((stage, kind))) is not None]
                if len(waits) < len(part):  # peers do not meet in actions of this kind
                    continue
                peers |= {(number, stage, kind): part for number in part}
                recorded = [
                    [cost.duration_ns for cost in pipelines[number].stages[stage].costs[kind]] for number in part
                ]
                mine, took = _own_and_together(recorded, waits)
                for number, times in zip(part, mine, strict=True):
                    own[number][stage, kind] = times
                    stages[number][stage] = with_times(stages[number][stage], kind, took)
    if unknown:
        account.note(
            NoticeCode.PEERS_UNMATCHED,
            f"{format_ranks(sorted(unknown))}: collectives inside computes could not be matched with those of all "
            "ranks that share their layers, so the computes may hold waits for a slow one, and look slow, too",
        )
    return Together(
        tuple(replace(one, stages=tuple(of_one)) for one, of_one in zip(pipelines, stages, strict=True)),
        tuple(own),
        peers,
    )


def _own_and_together(
    recorded: Sequence[Sequence[int]], waits: Sequence[Sequence[int]]
) -> tuple[list[tuple[int, ...]], list[int]]:
    """By rank and microbatch the own times of actions, and by microbatch what they take on all of the ranks."""
    own = [
        tuple(max(0, ns - wait) for ns, wait in zip(*of_rank, strict=True))
        for of_rank in zip(recorded, waits, strict=True)
    ]
    # The rank that begins last waits for nobody's start; what is more than any own time, peers wait for in turns.
    return own, [
        max(*mine, min(all_of))
        for mine, all_of in zip(zip(*own, strict=True), zip(*recorded, strict=True), strict=True)
    ]


def _parts(pipelines: Sequence[Pipeline], inside: Sequence[InsideWaits]) -> Iterator[tuple[int, tuple[int, ...], bool]]:
    """By stage, pipelines whose ranks meet inside its actions, and whether all of what they wait there is known."""
    known = {profile.rank for one in pipelines for profile in one.ranks}
    for stage in range(max(len(one.stages) for one in pipelines)):
        of_stage = {n: one.stages[stage] for n, one in enumerate(pipelines) if stage < len(one.stages)}
        holders = {global_rank(pipelines[n], stage): n for n in of_stage}
        groups = {use.group_ranks for one in of_stage.values() for uses in one.collectives.values() for use in uses}
        parts: list[set[int]] = []
        for group in sorted(groups):
            part = {holders[rank] for rank in group if rank in holders}
            met = [other for other in parts if other & part]
            parts = [*(other for other in parts if not other & part), part.union(*met)]
        for part in parts:
            numbers = tuple(sorted(part))
            shapes = {(pipelines[n].observed.shape, frozenset(of_stage[n].costs)) for n in numbers}
            uses = {use.group_ranks for n in numbers for uses in of_stage[n].collectives.values() for use in uses}
            waits = [inside[n].get((stage, kind), ()) for n in numbers for kind in of_stage[n].costs]
            yield stage, numbers, len(shapes) == 1 and None not in waits and all(map(known.issuperset, uses))


def taken_together(took: Int64s, before: Int64s, now: Int64s, all_typical: Bools) -> Int64s:
    """What actions take on ranks that share layers, in many what-ifs; as they did where no own time changed.

    Args:
        took: What they took, in ns, by microbatch.
        before: The own times of that, by rank and microbatch.
        now: The own times by rank, microbatch and what-if.
        all_typical: Per what-if, whether the ranks' own times are all the typical one.

    Returns:
        int64 in ns, by microbatch and what-if.
    """
    import numpy as np

    besides = (took - before.max(axis=0))[:, None]
    together: Int64s = now.max(axis=0) + np.where(all_typical, 0, besides)
    return together
