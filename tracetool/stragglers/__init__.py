"""Stragglers: what a step would take if all ranks, stages and microbatches were equally fast, and what costs most."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from tracetool.model.notice import Notice, NoticeCode, unasked
from tracetool.reconstruction.capture import Account
from tracetool.store import is_local
from tracetool.stragglers.equalize import Averages, SlowPlace, Where, places, slowest_places
from tracetool.stragglers.many import CompiledOrders, ManyReplays
from tracetool.stragglers.measured import job_steps
from tracetool.stragglers.step import JobStep, StepReplay
from tracetool.tables import collecting_rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracetool.model.notice import Progress
    from tracetool.replays.flow import Bools
    from tracetool.store.run import Run

Axis = Literal["kind", "stage", "pipeline", "rank"]
_AXES: tuple[Axis, ...] = ("kind", "stage", "pipeline", "rank")
_FIDELITY = 0.05


@dataclass(frozen=True, slots=True)
class WhatIfTimes:
    """One step under the what-ifs.

    Attributes:
        number: Step number.
        observed_ns: As it was observed.
        replayed_ns: Its observed order with its measured costs: the check of the model.
        measured_ns: The same without host gaps ahead of and after the pipeline: what stragglers are judged by.
        alike_ns: With one time for every kind of operation of a stage: what uneven stages alone cost stays.
        equalized_ns: With one time for every kind of operation.
    """

    number: int
    observed_ns: int
    replayed_ns: int
    measured_ns: int
    alike_ns: int
    equalized_ns: int

    @property
    def error_ratio(self) -> float:
        """Replayed over observed, minus one."""
        return self.replayed_ns / self.observed_ns - 1

    @property
    def slowdown_ratio(self) -> float:
        """What stragglers make of the step: 1 for none."""
        return self.measured_ns / self.equalized_ns


@dataclass(frozen=True, slots=True)
class Suspect:
    """One kind, stage, pipeline or rank, and what it costs.

    Attributes:
        axis: What it is one of.
        name: Its number, or the name of the kind.
        without_ns: Per step, the step if it alone were equalized.
        alone_ns: Per step, the step if all but it were equalized.
        measured_ns: Mean of the steps as measured, without host gaps.
        equalized_ns: Mean of the steps with everything equalized.
    """

    axis: Axis
    name: str
    without_ns: tuple[int, ...]
    alone_ns: tuple[int, ...]
    measured_ns: int
    equalized_ns: int

    @property
    def step_ns(self) -> int:
        """Mean step if it alone were equalized."""
        return _mean(self.without_ns)

    @property
    def saved_ns(self) -> int:
        """How much shorter the mean step is then; negative: longer."""
        return self.measured_ns - self.step_ns

    @property
    def slowdown_ratio(self) -> float:
        """Slowdown that is left then."""
        return self.step_ns / self.equalized_ns

    @property
    def alone_ratio(self) -> float:
        """Slowdown that it causes by itself: the step with it as the only straggler over the equalized one."""
        return _mean(self.alone_ns) / self.equalized_ns

    @property
    def share_ratio(self) -> float | None:
        """Share of what equalizing everything wins back that equalizing it does.

        More than 1 where what is left runs faster than the mean; None where nothing is lost.
        """
        lost = self.measured_ns - self.equalized_ns
        return self.saved_ns / lost if lost else None


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The answer.

    Attributes:
        steps: In order of time.
        suspects: Per axis, the one that costs most first; of equal costs, the shorter name first (ranks by number).
        ranks: Global ranks of each pipeline.
        slow_stage: The stage that computes longest, beside the mean one; None of a single one.
        slow_rank: The rank that computes longest beside those of its stage; None where each stage has a single one.
        notes: What was inferred, left out or is not modelled.
    """

    steps: tuple[WhatIfTimes, ...]
    suspects: tuple[Suspect, ...]
    ranks: tuple[tuple[int, ...], ...]
    slow_stage: SlowPlace | None
    slow_rank: SlowPlace | None
    notes: tuple[Notice, ...]

    @property
    def fidelity_ratio(self) -> float:
        """Error of the replayed step that is largest: replayed over observed, minus one."""
        return max((step.error_ratio for step in self.steps), key=abs)

    def worst(self, axis: Axis) -> Suspect | None:
        """The one that costs most; None if the axis has no two."""
        return next((suspect for suspect in self.suspects if suspect.axis == axis), None)

    def mean_ns(self, of: Callable[[WhatIfTimes], int]) -> int:
        """Mean of a time over the steps."""
        return _mean([of(step) for step in self.steps])

    @property
    def slowdown_ratio(self) -> float:
        """Mean step as measured over mean equalized step."""
        return self.mean_ns(lambda s: s.measured_ns) / self.mean_ns(lambda s: s.equalized_ns)


