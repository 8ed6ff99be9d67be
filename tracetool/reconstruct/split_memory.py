"""What the halves of a backward that ran as one would hold, from the allocator's log and the nodes of autograd.

Run apart, an input gradient leaves behind what the weight gradients still need: every saved activation, and the
gradients of the outputs of all nodes that feed a parameter. In a backward that runs as one, such a gradient is freed
right after its node; what is freed ahead of the first such node (the loss) is needed by no weight.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.action import ActionKind
from tracetool.model.pipeline import ActionCost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruct.action_view import ActionView
    from tracetool.reconstruct.memory_log import Log

_AFTER_NS = 200_000
"""Host time after the last launch of a backward within which its last node still frees what it needed."""


class Needs(NamedTuple):
    """What one backward frees, by who needs it.

    Attributes:
        gradient_bytes: Gradients that it made itself and nodes that feed a parameter were the last to need.
        early_bytes: Of what the forward kept, freed ahead of the first such node.
        kept_bytes: All that the forward kept and this backward freed.
    """

    gradient_bytes: int
    early_bytes: int
    kept_bytes: int


def needs_of_weights(view: ActionView, log: Log, weights: frozenset[int]) -> Needs | None:
    """What of a whole backward its weight gradients need; None if no node feeds a parameter or blocks have no names.

    Args:
        view: The backward; its kernels in launch order.
        log: The allocator's log of its rank.
        weights: Nodes that feed a parameter (event numbers).
    """
    import numpy as np

    from tracetool.reconstruct.memory_actions import makers

    nodes = [(node, next(kernels).launch_ns) for node, kernels in groupby(view.segment.kernels, key=lambda k: k.node)]
    feeding = np.array([node in weights for node, _ in nodes])
    if not feeding.any():
        return None
    begins = np.array([launch for _, launch in nodes], np.int64)
    ends = view.segment.kernels[-1].launch_ns + _AFTER_NS
    maker = makers(log.block, log.delta_bytes, 0)
    freed = np.flatnonzero((log.delta_bytes < 0) & (maker >= 0) & (log.time_ns >= begins[0]) & (log.time_ns < ends))
    if not len(freed):
        return None
    sizes = -log.delta_bytes[freed]
    made_here = log.time_ns[maker[freed]] >= begins[0]
    at = np.searchsorted(begins, log.time_ns[freed], "right") - 1
    return Needs(
        int(sizes[made_here & feeding[at]].sum()),
        int(sizes[~made_here & (at < int(np.argmax(feeding)))].sum()),
        int(sizes[~made_here].sum()),
    )


def memory_of_halves(forward: ActionCost, backward: ActionCost, needs: Needs) -> dict[ActionKind, ActionCost]:
    """Memory of the input and the weight gradients, as costs without times.

    The gradients of weights are there in full before the first activation goes: an upper bound, since they come
    layer by layer.

    Args:
        forward: Of the microbatch.
        backward: Its whole backward.
        needs: What that frees.
    """
    if forward.held_bytes is None or backward.held_bytes is None or backward.peak_bytes is None:
        return {}
    # What the forward was counted with may be less than what its backward freed: another action made the rest.
    early = max(0, needs.early_bytes - max(0, needs.kept_bytes - forward.held_bytes))
    left = needs.gradient_bytes - early
    gradients = max(0, backward.held_bytes + forward.held_bytes)
    above = backward.peak_bytes - max(0, backward.held_bytes)
    return {
        ActionKind.BACKWARD_INPUT: ActionCost(0, left, max(0, left) + above),
        ActionKind.BACKWARD_WEIGHT: ActionCost(0, backward.held_bytes - left, gradients + above),
    }


def read_needs(
    views: Sequence[ActionView], logs: Mapping[int, Log], weights: Mapping[int, frozenset[int]], split: frozenset[int]
) -> dict[tuple[int, int], Needs]:
    """Needs of every whole backward (stage, microbatch) of the stages that are told apart."""
    found = {}
    for view in views:
        s = view.segment
        if s.stage in split and s.kind is not ActionKind.FORWARD and view.rank in logs:
            needs = needs_of_weights(view, logs[view.rank], weights[view.rank])
            if needs is not None:
                found[s.stage, s.microbatch] = needs
    return found
