"""Which stage and microbatch each piece of work is: from where its messages come and where they go.

A message is sent right after the piece that made it, and the n-th message from a rank feeds the n-th piece that
takes one from there. That, and the tie of each backward to its forward, tells stages and microbatches of any
schedule that keeps messages in order: no list of known schedules is needed. What it cannot know is checked
instead: both ends of every message must come out as neighbours of the same microbatch.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.schedule import PipelineShape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.model.schedule import Placement
    from tracetool.reconstruction.actions.pieces import Piece
    from tracetool.reconstruction.capture.messages import P2POp, PairedMessage

F, B, W = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True)
class RankTrail:
    """What one rank did in a step, on its own host's clock.

    Attributes:
        pieces: Forwards and backwards in order of launch.
        posts: Sends and receives in order of posting.
    """

    pieces: Sequence[Piece]
    posts: Sequence[P2POp]


class PlacedPieces(NamedTuple):
    """The outcome.

    Attributes:
        shape: Ranks, chunks, placement and microbatches.
        kinds: Per (rank, position) of an operation: FORWARD for an activation, BACKWARD for a gradient.
        ends: Per (rank, position) of an operation: the piece that made or takes the message.
        agreeing: Messages whose two ends are neighbouring stages of one microbatch.
        messages: Messages looked at.
        faults: What does not fit, a sentence each.
    """

    shape: PipelineShape
    kinds: Mapping[tuple[int, int], ActionKind]
    ends: Mapping[tuple[int, int], Piece]
    agreeing: int
    messages: int
    faults: tuple[str, ...]


def place(
    ranks: Sequence[int],
    trails: Sequence[RankTrail],
    messages: Sequence[PairedMessage],
    *,
    by_direction: bool = False,
) -> PlacedPieces:
    """Give every piece its stage and microbatch, in place.

    Args:
        ranks: Global ranks in pipeline order.
        trails: One per pipeline rank.
        messages: Matched sends and receives of the step.
        by_direction: Whether sends may come later than right behind what made them: then looped stages are assumed,
            where activations go on to the next rank and gradients back. Otherwise the order of launches counts.

    Raises:
        ReconstructError: If no looped or V placement explains who sends to whom.
    """
    position = {rank: i for i, rank in enumerate(ranks)}
    makers = _makers(trails, position, by_direction=by_direction)
    flow = _Flow(trails, position, makers, messages)
    shape = _shape(trails, flow)
    _place_chunks(shape, flow)
    faults = _place_microbatches(shape, trails, flow)
    return _checked(shape, flow, faults)


def _makers(
    trails: Sequence[RankTrail], position: Mapping[int, int], *, by_direction: bool
) -> dict[tuple[int, int], Piece]:
    """For each send, the piece that made what it sends: the last ones before it, in their order."""
    makers: dict[tuple[int, int], Piece] = {}
    for trail in trails:
        at = 0
        fresh: list[Piece] = []
        posts = deque(trail.posts)
        latest = list(itertools.accumulate((piece.issue_ns for piece in trail.pieces), max))
        while posts:
            batch = [posts.popleft()]
            later = bisect_right(latest, batch[0].posted_ns)
            following = latest[later] if later < len(latest) else None
            while posts and (following is None or posts[0].posted_ns < following):
                batch.append(posts.popleft())
            while at < len(trail.pieces) and trail.pieces[at].issue_ns <= batch[0].posted_ns:
                if trail.pieces[at].kind is not W:
                    fresh.append(trail.pieces[at])
                at += 1
            sends = [op for op in batch if op.is_send]
            chosen = _choose(sends, fresh, position, by_direction=by_direction)
            makers |= {(op.rank, op.position): piece for op, piece in zip(sends, chosen, strict=True)}
            if sends:
                fresh = []
    return makers


def _choose(
    sends: Sequence[P2POp], fresh: Sequence[Piece], position: Mapping[int, int], *, by_direction: bool
) -> list[Piece]:
    if not sends:
        return []
    if len(fresh) < len(sends):
        op = sends[0]
        raise ReconstructError(
            f"rank {op.rank}: {len(sends)} messages (the first to rank {op.peer}) are posted after "
            f"{len(fresh)} forwards and backwards that could have made them.",
            hint="messages that the host posts late, or in parts, cannot be told from one another",
        )
    if by_direction and len(position) > 2:
        onward = [(position[op.peer] - position[op.rank]) % len(position) == 1 for op in sends]
        latest = {piece.kind is F: piece for piece in fresh}
        if len(set(onward)) == len(onward) and all(is_onward in latest for is_onward in onward):
            return [latest[is_onward] for is_onward in onward]
    return list(fresh[-len(sends) :])


class _Flow:
    """Messages between pieces, by pipeline rank."""

    def __init__(
        self,
        trails: Sequence[RankTrail],
        position: Mapping[int, int],
        makers: Mapping[tuple[int, int], Piece],
        messages: Sequence[PairedMessage],
    ) -> None:
        self.makers = makers
        self.takers: dict[tuple[int, int], Piece] = {}
        self.sent_to: dict[int, int] = {}  # id of a piece -> pipeline rank that its message goes to
        self.microbatches: dict[int, int | None] = {}  # id of a piece -> its microbatch; None if none is to be found
        self.inbox: dict[tuple[int, int, bool], deque[PairedMessage]] = defaultdict(deque)
        self.messages = sorted(messages, key=lambda m: (position[m.recv.rank], m.recv.position))
        for message in self.messages:
            maker = makers[message.send.rank, message.send.position]
            src, dst = position[message.send.rank], position[message.recv.rank]
            self.sent_to[id(maker)] = dst
            self.inbox[dst, src, maker.kind is F].append(message)
        self.forwards = [[p for p in t.pieces if p.kind is F] for t in trails]
        self.gradients = [{p.forward: p for p in t.pieces if p.kind is not F and p.kind is not W} for t in trails]

    def take(self, dst: int, src: int, piece: Piece, *, is_forward: bool) -> Piece | None:
        """The piece that made the next message from ``src``, which ``piece`` takes; None if there is none left."""
        queue = self.inbox[dst, src, is_forward]
        if not queue:
            return None
        message = queue.popleft()
        self.takers[message.recv.rank, message.recv.position] = piece
        return self.makers[message.send.rank, message.send.position]


def _shape(trails: Sequence[RankTrail], flow: _Flow) -> PipelineShape:
    """Chunks, placement and microbatches, from how many forwards send nothing and to whom the others send."""
    p = len(trails)
    counts = [len(forwards) for forwards in flow.forwards]
    if len(set(counts)) > 1 or not counts[0]:
        raise ReconstructError(
            f"the ranks of the pipeline run {', '.join(map(str, counts))} forwards in this step: not equally many.",
            hint=f"the capture may begin or end inside the step: try another one with {Option.STEP}",
        )
    silent = [sum(id(f) not in flow.sent_to for f in forwards) for forwards in flow.forwards]
    back = any(flow.sent_to.get(id(f)) == r - 1 for r in range(1, p - 1) for f in flow.forwards[r])
    placement: Placement = "v" if back or (p > 1 and silent[0]) else "loop"
    microbatches = counts[0] // 2 if placement == "v" else silent[-1]
    if not microbatches or counts[0] % microbatches or (placement == "v" and counts[0] % 2):
        raise ReconstructError(
            f"of {counts[0]} forwards per rank, {', '.join(map(str, silent))} (by pipeline rank) send nothing: "
            "this is neither looped nor V placement of stages.",
            hint="bidirectional pipelines (DualPipe, Chimera) are not read",
        )
    return PipelineShape(p, microbatches, counts[0] // microbatches, placement)


def _place_chunks(shape: PipelineShape, flow: _Flow) -> None:
    """The stage of every forward, as a chunk of its rank."""
    p, v = shape.ranks, shape.chunks
    if shape.placement == "v":
        for r, forwards in enumerate(flow.forwards):
            for piece in forwards:
                to = flow.sent_to.get(id(piece))
                onward = to is None if r == p - 1 else to == r + 1
                piece.stage = r if onward else 2 * p - 1 - r
        return
    first = [piece.forward for piece in flow.forwards[0]]
    # Nobody waits for the gradient of the first stage's input: what sends none is of the first chunk.
    starts = {
        f for f in first if (g := flow.gradients[0].get(f)) is None or id(g) not in flow.sent_to
    } if v > 1 else set(first)  # fmt: skip
    chunks: list[int] = []
    waiting: deque[int] = deque()
    for k, forward in enumerate(first):
        chunk = 0 if forward in starts or not waiting else waiting.popleft() + 1
        chunks.append(chunk)
        if k < len(flow.forwards[-1]) and id(flow.forwards[-1][k]) in flow.sent_to:
            waiting.append(chunk)
    for r, forwards in enumerate(flow.forwards):
        for piece, chunk in zip(forwards, chunks, strict=True):
            piece.stage = chunk * p + r


def _place_microbatches(shape: PipelineShape, trails: Sequence[RankTrail], flow: _Flow) -> list[str]:
    """Microbatches: counted on the first stage, then handed on with the messages."""
    faults: list[str] = []
    handed: dict[int, deque[int | None]] = defaultdict(deque)  # stage -> microbatches it gets within its rank
    counted = itertools.count()
    pending = [deque(forwards) for forwards in flow.forwards]
    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(pending):
            while queue and _place_forward(shape, flow, rank, queue[0], handed, counted, faults):
                queue.popleft()
                moved = True
    if any(pending):
        faults.append("forwards wait for each other in a circle: messages are not taken in order")
    _hand_to_backwards(shape, trails, flow)
    for piece in (piece for trail in trails for piece in trail.pieces):
        microbatch = flow.microbatches.get(id(piece))
        if microbatch is not None:
            piece.microbatch = microbatch
    return faults


def _place_forward(
    shape: PipelineShape,
    flow: _Flow,
    rank: int,
    piece: Piece,
    handed: dict[int, deque[int | None]],
    counted: Iterator[int],
    faults: list[str],
) -> bool:
    """Tell a forward's microbatch; False if that of its input is not known yet."""
    src = shape.rank_of(piece.stage - 1) if piece.stage else rank
    microbatch: int | None
    if piece.stage == 0:
        microbatch = next(counted)
    elif src == rank:
        if not handed[piece.stage]:
            return False
        microbatch = handed[piece.stage].popleft()
    else:
        waiting = flow.inbox[rank, src, True]
        if waiting and id(flow.makers[waiting[0].send.rank, waiting[0].send.position]) not in flow.microbatches:
            return False
        maker = flow.take(rank, src, piece, is_forward=True)
        microbatch = None if maker is None else flow.microbatches[id(maker)]
        if maker is None:
            faults.append(f"forward {piece.forward} of pipeline rank {rank} gets no message from pipeline rank {src}")
    if piece.stage + 1 < shape.stages and shape.rank_of(piece.stage + 1) == rank:
        handed[piece.stage + 1].append(microbatch)
    flow.microbatches[id(piece)] = microbatch
    return True


