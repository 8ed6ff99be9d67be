"""Jobs of several pipelines: which of them is compared, which of its ranks is slow, and whose computes changed.

The step of a job is that of its slowest pipeline, of each side's own. Which rank of a stage is slow, kernels tell: in
actions and messages, ranks that share layers wait for each other.
"""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median, median_low
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from tracetool.comparison.reported import read_report
from tracetool.model.job import ALIKE_RATIO
from tracetool.reconstruction.capture.coordinates import read_coordinates
from tracetool.reconstruction.job import longest_pipelines, sorted_pipelines
from tracetool.store.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.comparison.report import ReportInfo
    from tracetool.ingestion.recording import JobRecord, Recording, StageRanksRecord
    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.reconstruction.job import LongestPipelines

Item = Run | Path
_EXPLAINS = 0.5
"""Kernels tell why computes changed if they did by that share of it."""
_ALSO = 0.25
"""A rank changed as well if its kernels did by that share of what those of the slowest compared one did; where that is
little, by half of it, up to what counts as a change."""


class ChosenPipeline(NamedTuple):
    """Which pipeline of a Run is compared.

    Attributes:
        number: Its number.
        longest: Those of all that set the step; None where the pipeline was named.
    """

    number: int
    longest: LongestPipelines | None = None


def chosen_pipelines(base: Sequence[Item], new: Sequence[Item]) -> list[list[ChosenPipeline | None]]:
    """The pipelines that set the step of each Run, per side: one that does so in all of them, else each its own.

    Where pipelines of a Run were not recorded whole, only those that all have are looked at; beside a report of one
    pipeline that was named, the same is.

    Args:
        base: Runs, and paths of reports, whose pipelines are given.
        new: Likewise.

    Raises:
        StoreError: If a report cannot be read.
    """
    runs = [item for item in (*base, *new) if isinstance(item, Run)]
    reports = [read_report(item) for item in (*base, *new) if isinstance(item, Path)]
    seats = [read_coordinates(run) for run in runs]
    whole = [_whole_pipelines(run, rows) for run, rows in zip(runs, seats, strict=True)]
    given = [{tuple(sorted(report.run.global_ranks))} for report in reports]
    common = _common([*map(set, whole), *given])
    is_part = (
        any(sorted_pipelines(run).left_out for run in runs)
        or any(not row.recorded for rows in seats for row in rows)
        or any(map(_is_part, reports))
    )
    among = [common if is_part and common else set(own) for own in whole]
    longest = [longest_pipelines(run) for run in runs]
    of_those = [
        long
        if len(ours) == len(own)
        else longest_pipelines(run, [number for ranks, number in own.items() if ranks in ours])
        for run, own, ours, long in zip(runs, whole, among, longest, strict=True)
    ]
    as_long = [
        {ranks for ranks, number in own.items() if number in long.numbers}
        for own, long in zip(whole, of_those, strict=True)
    ]
    shared = min(_common([*as_long, *given]), default=None)
    chosen = iter(
        ChosenPipeline(own[shared] if shared is not None else next(iter(ours.numbers), 0), long)
        for own, ours, long in zip(whole, of_those, longest, strict=True)
    )
    return [[next(chosen) if isinstance(item, Run) else None for item in side] for side in (base, new)]


def _common(pipelines: Sequence[set[tuple[int, ...]]]) -> set[tuple[int, ...]]:
    return set.intersection(*pipelines) if pipelines else set()


def _is_part(report: ReportInfo) -> bool:
    """Whether a report is of less than a whole job: of a pipeline that was named, or recorded without others."""
    job = UNSET if report.recording is None else report.recording.job
    return job is UNSET or not job.sets_step or any(stage.unrecorded for stage in job.stages)


def _whole_pipelines(run: Run, seats: Sequence[Coordinates]) -> dict[tuple[int, ...], int]:
    """Numbers of the pipelines that were recorded whole, by their ranks."""
    whole = {number for alike in sorted_pipelines(run).alike for number in alike.numbers}
    return {tuple(row.rank for row in seats if row.pipeline == number): number for number in sorted(whole)}


