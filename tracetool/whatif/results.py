"""What an answer is made of: schedules replayed in one scenario, beside what was observed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from tracetool.causes import idle_intervals, idles_of
from tracetool.model.pipeline import BY_EDGE, max_if_known
from tracetool.model.scenario import Choice, Taken
from tracetool.model.topology import Topology
from tracetool.registry import Pictured
from tracetool.units import format_duration
from tracetool.whatif.accuracy import change_error_ratio
from tracetool.whatif.best import Chosen, choose, evidence_of, recorded_test

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.causes.cause import Idle
    from tracetool.model.job import SortedPipelines
    from tracetool.model.notice import Notice
    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.timeline import Metrics, Timeline
    from tracetool.replays import Replayed
    from tracetool.whatif.accuracy import KnownError
    from tracetool.whatif.best import Evidence
    from tracetool.whatif.memory_limit import Shortage
    from tracetool.whatif.variation import Spread, StepPrediction


@dataclass(frozen=True, slots=True)
class AlikeTimes:
    """How long pipelines that are alike take among the others, at most.

    Attributes:
        numbers: Theirs.
        window_ns: First forward to last backward.
        step_ns: First forward to the end of gradient reduction and optimizer.
    """

    numbers: tuple[int, ...]
    window_ns: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class Slowest:
    """What sets the step where all pipelines are replayed together.

    Attributes:
        pipeline: Number of the pipeline, which the metrics are of.
        rank: Global rank, of it, of a pipeline that computes as long or of one that it meets within actions, whose
            kernels took longer than those of other ranks of its stage; None if none stands out.
        rank_slower_ratio: By how much.
        alike: What pipelines of each kind take.
    """

    pipeline: int
    rank: int | None
    rank_slower_ratio: float | None
    alike: tuple[AlikeTimes, ...]


@dataclass(frozen=True)
class Result(Pictured):
    """One schedule in one scenario.

    Attributes:
        schedule: Name of the schedule.
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's; None for schedules without any.
        p2p: How its transfers were issued.
        microbatches: Microbatches per step.
        feasible: Whether it fits the memory limit; None if there is a limit but memory is unknown.
        shortage: Who exceeds the limit first and who lacks most, if it does not fit.
        metrics: Its metrics.
        cross_dc_bubble_ns: Window minus the window with free cross-DC links.
        cross_dc_step_ns: The same of the step: what links add to it, collectives over them among that.
        replayed: Its order, and when everything ran.
        known_error: How far off predictions of this kind were on the recorded H100 runs; None for kinds that none of
            them was like.
        remarks: Why this variant was chosen, and how its costs came about.
        spread: Step times with costs drawn anew, if that was asked for.
        cut_forwards: How many warm-up forwards of each rank the memory limit cut off; empty if it did not.
        each_step: The same by each recorded step, if that was asked for.
        choice: What was asked of it.
        rests_on: Of an unproven prediction, what nothing recorded was like.
        unlimited_ns: Of a tuned schedule, the step with the warm-up that it would have without the memory limit; None
            if that cuts nothing.
        slowest: What sets the step, where all pipelines of the job are replayed together; None where one is by itself.
    """

    schedule: str
    extra_forwards: tuple[int, ...] | None
    p2p: P2PMode
    microbatches: int
    feasible: bool | None
    shortage: Shortage | None
    metrics: Metrics
    cross_dc_bubble_ns: int
    cross_dc_step_ns: int
    replayed: Replayed
    known_error: KnownError | None
    remarks: Sequence[Notice] = ()
    spread: Spread | None = None
    cut_forwards: tuple[int, ...] = ()
    each_step: tuple[StepPrediction, ...] = ()
    choice: Choice = field(default_factory=Choice)
    rests_on: tuple[str, ...] = ()
    unlimited_ns: int | None = None
    slowest: Slowest | None = None

    @property
    def remark(self) -> str | None:
        """The remarks as one text."""
        return "; ".join(map(str, self.remarks)) or None

    def __repr__(self) -> str:
        return f"<Result {self.schedule}: {format_duration(self.metrics.step_ns)}>"

    @property
    def step_ns(self) -> int:
        """Its step."""
        return self.metrics.step_ns

    @property
    def needed_bytes(self) -> int | None:
        """What the fullest rank needs; None if it is unknown of any."""
        return max_if_known(self.metrics.needed_hbm_bytes)

    @cached_property
    def order_digest(self) -> str:
        """What its order is, whatever its name."""
        return self.replayed.schedule.order_digest

    @property
    def evidence(self) -> Evidence:
        """What the prediction rests on."""
        return evidence_of(self)

    @property
    def timeline(self) -> Timeline:
        """When everything ran."""
        return self.replayed.timeline

    @property
    def slowest_pipeline(self) -> int | None:
        """Number of the pipeline that sets the step; None where one is replayed by itself."""
        return None if self.slowest is None else self.slowest.pipeline

    @property
    def slowest_rank(self) -> int | None:
        """Global rank that stands out; None if none does."""
        return None if self.slowest is None else self.slowest.rank

    @property
    def seen_error_ratio(self) -> float | None:
        """Largest error of the step time that such predictions had on recorded runs; None if none was like it."""
        return None if self.known_error is None else self.known_error.step_ratio

    @cached_property
    def idles(self) -> tuple[Idle, ...]:
        """Every idle interval of the window with its cause; see ``causes``."""
        return idles_of(self.replayed, cut_forwards=self.cut_forwards)


@dataclass(frozen=True, slots=True)
class Refused:
    """A schedule that was asked for and does not fit.

    Attributes:
        schedule: Its name.
        reason: Why it cannot be replayed.
        hint: What to do about it.
    """

    schedule: str
    reason: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well replay gives back what was observed: the observed order at the measured costs.

    Attributes:
        observed_ns: Observed window.
        replayed_ns: Replayed window.
        profiler_ns: How much of the observed one the profiler's own work held up; replay leaves it out.
    """

    observed_ns: int
    replayed_ns: int
    profiler_ns: int = 0

    @property
    def error_ratio(self) -> float:
        """Replayed window over the observed one without the profiler's own work, minus one."""
        return self.replayed_ns / (self.observed_ns - self.profiler_ns) - 1

    @property
    def held_up(self) -> str:
        """What the profiler held up, in words; empty if it did not."""
        if not self.profiler_ns:
            return ""
        return f" without the {format_duration(self.profiler_ns)} that the profiler itself held it up"


