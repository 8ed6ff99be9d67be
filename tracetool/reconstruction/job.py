"""Which pipelines of a job are alike, and what all of them cost: those that are alike are looked at once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import NoPipeline, Option, ReconstructError, TraceToolError, checked
from tracetool.model.job import ALIKE_RATIO, AS_LONG_RATIO, AlikePipelines, SortedPipelines
from tracetool.model.timeline import measure
from tracetool.reconstruction import Reconstruction, reconstruct
from tracetool.reconstruction.actions.tails import meeting_of
from tracetool.reconstruction.capture.coordinates import read_coordinates
from tracetool.reconstruction.capture.process_groups import ProcessGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import Pipeline, RankProfile, TailPart
    from tracetool.store.run import Run

_COSTS_SQL = """
WITH compute AS (
    SELECT rank, count(*) AS kernels, sum(duration_ns) AS compute_ns
    FROM events
    WHERE category = 'kernel' AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
    GROUP BY rank
), inside AS (
    -- Groups of one replica: ranks meet in them within actions, and not to reduce gradients over replicas.
    SELECT ranks FROM (SELECT ranks, unnest(ranks) AS rank FROM (SELECT DISTINCT group_ranks AS ranks FROM comms))
    LEFT JOIN coordinates USING (rank)
    GROUP BY ranks HAVING count(dp) = count(*) AND min(dp) = max(dp)
), moved AS (
    SELECT w.rank, sum(w.transfer_ns) FILTER (w.operation = 'recv') AS received_ns,
           sum(w.wait_ns + w.transfer_ns) FILTER (inside.ranks IS NOT NULL) AS met_ns
    FROM waits AS w JOIN comms AS c USING (rank, position)
    LEFT JOIN inside ON c.group_ranks = inside.ranks AND w.operation NOT IN ('send', 'recv', 'exchange', 'barrier')
    GROUP BY w.rank
)
SELECT c.pipeline, c.rank, c.recorded, compute.kernels, compute.compute_ns, coalesce(moved.met_ns, 0),
       coalesce(moved.received_ns, 0)