class OutlyingRank(NamedTuple):
    """A rank that those of its pipeline wait for.

    Attributes:
        place: Its position in the pipeline.
        rank: Global rank.
    """

    place: int
    rank: int


def outlying_rank(recording: Recording) -> OutlyingRank | None:
    """The rank that stands out most among those of its stage, of a pipeline and those that share its layers."""
    if recording.job is UNSET:
        return None
    slow: list[tuple[float, OutlyingRank]] = []
    for place, (rank, stage) in enumerate(zip(recording.global_ranks, recording.job.stages, strict=True)):
        times = _known_ns(stage)
        peers = [one for one in _peers(stage, rank) if one in times]
        if peers and len(times) > 1:
            lead = max(peers, key=lambda one: times[one])
            slow.append((_slower_ratio(times, lead), OutlyingRank(place, lead)))
    ratio, first = max(slow, default=(0.0, None))
    return first if ratio > ALIKE_RATIO else None


def outlying_ranks(recordings: Sequence[Recording]) -> frozenset[OutlyingRank]:
    """The ranks that stand out in recordings of a side."""
    return frozenset(slow for one in recordings if (slow := outlying_rank(one)) is not None)


def places_of_others(base: Sequence[Recording], new: Sequence[Recording]) -> frozenset[int]:
    """Places in the pipeline at which other ranks of the same job set the step of the new side, or slow it down.

    Where no rank stands out on a side, its pipelines are alike: any of them stands for what the other side's would be.
    """
    before, after = (frozenset(one.place for one in outlying_ranks(side)) for side in (base, new))
    if not (before and after):
        return frozenset()
    if as_the_first(base[0], new[0]).global_ranks != new[0].global_ranks:
        return frozenset(range(len(new[0].global_ranks)))
    return before ^ after


def typical_recordings(recordings: Sequence[Recording], step_ns: float) -> tuple[Recording, ...]:
    """Of recordings in which other ranks are slow, those of one that come nearest to a step; else all.

    What is typical of several, one after the other slow, is typical of none.

    Args:
        recordings: Those of a side.
        step_ns: Its typical step.
    """
    groups: dict[object, list[Recording]] = {}
    for one in recordings:
        groups.setdefault((outlying_rank(one), tuple(one.global_ranks)), []).append(one)

    def distance(key: object) -> tuple[float, int]:
        steps = [step.step_ns for one in groups[key] for step in one.steps]
        return abs(median(steps) - step_ns), -len(groups[key])

    return tuple(groups[min(groups, key=distance)])


def unrecorded_ranks(recordings: Sequence[Recording], place: int) -> frozenset[int]:
    """Ranks that hold the same stages as a pipeline rank, and were not recorded in some of several recordings."""
    jobs = [one.job for one in recordings if one.job is not UNSET]
    return frozenset(rank for job in jobs if place < len(job.stages) for rank in job.stages[place].unrecorded)


def is_waited_for(recording: Recording, rank: int) -> bool:
    """Whether a pipeline may wait for a rank of another one: inside actions, or for what sets the step."""
    if recording.job is UNSET or not recording.job.sets_step:
        return True
    places = zip(recording.global_ranks, recording.job.stages, strict=True)
    return any(rank in _peers(stage, own) for own, stage in places)


def as_the_first(first: Recording, recording: Recording) -> Recording:
    """A recording of another pipeline of the same job, its ranks under the numbers of the first one's."""
    jobs = [one.job for one in (first, recording) if one.job is not UNSET]
    if len({str([stage.ranks for stage in job.stages]) for job in jobs}) != 1 or len(jobs) < 2:
        return recording
    return replace(recording, global_ranks=first.global_ranks)


def _known_ns(stage: StageRanksRecord) -> dict[int, float]:
    return {rank: ns for rank, ns in zip(stage.ranks, stage.kernel_ns, strict=True) if ns is not None}


def _peers(stage: StageRanksRecord, rank: int) -> list[int]:
    """The ranks that a rank meets inside actions, itself included."""
    replica = dict(zip(stage.ranks, stage.replicas, strict=True)).get(rank)
    return [
        one for one, of in zip(stage.ranks, stage.replicas, strict=True) if one == rank or of == replica is not None
    ]


