"""Rows of the events table, out of an export: what a process ran on its device, what launched it, what surrounded that.

Ranges and launches of a thread are laid beside each other in order of time, so that each launch is known to the
innermost operator around it. Correlation ids are unique per process only, and rows of a table may be a little out of
order.
"""

from __future__ import annotations

import heapq
import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

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
from tracetool.readers.nsys.nvtx import Domains, Payload, Payloads, read_name
from tracetool.readers.nsys.stored import Texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.stored import Cells, Stored

    Row = tuple[object, ...]

_AHEAD = 1 << 12
"""Rows that wait for earlier ones: calls are stored as they end, which is a handful of rows out of order."""

_BLOCK = 1 << 14
_TIME_LIMIT = 2**61
_MOST_COMMUNICATIONS = 1 << 19
_VERSION = re.compile(r"_v\d+$|_ptsz$")
_COPIES = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_NO_OP = -1
NAMELESS = "name lost"
_LABELS_OF_NCCL = "nccl:"


class NcclRange(NamedTuple):
    """A call of NCCL on the host.

    Attributes:
        name: Function, as ``ncclSend``.
        start_ns: Unix time.
        end_ns: Unix time.
        thread: Host thread.
        payload: What NCCL says of it.
        label: c10d's annotation around it, as ``nccl:all_reduce``; empty without.
        label_ns: When that began.
    """

    name: str
    start_ns: int
    end_ns: int
    thread: int
    payload: Payload
    label: str
    label_ns: int


