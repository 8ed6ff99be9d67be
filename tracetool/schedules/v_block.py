"""Orders that repeat one building block per microbatch on a V of two stages per rank (V-Half, V-Min).

Source: Qi et al., arXiv 2405.15362 (pipeline parallelism with controllable memory). A block gives each rank the slots
of its four passes of one microbatch: forward of the first and second chunk, input gradient of the second and first.
The next microbatch's block starts six slots later, since a rank has six passes of a slot each (two weight gradients
take the slots left over, oldest first). Squeezing, that is starting each pass as early as its rank and its input allow,
does not change the order, so that replay does it. The paper's further step, reordering passes while the pipeline fills
and drains, is left out here: memory is the block's, bubbles are somewhat longer than with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import Action, ActionKind

if TYPE_CHECKING:
    from tracetool.model.schedule import PipelineShape

_PERIOD = 6

Block = tuple[int, int, int, int]
"""Slots of F of the first chunk, F of the second, I of the second, I of the first."""


def repeat_block(rank: int, shape: PipelineShape, block: Block) -> tuple[Action, ...]:
    """The order of one rank whose passes of microbatch j take the slots ``block`` + 6 j.

    The slots of a block must differ modulo six.
    """
    last = shape.stages - 1 - rank
    passes = [
        (block[0], rank, ActionKind.FORWARD),
        (block[1], last, ActionKind.FORWARD),
        (block[2], last, ActionKind.BACKWARD_INPUT),
        (block[3], rank, ActionKind.BACKWARD_INPUT),
    ]
    slots = sorted(
        (first + _PERIOD * j, Action(stage, kind, j))
        for first, stage, kind in passes
        for j in range(shape.microbatches)
    )
    order: list[Action] = []
    weights: list[Action] = []
    done, free = 0, 0
    for slot, action in slots:
        filled = min(max(0, slot - free), len(weights) - done)
        order += weights[done : done + filled]
        done, free = done + filled, slot + 1
        order.append(action)
        if action.kind is ActionKind.BACKWARD_INPUT:
            weights.append(action._replace(kind=ActionKind.BACKWARD_WEIGHT))
    return (*order, *weights[done:])
