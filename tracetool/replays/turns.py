"""What torch's action runtime does besides computing, as far as it decides where receives are posted."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from tracetool.replays.flow import BACKWARD, INPUT, WEIGHT, WHOLE_WEIGHT

if TYPE_CHECKING:
    from tracetool.replays.flow import Flow

_ACTIVE_STAGES = 3
"""Stages whose weights torch's action runtime keeps gathered at a time (its ``max_active_stages``)."""


def other_turns(flow: Flow) -> list[int]:
    """Turns that a rank takes ahead of each compute for what torch does at a stage's first and last compute.

    Torch (2.11) puts UNSHARD ahead of the first compute of each of the next three stages, RESHARD when one of them is
    not among those any more, and REDUCE_GRAD after a stage's last backward, with or without sharded weights, before
    it places sends and receives. Each is a turn of the rank, and so decides which receives its peers place first.
    So is the I of its first stage, which does nothing: a trace shows the W alone, which then is the whole backward.

    Returns:
        Per action of the flow, the turns ahead of it; ahead of both of two that run as one, where the first has them.
    """
    import numpy as np

    turns = np.zeros(len(flow.actions) + 1, np.int64)
    first = flow.first.tolist()
    for begin, end in pairwise(first):
        turns[begin:end] = _changes(flow.stage[begin:end].tolist())
    if (flow.kind == INPUT).any():
        turns[:-1] += flow.kind == WHOLE_WEIGHT
    ends = np.flatnonzero(np.isin(flow.kind, (BACKWARD, WEIGHT, WHOLE_WEIGHT)))
    last = np.full(flow.schedule.shape.stages, -1)
    last[flow.stage[ends]] = ends  # of each stage the last one stays
    after = last[last >= 0] + 1
    turns[after[~np.isin(after, flow.first)]] += 1
    counts: list[int] = np.bincount(flow.opens, weights=turns[:-1], minlength=len(flow.actions)).astype(int).tolist()
    return counts


def _changes(stages: list[int]) -> list[int]:
    """How many stages come to the next three or leave them with each action of a rank."""
    ahead: list[int] = []  # the next stages, nearest first
    following: frozenset[int] = frozenset()
    nexts = []
    for stage in reversed(stages):
        if not ahead or stage != ahead[0]:
            ahead = [stage, *(s for s in ahead if s != stage)]
            following = frozenset(ahead[:_ACTIVE_STAGES])
        nexts.append(following)
    changes = []
    active: frozenset[int] = frozenset()
    for following in reversed(nexts):
        changes.append(0 if following is active else len(active ^ following))
        active = following
    return changes
