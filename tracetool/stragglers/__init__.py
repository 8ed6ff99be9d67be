"""Stragglers: what a step would take if all ranks, stages and microbatches were equally fast, and what costs most."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tracetool.model.notice import Notice, NoticeCode, unasked
from tracetool.reconstruction.capture import Account
from tracetool.stragglers.equalize import Averages, SlowPlace, Where, places, slowest_places
from tracetool.stragglers.measured import job_steps
from tracetool.stragglers.step import JobStep, StepReplay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracetool.model.notice import Progress
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
        """Share of the time lost to stragglers that equalizing it wins back.

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
        progress: Told how many replays of steps there are, and how many are done.

    Raises:
        TraceToolError: If no step can be reconstructed.
    """
    account = Account()
    found = job_steps(run, step, account)
    result = stragglers_of(found, account.notes, progress)
    return replace(result, notes=(*result.notes, *_notes(result)))


def stragglers_of(
    steps: Sequence[JobStep], notes: Iterable[Notice] = (), progress: Progress | None = None
) -> Stragglers:
    """The same from costs of steps."""
    progress = progress or unasked()
    replays = StepReplay()
    measured = [step.without_host_gaps() for step in steps]
    averages = Averages(measured)

    def times(chosen: Callable[[Where], bool], typical: Averages = averages) -> list[int]:
        steps_ns = []
        for step in measured:
            steps_ns.append(replays.step_ns(typical.apply(step, chosen)))
            progress.advance(1)
        return steps_ns

    own = Averages(measured, by_stage=True)
    slow_stage, slow_rank = slowest_places(measured)
    candidates = _candidates(measured)
    progress.start((2 + 2 * len(candidates)) * len(measured))
    alike = times(lambda _where: True, own)
    as_measured = [replays.step_ns(step) for step in measured]
    equalized = times(lambda _where: True)
    suspects = []
    for axis, name, belongs in candidates:
        suspects.append(
            Suspect(
                axis=axis,
                name=name,
                without_ns=tuple(times(belongs)),
                alone_ns=tuple(times(_others(belongs))),
                measured_ns=_mean(as_measured),
                equalized_ns=_mean(equalized),
            )
        )
    # Equal costs in an order of their own: candidates come in whatever order the tables list them.
    suspects.sort(key=lambda s: (_AXES.index(s.axis), -s.saved_ns, len(s.name), s.name))
    return Stragglers(
        steps=tuple(
            WhatIfTimes(
                number=step.number,
                observed_ns=step.observed_ns,
                replayed_ns=replays.step_ns(step),
                measured_ns=before,
                alike_ns=between,
                equalized_ns=after,
            )
            for step, before, between, after in zip(steps, as_measured, alike, equalized, strict=True)
        ),
        suspects=tuple(suspects),
        ranks=tuple(tuple(profile.rank for profile in pipeline.ranks) for pipeline in steps[0].pipelines),
        slow_stage=slow_stage,
        slow_rank=slow_rank,
        notes=tuple(dict.fromkeys(notes)),
    )


def _candidates(steps: Sequence[JobStep]) -> list[tuple[Axis, str, Callable[[Where], bool]]]:
    """What can be equalized on its own; ranks only where they are not stages by another name."""
    all_places = places(steps)
    of_axis: dict[Axis, Callable[[Where], object]] = {
        "kind": lambda where: where.kind,
        "stage": lambda where: where.stage,
        "pipeline": lambda where: where.pipeline,
        "rank": lambda where: where.rank,
    }
    found: list[tuple[Axis, str, Callable[[Where], bool]]] = []
    for axis in _AXES:
        take = of_axis[axis]
        values = list(dict.fromkeys(value for where in all_places if (value := take(where)) is not None))
        pairs = {(where.rank, where.stage) for where in all_places}
        is_stage = axis == "rank" and len({stage for _, stage in pairs}) == len({rank for rank, _ in pairs}) == len(
            pairs
        )
        if len(values) > 1 and not is_stage:
            found += [(axis, str(value), _belongs(take, value)) for value in values]
    return found


def _others(belongs: Callable[[Where], bool]) -> Callable[[Where], bool]:
    return lambda where: not belongs(where)


def _belongs(take: Callable[[Where], object], value: object) -> Callable[[Where], bool]:
    return lambda where: take(where) == value


def _notes(result: Stragglers) -> list[Notice]:
    over = "ranks, stages, microbatches and steps"
    if len(result.steps) == 1:
        over = "ranks, stages and microbatches of this step alone (over more steps its equalized time may differ)"
    told = (
        "equalized: compute takes the mean of its kind, communication the median of its transfer times, over "
        f"{over}; the work stays the same, so uneven stages (a head, more layers) count, too",
        "a slowdown compares steps without host gaps ahead of and after the pipeline; ranks that wait for each other "
        "inside a compute (tensor parallel) share its time",
    )
    notes = [Notice(NoticeCode.EQUALIZED, text) for text in told]
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
