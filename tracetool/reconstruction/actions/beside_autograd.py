"""Pieces of a rank's work that autograd does not tell: sums of gradients, forwards alone, kernels of known types."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions import ACCUMULATE_NODE
from tracetool.reconstruction.actions.pieces import GRADIENT_SUM_OP, Piece

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage

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


def goes_down_alone(messages: Sequence[PairedMessage], ranks: Sequence[int]) -> bool:
    """Whether all messages of a step go from a rank to the next one in stage order: none carries a gradient.

    Args:
        messages: Those of the step.
        ranks: Global ranks in stage order; behind the last one looped stages begin anew.
    """
    place = {rank: n for n, rank in enumerate(ranks)}
    ends = {(place[message.send.rank], place[message.recv.rank]) for message in messages}
    onward = {(n, (n + 1) % len(ranks)) for n in range(len(ranks))} - ({(1, 0)} if len(ranks) == 2 else set())
    return bool(ends) and ends <= onward


def runs_backwards(kernels: Mapping[int, Sequence[Kernel]]) -> bool:
    """Whether an autograd node launched any of the kernels."""
    return any(k.backward_of is not None for of_rank in kernels.values() for k in of_rank)


def forwards_between(
    kernels: Sequence[Kernel], posts: Sequence[P2POp], *, is_last: bool
) -> tuple[list[Piece], list[Kernel]]:
    """Forwards of a rank, and the kernels that belong to none.

    A forward is what a rank launches ahead of a send, since the message posted before; on the last rank, whose own
    results nobody receives, what it launches behind a receive.

    Args:
        kernels: Those of a step in launch order, without messages.
        posts: Sends and receives of the rank in order of posting.
        is_last: Whether the rank holds the last stage.
    """
    ordered = sorted(posts, key=lambda op: op.posted_ns)
    times = [op.posted_ns for op in ordered]
    runs: dict[int, list[Kernel]] = {}
    for kernel in kernels:
        runs.setdefault(bisect_right(times, kernel.launch_ns), []).append(kernel)
    pieces: list[Piece] = []
    loose: list[Kernel] = []
    for place, run in sorted(runs.items()):
        feeds = place < len(ordered) and _sends(ordered, place)
        ends = is_last and place > 0 and not ordered[place - 1].is_send
        if feeds or ends:
            pieces.append(Piece(ActionKind.FORWARD, len(pieces), run))
        else:
            loose += run
    return pieces, loose


def _sends(ordered: Sequence[P2POp], place: int) -> bool:
    """Whether a send is posted next, as one with a receive or alone."""
    batch = ordered[place].batch
    return any(
        op.is_send for op in ordered[place:] if op is ordered[place] or (batch is not None and op.batch == batch)
    )


def pieces_by_kernel_type(kernels: Sequence[Kernel], rank: int) -> tuple[list[Piece], list[Kernel]]:
    """Pieces between sends and receives, told apart by the types of their kernels (Ascend).

    Attention and normalisation have kernels of their own for the backward. On the last stage a forward and
    its backward are one piece: the backward starts with the fill of the loss gradient. The n-th backward
    undoes the n-th forward.

    Returns:
        The pieces, and the kernels that belong to none.

    Raises:
        ReconstructError: If no kernel tells forward from backward, or where the one ends.
    """
    pieces: list[list[Kernel]] = [[]]
    for kernel in kernels:
        if kernel.is_p2p:
            pieces.append([])
        else:
            pieces[-1].append(kernel)
    counted: dict[ActionKind, int] = defaultdict(int)
    between: list[Piece] = []
    loose: list[Kernel] = []
    unclear = 0
    for piece in pieces:
        for part in _parts(piece):
            gradients = [k.is_gradient for k in part if k.is_marker]
            if not gradients:
                loose += part
                continue
            unclear += len(set(gradients)) > 1
            kind = ActionKind.BACKWARD if gradients[-1] else ActionKind.FORWARD
            kept = _without_tail(part) if kind is ActionKind.BACKWARD else list(part)
            in_piece = {id(k) for k in kept}
            loose += [k for k in part if id(k) not in in_piece]
            between.append(Piece(kind, counted[kind], kept))
            counted[kind] += 1
    if unclear:
        raise ReconstructError(
            f"rank {rank}: {unclear} pieces between transfers hold a forward and a backward, and no kernel "
            "tells where the one ends.",
            hint="record host activity too (ProfilerActivity.CPU)",
        )
    if not between:
        raise ReconstructError(
            f"rank {rank}: no kernel tells forward from backward.",
            hint="record host activity too (ProfilerActivity.CPU), so that autograd's threads are visible",
        )
    return between, loose


def _parts(piece: Sequence[Kernel]) -> list[Sequence[Kernel]]:
    """Cut a piece that goes from forward markers to gradient markers at the fill between them."""
    markers = [i for i, k in enumerate(piece) if k.is_marker]
    turns = [
        (one, two) for one, two in itertools.pairwise(markers) if piece[two].is_gradient and not piece[one].is_gradient
    ]
    if len(turns) != 1:
        return [piece]
    fills = [i for i in range(*turns[0]) if piece[i].is_root_gradient]
    return [piece[: fills[-1]], piece[fills[-1] :]] if fills else [piece]


def _without_tail(part: Sequence[Kernel]) -> list[Kernel]:
    """Leave out what follows a backward: from the first collective after its last marker on."""
    last = max(i for i, k in enumerate(part) if k.is_marker)
    end = next((i for i in range(last, len(part)) if part[i].is_collective), len(part))
    return [k for k in part[:end] if not (k.is_optimizer or k.is_clipping)]