FROM coordinates AS c LEFT JOIN compute USING (rank) LEFT JOIN moved USING (rank)
WHERE c.pipeline IS NOT NULL AND c.pp IS NOT NULL
ORDER BY c.pipeline, c.pp
"""
"""Per rank of a pipeline, what its whole capture holds: compute, what it met others for in it, received messages."""


@dataclass(frozen=True, slots=True)
class WholeJob:
    """The pipelines of a job with their costs.

    Attributes:
        sorted: Which of them are alike.
        firsts: Per kind of them, what was reconstructed of the first.
        pipelines: All that were recorded whole, in order of their numbers: of those that are alike, each with the
            costs of the first, under its own ranks and process groups.
        numbers: Theirs.
        kinds: Of each, which of the kinds it is.
    """

    sorted: SortedPipelines
    firsts: tuple[Reconstruction, ...]
    pipelines: tuple[Pipeline, ...]
    numbers: tuple[int, ...]
    kinds: tuple[int, ...]


class _RankCosts(NamedTuple):
    """What the capture of a rank holds.

    Attributes:
        rank: Global rank.
        recorded: Whether there is one.
        kernels: Its compute kernels; None for none.
        compute_ns: Their time; None for none.
        met_ns: Time of collectives within actions, with the waits in them.
        received_ns: Time of the messages that it received, without waits.
    """

    rank: int
    recorded: bool
    kernels: int | None
    compute_ns: int | None
    met_ns: int
    received_ns: int

    @property
    def busy_ns(self) -> int:
        """What actions take, as far as a capture tells without a look at them."""
        return (self.compute_ns or 0) + self.met_ns


KEPT_PIPELINES = "pipelines"
"""What a Run keeps its pipelines as, sorted."""


def kept_kind(number: int) -> str:
    """What a Run keeps one of its pipelines as that are unlike the first."""
    return f"pipeline-{number}"


def sorted_pipelines(run: Run) -> SortedPipelines:
    """The pipelines of a Run by their costs, as it keeps them, else sorted anew."""
    kept = run.kept(KEPT_PIPELINES)
    return kept if isinstance(kept, SortedPipelines) else sort_pipelines(run)


class SlowRank(NamedTuple):
    """A rank whose kernels take longer than those of the other ranks of its stage.

    Attributes:
        rank: Global rank.
        pipeline: Number of its pipeline.
        slower_ratio: By how much, on average, as a share of what those take.
    """

    rank: int
    pipeline: int
    slower_ratio: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"rank {self.rank} (pipeline {self.pipeline}): its kernels take {self.slower_ratio:.1%} longer than those "
            "of the other ranks of its stage"
        )


def slow_ranks(run: Run) -> list[SlowRank]:
    """Ranks that stand out among those of their stage, the slowest first; none of a single pipeline.

    Pipelines may be alike all the same: ranks that share layers wait inside actions for the slow one.
    """
    slower = sorted_pipelines(run).slow_ranks
    if not slower:
        return []
    of_rank = {row.rank: row.pipeline for row in read_coordinates(run) if row.pipeline is not None}
    slow = (SlowRank(rank, of_rank[rank], ratio) for rank, ratio in slower.items())
    return sorted(slow, key=lambda one: (-one.slower_ratio, one.rank))


def sort_pipelines(run: Run) -> SortedPipelines:
    """Sort the pipelines of a Run by their costs, without a look at single actions."""
    ranks: dict[int, list[_RankCosts]] = defaultdict(list)
    for number, *costs in run.rows(_COSTS_SQL):
        ranks[number].append(_RankCosts(*costs))
    kinds: list[tuple[list[int], list[float]]] = []
    whole = {
        n: of_ranks for n, of_ranks in ranks.items() if all(rank.recorded and rank.compute_ns for rank in of_ranks)
    }
    for number, of_ranks in whole.items():
        for numbers, apart in kinds:
            distance = _apart(ranks[numbers[0]], of_ranks)
            if distance <= ALIKE_RATIO:
                numbers.append(number)
                apart.append(distance)
                break
        else:
            kinds.append(([number], [0.0]))
    return SortedPipelines(
        alike=tuple(AlikePipelines(tuple(numbers), max(apart)) for numbers, apart in kinds),
        left_out=tuple(number for number in ranks if number not in whole),
        slower=_slower(list(whole.values())),
        kernel_ns={
            rank.rank: rank.compute_ns / rank.kernels
            for of_ranks in ranks.values()
            for rank in of_ranks
            if rank.compute_ns and rank.kernels
        },
    )


class LongestPipelines(NamedTuple):
    """The pipelines that set the step.

    Attributes:
        numbers: Theirs, in order; none where none was recorded whole with compute kernels.
        unread: By the number of a pipeline that cannot be reconstructed, why: whether it sets the step is not known.
    """

    numbers: tuple[int, ...]
    unread: Mapping[int, str]


def longest_pipelines(run: Run, among: Collection[int] | None = None) -> LongestPipelines:
    """Which pipelines have the longest window in the step of median length, or of these that of the slowest rank.

    Where gradients are reduced the step ends for all pipelines together: the window tells who is waited for. Of those
    that are alike the first stands for all. Ranks that share layers wait inside actions: of pipelines that are as long,
    that is the one that makes the others so.

    Args:
        run: The Run.
        among: Of which pipelines; by default of all that were recorded whole.
    """
    pipelines = sorted_pipelines(run)
    kinds = {kind.first: [n for n in kind.numbers if among is None or n in among] for kind in pipelines.alike}
    kinds = {first: numbers for first, numbers in kinds.items() if numbers}
    windows, unread = _windows_ns(run, kinds) if len(kinds) > 1 else (dict.fromkeys(kinds, 0), {})
    least = (1 - AS_LONG_RATIO) * max(windows.values(), default=0)
    longest = [number for first, window in windows.items() if window >= least for number in kinds[first]]
    slow = next((one.pipeline for one in slow_ranks(run) if one.pipeline in longest), None)
    return LongestPipelines(tuple(sorted(longest)) if slow is None else (slow,), unread)


def _windows_ns(run: Run, numbers: Iterable[int]) -> tuple[dict[int, int], dict[int, str]]:
    """Windows of pipelines in one step, and why others cannot be reconstructed."""
    step: int | None = None
    windows: dict[int, int] = {}
    unread: dict[int, str] = {}
    for number in numbers:
        try:
            one = _reconstructed(run, step, number)
        except TraceToolError as error:
            unread[number] = error.message
            continue
        step = one.pipeline.step
        windows[number] = measure(one.observed).window_ns
    return windows, unread


def _slower(pipelines: Sequence[Sequence[_RankCosts]]) -> dict[int, float]:
    """How much longer each rank's kernels took than those of the others of its stage."""
    slower = {}
    if len({len(of_ranks) for of_ranks in pipelines}) == 1 and len(pipelines) > 1:
        for of_stage in zip(*pipelines, strict=True):
            total = sum(rank.compute_ns or 0 for rank in of_stage)
            for rank in of_stage:
                others = (total - (rank.compute_ns or 0)) / (len(of_stage) - 1)
                slower[rank.rank] = (rank.compute_ns or 0) / others - 1
    return slower


