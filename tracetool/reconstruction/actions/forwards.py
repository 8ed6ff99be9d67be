"""Forwards of a step without backwards (inference, evaluation): what runs between the messages of a rank."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from tracetool.model.action import ActionKind
from tracetool.reconstruction.actions.pieces import Piece

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.reconstruction.actions.kernel import Kernel
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage


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
