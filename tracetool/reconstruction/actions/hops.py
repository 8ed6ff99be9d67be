"""Hops of several tensors: what a stage hands on to the next one as more than one message counts as one.

A framework may send a stage's output tensor by tensor, in one batch or one after the other. Whatever it computes comes
between two hops, so that sends to one rank without a launch between them are one hop, or several one after the other
where shorter ones of the same sizes show where each ends.

Bandwidth and latency between ranks, as their messages show them.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from tracetool.reconstruction.actions.transfers import StageOp, StepMessages, median_transfer_ns, payload
from tracetool.reconstruction.capture.messages import PairedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from tracetool.model.timeline import Timeline, Transfer
    from tracetool.reconstruction.capture.messages import P2POp
    from tracetool.reconstruction.capture.survey import Survey
    from tracetool.reconstruction.capture.waits import Wait

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


_LEAST_OF_A_SIZE = 2


class LinkFit(NamedTuple):
    """A straight line through times of messages of several sizes.

    Attributes:
        bandwidth_bytes_per_s: One over its slope.
        latency_ns: Its value at no bytes.
    """

    bandwidth_bytes_per_s: int
    latency_ns: int


def link_rows(observed: Timeline, survey: Survey) -> list[tuple[object, ...]]:
    """Rows of the ``links`` table: each pair of ranks and direction in the observed step.

    Where the capture holds messages of several sizes between two ranks, bandwidth and latency are fitted to all of
    them; else the bandwidth is the payload over its median time, and the latency unknown.
    """
    fits = {link: fit_link(samples) for link, samples in _samples(survey).items()}
    exposed = _exposed(survey)
    by_link: dict[tuple[int, int, str], list[Transfer]] = defaultdict(list)
    for transfer in observed.transfers:
        by_link[transfer.src_rank, transfer.dst_rank, transfer.kind.value].append(transfer)
    rows: list[tuple[object, ...]] = []
    for (src, dst, kind), transfers in sorted(by_link.items()):
        ends = observed.global_ranks[src], observed.global_ranks[dst]
        size, time = payload(transfers), median_transfer_ns(transfers)
        fit = fits.get(ends)
        plain = None if size is None or time == 0 else size * 10**9 // time
        rows.append(
            (
                *ends, kind, len(transfers), size, time, plain if fit is None else fit.bandwidth_bytes_per_s,
                None if fit is None else fit.latency_ns, exposed.get(ends),
            )
        )  # fmt: skip
    return rows


def fit_link(samples: Iterable[tuple[int, int]]) -> LinkFit | None:
    """Bandwidth and latency from (bytes, ns) of messages; None without two sizes seen at least twice each.

    The slope is the median of those between medians of all pairs of sizes (Theil-Sen), the latency the median of
    what is left: single slow messages move neither.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    for size, time in samples:
        by_size[size].append(time)
    points = sorted((size, median(times)) for size, times in by_size.items() if len(times) >= _LEAST_OF_A_SIZE)
    slopes = [(t2 - t1) / (s2 - s1) for (s1, t1), (s2, t2) in itertools.combinations(points, 2)]
    if not slopes or (slope := median(slopes)) <= 0:
        return None
    latency = median(time - slope * size for size, time in points)
    return LinkFit(round(1e9 / slope), max(0, round(latency)))


def _samples(survey: Survey) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Per (source, destination), bytes and transfer time of the messages of the capture that met."""
    waits = _by_place(survey.waits)
    samples: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for message in survey.matched.messages:
        wait = waits.get((message.recv.rank, message.recv.position))
        if wait is not None and message.recv.payload_bytes is not None and wait.evidence == "messages":
            samples[message.send.rank, message.recv.rank].append((message.recv.payload_bytes, wait.transfer_ns))
    return samples


def _exposed(survey: Survey) -> dict[tuple[int, int], int]:
    """Per (source, destination), the time during which the receiver computed nothing while it received."""
    waits = _by_place(survey.waits)
    total: dict[tuple[int, int], int] = defaultdict(int)
    counted: set[tuple[int, int, int | None]] = set()
    for send, recv in survey.matched.messages:
        wait = waits.get((recv.rank, recv.position))
        kernel = (recv.rank, send.rank, recv.batch)
        if wait is None or wait.exposed_ns is None or (recv.batch is not None and kernel in counted):
            continue
        counted.add(kernel)
        total[send.rank, recv.rank] += wait.exposed_ns
    return dict(total)


def _by_place(waits: Sequence[Wait]) -> Mapping[tuple[int, int], Wait]:
    return {(wait.rank, wait.position): wait for wait in waits}
