"""Recordings whose labels are hidden from the code: what it finds must be what the labels say.

The labels are read here from the traces themselves: the annotation (``PP:2F0``, or torch's GPipe's ``Forward 0``)
around each kernel's launch, and around each posting of a message.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from helpers.recorded import data, h100, looked_at, rebuilt, run_of, small
from helpers.thorough import spread

from tracetool.errors import ReconstructError
from tracetool.model.action import Action, ActionKind
from tracetool.model.schedule import PipelineShape
from tracetool.reconstruction import reconstruct
from tracetool.reconstruction.actions import Kernel
from tracetool.reconstruction.actions.pieces import Piece
from tracetool.reconstruction.actions.placement import PlacedPieces, RankTrail, place
from tracetool.reconstruction.capture import Account
from tracetool.reconstruction.capture.messages import P2POp, PairedMessage, match_messages
from tracetool.reconstruction.capture.survey import Survey, survey_run
from tracetool.schedules import build_schedule
from tracetool.schedules.names import best_fit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracetool.model.schedule import Schedule
    from tracetool.reconstruction.actions import Segment
    from tracetool.store.run import Run

F, B, INPUT, W = (ActionKind(code) for code in "FBIW")

_KERNEL_LABELS = """
SELECT k.event, l.name
FROM events AS k
JOIN events AS launch ON launch.rank = k.rank AND launch.category = 'launch' AND launch.correlation = k.correlation
JOIN events AS l ON l.rank = k.rank AND l.category = 'annotation'
  AND regexp_matches(l.name, '^(PP:\\d+[FBIW]\\d+|PP:\\([^)]*\\)OVERLAP_F_B|Forward \\d+|Backward \\d+)$')
  AND launch.start_ns BETWEEN l.start_ns AND l.start_ns + l.duration_ns
WHERE k.rank = ? AND k.category IN ('kernel', 'memcpy', 'memset')
  AND NOT starts_with(k.name, 'nccl')
"""
_MESSAGE_LABELS = """
SELECT c.position, l.name
FROM comms AS c
JOIN events AS l ON l.rank = c.rank AND l.category = 'annotation'
  AND regexp_matches(l.name, '^PP:\\d+(SEND|RECV)_[FB]\\d+$')
  AND c.posted_ns BETWEEN l.start_ns AND l.start_ns + l.duration_ns
WHERE c.rank = ? AND c.operation IN ('send', 'recv')
"""


def _labelled(name: str, stage: int) -> str:
    """The action that a label names; GPipe's labels leave the stage to the rank."""
    return f"{stage}{name[0]}{name.split()[1]}" if name[0] in "FB" else name.removeprefix("PP:")


# Kernel by kernel over small recordings of two ranks by default (below); these have four ranks and two steps, where a
# middle rank has two neighbours.
@pytest.mark.thorough
# Zero bubble has two kinds of backward; GPipe has the loss behind its labels, interleaving two stages per rank.
@spread("name", ["rt1f1b_m8", "gpipe_m8", "zbh1_m8", "interleaved_m8"], ["zbh1_m8"])
def test_every_kernel_of_every_action_carries_the_label_of_that_action(name: str) -> None:
    """In both steps. To read the labels takes longer than to hold a step against them."""
    run = h100(name)
    looks = [looked_at(run, step=step, use_labels=False) for step in (1, 2)]
    outside = [0, 0]
    for rank in range(4):
        labels = dict(run.rows(_KERNEL_LABELS, [rank]))
        for number, found in enumerate(looks):
            outside[number] += _kernels_outside_labels(found.segments[rank], labels)
    # Torch's GPipe computes the loss behind its label (cast, softmax, nll); nothing else is outside one.
    assert outside == [8 * 3 if name == "gpipe_m8" else 0] * 2
    assert [sorted(found.segments) for found in looks] == [[0, 1, 2, 3]] * 2


def _kernels_outside_labels(segments: Sequence[Segment], labels: Mapping[Any, str]) -> int:
    """How many kernels of a rank's step no label is around; those that have one must be of the action that it names.

    Args:
        segments: What the rank computes.
        labels: By event, of the rank's kernels.
    """
    outside = 0
    seen: dict[str, set[int]] = defaultdict(set)
    for segment in segments:
        action = str(Action(segment.stage, segment.kind, segment.microbatch))
        names = {_labelled(labels[k.event], segment.stage) for k in segment.kernels if k.event in labels}
        assert names == {action}
        outside += sum(k.event not in labels for k in segment.kernels)
        seen[action] |= {k.event for k in segment.kernels if k.event is not None}
    spans = set().union(*seen.values())
    first, last = min(spans), max(spans)
    for event, label in labels.items():
        if first <= event <= last:
            assert event in seen[_labelled(label, segments[0].stage)]
    return outside


