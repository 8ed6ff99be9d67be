"""What a step takes besides its pipeline's work: the host until the first kernel, and after the last one.

When the profiler itself was at work: buffers requested and flushed, instrumentation, modules loaded for it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.steps.reading import SPANS
from tracetool.units import format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import RankWork
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading

_COLLECTIVES_SQL = f"""
WITH {SPANS}
SELECT s.number, c.start_ns, c.end_ns
FROM comms AS c JOIN spans AS s ON s.rank = c.rank AND c.start_ns >= s.first AND c.end_ns <= s.last
WHERE c.operation NOT IN ('send', 'recv', 'exchange')
ORDER BY s.number
"""


def outside_ns(reading: StepReading, group: PipelineGroup, step: Step, work: Mapping[int, RankWork]) -> int | None:
    """Host time of a marked step around its device work, in ns.

    It runs from the start of the mark to the first kernel of the pipeline, on the rank where that is shortest, and
    from the last kernel to the end of the mark, on the rank where that is. Collectives ahead of the work and behind
    it (barriers) and what lies beyond them belong to the measurement and are left out.

    Args:
        reading: What the Run holds of the step.
        group: The pipeline.
        step: The step.
        work: What each global rank computed, and what followed that.

    Returns:
        None where the trace does not mark steps.
    """
    if step.evidence != "label":
        return None
    ahead, behind = [], []
    for rank in group.ranks:
        start, end = step.spans[rank]
        first = min(s.start_ns for s in work[rank].segments)
        last = max(s.end_ns for s in work[rank].segments) + sum(part.duration_ns for part in work[rank].tail)
        if not start <= first <= last <= end:
            return None  # marks of host time that ends before the device does
        collectives = reading.rows(_COLLECTIVES_SQL, rank, (start, end))
        ahead.append(first - max((over for _, over in collectives if over <= first), default=start))
        behind.append(min((begun for begun, _ in collectives if begun >= last), default=end) - last)
    return min(ahead) + min(behind)


Spans = tuple[tuple[int, int], ...]

_WORTH_TELLING = 0.01
"""Share of the step."""

_PROFILER_SQL = f"""
WITH {SPANS}
SELECT s.number, e.name, e.start_ns, e.start_ns + e.duration_ns
FROM events AS e JOIN spans AS s ON s.rank = e.rank AND e.start_ns < s.last AND e.start_ns + e.duration_ns > s.first
WHERE e.category = 'overhead' AND e.duration_ns > 0
ORDER BY s.number, e.start_ns
"""


def profiler_spans(reading: StepReading, step: Step, ranks: Sequence[int]) -> dict[int, Spans]:
    """Per rank, when the profiler was at work in a step: on the rank's own clock, ascending, without overlaps."""
    return {
        rank: _united([(a, b) for _, a, b in reading.rows(_PROFILER_SQL, rank, step.spans[rank])]) for rank in ranks
    }


def note_profiler(reading: StepReading, step: Step, work: Mapping[int, RankWork], account: Account) -> None:
    """Say for how long the profiler itself was at work, and how much of that is inside actions."""
    for rank, of_rank in sorted(work.items()):
        rows = reading.rows(_PROFILER_SQL, rank, step.spans[rank])
        spans = _united([(a, b) for _, a, b in rows])
        whole = sum(b - a for a, b in spans)
        if whole <= _WORTH_TELLING * step.duration_ns:
            continue
        names = ", ".join(name for name, _ in Counter(name for name, _, _ in rows).most_common(3))
        inside = sum(
            max(0, min(b, s.end_ns) - max(a, s.start_ns)) for a, b in spans for s in of_rank.segments
        )  # fmt: skip
        counted = f", {format_duration(inside)} of it inside actions, whose time may hold it" if inside else ""
        account.note(
            NoticeCode.PROFILER_AT_WORK,
            f"{format_ranks([rank])}: the profiler itself was at work for {format_duration(whole)} of the step "
            f"({names}){counted}: without a profiler that is not there",
        )


def _united(spans: Sequence[tuple[int, int]]) -> Spans:
    united: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return tuple(united)
