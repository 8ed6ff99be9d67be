"""Communication of a process as NCCL's own ranges tell it: what was posted, with whom, and which kernel ran it.

A payload names the other side by its place in the communicator. Which rank that is follows where the capture shows who
joined the communicator; else the peer stays unknown, and so does what nothing but a kernel tells.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from itertools import count
from math import inf
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers.cuda import BEFORE_ALL_NS, P2P, CommKernel, CommRecord, Launched, attach, note_bare
from tracetool.readers.nsys.nvtx import labelled_message
from tracetool.readers.nsys.posts import Post

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.capture import Communicator
    from tracetool.readers.nsys.nvtx import Payload
    from tracetool.readers.nsys.posts import CommKernels

OPERATIONS = {
    "ncclSend": "send", "ncclRecv": "recv", "ncclAllReduce": "allreduce", "ncclAllGather": "allgather",
    "ncclReduceScatter": "reduce_scatter", "ncclBroadcast": "broadcast", "ncclBcast": "broadcast",
    "ncclReduce": "reduce", "ncclAlltoAll": "alltoall", "ncclAllToAll": "alltoall", "ncclGather": "gather",
    "ncclScatter": "scatter",
}  # fmt: skip
OPERATIONS |= {name.removeprefix("nccl"): operation for name, operation in OPERATIONS.items()}
"""The advanced trace leaves the prefix out."""

_OF_ONE_RANK = frozenset(("allgather", "reduce_scatter", "alltoall"))
"""Their payloads count what one rank gives or gets."""

IN_PARTS = ("nccl:gather", "nccl:scatter")
"""Annotations of collectives of which only the others' parts are messages."""

_MOST_HELD = 1 << 15
"""Records that wait for kernels."""

_SINGLE = ("nccl:coalesced", "nccl:send", "nccl:recv", "nccl:batch")
"""Annotations of messages; any other one is of a collective, whatever it is made of."""


def comm_records(
    posts: Iterable[Post],
    kernels: CommKernels,
    communicators: Mapping[str, Communicator],
    rank: int,
    report: SourceReport,
) -> Iterator[CommRecord]:
    """Communication operations in order of posting.

    Args:
        posts: What the host posted, in order of time.
        kernels: Communication kernels.
        communicators: By id, who is where.
        rank: The process' own global rank.
        report: Told what stays unknown, once all are out.
    """
    last_of_threads = kernels.last_of_threads()
    # Notes without numbers: those of all ranks are one line then. Counts are the Run's, over all ranks.
    if None in last_of_threads:
        report.note(
            SourceCode.LAUNCHES_UNKNOWN,
            "communication kernels without a launch in the capture count as posted when they start",
        )
    are_nameless = lack_communicators_only = False
    world = 0
    records = (_record(post, communicators, rank) for post in posts)
    for record in _with_kernels(records, kernels, last_of_threads, report):
        if record.operation in P2P and record.peer is None:
            says_size = record.payload_bytes is not None and not record.communicator
            lack_communicators_only = says_size and (lack_communicators_only or not are_nameless)
            are_nameless = True
        world = max([world, *(n + 1 for n in (record.peer, *record.group_ranks) if n is not None)])
        yield record
    if are_nameless:
        why = "begin the capture before the communicators are made, and export with nsys export --include-blobs=true"
        if lack_communicators_only:
            why = "NCCL before 2.25 says their size, but not their communicator"
        report.note(SourceCode.PEERS_UNKNOWN, f"sends and receives name no peer: {why}")
    report.least_world = world or None


def post_of(name: str, label: str, payload: Payload, posted_ns: int, thread: int) -> tuple[Post, bool]:
    """What a call of NCCL posts, and whether it is but a part of the collective that the annotation around it names.

    Args:
        name: Function, one of :data:`OPERATIONS`.
        label: c10d's annotation around it, as ``nccl:all_reduce``; empty without.
        payload: What NCCL says of it.
        posted_ns: Unix time.
        thread: Host thread.
    """
    operation = OPERATIONS[name]
    collective = _collective_in(label)
    if collective is not None and (operation in P2P or collective == "barrier"):
        operation = collective
    place = payload.peer
    if place is None and (message := labelled_message(label)) is not None:
        place = message[1]
    post = Post(operation, posted_ns, thread, payload.size_bytes, place, payload.communicator)
    return post, collective is not None


def post_of_label(label: str, posted_ns: int, thread: int) -> Post | None:
    """What c10d's annotation alone says, where NCCL has no ranges; None of what is around several messages."""
    if label.startswith(_SINGLE[0]):
        return None
    message = labelled_message(label)
    return Post(message[0] if message is not None else _collective_in(label) or "unknown", posted_ns, thread)


