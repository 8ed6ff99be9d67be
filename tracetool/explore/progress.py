"""How a search is worked on: who bounds its plans, who is told, when time is up, and the file it can go on from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from tracetool.errors import ScenarioError
from tracetool.explore.bounds import PlanBounds, bounds_of, joined
from tracetool.explore.judge import Judge, Judged
from tracetool.ingestion.executors import in_processes, on_cluster, usable_cores
from tracetool.model.notice import Progress, unasked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tracetool.explore.candidates import Base
    from tracetool.explore.plan import JobPlan, Workload
    from tracetool.explore.space import Space

_PIECE = 250
"""Bases of one piece of work."""
_WORTH = 4_000
"""Bases for which starting other workers pays."""
_GOLDEN = 0.618034
_SAVED_EACH_S = 10.0
_FIGURES = ("step_ns", "window_ns", "compute_ns", "reduction_ns", "peak_hbm_bytes")


@dataclass
class SearchWork:
    """How a search is worked on.

    Attributes:
        jobs: Worker processes; by default as many as pay.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        ends: When the time is up, of ``time.monotonic``.
        state: The file that the search goes on from, and is kept in.
        progress: Told how many candidates there are, and how many are done.
        best_so_far: Told the fastest step, in ns, whenever there is a faster one.
    """

    jobs: int | None = None
    executor: str | None = None
    ends: float | None = None
    state: Path | None = None
    progress: Progress = field(default_factory=unasked)
    best_so_far: Callable[[int], None] = lambda _step_ns: None

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.ends is not None and time.monotonic() >= self.ends

    def until(self, share_ratio: float) -> SearchWork:
        """The same with so much of the time that is left."""
        now = time.monotonic()
        return replace(self, ends=None if self.ends is None else now + max(0.0, self.ends - now) * share_ratio)

    def beside(self) -> SearchWork:
        """For other searches than the one that is shown and kept."""
        return SearchWork(jobs=self.jobs, executor=self.executor, ends=self.ends)

    def bounds(self, judge: Judge, bases: Sequence[Base]) -> PlanBounds:
        """Bounds of all plans of bases, the same whoever works on them; of fewer bases where the time is up before."""
        # Other judges know what workers do not.
        sensible = usable_cores() if len(bases) >= _WORTH and type(judge) is Judge else 1
        count = min(-(-len(bases) // _PIECE), sensible if self.jobs is None else self.jobs)
        begins = list(range(0, len(bases), _PIECE)) or [0]
        if self.ends is not None:  # what there is time for is to be of all sorts
            begins.sort(key=lambda begin: begin // _PIECE * _GOLDEN % 1)
        parts = [bases[begin : begin + _PIECE] for begin in begins]
        self.progress.start(len(bases))
        if self.executor is None and count <= 1:
            bounded: dict[int, PlanBounds] = {}
            for begin, part in zip(begins, parts, strict=True):  # what a part takes beside its bounds is freed
                if not (bounded and self.is_over):
                    bounded[begin] = bounds_of(judge, part)
                self.progress.advance(len(part))
            return joined(bounded)
        ends = None if self.ends is None else time.time() + self.ends - time.monotonic()
        pieces = [_Piece(judge.workload, part, ends if number else None) for number, part in enumerate(parts)]
        if self.executor is not None:
            made = on_cluster(_bounded, pieces, list(map(len, parts)), self.progress, self.executor)
        else:
            made = in_processes(_bounded, pieces, self.progress, count)
        return joined({begin: each for begin, each in zip(begins, made, strict=True) if each is not None})


@dataclass(frozen=True)
class _Piece:
    """Bases, and when the time is up, of ``time.time``: workers have other clocks."""

    workload: Workload
    bases: Sequence[Base]
    ends: float | None

    @property
    def name(self) -> str:
        """What is done, in a few words."""
        return f"explore {len(self.bases)} placements"


_judges: dict[str, Judge] = {}
"""Of this process, that of the workload it was last asked about: what it knows of placements holds for all pieces."""


def _bounded(piece: _Piece, advance: Callable[[int], None]) -> PlanBounds | None:
    if piece.ends is not None and time.time() >= piece.ends:
        advance(len(piece.bases))
        return None
    key = _digest(piece.workload)
    if key not in _judges:
        _judges.clear()
        _judges[key] = Judge(piece.workload)
    bounded = bounds_of(_judges[key], piece.bases)
    advance(len(piece.bases))
    return bounded


def _digest(*values: object) -> str:
    return sha256(repr(values).encode()).hexdigest()


class SearchFile:
    """A file that holds the bounds and the replayed plans of one search; written anew under another name, then renamed.

    Args:
        path: The file; None keeps nothing.
        space: What is searched: a file of another space is refused.
    """

    def __init__(self, path: Path | None, space: Space) -> None:
        self._path = path
        self._digest = _digest(space.workload, space.base, sorted(space.given.items()), sorted(space.left))
        self._saved = time.monotonic()

    def read(self) -> Mapping[str, Any]:
        """What is in the file; nothing if there is none yet.

        Raises:
            ScenarioError: If it is of another search, or cannot be read.
        """
        if self._path is None or not self._path.exists():
            return {}
        try:
            with np.load(self._path, allow_pickle=False) as arrays:
                held = dict(arrays)
        except (OSError, ValueError, EOFError) as error:
            # What numpy says of other files is advice on how to load them.
            raise ScenarioError(
                f"{self._path} is no file of a search for a plan of a model.", hint="name another one"
            ) from error
        if str(held.get("digest")) != self._digest:
            raise ScenarioError(
                f"{self._path} is of a search of another space.", hint="name another file, or ask as before"
            )
        return held

    def write(self, bounds: PlanBounds, done: Mapping[int, Judged], *, now: bool = False) -> None:
        """Keep what is known, at most every ten seconds.

        Args:
            bounds: Of all plans.
            done: Replayed plans by number.
            now: Whether in any case.
        """
        if self._path is None or (not now and time.monotonic() < self._saved + _SAVED_EACH_S):
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}.npz")
        held: dict[str, Any] = {
            "digest": self._digest,
            "numbers": np.array(list(done), np.int64),
            "refusals": np.array([one.refusal for one in done.values()], np.str_),
            **{
                f"judged_{name}": np.array([getattr(one, name) for one in done.values()], np.int64) for name in _FIGURES
            },
            **bounds.arrays,
        }
        np.savez(beside, **held)
        beside.replace(self._path)
        self._saved = time.monotonic()


def judged_of(held: Mapping[str, Any], plan_of: Callable[[int], JobPlan]) -> dict[int, Judged]:
    """Replayed plans of a file, by number.

    Args:
        held: What is in the file.
        plan_of: Gives a plan by number.
    """
    figures = {name: held[f"judged_{name}"].tolist() for name in _FIGURES} | {"refusal": held["refusals"].tolist()}
    return {
        number: Judged(plan=plan_of(number), **{name: column[row] for name, column in figures.items()})
        for row, number in enumerate(held["numbers"].tolist())
    }
