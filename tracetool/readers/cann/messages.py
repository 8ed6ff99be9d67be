"""Which messages a point-to-point operation carries: direction, peer and bytes.

Over HCCS the receiver logs a link ``own-peer``, over RDMA the sender does. Every message also passes through
local memory once on either side, so that the size of the ``LOCAL`` link is the sum of what is sent and
received. What this rank's files do not say is inferred from what it computed before and after, and marked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers.cann.comms import LOCAL, RDMA, collective_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.cann.comms import CommOperation
    from tracetool.readers.cann.kernels import LoggedTraffic, PhaseKernel

BATCH = "batchsendrecv"
SEND, RECV = "send", "recv"
P2P = (SEND, RECV, BATCH)
MATRIX_SAYS, INFERRED, UNKNOWN = "matrix", "inferred", "unknown"

# The LOCAL link of every measured HCCS batch is this much larger than its messages.
_SIGNAL_BYTES = 8
_MOST_MEMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class OperationMessage:
    """One message of an operation.

    Attributes:
        operation: send, recv, or the operation's own name where the direction is unknown.
        peer: Global rank of the other side.
        payload_bytes: Its size.
        evidence: How that is known: matrix, inferred or unknown.
    """

    operation: str
    peer: int | None
    payload_bytes: int | None
    evidence: str


@dataclass(frozen=True, slots=True)
class _Side:
    """A message whose peer is still counted inside the group, or not known yet."""

    operation: str
    local_peer: int | None
    size_bytes: int | None
    evidence: str


@dataclass(slots=True)
class _Traffic:
    """What is known of all point-to-point operations of one group on this rank."""

    operations: list[CommOperation]
    rdma: bool
    usual_bytes: int | None
    senders: frozenset[int] | None


class MessageFinder:
    """Finds the messages of the point-to-point operations of one rank.

    Args:
        rank: Global rank.
        operations: All its operations, in order of start.
        marks: Its kernels that tell forward from backward, in any order.
        totals: Sums of links by hash and kind of operation; empty without a matrix.
    """

    def __init__(
        self,
        rank: int,
        operations: Sequence[CommOperation],
        marks: Iterable[PhaseKernel],
        totals: Mapping[tuple[str, str], tuple[LoggedTraffic, ...]],
    ) -> None:
        self._rank = rank
        self._totals = totals
        self._marks = sorted(marks)
        self._mark_starts = [mark.start_ns for mark in self._marks]
        by_group: dict[str, list[CommOperation]] = defaultdict(list)
        for operation in operations:
            if operation.operation in P2P:
                by_group[operation.group_name].append(operation)
        self._traffic = {name: self._survey(members) for name, members in by_group.items()}
        # Inference looks at the computing between two operations of any pipeline group.
        self._posts = [o for o in operations if o.operation in P2P]
        self._post_starts = [o.start_ns for o in self._posts]

    def of(self, operation: CommOperation) -> list[OperationMessage]:
        """Its messages, sends first; a single one of unknown direction where nothing tells."""
        traffic = self._traffic[operation.group_name]
        sides = _sides(operation, traffic)
        if not sides:
            return [OperationMessage(operation.operation, self._other(operation.group), None, UNKNOWN)]
        sides.sort(key=lambda side: (side.operation != SEND, side.local_peer or 0))
        return [self._message(operation, traffic, side) for side in sides]

    def least_size(self, operation: CommOperation) -> int:
        """Members of its group at least, as its links count them; 0 if it has none."""
        totals = [link for (hashed, _), links in self._totals.items() if hashed == operation.hash for link in links]
        members = [n for link in (*operation.links, *totals) for n in (link.own, link.peer)] + list(operation.notified)
        return max((n + 1 for n in members if n < _MOST_MEMBERS), default=0)

    def check(self, messages_of: Mapping[str, Sequence[OperationMessage]], report: SourceReport) -> None:
        """Compare the bytes sent with the sums of the matrix, which hold every operation.

        Args:
            messages_of: Messages of all batch operations, by name of the group.
            report: Gets a note where they differ.
        """
        for name, messages in messages_of.items():
            traffic = self._traffic[name]
            hashed = traffic.operations[0].hash
            totals = self._totals.get((hashed, BATCH), ())
            sizes = [m.payload_bytes for m in messages]
            if not totals or None in sizes or traffic.rdma:
                continue
            logged = sum(link.size_bytes for link in totals if link.transport == LOCAL)
            batches = sum(o.operation == BATCH for o in traffic.operations)
            expected = logged - _SIGNAL_BYTES * batches
            moved = sum(size for size in sizes if size is not None)
            if moved != expected:
                report.note(
                    SourceCode.BYTES_DIFFER,
                    f"group {name}: the messages found add up to {moved:,} bytes, "
                    f"the totals of the communication matrix to {expected:,}",
                )

    def _survey(self, members: list[CommOperation]) -> _Traffic:
        sizes = {link.size_bytes for o in members for link in o.links if link.own != link.peer}
        sizes |= {o.linked_bytes for o in members if o.linked_bytes}
        rdma = any(link.transport == RDMA for o in members for link in o.links)
        totals = self._totals.get((members[0].hash, BATCH))
        return _Traffic(
            operations=members,
            rdma=rdma or any(o.rdma_bytes for o in members),
            usual_bytes=next(iter(sizes)) if len(sizes) == 1 else None,
            senders=None if totals is None else frozenset(link.peer for link in totals if link.own != link.peer),
        )

    def _message(self, operation: CommOperation, traffic: _Traffic, side: _Side) -> OperationMessage:
        group = operation.group
        evidence = side.evidence
        peer = self._other(group)
        if peer is None and side.local_peer is None:
            side = _with_noticed(side, operation)
            evidence = side.evidence
        if peer is None and group is not None and side.local_peer is not None:
            peer = group.ranks[side.local_peer] if side.local_peer < len(group.ranks) else None
        elif peer is None and group is not None:
            peer = self._neighbour(operation, group, traffic, side.operation)
            evidence = INFERRED
        return OperationMessage(side.operation, peer, side.size_bytes, UNKNOWN if peer is None else evidence)

    def _other(self, group: Group | None) -> int | None:
        """The only other member of a group of two."""
        if group is None or len(group.ranks) != 2 or self._rank not in group.ranks:
            return None
        return group.ranks[1 - group.ranks.index(self._rank)]

    def _neighbour(self, operation: CommOperation, group: Group, traffic: _Traffic, direction: str) -> int | None:
        """The pipeline neighbour that a message goes to or comes from, by what is computed beside it.

        A result of forward goes to the next stage, one of backward to the previous one.
        """
        count = len(group.ranks)
        if not group.description.startswith("pp") or self._rank not in group.ranks or count < 2:
            return None
        place = group.ranks.index(self._rank)
        ends = {0: 1, count - 1: count - 2}
        if direction == SEND:
            backward = self._before(operation)
            chosen = ends.get(place) if backward is None else (place + (-1 if backward else 1)) % count
        elif direction == RECV:
            senders = traffic.senders
            backward = self._after(operation)
            if senders is not None and len(senders) == 1:
                chosen = min(senders)
            elif backward is None or place == count - 1:
                # On the last stage forward and backward follow each other without a message between.
                chosen = ends.get(place) if senders is None else None
            else:
                chosen = (place + (1 if backward else -1)) % count
                chosen = chosen if senders is None or chosen in senders else None
        else:
            chosen = None
        return None if chosen is None or chosen >= count else group.ranks[chosen]

    def _before(self, operation: CommOperation) -> bool | None:
        """Whether the latest computing since the message before was a backward."""
        index = bisect_left(self._post_starts, operation.start_ns)
        since = self._post_starts[index - 1] if index else 0
        last = bisect_left(self._mark_starts, operation.start_ns)
        if last == 0 or self._mark_starts[last - 1] < since:
            return None
        return self._marks[last - 1].backward

    def _after(self, operation: CommOperation) -> bool | None:
        """Whether the computing up to the next message holds a backward."""
        index = bisect_left(self._post_starts, operation.start_ns + 1)
        first = bisect_left(self._mark_starts, operation.end_ns)
        last = len(self._marks)
        if index < len(self._posts):
            last = bisect_left(self._mark_starts, self._post_starts[index])
        between = self._marks[first:last]
        return any(mark.backward for mark in between) if between else None


def comm_rows(
    rank: int, operations: Sequence[CommOperation], messages: MessageFinder, inferred_from: str, report: SourceReport
) -> list[tuple[object, ...]]:
    """Rows of the ``comms`` table.

    Args:
        rank: Global rank.
        operations: In order of start.
        messages: Made of them.
        inferred_from: What tells of messages that the links do not show.
        report: Told how many messages are inferred or unknown, and of sums that differ.
    """
    rows: list[tuple[object, ...]] = []
    batches: dict[str, list[OperationMessage]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for batch, operation in enumerate(operations):
        if operation.operation in P2P:
            carried = messages.of(operation)
            counts.update(m.evidence for m in carried)
            if operation.operation == BATCH:
                batches[operation.group_name] += carried
        else:
            size = collective_bytes(operation)
            carried = [OperationMessage(operation.operation, None, size, UNKNOWN if size is None else INFERRED)]
        ranks = list(operation.group.ranks) if operation.group is not None else []
        if not ranks and (size := messages.least_size(operation)):
            report.group_sizes[operation.group_name] = max(size, report.group_sizes.get(operation.group_name, 0))
        rows += [
            (
                rank, len(rows) + place, m.operation, operation.group_name, ranks, m.peer, m.payload_bytes,
                operation.start_ns, None, batch, operation.stream, operation.start_ns, operation.end_ns,
                m.evidence, None,
            )
            for place, m in enumerate(carried)
        ]  # fmt: skip
    messages.check(batches, report)
    for evidence, code, meaning in (
        (INFERRED, SourceCode.MESSAGES_INFERRED, f"inferred from {inferred_from}"),
        (UNKNOWN, SourceCode.MESSAGES_UNKNOWN, "unknown"),
    ):
        if counts[evidence]:
            report.note(code, f"direction, peer or bytes of {counts[evidence]} messages are {meaning}")
    return rows


def _with_noticed(side: _Side, operation: CommOperation) -> _Side:
    """The peer of a message that no link shows, from the notices that every transfer exchanges."""
    noticed = set(operation.notified)
    if len(noticed) > 1:
        # With several, the others are those that the links show.
        noticed -= {link.peer for link in operation.links}
        side = replace(side, evidence=INFERRED)
    return replace(side, local_peer=noticed.pop()) if len(noticed) == 1 else side


def _sides(operation: CommOperation, traffic: _Traffic) -> list[_Side]:
    sides = [
        _Side(SEND if link.transport == RDMA else RECV, link.peer, link.size_bytes, MATRIX_SAYS)
        for link in operation.links
        if link.own != link.peer
    ]
    if operation.operation != BATCH:
        return [_single(operation, sides)]
    for direction, logged in ((RECV, operation.linked_bytes), (SEND, operation.rdma_bytes)):
        known = sum(side.size_bytes or 0 for side in sides if side.operation == direction)
        # The matrix keeps five operations of a link: the others are in communication.json alone.
        if logged is not None and logged > known:
            sides.append(_Side(direction, None, logged - known, INFERRED))
    return sides + _unlogged(operation, sides, traffic)


def _single(operation: CommOperation, sides: list[_Side]) -> _Side:
    """The message of a plain send or receive, whichever side logged it."""
    local = _local_bytes(operation)
    moved = operation.linked_bytes or operation.rdma_bytes
    if sides:
        return replace(sides[0], operation=operation.operation)
    if local is not None:
        return _Side(operation.operation, None, _without_signal(local), MATRIX_SAYS)
    return _Side(operation.operation, None, moved or None, INFERRED if moved else UNKNOWN)


def _unlogged(operation: CommOperation, sides: list[_Side], traffic: _Traffic) -> list[_Side]:
    """The messages of a batch that no link shows: sends over HCCS, receives over RDMA."""
    known = sum(side.size_bytes or 0 for side in sides)
    local = _local_bytes(operation)
    if local is not None:
        rest = _without_signal(local - known)
        return _split(operation, sides, rest, traffic) if rest > 0 else []
    if operation.wait_ns is None or traffic.rdma:
        return []
    # Measured on every batch of a real capture: an operation that only receives logs no wait of its own.
    if operation.wait_ns == 0 and sides:
        return []
    size = sides[0].size_bytes if len(sides) == 1 else traffic.usual_bytes
    return [_Side(SEND, None, size, INFERRED)]


def _split(operation: CommOperation, sides: list[_Side], rest: int, traffic: _Traffic) -> list[_Side]:
    if traffic.rdma:
        # One peer only means one transport only; else the message may also be a send over HCCS.
        alone = operation.group is not None and len(operation.group.ranks) == 2
        return [_Side(RECV if alone else BATCH, None, rest, INFERRED)]
    received = [side for side in sides if side.operation == RECV]
    if len(received) > 1 and rest == sum(side.size_bytes or 0 for side in received):
        return [replace(side, operation=SEND, evidence=INFERRED) for side in received]
    # Without communication.json a receive that the matrix lost would look the same.
    return [_Side(SEND, None, rest, INFERRED if operation.linked_bytes is None else MATRIX_SAYS)]


def _local_bytes(operation: CommOperation) -> int | None:
    sizes = [link.size_bytes for link in operation.links if link.transport == LOCAL]
    return sum(sizes) if sizes else None


def _without_signal(size_bytes: int) -> int:
    return size_bytes - _SIGNAL_BYTES if size_bytes % 16 == _SIGNAL_BYTES else size_bytes
