"""A Timeline: when each action ran, observed in a trace or made by replay. Both look the same.

The formula of each metric over a Timeline; ``tracetool.tables.metrics`` says what each means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracetool.errors import checked
from tracetool.tables.metrics import IN_REPORTS
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracetool.model.action import ActionKind, CollectiveUse


@dataclass(frozen=True, slots=True)
class Op:
    """One compute of a microbatch on one pipeline rank; times in ns from the start of the pipeline window."""

    rank: int
    stage: int
    kind: ActionKind
    microbatch: int
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """End of the action."""
        return self.start_ns + self.duration_ns

    @property
    def text(self) -> str:
        """What it is, as in ``2F0``."""
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True, slots=True)
class RankOp:
    """What a whole rank does after its pipeline: it reduces gradients, or its optimizer runs; times as of an ``Op``."""

    rank: int
    kind: ActionKind
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        """End of it."""
        return self.start_ns + self.duration_ns

    @property
    def text(self) -> str:
        """What it is, as in ``OPTIMIZER``."""
        return self.kind.value


@dataclass(frozen=True, slots=True)
class TailCollective:
    """A collective that a rank runs after its last compute, or beside computes; times as of an ``Op``.

    Attributes:
        rank: Pipeline rank.
        kind: What it is part of: REDUCE_GRAD or OPTIMIZER.
        use: What it is.
        came_ns: When the rank came to it.
        start_ns: When all of its ranks had, as far as they were recorded.
        end_ns: When it was over.
        links: Names of the links between DCs that it crosses.
        taken_ns: When it took them.
        left_ns: When it had moved its bytes over them.
    """

    rank: int
    kind: ActionKind
    use: CollectiveUse
    came_ns: int
    start_ns: int
    end_ns: int
    links: tuple[str, ...] = ()
    taken_ns: int = 0
    left_ns: int = 0


MemoryCurve = tuple[tuple[int, int], ...]
"""(time in ns, allocated bytes from then on) at every change, in order."""


def memory_curve(
    static_bytes: int | None, actions: Iterable[tuple[int, int, int | None, int | None]], tail_peak_bytes: int
) -> MemoryCurve | None:
    """Allocated bytes of one rank over its actions in order.

    An action raises the level by its peak when it starts and leaves it changed by what it holds when it ends.

    Args:
        static_bytes: Level before the first action.
        actions: Per action start and end in ns, bytes held afterwards and peak above the level at its start.
        tail_peak_bytes: What the optimizer allocates at most, above the level after the last action.

    Returns:
        The curve, beginning with the static level at 0; None if any part is unknown.
    """
    if static_bytes is None:
        return None
    level = static_bytes
    points = [(0, level)]
    for start, end, held, peak in actions:
        if held is None or peak is None:
            return None
        points.append((start, level + max(0, peak)))
        level += held
        points.append((end, level))
    if tail_peak_bytes > 0:
        points += [(points[-1][0], level + tail_peak_bytes), points[-1]]
    return tuple(points)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message between stages.

    Attributes:
        kind: FORWARD for an activation, BACKWARD for a gradient.
        microbatch: Microbatch.
        src_stage: Sending stage.
        dst_stage: Receiving stage.
        src_rank: Sending pipeline rank.
        dst_rank: Receiving pipeline rank.
        payload_bytes: Bytes; None if unknown.
        send_posted_ns: When the sender's side was ready.
        recv_posted_ns: When the receiver's side was ready.
        start_ns: When bytes began to move.
        end_ns: When the receiver could use the data.
        link: Name of the cross-DC link, or None inside a DC.
    """

    kind: ActionKind
    microbatch: int
    src_stage: int
    dst_stage: int
    src_rank: int
    dst_rank: int
    payload_bytes: int | None
    send_posted_ns: int
    recv_posted_ns: int
    start_ns: int
    end_ns: int
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What every rank computed and what moved between them.

    Attributes:
        name: ``observed``, or the name of the replayed schedule.
        global_ranks: Global rank of each pipeline rank.
        ops: Computes of one microbatch (F, B, I, W, R), then the rank-wide ones.
        transfers: Messages between stages.
        memory: Per pipeline rank, (time, allocated bytes) at every change; None if unknown.
        overhead_bytes: Per pipeline rank, device memory occupied beyond the highest allocation, as measured; None, or
            no entry, if unknown.
        profiler: Per pipeline rank, when the profiler itself was at work, ascending; no entries in a replay.
        collectives: Of the ranks' tails, and beside computes those that links are part of; of
            pipelines beside this one too, whose ranks it does not have.
    """

    name: str
    global_ranks: tuple[int, ...]
    ops: tuple[Op | RankOp, ...]
    transfers: tuple[Transfer, ...]
    memory: tuple[MemoryCurve | None, ...]
    overhead_bytes: tuple[int | None, ...] = ()
    profiler: tuple[tuple[tuple[int, int], ...], ...] = ()
    collectives: tuple[TailCollective, ...] = ()

    def __repr__(self) -> str:
        ranks = format_count(len(self.global_ranks), "rank")
        return f"<Timeline {self.name}: {len(self.ops)} ops, {len(self.transfers)} transfers on {ranks}>"

    def computes(self) -> tuple[Op, ...]:
        """The ops of the pipeline window, without gradient reduction and optimizer."""
        return tuple(op for op in self.ops if isinstance(op, Op))


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of one Timeline; ``METRICS`` says what each means.

    Attributes:
        step_ns: See METRICS.
        window_ns: See METRICS.
        compute_ns: See METRICS.
        bubble_ns: See METRICS: window - compute / ranks; rounded down to whole ns.
        bubble_ratio: See METRICS: 1 - compute / (ranks x window).
        rank_compute_ns: Compute of each pipeline rank.
        peak_hbm_bytes: Peak of each pipeline rank; None where memory is unknown.
        overhead_bytes: See METRICS, of each pipeline rank; None where it is unknown.
    """

    step_ns: int
    window_ns: int
    compute_ns: int
    bubble_ns: int
    bubble_ratio: float
    rank_compute_ns: tuple[int, ...]
    peak_hbm_bytes: tuple[int | None, ...]
    overhead_bytes: tuple[int | None, ...] = ()

    def of_step(self, names: Iterable[str] = IN_REPORTS) -> dict[str, Any]:
        """Figures of the whole step by their names."""
        return {name: getattr(self, name) for name in names}

    @property
    def needed_hbm_bytes(self) -> tuple[int | None, ...]:
        """Device memory of each rank: peak and overhead; without the overhead where that is unknown."""
        extra = self.overhead_bytes or (None,) * len(self.peak_hbm_bytes)
        return tuple(
            None if peak is None else peak + (beyond or 0)
            for peak, beyond in zip(self.peak_hbm_bytes, extra, strict=True)
        )


@checked
def measure(timeline: Timeline) -> Metrics:
    """Compute the metrics of an observed or replayed Timeline.

    Example:
        >>> tt.measure(found.observed).step_ns
        246370042
    """
    computes = timeline.computes()
    ranks = len(timeline.global_ranks)
    start = min(op.start_ns for op in computes)
    window = max(op.end_ns for op in computes) - start
    busy = [0] * ranks
    for op in computes:
        busy[op.rank] += op.duration_ns
    return Metrics(
        step_ns=max(op.end_ns for op in timeline.ops) - start,
        window_ns=window,
        compute_ns=sum(busy),
        bubble_ns=(ranks * window - sum(busy)) // ranks,
        bubble_ratio=1 - sum(busy) / (ranks * window) if window else 0.0,
        rank_compute_ns=tuple(busy),
        peak_hbm_bytes=tuple(None if curve is None else max(level for _, level in curve) for curve in timeline.memory),
        overhead_bytes=timeline.overhead_bytes or (None,) * ranks,
    )