def _apart(ones: Sequence[_RankCosts], others: Sequence[_RankCosts]) -> float:
    """How far costs of ranks are apart at most, as a share of what the first ones compute."""
    if len(ones) != len(others):
        return float("inf")
    return max(_rank_apart(one, other) for one, other in zip(ones, others, strict=True))


def _rank_apart(one: _RankCosts, other: _RankCosts) -> float:
    kernels = one.kernels or 1
    far = max(abs(one.busy_ns - other.busy_ns), abs(one.received_ns - other.received_ns))
    return max(far / max(1, one.busy_ns), abs(kernels - (other.kernels or 0)) / kernels)


@checked
def record_job(
    run: Run,
    reconstruction: Reconstruction,
    pipelines: SortedPipelines | None = None,
    *,
    change: Callable[[Reconstruction], Reconstruction] | None = None,
) -> WholeJob:
    """Reconstruct one of all pipelines that are alike, and give the others its costs.

    Args:
        run: The ingested traces.
        reconstruction: What was reconstructed of its first pipeline, which says which step is meant.
        pipelines: Its pipelines, if they were sorted before.
        change: What was done to what was reconstructed, for the others.

    Raises:
        NoPipeline: If there are none.
        TraceToolError: As ``reconstruct``.

    Example:
        >>> job = tt.record_job(run, found)
        >>> job.numbers, len(job.firsts)
        ((0,), 1)
    """
    pipelines = pipelines or sorted_pipelines(run)
    if not pipelines.alike:
        raise NoPipeline(
            f"{run.name} tells of no pipeline that was recorded whole.",
            hint="name the traces of all of its ranks, and ingest them as a Run",
        )
    members: dict[int, list[int]] = defaultdict(list)
    for place in sorted(reconstruction.coordinates, key=lambda place: place.pp or 0):
        if place.pipeline is not None:
            members[place.pipeline].append(place.rank)
    groups = _RankGroups(run)
    looked_at: dict[AlikePipelines, Reconstruction] = {}
    costs: dict[int, Pipeline] = {}
    waiting = list(pipelines.alike)
    while waiting:
        kind = waiting.pop()
        one = (
            reconstruction
            if members[kind.first][0] == reconstruction.pipeline.ranks[0].rank
            else _recorded(run, reconstruction, kind.first, change)
        )
        copies = {number: _copied(one.pipeline, members[number], groups) for number in kind.numbers[1:]}
        costs |= {kind.first: one.pipeline} | {n: copied for n, copied in copies.items() if copied is not None}
        # Where process groups do not tell who meets whom, a pipeline is looked at itself.
        waiting += [AlikePipelines((number,), 0.0) for number, copied in copies.items() if copied is None]
        looked_at[replace(kind, numbers=tuple(n for n in kind.numbers if copies.get(n, one) is not None))] = one
    alike = tuple(sorted(looked_at, key=lambda kind: kind.first))
    kind_of = {number: place for place, kind in enumerate(alike) for number in kind.numbers}
    return WholeJob(
        sorted=replace(pipelines, alike=alike),
        firsts=tuple(looked_at[kind] for kind in alike),
        pipelines=tuple(costs[number] for number in sorted(costs)),
        numbers=tuple(sorted(costs)),
        kinds=tuple(kind_of[number] for number in sorted(costs)),
    )


