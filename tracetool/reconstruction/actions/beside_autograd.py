"""Pieces of a rank's work that autograd does not tell: sums of gradients, forwards alone, kernels of known types."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

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
_LEAST_RATIO = 0.2
"""Of the longest repeated sequence's time: what is shorter is no action but a sum or a scaling between two."""
_ALIKE = 0.6
"""Share of the kernels that stretches of one kind of action have in common at least."""


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


class _ThreadStretch(NamedTuple):
    """Launches of one thread's side between two messages.

    Attributes:
        is_backward: Whether a thread of autograd launched them.
        kernels: In launch order.
    """

    is_backward: bool
    kernels: list[Kernel]

    @property
    def names(self) -> tuple[str, ...]:
        """What ran, in order."""
        return tuple(kernel.name for kernel in self.kernels)


def pieces_by_thread(
    kernels: Sequence[Kernel], threads: Mapping[int, int], breaks: Sequence[int], chunks: int, ranks: int
) -> tuple[list[Piece], list[Kernel]]:
    """Pieces of a rank of which only launches were recorded: parted by messages and threads, known by what repeats.

    Autograd launches backwards from threads of its own. A sequence of kernels that comes again is an action, one that
    comes once is none unless most of it does. Where there are twice as many backwards as forwards, they are split.

    Args:
        kernels: Those of a step in launch order, without messages.
        threads: Host thread that launched each, by its event.
        breaks: Host times, ascending, at which messages were posted.
        chunks: Stages that the rank holds; with several, backwards undo forwards in rounds over the ranks.
        ranks: Ranks of the pipeline.

    Returns:
        The pieces, and the kernels that belong to none.

    Raises:
        ReconstructError: If forwards and backwards are not as many as each other, or half as many.
    """
    actions: list[_ThreadStretch] = []
    loose: list[Kernel] = []
    stretches = _by_thread(kernels, threads, breaks)
    usual = {side: _usual_sequences([s for s in stretches if s.is_backward is side]) for side in (False, True)}
    for stretch in stretches:
        own, rest = _actions_in(stretch, usual[stretch.is_backward])
        actions += own
        loose += rest
    forwards = [s for s in actions if not s.is_backward]
    backwards = [s for s in actions if s.is_backward]
    if not forwards or len(backwards) not in (len(forwards), 2 * len(forwards)):
        raise ReconstructError(
            f"{len(forwards)} forwards and {len(backwards)} backwards repeat between messages: they do not pair up.",
            hint="record host activity too (torch's ops: ProfilerActivity.CPU, or emit_nvtx with Nsight Systems)",
        )
    numbers = {id(stretch): n for n, stretch in enumerate(forwards)}
    kinds = {id(stretch): ActionKind.FORWARD for stretch in forwards}
    parts = _split_backwards(backwards) if len(backwards) > len(forwards) else {ActionKind.BACKWARD: backwards}
    for kind, of_kind in parts.items():
        for n, stretch in enumerate(of_kind):
            kinds[id(stretch)], numbers[id(stretch)] = kind, _undone(n, chunks, ranks)
    pieces = [Piece(kinds[id(s)], numbers[id(s)], s.kernels) for s in actions]
    if sorted(numbers.values()) != sorted([*range(len(forwards))] * (1 + len(parts))):
        raise ReconstructError(f"{len(forwards)} forwards are no whole rounds of {chunks} stages on {ranks} ranks.")
    return pieces, loose


def _by_thread(kernels: Sequence[Kernel], threads: Mapping[int, int], breaks: Sequence[int]) -> list[_ThreadStretch]:
    """Stretches in order of launch; the host's own thread is the one that is first."""
    launched = [(threads.get(-1 if k.event is None else k.event), k) for k in kernels]
    host = next((thread for thread, _ in launched if thread is not None), None)
    stretches: list[_ThreadStretch] = []
    last: tuple[int, bool] | None = None
    places: list[int] = []
    for thread, kernel in launched:
        here = bisect_right(breaks, kernel.launch_ns), thread not in (host, None)
        if here != last:
            stretches.append(_ThreadStretch(here[1], []))
            places.append(here[0])
        stretches[-1].kernels.append(kernel)
        last = here
    return _joined(stretches, places)


