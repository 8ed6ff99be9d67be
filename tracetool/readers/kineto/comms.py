"""Host records of communication in a Kineto trace: ``record_param_comms``, and the ``c10d`` ops around them.

Records come before the launch of their kernel, on the same thread, and before the ``nccl:coalesced`` span opens.

Sends and receives of a Kineto trace from the ``c10d`` ops that post them.

On gloo there are no ``record_param_comms`` records and no kernels: an op ``c10d::send`` names the peer (inside
its group) and, with ``record_shapes``, what is sent; an annotation ``gloo:send`` that begins inside it lasts until
somebody waits for the work. On NCCL the records lack the peer before torch 2.6, which the op around them then tells:
the third item of its ``Concrete Inputs``, a rank of the group.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from functools import lru_cache
from sys import intern
from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.model.notice import SourceCode
from tracetool.readers.cuda import P2P, CommRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.readers import Group, SourceReport

OF_ELEMENTS = ("In msg nelems", "Out msg nelems")
"""Arguments that say how many elements go in and come out."""

OF_STRIDES = ("Global rank start", "Global rank stride", "Group size")
"""Arguments that say of which ranks a group is."""

OF_RECORDS = (
    "Collective name", "Process Group Name", "Process Group Ranks", *OF_ELEMENTS, "dtype", "External id", "external id",
    "Comms Id", "Rank", "Src Rank", "Dst Rank", *OF_STRIDES,
)  # fmt: skip
"""Arguments that records tell something by."""

OF_POSTINGS = ("Concrete Inputs", "Input Dims", "Input type", "External id")
"""Arguments that ops which post messages, and titles of asynchronous work, tell something by."""

_MOST_RANKS = 1 << 22
_DTYPE_BYTES = {
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4,
    "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_RANKS = 2**31
_MOST_MEMBERS = 1 << 17
_MOST_ELEMENTS = 2**58


def parse_record(args: Mapping[str, Any], posted_ns: int, thread: int, groups: Sequence[Group]) -> CommRecord | None:
    """Read a ``record_param_comms`` record; None for waits and initialisation, which move nothing."""
    operation = args.get("Collective name")
    if not isinstance(operation, str) or operation in ("wait", "init", ""):
        return None
    name = str(args.get("Process Group Name", ""))
    ranks = _group_ranks(args, name, groups)
    # All-gather reports the full size on the output side, reduce-scatter on the input side.
    elements = max(args.get(argument) or 0 for argument in OF_ELEMENTS)
    element_bytes = _DTYPE_BYTES.get(str(args.get("dtype"))) if elements < _MOST_ELEMENTS else None
    return CommRecord(
        operation=intern(operation), group=intern(name), group_ranks=ranks,
        peer=_peer(args, operation, ranks) if operation in P2P else None,
        payload_bytes=None if element_bytes is None else elements * element_bytes, posted_ns=posted_ns, thread=thread,
        external_id=args.get("External id", args.get("external id")),
        communicator=str(args["Comms Id"]).strip('"') if "Comms Id" in args else None,
    )  # fmt: skip


def _peer(args: Mapping[str, Any], operation: str, ranks: tuple[int, ...]) -> int | None:
    peer = args.get("Dst Rank" if operation == "send" else "Src Rank")
    if isinstance(peer, int) and 0 <= peer < _RANKS:
        return peer
    local = args.get("Rank")  # of send and recv: the peer, counted inside the group
    return ranks[local] if isinstance(local, int) and 0 <= local < len(ranks) else None


def _group_ranks(args: Mapping[str, Any], name: str, groups: Sequence[Group]) -> tuple[int, ...]:
    text = str(args.get("Process Group Ranks", ""))
    listed = _listed_ranks(text)
    if "..." not in text and listed:
        return listed
    # The list is cut to 30 items: the envelope has it whole, or the group has stride form.
    for group in groups:
        if group.name == name and group.ranks[: len(listed)] == listed:
            return group.ranks
    start, stride, size = map(args.get, OF_STRIDES)
    if isinstance(start, int) and isinstance(stride, int) and isinstance(size, int):
        return _strided_ranks(start, stride, size) or listed
    return listed


# A trace names few groups and many operations: they share the lists of ranks.
@lru_cache(maxsize=1024)
def _listed_ranks(text: str) -> tuple[int, ...]:
    numbers = re.findall(r"\d+", text)
    ranks = tuple(int(n) for n in numbers if len(n) < 11 and int(n) < _MOST_RANKS)
    return ranks if len(ranks) == len(numbers) else ()


@lru_cache(maxsize=1024)
def _strided_ranks(start: int, stride: int, size: int) -> tuple[int, ...]:
    if not (0 <= start < _MOST_RANKS and 0 < stride < _MOST_RANKS and 0 < size < _MOST_RANKS):
        return ()
    return tuple(range(start, start + stride * size, stride))


OPERATIONS = {"c10d::send": "send", "c10d::recv_": "recv", "c10d::recv": "recv"}
"""Ops that post a message to or from a named peer."""

TITLES = {"gloo:send": "send", "gloo:recv": "recv"}
"""Annotations around the asynchronous work of a message on gloo."""

_ELEMENT_BYTES = {
    "float": 4, "double": 8, "int": 4, "long": 8, "long int": 8, "long long": 8, "short": 2, "bool": 1,
    "unsigned char": 1, "signed char": 1, "char": 1, "c10::BFloat16": 2, "c10::Half": 2,
    "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
_MOST_BYTES = 2**58
_NAMED = 4
"""Groups that a note names."""


class Posting(NamedTuple):
    """One ``c10d`` op.

    Attributes:
        operation: send or recv.
        start_ns: Start of the op.
        end_ns: End of the op.
        thread: Host thread.
        external_id: Its id.
        peer: Rank of the other side, counted inside the group; None without recorded inputs.
        dims: Shapes of what it moves; None without recorded inputs.
    """

    operation: str
    start_ns: int
    end_ns: int
    thread: int
    external_id: int | None
    peer: int | None
    dims: tuple[tuple[int, ...], ...] | None


class AsyncAnnotation(NamedTuple):
    """One annotation around asynchronous work; ``element`` is the type of what it moves."""

    operation: str
    start_ns: int
    end_ns: int
    thread: int
    element: str | None


def parse_posting(operation: str, args: Mapping[str, Any], span: tuple[int, int], thread: int) -> Posting:
    """Read a ``c10d`` op with the inputs it recorded."""
    inputs = _listed(args.get("Concrete Inputs"))
    shapes = _listed(args.get("Input Dims"))
    peer = inputs[2] if inputs is not None and len(inputs) > 2 else None
    return Posting(
        operation=operation, start_ns=span[0], end_ns=span[1], thread=thread, external_id=args.get("External id"),
        peer=int(peer) if isinstance(peer, str) and peer.isdecimal() and len(peer) < 8 else None,
        dims=_dims(shapes[0]) if shapes else None,
    )  # fmt: skip


def parse_title(operation: str, args: Mapping[str, Any], span: tuple[int, int], thread: int) -> AsyncAnnotation:
    """Read a title of asynchronous work."""
    types = _listed(args.get("Input type"))
    return AsyncAnnotation(operation, *span, thread, types[0] if types and isinstance(types[0], str) else None)


def _listed(text: object) -> list[Any] | None:
    if not isinstance(text, str):
        return None
    try:
        decoded = json.loads(text)
    except ValueError:
        return None
    return decoded if isinstance(decoded, list) else None


def _dims(shapes: object) -> tuple[tuple[int, ...], ...] | None:
    """Shapes of a list of tensors."""
    if not isinstance(shapes, list) or not all(isinstance(s, list) for s in shapes):
        return None
    if any(not isinstance(n, int) or n < 0 for shape in shapes for n in shape):
        return None
    return tuple(tuple(shape) for shape in shapes)


def complete_records(
    records: list[CommRecord],
    postings: Sequence[Posting],
    titles: Iterable[AsyncAnnotation],
    groups: Sequence[Group],
    rank: int | None,
    report: SourceReport,
) -> list[CommRecord]:
    """Add the messages that only ``c10d`` ops tell of, and the peers that only they name.

    Args:
        records: Those of ``record_param_comms``; peers are filled in.
        postings: Ops in any order.
        titles: Annotations of asynchronous work.
        groups: Process groups of the trace.
        rank: The trace's own; None if it does not say.
        report: Told what stays unknown.

    Returns:
        The records with the added ones.
    """
    inside: dict[int | None, list[CommRecord]] = defaultdict(list)
    for record in sorted((r for r in records if r.operation in P2P), key=lambda r: r.posted_ns):
        inside[record.thread].append(record)
    works: dict[tuple[int, str], list[AsyncAnnotation]] = defaultdict(list)
    for title in sorted(titles, key=lambda t: t.start_ns):
        works[title.thread, title.operation].append(title)
    nameless: Counter[bool] = Counter()
    added: list[CommRecord] = []
    for posting in postings:
        own = inside[posting.thread]
        first = bisect_left(own, posting.start_ns, key=lambda r: r.posted_ns)
        last = bisect_right(own, posting.end_ns, key=lambda r: r.posted_ns)
        if first < last:
            for record in own[first:last]:
                if record.peer is None and posting.peer is not None and posting.peer < len(record.group_ranks):
                    record.peer = record.group_ranks[posting.peer]
            continue
        group = _group_of(posting, groups, rank)
        added.append(_record(posting, _work_of(posting, works[posting.thread, posting.operation]), group))
        if added[-1].peer is None:
            nameless[posting.peer is not None] += 1
    if nameless[False]:
        report.note(
            SourceCode.PEERS_UNKNOWN,
            f"{nameless[False]:,} sends and receives name no peer: inputs of ops were not recorded (record_shapes)",
        )
    if nameless[True]:
        could = sorted({g.ranks for g in groups if len(g.ranks) > 1})
        what = f"groups of other ranks could be meant ({', '.join(str(list(ranks)) for ranks in could[:_NAMED])})"
        report.note(
            SourceCode.PEERS_UNKNOWN,
            f"{nameless[True]:,} sends and receives name their peer inside a process group, and "
            f"{what if could else 'the trace lists no group of theirs'}",
        )
    return [*records, *added]


def _group_of(posting: Posting, groups: Sequence[Group], rank: int | None) -> Group | None:
    """The process group that a message is of; of several with the same ranks the first one by name.

    It holds the trace's own rank, and the peer in the place that the message names. None where groups of other ranks
    are left.
    """
    could = [
        group
        for group in groups
        if len(group.ranks) > 1
        and (rank is None or rank in group.ranks)
        and (posting.peer is None or (posting.peer < len(group.ranks) and group.ranks[posting.peer] != rank))
    ]
    return min(could, key=lambda group: group.name) if len({group.ranks for group in could}) == 1 else None


def _work_of(posting: Posting, titles: Sequence[AsyncAnnotation]) -> AsyncAnnotation | None:
    """The asynchronous work that begins inside the op."""
    at = bisect_left(titles, posting.start_ns, key=lambda t: t.start_ns)
    return titles[at] if at < len(titles) and titles[at].start_ns <= posting.end_ns else None


def _record(posting: Posting, work: AsyncAnnotation | None, group: Group | None) -> CommRecord:
    element = _ELEMENT_BYTES.get(work.element or "") if work is not None else None
    elements = sum(math.prod(shape) for shape in posting.dims) if posting.dims is not None else None
    size = None if element is None or elements is None or elements * element > _MOST_BYTES else elements * element
    known = group is not None and posting.peer is not None and posting.peer < len(group.ranks)
    return CommRecord(
        operation=posting.operation,
        group=intern(group.name) if group is not None else "",
        group_ranks=group.ranks if group is not None else (),
        peer=group.ranks[posting.peer] if known and group is not None and posting.peer is not None else None,
        payload_bytes=size,
        posted_ns=posting.start_ns,
        thread=posting.thread,
        external_id=posting.external_id,
        # The title begins only after the bytes were handed over (c10d's ProcessGroupGloo::send and recv).
        start_ns=posting.start_ns if work is not None else None,
        end_ns=work.end_ns if work is not None else None,
    )
