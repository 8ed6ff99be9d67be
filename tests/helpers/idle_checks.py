"""What must hold of the idle intervals of any Timeline."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.model.timeline import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.causes.cause import Cause, Idle
    from tracetool.model.timeline import Timeline


def check(timeline: Timeline, idles: Sequence[Idle]) -> None:
    """Every ns of the window of every rank is in one compute or in one idle interval, told independently."""
    start, window = min(op.start_ns for op in timeline.computes()), measure(timeline).window_ns
    by_rank: dict[int, list[tuple[int, int]]] = {}
    for op in timeline.computes():
        by_rank.setdefault(op.rank, []).append((op.start_ns, op.end_ns))
    for idle in idles:
        assert idle.start_ns < idle.end_ns
        by_rank[idle.rank].append((idle.start_ns, idle.end_ns))
    for rank, spans in by_rank.items():
        now = start
        for begin, end in sorted(spans):
            assert begin == now, (rank, begin, now)
            now = end
        assert now == start + window
    assert list(idles) == sorted(idles, key=lambda idle: (idle.rank, idle.start_ns))


def sums(idles: Sequence[Idle], ranks: int) -> list[dict[Cause, int]]:
    """Idle time by cause of each rank, those that are there."""
    found: list[Counter[Cause]] = [Counter() for _ in range(ranks)]
    for idle in idles:
        found[idle.rank][idle.cause] += idle.duration_ns
    return [dict(of_rank) for of_rank in found]
