"""What a step takes besides its pipeline's work: the host until the first kernel, and after the last one.

When the profiler itself was at work: buffers requested and flushed, instrumentation, modules loaded for it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode
from tracetool.units import format_duration, format_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import RankWork
    from tracetool.reconstruction.capture import Account
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.steps import Step
    from tracetool.store.run import Run

_BEFORE_AND_AFTER_SQL = """
SELECT max(end_ns) FILTER (end_ns <= $first), min(start_ns) FILTER (start_ns >= $last)
FROM comms
WHERE rank = $rank AND operation NOT IN ('send', 'recv', 'exchange') AND start_ns >= $start AND end_ns <= $end
"""


def outside_ns(run: Run, group: PipelineGroup, step: Step, work: Mapping[int, RankWork]) -> int | None:
    """Host time of a marked step around its device work, in ns.

    It runs from the start of the mark to the first kernel of the pipeline, on the rank where that is shortest, and
    from the last kernel to the end of the mark, on the rank where that is. Collectives ahead of the work and behind
    it (barriers) and what lies beyond them belong to the measurement and are left out.

    Args:
        run: The ingested traces.
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
        parameters = {"rank": rank, "first": first, "last": last, "start": start, "end": end}
        ((before, after),) = run.rows(_BEFORE_AND_AFTER_SQL, parameters)
        ahead.append(first - (start if before is None else before))
        behind.append((end if after is None else after) - last)
    return min(ahead) + min(behind)


Spans = tuple[tuple[int, int], ...]

_WORTH_TELLING = 0.01
"""Share of the step."""

_PROFILER_SQL = """
SELECT name, start_ns, start_ns + duration_ns FROM events
WHERE rank = ? AND category = 'overhead' AND duration_ns > 0 AND start_ns < ? AND start_ns + duration_ns > ?
ORDER BY start_ns
"""


def profiler_spans(run: Run, step: Step, ranks: Sequence[int]) -> dict[int, Spans]:
    """Per rank, when the profiler was at work in a step: on the rank's own clock, ascending, without overlaps."""
    return {rank: _united([(a, b) for _, a, b in _read(run, step, rank)]) for rank in ranks}


def note_profiler(run: Run, step: Step, work: Mapping[int, RankWork], account: Account) -> None:
    """Say for how long the profiler itself was at work, and how much of that is inside actions."""
    for rank, of_rank in sorted(work.items()):
        rows = _read(run, step, rank)
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


def _read(run: Run, step: Step, rank: int) -> list[tuple[str, int, int]]:
    first, last = step.spans[rank]
    return [(name, start, end) for name, start, end in run.rows(_PROFILER_SQL, [rank, last, first])]


def _united(spans: Sequence[tuple[int, int]]) -> Spans:
    united: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((start, end))
    return tuple(united)