class _Span(NamedTuple):
    """A range or a call, in order of its start."""

    start_ns: int
    end_ns: int
    number: int
    cells: Cells


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
        self._count = 0
        self._wanted = array("q")
        self._ops = array("q")
        self._of_comms: dict[int, tuple[int, int] | None] = {}

    def rows(self) -> Iterator[list[Row]]:
        """Rows of ``events``: ranges and launches, then what ran on the device."""
        self._note_device()
        yield from self._blocks(self._host_rows())
        yield from self._blocks(self._device_rows())

    def memory_rows(self) -> Iterator[Row]:
        """Rows of ``memory``: what the whole process took from the driver and gave back."""
        columns = ("start", "bytes", "memoryOperationType", "address")
        for start, size, kind, address in self._of_process(MEMORY_USAGE, columns, "globalPid"):
            self._report.rows += 1
            moment, bytes_, freed = whole(start), known(size), whole(kind)
            if moment is None or bytes_ is None or freed not in (0, 1):
                self._report.drop("memory usage without time, size or kind", self._place(MEMORY_USAGE))
                continue
            delta = -bytes_ if freed else bytes_
            yield self._rank, "APP", moment + self._base_ns, delta, None, None, whole(address)

    def _of_process(self, table: str, columns: tuple[str, ...], owner: str) -> Iterator[Cells]:
        ids = {value for (value,) in self._stored.combinations(table, owner) if process_of(value) == self._pid}
        return self._stored.select(table, columns, (owner, ids))

    def _place(self, table: str, row: int = 0) -> FilePlace:
        return FilePlace(f"{self._stored.path}: {table}", row, "row")

    def _blocks(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        pending: list[Row] = []
        for row in rows:
            pending.append(row)
            if len(pending) == _BLOCK:
                yield pending
                pending = []
        if pending:
            yield pending

    def _note_device(self) -> None:
        """Which correlations started something on the device, and which of those communicate."""
        import numpy as np

        blocks = [np.empty(0, np.int64)]
        pending: list[int] = []
        names: dict[object, bool] = {}
        for table in (KERNELS, COPIES, FILLS, GRAPHS):
            columns = ("correlationId", "demangledName", "shortName")
            for correlation, full, short in self._of_process(table, columns, "globalPid"):
                if type(correlation) is not int:
                    continue
                pending.append(correlation)
                if len(pending) == _BLOCK:
                    blocks.append(np.unique(np.array(pending, np.int64)))
                    pending = []
                if table == KERNELS:
                    key = full if full is not None else short
                    if key not in names:
                        names[key] = is_communication_kernel(_bare(self._kernel_name(full, short)))
                    if names[key] and len(self._of_comms) < _MOST_COMMUNICATIONS:
                        self._of_comms[correlation] = None
        wanted = np.unique(np.concatenate([*blocks, np.array(pending, np.int64)]))
        # Looked up one by one, which arrays of Python do in a tenth of the time.
        self._wanted.frombytes(wanted.tobytes())
        self._ops.frombytes(np.full(len(wanted), _NO_OP, np.int64).tobytes())

    def _kernel_name(self, full: object, short: object) -> str:
        return self._texts.of(None, full) or self._texts.of(None, short) or NAMELESS

    def _host_rows(self) -> Iterator[Row]:
        """Ranges and launches in order of time, each launch with the operator around it."""
        around: dict[int, list[tuple[int, int]]] = defaultdict(list)
        labels: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        ranges, launches = self._in_order(self._ranges(), NVTX), self._in_order(self._launches(), CALLS)
        for span in heapq.merge(ranges, launches, key=lambda span: span.start_ns):
            is_range = len(span.cells) > _CELLS_OF_CALLS
            thread = thread_of(span.cells[0]) or 0
            open_ops = around[thread]
            while open_ops and open_ops[-1][0] < span.start_ns:
                open_ops.pop()
            row = self._range_row(span, thread, open_ops, labels[thread]) if is_range else None
            if not is_range:
                row = self._launch_row(span, thread, open_ops)
            if row is not None:
                self._met(span.start_ns)
                self._count += 1
                yield row

    def _met(self, start_ns: int) -> None:
        first = self._report.first_ns
        self._report.first_ns = start_ns if first is None else min(first, start_ns)

    def _in_order(self, spans: Iterable[_Span], table: str) -> Iterator[_Span]:
        waiting: list[_Span] = []
        last = -_TIME_LIMIT
        for span in spans:
            heapq.heappush(waiting, span)
            if len(waiting) > _AHEAD:
                first = heapq.heappop(waiting)
                if first.start_ns < last:
                    self._report.repair(f"rows of {table} far out of order", self._place(table, first.number))
                last = max(last, first.start_ns)
                yield first
        while waiting:
            yield heapq.heappop(waiting)

    def _ranges(self) -> Iterator[_Span]:
        columns = (
            "start", "end", "globalTid", "eventType", "domainId", "text", "textId", "jsonText", "binaryData",
            "jsonTextId",
        )  # fmt: skip
        for number, (start, end, *cells) in enumerate(self._of_process(NVTX, columns, "globalTid")):
            self._report.rows += 1
            if cells[1] not in (Domains.NESTED, Domains.FREE):
                self._report.skipped["mark, name or domain"] += 1
                continue
            times = self._times(start, end, NVTX, number)
            if times is not None:
                yield _Span(*times, number, tuple(cells))

    def _launches(self) -> Iterator[_Span]:
        columns = ("start", "end", "globalTid", "correlationId", "nameId")
        for number, (start, end, tid, correlation, name) in enumerate(self._of_process(CALLS, columns, "globalTid")):
            self._report.rows += 1
            if self._place_of(correlation) is None:
                self._report.skipped["API call that starts nothing on the device"] += 1
                continue
            times = self._times(start, end, CALLS, number)
            if times is not None:
                yield _Span(*times, number, (tid, correlation, name))

    def _times(self, start: object, end: object, table: str, number: int) -> tuple[int, int] | None:
        first, last = whole(start), whole(end)
        if first is None or last is None or not -_TIME_LIMIT < first <= last < _TIME_LIMIT:
            self._report.drop(f"row of {table} without usable times", self._place(table, number))
            return None
        return first + self._base_ns, last + self._base_ns

    def _range_row(
        self, span: _Span, thread: int, open_ops: list[tuple[int, int]], labels: list[tuple[int, str, int]]
    ) -> Row | None:
        _, kind, domain, text, text_id, json_text, blob, json_id = span.cells
        name = self._texts.of(text, text_id)
        if name is None:
            self._report.repaired[f"no text for a name in StringIds: called {NAMELESS!r}"] += 1
            name = NAMELESS
        if self._domains.is_nccl(self._pid, domain, name):
            self._note_call(name, span, thread, (blob, self._texts.of(json_text, json_id)), labels)
            return None
        if domain not in (0, None):
            self._report.skipped["range of another domain"] += 1
            return None
        named = read_name(name)
        if kind == Domains.NESTED and named.category == "op":
            open_ops.append((span.end_ns, self._count))
        elif named.step is not None:
            self.steps.append((named.step, span.start_ns, span.end_ns))
        elif named.name.startswith(_LABELS_OF_NCCL):
            labels.append((span.end_ns, named.name, span.start_ns))
            if len(self.labels) < _MOST_COMMUNICATIONS:
                self.labels.append((named.name, span.start_ns, span.end_ns, thread))
        external = self._count if named.category == "op" else None
        return (
            self._count, self._rank, named.category, named.name, span.start_ns, span.end_ns - span.start_ns, thread,
            None, None, external, named.sequence, None, None, named.label, None,
        )  # fmt: skip

    def _note_call(
        self, name: str, span: _Span, thread: int, attached: tuple[object, object], labels: list[tuple[int, str, int]]
    ) -> None:
        if len(self.calls) >= _MOST_COMMUNICATIONS:
            self._report.drop(f"more than {_MOST_COMMUNICATIONS:,} calls of NCCL", self._place(NVTX, span.number))
            return
        while labels and labels[-1][0] < span.start_ns:
            labels.pop()
        _, label, label_ns = labels[-1] if labels else (0, "", 0)
        payload = self._payloads.decoded(*attached)
        self.calls.append(
            NcclRange(
                name=name,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                thread=thread,
                payload=payload,
                label=label,
                label_ns=label_ns,
            )
        )

    def _launch_row(self, span: _Span, thread: int, open_ops: list[tuple[int, int]]) -> Row:
        _, correlation, name_id = span.cells
        op = open_ops[-1][1] if open_ops else None
        at = self._place_of(correlation)
        if op is not None and at is not None:
            self._ops[at] = op
        if correlation in self._of_comms:
            self._of_comms[correlation] = span.start_ns, thread
        name = _VERSION.sub("", self._texts.of(None, name_id) or NAMELESS)
        return (
            self._count, self._rank, "launch", name, span.start_ns, span.end_ns - span.start_ns, thread,
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
                    name = _bare(self._kernel_name(full, short))
                    self._note_kernel(name, times, known(stream), correlation)
                elif table == GRAPHS:
                    name = f"CUDA graph {graph}"
                blocks = x * y * z if all(type(n) is int and 0 < n < 2**31 for n in (x, y, z)) else None
                self._met(times[0])
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
        at = bisect_left(self._wanted, correlation)
        return at if at < len(self._wanted) and self._wanted[at] == correlation else None

    def _note_kernel(self, name: str, times: tuple[int, int], stream: int | None, correlation: object) -> None:
        if not is_communication_kernel(name) or len(self.kernels) >= _MOST_COMMUNICATIONS:
            return
        launch = self._of_comms.get(correlation) if isinstance(correlation, int) else None
        launch_ns, thread = launch or (times[0], None)
        self.kernels.append(
            CommKernel(
                name=name, start_ns=times[0], end_ns=times[1], stream=stream, external_id=None, launch_ns=launch_ns,
                launch_thread=thread,
            )
        )  # fmt: skip


_CELLS_OF_CALLS = 3


def _bare(name: str) -> str:
    """A kernel's name without its return type, which the demangled names of templates begin with."""
    return name.removeprefix("void ")
