"""Rows of the events table, out of an export: what a process ran on its device, what launched it, what surrounded that.

Ranges and launches of a thread are laid beside each other in order of time, so that each launch is known to the
innermost operator around it. Correlation ids are unique per process only, and rows of a table may be a little out of
order.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from tracetool.readers import FilePlace
from tracetool.readers.cann.db import known, whole
from tracetool.readers.cuda import CommKernel, is_communication_kernel
from tracetool.readers.nsys.capture import (
    CALLS,
    COPIES,
    FILLS,
    GRAPHS,
    KERNELS,
    MEMORY_USAGE,
    NVTX,
    process_of,
    thread_of,
)
from tracetool.readers.nsys.comms import NcclRange
from tracetool.readers.nsys.nvtx import Domains, Payloads, read_name
from tracetool.readers.nsys.stored import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.stored import Cells, Stored

    Row = tuple[object, ...]
    Span = tuple[int, int, int, Cells]
    """Start, end, number of the row, and its cells."""

T = TypeVar("T")
_AHEAD = 1 << 12
"""Rows that wait for earlier ones: calls are stored as they end, which is a handful of rows out of order."""

_BLOCK = 1 << 14
_MOST_NAMES = 1 << 12
_TIME_LIMIT = 2**61
_MOST_COMMUNICATIONS = 1 << 19
_VERSION = re.compile(r"_v\d+$|_ptsz$")
_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
_NO_OP = -1
NAMELESS = "name lost"
_LABELS_OF_NCCL = "nccl:"
_OF_RANGES = (
    "start", "end", "globalTid", "eventType", "domainId", "text", "textId", "jsonText", "binaryData", "jsonTextId",
)  # fmt: skip
_OF_CALLS = ("start", "end", "globalTid", "correlationId", "nameId")
_THREAD, _KIND, _CORRELATION, _NAME = 2, 3, 3, 4
_START = 4  # in a row of events


class ProcessEvents:
    """The events of one process of an export.

    Args:
        stored: The export.
        pid: The process.
        rank: Global rank.
        base_ns: Added to all times.
        report: Told about what is dropped, repaired or skipped.

    Attributes:
        calls: Calls of NCCL, in order of their start.
        steps: Marks of steps: number, start and end.
        kernels: Communication kernels with their launches.
    """

    def __init__(self, stored: Stored, pid: int, rank: int, base_ns: int, report: SourceReport) -> None:
        self.calls: list[NcclRange] = []
        self.labels: list[tuple[str, int, int, int]] = []
        self.steps: list[tuple[int, int, int]] = []
        self.kernels: list[CommKernel] = []
        self._stored, self._pid, self._rank, self._base_ns, self._report = stored, pid, rank, base_ns, report
        self._texts, self._payloads = Texts(stored), Payloads(stored)
        self._domains = Domains(stored, self._texts)
        self._nccl = self._domains.nccl.get(pid, set())
        self._count = 0
        self._at = 0
        self._call_names: dict[object, str] = {}
        self._kernel_names: dict[object, tuple[str, bool]] = {}
        self._wanted = array("q")
        self._ops = array("q")
        self._launched = bytearray()
        self._of_comms: dict[int, tuple[int, int] | None] = {}

    def rows(self) -> Iterator[list[Row]]:
        """Rows of ``events``: ranges and launches, then what ran on the device."""
        self._note_device()
        for rows in (self._host_rows(), self._device_rows()):
            for block in _blocks(rows):
                self._met(min(map(itemgetter(_START), block)))
                yield block

    def memory_rows(self) -> Iterator[Row]:
        """Rows of ``memory``: what the whole process took from the driver and gave back."""
        columns = "start", "bytes", "memoryOperationType", "address"
        for start, size, kind, address in self._of_process(MEMORY_USAGE, columns, "globalPid"):
            self._report.rows += 1
            moment, bytes_, freed = whole(start), known(size), whole(kind)
            if moment is None or abs(moment) >= _TIME_LIMIT or bytes_ is None or freed not in (0, 1):
                self._report.drop("memory usage without time, size or kind", self._place(MEMORY_USAGE))
                continue
            delta = -bytes_ if freed else bytes_
            yield self._rank, "APP", moment + self._base_ns, delta, None, None, known(address)

    def _of_process(self, table: str, columns: tuple[str, ...], owner: str) -> Iterator[Cells]:
        ids = {value for (value,) in self._stored.combinations(table, owner) if process_of(value) == self._pid}
        return self._stored.select(table, columns, (owner, ids))

    def _place(self, table: str, row: int = 0) -> FilePlace:
        return FilePlace(f"{self._stored.path}: {table}", row, "row")

    def _note_device(self) -> None:
        """Which correlations started something on the device, and which of those communicate."""
        import numpy as np

        blocks, pending = [np.empty(0, np.int64)], array("q")
        columns = ("correlationId", "demangledName", "shortName")
        for table in (KERNELS, COPIES, FILLS, GRAPHS):
            for correlation, full, short in self._of_process(table, columns, "globalPid"):
                if type(correlation) is not int or not -_TIME_LIMIT < correlation < _TIME_LIMIT:
                    continue
                pending.append(correlation)
                if len(pending) == _BLOCK:
                    blocks.append(np.unique(pending))
                    pending = array("q")
                communicates = table == KERNELS and self._kernel_name(full, short)[1]
                if communicates and len(self._of_comms) < _MOST_COMMUNICATIONS:
                    self._of_comms[correlation] = None
        wanted = np.unique(np.concatenate([*blocks, pending]))
        # Looked up one by one, which arrays of Python do in a tenth of the time.
        self._wanted.frombytes(wanted.tobytes())
        self._ops.frombytes(np.full(len(wanted), _NO_OP, np.int64).tobytes())
        self._launched = bytearray(len(wanted))

    def _kernel_name(self, full: object, short: object) -> tuple[str, bool]:
        """What a kernel is called, and whether it communicates."""
        known = self._kernel_names.get((full, short))
        if known is None:
            name = _bare(self._texts.of(None, full) or self._texts.of(None, short) or NAMELESS)
            known = name, is_communication_kernel(name)
            _remember(self._kernel_names, (full, short), known)
        return known

    def _host_rows(self) -> Iterator[Row]:
        """Ranges and launches in order of time, each launch with the operator around it."""
        around: dict[int, list[tuple[int, int]]] = defaultdict(list)
        labels: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        for spans in _merged(self._ranges(), self._launches()):
            for start, end, number, cells in spans:
                thread = thread_of(cells[_THREAD]) or 0
                open_ops = around[thread]
                while open_ops and open_ops[-1][0] < start:
                    open_ops.pop()
                if len(cells) == len(_OF_CALLS):
                    row = self._launch_row(start, end, cells, thread, open_ops)
                else:
                    row = self._range_row((start, end, number, cells), thread, open_ops, labels[thread])
                if row is not None:
                    self._count += 1
                    yield row

    def _met(self, start_ns: int) -> None:
        first = self._report.first_ns
        self._report.first_ns = start_ns if first is None else min(first, start_ns)

    def _in_order(self, batches: Iterable[list[Span]], table: str) -> Iterator[list[Span]]:
        waiting: list[Span] = []
        last = -_TIME_LIMIT
        for batch in batches:
            waiting += batch
            # Of ranges that begin together the longest is around the others.
            waiting.sort(key=_outer_first)
            ready, waiting = waiting[:-_AHEAD], waiting[-_AHEAD:]
            if not ready:
                continue
            if late := bisect_left(ready, last, key=itemgetter(0)):
                self._report.repair(f"rows of {table} far out of order", self._place(table, ready[0][2]), late)
            last = max(last, ready[-1][0])
            yield ready
        if waiting:
            yield waiting

    def _ranges(self) -> Iterator[list[Span]]:
        batches = self._spans(NVTX, _OF_RANGES, _is_range, "mark, name or domain")
        return self._in_order(batches, NVTX)

    def _launches(self) -> Iterator[list[Span]]:
        def is_launch(cells: Cells) -> bool:
            return self._place_of(cells[_CORRELATION]) is not None

        batches = self._spans(CALLS, _OF_CALLS, is_launch, "API call that starts nothing on the device")
        return self._in_order(batches, CALLS)

    def _spans(
        self, table: str, columns: tuple[str, ...], is_wanted: Callable[[Cells], bool], others: str
    ) -> Iterator[list[Span]]:
        first = 0
        for batch in _blocks(self._of_process(table, columns, "globalTid")):
            wanted = [(number, cells) for number, cells in enumerate(batch, first) if is_wanted(cells)]
            timed = [(self._times(cells[0], cells[1], table, number), number, cells) for number, cells in wanted]
            self._report.rows += len(batch)
            if len(wanted) < len(batch):
                self._report.skipped[others] += len(batch) - len(wanted)
            yield [(*times, number, cells) for times, number, cells in timed if times is not None]
            first += len(batch)

    def _times(self, start: object, end: object, table: str, number: int) -> tuple[int, int] | None:
        if type(start) is int and type(end) is int and -_TIME_LIMIT < start <= end < _TIME_LIMIT:
            return start + self._base_ns, end + self._base_ns
        first, last = whole(start), whole(end)
        if first is None or last is None or not -_TIME_LIMIT < first <= last < _TIME_LIMIT:
            self._report.drop(f"row of {table} without usable times", self._place(table, number))
            return None
        return first + self._base_ns, last + self._base_ns

    def _range_row(
        self, span: Span, thread: int, open_ops: list[tuple[int, int]], labels: list[tuple[int, str, int]]
    ) -> Row | None:
        start, end, _, (_, _, _, kind, domain, text, text_id, json_text, blob, json_id) = span
        name = self._texts.of(text, text_id)
        if name is None:
            self._report.repaired[f"no text for a name in StringIds: called {NAMELESS!r}"] += 1
            name = NAMELESS
        if domain or domain in self._nccl:
            if self._domains.is_nccl(self._pid, domain, name):
                self._note_call(name, span, thread, (blob, self._texts.of(json_text, json_id)), labels)
                return None
            if domain:
                self._report.skipped["range of another domain"] += 1
                return None
        category, name, sequence, label, step = read_name(name)
        external = self._count if category == "op" else None
        if kind == Domains.NESTED and category == "op":
            open_ops.append((end, self._count))
        elif step is not None:
            self.steps.append((step, start, end))
        elif name.startswith(_LABELS_OF_NCCL):
            labels.append((end, name, start))
            if len(self.labels) < _MOST_COMMUNICATIONS:
                self.labels.append((name, start, end, thread))
        return (
            self._count, self._rank, category, name, start, end - start, thread,
            None, None, external, sequence, None, None, label, None,
        )  # fmt: skip

    def _note_call(
        self, name: str, span: Span, thread: int, attached: tuple[object, object], labels: list[tuple[int, str, int]]
    ) -> None:
        start, end, number, _ = span
        if len(self.calls) >= _MOST_COMMUNICATIONS:
            self._report.drop(f"more than {_MOST_COMMUNICATIONS:,} calls of NCCL", self._place(NVTX, number))
            return
        while labels and labels[-1][0] < start:
            labels.pop()
        _, label, label_ns = labels[-1] if labels else (0, "", 0)
        payload = self._payloads.decoded(*attached)
        self.calls.append(NcclRange(name, start, end, thread, payload, label=label, label_ns=label_ns))

    def _launch_row(
        self, start: int, end: int, cells: Cells, thread: int, open_ops: list[tuple[int, int]]
    ) -> Row | None:
        correlation, name_id = cells[_CORRELATION], cells[_NAME]
        op = open_ops[-1][1] if open_ops else None
        at = self._place_of(correlation) or 0
        if self._launched[at]:
            self._report.drop("launch whose correlation an earlier one has", self._place(CALLS))
            return None
        self._launched[at] = True
        if op is not None:
            self._ops[at] = op
        if correlation in self._of_comms:
            self._of_comms[correlation] = start, thread
        name = self._call_names.get(name_id)
        if name is None:
            name = _VERSION.sub("", self._texts.of(None, name_id) or NAMELESS)
            _remember(self._call_names, name_id, name)
        return (
            self._count, self._rank, "launch", name, start, end - start, thread,
            None, correlation, op, None, None, None, None, None,
        )  # fmt: skip

    def _device_rows(self) -> Iterator[Row]:
        columns = (
            "start", "end", "streamId", "correlationId", "demangledName", "shortName", "gridX", "gridY", "gridZ",
            "copyKind", "graphId",
        )  # fmt: skip
        for table, category in ((KERNELS, "kernel"), (COPIES, "memcpy"), (FILLS, "memset"), (GRAPHS, "kernel")):
            for number, row in enumerate(self._of_process(table, columns, "globalPid")):
                start, end, stream, correlation, full, short, x, y, z, copy, graph = row
                self._report.rows += 1
                times = self._times(start, end, table, number)
                if times is None:
                    continue
                name = f"Memcpy {_COPIES.get(copy, '?')}" if table == COPIES else "Memset"
                if table == KERNELS:
                    name, communicates = self._kernel_name(full, short)
                    if communicates:
                        self._note_kernel(name, times, known(stream), correlation)
                elif table == GRAPHS:
                    name = f"CUDA graph {graph}"
                blocks = known(x * y * z) if _is_size(x) and _is_size(y) and _is_size(z) else None
                yield (
                    self._count, self._rank, category, name, times[0], times[1] - times[0], None, known(stream),
                    known(correlation), self._op_around(correlation), None, None, blocks, None, None,
                )  # fmt: skip
                self._count += 1

    def _op_around(self, correlation: object) -> int | None:
        at = self._place_of(correlation)
        op = self._ops[at] if at is not None else _NO_OP
        return op if op != _NO_OP else None

    def _place_of(self, correlation: object) -> int | None:
        """Where a correlation stands among those that started something on the device."""
        if type(correlation) is not int:
            return None
        wanted, at = self._wanted, self._at
        # Most stand behind the one that was asked for last.
        if at >= len(wanted) or wanted[at] != correlation:
            at = bisect_left(wanted, correlation)
            if at == len(wanted) or wanted[at] != correlation:
                return None
        self._at = at + 1
        return at

    def _note_kernel(self, name: str, times: tuple[int, int], stream: int | None, correlation: object) -> None:
        if len(self.kernels) >= _MOST_COMMUNICATIONS:
            return
        launch = self._of_comms.get(correlation) if isinstance(correlation, int) else None
        launch_ns, thread = launch or (times[0], None)
        self.kernels.append(
            CommKernel(
                name=name, start_ns=times[0], end_ns=times[1], stream=stream, external_id=None, launch_ns=launch_ns,
                launch_thread=thread,
            )
        )  # fmt: skip


def _blocks(rows: Iterable[T]) -> Iterator[list[T]]:
    waiting = iter(rows)
    while block := list(islice(waiting, _BLOCK)):
        yield block


def _outer_first(span: Span) -> tuple[int, int, int]:
    return span[0], -span[1], span[2]


def _merged(first: Iterator[list[Span]], second: Iterator[list[Span]]) -> Iterator[list[Span]]:
    """Batches of both, each in order of start, as one; of equal starts those of the first stand first."""
    start = itemgetter(0)
    one, two = next(first, None), next(second, None)
    while one is not None and two is not None:
        until = min(one[-1][0], two[-1][0])
        of_one = bisect_right(one, until, key=start)
        # What is as late in the batches to come of the first stands before it.
        of_two = bisect_left(two, until, key=start) if of_one == len(one) else bisect_right(two, until, key=start)
        yield sorted(one[:of_one] + two[:of_two], key=start)
        one, two = one[of_one:] or next(first, None), two[of_two:] or next(second, None)
    yield from (batch for batch in (one, two) if batch)
    yield from first
    yield from second


def _remember(known: dict[object, T], key: object, value: T) -> None:
    if len(known) >= _MOST_NAMES:
        known.clear()
    known[key] = value


def _is_range(cells: Cells) -> bool:
    return cells[_KIND] in (Domains.NESTED, Domains.FREE)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 < value < 2**31


def _bare(name: str) -> str:
    """A kernel's name without its return type, which the demangled names of templates begin with."""
    return name.removeprefix("void ")
