"""Memory of each rank of a pipeline, from the allocator's log: by action, at its peak, beyond what it hands out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode, SubjectKind
from tracetool.model.pipeline import ActionCost, StageProfile
from tracetool.model.timeline import MemoryCurve, memory_curve
from tracetool.reconstruction.memory.actions import ActionMemory, memory_by_action
from tracetool.reconstruction.memory.boundaries import HostTimes
from tracetool.reconstruction.memory.log import (
    Beyond,
    beyond_allocations,
    choose_log,
    read_logs,
    record_snapshots_apart_in_time,
)
from tracetool.units import format_ranks, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.reconstruction.actions import RankWork, Segment
    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.memory.boundaries import Boundaries
    from tracetool.reconstruction.memory.log import Log, Records
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading


_Key = tuple[int | str, ...]
_SAME_RATIO = 0.02
"""Microbatches of a stage that differ by no more hold the same."""
_WORTH_TELLING_RATIO = 0.001


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory of one rank.

    Attributes:
        static_bytes: Allocated before the first action; None if unknown.
        held: Per action, bytes allocated at its end minus at its start.
        peak: Per action, highest level above that at its start.
        tail_peak: After the last action (optimizer), highest level above that at its end.
        beyond: What the rank occupies beyond its allocations; None if unknown.
        log: The allocator's log, where launches tell which action a change belongs to.
    """

    static_bytes: int | None = None
    held: Mapping[_Key, int] = field(default_factory=dict)
    peak: Mapping[_Key, int] = field(default_factory=dict)
    tail_peak: int = 0
    beyond: Beyond | None = None
    log: Log | None = field(default=None, repr=False, compare=False)

    @property
    def overhead_bytes(self) -> int | None:
        """Device memory needed beyond the highest allocation; None if unknown."""
        return None if self.beyond is None else self.beyond.overhead_bytes

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
    reading: StepReading, group: PipelineGroup, step: Step, work: Mapping[int, RankWork], account: Account
) -> dict[int, MemoryFacts]:
    """Memory of every rank of the pipeline; empty facts, and a note why, where the trace does not tell."""
    if not reading.evidence.has_memory:
        return {rank: MemoryFacts() for rank in group.ranks}
    run = reading.run
    record_snapshots_apart_in_time(run, account)
    if not run.rows("SELECT rank FROM memory WHERE list_contains($ranks, rank) LIMIT 1", {"ranks": list(group.ranks)}):
        return {rank: MemoryFacts() for rank in group.ranks}
    host = HostTimes(run, step, work)
    logs = read_logs(run, {rank: host.span(rank) for rank in group.ranks})
    unknown: dict[str, list[int]] = {}
    facts = {}
    for rank in group.ranks:
        facts[rank], why = _facts(rank, logs[rank], work[rank].segments, host, account)
        if why is not None:
            unknown.setdefault(why, []).append(rank)
    for why, ranks in unknown.items():
        account.note(
            NoticeCode.MEMORY_UNKNOWN, f"{format_ranks(ranks)}: what an action holds in memory is unknown: {why}"
        )
    return facts


def _facts(
    rank: int, components: Mapping[str, Records], segments: Sequence[Segment], host: HostTimes, account: Account
) -> tuple[MemoryFacts, str | None]:
    """Facts of one rank, and why they are empty."""
    if not components:
        return MemoryFacts(), "no record of memory in the step"
    log = choose_log(components)
    if log is None:
        return MemoryFacts(), f"only what {', '.join(sorted(components))} hold as a whole is recorded"
    beyond = beyond_allocations(components, log)
    _record_beyond(rank, beyond, log, account)
    why = log.too_coarse(min(s.end_ns - s.start_ns for s in segments))
    if why is not None:
        return MemoryFacts(beyond=beyond), why
    bounds = host.of(rank, log)
    if not bounds.spans:
        return MemoryFacts(beyond=beyond), bounds.detail
    by_action = memory_by_action(log, bounds.spans)
    by_launch = log if bounds.by == "launches" else None
    facts = MemoryFacts(by_action.static_bytes, by_action.held, by_action.peak, by_action.tail_peak, beyond, by_launch)
    _record_stages(rank, facts, by_action, segments, (log, bounds), account)
    return facts, None


