"""Fewer traces than ranks: which recorded rank stands for which, and what is unknown of the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.units import format_count, format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracetool.reconstruction.capture.coordinates import Coordinates
    from tracetool.store.run import Run

_COMPUTE_SQL = """
SELECT rank, sum(duration_ns) FROM events
WHERE category = 'kernel' AND NOT regexp_matches(lower(name), '^(nccl|rccl|mscclpp|hcom_)')
GROUP BY rank
"""


class StandIn(NamedTuple):
    """A rank that was not recorded, and the recorded one of its stage that stands for it; None if there is none."""

    rank: int
    source: int | None


@dataclass(frozen=True, slots=True)
class StageStandIns:
    """One stage of a job that was recorded in part.

    Attributes:
        stage: Position in the pipelines.
        recorded: Ranks of it that were recorded.
        stand_ins: Those that were not, and who stands for each.
        spread_ratio: How much longer the kernels of the slowest of those recorded took than those of the quickest; None
            where a single one was recorded, or no kernels: how far ranks of it are apart is unknown.
    """

    stage: int
    recorded: tuple[int, ...]
    stand_ins: tuple[StandIn, ...]
    spread_ratio: float | None

    @property
    def slower_chance(self) -> float | None:
        """How likely one that was not recorded is slower than all that were, if any of them may be the slowest."""
        return len(self.stand_ins) / (len(self.stand_ins) + len(self.recorded)) if self.recorded else None

    @property
    def text(self) -> str:
        """Who stands for whom, and what is unknown."""
        who = Counter(one.source for one in self.stand_ins)
        text = (
            f"stage {self.stage}: {format_ranks(self.recorded)} recorded"
            if self.recorded
            else f"stage {self.stage}: none"
        )
        text += "".join(
            f", rank {source} stands for {count} more" for source, count in who.items() if source is not None
        )
        if not self.recorded:
            return f"{text} of {format_count(len(self.stand_ins), 'rank')}: nothing can stand for them"
        if self.spread_ratio is None:
            return f"{text}; how far ranks of it are apart is unknown"
        return (
            f"{text}; those recorded are {self.spread_ratio:.1%} apart, and one that was not is slower than all of "
            f"them with a chance of {self.slower_chance:.0%}"
        )


def find_stand_ins(run: Run, places: Iterable[Coordinates]) -> list[StageStandIns]:
    """Who stands for whom in a job that was recorded in part, by the places that its process groups tell.

    Args:
        run: What was recorded.
        places: Of all ranks that process groups name.

    Returns:
        The stages of which ranks were not recorded.
    """
    every = list(places)
    if all(place.recorded for place in every):
        return []
    sizes = Counter(place.pipeline for place in every)
    stage_of = {place.rank: place.pp for place in every if place.pp is not None}
    # Of a pipeline that nobody recorded, its ranks' fellows tell the stage.
    for (ranks,) in run.rows("SELECT DISTINCT ranks FROM groups"):
        stages = {stage_of[rank] for rank in ranks if rank in stage_of}
        if len(stages) == 1:
            stage_of |= {rank: stage for stage in stages for rank in ranks}
    of_stage: dict[int, list[Coordinates]] = defaultdict(list)
    for place in every:
        if place.rank in stage_of:
            of_stage[stage_of[place.rank]].append(place)
    compute: dict[int, int] = dict(run.rows(_COMPUTE_SQL))
    partial = []
    for stage, ranks in sorted(of_stage.items()):
        recorded_ranks = [place for place in ranks if place.recorded]
        unseen = []
        for place in (place for place in ranks if not place.recorded):
            alike = (
                one.rank
                for one in recorded_ranks
                if place.pipeline is None or sizes[one.pipeline] == sizes[place.pipeline]
            )
            unseen.append(StandIn(place.rank, nearest(place.rank, alike)))
        if unseen:
            recorded = tuple(place.rank for place in recorded_ranks)
            partial.append(StageStandIns(stage, recorded, tuple(unseen), _spread(recorded, compute)))
    return partial


def nearest(rank: int, others: Iterable[int]) -> int | None:
    """Of ranks of a stage, the one that stands for another: the one whose number is nearest, the lower one of two."""
    return min(others, key=lambda other: (abs(other - rank), other), default=None)


def _spread(ranks: tuple[int, ...], compute_ns: Mapping[int, int]) -> float | None:
    times = [compute_ns[rank] for rank in ranks if compute_ns.get(rank)]
    return max(times) / min(times) - 1 if len(times) > 1 else None


def spread_of_copies(stages: Iterable[StageStandIns], copies: Mapping[int, int]) -> float | None:
    """By how much a step may be longer than with copies, as far as recorded ranks of their stages tell.

    A step is longer by no more than its slowest stage; so it is the largest spread of any stage that a copy is of. None
    if a single rank was recorded of one.
    """
    spreads = [stage.spread_ratio for stage in stages if any(one.rank in copies for one in stage.stand_ins)]
    known = [spread for spread in spreads if spread is not None]
    return max(known) if known and len(known) == len(spreads) else None