def find_stragglers(run: Run, step: int | None = None, progress: Progress | None = None) -> Stragglers:
    """Equalize a Run: everything at once, then one kind, stage, pipeline and rank at a time.

    Args:
        run: The Run, with all pipelines it holds: they meet at their collectives.
        step: Only this step; by default all complete ones.
        progress: Told how much there is to work out (pipelines, their steps, then replays), and how much is done.

    Raises:
        TraceToolError: If no step can be reconstructed.
    """
    progress = progress or unasked()
    steps, notes = _kept_steps(run, progress) if step is None else _steps(run, step, progress)
    result = stragglers_of(steps, notes, progress)
    return replace(result, notes=(*result.notes, *_notes(result)))


_KEPT = "job_steps"
"""What a Run keeps the costs of its steps as, of all of them, and what is to say of them."""


def _kept_steps(run: Run, progress: Progress) -> tuple[Sequence[JobStep], Sequence[Notice]]:
    """The costs of all steps, as the Run keeps them: most of the first answer's time is to work them out."""
    kept = run.kept(_KEPT)
    if isinstance(kept, tuple):
        return cast("tuple[Sequence[JobStep], Sequence[Notice]]", kept)
    made = _steps(run, None, progress)
    # A question puts nothing on an object store, and a Run that nobody may write to answers all the same.
    if is_local(run.path) and not run.is_overlaid:
        with suppress(OSError):
            run.keep(_KEPT, made)
    return made


@collecting_rarely()
def _steps(run: Run, step: int | None, progress: Progress) -> tuple[Sequence[JobStep], Sequence[Notice]]:
    account = Account()
    return job_steps(run, step, account, progress), list(account.notes)


def stragglers_of(
    steps: Sequence[JobStep], notes: Iterable[Notice] = (), progress: Progress | None = None
) -> Stragglers:
    """The same from costs of steps."""
    progress = progress or unasked()
    measured = [step.without_host_gaps() for step in steps]
    averages = Averages(measured)
    slow_stage, slow_rank = slowest_places(measured)
    candidates = _candidates(measured)
    progress.start((2 + 2 * len(candidates)) * len(measured))
    replays = _Replays(averages, Averages(measured, by_stage=True), candidates)
    rows = []
    for step, before in zip(measured, steps, strict=True):
        rows.append(replays.of(step, before))
        progress.advance(2 + 2 * len(candidates))
    as_measured, equalized = ([getattr(row, name) for row in rows] for name in ("measured_ns", "equalized_ns"))
    suspects = [
        Suspect(
            axis=candidate.axis,
            name=candidate.name,
            without_ns=tuple(row.without_ns[number] for row in rows),
            alone_ns=tuple(row.alone_ns[number] for row in rows),
            measured_ns=_mean(as_measured),
            equalized_ns=_mean(equalized),
        )
        for number, candidate in enumerate(candidates)
    ]
    # Equal costs in an order of their own: candidates come in whatever order the tables list them.
    suspects.sort(key=lambda s: (_AXES.index(s.axis), -s.saved_ns, len(s.name), s.name))
    return Stragglers(
        steps=tuple(
            WhatIfTimes(
                number=step.number,
                observed_ns=step.observed_ns,
                replayed_ns=row.replayed_ns,
                measured_ns=row.measured_ns,
                alike_ns=row.alike_ns,
                equalized_ns=row.equalized_ns,
            )
            for step, row in zip(steps, rows, strict=True)
        ),
        suspects=tuple(suspects),
        ranks=tuple(tuple(profile.rank for profile in pipeline.ranks) for pipeline in steps[0].pipelines),
        slow_stage=slow_stage,
        slow_rank=slow_rank,
        notes=tuple(dict.fromkeys(notes)),
    )


class _Candidate(NamedTuple):
    """What can be equalized on its own: all places that have a value on an axis."""

    axis: Axis
    name: str
    value: object

    def has(self, where: Where) -> bool:
        """Whether a place is of it."""
        return bool(getattr(where, self.axis) == self.value)


class _StepWhatIfs(NamedTuple):
    """One step in all what-ifs; of each candidate, with it alone equalized, and with all but it."""

    replayed_ns: int
    measured_ns: int
    alike_ns: int
    equalized_ns: int
    without_ns: Sequence[int]
    alone_ns: Sequence[int]


