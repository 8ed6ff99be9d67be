"""The search: the best bound first, and no plan replayed whose bound is above the best one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tracetool.explore.bounds import BOUNDS, PlanBounds
from tracetool.explore.candidates import candidates
from tracetool.explore.crossing import outer_bytes
from tracetool.explore.judge import MEMORY, Judge
from tracetool.explore.progress import SearchFile, SearchWork, judged_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tracetool.explore.bounds import Int64s
    from tracetool.explore.judge import Judged
    from tracetool.explore.plan import JobPlan
    from tracetool.explore.space import Space

EXHAUSTIVE = 300
"""Spaces of so many plans are replayed whole."""
RIVAL_RATIO = 0.02
"""Plans are replayed as long as they may be as fast as the best one but for this."""
CROSSING = "bytes over the outermost tier"
"""Why a plan is not replayed that moves more than it may."""
_FIRST, _MOST = 64, 1024
_MOST_IN_TIME = 128
"""So many are replayed at most before the clock is looked at."""


@dataclass(frozen=True)
class SearchResults:
    """What a search found.

    Attributes:
        judged: Plans that were replayed and can run, the fastest first.
        candidates: How many plans the space has.
        replayed: How many of them were replayed.
        pruned: How many were not replayed, by the bound that says why.
        refused: How many cannot run, by reason.
        left_out: What was not taken up as a candidate.
        open: How many were not looked at when the time was up.
        unbounded: How many of these have no bound either.
        bound_ns: No plan of the space is faster than this; 0 if some have no bound.
    """

    judged: tuple[Judged, ...]
    candidates: int
    replayed: int
    pruned: Counter[str]
    refused: Counter[str]
    left_out: Counter[str]
    open: int = 0
    unbounded: int = 0
    bound_ns: int = 0

    @property
    def best(self) -> Judged | None:
        """The fastest plan that can run."""
        return self.judged[0] if self.judged else None

    @property
    def is_proven(self) -> bool:
        """Whether no plan of the space is faster than the best one."""
        return not self.open


class PlanSearch:
    """The candidates of a space with their bounds; plans that were replayed are kept.

    Args:
        space: What to search.
        judge: Replays plans.
        work: How it is worked on.

    Attributes:
        work: How it is worked on from now on.

    Raises:
        ScenarioError: If the file that it is to go on from is of another search.
    """

    def __init__(self, space: Space, judge: Judge, work: SearchWork | None = None) -> None:
        self._judge = judge
        self.work = work or SearchWork()
        self._held = candidates(space)
        self._firsts = np.cumsum([0, *(base.size for base in self._held.bases)])
        self._file = SearchFile(self.work.state, space)
        held = self._file.read()
        self._bounds = self._bounded(held)
        self._numbers = self._firsts[self._bounds.base] + self._bounds.within
        self._done = judged_of(held, self._plan) if held else {}
        self._least = self._bounds.step_ns
        self._file.write(self._bounds, self._done, now=not held)

    def _bounded(self, held: Mapping[str, Any]) -> PlanBounds:
        """Bounds of all candidates that there is time for, with those of the file."""
        bases = self._held.bases
        if not held:
            return self.work.bounds(self._judge, bases)
        known = PlanBounds(**{name: held[name] for name in BOUNDS})
        others = np.setdiff1d(np.arange(len(bases)), known.base)
        if not len(others):
            return known
        more = self.work.bounds(self._judge, [bases[number] for number in others.tolist()])
        return known.with_others(replace(more, base=others[more.base]))

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return self._held.size

    def _plan(self, number: int) -> JobPlan:
        """A candidate by its number among all."""
        base = int(np.searchsorted(self._firsts, number, "right")) - 1
        return self._held.bases[base].at(number - int(self._firsts[base]))

    @cached_property
    def _outer_bytes(self) -> Int64s:
        needed = np.zeros(self.size, bool)
        needed[self._numbers] = self._bounds.memory_bytes <= self._judge.workload.hbm_bytes
        return outer_bytes(self._judge.workload, self._held.bases, needed.tolist())[self._numbers]

    def run(
        self,
        *,
        hbm_bytes: int | None = None,
        crossing_bytes: int | None = None,
        exhaustive: int = 0,
        rival_ratio: float = 0.0,
    ) -> SearchResults:
        """Find the fastest plan.

        Args:
            hbm_bytes: Memory of a device, if less than the workload's.
            crossing_bytes: What a step may move over the outermost tier; None for any.
            exhaustive: Up to so many candidates are replayed whole.
            rival_ratio: Plans are replayed that may be slower than the best one by this.
        """
        progress = self.work.progress
        room = self._judge.workload.hbm_bytes if hbm_bytes is None else hbm_bytes
        fits = self._bounds.memory_bytes <= room
        order = np.flatnonzero(fits if crossing_bytes is None else fits & (self._outer_bytes <= crossing_bytes))
        order = order[np.argsort(self._least[order], kind="stable")]
        progress.start(self.size)
        progress.advance(len(self._numbers) - len(order))
        judged: list[tuple[int, Judged]] = []
        refused: Counter[str] = Counter()
        best: int | None = None
        at, size = 0, _FIRST
        most = _MOST if self.work.ends is None else _MOST_IN_TIME
        while at < len(order) and not (self.work.is_over and judged):
            some = order[at : at + size]
            if best is not None and self.size > exhaustive:
                some = some[self._least[some] <= best * (1 + rival_ratio)]
            if not len(some):
                break
            for row, done in zip(some.tolist(), self._replayed(self._numbers[some].tolist()), strict=True):
                if not done.runs or done.peak_hbm_bytes > room:
                    refused[done.refusal or MEMORY] += 1
                    continue
                judged.append((row, done))
                if best is None or done.step_ns < best:
                    best = done.step_ns
                    self.work.best_so_far(best)
            at += len(some)
            progress.advance(len(some))
            size = min(2 * size, most)
        self._file.write(self._bounds, self._done, now=True)
        without = Counter({MEMORY: len(fits) - int(fits.sum()), CROSSING: int(fits.sum()) - len(order)})
        return self._results(judged, refused, order[at:], without, None if best is None else best * (1 + rival_ratio))

    def _replayed(self, numbers: list[int]) -> list[Judged]:
        """Candidates, of which those that were not are replayed."""
        new = [number for number in numbers if number not in self._done]
        self._done.update(zip(new, self._judge.judge([self._plan(number) for number in new]), strict=True))
        self._file.write(self._bounds, self._done)
        return [self._done[number] for number in numbers]

    def _results(
        self,
        judged: list[tuple[int, Judged]],
        refused: Counter[str],
        rest: Int64s,
        without: Counter[str],
        limit: float | None,
    ) -> SearchResults:
        judged.sort(key=lambda pair: (pair[1].step_ns, pair[0]))
        cut = rest[self._least[rest] > limit] if limit is not None else rest[:0]
        by_link = int((self._bounds.link_ns[cut] > self._bounds.compute_ns[cut]).sum())
        pruned = Counter({"compute": len(cut) - by_link, "busiest link": by_link}) + without
        best = judged[0][1].step_ns if judged else 0
        left, unbounded = len(rest) - len(cut), self.size - len(self._numbers)
        lowest = min(int(self._least[rest[0]]), best) if left else best
        return SearchResults(
            judged=tuple(done for _, done in judged),
            candidates=self.size,
            replayed=len(judged),
            pruned=+pruned,
            refused=refused,
            left_out=self._held.left_out,
            open=left + unbounded,
            unbounded=unbounded,
            bound_ns=0 if unbounded else lowest,
        )


def search(
    space: Space, judge: Judge | None = None, *, exhaustive: int = EXHAUSTIVE, rival_ratio: float = RIVAL_RATIO
) -> SearchResults:
    """Find the fastest plan of a space.

    Args:
        space: What to search.
        judge: Replays plans.
        exhaustive: Spaces of up to so many plans are replayed whole.
        rival_ratio: Plans are replayed that may be slower than the best one by this.
    """
    return PlanSearch(space, judge or Judge(space.workload)).run(exhaustive=exhaustive, rival_ratio=rival_ratio)