def _slower_ratio(times: Mapping[int, float], rank: int) -> float:
    """By how much a rank is slower than the others are on average."""
    others = [ns for one, ns in times.items() if one != rank]
    return times[rank] / fmean(others) - 1 if others else 0.0


class ChangedRanks(NamedTuple):
    """Whose computes changed, of all ranks that hold the stages of one pipeline rank.

    Attributes:
        ranks: Those whose kernels changed as what is compared did; empty if those of none did.
        recorded: All that were recorded.
        holders: How many there are.
        most: One of several that changed most, and stands out; None if none does.
        unrecorded_peers: Whether one that the compared rank meets inside actions was not recorded.
        kernels_ratio: By how much the kernels changed of the compared rank and those that it meets inside actions.
    """

    ranks: tuple[int, ...]
    recorded: int
    holders: int
    most: int | None
    unrecorded_peers: bool
    kernels_ratio: float

    @property
    def are_all(self) -> bool:
        """Whether all changed that were recorded, and they are several."""
        return 1 < len(self.ranks) == self.recorded


def changed_ranks(
    base: Sequence[Recording], new: Sequence[Recording], place: int, change_ratio: float
) -> ChangedRanks | None:
    """Whose kernels changed where computes of a pipeline rank did.

    Args:
        base: Recordings of one pipeline.
        new: Likewise.
        place: The pipeline rank.
        change_ratio: By how much its computes changed.

    Returns:
        None where there is one pipeline, or what is known of others is not the same on both sides.
    """
    jobs = [[recording.job for recording in side if recording.job is not UNSET] for side in (base, new)]
    if not all(jobs) or any(len(job.stages) <= place for side in jobs for job in side):
        return None
    before, after = (_median_ns(side, place) for side in jobs)
    stages = [side[0].stages[place] for side in jobs]
    peers = [_peers(stage, side[0].global_ranks[place]) for stage, side in zip(stages, (base, new), strict=True)]
    change = _change_ratio(
        max((before[rank] for rank in peers[0] if rank in before), default=0.0),
        max((after[rank] for rank in peers[1] if rank in after), default=0.0),
    )
    # Ranks that one side alone has are held against the usual one of the stage; of two, against the quicker.
    usual = median_low(before.values()) if before else 0.0
    sign = 1 if change_ratio > 0 else -1
    changes = {rank: sign * _change_ratio(before.get(rank, usual), ns) for rank, ns in after.items()}
    explains = sign * change >= _EXPLAINS * abs(change_ratio)
    least = max(_ALSO * abs(change), min(ALIKE_RATIO, _EXPLAINS * abs(change)))
    changed = {rank: own for rank, own in changes.items() if explains and own >= least}
    if not changed.keys() & {rank for of in peers for rank in of}:
        # Those changed that nobody waits for, while other ranks are compared.
        changed = {}
    return ChangedRanks(
        ranks=tuple(changed),
        recorded=len(stages[1].ranks) - len(stages[1].unrecorded),
        holders=len(stages[1].ranks),
        most=_most(changed),
        unrecorded_peers=any(rank in stages[1].unrecorded for rank in peers[1]),
        kernels_ratio=change,
    )


def _change_ratio(before: float, after: float) -> float:
    return after / before - 1 if before and after else 0.0


def _most(changes: Mapping[int, float]) -> int | None:
    """Which of several ranks changed most, if it stands out."""
    first = max(changes, key=lambda rank: changes[rank], default=None)
    if first is None or len(changes) == 1:
        return None
    others = [change for rank, change in changes.items() if rank != first]
    return first if changes[first] - fmean(others) > max(ALIKE_RATIO, _ALSO * changes[first]) else None


def _median_ns(jobs: Sequence[JobRecord], place: int) -> dict[int, float]:
    """Kernel times of the ranks that hold a place, over several recordings of them."""
    each = [_known_ns(job.stages[place]) for job in jobs]
    return {rank: median(times[rank] for times in each) for rank in each[0] if all(rank in times for times in each)}