class _Replays:
    """Replays steps in all what-ifs: at once, or one at a time where what launches take hangs on what actions take.

    Args:
        averages: What kinds take.
        of_stages: What kinds take on each stage.
        candidates: What is equalized on its own.
    """

    def __init__(self, averages: Averages, of_stages: Averages, candidates: Sequence[_Candidate]) -> None:
        self._averages = averages
        self._of_stages = of_stages
        self._candidates = candidates
        self._number = {(candidate.axis, candidate.value): n for n, candidate in enumerate(candidates)}
        self._orders = CompiledOrders()
        self._alone = StepReplay()

    def of(self, step: JobStep, with_gaps: JobStep) -> _StepWhatIfs:
        """A step, given with and without its host gaps."""
        at_once = None if any(p.hosts_wait for p in step.pipelines) else self._at_once(step, with_gaps)
        return at_once or self._one_by_one(step, with_gaps)

    def _at_once(self, step: JobStep, with_gaps: JobStep) -> _StepWhatIfs | None:
        import numpy as np

        def columns(places: Sequence[Where]) -> Bools:
            belongs = np.zeros((len(places), len(self._candidates)), bool)
            for row, where in enumerate(places):
                for axis in _AXES:
                    number = self._number.get((axis, getattr(where, axis)))
                    if number is not None:
                        belongs[row, number] = True
            none, every = np.zeros((len(places), 1), bool), np.ones((len(places), 1), bool)
            return np.hstack([none, every, belongs, ~belongs])

        def every(places: Sequence[Where]) -> Bools:
            return np.ones((len(places), 1), bool)

        def none(places: Sequence[Where]) -> Bools:
            return np.zeros((len(places), 1), bool)

        many = ManyReplays(step, self._averages, self._orders).steps_ns(columns)
        alike = ManyReplays(step, self._of_stages, self._orders).steps_ns(every)
        replayed = ManyReplays(with_gaps, self._averages, self._orders).steps_ns(none)
        if many is None or alike is None or replayed is None:
            return None
        measured, equalized, *rest = many
        half = len(self._candidates)
        return _StepWhatIfs(replayed[0], measured, alike[0], equalized, rest[:half], rest[half:])

    def _one_by_one(self, step: JobStep, with_gaps: JobStep) -> _StepWhatIfs:
        def step_ns(chosen: Callable[[Where], bool], averages: Averages = self._averages) -> int:
            return self._alone.step_ns(averages.apply(step, chosen))

        return _StepWhatIfs(
            replayed_ns=self._alone.step_ns(with_gaps),
            measured_ns=self._alone.step_ns(step),
            alike_ns=step_ns(lambda _where: True, self._of_stages),
            equalized_ns=step_ns(lambda _where: True),
            without_ns=[step_ns(candidate.has) for candidate in self._candidates],
            alone_ns=[step_ns(_others(candidate.has)) for candidate in self._candidates],
        )


def _candidates(steps: Sequence[JobStep]) -> list[_Candidate]:
    """What can be equalized on its own; ranks only where they are not stages by another name."""
    all_places = places(steps)
    candidates: list[_Candidate] = []
    for axis in _AXES:
        values = list(dict.fromkeys(value for where in all_places if (value := getattr(where, axis)) is not None))
        pairs = {(where.rank, where.stage) for where in all_places}
        is_stage = axis == "rank" and len({stage for _, stage in pairs}) == len({rank for rank, _ in pairs}) == len(
            pairs
        )
        if len(values) > 1 and not is_stage:
            candidates += [_Candidate(axis, str(value), value) for value in values]
    return candidates


def _others(belongs: Callable[[Where], bool]) -> Callable[[Where], bool]:
    return lambda where: not belongs(where)


def _notes(result: Stragglers) -> list[Notice]:
    over = "ranks, stages, microbatches and steps"
    if len(result.steps) == 1:
        over = "ranks, stages and microbatches of this step alone (over more steps its equalized time may differ)"
    sentence = (
        "equalized: compute takes the mean of its kind, communication the median of its transfer times, over "
        f"{over}; the work stays the same, so uneven stages (a head, more layers) count, too; what stragglers cost is "
        "beside the median rank of each stage, of an even number the quicker of the two; actions have the gaps between "
        "their kernels in them, and no waits for ranks that share their layers",
        "a slowdown compares steps without host gaps ahead of and after the pipeline",
    )
    notes = [Notice(NoticeCode.EQUALIZED, text) for text in sentence]
    if abs(result.fidelity_ratio) > _FIDELITY:
        notes.insert(
            0,
            Notice(
                NoticeCode.FIDELITY,
                f"replay misses a recorded step by {result.fidelity_ratio:+.1%}: do not trust its what-ifs before the "
                "cause is known",
            ),
        )
    return notes


def _mean(values: Sequence[int]) -> int:
    return round(sum(values) / len(values))
