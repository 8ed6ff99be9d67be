"""Communication operations of Ascend timelines: one thread of operations per communicator, and its planes.

The subtasks on the planes say which ranks (counted inside the group) exchanged how many bytes. Sums over the
planes are those of ``communication_matrix.json``; planes overlap in time, so durations are never summed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers.ascend_comms import LOCAL, RDMA, Link, Operation, collective_bytes, group_hash
from tracetool.readers.ascend_messages import INFERRED, P2P, UNKNOWN, Message, Messages
from tracetool.readers.ascend_tracks import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.ascend_chrome import Args

_HCOM = re.compile(r"^hcom_(?P<kind>[A-Za-z0-9]+)_*_(?P<digits>\d+)_-?\d+(?:_-?\d+)?$")
# MindSpore's graphs: Default/AllReduce-op534_0.
_GRAPH = re.compile(r"^(?:.*/)?(?P<kind>[A-Za-z]+)-op\d+(?:_\d+)?$")
_ON_CHIP = "ON_CHIP"
# A communicator is an index, the hash of its name (16 digits or more but for one in thousands) or its name.
_INDEX = re.compile(r"^\d{1,6}$")


@dataclass(slots=True)
class _Moved:
    """Bytes of one operation by (own, peer, transport), and the streams of its subtasks."""

    sizes: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    streams: set[int] = field(default_factory=set)


class Planes:
    """Collects operations and subtasks in any order, and puts them together.

    Args:
        report: Told about subtasks that belong to no operation.
    """

    def __init__(self, report: SourceReport) -> None:
        self._report = report
        self._operations: dict[tuple[int, int], list[Operation]] = defaultdict(list)
        self._subtasks: list[tuple[int, int, int, int, int, str, int, int | None]] = []
        self._idle = 0

    def operation(self, thread: tuple[int, int], communicator: str, name: str, start: int, end: int) -> None:
        """Take an operation from a communicator's own thread."""
        found = operation_of(name, start, end)
        found.hash = "" if _INDEX.match(communicator) else communicator
        self._operations[thread].append(found)

    def subtask(self, thread: tuple[int, int], start: int, args: Args | None) -> None:
        """Take a subtask from a plane; the ones that move nothing are only counted."""
        own = number(args.source) if args is not None else None
        size = number(args.size) if args is not None else None
        if args is None or own is None or not size:
            self._idle += 1
            return
        peer = number(args.destination)
        peer = own if peer is None else peer
        local = peer == own or args.link == _ON_CHIP
        transport = LOCAL if local else RDMA if args.transport == RDMA else str(args.link)
        self._subtasks.append((*thread, start, own, peer, transport, size, number(args.stream)))

    def finish(self, groups: Sequence[Group]) -> list[Operation]:
        """All operations in order of start, with their links and groups.

        Args:
            groups: Groups that are known from elsewhere; ranks of the others stay unknown.
        """
        for operations in self._operations.values():
            operations.sort(key=lambda o: o.start_ns)
        self._move()
        found = [operation for operations in self._operations.values() for operation in operations]
        found.sort(key=lambda o: (o.start_ns, o.name, o.hash))
        attach_groups(found, groups, self._report)
        if self._idle:
            self._report.skipped["communication subtask that moves nothing"] += self._idle
        return found

    def _move(self) -> None:
        threads = sorted(self._operations)
        starts = {thread: [o.start_ns for o in self._operations[thread]] for thread in threads}
        moved: dict[tuple[tuple[int, int], int], _Moved] = defaultdict(_Moved)
        for pid, tid, start, own, peer, transport, size, stream in self._subtasks:
            thread = _owner(threads, pid, tid)
            place = bisect_right(starts[thread], start) - 1 if thread is not None else -1
            # Both ends of an operation were rounded to whole ns.
            if thread is None or place < 0 or start > self._operations[thread][place].end_ns + 1:
                self._report.dropped["communication subtask outside of every operation"] += 1
                continue
            of = moved[thread, place]
            of.sizes[own, peer, transport] += size
            if stream is not None:
                of.streams.add(stream)
        for (thread, place), found in moved.items():
            operation = self._operations[thread][place]
            operation.links = tuple(Link(*ends, size) for ends, size in found.sizes.items())
            over = Counter[str]()
            for link in operation.links:
                over[link.transport] += link.size_bytes
            operation.rdma_bytes = over[RDMA]
            operation.linked_bytes = over.total() - over[RDMA] - over[LOCAL]
            operation.stream = next(iter(found.streams)) if len(found.streams) == 1 else None


def operation_of(name: str, start: int, end: int, stream: int | None = None) -> Operation:
    """The operation that a name stands for."""
    match = _HCOM.match(name)
    graph = _GRAPH.match(name) if match is None else None
    kind = match["kind"] if match else graph["kind"] if graph else name.removeprefix("hcom_").rstrip("_")
    lowered = kind.lower()
    digits = match["digits"] if match else ""
    return Operation(name, "recv" if lowered == "receive" else lowered, digits, start, end, stream)


def attach_groups(operations: Sequence[Operation], groups: Sequence[Group], report: SourceReport) -> None:
    """Find the group of each operation by communicator, hash, or the only one whose hash ends like its name."""
    named = {group.name: group for group in groups}
    hashed = {str(group_hash(group.name)): group for group in groups}
    guessed = 0
    for operation in operations:
        group = named.get(operation.hash) or hashed.get(operation.hash)
        if group is None and not operation.hash and operation.digits:
            ending = [g for h, g in hashed.items() if h[-3:] == operation.digits]
            group = ending[0] if len(ending) == 1 else None
            guessed += group is not None
        if group is not None:
            operation.group, operation.hash = group, str(group_hash(group.name))
    if guessed:
        report.notes.append(
            f"{guessed} communication operations were given the only group whose hash ends like their name"
        )


def comm_rows(rank: int, operations: Sequence[Operation], report: SourceReport) -> list[tuple[object, ...]]:
    """Rows of the ``comms`` table.

    Args:
        rank: Global rank.
        operations: In order of start.
        report: Told how many messages are inferred or unknown.
    """
    messages = Messages(rank, operations, (), {})
    rows: list[tuple[object, ...]] = []
    counts: Counter[str] = Counter()
    for batch, operation in enumerate(operations):
        if operation.operation in P2P:
            carried = messages.of(operation)
            counts.update(m.evidence for m in carried)
        else:
            size = collective_bytes(operation)
            carried = [Message(operation.operation, None, size, UNKNOWN if size is None else INFERRED)]
        ranks = list(operation.group.ranks) if operation.group is not None else []
        rows += [
            (
                rank, len(rows) + place, m.operation, operation.group_name, ranks, m.peer, m.payload_bytes,
                operation.start_ns, None, batch, operation.stream, operation.start_ns, operation.end_ns,
                m.evidence, None,
            )
            for place, m in enumerate(carried)
        ]  # fmt: skip
    for evidence, meaning in ((INFERRED, "inferred from sizes and neighbours"), (UNKNOWN, "unknown")):
        if counts[evidence]:
            report.notes.append(f"direction, peer or bytes of {counts[evidence]} messages are {meaning}")
    return rows


def _owner(threads: Sequence[tuple[int, int]], pid: int, tid: int) -> tuple[int, int] | None:
    """The thread of operations that a plane belongs to: planes follow the thread of their communicator."""
    first, last = bisect_left(threads, (pid,)), bisect_left(threads, (pid + 1,))
    place = bisect_right(threads, (pid, tid)) - 1
    if first <= place < last:
        return threads[place]
    return threads[first] if last - first == 1 else None
