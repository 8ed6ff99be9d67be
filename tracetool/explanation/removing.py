"""What removing a cause would give: the same order replayed again without it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracetool.causes.removals import Removal, deeper, equally_fast, replayed, without_moving
from tracetool.errors import TraceToolError
from tracetool.units import format_duration

if TYPE_CHECKING:
    from tracetool.causes.removals import Explained, HowRemoved
    from tracetool.model.pipeline import ActionCost
    from tracetool.model.scenario import Scenario

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

    That of the order as it is or as deep as it would be without a memory limit, of stages as they are or equally fast,
    whichever is shortest: each single removal can only be longer, as each of its actions ends later or with that.
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


def _free(scenario: Scenario) -> Scenario:
    return replace(scenario, topology=scenario.topology.without_delays(), p2p="posted-ahead", hbm_bytes=None)


def _beside_nothing(explained: Explained) -> Explained:
    """The same with computes that communication beside them does not slow down."""

    def alone(cost: ActionCost) -> ActionCost:
        return replace(cost, contended_ns=None)

    stages = tuple(
        replace(
            stage,
            costs={kind: tuple(map(alone, costs)) for kind, costs in stage.costs.items()},
            derived={kind: tuple(map(alone, costs)) for kind, costs in stage.derived.items()},
        )
        for stage in explained.pipeline.stages
    )
    return replace(explained, pipeline=replace(explained.pipeline, stages=stages))
