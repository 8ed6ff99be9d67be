"""Memory of a rank by action, from the allocator's own log.

The caching allocator works in host order, so an allocation belongs to the action whose launches surround
it. Between two actions, what is freed belongs to the one before and what is allocated to the one after.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.model.pipeline import ActionCost
from tracetool.model.timeline import MemoryCurve, memory_curve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """

    static_bytes: int | None = None
    held: Mapping[_Key, int] = field(default_factory=dict)
    peak: Mapping[_Key, int] = field(default_factory=dict)

    def cost(self, segment: Segment) -> ActionCost:
        """The segment's cost, with its memory if known."""
        key = _key(segment)
        return ActionCost(segment.end_ns - segment.start_ns, self.held.get(key), self.peak.get(key))

    def curve(self, segments: Sequence[Segment], origin: int) -> MemoryCurve | None:
        """Allocated bytes over the rank's actions, on the device's time; None if unknown."""
        spans = (
            (s.start_ns - origin, s.end_ns - origin, self.held.get(_key(s)), self.peak.get(_key(s))) for s in segments
        )
        return memory_curve(self.static_bytes, spans)


def _key(segment: Segment) -> _Key:
    return segment.stage, segment.kind.value, segment.microbatch


def memory_facts(
    run: Run, group: PipelineGroup, step: Step, work: Mapping[int, RankWork], notes: list[str]
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
        notes.append(
            f"ranks {', '.join(map(str, totals_only))} log memory as totals over time, without single allocations: "
            "what an action holds is unknown"
        )
    return facts


def _facts(rows: Sequence[tuple[int, int, int]], segments: Sequence[Segment]) -> MemoryFacts:
    in_host_order = sorted(segments, key=lambda s: s.issue_ns)
    changes: dict[_Key, list[int]] = {_key(s): [] for s in segments}
    static: int | None = None
    current = -1  # index of the last action whose launches have begun
    for time, delta, total in rows:
        while current + 1 < len(in_host_order) and time >= in_host_order[current + 1].issue_ns:
            current += 1
        owner = current
        between = current < 0 or time > in_host_order[current].issued_ns
        if between and delta > 0:
            owner = current + 1
        if owner < 0:
            continue
        if owner >= len(in_host_order):
            break
        if static is None:
            static = total - delta
        changes[_key(in_host_order[owner])].append(delta)
    held, peak = {}, {}
    for key, deltas in changes.items():
        level = top = 0
        for delta in deltas:
            level += delta
            top = max(top, level)
        held[key], peak[key] = level, top
    return MemoryFacts(static, held, peak)
