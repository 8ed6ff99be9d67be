"""What launching adds to a schedule, where hosts wait for their devices after each blocking batch of messages.

Such a host begins each time with an idle device. It gets ahead while kernels take longer than their launches, and
what the device waits until then is the action's lag. Where no batch stands between two actions, the second has the
lead that the first one left. Other ways to issue messages let hosts run ahead: they lag at the start of a step only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.replays.flow import FORWARD
from tracetool.replays.graph import TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.action import Action
    from tracetool.model.pipeline import Launch
    from tracetool.replays.compiled import Compiled


@dataclass(frozen=True, slots=True)
class Launching:
    """Per action of a compiled schedule, by number.

    Attributes:
        waits_ns: From the end of a batch ahead of it to its first kernel; 0 where batches do not block.
        lags_ns: How long its kernels wait for their launches.
    """

    waits_ns: list[int]
    lags_ns: list[int]


def launching(
    compiled: Compiled, launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]
) -> Launching:
    """Go through each rank's actions in turn, with the lead that its host has.

    Args:
        compiled: The schedule.
        launch_of: What launching an action takes; None if nothing is known of it.
        alone_ns: What the action takes by itself.
    """
    import numpy as np

    graph = compiled.graph
    posts = np.cumsum(graph.kinds == TaskKind.POST)[graph.compute].tolist()
    flow = graph.flow
    waits, lags = [0] * len(flow.actions), [0] * len(flow.actions)
    for first, end in zip(flow.first[:-1].tolist(), flow.first[1:].tolist(), strict=True):
        if not compiled.waits and _is_behind(flow.actions[first:end], launch_of, alone_ns):
            lags[first:end] = [_behind_ns(action, launch_of, alone_ns) for action in flow.actions[first:end]]
            continue
        lead: int | None = 0  # of the host over the device; None once messages have let it run ahead
        for number in range(first, end):
            action = flow.actions[number]
            launch = launch_of(action)
            if launch is None:
                lead = None
                continue
            has_batch = number > first and posts[number] > posts[number - 1]
            if compiled.waits:
                waits[number] = launch.sync_ns
                lead = 0 if has_batch or lead is None else lead
            elif flow.needed[number] >= 0 or flow.kind[number] != FORWARD:
                lead = None
            if lead is None:
                continue
            starts = number == first or (has_batch and compiled.waits)
            begins = 0 if starts else launch.turn_ns - lead
            lags[number] = max(0, begins + launch.lag_ns)
            lead = lags[number] + alone_ns(action) - begins - launch.issue_ns
    return Launching(waits, lags)


def _is_behind(
    actions: Sequence[Action], launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]
) -> bool:
    """Whether a host needs longer for all launches of a rank than the device for their kernels: it never gets ahead."""
    launches = [launch_of(action) for action in actions]
    return sum(launch.turn_ns + launch.issue_ns for launch in launches if launch) > sum(map(alone_ns, actions))


def _behind_ns(action: Action, launch_of: Callable[[Action], Launch | None], alone_ns: Callable[[Action], int]) -> int:
    launch = launch_of(action)
    return 0 if launch is None else max(0, launch.turn_ns + launch.issue_ns - alone_ns(action))
