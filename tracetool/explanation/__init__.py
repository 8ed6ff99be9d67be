"""Why a step takes as long as it does: critical path, causes of idle time, and what removing each would give.

What removing a cause would give: the same order replayed again without it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.causes import critical_path, idle_after_window, idle_by_cause, mean_by_cause
from tracetool.causes.cause import Cause
from tracetool.causes.removals import (
    Explained,
    Removal,
    deeper,
    equally_fast,
    over_no_links,
    replayed,
    with_links,
    without_moving,
)
from tracetool.costs.over_links import crossing_uses
from tracetool.errors import TraceToolError, checked
from tracetool.explanation.path import PathPart, path_parts
from tracetool.model.notice import unasked
from tracetool.model.pipeline import BLOCKING, BY_EDGE
from tracetool.model.scenario import Scenario
from tracetool.model.schedule import OBSERVED
from tracetool.model.timeline import Metrics, measure
from tracetool.model.topology import Topology
from tracetool.registry import Pictured
from tracetool.replays.evaluation import stages_for
from tracetool.units import format_duration
from tracetool.whatif.answer import answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tracetool.causes.chain import ChainPiece
    from tracetool.causes.removals import HowRemoved
    from tracetool.model.notice import Progress
    from tracetool.model.pipeline import ActionCost, P2PMode, Pipeline
    from tracetool.reconstruction import Reconstruction
    from tracetool.whatif.results import Answer

_LONGER_RATIO = 0.0005
"""A step that is longer by less is shown as unchanged."""


def remove(how: HowRemoved, explained: Explained) -> Removal:
    """Replay without a cause; where the step gets longer, say why.

    Args:
        how: What replay without the cause means.
        explained: What is replayed with it.
    """
    try:
        removal = how.replay(explained)
        if (removal.change_ratio or 0) < _LONGER_RATIO:
            return removal
        return replace(removal, how=f"{removal.how}; longer, as {_why_longer(how, explained)}")
    except TraceToolError as error:
        return Removal(f"cannot be replayed: {error.message.splitlines()[0]}")


def _why_longer(how: HowRemoved, explained: Explained) -> str:
    """Why a step without a cause is longer than with it."""
    gentle = _beside_nothing(explained)
    kept_ns = replayed("", gentle).step_ns or 0
    unslowed = how.replay(replace(gentle, step_ns=kept_ns))
    if (unslowed.change_ratio or 0) < _LONGER_RATIO:
        slower = "computes then run beside more communication, which slows them down"
        return f"{slower} (without that {format_duration(unslowed.step_ns or 0)})"
    return how.why_longer


def remove_all(explained: Explained) -> Removal:
    """Replay with free links, receives posted ahead, messages that take no time inside DCs, and no slowdown beside any.

    What follows the window takes what it does inside a DC. That of the order as it is or as deep as it would be without
    a memory limit, of stages as they are or equally fast, whichever is shortest: each single removal of these can only
    be longer, as each of its actions ends later or with that.
    """
    explained = replace(explained, pipeline=explained.pipeline.without_waits())
    free = replace(without_moving(_beside_nothing(explained)), scenario=_free(explained.scenario))
    orders = [explained.schedule]
    try:
        if explained.cut_forwards:
            orders.append(deeper(explained))
        alike = [equally_fast(replace(free, schedule=order)) for order in orders]
        unlike = [replace(free, schedule=order) for order in orders]
        removals = [
            *(replace(replayed("all of these at once", one), stages_alike=True) for one in alike),
            *(replayed("all of these at once, stages as they are", one) for one in unlike),
        ]
    except TraceToolError as error:
        return Removal(f"cannot be replayed: {error.message.splitlines()[0]}")
    return min(removals, key=lambda removal: removal.step_ns or 0)


def without_tiers(explained: Explained) -> dict[str, Removal]:
    """What a step takes without each tier of the network but the innermost, by its name; the shortest first."""
    topology = explained.scenario.topology
    if topology.seating is None:
        return {}
    steps = {}
    for tier in topology.seating.network.tiers[1:]:
        how = f"a tier {tier.name} that takes no time"
        steps[tier.name] = with_links(
            explained, how, lambda link: replace(link.widened(), latency_ns=0), part=tier.name
        )
    return dict(sorted(steps.items(), key=lambda each: each[1].step_ns or 0))


def _free(scenario: Scenario) -> Scenario:
    return replace(scenario, topology=scenario.topology.without_delays(), p2p="posted-ahead", hbm_bytes=None)


def _beside_nothing(explained: Explained) -> Explained:
    """The same with computes that communication beside them does not slow down."""

    def alone(cost: ActionCost) -> ActionCost:
        return replace(cost, contended_ns=None)

    def change(pipeline: Pipeline) -> Pipeline:
        stages = tuple(
            replace(
                stage,
                costs={kind: tuple(map(alone, costs)) for kind, costs in stage.costs.items()},
                derived={kind: tuple(map(alone, costs)) for kind, costs in stage.derived.items()},
            )
            for stage in pipeline.stages
        )
        return replace(pipeline, stages=stages)

    return replace(explained, pipeline=explained.pipeline.each(change))


MOST_CAUSES = 6
"""So many causes are told, the largest first."""


@dataclass(frozen=True, slots=True)
class CauseFound:
    """A cause of idle time.

    Attributes:
        cause: Which.
        rank_ns: Idle time of each pipeline rank.
        mean_ns: Its mean over ranks, rounded so that all causes sum to the bubble and what follows the window.
        removal: What the step takes without it.
    """

    cause: Cause
    rank_ns: tuple[int, ...]
    mean_ns: int
    removal: Removal

    @property
    def worst_rank(self) -> int:
        """The pipeline rank that it costs most."""
        return self.rank_ns.index(max(self.rank_ns))


@dataclass(frozen=True, slots=True)
class Explanation(Pictured):
    """Why a step takes as long as it does.

    Attributes:
        answer: The what-if that it is about, with notes and fidelity.
        name: Name of the order.
        is_recorded: Whether the recording itself is explained, else a replay.
        p2p: How transfers were issued.
        microbatches: Microbatches of the step.
        extra_forwards: Warm-up forwards per pipeline rank beyond 1F1B's, where the order has any.
        metrics: Of the explained Timeline.
        replayed_step_ns: Step of the order replayed; of a replay its own.
        path: The critical path of the window.
        spent_ns: What the critical path was spent with: computes by pipeline rank, other things by cause.
        causes: The largest causes of idle time, largest first; at most ``MOST_CAUSES``.
        rest_ns: Idle time of the causes that are not among them, mean over ranks.
        without_any: What the step takes with all removed from its window that can be.
        over_no_links: What it takes where collectives inside computes cross no link; None if none does.
        remark: Why the order was chosen so, or how its costs came about.
        tiers: What the step takes without each tier of a network but the innermost, the shortest first.
    """

    answer: Answer
    name: str
    is_recorded: bool
    p2p: P2PMode
    microbatches: int
    extra_forwards: tuple[int, ...] | None
    metrics: Metrics
    replayed_step_ns: int
    path: tuple[PathPart, ...]
    spent_ns: dict[int | Cause, int]
    causes: tuple[CauseFound, ...]
    rest_ns: int
    without_any: Removal
    over_no_links: Removal | None
    remark: str | None
    tiers: Mapping[str, Removal]

    def __repr__(self) -> str:
        causes = ", ".join(each.cause.value for each in self.causes)
        return f"<Explanation of {self.name}: {format_duration(self.metrics.step_ns)}, idle by {causes or 'nothing'}>"

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Global rank of each pipeline rank: of several that are replayed together, those of the one explained."""
        return (self.answer.observed if self.is_recorded else self.answer.results[0].timeline).global_ranks

    @property
    def idle_ns(self) -> int:
        """How long ranks run no action in the step, mean over ranks: in its window, and after it."""
        return self.metrics.bubble_ns + self.metrics.step_ns - self.metrics.window_ns

    @property
    def busiest_rank(self) -> int:
        """The pipeline rank that computes longest: no step of these computes is shorter than that."""
        return self.metrics.rank_compute_ns.index(max(self.metrics.rank_compute_ns))