# The same of small recordings by default (below); of four ranks, those in the middle have two neighbours.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["rt1f1b_m8", "zbh1_m8", "interleaved_m8"])
def test_every_message_is_what_the_labels_of_both_its_ends_say(name: str) -> None:
    _check_messages(h100(name), (1, 2), expected={"interleaved_m8": 112}.get(name, 48))


# The same of small recordings by default (below); here no kernel tells when a message moved.
@pytest.mark.thorough
# A V has stages whose neighbour is on the same rank.
@spread(("name", "messages"), [("ScheduleInterleaved1F1B", 112), ("ScheduleZBVZeroBubble", 96)], 1)
def test_messages_of_runs_on_gloo_without_any_kernel(name: str, messages: int) -> None:
    """Two steps of 8 microbatches over 7 hops between 8 stages, both ways, are 224; a V has 6 between ranks: 192.

    A step has half of them.
    """
    _check_messages(run_of(data("cpu-gloo-pp4", name)), (2, 3), expected=messages)


def _check_messages(run: Run, steps: Sequence[int], expected: int) -> None:
    labels: dict[int, dict[int, str]] = {}
    for step in steps:
        found = looked_at(run, step=step, use_labels=False)
        labels = labels or {rank: dict(run.rows(_MESSAGE_LABELS, [rank])) for rank in found.p2p_ops}
        count: Counter[bool] = Counter()
        for rank, ops in found.p2p_ops.items():
            for o in ops:
                way = "SEND" if o.op.is_send else "RECV"
                assert labels[rank][o.op.position] == f"PP:{o.stage}{way}_{o.kind.value}{o.microbatch}"
                count[o.op.is_send] += 1
        assert count == {True: expected, False: expected}
        assert len(found.observed.transfers) == expected


# Small recordings of torch's schedules are named by default (schedules/test_recordings).
@pytest.mark.thorough
# Interleaving looks like others until a chunk tells it apart; the others have one order each, of which small recordings
# have another half of a backward (below).
@spread(
    ("name", "schedule", "chunks"),
    [
        ("1f1b_m8", "1f1b", 1), ("1f1b_m8_mem", "1f1b", 1), ("rt1f1b_m8", "1f1b", 1), ("gpipe_m8", "gpipe", 1),
        ("zbh1_m8", "zb-h1", 1), ("interleaved_m8", "interleaved", 2),
    ],
    [("interleaved_m8", "interleaved", 2)],
)  # fmt: skip
def test_schedule_and_shape_are_recognised(name: str, schedule: str, chunks: int) -> None:
    """Names and shapes by the README of the shared data."""
    observed = rebuilt(name, use_labels=False).pipeline.observed
    shape = observed.shape
    assert (shape.ranks, shape.chunks, shape.microbatches, shape.placement) == (4, chunks, 8, "loop")
    fit = best_fit(observed)
    assert fit is not None
    assert (fit.schedule.name, fit.mismatches) == (schedule, 0)


# V shapes of small recordings are told by default (below); this one has no kernel.
@pytest.mark.thorough
def test_a_v_of_stages_is_recognised_on_gloo() -> None:
    observed = looked_at(run_of(data("cpu-gloo-pp4", "ScheduleZBVZeroBubble")), use_labels=False).pipeline.observed
    assert (observed.shape.ranks, observed.shape.chunks, observed.shape.placement) == (4, 2, "v")
    fit = best_fit(observed)
    assert fit is not None
    assert (fit.schedule.name, fit.mismatches) == ("zb-v", 0)


# Of the large ones more messages could be taken for each other.
@spread("name", ["zbh1_m8", "interleaved_m8", "izb"], ["izb"])
def test_hiding_the_labels_changes_nothing_of_the_pipeline(name: str) -> None:
    run = small(name) if name == "izb" else h100(name)
    labelled, hidden = looked_at(run), looked_at(run, use_labels=False)
    assert {s.evidence for s in labelled.pipeline.stages} == {"label"}
    assert labelled.observed == hidden.observed
    assert labelled.pipeline.observed.orders == hidden.pipeline.observed.orders


