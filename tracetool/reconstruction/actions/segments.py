"""Compute segments: which kernels of a rank belong to which action.

An action's time runs from its first kernel to its last one on the device; waiting for a message comes
before the first kernel, so it is not in it, while the launch gaps inside are.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import Option, ReconstructError
from tracetool.model.action import ActionKind
from tracetool.model.notice import NoticeCode
from tracetool.reconstruction.actions import RankWork, Segment
from tracetool.reconstruction.actions.beside_autograd import (
    forwards_between,
    goes_down_alone,
    join_accumulation,
    pieces_by_kernel_type,
    pieces_by_thread,
    runs_backwards,
)
from tracetool.reconstruction.actions.hops import join_batches, join_gaps
from tracetool.reconstruction.actions.kernels import (
    autograd_kernels,
    device_kernels,
    graph_cuts,
    host_kernels,
    launch_threads,
    nodes_that_ran,
)
from tracetool.reconstruction.actions.labels import label_of, pieces_by_label, pieces_of_actions
from tracetool.reconstruction.actions.pieces import find_pieces
from tracetool.reconstruction.actions.placement import PlacedPieces, RankTrail, place
from tracetool.reconstruction.actions.tails import observed_tail
from tracetool.units import format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracetool.reconstruction.actions import Kernel
    from tracetool.reconstruction.actions.pieces import Piece
    from tracetool.reconstruction.actions.transfers import StepMessages
    from tracetool.reconstruction.capture import Account, Evidence
    from tracetool.reconstruction.capture.groups import PipelineGroup
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.steps import Step
    from tracetool.reconstruction.steps.reading import StepReading


_CHUNKS = (1, 2, 3, 4, 6, 8)
"""Stages per rank that are tried where nothing tells which forward a backward undoes."""


class StepWork(NamedTuple):
    """The work of a pipeline in one step.

    Attributes:
        ranks: Per global rank.
        placed: What the messages say about stages and microbatches; None if they were not looked at.
        confidence: Share of messages (and of labels, where they are used) that agree.
        messages: Sends and receives of the step, those of one hop as one where the stages showed that.
    """

    ranks: Mapping[int, RankWork]
    placed: PlacedPieces | None
    confidence: float
    messages: StepMessages


class _RankPieces(NamedTuple):
    """Pieces of one rank, kernels that belong to none, all of its kernels, and how the pieces were found."""

    pieces: list[Piece]
    loose: list[Kernel]
    kernels: list[Kernel]
    evidence: Evidence


def find_work(
    reading: StepReading, group: PipelineGroup, step: Step, messages: StepMessages, account: Account
) -> StepWork:
    """Segments of every rank of the pipeline in one step, by the best evidence there is.

    Args:
        reading: What the Run holds of the step.
        group: The pipeline.
        step: The step.
        messages: Sends and receives of the step.
        account: Takes up what belongs to no action, and how sure the rest is.

    Raises:
        ReconstructError: If forwards and backwards of a rank cannot be told apart or do not pair up, or
            messages fit no order of stages and microbatches.
    """
    evidence = reading.evidence
    if evidence.lists_actions:
        return _listed(reading, group, step, messages, account)
    read = autograd_kernels if evidence.has_device else host_kernels
    kernels = {rank: read(reading, rank, step.spans[rank]) for rank in group.ranks}
    labelled = evidence.use_labels and all(any(k.label for k in kernels[rank]) for rank in group.ranks)
    try:
        by_rank, placed, messages = _placed(reading, group, step, kernels, messages)
    except ReconstructError:
        if not labelled:
            raise
        by_rank, placed = {}, None
    confidence = placed.agreeing / max(1, placed.messages) if placed is not None else 1.0
    if labelled:
        named = _named(by_rank)
        if placed is None or placed.faults or named < 1:
            by_rank = {r: _by_label(kernels[r], group.position(r)) for r in group.ranks}
            placed = None
        confidence = min(confidence, named) if by_rank else 1.0
    return StepWork(_ranks(by_rank, group, step, messages, account, labelled=labelled), placed, confidence, messages)


def _listed(
    reading: StepReading, group: PipelineGroup, step: Step, messages: StepMessages, account: Account
) -> StepWork:
    by_rank = {}
    for rank in group.ranks:
        operations = device_kernels(reading, rank, step.spans[rank])
        pieces, loose = pieces_of_actions([k for k in operations if not (k.is_p2p or k.is_collective)])
        by_rank[rank] = _RankPieces(pieces, loose, operations, "label")
    return StepWork(_ranks(by_rank, group, step, messages, account, labelled=True), None, 1.0, messages)


def _ranks(
    by_rank: Mapping[int, _RankPieces],
    group: PipelineGroup,
    step: Step,
    messages: StepMessages,
    account: Account,
    *,
    labelled: bool,
) -> dict[int, RankWork]:
    ranks = {}
    stray: list[int] = []
    kinds = {piece.kind for one in by_rank.values() for piece in one.pieces}
    has_gradients = kinds != {ActionKind.FORWARD} or not goes_down_alone(messages.messages, group.ranks)
    for rank in group.ranks:
        segments = sorted((_segment(p) for p in by_rank[rank].pieces), key=lambda s: s.start_ns)
        if has_gradients:
            _check_pairs(segments, rank, step.number)
        stray += _stray(by_rank[rank].loose, segments)
        evidence: Evidence = "label" if labelled else by_rank[rank].evidence
        tail = observed_tail(by_rank[rank].kernels, segments)
        moving = [k for k in by_rank[rank].kernels if k.is_p2p or k.is_barrier]
        ranks[rank] = RankWork(tuple(segments), tail, evidence, (*by_rank[rank].loose, *moving))
    if stray:
        on_device = any(kernel.stream is not None for one in by_rank.values() for kernel in one.kernels)
        many = format_count(len(stray), "kernel" if on_device else "operation")
        account.note(
            NoticeCode.KERNELS_STRAY,
            f"{many} ({format_duration(sum(stray))}) between actions belong to none: scaling of gradients and the like",
        )
    return ranks


def _placed(
    reading: StepReading, group: PipelineGroup, step: Step, kernels: Mapping[int, list[Kernel]], recorded: StepMessages
) -> tuple[dict[int, _RankPieces], PlacedPieces, StepMessages]:
    """Pieces of every rank with stages and microbatches that the messages confirm, and the messages by hops."""
    faults: tuple[str, ...] = ()
    problem = ReconstructError("")
    has_gradients = runs_backwards(kernels) or not goes_down_alone(recorded.messages, group.ranks)
    for messages in _by_hops(recorded, kernels):
        # If several tensors are sent at once, what stands in the way of reading them one by one is no reason.
        faults, problem = (), ReconstructError("")
        # Where a message inside a rank is all that parts two stages, only the cut of the graph between them shows it.
        # Like such stages, a loss that is computed or scaled apart is undone right ahead of the forward that it belongs
        # to.
        several = _CHUNKS if has_gradients and all(map(_lacks_ops, kernels.values())) else _CHUNKS[:1]
        both = (False, True)
        for chunks, joined, with_cuts, by_direction in itertools.product(several, both, both, both):
            cuts = {r: graph_cuts(reading, r, step.spans[r]) for r in group.ranks} if with_cuts else {}
            if has_gradients:
                rounds = chunks, len(group.ranks)
                try:
                    by_rank = {
                        r: _pieces(
                            reading, r, step, kernels[r], messages.posts[r], cuts.get(r, ()), rounds, joined=joined
                        )
                        for r in group.ranks
                    }
                except ReconstructError as error:
                    if len(several) == 1:
                        raise
                    problem = error if not problem.message else problem
                    continue
            else:
                by_rank = {r: _forwards(reading, group, r, step, kernels[r], messages.posts[r]) for r in group.ranks}
            trails = [RankTrail(by_rank[r].pieces, messages.posts[r]) for r in group.ranks]
            try:
                placed = place(group.ranks, trails, messages.messages, by_direction=by_direction)
            except ReconstructError as error:
                problem = error if not problem.message else problem
                continue
            if not placed.faults:
                _leave_out_early(by_rank, placed, messages.posts)
                by_rank = {r: _accumulated(by_rank[r], messages.posts[r]) for r in group.ranks}
                return _settled(by_rank), placed, messages
            faults = faults or placed.faults
    if not faults:
        raise problem
    raise ReconstructError(
        f"unknown schedule: {len(faults)} of {len(recorded.messages)} messages fit no order of stages and "
        f"microbatches, among them: {faults[0]}.",
        hint=f"the step may be cut off (try another with {Option.STEP}); labels of the framework (torch 2.10 and "
        "newer) help",
    )


def _by_hops(recorded: StepMessages, kernels: Mapping[int, Sequence[Kernel]]) -> Iterator[StepMessages]:
    """The messages of a step one by one, then those of one hop as one, where that makes a difference."""
    yield recorded
    by_batch = join_batches(recorded)
    if by_batch is not recorded:
        yield by_batch
    launches = {
        rank: sorted(k.launch_ns for k in of_rank if not (k.is_p2p or k.is_barrier))
        for rank, of_rank in kernels.items()
    }
    by_gap = join_gaps(recorded, launches)
    if by_gap is not recorded and by_gap != by_batch:
        yield by_gap


def _leave_out_early(
    by_rank: Mapping[int, _RankPieces], placed: PlacedPieces, posts: Mapping[int, Sequence[P2POp]]
) -> None:
    """Take out of each piece what ran before the message it takes had come: the wait for that would be in its time.

    Such kernels need nothing of the message (masks, positions); they were launched after its receive was posted.
    """
    for rank, ops in posts.items():
        for op in ops:
            piece = None if op.is_send else placed.ends.get((rank, op.position))
            if piece is None or op.end_ns is None:
                continue
            early = {id(k) for k in piece.kernels if k.start_ns < op.end_ns}
            if early and len(early) < len(piece.kernels):
                by_rank[rank].loose.extend(k for k in piece.kernels if id(k) in early)
                piece.kernels = [k for k in piece.kernels if id(k) not in early]


def _accumulated(own: _RankPieces, posts: Sequence[P2POp]) -> _RankPieces:
    if not _is_device(own.kernels):
        return own
    return own._replace(loose=join_accumulation(own.pieces, own.loose, sorted(op.posted_ns for op in posts)))


def _pieces(
    reading: StepReading,
    rank: int,
    step: Step,
    kernels: list[Kernel],
    posts: Sequence[P2POp],
    cuts: Sequence[int],
    rounds: tuple[int, int],
    *,
    joined: bool,
) -> _RankPieces:
    work = [k for k in kernels if not (k.is_p2p or k.is_barrier)]
    # Ascend's transfers are not launched as kernels: nothing would part one forward from the next.
    if any(k.backward_of is not None for k in kernels) and (not _is_device(kernels) or any(k.is_p2p for k in kernels)):
        breaks = sorted([op.posted_ns for op in posts] + [k.launch_ns for k in kernels if k.is_barrier] + [*cuts])
        sends = sorted(op.posted_ns for op in posts if op.is_send) if joined else None
        pieces, loose = find_pieces(work, nodes_that_ran(reading, rank, step.spans[rank]), breaks, sends)
        return _RankPieces(pieces, loose, kernels, "autograd")
    threads = launch_threads(reading, rank, step.spans[rank]) if _lacks_ops(kernels) else {}
    if 2 * len(threads) > len(work):
        breaks = sorted(op.posted_ns for op in posts)
        pieces, loose = pieces_by_thread(work, threads, breaks, *rounds)
        return _RankPieces(pieces, loose, kernels, "kernels")
    on_device = device_kernels(reading, rank, step.spans[rank])
    pieces, loose = pieces_by_kernel_type(on_device, rank)
    return _RankPieces(pieces, loose, on_device, "kernels")


def _forwards(
    reading: StepReading, group: PipelineGroup, rank: int, step: Step, kernels: list[Kernel], posts: Sequence[P2POp]
) -> _RankPieces:
    mine = kernels or device_kernels(reading, rank, step.spans[rank])
    work = [k for k in mine if not (k.is_p2p or k.is_barrier)]
    pieces, loose = forwards_between(work, posts, is_last=rank == group.ranks[-1])
    return _RankPieces(pieces, loose, mine, "messages")


def _lacks_ops(kernels: Sequence[Kernel]) -> bool:
    """Whether launches were recorded, those of messages too, but no op around any that computes."""
    messages = any(kernel.is_p2p for kernel in kernels)
    computes = (kernel for kernel in kernels if not (kernel.is_p2p or kernel.is_collective or kernel.is_barrier))
    return _is_device(kernels) and messages and all(kernel.op is None for kernel in computes)


def _is_device(kernels: Sequence[Kernel]) -> bool:
    return any(k.stream is not None for k in kernels)


def _settled(by_rank: dict[int, _RankPieces]) -> dict[int, _RankPieces]:
    """Name the first stage's backward as torch's runtime runs it: where others are split, all of it is W."""
    kinds = {p.kind for f in by_rank.values() for p in f.pieces if p.stage > 0}
    if ActionKind.BACKWARD_INPUT in kinds and ActionKind.BACKWARD not in kinds:
        for piece in (p for f in by_rank.values() for p in f.pieces):
            if piece.kind is ActionKind.BACKWARD:
                piece.kind = ActionKind.BACKWARD_WEIGHT
    return by_rank


def _named(by_rank: Mapping[int, _RankPieces]) -> float:
    """Take over the kinds that labels give to pieces; the share of pieces whose stage and microbatch agree."""
    agree, total = 0, 0
    for piece in (p for f in by_rank.values() for p in f.pieces):
        label = label_of(piece.kernels, is_forward=piece.kind is ActionKind.FORWARD)
        if label is None:
            continue
        total += 1
        if label.microbatch == piece.microbatch and label.stage in (None, piece.stage):
            agree += 1
            if {label.kind, piece.kind} == {ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT}:
                piece.kind = label.kind
    return agree / total if total else 0.0


def _by_label(kernels: list[Kernel], position: int) -> _RankPieces:
    work = [k for k in kernels if not (k.is_p2p or k.is_barrier)]
    pieces, loose = pieces_by_label(work, position)
    return _RankPieces(pieces, loose, kernels, "label")


def _segment(piece: Piece) -> Segment:
    """The action, timed by what it ran on the compute stream: copies and collectives beside it are no compute."""
    launches = [k.launch_ns for k in piece.kernels]
    timed = [k for k in piece.kernels if k.is_compute] or piece.kernels
    return Segment(
        kind=piece.kind, microbatch=piece.microbatch, stage=piece.stage,
        start_ns=min(k.start_ns for k in timed), end_ns=max(k.end_ns for k in timed), issue_ns=min(launches),
        issued_ns=max(launches),
        kernels=tuple(piece.kernels),
    )  # fmt: skip


def _check_pairs(segments: Sequence[Segment], rank: int, step: int) -> None:
    kinds: dict[ActionKind, set[tuple[int, int]]] = defaultdict(set)
    for s in segments:
        kinds[s.kind].add((s.stage, s.microbatch))
    forwards = kinds[ActionKind.FORWARD]
    backwards = kinds[ActionKind.BACKWARD] | kinds[ActionKind.BACKWARD_WEIGHT]
    if forwards != backwards or not forwards:
        raise ReconstructError(
            f"rank {rank}, step {step}: {len(forwards)} forwards and {len(backwards)} backwards were found; "
            "they do not pair up.",
            hint=f"the step may be cut off: try another with {Option.STEP}",
        )


def _stray(loose: Sequence[Kernel], segments: Sequence[Segment]) -> list[int]:
    """Durations of computing kernels that start between the first and last action, but inside none."""
    starts = [s.start_ns for s in segments]
    return [
        kernel.end_ns - kernel.start_ns
        for kernel in loose
        if kernel.is_compute
        and not kernel.is_collective
        and (at := bisect_right(starts, kernel.start_ns)) > 0
        and segments[at - 1].end_ns <= kernel.start_ns < segments[-1].start_ns
    ]
