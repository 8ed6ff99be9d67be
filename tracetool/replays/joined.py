"""All pipelines of a job together: they share links, and meet in the collectives after their last computes.

Pipelines of one kind are replayed once where they share nothing while they compute. Then the tails of all ranks run
together: a reduction begins when the last rank of its group has come to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import BadTopology, Option, ScenarioError
from tracetool.model.job import AS_LONG_RATIO
from tracetool.model.timeline import Op
from tracetool.replays import Replayed, p2p_of, replay
from tracetool.replays.side_by_side import as_one, one_of, repeated
from tracetool.replays.tail import LinkQueues, run_tails
from tracetool.units import format_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.pipeline import JobPipelines, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.timeline import TailCollective, Timeline
    from tracetool.model.topology import Topology


class PipelineTimes(NamedTuple):
    """How long one pipeline took among the others; see ``metrics``."""

    window_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class JobReplayed:
    """All pipelines of a job, replayed together.

    Attributes:
        replayed: The pipeline that sets the step, with what follows its computes as all ranks met.
        place: Which of the pipelines it is.
        rank: Global rank, of it, of a pipeline that computes as long or of one that it meets within actions, whose
            kernels take longer than those of other ranks of its stage; None if none stands out.
        times: Of each pipeline.
        of_kinds: Per kind of pipeline, the Timeline of one, its tail by itself: what it holds in memory.
    """

    replayed: Replayed
    place: int
    rank: int | None
    times: tuple[PipelineTimes, ...]
    of_kinds: tuple[Timeline, ...]


def replay_joined(job: JobPipelines, schedule: Schedule, scenario: Scenario) -> JobReplayed:
    """Run a schedule on all pipelines of a job.

    Args:
        job: All of them, on stages of the same shape: those of one kind have the same costs.
        schedule: The order that each runs.
        scenario: What differs from the measurement; places of all ranks by its map, where it has one.

    Raises:
        BadTopology: If the map leaves out a rank.
        ScenarioError: If the scenario says how many pipelines share links, or places them on a network, or some that
            would share links were not recorded whole.
        TraceToolError: As ``replay``.
    """
    pipelines, kinds = job.pipelines, job.kinds
    if scenario.topology.links and job.sorted.left_out:
        raise ScenarioError(
            f"pipelines {format_ranges(job.sorted.left_out)} were not recorded whole: what they send over the links "
            "that all share is not known.",
            hint=f"choose one ({Option.PIPELINE(0)}): the others count as equal to it then",
        )
    alone = _alone(schedule, pipelines[job.place], scenario)
    places = [_places(pipeline, alone.topology) for pipeline in pipelines]
    timelines = _computed(pipelines, kinds, places, schedule, alone)
    ranks = schedule.shape.ranks
    ends = [end for timeline in timelines for end in _ends(timeline, ranks)]
    costs = [
        MeasuredCosts(pipeline, replace(alone, topology=replace(alone.topology, dcs=dcs)), schedule)
        for pipeline, dcs in zip(pipelines, places, strict=True)
    ]
    met: list[TailCollective] = []
    tails = run_tails(
        ends,
        [one.tail(rank) for one in costs for rank in range(ranks)],
        [one.overlapped(rank) for one in costs for rank in range(ranks)],
        LinkQueues(costs[0].over_links),
        met,
    )
    done = list(ends)
    for op in tails:
        done[op.rank] = max(done[op.rank], op.end_ns)
    parts = [slice(first, first + ranks) for first in range(0, len(ends), ranks)]
    times = tuple(PipelineTimes(max(ends[part]), max(done[part])) for part in parts)
    place, rank = _setting(pipelines, times, _last_to_come(done, met) // ranks, job.sorted.slow_ranks)
    mine = range(parts[place].start, parts[place].stop)
    timeline = replace(
        timelines[place],
        global_ranks=tuple(profile.rank for profile in pipelines[place].ranks),
        ops=(
            *timelines[place].computes(),
            *(replace(op, rank=op.rank - mine.start) for op in tails if op.rank in mine),
        ),
        collectives=tuple(replace(one, rank=one.rank - mine.start) for one in met if one.rank in mine),
    )
    topology = replace(scenario.topology, dcs=places[place])
    return JobReplayed(
        replayed=Replayed(schedule, p2p_of(schedule, pipelines[job.place], scenario), timeline, topology),
        place=place,
        rank=rank,
        times=times,
        of_kinds=tuple(timelines[kinds.index(kind)] for kind in sorted(set(kinds))),
    )


def _alone(schedule: Schedule, pipeline: Pipeline, scenario: Scenario) -> Scenario:
    """The scenario of one pipeline that shares its links with no copy of itself."""
    if scenario.topology.seating is not None:
        raise ScenarioError(
            "pipelines that differ are not placed on a network together.",
            hint=f"replay one of them ({Option.PIPELINE(0)}), or give {Option.DC} and {Option.LINK}",
        )
    if scenario.pipelines is not None:
        raise ScenarioError(
            "how many pipelines share the links follows from the map where all of them are replayed together.",
            hint=f"leave out {Option.PIPELINES_ON_LINK}, or replay one pipeline ({Option.PIPELINE(0)})",
        )
    return replace(scenario, p2p=p2p_of(schedule, pipeline, scenario), pipelines=1)


def _places(pipeline: Pipeline, topology: Topology) -> tuple[str, ...]:
    """DCs of a pipeline's ranks; none without a map.

    Raises:
        BadTopology: If the map leaves out a rank.
    """
    if not topology.dcs:
        return ()
    known = dict(topology.rank_dcs)
    missing = [profile.rank for profile in pipeline.ranks if profile.rank not in known]
    if missing:
        raise BadTopology(
            f"the DC map does not say where rank {missing[0]} of another pipeline is.",
            hint=f"name the DC of every rank or host, or replay one pipeline ({Option.PIPELINE(0)})",
        )
    return tuple(known[profile.rank] for profile in pipeline.ranks)


def _computed(
    pipelines: Sequence[Pipeline],
    kinds: Sequence[int],
    places: Sequence[tuple[str, ...]],
    schedule: Schedule,
    scenario: Scenario,
) -> list[Timeline]:
    """When each pipeline computes: those that cross links in turns together, others by themselves."""
    sharing = [n for n, dcs in enumerate(places) if len(set(dcs)) > 1 and scenario.topology.links]
    shape, topology = schedule.shape, scenario.topology
    timelines: dict[int, Timeline] = {}
    if scenario.link_sharing == "spatial" and len(sharing) > 1:
        topology = topology.divided(max(1, topology.pipelines))
        sharing = []
    if len(sharing) > 1:
        dcs = tuple(dc for n in sharing for dc in places[n])
        every = as_one([pipelines[n] for n in sharing], shape.stages)
        together = replace(scenario, topology=replace(topology, dcs=dcs))
        done = replay(every, repeated(schedule, len(sharing)), together).timeline
        timelines = {n: one_of(done, place, shape.ranks, shape.stages) for place, n in enumerate(sharing)}
    known: dict[tuple[int, tuple[str, ...]], Timeline] = {}
    for n, (pipeline, kind, dcs) in enumerate(zip(pipelines, kinds, places, strict=True)):
        if n not in timelines:
            if (kind, dcs) not in known:
                own = replace(scenario, topology=replace(topology, dcs=dcs))
                known[kind, dcs] = replay(pipeline, schedule, own).timeline
            timelines[n] = known[kind, dcs]
    return [timelines[n] for n in range(len(pipelines))]


def _ends(timeline: Timeline, ranks: int) -> list[int]:
    """End of each rank's last compute."""
    ends = [0] * ranks
    for op in timeline.ops:
        if isinstance(op, Op):
            ends[op.rank] = max(ends[op.rank], op.end_ns)
    return ends


