"""What runs behind every backward of a rank, outside the graph: sums of gradients in the runtime's own precision."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions.kernel import ACCUMULATE_NODE
from tracetool.reconstruction.actions.pieces import GRADIENT_SUM_OP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.actions.pieces import Piece

_WHOLE = frozenset({ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT})
_AT_LEAST = 3
"""Backwards that show what follows each of them; with fewer, what is done once a step cannot be told from it."""


def join_accumulation(pieces: Sequence[Piece], loose: Sequence[Kernel], breaks: Sequence[int]) -> list[Kernel]:
    """Give each backward the launches that follow every backward of its stage before anything is sent or received.

    DeepSpeed's bf16 optimizer adds the gradients of each microbatch to its own in fp32, outside the autograd engine and
    ahead of the send of the input's gradient. What follows only some backwards (scaling of complete gradients,
    clipping, the optimizer) stays what it is.

    Args:
        pieces: Forwards and backwards of a rank; backwards grow.
        loose: Kernels that belong to none of them.
        breaks: Host times, ascending, at which messages were posted.

    Returns:
        The kernels that still belong to none.
    """
    starts = sorted(piece.issue_ns for piece in pieces)
    launched = sorted(loose, key=lambda kernel: kernel.launch_ns)
    times = [kernel.launch_ns for kernel in launched]
    following: dict[int, list[tuple[Piece, list[Kernel]]]] = defaultdict(list)
    for piece in pieces:
        if piece.kind not in _WHOLE:
            continue
        last = piece.kernels[-1].launch_ns
        until = min(
            (side[at] for side in (starts, breaks) if (at := bisect_right(side, last)) < len(side)), default=None
        )
        end = len(launched) if until is None else bisect_left(times, until)
        following[piece.stage].append((piece, launched[bisect_right(times, last) : end]))
    joined: set[int] = set()
    for of_stage in following.values():
        usual = _usual([tuple(kernel.op_name for kernel in kernels) for _, kernels in of_stage])
        for piece, kernels in of_stage:
            own = kernels[: len(usual)]
            if usual and len(own) == len(usual):
                piece.kernels += map(_as_autograds, own)
                joined |= {id(kernel) for kernel in own}
    return [kernel for kernel in loose if id(kernel) not in joined]


def _as_autograds(kernel: Kernel) -> Kernel:
    """A sum as autograd's own: it is of a parameter's gradient, and belongs to no layer's repetition."""
    is_sum = kernel.op_name == GRADIENT_SUM_OP
    return kernel._replace(node=kernel.event, node_name=ACCUMULATE_NODE) if is_sum else kernel


def _usual(runs: Sequence[tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """What all runs of ops begin with, but for at most one, and most consist of; empty if there is no such thing."""
    if len(runs) < _AT_LEAST:
        return ()
    usual, times = Counter(runs).most_common(1)[0]
    begin = sum(len(run) >= len(usual) for run in runs)
    return usual if 2 * times > len(runs) and begin >= len(runs) - 1 else ()