def _joined(stretches: Sequence[_ThreadStretch], places: Sequence[int]) -> list[_ThreadStretch]:
    """Stretches with those that take turns joined: weight gradients are launched layer by layer, sums between them."""
    longest = max((len(s.kernels) for s in stretches), default=0)
    joined: list[_ThreadStretch] = []
    turns: list[tuple[int, _ThreadStretch]] = []
    for place, stretch in (*zip(places, stretches, strict=True), (None, None)):
        is_short = stretch is not None and len(stretch.kernels) < _LEAST_RATIO * longest
        if turns and (not is_short or place != turns[-1][0]):
            together = [s for _, s in turns]
            if len(together) > 2:
                joined.append(_ThreadStretch(is_backward=True, kernels=[k for s in together for k in s.kernels]))
            else:
                joined += together
            turns = []
        if stretch is not None and place is not None:
            if is_short:
                turns.append((place, stretch))
            else:
                joined.append(stretch)
    return joined


def _usual_sequences(stretches: Sequence[_ThreadStretch]) -> list[tuple[str, ...]]:
    """Sequences of kernels that come more than once, and take long enough to be an action's."""
    times: dict[tuple[str, ...], int] = {}
    for stretch in stretches:
        time = sum(kernel.end_ns - kernel.start_ns for kernel in stretch.kernels)
        times[stretch.names] = min(times.get(stretch.names, time), time)
    again = {names for names, n in Counter(s.names for s in stretches).items() if n > 1}
    longest = max((times[names] for names in again), default=0)
    return [names for names in again if times[names] >= _LEAST_RATIO * longest]


def _actions_in(stretch: _ThreadStretch, usual: Sequence[tuple[str, ...]]) -> tuple[list[_ThreadStretch], list[Kernel]]:
    """The actions that a stretch is of: the usual sequences inside it, one after another, else all of it, if alike.

    The first backward of a step has fewer sums of gradients than the others.
    """
    names = stretch.names
    inside = [(at, one) for one in usual for at in _places(one, names)]
    longest = max((len(one) for _, one in inside), default=0)
    ends = [0]
    for at, one in sorted(inside):
        if len(one) == longest:
            ends += [at, at + longest]
    actions: list[_ThreadStretch] = []
    loose: list[Kernel] = []
    for first, end in itertools.pairwise([*ends, len(names)]):
        here = Counter(names[first:end])
        if any((here & Counter(one)).total() >= _ALIKE * max(len(one), end - first) for one in usual):
            actions.append(_ThreadStretch(stretch.is_backward, stretch.kernels[first:end]))
        else:
            loose += stretch.kernels[first:end]
    return actions, loose


def _places(one: tuple[str, ...], names: tuple[str, ...]) -> list[int]:
    """Where a sequence stands in another one, not overlapping."""
    places: list[int] = []
    at = 0
    while at + len(one) <= len(names):
        if names[at] == one[0] and names[at : at + len(one)] == one:
            places.append(at)
            at += len(one)
        else:
            at += 1
    return places


def _split_backwards(backwards: Sequence[_ThreadStretch]) -> dict[ActionKind, list[_ThreadStretch]]:
    """Input and weight gradients: of two kinds of stretches, the one that comes first is of inputs."""
    first = Counter(backwards[0].names)
    last = Counter(backwards[-1].names)
    inputs = [s for s in backwards if _likeness(s, first) >= _likeness(s, last)]
    weights = [s for s in backwards if _likeness(s, first) < _likeness(s, last)]
    return {ActionKind.BACKWARD_INPUT: inputs, ActionKind.BACKWARD_WEIGHT: weights}


def _likeness(stretch: _ThreadStretch, other: Counter[str]) -> float:
    here = Counter(stretch.names)
    return (here & other).total() / max(1, here.total(), other.total())


def _undone(number: int, chunks: int, ranks: int) -> int:
    """The forward that a backward undoes: in rounds over the ranks, a rank's last stage first."""
    rounds, rest = divmod(number, chunks * ranks)
    chunk, within = divmod(rest, ranks)
    return rounds * chunks * ranks + (chunks - 1 - chunk) * ranks + within


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