def _last_to_come(done: Sequence[int], met: Sequence[TailCollective]) -> int:
    """The rank whose computes the end of the step waits for: back from the last rank, over the last to each meeting."""
    by_rank: dict[int, list[TailCollective]] = {}
    by_meeting: dict[tuple[str, int], list[TailCollective]] = {}
    for one in met:
        by_rank.setdefault(one.rank, []).append(one)
        by_meeting.setdefault((one.use.meeting, one.end_ns), []).append(one)
    rank = max(range(len(done)), key=lambda rank: (done[rank], -rank))
    until = done[rank]
    while True:
        waited = [one for one in by_rank.get(rank, ()) if one.use.meeting and one.end_ns <= until and _waits(one)]
        if not waited:
            return rank
        last = max(waited, key=lambda one: one.end_ns)
        came = max(by_meeting[last.use.meeting, last.end_ns], key=lambda one: (one.came_ns, -one.rank))
        rank, until = came.rank, came.came_ns


def _setting(
    pipelines: Sequence[Pipeline], times: Sequence[PipelineTimes], last: int, slow_ranks: Mapping[int, float]
) -> tuple[int, int | None]:
    """The pipeline that sets the step, and the rank that stands out.

    Ranks that meet within actions wait for the slowest of them, so it is the slowest one by itself of those that the
    last pipeline meets there, and of all pipelines that compute as long; of these that end with it to the ns, its own
    pipeline is the one.
    """
    least = (1 - AS_LONG_RATIO) * times[last].window_ns
    waited_for = _met_within(pipelines[last])
    slow = [
        (slow_ranks[profile.rank], place == last, -place, profile.rank)
        for place, pipeline in enumerate(pipelines)
        for profile in pipeline.ranks
        if profile.rank in slow_ranks and (times[place].window_ns >= least or profile.rank in waited_for)
    ]
    if not slow:
        return last, None
    *_, place, rank = max(slow)
    is_one = times[-place].window_ns >= least and times[-place].step_ns == times[last].step_ns
    return -place if is_one else last, rank


def _met_within(pipeline: Pipeline) -> set[int]:
    """The ranks that a pipeline's ranks meet within actions."""
    own = {profile.rank for profile in pipeline.ranks}
    uses = (use for stage in pipeline.stages for of_kind in stage.collectives.values() for use in of_kind)
    return {rank for use in uses if own.intersection(use.group_ranks) for rank in use.group_ranks}


def _waits(one: TailCollective) -> bool:
    return one.came_ns < one.start_ns
