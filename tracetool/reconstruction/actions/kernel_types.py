"""Pieces of a rank's work from the types of its kernels: device-only traces of Ascend."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.errors import ReconstructError
from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.reconstruction.actions.kernel import Kernel


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