@checked
def explain(
    recording: Reconstruction,
    schedule: str | None = None,
    scenario: Scenario | None = None,
    *,
    extra_forwards: tuple[int, ...] | None = None,
    chunks: int | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Explanation:
    """Explain the recording, or a schedule in a scenario.

    Args:
        recording: A reconstructed Run.
        schedule: Name, as ``build_schedule`` takes it; None for the observed order: as recorded if the scenario
            changes nothing, else replayed.
        scenario: What differs from the measurement; by default nothing.
        extra_forwards: For schedules that are tuned, per pipeline rank; chosen by ``choose_depth`` if not given.
        chunks: Stages per rank that schedules of several get from a trace of one.
        time_limit_s: For optimal: how long to search; by default half a minute.
        progress: Told how many replays of schedules there are, then of what they take without each cause.

    Raises:
        ScheduleError: If the schedule does not fit.
        TraceToolError: If it does not exist, or the scenario does not fit the pipeline.

    Example:
        >>> worst = tt.explain(found, "1f1b", scenario).causes[0]
        >>> worst.cause.value, worst.mean_ns, worst.removal.how, worst.removal.step_ns
        ('cross_dc_latency', 84228649, 'links with 0 ms latency', 261038125)
    """
    scenario, progress = scenario or Scenario(), progress or unasked()
    is_recorded = schedule is None and _changes_nothing(scenario) and recording.pipeline.unchanged is None
    name = schedule or OBSERVED
    # The observed order cannot be made longer; a schedule compared with itself is replayed twice.
    is_longer = scenario.microbatches not in {None, recording.pipeline.observed.shape.microbatches}
    done = answer(
        recording,
        [name],
        scenario,
        baseline=name if is_longer else OBSERVED,
        extra_forwards=extra_forwards,
        chunks=chunks,
        time_limit_s=time_limit_s,
        progress=progress,
    )
    (result,) = done.results
    order, mode = result.replayed.schedule, result.p2p
    pipeline, _, _ = stages_for(recording.pipeline, name, chunks, result.microbatches)
    explained = Explained(
        pipeline=pipeline,
        schedule=order,
        scenario=scenario,
        p2p=mode,
        cut_forwards=result.cut_forwards,
        step_ns=result.metrics.step_ns,
        is_recording=is_recorded,
    )
    if is_recorded:
        timeline, idles = recording.observed, done.observed_idles
        pieces = critical_path(timeline, Topology(), blocking=mode in BLOCKING, by_edge=mode in BY_EDGE)
    else:
        timeline, idles = result.timeline, result.idles
        pieces = critical_path(
            timeline, result.replayed.topology, by_edge=mode in BY_EDGE, overlapping=order.overlapping()
        )
    metrics = measure(timeline)
    by_cause = idle_by_cause((*idles, *idle_after_window(timeline)), len(metrics.rank_compute_ns), Cause)
    means = mean_by_cause(by_cause)
    largest = sorted((cause for cause, ns in by_cause.items() if any(ns)), key=lambda cause: -sum(by_cause[cause]))
    ways = dict.fromkeys(cause.removal for cause in largest[:MOST_CAUSES])  # causes may be removed together
    progress.start(len(ways) + 1)
    removals = {}
    for how in ways:
        removals[how] = remove(how, explained)
        progress.advance(1)
    without_any = remove_all(explained)
    progress.advance(1)
    return Explanation(
        answer=done,
        name=(done.observed_schedule or OBSERVED) if is_recorded else result.schedule,
        is_recorded=is_recorded,
        p2p=mode,
        microbatches=result.microbatches,
        extra_forwards=result.extra_forwards,
        metrics=metrics,
        replayed_step_ns=result.metrics.step_ns,
        path=tuple(path_parts(pieces)),
        spent_ns=_spent(pieces),
        causes=tuple(
            CauseFound(cause, by_cause[cause], means[cause], removals[cause.removal]) for cause in largest[:MOST_CAUSES]
        ),
        rest_ns=sum(means[cause] for cause in largest[MOST_CAUSES:]),
        without_any=without_any,
        over_no_links=over_no_links(explained) if _crosses_inside(explained) else None,
        remark=result.remark,
        tiers=without_tiers(explained),
    )


def _crosses_inside(explained: Explained) -> bool:
    """Whether actions wait for collectives over links."""
    within = {use for stage in explained.pipeline.stages for uses in stage.collectives.values() for use in uses}
    return any(use in within for use in crossing_uses(explained.pipeline, explained.scenario.topology))


def _changes_nothing(scenario: Scenario) -> bool:
    """Whether a scenario is as measured; limits and places alone change no time."""
    same = replace(scenario, topology=Topology(), hbm_bytes=None, activation_bytes=None, static_bytes=None)
    return same == Scenario() and not scenario.topology.is_joined


def _spent(pieces: Iterable[ChainPiece]) -> dict[int | Cause, int]:
    """Time of the critical path by what it was spent with, most first."""
    spent: Counter[int | Cause] = Counter()
    for piece in pieces:
        spent[piece.op.rank if piece.cause is None else piece.cause] += piece.end_ns - piece.start_ns
    return dict(sorted(spent.items(), key=lambda item: (-item[1], str(item[0]))))
