"""The Timeline of the step that was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.timeline import Op, RankOp, Timeline
from tracetool.reconstruction.actions.transfers import shifted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.timeline import Transfer
    from tracetool.reconstruction.actions.profiler_time import Spans
    from tracetool.reconstruction.actions.work import RankWork
    from tracetool.reconstruction.capture.clocks import Clocks
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.memory.memory import MemoryFacts


def observed_timeline(
    group: PipelineGroup,
    work: Mapping[int, RankWork],
    transfers: Sequence[Transfer],
    memory: Mapping[int, MemoryFacts],
    clocks: Clocks,
    profiler: Mapping[int, Spans],
    origin: int,
) -> Timeline:
    """The Timeline of the step as it was recorded.

    Args:
        group: The pipeline.
        work: What each global rank computed.
        transfers: Messages between stages.
        memory: Memory of each global rank.
        clocks: How far each rank's clock is ahead.
        profiler: When the profiler was at work on each global rank.
        origin: Aligned time at which the Timeline begins, ns.
    """
    ops: list[Op] = []
    tails: list[RankOp] = []
    for position, rank in enumerate(group.ranks):
        mine = [
            Op(
                position, s.stage, s.kind, s.microbatch,
                clocks.aligned_ns(rank, s.start_ns) - origin, s.end_ns - s.start_ns,
            )
            for s in work[rank].segments
        ]  # fmt: skip
        ops += mine
        at = max(op.end_ns for op in mine)
        for part in work[rank].tail:
            tails.append(RankOp(position, part.kind, at, part.duration_ns))
            at += part.duration_ns
    return Timeline(
        name="observed",
        global_ranks=group.ranks,
        ops=(*ops, *tails),
        transfers=tuple(shifted(t, origin) for t in transfers),
        memory=tuple(
            memory[rank].curve(work[rank].segments, origin - _shift(clocks, work[rank], rank)) for rank in group.ranks
        ),
        overhead_bytes=tuple(memory[rank].overhead_bytes for rank in group.ranks),
        profiler=tuple(
            tuple(
                (clocks.aligned_ns(rank, start) - origin, clocks.aligned_ns(rank, end) - origin)
                for start, end in profiler[rank]
            )
            for rank in group.ranks
        ),
    )


def _shift(clocks: Clocks, work: RankWork, rank: int) -> int:
    """What aligning adds to the rank's times in this step (drift within a step is far below a microsecond)."""
    start = work.segments[0].start_ns
    return clocks.aligned_ns(rank, start) - start