def _hand_to_backwards(shape: PipelineShape, trails: Sequence[RankTrail], flow: _Flow) -> None:
    for r, trail in enumerate(trails):
        forwards = {piece.forward: piece for piece in flow.forwards[r]}
        for piece in trail.pieces:
            if piece.kind is not F:
                forward = forwards[piece.forward]
                piece.stage, flow.microbatches[id(piece)] = forward.stage, flow.microbatches.get(id(forward))
        taken: set[int] = set()
        split = {piece.forward for piece in trail.pieces if piece.kind is ActionKind.BACKWARD_INPUT}
        for piece in trail.pieces:
            if piece.kind is F or piece.stage == shape.stages - 1 or piece.forward in taken:
                continue
            if piece.kind is W and piece.forward in split:
                continue
            src = shape.rank_of(piece.stage + 1)
            if src != r:
                flow.take(r, src, piece, is_forward=False)
                taken.add(piece.forward)


def _checked(shape: PipelineShape, flow: _Flow, faults: list[str]) -> PlacedPieces:
    """Look at both ends of every message: neighbours of one microbatch, or a fault."""
    kinds: dict[tuple[int, int], ActionKind] = {}
    ends: dict[tuple[int, int], Piece] = {}
    agreeing = 0
    for message in flow.messages:
        send, recv = (message.send.rank, message.send.position), (message.recv.rank, message.recv.position)
        maker, taker = flow.makers[send], flow.takers.get(recv)
        kind = F if maker.kind is F else B
        kinds[send] = kinds[recv] = kind
        ends[send] = maker
        if taker is None:
            faults.append(f"nothing on rank {recv[0]} takes a message of {maker.kind.value} from rank {send[0]}")
            continue
        ends[recv] = taker
        step = 1 if kind is F else -1
        made, taken = (flow.microbatches.get(id(piece)) for piece in (maker, taker))
        if taker.stage == maker.stage + step and taken == made:
            agreeing += 1
        else:
            faults.append(
                f"what stage {maker.stage} sends of microbatch {_named(made)} ({kind.value}) is taken by stage "
                f"{taker.stage} for microbatch {_named(taken)}"
            )
    counts = Counter((piece.stage, piece.kind) for pieces in flow.forwards for piece in pieces)
    uneven = sorted({stage for (stage, _), count in counts.items() if count != shape.microbatches})
    if uneven or len(counts) != shape.stages:
        faults.append(
            f"stages {uneven or sorted({s for s, _ in counts})} do not run {shape.microbatches} forwards each"
        )
    return PlacedPieces(shape, kinds, ends, agreeing, len(flow.messages), tuple(faults))


def _named(microbatch: int | None) -> str:
    return "unknown" if microbatch is None else str(microbatch)
