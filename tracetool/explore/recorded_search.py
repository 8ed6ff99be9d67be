"""Every plan of a recorded job on a fleet, replayed: ways to run it one after another, each of all schedules.

Pipelines that are unlike, by what was recorded of them or by the speed of their devices, are replayed one by one over
what their own messages pass, and the slowest counts: they meet after their last computes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from tracetool.costs.rescaled import with_layers, with_slower_ranks
from tracetool.errors import ScenarioError, ScheduleError
from tracetool.model.notice import Silent, unasked
from tracetool.model.pipeline import NO_OVERLAP
from tracetool.model.scenario import Scenario
from tracetool.store.kept import from_bytes, to_bytes
from tracetool.sweeps.grid import Grid
from tracetool.sweeps.run import sweep
from tracetool.version import code_digest
from tracetool.whatif.answer import answer
from tracetool.whatif.best import plan_name
from tracetool.whatif.on_network import seated

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence
    from pathlib import Path

    from tracetool.explore.recorded_space import RecordedSpace, RecordedWay
    from tracetool.model.notice import Notice, Progress
    from tracetool.reconstruction import Reconstruction
    from tracetool.sweeps.results import SweepPoint
    from tracetool.whatif.results import Result

_SAVED_EACH_S = 10.0


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """One plan of a recorded job, replayed.

    Attributes:
        way: What was chosen beside the schedule.
        point: The schedule, and what came of it.
    """

    way: RecordedWay
    point: SweepPoint

    @property
    def plan(self) -> Hashable:
        """What tells it from others."""
        point = self.point
        return self.way, point.schedule, point.extra_forwards, point.overlap

    @property
    def order_text(self) -> str:
        """Schedule and depth, with stages per rank that were asked for."""
        return plan_name(self.point) + (f" x{self.way.chunks}" if (self.way.chunks or 1) > 1 else "")

    @property
    def text(self) -> str:
        """Schedule, how transfers are issued, and how layers overlap."""
        overlap = "" if self.point.overlap == NO_OVERLAP else f", layers overlap by {self.point.overlap}"
        return f"{self.order_text}, {self.point.p2p} transfers{overlap}"

    @property
    def step_ns(self) -> int:
        """Its step."""
        return self.point.step_ns or 0

    @property
    def runs(self) -> bool:
        """Whether it can be replayed, and nothing says that it does not fit."""
        return self.point.is_usable

    @property
    def refusal(self) -> str:
        """Why it cannot run."""
        return "" if self.runs else self.point.reason or "memory"


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """How plans of a recording are worked on.

    Attributes:
        jobs: Worker processes; by default as many as pay.
        executor: ``dask://HOST:PORT`` of a cluster to work on instead.
        ends: When the time is up, of ``time.monotonic``: plans replayed so far are the answer.
        state: The file that the search goes on from, and is kept in.
        progress: Told how many ways to run there are beside schedules, and how many are done.
    """

    jobs: int | None = None
    executor: str | None = None
    ends: float | None = None
    state: Path | None = None
    progress: Progress = field(default_factory=unasked)

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self.ends is not None and time.monotonic() >= self.ends

    def beside(self) -> RecordedWork:
        """For other searches than the one that is shown and kept."""
        return RecordedWork(self.jobs, self.executor, self.ends, progress=Silent())


@dataclass(frozen=True, slots=True)
class ReplayedPlans:
    """What a search replayed.

    Attributes:
        plans: All that were replayed.
        refused: How many cannot be run, by reason.
        left_out: What was not taken up, by reason.
        open: How many ways were not looked at when the time was up.
    """

    plans: tuple[RecordedPlan, ...]
    refused: Counter[str]
    left_out: Counter[str]
    open: int


def replay_plans(space: RecordedSpace, work: RecordedWork) -> ReplayedPlans:
    """Replay every plan of a space that there is time for, that of the start first.

    Args:
        space: What to search.
        work: How it is worked on.

    Raises:
        BadTopology: If the job does not fit on the fleet.
        ScenarioError: If the file that it is to go on from is of another search.
    """
    left_out: Counter[str] = Counter()
    ways = list(space.ways(left_out))
    kept = _SearchFile(work.state, space)
    work.progress.start(len(ways))
    plans: list[RecordedPlan] = []
    refused: Counter[str] = Counter()
    looked = 0
    for way, scenario in ways:
        known = kept.ways.get(way)
        if known is None:
            if plans and work.is_over:
                continue
            try:
                known = _swept(space, way, scenario, work)
            except ScheduleError as error:
                known = error.message
            kept.ways[way] = known
            kept.write()
        looked += 1
        if isinstance(known, str):
            refused[known] += 1
            known = ()
        for point in known:
            if point.step_ns is None:
                refused[f"{point.schedule}: {point.reason}"] += 1
            plans += [RecordedPlan(way, one) for one in (point, point.closer) if one is not None and one.step_ns]
        work.progress.advance(1)
    kept.write(now=True)
    return ReplayedPlans(tuple(plans), refused, left_out, len(ways) - looked)


def replay_base(space: RecordedSpace) -> tuple[RecordedPlan, tuple[Notice, ...]]:
    """The recorded order on the fleet, and what holds of all plans.

    Raises:
        BadTopology: If the job does not fit on the fleet.
    """
    scenario = Scenario(seated(space.base.choice(space.choice), space.recording), space.hbm_bytes)
    done = [
        sweep(recording, Grid((space.baseline,), own), knees=False, jobs=1, progress=Silent())
        for recording, own in _kinds(space, space.base, scenario)
    ]
    return RecordedPlan(space.base, _slowest([one.points[0] for one in done])), done[0].notes


def _swept(space: RecordedSpace, way: RecordedWay, scenario: Scenario, work: RecordedWork) -> tuple[SweepPoint, ...]:
    """All schedules and depths that go with a way, replayed; those that cannot be hold the reason."""
    chunks = way.chunks if way.chunks != 1 else None
    every = []
    for recording, own in _kinds(space, way, scenario):
        grid = Grid(space.schedules(way.chunks), own, extra_forwards=space.values("depth"), overlaps=space.overlaps)
        done = sweep(
            recording, grid, knees=False, jobs=work.jobs, executor=work.executor, chunks=chunks, progress=Silent(),
            beside=(),
        )  # fmt: skip
        every.append(done.points)
    points = [_slowest(alike) for alike in zip(*every, strict=True)]
    return tuple(points if way.microbatch is None else map(_scaled, points))


def _kinds(space: RecordedSpace, way: RecordedWay, scenario: Scenario) -> list[tuple[Reconstruction, Scenario]]:
    """Pipelines that are unlike, each with what its messages pass."""
    kinds = []
    for recording in space.kinds:
        own = scenario
        if recording is not space.recording:
            own = replace(scenario, topology=seated(way.choice(space.choice), recording))
        pipeline = space.pipeline_at(way, recording)
        for factors in space.slowness(own.topology, recording):
            slowed = pipeline if max(factors) == 1 else with_slower_ranks(pipeline, factors)
            kinds.append((recording if slowed is recording.pipeline else replace(recording, pipeline=slowed), own))
    return kinds


def _slowest(alike: Sequence[SweepPoint]) -> SweepPoint:
    """Of the same plan of pipelines that are unlike: one that cannot run, else the slowest, with the memory of all."""
    unlike, *_ = sorted(alike, key=lambda point: (point.step_ns is not None, -(point.step_ns or 0)))
    needed = [point.needed_bytes for point in alike]
    closer = [point.closer for point in alike if point.closer is not None]
    return replace(
        unlike,
        needed_bytes=None if None in needed else max(size for size in needed if size is not None),
        feasible=min((point.feasible for point in alike), key=lambda fits: {False: 0, None: 1, True: 2}[fits]),
        closer=_slowest(closer) if len(closer) == len(alike) else None,
    )


def _scaled(point: SweepPoint) -> SweepPoint:
    """A point whose costs are extrapolated: no recorded step was like it."""
    rests_on = (*point.rests_on, "microbatches of other sizes")
    closer = None if point.closer is None else _scaled(point.closer)
    return replace(point, known_error=None, rests_on=rests_on, closer=closer)


def replayed_plan(space: RecordedSpace, plan: RecordedPlan) -> Result:
    """A plan again, with the timeline of its slowest pipeline.

    Args:
        space: What was searched.
        plan: One of its plans.

    Raises:
        BadTopology: If it does not fit on the fleet.
        ScheduleError: If it cannot be replayed.
    """
    way, point = plan.way, plan.point
    overlap = next((each for each in space.overlaps if each.way == point.overlap), None)
    chunks = way.chunks if way.chunks != 1 else None
    results = []
    for recording, scenario in _kinds(space, way, space.scenario_of(way)):
        if overlap is not None:
            recording = replace(recording, pipeline=with_layers(recording.pipeline, overlap))  # noqa: PLW2901
        asked = answer(recording, [point.schedule], scenario, extra_forwards=point.extra_forwards, chunks=chunks)
        results.append((*asked.results, asked.baseline)[0])
    return max(results, key=lambda result: result.step_ns)


class _SearchFile:
    """A file that holds what was replayed of a space; written anew under another name, then renamed.

    Args:
        path: The file; None keeps nothing.
        space: What is searched: a file of another space is refused.

    Attributes:
        ways: Of each way the points of all schedules, or why there are none.

    Raises:
        ScenarioError: If it is of another search, or cannot be read.
    """

    def __init__(self, path: Path | None, space: RecordedSpace) -> None:
        self.ways: dict[RecordedWay, tuple[SweepPoint, ...] | str] = {}
        self._path, self._saved = path, time.monotonic()
        if path is None:
            return
        self._digest = _digest(space)
        if not path.exists():
            return
        try:
            text = path.read_bytes()
        except OSError as error:
            raise ScenarioError(f"{path} is no file of a search: {error}.", hint="name another one") from error
        if not text.startswith(self._digest):
            raise ScenarioError(
                f"{path} is of a search of another space, or of another version of tracetool.",
                hint="name another file, or ask as before",
            )
        try:
            self.ways = dict(from_bytes(text[len(self._digest) :]))  # type: ignore[call-overload]
        except Exception as error:  # damaged pickles fail in many ways
            raise ScenarioError(f"{path} is no file of a search: {error}.", hint="name another one") from error

    def write(self, *, now: bool = False) -> None:
        """Keep what is known, at most every ten seconds.

        Args:
            now: Whether in any case.
        """
        if self._path is None or (not now and time.monotonic() < self._saved + _SAVED_EACH_S):
            return
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.write_bytes(self._digest + to_bytes(list(self.ways.items())))
        beside.replace(self._path)
        self._saved = time.monotonic()


def _digest(space: RecordedSpace) -> bytes:
    """What tells whether points still hold: code, recording, fleet and what was asked."""
    recorded = [(each.pipeline.stages, each.pipeline.ranks, each.pipeline.p2p) for each in space.kinds]
    asked = space.choice, sorted(space.given.items()), sorted(space.left), space.hbm_bytes, space.overlaps, space.sizes
    return sha256(repr((code_digest(), recorded, asked)).encode()).digest()
