"""The search: the best bound first, and no plan replayed whose bound is above the best one."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tracetool.explore.bounds import bounds_of
from tracetool.explore.candidates import candidates
from tracetool.explore.judge import Judge
from tracetool.model.notice import unasked

if TYPE_CHECKING:
    from tracetool.explore.judge import Judged
    from tracetool.explore.space import Space
    from tracetool.model.notice import Progress

EXHAUSTIVE = 300
"""Spaces of so many plans are replayed whole."""
RIVAL_RATIO = 0.02
"""Plans are replayed as long as they may be as fast as the best one but for this."""
_FIRST, _MOST = 64, 1024


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        judged: Plans that were replayed and can run, the fastest first.
        candidates: How many plans the space has.
        pruned: How many were not replayed, by the bound that says why.
        refused: How many cannot run, by reason.
        left_out: What was not taken up as a candidate.
        open: How many were not looked at when the time was up.
        bound_ns: No plan of the space is faster than this.
    """

    judged: tuple[Judged, ...]
    candidates: int
    pruned: Counter[str]
    refused: Counter[str]
    left_out: Counter[str]
    open: int = 0
    bound_ns: int = 0

    @property
    def best(self) -> Judged | None:
        """The fastest plan that can run."""
        return self.judged[0] if self.judged else None

    @property
    def is_proven(self) -> bool:
        """Whether no plan of the space is faster than the best one."""
        return not self.open


@dataclass
class _State:
    judged: list[tuple[int, Judged]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    best_ns: int | None = None


def search(
    space: Space,
    judge: Judge | None = None,
    *,
    time_limit_s: float | None = None,
    exhaustive: int = EXHAUSTIVE,
    rival_ratio: float = RIVAL_RATIO,
    progress: Progress | None = None,
) -> Found:
    """Find the fastest plan of a space.

    Args:
        space: What to search.
        judge: Replays plans.
        time_limit_s: After which the best plan so far is the answer.
        exhaustive: Spaces of up to so many plans are replayed whole.
        rival_ratio: Plans are replayed that may be slower than the best one by this.
        progress: Told how many candidates there are, and how many are done.
    """
    ends = None if time_limit_s is None else time.monotonic() + time_limit_s
    judge = judge or Judge(space.workload)
    told = progress or unasked()
    held = candidates(space)
    bounds = bounds_of(judge, held.bases)
    least = bounds.step_ns
    fits = bounds.memory_bytes <= space.workload.hbm_bytes
    order = np.flatnonzero(fits)
    order = order[np.argsort(least[order], kind="stable")]
    state = _State()
    told.start(held.size)
    told.advance(held.size - len(order))
    at, size = 0, _FIRST
    while at < len(order) and (ends is None or time.monotonic() < ends or not state.judged):
        some = order[at : at + size]
        if state.best_ns is not None and held.size > exhaustive:
            some = some[least[some] <= state.best_ns * (1 + rival_ratio)]
        if not len(some):
            break
        plans = [held.bases[bounds.base[row]].at(int(bounds.within[row])) for row in some]
        for row, done in zip(some.tolist(), judge.judge(plans), strict=True):
            if not done.runs:
                state.refused[done.refusal] += 1
                continue
            state.judged.append((row, done))
            if state.best_ns is None or done.step_ns < state.best_ns:
                state.best_ns = done.step_ns
        at += len(some)
        told.advance(len(some))
        size = min(2 * size, _MOST)
    rest = order[at:]
    best = state.best_ns
    cut = rest[least[rest] > best * (1 + rival_ratio)] if best is not None else rest[:0]
    by_link = int((bounds.link_ns[cut] > bounds.compute_ns[cut]).sum())
    pruned = Counter({"compute": len(cut) - by_link, "link": by_link, "memory": held.size - len(order)})
    left = len(rest) - len(cut)
    told.advance(len(cut))
    return Found(
        judged=tuple(one for _, one in sorted(state.judged, key=lambda pair: (pair[1].step_ns, pair[0]))),
        candidates=held.size,
        pruned=+pruned,
        refused=state.refused,
        left_out=held.left_out,
        open=left,
        bound_ns=int(min(least[rest[0]], best)) if left and best is not None else best or 0,
    )
