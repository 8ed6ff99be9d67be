"""Memory of a rank by action, from the allocator's own log.

The caching allocator works in host order, so an allocation belongs to the action whose launches surround
it. Between two actions, what is freed belongs to the one before and what is allocated to the one after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from tracetool.model.pipeline import ActionCost
from tracetool.model.timeline import MemoryCurve, memory_curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.account import Account
    from tracetool.reconstruct.groups import PipelineGroup
    from tracetool.reconstruct.segments import RankWork, Segment
    from tracetool.reconstruct.steps import Step
    from tracetool.store import Run

_Key = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory of one rank.

    Attributes:
        static_bytes: Allocated before the first action; None if unknown.
        held: Per action, bytes allocated at its end minus at its start.
        peak: Per action, highest level above that at its start.
        tail_peak: After the last action (optimizer), highest level above that at its end.
    """

    static_bytes: int | None = None
    held: Mapping[_Key, int] = field(default_factory=dict)
    peak: Mapping[_Key, int] = field(default_factory=dict)
    tail_peak: int = 0

    def cost(self, segment: Segment) -> ActionCost:
        """The segment's cost, with its memory if known."""
        key = _key(segment)
        return ActionCost(segment.end_ns - segment.start_ns, self.held.get(key), self.peak.get(key))

    def curve(self, segments: Sequence[Segment], origin: int) -> MemoryCurve | None:
        """Allocated bytes over the rank's actions, on the device's time; None if unknown."""
        spans = [
            (s.start_ns - origin, s.end_ns - origin, self.held.get(_key(s)), self.peak.get(_key(s))) for s in segments
        ]
        return memory_curve(self.static_bytes, spans, self.tail_peak)


def _key(segment: Segment) -> _Key:
    return segment.stage, segment.kind.value, segment.microbatch


def memory_facts(
    run: Run, group: PipelineGroup, step: Step, work: Mapping[int, RankWork], account: Account
) -> dict[int, MemoryFacts]:
    """Memory of every rank of the pipeline; empty facts, and a note, where the trace logs no single allocations."""
    facts = {}
    totals_only = []
    for rank in group.ranks:
        rows = run.rows(
            "SELECT time_ns, delta_bytes, allocated_bytes FROM memory WHERE rank = ? AND time_ns >= ? AND time_ns < ? "
            "ORDER BY time_ns",
            [rank, *step.spans[rank]],
        )
        changes = [row for row in rows if None not in row]
        facts[rank] = _facts(changes, work[rank].segments) if changes else MemoryFacts()
        if rows and not changes:
            totals_only.append(rank)
    if totals_only:
        account.note(
            f"ranks {', '.join(map(str, totals_only))} log memory as totals over time, without single allocations: "
            "what an action holds is unknown"
        )
    return facts


def _facts(rows: Sequence[tuple[int, int, int]], segments: Sequence[Segment]) -> MemoryFacts:
    """Split the allocator's log into what stood before the first action, the actions, and what came after."""
    in_host_order = sorted(segments, key=lambda s: s.issue_ns)
    first_issue, last_issued = in_host_order[0].issue_ns, in_host_order[-1].issued_ns
    before = [i for i, (time, delta, _) in enumerate(rows) if time < first_issue and delta < 0]
    # The first action's own allocations are those after the last free before its first launch.
    begin = before[-1] + 1 if before else 0
    static = rows[begin - 1][2] if begin else rows[0][2] - rows[0][1]
    changes: dict[_Key, list[int]] = {_key(s): [] for s in segments}
    after: list[int] = []
    current = 0  # index of the last action whose launches have begun
    for time, delta, _ in rows[begin:]:
        while current + 1 < len(in_host_order) and time >= in_host_order[current + 1].issue_ns:
            current += 1
        # Between two actions, what is allocated is for the next one.
        owner = current + (time > in_host_order[current].issued_ns and delta > 0)
        if time > last_issued and (after or delta > 0):
            after.append(delta)
        else:
            changes[_key(in_host_order[owner])].append(delta)
    held, peak = {}, {}
    for key, deltas in changes.items():
        held[key], peak[key] = sum(deltas), _highest(deltas)
    return MemoryFacts(static, held, peak, _highest(after))


def _highest(deltas: Sequence[int]) -> int:
    """The highest level that changes reach, above that before them."""
    return max(accumulate(deltas, initial=0))
