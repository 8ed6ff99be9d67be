"""Communication operations of Ascend timelines: one thread of operations per communicator, and its planes.

The subtasks on the planes say which ranks (counted inside the group) exchanged how many bytes. Sums over the
planes are those of ``communication_matrix.json``; planes overlap in time, so durations are never summed.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from tracetool.model.notice import SourceCode
from tracetool.readers.cann.comms import LOCAL, RDMA, CommOperation, group_hash
from tracetool.readers.cann.kernels import LoggedTraffic
from tracetool.readers.cann.tracks import ABSENT
from tracetool.readers.files.spill import Spill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tracetool.readers import Group, SourceReport
    from tracetool.readers.cann.chrome import SpanColumns
    from tracetool.readers.cann.tracks import Thread

    _Position = tuple[int, int]

_HCOM = re.compile(r"^hcom_(?P<kind>[A-Za-z0-9]+)_*_(?P<digits>\d+)_-?\d+(?:_-?\d+)?$")
# MindSpore's graphs: Default/AllReduce-op534_0.
_GRAPH = re.compile(r"^(?:.*/)?(?P<kind>[A-Za-z]+)-op\d+(?:_\d+)?$")
_ON_CHIP = "ON_CHIP"
_NO_PLACE = -1
# A communicator is an index, the hash of its name (16 digits or more but for one in thousands) or its name.
_INDEX = re.compile(r"^\d{1,6}$")


class _Subtask(NamedTuple):
    """Columns of subtasks that move bytes; ``transport`` is a number that stands for its name."""

    pid: NDArray[np.int64]
    tid: NDArray[np.int64]
    start: NDArray[np.int64]
    own: NDArray[np.int64]
    peer: NDArray[np.int64]
    transport: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]


class Planes:
    """Collects operations and subtasks in any order, and puts them together.

    Args:
        report: Told about subtasks that belong to no operation.
    """

    def __init__(self, report: SourceReport) -> None:
        self._report = report
        self._operations: dict[tuple[int, int], list[CommOperation]] = defaultdict(list)
        self._subtasks = Spill(len(_Subtask._fields))
        self._transports = {LOCAL: 0, RDMA: 1}
        self._idle = 0

    def operation(self, thread: tuple[int, int], communicator: str, name: str, start: int, end: int) -> None:
        """Take an operation from a communicator's own thread."""
        operation = operation_of(name, start, end)
        operation.hash = "" if _INDEX.match(communicator) else communicator
        self._operations[thread].append(operation)

    def subtasks(
        self, spans: SpanColumns, threads: Sequence[Thread], rows: NDArray[np.int64], start: NDArray[np.int64]
    ) -> None:
        """Take subtasks from planes; the ones that move nothing are only counted.

        Args:
            spans: Spans, subtasks among them.
            threads: What the numbers of threads stand for.
            rows: Which of the spans are subtasks.
            start: Start of each span.
        """
        import numpy as np

        if not len(rows):
            return
        own, size = spans.integers("source")[rows], spans.integers("size")[rows]
        moves = (own != ABSENT) & (size != ABSENT) & (size != 0)
        self._idle += int(np.count_nonzero(~moves))
        rows, own, size = rows[moves], own[moves], size[moves]
        peer = spans.integers("destination")[rows]
        peer = np.where(peer == ABSENT, own, peer)
        links, link_names = spans.texts("link")
        ways, way_names = spans.texts("transport")
        numbers = [self._transports.setdefault(name, len(self._transports)) for name in link_names]
        transport = np.where(np.isin(ways[rows], _places(way_names, RDMA)), 1, np.array(numbers)[links[rows]])
        local = (peer == own) | np.isin(links[rows], _places(link_names, _ON_CHIP))
        places = spans.threads[rows]
        # Their process and thread have numbers: the tracks would not know them otherwise.
        pids, tids = (np.array([t[n] or 0 for t in threads], np.int64)[places] for n in (0, 1))
        stream = spans.integers("stream")[rows]
        self._subtasks.add(
            _Subtask(
                pid=pids,
                tid=tids,
                start=start[rows],
                own=own,
                peer=peer,
                transport=np.where(local, 0, transport),
                size=size,
                stream=stream,
            )
        )

    def finish(self, groups: Sequence[Group]) -> list[CommOperation]:
        """All operations in order of start, with their links and groups.

        Args:
            groups: Groups that are known from elsewhere; ranks of the others stay unknown.
        """
        for operations in self._operations.values():
            operations.sort(key=lambda o: o.start_ns)
        self._move()
        operations_in_order = [operation for operations in self._operations.values() for operation in operations]
        operations_in_order.sort(key=lambda o: (o.start_ns, o.name, o.hash))
        attach_groups(operations_in_order, groups, self._report)
        if self._idle:
            self._report.skipped["communication subtask that moves nothing"] += self._idle
        return operations_in_order

    def _move(self) -> None:
        """Give each operation the bytes of its subtasks by link, and their stream if it is one."""
        threads = sorted(self._operations)
        sizes: dict[_Position, Counter[tuple[int, int, int]]] = defaultdict(Counter)
        streams: dict[_Position, set[int]] = defaultdict(set)
        for block in self._subtasks.blocks():
            subtasks = _Subtask._make(block)
            thread, place = self._operations_of(threads, subtasks)
            lost = place == _NO_PLACE
            if lost.any():
                self._report.dropped["communication subtask outside of every operation"] += int(lost.sum())
            whole = (thread, place, subtasks.own, subtasks.peer, subtasks.transport)
            for key, size in _sums([column[~lost] for column in whole], subtasks.size[~lost]):
                sizes[key[0], key[1]][key[2], key[3], key[4]] += size
            on_stream = ~lost & (subtasks.stream != ABSENT)
            for key, _ in _sums([c[on_stream] for c in (thread, place, subtasks.stream)], subtasks.size[on_stream]):
                streams[key[0], key[1]].add(key[2])
        self._subtasks.close()
        transports = list(self._transports)
        for (number, position), moved in sizes.items():
            operation = self._operations[threads[number]][position]
            operation.links = tuple(
                LoggedTraffic(own, peer, transports[way], size) for (own, peer, way), size in moved.items()
            )
            over = Counter[str]()
            for link in operation.links:
                over[link.transport] += link.size_bytes
            operation.rdma_bytes = over[RDMA]
            operation.linked_bytes = over.total() - over[RDMA] - over[LOCAL]
            known = streams[number, position]
            operation.stream = next(iter(known)) if len(known) == 1 else None

    def _operations_of(
        self, threads: Sequence[tuple[int, int]], subtasks: _Subtask
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The thread of operations of each subtask, and the place of its operation there (_NO_PLACE: there is none)."""
        import numpy as np

        thread, place = (np.full(len(subtasks.start), _NO_PLACE, np.int64) for _ in range(2))
        planes = set(zip(subtasks.pid.tolist(), subtasks.tid.tolist(), strict=True))
        for pid, tid in planes:
            owner = _owner(threads, pid, tid)
            if owner is None:
                continue
            rows = np.flatnonzero((subtasks.pid == pid) & (subtasks.tid == tid))
            operations = self._operations[owner]
            starts, ends = (np.array([getattr(o, end) for o in operations], np.int64) for end in ("start_ns", "end_ns"))
            last_before = np.searchsorted(starts, subtasks.start[rows], side="right") - 1
            # Both ends of an operation were rounded to whole ns.
            place[rows] = np.where(
                (last_before >= 0) & (subtasks.start[rows] <= ends[last_before] + 1), last_before, _NO_PLACE
            )
            thread[rows] = threads.index(owner)
        return thread, place


def _places(names: Sequence[str], name: str) -> list[int]:
    return [place for place, other in enumerate(names) if other == name]


def _sums(keys: Sequence[NDArray[np.int64]], sizes: NDArray[np.int64]) -> Iterator[tuple[list[int], int]]:
    """Each combination of keys with the sum of its sizes, in order of first appearance."""
    import numpy as np

    if not len(sizes):
        return
    combinations, first, of = np.unique(np.stack(keys), axis=1, return_index=True, return_inverse=True)
    sums = np.zeros(combinations.shape[1], np.int64)
    np.add.at(sums, of.reshape(-1), sizes)
    for place in np.argsort(first).tolist():
        yield combinations[:, place].tolist(), int(sums[place])


def operation_of(name: str, start: int, end: int, stream: int | None = None) -> CommOperation:
    """The operation that a name stands for."""
    match = _HCOM.match(name)
    graph = _GRAPH.match(name) if match is None else None
    kind = match["kind"] if match else graph["kind"] if graph else name.removeprefix("hcom_").rstrip("_")
    lowered = kind.lower()
    digits = match["digits"] if match else ""
    return CommOperation(name, "recv" if lowered == "receive" else lowered, digits, start, end, stream)


def attach_groups(operations: Sequence[CommOperation], groups: Sequence[Group], report: SourceReport) -> None:
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
        report.note(
            SourceCode.GROUPS_GUESSED,
            f"{guessed} communication operations were given the only group whose hash ends like their name",
        )


def _owner(threads: Sequence[tuple[int, int]], pid: int, tid: int) -> tuple[int, int] | None:
    """The thread of operations that a plane belongs to: planes follow the thread of their communicator."""
    first, last = bisect_left(threads, (pid,)), bisect_left(threads, (pid + 1,))
    place = bisect_right(threads, (pid, tid)) - 1
    if first <= place < last:
        return threads[place]
    return threads[first] if last - first == 1 else None
