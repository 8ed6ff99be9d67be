"""What removing a cause of idle time means: the same order replayed again without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import Option, ScheduleError
from tracetool.model.action import ActionKind
from tracetool.model.pipeline import BY_EDGE, ActionCost
from tracetool.model.schedule import OBSERVED
from tracetool.network.link import Link
from tracetool.replays.evaluation import evaluate
from tracetool.schedules import build_schedule, is_sourced
from tracetool.schedules.names import recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tracetool.model.action import CollectiveUse
    from tracetool.model.pipeline import P2PMode, Pipeline, TailPart
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Explained:
    """What is explained, as it was replayed.

    Attributes:
        pipeline: Its costs, stages re-cut where the schedule has them so.
        schedule: Its order.
        scenario: The what-if.
        p2p: How transfers were issued.
        cut_forwards: How many warm-up forwards of each rank the memory limit cut off; empty if it did not.
        step_ns: The step that came out: what steps without a cause are compared with.
        is_recording: Whether it is the recording itself that is explained: steps are compared with its replay.
    """

    pipeline: Pipeline
    schedule: Schedule
    scenario: Scenario
    p2p: P2PMode
    cut_forwards: tuple[int, ...]
    step_ns: int
    is_recording: bool


@dataclass(frozen=True, slots=True)
class Removal:
    """What a step takes without a cause.

    Attributes:
        how: What was replayed instead, or why nothing was.
        step_ns: The step then; None if nothing was replayed.
        microbatches: Microbatches of that step.
        change_ratio: Its time per microbatch over that of the step replayed with the cause, minus one; None without
            the host, as that is the step replayed.
        stages_alike: Whether all its stages are equally fast.
    """

    how: str
    step_ns: int | None = None
    microbatches: int = 0
    change_ratio: float | None = None
    stages_alike: bool = False


class HowRemoved(NamedTuple):
    """How a cause is removed.

    Attributes:
        replay: Replays without it, or says why it cannot.
        why_longer: Why the step may be longer then.
    """

    replay: Callable[[Explained], Removal]
    why_longer: str = "messages then meet in another order, or devices slow down under load as they idle less"


def replayed(how: str, explained: Explained, microbatches: int | None = None) -> Removal:
    """Replay, and say how long that takes.

    Args:
        how: What is replayed, in words.
        explained: What is replayed.
        microbatches: That its time is given for; all of them by default.
    """
    done = evaluate(explained.pipeline, explained.schedule, explained.scenario)
    now, step_ns = explained.schedule.shape.microbatches, done.metrics.step_ns
    return Removal(how, step_ns, now, step_ns * (microbatches or now) / (explained.step_ns * now) - 1)


def with_links(explained: Explained, how: str, changed: Callable[[Link], Link], part: str | None = None) -> Removal:
    """Replay over other links.

    Args:
        explained: What is replayed.
        how: What is replayed, in words.
        changed: What each link becomes.
        part: The tier of a network whose links are changed; None for all.
    """
    scenario = replace(explained.scenario, topology=explained.scenario.topology.changed(changed, part))
    return replayed(how, replace(explained, scenario=scenario))


def _without_latency(explained: Explained) -> Removal:
    return with_links(explained, "links with 0 ms latency", lambda link: replace(link, latency_ns=0))


def _without_occupancy(explained: Explained) -> Removal:
    return with_links(explained, "links of unlimited bandwidth", Link.widened)


def _without_channel(explained: Explained) -> Removal:
    if explained.p2p in BY_EDGE:
        return replayed("messages inside a DC that take no time", without_moving(explained))
    scenario = replace(explained.scenario, p2p="per-edge")
    return replayed(f"a channel per edge ({Option.P2P('per-edge')})", replace(explained, scenario=scenario))


def without_moving(explained: Explained) -> Explained:
    """The same with messages that take no time inside a DC."""

    def change(pipeline: Pipeline) -> Pipeline:
        stages = (replace(s, forward_transfer_ns=0, backward_transfer_ns=0) for s in pipeline.stages)
        return replace(pipeline, stages=tuple(stages))

    return replace(explained, pipeline=explained.pipeline.each(change))


def _without_limit(explained: Explained) -> Removal:
    if not explained.cut_forwards:
        return Removal("no memory limit cut this order")
    unlimited = deeper(explained)
    how = f"no HBM limit: {unlimited.name} +{','.join(map(str, unlimited.extra_forwards or ()))}"
    scenario = replace(explained.scenario, hbm_bytes=None)
    return replayed(how, replace(explained, schedule=unlimited, scenario=scenario))


def deeper(explained: Explained) -> Schedule:
    """The order that is chosen without a memory limit."""
    now = explained.schedule.extra_forwards or (0,) * len(explained.cut_forwards)
    extra = tuple(a + b for a, b in zip(now, explained.cut_forwards, strict=True))
    return build_schedule(explained.schedule.name, explained.schedule.shape, extra_forwards=extra)


def _without_differences(explained: Explained) -> Removal:
    return replayed("all stages and microbatches equally fast", equally_fast(explained))


def _without_host(explained: Explained) -> Removal:
    if not explained.is_recording and explained.pipeline.hosts_wait:
        ahead = replace(explained, pipeline=explained.pipeline.without_waits())
        return replayed("hosts that do not wait for their devices after batches", ahead)
    if not explained.is_recording:
        return Removal("a replay has none")
    launched = replayed("the same order, launched in time", explained)
    return replace(launched, change_ratio=None)  # with it the others are compared


def _with_more_microbatches(explained: Explained) -> Removal:
    schedule = explained.schedule
    name = schedule.name
    if name == OBSERVED or is_sourced(name):
        known = recognise(schedule)
        if known is None:
            return Removal("an order without a name cannot be made longer")
        name = known.name
    shape = replace(schedule.shape, microbatches=2 * schedule.shape.microbatches)
    try:
        longer = build_schedule(name, shape, extra_forwards=schedule.extra_forwards)
    except ScheduleError as error:
        return Removal(f"cannot be made longer: {error.message.splitlines()[0]}")
    now = schedule.shape.microbatches
    return replayed(f"{shape.microbatches} microbatches", replace(explained, schedule=longer), now)


_LARGEST_SCALARS_BYTES = 4096
"""Stages also agree on norms and flags, of a few bytes."""


def is_of_embedding(use: CollectiveUse, ranks: Collection[int]) -> bool:
    """Whether a collective sums gradients over stages of one pipeline: of weights that several of them hold.

    Args:
        use: The collective.
        ranks: Global ranks of the pipeline.
    """
    is_between = len(set(use.group_ranks).intersection(ranks)) > 1
    is_sum = "allreduce" in "".join(filter(str.isalpha, use.operation.lower()))
    return is_between and is_sum and (use.payload_bytes or 0) > _LARGEST_SCALARS_BYTES


def _with_tails(
    explained: Explained, how: str, left: Callable[[TailPart, Sequence[CollectiveUse]], TailPart | None]
) -> Removal:
    """Replay with what is left of each part of the tails, given the collectives in it that sum an embedding."""

    def change(pipeline: Pipeline) -> Pipeline:
        ranks = [profile.rank for profile in pipeline.ranks]

        def embeddings(part: TailPart) -> list[CollectiveUse]:
            return [u for u in part.collectives if part.kind is ActionKind.REDUCE_GRAD and is_of_embedding(u, ranks)]

        profiles = tuple(
            replace(profile, tail=tuple(kept for p in profile.tail if (kept := left(p, embeddings(p))) is not None))
            for profile in pipeline.ranks
        )
        return replace(pipeline, ranks=profiles)

    return replayed(how, replace(explained, pipeline=explained.pipeline.each(change)))


def _with_alone(part: TailPart, uses: Sequence[CollectiveUse], duration_ns: int) -> TailPart:
    """A part with some of its collectives: ranks meet at its beginning where the first is among them."""
    meet = part.meet if uses and uses[0] is part.collectives[0] else None
    return replace(part, duration_ns=max(0, duration_ns), meet=meet, collectives=tuple(uses))


def _without_reduction(explained: Explained) -> Removal:
    def left(part: TailPart, embeddings: Sequence[CollectiveUse]) -> TailPart | None:
        if part.kind is not ActionKind.REDUCE_GRAD:
            return part
        return _with_alone(part, embeddings, sum(use.own_ns for use in embeddings)) if embeddings else None

    def change(pipeline: Pipeline) -> Pipeline:
        return replace(pipeline, ranks=tuple(replace(profile, overlapped=()) for profile in pipeline.ranks))

    alone = replace(explained, pipeline=explained.pipeline.each(change))
    return _with_tails(alone, "gradient reduction that takes no time", left)


def _without_embedding(explained: Explained) -> Removal:
    def left(part: TailPart, embeddings: Sequence[CollectiveUse]) -> TailPart:
        if not embeddings:
            return part
        others = [use for use in part.collectives if use not in embeddings]
        return _with_alone(part, others, part.duration_ns - sum(use.own_ns for use in embeddings))

    return _with_tails(explained, "stages that share no weights (an untied embedding)", left)


def _without_optimizer(explained: Explained) -> Removal:
    return _with_tails(
        explained,
        "an optimizer that takes no time",
        lambda part, _embeddings: None if part.kind is ActionKind.OPTIMIZER else part,
    )


def over_no_links(explained: Explained) -> Removal:
    """Replay with computes whose collectives take what they took when they were recorded."""

    def change(pipeline: Pipeline) -> Pipeline:
        return replace(pipeline, stages=tuple(replace(stage, collectives={}) for stage in pipeline.stages))

    alone = replace(explained, pipeline=explained.pipeline.each(change))
    return replayed("collectives inside computes over no links", alone)


def equally_fast(explained: Explained) -> Explained:
    """The same with one time for all actions of a kind, their mean: as much compute in all, evenly spread.

    Where some stages run the backward whole and others in halves, all take the mean of whole backwards, cut into halves
    in the measured proportion.
    """
    schedule, scenario = explained.schedule, replace(explained.scenario, overlap_ratio=1.0)
    return replace(explained, pipeline=explained.pipeline.each(lambda one: _alike(one, schedule, scenario)))


def _alike(pipeline: Pipeline, schedule: Schedule, scenario: Scenario) -> Pipeline:
    measured = MeasuredCosts(pipeline, scenario, schedule)
    by_kind: dict[ActionKind, list[ActionCost]] = {}
    splitting = {a.stage for order in schedule.orders for a in order if a.kind is ActionKind.BACKWARD_INPUT}
    for action in (action for order in schedule.orders for action in order):
        is_whole = action.kind is ActionKind.BACKWARD_WEIGHT and action.stage not in splitting
        kind = ActionKind.BACKWARD if is_whole else action.kind
        by_kind.setdefault(kind, []).append(measured.action(action))
    alone, contended = (_means(by_kind, time) for time in (_alone_ns, _contended_ns))
    one = {kind: ActionCost(alone[kind], None, None, alone[kind], contended[kind]) for kind in alone}
    costs = {kind: (cost,) * schedule.shape.microbatches for kind, cost in one.items()}
    return replace(
        pipeline, stages=tuple(replace(stage, costs=costs, derived={}, layers=None) for stage in pipeline.stages)
    )


def _alone_ns(cost: ActionCost) -> int:
    return cost.duration_ns if cost.uncontended_ns is None else cost.uncontended_ns


def _contended_ns(cost: ActionCost) -> int:
    return max(_alone_ns(cost), cost.contended_ns or 0)


def _means(by_kind: dict[ActionKind, list[ActionCost]], time: Callable[[ActionCost], int]) -> dict[ActionKind, int]:
    totals = {kind: sum(map(time, costs)) for kind, costs in by_kind.items()}
    means = {kind: round(total / len(by_kind[kind])) for kind, total in totals.items()}
    whole, inputs, weights = ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
    if whole in means and inputs in means:
        halves = totals[inputs] + totals[weights]
        means[whole] = round((totals[whole] + halves) / (len(by_kind[whole]) + len(by_kind[inputs])))
        means[inputs] = means[whole] * totals[inputs] // max(1, halves)
        means[weights] = means[whole] - means[inputs]
    return means


MORE_MICROBATCHES = HowRemoved(_with_more_microbatches)
EQUAL_STAGES = HowRemoved(
    _without_differences,
    "the slow computes are off the critical path, and a part of them is on it when evenly spread",
)
NO_LATENCY = HowRemoved(_without_latency)
UNLIMITED_BANDWIDTH = HowRemoved(_without_occupancy)
OPEN_CHANNEL = HowRemoved(_without_channel)
NO_LIMIT = HowRemoved(_without_limit)
HOST_IN_TIME = HowRemoved(_without_host)
NO_REDUCTION = HowRemoved(_without_reduction)
UNTIED = HowRemoved(_without_embedding)
NO_OPTIMIZER = HowRemoved(_without_optimizer)
