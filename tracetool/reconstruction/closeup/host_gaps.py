"""How much of each action's time is gaps between its kernels, in which the device waits for the host.

Such gaps are part of the action's compute time (the device could do nothing else with them). A profiler slows the
host down, so where they are long a step without a profiler is shorter than the recorded one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.model.notice import NoticeCode, Notices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

WORTH_TELLING = 0.10
HOST_BOUND = 0.20
"""Share of gaps from which on the host holds the device back. On the H100 recordings profiled steps were 7 to 42 %
longer than steps without a profiler where the gaps of an action kind were 20 to 57 % of it, and at most 1.2 % longer
where they were 7 % or less (measured.json: profiled_step_ms against step_ms)."""


def gap_shares(costs: Iterable[tuple[int, str, int, int]]) -> dict[tuple[int, str], float]:
    """Per stage and kind of action, the share of gaps in its time; the actions of each are summed.

    Args:
        costs: Stage, kind, duration and time of kernels of each action, ns.
    """
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for stage, kind, duration, kernels in costs:
        sums[stage, kind][0] += duration
        sums[stage, kind][1] += min(kernels, duration)
    return {key: 1 - kernels / duration for key, (duration, kernels) in sorted(sums.items()) if duration}


def notes_on_gaps(shares: Mapping[tuple[int, str], float]) -> Notices:
    """Which actions are full of gaps, and what that means; empty if none is."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for (stage, kind), share in sorted(shares.items()):
        if share >= WORTH_TELLING:
            by_kind[kind].append(f"{share:.0%} on stage {stage}")
    if not by_kind:
        return Notices()
    listed = "; ".join(f"{kind} {', '.join(listed_stages)}" for kind, listed_stages in by_kind.items())
    notes = Notices()
    notes.add(NoticeCode.HOST_GAPS, f"gaps between kernels count as compute, and are much of it: {listed}")
    if max(shares.values()) >= HOST_BOUND:
        notes.add(
            NoticeCode.HOST_BOUND,
            "the host holds the device back there, and a profiler slows the host: real steps can be much shorter "
            "(with such gaps, profiled steps took 7 to 42 % longer on H100 recordings)",
        )
    return notes
