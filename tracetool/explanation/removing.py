"""What removing a cause would give: the same order replayed again without it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.costs.measured import MeasuredCosts
from tracetool.errors import ScheduleError, TraceToolError
from tracetool.model.action import ActionKind
from tracetool.model.idle import Cause
from tracetool.model.metrics import measure
from tracetool.model.pipeline import BY_EDGE, ActionCost
from tracetool.replays import replay
from tracetool.schedules import build_schedule, is_file
from tracetool.schedules.recognise import recognise
from tracetool.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracetool.model.pipeline import P2PMode, Pipeline
    from tracetool.model.scenario import Scenario
    from tracetool.model.schedule import Schedule
    from tracetool.model.topology import Link

_FREE_BYTES_PER_S = 10**30

_LONGER_RATIO = 0.0005
"""A step that is longer by less is shown as unchanged."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What was replayed.

    Attributes:
        pipeline: Its costs, stages re-cut where the schedule has them so.
        schedule: Its order.
        scenario: The what-if.
        p2p: How transfers were issued.
        cut_forwards: How many warm-up forwards of each rank the memory limit cut off; empty if it did not.
        step_ns: The step that came out: what steps without a cause are compared with.
        seen: Whether it is the recording itself that is explained: steps are compared with its replay.
    """

    pipeline: Pipeline
    schedule: Schedule
    scenario: Scenario
    p2p: P2PMode
    cut_forwards: tuple[int, ...]
    step_ns: int
    seen: bool


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


def remove(cause: Cause, setting: Setting) -> Removal:
    """Replay without a cause; where the step gets longer, say why."""
    try:
        removal = _REMOVALS[cause](setting)
        if (removal.change_ratio or 0) < _LONGER_RATIO:
            return removal
        return replace(removal, how=f"{removal.how}; longer, as {_why_longer(cause, setting)}")
    except TraceToolError as error:
        return Removal(f"cannot be replayed: {error.message.splitlines()[0]}")


def _why_longer(cause: Cause, setting: Setting) -> str:
    """Why a step without a cause is longer than with it."""
    gentle = _beside_nothing(setting)
    kept_ns = _replayed("", gentle).step_ns or 0
    unslowed = _REMOVALS[cause](replace(gentle, step_ns=kept_ns))
    if (unslowed.change_ratio or 0) < _LONGER_RATIO:
        slower = "computes then run beside more communication, which slows them down"
        return f"{slower} (without that {format_duration(unslowed.step_ns or 0)})"
    if cause is Cause.DEPENDENCY:
        return "the slow computes are off the critical path, and a part of them is on it when evenly spread"
    return "messages then meet in another order, or devices slow down under load as they idle less"


def remove_all(setting: Setting) -> Removal:
    """Replay with free links, receives posted ahead, messages that take no time inside DCs, and no slowdown beside any.

    That of the order as it is or as deep as it would be without a memory limit, of stages as they are or equally fast,
    whichever is shortest: each single removal can only be longer, as each of its actions ends later or with that.
    """
    setting = replace(setting, pipeline=setting.pipeline.without_waits())
    free = replace(_without_moving(_beside_nothing(setting)), scenario=_free(setting.scenario))
    orders = [setting.schedule]
    try:
        if setting.cut_forwards:
            orders.append(_deeper(setting))
        alike = [equally_fast(replace(free, schedule=order)) for order in orders]
        unlike = [replace(free, schedule=order) for order in orders]
        found = [
            *(replace(_replayed("all of these at once", one), stages_alike=True) for one in alike),
            *(_replayed("all of these at once, stages as they are", one) for one in unlike),
        ]
    except TraceToolError as error:
        return Removal(f"cannot be replayed: {error.message.splitlines()[0]}")
    return min(found, key=lambda removal: removal.step_ns or 0)


def _free(scenario: Scenario) -> Scenario:
    return replace(scenario, topology=scenario.topology.without_delays(), p2p="posted-ahead", hbm_bytes=None)


def _beside_nothing(setting: Setting) -> Setting:
    """The same with computes that communication beside them does not slow down."""

    def alone(cost: ActionCost) -> ActionCost:
        return replace(cost, contended_ns=None)

    stages = tuple(
        replace(
            stage,
            costs={kind: tuple(map(alone, costs)) for kind, costs in stage.costs.items()},
            derived={kind: tuple(map(alone, costs)) for kind, costs in stage.derived.items()},
        )
        for stage in setting.pipeline.stages
    )
    return replace(setting, pipeline=replace(setting.pipeline, stages=stages))


def _replayed(how: str, setting: Setting, microbatches: int | None = None) -> Removal:
    done = replay(setting.pipeline, setting.schedule, setting.scenario)
    now, step_ns = setting.schedule.shape.microbatches, measure(done.timeline).step_ns
    return Removal(how, step_ns, now, step_ns * (microbatches or now) / (setting.step_ns * now) - 1)


def _with_links(setting: Setting, how: str, changed: Callable[[Link], Link]) -> Removal:
    topology = setting.scenario.topology
    links = tuple(changed(link) for link in topology.links)
    scenario = replace(setting.scenario, topology=replace(topology, links=links))
    return _replayed(how, replace(setting, scenario=scenario))


def _without_latency(setting: Setting) -> Removal:
    return _with_links(setting, "links with 0 ms latency", lambda link: replace(link, latency_ns=0))


def _without_occupancy(setting: Setting) -> Removal:
    return _with_links(
        setting, "links of unlimited bandwidth", lambda link: replace(link, bandwidth_bytes_per_s=_FREE_BYTES_PER_S)
    )


def _without_channel(setting: Setting) -> Removal:
    if setting.p2p in BY_EDGE:
        return _replayed("messages inside a DC that take no time", _without_moving(setting))
    scenario = replace(setting.scenario, p2p="per-edge")
    return _replayed("a channel per edge (--p2p per-edge)", replace(setting, scenario=scenario))


def _without_moving(setting: Setting) -> Setting:
    stages = [replace(s, forward_transfer_ns=0, backward_transfer_ns=0) for s in setting.pipeline.stages]
    return replace(setting, pipeline=replace(setting.pipeline, stages=tuple(stages)))


def _without_limit(setting: Setting) -> Removal:
    if not setting.cut_forwards:
        return Removal("no memory limit cut this order")
    deeper = _deeper(setting)
    how = f"no HBM limit: {deeper.name} +{','.join(map(str, deeper.extra_forwards or ()))}"
    scenario = replace(setting.scenario, hbm_bytes=None)
    return _replayed(how, replace(setting, schedule=deeper, scenario=scenario))


def _deeper(setting: Setting) -> Schedule:
    """The order that is chosen without a memory limit."""
    now = setting.schedule.extra_forwards or (0,) * len(setting.cut_forwards)
    extra = tuple(a + b for a, b in zip(now, setting.cut_forwards, strict=True))
    return build_schedule(setting.schedule.name, setting.schedule.shape, extra_forwards=extra)


def _without_differences(setting: Setting) -> Removal:
    return _replayed("all stages and microbatches equally fast", equally_fast(setting))


def _without_host(setting: Setting) -> Removal:
    if not setting.seen and setting.pipeline.hosts_wait:
        ahead = replace(setting, pipeline=setting.pipeline.without_waits())
        return _replayed("hosts that do not wait for their devices after batches", ahead)
    if not setting.seen:
        return Removal("a replay has none")
    launched = _replayed("the same order, launched in time", setting)
    return replace(launched, change_ratio=None)  # with it the others are compared


def _with_more_microbatches(setting: Setting) -> Removal:
    schedule = setting.schedule
    name = schedule.name
    if name == "observed" or is_file(name):
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
    return _replayed(f"{shape.microbatches} microbatches", replace(setting, schedule=longer), now)


_REMOVALS: dict[Cause, Callable[[Setting], Removal]] = {
    Cause.FILL: _with_more_microbatches,
    Cause.DRAIN: _with_more_microbatches,
    Cause.DEPENDENCY: _without_differences,
    Cause.CROSS_DC_LATENCY: _without_latency,
    Cause.CROSS_DC_BANDWIDTH: _without_occupancy,
    Cause.CHANNEL: _without_channel,
    Cause.MEMORY: _without_limit,
    Cause.PROFILER_OVERHEAD: _without_host,
    Cause.HOST: _without_host,
}


def equally_fast(setting: Setting) -> Setting:
    """The same with one time for all actions of a kind, their mean: as much compute in all, evenly spread.

    Where some stages run the backward whole and others in halves, all take the mean of whole backwards, cut into halves
    in the measured proportion.
    """
    schedule, scenario = setting.schedule, replace(setting.scenario, overlap_ratio=1.0)
    measured = MeasuredCosts(setting.pipeline, scenario, schedule)
    by_kind: dict[ActionKind, list[ActionCost]] = {}
    splitting = {a.stage for order in schedule.orders for a in order if a.kind is ActionKind.BACKWARD_INPUT}
    for action in (action for order in schedule.orders for action in order):
        is_whole = action.kind is ActionKind.BACKWARD_WEIGHT and action.stage not in splitting
        kind = ActionKind.BACKWARD if is_whole else action.kind
        by_kind.setdefault(kind, []).append(measured.action(action))
    alone, contended = (_means(by_kind, time) for time in (_alone_ns, _contended_ns))
    one = {kind: ActionCost(alone[kind], None, None, alone[kind], contended[kind]) for kind in alone}
    costs = {kind: (cost,) * schedule.shape.microbatches for kind, cost in one.items()}
    stages = tuple(replace(stage, costs=costs, derived={}, layers=None) for stage in setting.pipeline.stages)
    return replace(setting, pipeline=replace(setting.pipeline, stages=stages))


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