def _collective_in(label: str) -> str | None:
    """What collective an annotation is of; None of those of messages."""
    if not label or label.startswith(_SINGLE):
        return None
    return "barrier" if "barrier" in label else label.removeprefix("nccl:").partition(" ")[0]


def _record(post: Post, communicators: Mapping[str, Communicator], rank: int) -> CommRecord:
    operation, size = post.operation, post.size_bytes
    who = communicators.get(post.communicator or "")
    whole = who is not None and None not in who.ranks
    members = tuple(r for r in who.ranks if r is not None) if who is not None and whole else ()
    peer = who.ranks[post.place] if who is not None and post.place is not None and post.place < len(who.ranks) else None
    if operation in _OF_ONE_RANK and size is not None:
        size = size * len(who.ranks) if who is not None else None
    return CommRecord(
        operation=operation, group=post.communicator or "", group_ranks=members,
        peer=peer if operation in P2P and peer != rank else None, payload_bytes=size, posted_ns=post.posted_ns,
        thread=post.thread, external_id=None, communicator=post.communicator,
    )  # fmt: skip


def _with_kernels(
    records: Iterable[CommRecord], kernels: CommKernels, last_of_threads: Mapping[int | None, int], report: SourceReport
) -> Iterator[CommRecord]:
    """Records in order of posting with their kernels, those of kernels without any among them.

    They go out as soon as no later launch can be theirs and none posted before them is still to come.
    """
    launched = Launched()
    numbered = map(_numbered, count(), records)
    following = next(numbered, None)
    is_bare = False
    open_: list[CommRecord] = []
    settled: list[CommRecord] = []
    for some, next_ns in _with_next(kernels.slices()):
        while following is not None and following.posted_ns <= some[-1].launch_ns:
            open_.append(following)
            following = next(numbered, None)
        bare = attach(open_, _with_collectives(open_, some, launched), launched)
        is_bare |= bool(bare)
        waiting = [
            r for r in open_
            if last_of_threads.get(r.thread, -1) >= launched.count and r.posted_ns >= launched.since_ns[r.thread]
        ]  # fmt: skip
        waiting = waiting[_surplus(waiting, settled, report) :]
        held = {r.external_id for r in waiting}
        settled += [*(r for r in open_ if r.external_id not in held), *bare]
        settled.sort(key=_order)
        open_, until_ns = waiting, min([next_ns, *(r.posted_ns for r in waiting[:1])])
        ready = bisect_left(settled, until_ns, key=lambda r: r.posted_ns)
        yield from settled[:ready]
        settled = settled[ready:]
    yield from settled
    while following is not None:
        yield following
        following = next(numbered, None)
    if is_bare:
        note_bare(report)


def _surplus(waiting: Sequence[CommRecord], settled: Sequence[CommRecord], report: SourceReport) -> int:
    """How many of those that wait for their launch, or make others wait, do so in vain: no batch is as large."""
    surplus = max(0, min(len(waiting), len(waiting) + len(settled) - _MOST_HELD))
    if surplus:
        report.repaired["operations posted too long before the next launch of their thread: no kernel"] += surplus
    return surplus


def _numbered(number: int, record: CommRecord) -> CommRecord:
    record.external_id = number
    return record


def _order(record: CommRecord) -> tuple[int, bool, int]:
    """Of those posted together, kernels without anything posted come last."""
    number, is_bare = record.external_id, record.external_id is None
    return record.posted_ns, is_bare, (record.batch or 0) if number is None else number


def _with_next(slices: Iterable[list[CommKernel]]) -> Iterator[tuple[list[CommKernel], float]]:
    """Each with the launch that follows it."""
    last: list[CommKernel] | None = None
    for some in slices:
        if last is not None:
            yield last, some[0].launch_ns
        last = some
    if last is not None:
        yield last, inf


def _with_collectives(
    records: Sequence[CommRecord], kernels: Sequence[CommKernel], launched: Launched
) -> list[CommKernel]:
    """The kernels, linked to the collective that was posted last on the thread since the launch before."""
    posted: dict[int | None, list[CommRecord]] = defaultdict(list)
    for record in records:
        posted[record.thread].append(record)
    last = defaultdict(lambda: BEFORE_ALL_NS, launched.since_ns)
    linked = []
    for kernel in kernels:
        queue = posted[kernel.launch_thread]
        first = bisect_left(queue, last[kernel.launch_thread], key=lambda r: r.posted_ns)
        until = bisect_right(queue, kernel.launch_ns, key=lambda r: r.posted_ns)
        between = queue[first:until]
        own = between[-1] if between and between[-1].operation not in P2P else None
        linked.append(replace(kernel, external_id=own.external_id if own is not None else None))
        last[kernel.launch_thread] = kernel.launch_ns
    return linked