def _recorded(
    run: Run, reconstruction: Reconstruction, number: int, change: Callable[[Reconstruction], Reconstruction] | None
) -> Reconstruction:
    """What was done in the same step of another pipeline."""
    other = _reconstructed(run, reconstruction.pipeline.step, number)
    mine, theirs = reconstruction.pipeline, other.pipeline
    if (mine.observed.orders, mine.p2p) != (theirs.observed.orders, theirs.p2p):
        raise ReconstructError(
            f"pipeline {number} ran another order in step {mine.step} than the first one, or issued its transfers "
            "otherwise.",
            hint=f"replay each by itself ({Option.PIPELINE(number)})",
        )
    return other if change is None else change(other)


def _reconstructed(run: Run, step: int | None, number: int) -> Reconstruction:
    """A pipeline in a step, as the Run keeps it, else reconstructed anew; by default in the one of median length."""
    kept = run.kept(kept_kind(number)) if number else reconstruct(run)
    if isinstance(kept, Reconstruction) and kept.pipeline.step == (step or kept.pipeline.step):
        return kept
    return reconstruct(run, step=step, pipeline=number)


class _RankGroups:
    """Process groups by the ranks that list them."""

    def __init__(self, run: Run) -> None:
        self._by_rank: dict[int, list[ProcessGroup]] = defaultdict(list)
        for rank, name, description, ranks in run.rows("SELECT rank, name, description, ranks FROM groups"):
            self._by_rank[rank].append(ProcessGroup(name, description, tuple(ranks)))

    def like(self, use: CollectiveUse, source: int, rank: int) -> ProcessGroup | None:
        """The group that is to a rank what a collective's is to another; None if that is not to be told."""
        mine = next((g for g in self._by_rank[source] if (g.name, g.ranks) == (use.group, use.group_ranks)), None)
        if mine is None:
            return None
        kind = mine.description, len(mine.ranks)
        could = [g for g in self._by_rank[rank] if (g.description, len(g.ranks)) == kind]
        return could[0] if len(could) == 1 else None


def _copied(pipeline: Pipeline, ranks: Sequence[int], groups: _RankGroups) -> Pipeline | None:
    """A pipeline's costs on other ranks; None where it is not to be told whom these meet after their computes."""
    profiles = [_copied_rank(profile, rank, groups) for profile, rank in zip(pipeline.ranks, ranks, strict=True)]
    known = [profile for profile in profiles if profile is not None]
    return replace(pipeline, ranks=tuple(known)) if len(known) == len(profiles) else None


def _copied_rank(profile: RankProfile, rank: int, groups: _RankGroups) -> RankProfile | None:
    uses = [use for part in profile.tail for use in part.collectives] + list(profile.overlapped)
    mapped: dict[CollectiveUse, CollectiveUse] = {}
    for use in uses:
        if rank in use.group_ranks or not use.number:
            mapped[use] = use
            continue
        group = groups.like(use, profile.rank, rank)
        if group is None:
            return None
        meeting = meeting_of(group.name, group.ranks, use.number)
        mapped[use] = replace(use, group_ranks=group.ranks, group=group.name, meeting=meeting)

    def part(tail: TailPart) -> TailPart:
        uses = tuple(mapped[use] for use in tail.collectives)
        return replace(tail, meet=uses[0].meeting if tail.meet and uses else tail.meet, collectives=uses)

    return replace(
        profile,
        rank=rank,
        tail=tuple(map(part, profile.tail)),
        overlapped=tuple(mapped[use] for use in profile.overlapped),
    )
