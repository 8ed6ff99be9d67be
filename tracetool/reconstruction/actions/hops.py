"""Hops of several tensors: what a stage hands on to the next one as more than one message counts as one.

A framework may send a stage's output tensor by tensor, in one batch or one after the other. Whatever it computes comes
between two hops, so that sends to one rank without a launch between them are one hop, or several one after the other
where shorter ones of the same sizes show where each ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.reconstruction.actions.transfers import StageOp, StepMessages
from tracetool.reconstruction.capture.messages import PairedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from tracetool.reconstruction.capture.messages import P2POp

Sizes = tuple[int | None, ...]


def join_batches(messages: StepMessages) -> StepMessages:
    """What one batch sends to one rank as one message."""
    return _join_runs(messages, lambda op: (op.batch, op.position if op.batch is None else None))


def join_gaps(messages: StepMessages, launches: Mapping[int, Sequence[int]]) -> StepMessages:
    """What a rank sends to another one without a launch in between as one message.

    Args:
        messages: Sends and receives of a step.
        launches: Per rank, host times of all launches of computes, ascending.
    """
    return _join_runs(messages, lambda op: bisect_left(launches[op.rank], op.posted_ns))


def join_labelled(
    messages: StepMessages, ops: Mapping[int, Sequence[StageOp]]
) -> tuple[StepMessages, dict[int, tuple[StageOp, ...]]]:
    """What carries one label from one rank to another as one message, and the meaning of each."""
    meanings = {(o.op.rank, o.op.position): o for of_rank in ops.values() for o in of_rank}
    hops: dict[Hashable, list[P2POp]] = defaultdict(list)
    for send, _ in messages.messages:
        meaning = meanings[send.rank, send.position]
        hops[send.rank, send.peer, meaning.kind, meaning.stage, meaning.microbatch].append(send)
    joined = _joined(messages, hops.values())
    kept = {
        rank: tuple(meanings[rank, op.position]._replace(op=op) for op in of_rank)
        for rank, of_rank in joined.posts.items()
    }
    return joined, kept


def tensors_per_hop(messages: StepMessages) -> dict[tuple[int, int], tuple[int, ...]]:
    """Of ranks that hand on several tensors at once, how many, by (from, to)."""
    counts: dict[tuple[int, int], set[int]] = defaultdict(set)
    for send, _ in messages.messages:
        counts[send.rank, send.peer].add(len(send.parts) or 1)
    return {edge: tuple(sorted(of_edge)) for edge, of_edge in sorted(counts.items()) if max(of_edge) > 1}


def _join_runs(messages: StepMessages, run_of: Callable[[P2POp], Hashable]) -> StepMessages:
    runs: dict[tuple[int, int], dict[Hashable, list[P2POp]]] = defaultdict(lambda: defaultdict(list))
    for of_rank in messages.posts.values():
        for op in of_rank:
            if op.is_send:
                runs[op.rank, op.peer][run_of(op)].append(op)
    hops: list[list[P2POp]] = []
    for of_edge in runs.values():
        known = _primitive({_sizes(run) for run in of_edge.values()})
        for run in of_edge.values():
            at = 0
            for length in _lengths(_sizes(run), known) or ():
                hops.append(run[at : at + length])
                at += length
    return _joined(messages, hops)


def _sizes(ops: Iterable[P2POp]) -> Sizes:
    return tuple(op.payload_bytes for op in ops)


def _primitive(sequences: Iterable[Sizes]) -> set[Sizes]:
    """Those that are no sequence of shorter ones."""
    known: set[Sizes] = set()
    for sizes in sorted(sequences, key=len):
        if _lengths(sizes, known) is None:
            known.add(sizes)
    return known


def _lengths(sizes: Sizes, known: Iterable[Sizes]) -> list[int] | None:
    """How a run is made of known ones, the longest ones first; None if it is not."""
    ways: list[list[int] | None] = [[], *[None] * len(sizes)]
    longest = sorted({len(one) for one in known}, reverse=True)
    pieces = set(known)
    for end in range(1, len(sizes) + 1):
        for length in longest:
            before = ways[end - length] if length <= end else None
            if before is not None and sizes[end - length : end] in pieces:
                ways[end] = [*before, length]
                break
    return ways[-1]


def _joined(matched: StepMessages, hops: Iterable[Sequence[P2POp]]) -> StepMessages:
    partner = {(send.rank, send.position): recv for send, recv in matched.messages}
    instead: dict[tuple[int, int], P2POp | None] = {}
    for sends in hops:
        if len(sends) == 1 or any((op.rank, op.position) not in partner for op in sends):
            continue
        for ops in (sends, [partner[op.rank, op.position] for op in sends]):
            first, *others = sorted(ops, key=lambda op: op.position)
            instead |= {(op.rank, op.position): None for op in others}
            instead[first.rank, first.position] = _as_one((first, *others))
    if not instead:
        return matched
    joined = {op: instead.get((op.rank, op.position), op) for ops in matched.posts.values() for op in ops}
    posts = {rank: tuple(one for op in ops if (one := joined[op]) is not None) for rank, ops in matched.posts.items()}
    messages = ((joined[send], joined[recv]) for send, recv in matched.messages)
    return StepMessages(
        posts, tuple(PairedMessage(send, recv) for send, recv in messages if send is not None and recv is not None)
    )


def _as_one(ops: tuple[P2POp, ...]) -> P2POp:
    sizes = [op.payload_bytes for op in ops if op.payload_bytes is not None]
    return ops[0]._replace(
        payload_bytes=sum(sizes) if len(sizes) == len(ops) else None,
        start_ns=min((op.start_ns for op in ops if op.start_ns is not None), default=None),
        end_ns=max((op.end_ns for op in ops if op.end_ns is not None), default=None),
        parts=ops,
    )
