"""Whether a replay stays within the memory limit; if not, who exceeds it first and who lacks most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.whatif.seen_errors import SEEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics, Op, RankOp, Timeline


@dataclass(frozen=True, slots=True)
class Violation:
    """When a rank first needs more memory than there is.

    Attributes:
        rank: Pipeline rank; of several at the same time the one that comes first.
        at_ns: When, from the start of the pipeline window.
        op: What it runs then; None if what it holds before its first action is too much already.
    """

    rank: int
    at_ns: int
    op: Op | RankOp | None


@dataclass(frozen=True, slots=True)
class Shortage:
    """How a schedule exceeds the memory limit.

    Attributes:
        rank: The pipeline rank that lacks most.
        missing_bytes: How much it lacks.
        first: The first violation in time, on whatever rank.
        global_ranks: Ranks of the pipeline that lacks it: of several that are replayed together, the first one.
    """

    rank: int
    missing_bytes: int
    first: Violation
    global_ranks: tuple[int, ...]

    @property
    def global_rank(self) -> int:
        """The global rank that lacks most."""
        return self.global_ranks[self.rank]


PEAK_ERROR_RATIO = SEEN.given_peak_ratio
"""So close to the limit, "fits" is "maybe"."""


def fits(metrics: Metrics, scenario: Scenario) -> bool | None:
    """Whether a replay stays within the scenario's memory limit.

    What a rank needs is its highest allocation and, where it was measured, what it occupies beyond that.

    Returns:
        True without a limit, None if there is one but memory is unknown.
    """
    limit = scenario.hbm_bytes
    if limit is None:
        return True
    if any(needed is not None and needed > limit for needed in metrics.needed_hbm_bytes):
        return False
    return None if None in metrics.peak_hbm_bytes else True


def all_fit(replays: Iterable[Metrics], scenario: Scenario) -> bool | None:
    """Whether all of several replays fit, as ``fits`` has it."""
    outcomes = {fits(metrics, scenario) for metrics in replays}
    return next((outcome for outcome in (False, None) if outcome in outcomes), True)


def most_lacking(metrics: Metrics, scenario: Scenario) -> tuple[int, int] | None:
    """The pipeline rank that lacks most of the scenario's memory limit, and how many bytes; None if none does."""
    over = _over(metrics, scenario)
    return max(over, key=lambda lack: (lack[1], -lack[0])) if over else None


def find_shortage(timeline: Timeline, metrics: Metrics, scenario: Scenario) -> Shortage | None:
    """Who exceeds the scenario's memory limit first, and who lacks most; None if nobody exceeds it.

    Args:
        timeline: The replay.
        metrics: Its metrics.
        scenario: Where the limit stands.
    """
    limit, lacking = scenario.hbm_bytes, most_lacking(metrics, scenario)
    if limit is None or lacking is None:
        return None
    firsts = (
        _first_violation(timeline, rank, limit - (metrics.overhead_bytes[rank] or 0))
        for rank, _ in _over(metrics, scenario)
    )
    first = min(firsts, key=lambda violation: (violation.at_ns, violation.rank))
    return Shortage(*lacking, first, timeline.global_ranks)


def _over(metrics: Metrics, scenario: Scenario) -> list[tuple[int, int]]:
    """Ranks that exceed the limit, and by how much."""
    limit = scenario.hbm_bytes
    needs = enumerate(metrics.needed_hbm_bytes if limit is not None else ())
    return [(rank, needed - (limit or 0)) for rank, needed in needs if needed is not None and needed > (limit or 0)]


def _first_violation(timeline: Timeline, rank: int, limit_bytes: int) -> Violation:
    curve = timeline.memory[rank] or ()
    at_ns = next(time for time, level in curve if level > limit_bytes)
    if curve[0][1] > limit_bytes:
        return Violation(rank, at_ns, None)
    # A level belongs to the action that starts there, or to the one that runs.
    mine = [op for op in timeline.ops if op.rank == rank and op.end_ns > at_ns]
    return Violation(rank, at_ns, min(mine, key=lambda op: op.start_ns, default=None))


def is_near_the_limit(metrics: Metrics, scenario: Scenario) -> bool:
    """Whether a rank needs so much of the memory limit that the error of its prediction decides."""
    if scenario.hbm_bytes is None:
        return False
    highest = max(needed or 0 for needed in metrics.needed_hbm_bytes)
    return highest > (1 - PEAK_ERROR_RATIO) * scenario.hbm_bytes
