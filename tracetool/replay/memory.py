"""The memory ledger of a rank: what its actions hold, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.action import Action

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tracetool.model.pipeline import ActionCost
    from tracetool.model.timeline import Op


def memory_curve(
    ops: Sequence[Op], static_bytes: int | None, cost: Callable[[Action], ActionCost]
) -> tuple[tuple[int, int], ...] | None:
    """Allocated bytes of one rank over its ops in order.

    An op raises the level to its peak when it starts and leaves it changed by what it holds when it ends.

    Returns:
        (time, bytes) at every start and end, beginning with the static level; None if any part is unknown.
    """
    if static_bytes is None:
        return None
    level = static_bytes
    points = [(0, level)]
    for op in ops:
        memory = cost(Action(op.stage, op.kind, op.microbatch))
        if memory.held_bytes is None or memory.peak_bytes is None:
            return None
        points.append((op.start_ns, level + max(0, memory.peak_bytes)))
        level += memory.held_bytes
        points.append((op.end_ns, level))
    return tuple(points)