def _told(
    schedule: Schedule, *, swapped: tuple[int, int] | None = None, together: bool = False
) -> tuple[PlacedPieces, list[RankTrail]]:
    """What place() makes of a schedule whose ranks post sends right behind what made them, receives in the order
    in which they take them. ``swapped`` exchanges two sends of rank 1 with each other; ``together`` posts the sends
    of a forward right before a backward with that one's, behind them.
    """
    shape = schedule.shape
    trails, messages = [], []
    made: dict[tuple[ActionKind, int, int], P2POp] = {}
    taken: dict[tuple[ActionKind, int, int], P2POp] = {}
    for rank, order in enumerate(schedule.orders):
        pieces: list[Piece] = []
        posts: list[P2POp] = []
        forwards: dict[tuple[int, int], int] = {}
        for time, action in enumerate(order):
            forward = forwards.setdefault((action.stage, action.microbatch), len(forwards))
            pieces.append(Piece(action.kind, forward, [_launched(10 * time)]))
            for message, is_send, peer in _messages_of(action, shape):
                book = made if is_send else taken
                at = 10 * time + (5 if is_send else -5)
                if together and is_send and action.kind is F and time + 1 < len(order) and order[time + 1].kind is B:
                    at += 11
                post = P2POp(rank, len(posts), peer, is_send, 8, "pp", None, None, None, at, at, at + 1, None)
                posts.append(post)
                book[message] = post
        trails.append(RankTrail(pieces, sorted(posts, key=lambda p: p.posted_ns)))
    by_channel: dict[tuple[int, int], tuple[list[P2POp], list[P2POp]]] = defaultdict(lambda: ([], []))
    for side, book in enumerate((made, taken)):
        for post in book.values():
            key = (post.rank, post.peer) if side == 0 else (post.peer, post.rank)
            by_channel[key][side].append(post)
    for (src, _), (sends, recvs) in by_channel.items():
        sends.sort(key=lambda p: p.posted_ns)
        recvs.sort(key=lambda p: p.posted_ns)
        if swapped is not None and src == 1:
            one, two = swapped
            sends[one], sends[two] = sends[two], sends[one]
        messages += [PairedMessage(*pair) for pair in zip(sends, recvs, strict=True)]
    return place(range(shape.ranks), trails, messages, by_direction=together), trails


def _launched(time: int) -> Kernel:
    return Kernel(time, time + 4, time)


def _messages_of(action: Action, shape: PipelineShape) -> list[tuple[tuple[ActionKind, int, int], bool, int]]:
    """(message, whether it is sent, pipeline rank of the other side) of what an action takes and makes."""
    stage, kind, microbatch = action
    rank, found = shape.rank_of(stage), []
    whole = kind is W and stage == 0
    if kind is F:
        if stage and shape.rank_of(stage - 1) != rank:
            found.append(((F, stage - 1, microbatch), False, shape.rank_of(stage - 1)))
        if stage + 1 < shape.stages and shape.rank_of(stage + 1) != rank:
            found.append(((F, stage, microbatch), True, shape.rank_of(stage + 1)))
    elif kind in (B, INPUT) or whole:
        if stage + 1 < shape.stages and shape.rank_of(stage + 1) != rank:
            found.append(((B, stage + 1, microbatch), False, shape.rank_of(stage + 1)))
        if stage and shape.rank_of(stage - 1) != rank:
            found.append(((B, stage, microbatch), True, shape.rank_of(stage - 1)))
    return found


def _orders(schedule: Schedule) -> list[list[str]]:
    """Without the input gradient of the first stage, which torch leaves to its W."""
    return [[str(a) for a in order if not (a.stage == 0 and a.kind is INPUT)] for order in schedule.orders]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "placement"),
    [
        ("1f1b", 2, 3, 1, "loop"), ("1f1b", 5, 7, 1, "loop"), ("gpipe", 3, 4, 1, "loop"), ("zb-h1", 4, 9, 1, "loop"),
        ("interleaved", 2, 4, 2, "loop"), ("interleaved", 3, 6, 3, "loop"), ("interleaved", 4, 8, 4, "loop"),
        ("zb-v", 2, 4, 2, "v"), ("zb-v", 4, 8, 2, "v"), ("zb-v", 5, 12, 2, "v"),
    ],
)  # fmt: skip
def test_an_order_is_recovered_from_who_sends_to_whom(name: str, p: int, m: int, v: int, placement: str) -> None:
    shape = PipelineShape(p, m, v, "v" if placement == "v" else "loop")
    schedule = build_schedule(name, shape)
    kept = [tuple(a for a in order if not (a.stage == 0 and a.kind is INPUT)) for order in schedule.orders]
    placed, trails = _told(replace(schedule, orders=tuple(kept)))
    assert placed.faults == ()
    assert placed.shape == shape
    got = [[f"{piece.stage}{piece.kind.value}{piece.microbatch}" for piece in trail.pieces] for trail in trails]
    assert got == _orders(schedule)


def test_messages_in_another_order_than_the_work_are_faults() -> None:
    placed, _ = _told(build_schedule("interleaved", PipelineShape(4, 8, 2)), swapped=(3, 6))
    assert placed.faults
    assert placed.agreeing < placed.messages