def _record_beyond(rank: int, beyond: Beyond, log: Log, account: Account) -> None:
    value = f"at most {format_size(beyond.peak_allocated_bytes)} allocated"
    if beyond.reserved_bytes is not None:
        value += f", {format_size(beyond.reserved_bytes)} reserved"
    if beyond.other_bytes is not None:
        value += f", {format_size(beyond.other_bytes)} held by the process besides"
    named = ", ".join(f"{name} {format_size(size)}" for name, size in beyond.modules[:3])
    context = "CUDA's context and NCCL's buffers are in no torch trace" if beyond.other_bytes is None else None
    account.find("memory", SubjectKind.RANK(rank), value, "metadata", log.continuous or 1.0, named or context)


def _record_stages(
    rank: int,
    facts: MemoryFacts,
    by_action: ActionMemory,
    segments: Sequence[Segment],
    source: tuple[Log, Boundaries],
    account: Account,
) -> None:
    log, bounds = source
    evidence: Evidence = "order" if bounds.by == "launches" else "inferred"
    for stage in sorted({s.stage for s in segments}):
        mine = [s for s in segments if s.stage == stage]
        profile = StageProfile(stage, _costs(mine, facts))
        value = ", ".join(
            f"{what} {format_size(size)}"
            for what, size in (
                ("activation", profile.activation_bytes()),
                ("transient", profile.transient_bytes()),
                ("first backward keeps", profile.gradient_bytes()),
            )
            if size is not None
        )
        open_points = [
            bounds.detail,
            _outliving(by_action, profile),
            None if by_action.names_blocks else _NO_BLOCKS,
            _gradients(profile, mine),
        ]
        checks = [log.continuous] if not log.is_samples else []
        confidence = min(bounds.confidence, _balanced(profile), *checks)
        detail = "; ".join(point for point in open_points if point) or None
        static = f"static {format_size(facts.static_bytes or 0)} (of rank {rank})"
        account.find("memory", SubjectKind.STAGE(stage), f"{value}; {static}", evidence, confidence, detail)


_NO_BLOCKS = "the log does not join frees to allocations: what outlives its backward is not told apart"


def _costs(segments: Iterable[Segment], facts: MemoryFacts) -> dict[ActionKind, tuple[ActionCost, ...]]:
    costs: dict[ActionKind, list[ActionCost]] = {}
    for segment in sorted(segments, key=lambda s: s.microbatch):
        costs.setdefault(segment.kind, []).append(facts.cost(segment))
    return {kind: tuple(listed) for kind, listed in costs.items()}


def _gradients(profile: StageProfile, segments: Sequence[Segment]) -> str | None:
    """Where gradients are: a backward that makes them leaves out the sums by which the later ones add to them."""
    kept, activation = profile.gradient_bytes(), profile.activation_bytes()
    if kept is None or not activation:
        return None
    if kept < _SAME_RATIO * activation:
        return "the step allocates no gradients: they are among the static bytes"
    if adds_at_once(segments):
        return (
            "the first backward adds to gradients as the later ones do: those are among the static bytes, and what it "
            "keeps is none of them"
        )
    return "what the first backward keeps are the gradients, until after the last action"


def adds_at_once(segments: Sequence[Segment]) -> bool:
    """Whether a stage's first backward adds to gradients that are there: it launches as many kernels as later ones."""
    counts: Counter[int] = Counter()
    for segment in segments:
        if segment.kind is not ActionKind.FORWARD:
            counts[segment.microbatch] += sum(kernel.is_compute for kernel in segment.kernels)
    first, *later = (counts[microbatch] for microbatch in sorted(counts))
    return bool(later) and first >= median(later)


def _outliving(by_action: ActionMemory, profile: StageProfile) -> str | None:
    sizes = [size for key, size in by_action.outliving.items() if key[0] == profile.stage]
    if max(sizes, default=0) < _WORTH_TELLING_RATIO * (profile.activation_bytes() or 0) or not any(sizes):
        return None
    return f"{format_size(max(sizes))} of a forward outlive its backward here: counted as freed by it"


def _balanced(profile: StageProfile) -> float:
    """Share of microbatches whose backward frees what the forward of the median microbatch keeps (not the first)."""
    activation = profile.activation_bytes()
    forwards = profile.costs.get(ActionKind.FORWARD, ())
    released = [0] * len(forwards)
    for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT):
        for microbatch, cost in enumerate(profile.costs.get(kind, ())):
            released[microbatch] -= cost.held_bytes or 0
    later = released[1:]
    if not activation or not later:
        return 1.0
    return sum(abs(size - activation) <= _SAME_RATIO * activation for size in later) / len(later)