@dataclass(frozen=True)
class Answer(Pictured):
    """Everything a report says.

    Attributes:
        pipeline: What was measured.
        observed: The observed Timeline.
        observed_schedule: Name of the observed order, or None if it is none that is known.
        observed_metrics: Metrics of the observed Timeline.
        fidelity: Check of the model on the observed order.
        scenario: The what-if.
        baseline: The schedule that the others are compared with, in the same scenario.
        results: One per schedule asked for that fits; a tuned one again with a warm-up closer to its shortest step
            where that is what to run.
        notes: What was inferred, is missing or not modelled.
        refused: Schedules asked for that do not fit.
        warnings: Why not to trust any of it, for readers to see first.
        taken: What of the costs was not measured where it is used.
        jitter_seed: Of costs drawn anew, if that was asked for.
        closer: Tuned schedules with a warm-up closer to its shortest step, where that was not chosen and not asked for.
        pipelines: Those of the job, by their costs; None where nobody looked. Results say whether they are replayed
            together (``Result.slowest``).
    """

    pipeline: Pipeline
    observed: Timeline
    observed_schedule: str | None
    observed_metrics: Metrics
    fidelity: Fidelity
    scenario: Scenario
    baseline: Result
    results: tuple[Result, ...]
    notes: tuple[Notice, ...]
    refused: tuple[Refused, ...] = ()
    warnings: tuple[Notice, ...] = ()
    taken: Taken = field(default_factory=Taken)
    jitter_seed: int | None = None
    closer: tuple[Result, ...] = ()
    pipelines: SortedPipelines | None = None

    def __repr__(self) -> str:
        return f"<Answer: {', '.join(map(repr, self.results))}>"

    @cached_property
    def observed_idles(self) -> tuple[Idle, ...]:
        """Every idle interval of the observed window with its cause; no message crossed a link there."""
        p2p = self.pipeline.p2p
        return idle_intervals(self.observed, Topology(), blocking=p2p == "grouped", by_edge=p2p in BY_EDGE)

    def step_change(self, result: Result) -> float:
        """Step of the result over that of the baseline, minus one."""
        return step_change(self.baseline, result)

    def step_change_error(self, result: Result) -> float | None:
        """How far off that may be, as far as recorded runs tell; None if none was like it."""
        return step_change_error(self.baseline, result)

    @cached_property
    def chosen(self) -> Chosen[Result]:
        """What to run of the baseline and the results and what comes near, by the rule of ``tracetool.whatif.best``."""
        candidates = [self.baseline, *self.results, *self.closer]
        return choose(candidates, recorded_test(self.pipeline), self.baseline.schedule)

    @property
    def best(self) -> Result | None:
        """What to run; None if none fits."""
        return self.chosen.best

    def bubble_reduction(self, result: Result) -> float | None:
        """1 - bubble of the result / bubble of the baseline; None if the baseline has no bubble."""
        return _reduction(result.metrics.bubble_ns, self.baseline.metrics.bubble_ns)

    def cross_dc_bubble_reduction(self, result: Result) -> float | None:
        """The same for the cross-DC bubble."""
        return _reduction(result.cross_dc_bubble_ns, self.baseline.cross_dc_bubble_ns)


def step_change(base: Result, other: Result) -> float:
    """Step of the other over that of the base, minus one."""
    return other.metrics.step_ns / base.metrics.step_ns - 1


def step_change_error(base: Result, other: Result) -> float | None:
    """How far off that may be, as pairs of recorded runs tell it; None if none was like both."""
    return change_error_ratio(base.known_error, other.known_error, step_change(base, other))


def _reduction(value: int, base: int) -> float | None:
    return None if base == 0 else 1 - value / base