# Messages of a made job in another order are faults by default (above).
@pytest.mark.thorough
def test_a_shuffled_recording_is_refused_as_unknown() -> None:
    """Two sends of rank 1 exchanged: what arrives is not what the receiver's order of work needs."""
    run = h100("interleaved_m8")
    whole = survey_run(run, Account())
    swapped = dict(whole.p2p)
    ops = list(swapped[1])
    first, second = [i for i, op in enumerate(ops) if op.is_send and op.peer == 2][4:6]
    ops[first], ops[second] = (
        ops[first]._replace(position=ops[second].position),
        ops[second]._replace(position=ops[first].position),
    )
    swapped[1] = ops
    matched = match_messages({rank: sorted(o, key=lambda op: op.position) for rank, o in swapped.items()}, Account())
    with pytest.raises(ReconstructError, match="unknown schedule"):
        reconstruct(
            run, step=1, use_labels=False, survey=Survey(run=run, p2p=swapped, matched=matched, clocks=whole.clocks)
        )


@pytest.mark.parametrize("p", [3, 4])
def test_an_activation_and_a_gradient_posted_together_are_told_apart(p: int) -> None:
    """Megatron's interleaved schedule posts both behind a forward and a backward."""
    schedule = build_schedule("interleaved", PipelineShape(p, 2 * p, 2))
    placed, trails = _told(schedule, together=True)
    assert placed.faults == ()
    got = [[f"{piece.stage}{piece.kind.value}{piece.microbatch}" for piece in trail.pieces] for trail in trails]
    assert got == _orders(schedule)


SMALL = {
    "zbv": ("v", 2, 4), "dualpipev": ("v", 2, 6), "izb": ("loop", 2, 4), "interleaved2": ("loop", 2, 4),
    "interleaved3": ("loop", 3, 4), "loopedbfs": ("loop", 2, 4),
}  # fmt: skip
"""Placement, stages per rank and microbatches of the small recordings, by their README."""


def _told_by(label: str, segment: Segment) -> bool:
    """Whether a label names a segment's action; torch runs the whole backward of the first stage as B or as W."""
    kinds = {segment.kind.value} | ({"B", "W"} if segment.stage == 0 and segment.kind in (B, W) else set())
    names = {f"{segment.stage}{kind}{segment.microbatch}" for kind in kinds}
    return bool(names & set(label.removeprefix("PP:").removesuffix("OVERLAP_F_B").strip("()").split(";")))


# Each has another placement of stages or order of work.
@spread("name", SMALL, ["zbv", "interleaved3"])
def test_stages_of_two_ranks_are_told_apart_kernel_by_kernel(name: str) -> None:
    """With two ranks both neighbours are the same rank, so that only the order of work tells what a message is."""
    run = small(name)
    found = looked_at(run, use_labels=False)
    shape = found.pipeline.observed.shape
    assert (shape.placement, shape.chunks, shape.microbatches) == SMALL[name]
    assert shape.ranks == 2
    for rank, segments in found.segments.items():
        labels = dict(run.rows(_KERNEL_LABELS, [rank]))
        assert len(segments) >= 2 * shape.chunks * shape.microbatches
        for segment in segments:
            assert all(_told_by(labels[k.event], segment) for k in segment.kernels if k.event in labels)
            assert sum(k.event in labels for k in segment.kernels) >= 0.9 * len(segment.kernels)


@spread("name", SMALL, ["zbv", "izb", "interleaved3"])
def test_messages_of_two_ranks_carry_their_labels(name: str) -> None:
    placement, chunks, microbatches = SMALL[name]
    crossing = 2 * chunks - 1 - (1 if placement == "v" else 0)  # the turn of a V stays on its rank
    _check_messages(small(name), (1,), expected=2 * crossing * microbatches)


# Reentrant ones record their forward by another node.
@spread("name", ["ckpt_nonreentrant", "ckpt_reentrant"], 1)
def test_recomputed_forwards_are_told_apart_inside_the_backward(name: str) -> None:
    """Both recompute each block: the kernels repeat, by name and number, those of the stage's own forward blocks."""
    found = looked_at(small(name), use_labels=False)
    assert (found.pipeline.observed.shape.microbatches, len(found.pipeline.stages)) == (4, 2)
    for segments in found.segments.values():
        forwards = {s.microbatch: Counter(k.name for k in s.kernels) for s in segments if s.kind is F}
        for segment in (s for s in segments if s.kind is B):
            again = Counter(k.name for k in segment.kernels if k.is_recompute)
            assert again
            assert not again - forwards[segment.microbatch]
