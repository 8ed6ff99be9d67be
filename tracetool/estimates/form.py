"""What jobs of one order have in common: their task graph, which time each task takes, and what ranks hold.

Times of a job are one row after another: ``FIGURES`` of each stage behind a first one of no time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tracetool.estimates.training import order_of
from tracetool.model.action import ActionKind
from tracetool.model.topology import Topology
from tracetool.network.link import Link
from tracetool.replays.compiled import Compiled
from tracetool.replays.side_by_side import repeated

if TYPE_CHECKING:
    from tracetool.estimates.training import Training
    from tracetool.model.pipeline import P2PMode
    from tracetool.replays.flow import Int32s

FIGURES = 8
"""Of a stage: forward, backward, its half for the input, that for weights; of its message to the next stage what it
occupies, or takes inside a place, and the latency between places; the same of the message to the stage before."""
_COMPUTE = {
    ActionKind.FORWARD: 0,
    ActionKind.BACKWARD: 1,
    ActionKind.BACKWARD_INPUT: 2,
    ActionKind.BACKWARD_WEIGHT: 3,
}
_TO_NEXT, _TO_PREVIOUS = 4, 6


class HeldMost(NamedTuple):
    """Microbatches that a rank's stages hold at most, each stage's counted by itself.

    Attributes:
        inside: While an action of a stage runs that is not the model's last.
        last: While one of the last stage runs.
    """

    inside: int
    last: int


@dataclass(frozen=True)
class OrderForm:
    """Jobs of one order, whose messages pass the same.

    Attributes:
        compiled: Their task graph.
        rows: Per cost class, the row of the table of times.
        last: Per pipeline rank, the task of its last action.
        held: Per pipeline rank, what it holds.
        copies: Equal pipelines side by side, whose ranks come one after another.
    """

    compiled: Compiled
    rows: Int32s
    last: Int32s
    held: tuple[HeldMost, ...]
    copies: int = 1


def between_places(places: tuple[int, ...]) -> Topology:
    """Ranks in places, each joined to each other one by a link per direction."""
    if len(set(places)) < 2:
        return Topology()
    names = tuple(f"place{place}" for place in places)
    apart = dict.fromkeys(names)
    links = tuple(Link(one, other, 1, 0) for one in apart for other in apart if one != other)
    return Topology(names, links)


class OrderKey(NamedTuple):
    """What tells the order of a job: see ``Training``."""

    name: str
    stages: int
    chunks: int
    microbatches: int
    extra_forwards: tuple[int, ...] = ()

    @classmethod
    def of(cls, training: Training) -> OrderKey:
        """That of how a model is trained."""
        return cls(
            training.order_name, training.stages, training.chunks, training.microbatches, training.extra_forwards
        )


@lru_cache(maxsize=64)
def form_of(key: OrderKey, mode: P2PMode, places: tuple[int, ...] = (), copies: int = 1) -> OrderForm:
    """Compile an order.

    Args:
        key: Of what ranks run.
        mode: How messages are issued.
        places: Of each pipeline rank; messages between two places pass the one link that joins them.
        copies: Equal pipelines in the same places, which take turns on the links.

    Raises:
        UnknownName: If there is no such schedule.
        UnsupportedShape: If it does not exist for this shape.
    """
    import numpy as np

    order = order_of(*key)
    stages = order.shape.stages
    many = repeated(order, copies) if copies > 1 else order
    compiled = Compiled(many, mode, between_places(places * copies))
    actions = compiled.graph.flow.actions
    splitting = {action.stage for action in actions if action.kind is ActionKind.BACKWARD_INPUT}
    rows = np.zeros(compiled.classes, np.int32)
    for number, action in enumerate(actions, 1):
        whole = action.kind is ActionKind.BACKWARD_WEIGHT and action.stage not in splitting
        kind = ActionKind.BACKWARD if whole else action.kind
        rows[number] = 1 + FIGURES * (action.stage % stages) + _COMPUTE[kind]
    for way in compiled.ways:
        forward = way.message.kind is ActionKind.FORWARD
        first = 1 + FIGURES * (way.message.src_stage % stages) + (_TO_NEXT if forward else _TO_PREVIOUS)
        rows[way.move] = first
        if way.path is None:
            rows[way.copy] = first
        else:
            rows[way.arrive] = first + 1
    last = compiled.graph.compute[compiled.graph.flow.first[1:] - 1].astype(np.int32)
    return OrderForm(compiled, rows, last, held_by(key), copies)


@lru_cache(maxsize=4096)
def held_by(key: OrderKey) -> tuple[HeldMost, ...]:
    """What each rank holds at most: a stage's part of a microbatch from its forward to its backward, or W."""
    order = order_of(*key)
    final = order.shape.stages - 1
    held = []
    for actions in order.orders:
        level = inside = last = 0
        for action in actions:
            forward = action.kind is ActionKind.FORWARD
            level += forward
            if action.stage == final:
                last = max(last, level)
            else:
                inside = max(inside, level)
            level -= action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT)
        held.append(HeldMost(inside, last))
    return tuple(held)
