"""Rows of the events table, out of an export: what a process ran on its device, what launched it, what surrounded that.

Ranges and launches of a thread are laid beside each other in order of time, so that each launch is known to the
innermost operator around it. Correlation ids are unique per process only, and rows of a table may be a little out of
order. All of it goes by columns: a capture has tens of millions of rows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracetool.readers import SYNCHRONISATIONS, FilePlace
from tracetool.readers.cann.db import NO_NUMBERS, known, whole
from tracetool.readers.cuda import CommKernel, is_communication_kernel
from tracetool.readers.nsys.capture import (
    CALLS,
    COPIES,
    FILLS,
    GRAPHS,
    KERNELS,
    MEMORY_USAGE,
    NVTX,
)
from tracetool.readers.nsys.columns import coded, table_of, values_of
from tracetool.readers.nsys.correlations import NO_CORRELATION, CommLaunches, Correlations
from tracetool.readers.nsys.nvtx import EventType, Named
from tracetool.readers.nsys.posts import MOST_KERNELS, CommKernels
from tracetool.readers.nsys.ranges import NAMELESS, OF_RANGES, ProgramRanges, threads_of
from tracetool.readers.nsys.spans import OpenOps, in_order, side_by_side
from tracetool.readers.nsys.stored import ProcessRows, Texts
from tracetool.tables.run import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tracetool.readers import SourceReport
    from tracetool.readers.nsys.capture import ProcessSource
    from tracetool.readers.nsys.columns import Flags, Kind, Numbers
    from tracetool.readers.nsys.stored import Stored

    Row = tuple[object, ...]

_TIME_LIMIT = 2**61
_MOST_BLOCKS = 2**31
_VERSION = re.compile(r"_v\d+$|_ptsz$")
_WAIT = re.compile(SYNCHRONISATIONS)
_COPIES = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
_OF_HOST = (0, 1)
"""Pageable and pinned memory in ``ENUM_CUDA_MEM_KIND``."""

_CATEGORY = {KERNELS: "kernel", COPIES: "memcpy", FILLS: "memset", GRAPHS: "kernel"}
_NONE = -(2**63)
"""Stands for null in arrays of int64."""

_OF_CALLS: dict[str, Kind] = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), "number")
_OF_DEVICE: dict[str, Kind] = dict.fromkeys(
    (
        "start", "end", "streamId", "correlationId", "demangledName", "shortName", "gridX", "gridY", "gridZ",
        "copyKind", "graphId",
    ),
    "number",
)  # fmt: skip


class ProcessEvents:
    """The events of one process of an export.

    Args:
        stored: The export.
        own: The process.
        rank: Global rank.
        base_ns: Added to all times.
        report: Told about what is dropped, repaired or skipped.

    Attributes:
        ranges: What its ranges tell, once its rows were read.
        kernels: Communication kernels with their launches.
    """

    def __init__(self, stored: Stored, own: ProcessSource, rank: int, base_ns: int, report: SourceReport) -> None:
        self.kernels = CommKernels()
        self._stored, self._process, self._rank, self._base_ns = stored, ProcessRows(own.pid), rank, base_ns
        self._report = report
        self._texts = Texts(stored)
        self.ranges = ProgramRanges(stored, self._texts, own.domains, report)
        self._count = 0
        self._correlations, self._ops = Correlations(), OpenOps()
        self._communicating = CommLaunches()

    def tables(self) -> Iterator[pa.Table]:
        """Rows of ``events``: ranges and launches, then what ran on the device."""
        self._note_device()
        nothing = tuple(table_of({}, {**kinds, "number": "number"}, 0) for kinds in (OF_RANGES, _OF_CALLS))
        for ranges, calls in side_by_side(self._ranges(), self._launches(), *nothing):
            yield from self._shown(self._host_table(ranges, calls))
        self.ranges.close()
        for table in _CATEGORY:
            for rows in self._spans(table, _OF_DEVICE, "globalPid"):
                yield from self._shown(self._device_table(table, rows))

    def _shown(self, rows: pa.Table) -> Iterator[pa.Table]:
        if not len(rows):
            return
        self._count += len(rows)
        start_ns, first = int(pc.min(rows["start_ns"]).as_py()), self._report.first_ns
        self._report.first_ns = start_ns if first is None else min(first, start_ns)
        yield rows

    def memory_rows(self) -> Iterator[Row]:
        """Rows of ``memory``: what the whole process took from the driver and gave back."""
        columns = "start", "bytes", "memoryOperationType", "address", "memKind"
        usage = self._stored.select(MEMORY_USAGE, columns, ("globalPid", self._process))
        for start, size, kind, address, held_where in usage:
            self._report.rows += 1
            moment, bytes_, freed = whole(start), known(size), whole(kind)
            if moment is None or abs(moment) >= _TIME_LIMIT or bytes_ is None or freed not in (0, 1):
                self._report.drop("memory usage without time, size or kind", self._place(MEMORY_USAGE))
                continue
            if whole(held_where) in _OF_HOST:
                self._report.skipped["memory of the host"] += 1
                continue
            delta = -bytes_ if freed else bytes_
            yield self._rank, "APP", moment + self._base_ns, delta, None, None, known(address)

    def _place(self, table: str, row: int = 0) -> FilePlace:
        return FilePlace(f"{self._stored.path}: {table}", row, "row")

    def _note_device(self) -> None:
        """Which correlations started something on the device, and which of those communicate."""
        kinds: dict[str, Kind] = dict.fromkeys(("correlationId", "demangledName", "shortName"), "number")
        for table in _CATEGORY:
            for rows in self._stored.blocks(table, kinds, ("globalPid", self._process)):
                ids = values_of(rows, "correlationId", NO_CORRELATION)
                self._correlations.add(ids)
                if table == KERNELS:
                    names, codes = self._kernel_names(rows)
                    self._communicating.add(ids[np.array([is_communication_kernel(n) for n in names], bool)[codes]])

    def _kernel_names(self, rows: pa.Table) -> tuple[list[str], Numbers]:
        """What kernels are called, each name once, and which of them each row has."""
        (fulls, full), (shorts, short) = coded(rows, "demangledName"), coded(rows, "shortName")
        pairs = pa.array(full * len(shorts) + short).dictionary_encode()
        names = [
            self._texts.of(None, fulls[pair // len(shorts)]) or self._texts.of(None, shorts[pair % len(shorts)])
            for pair in pairs.dictionary.to_pylist()
        ]
        return [_bare(name or NAMELESS) for name in names], pairs.indices.to_numpy()

    def _ranges(self) -> Iterator[pa.Table]:
        return in_order(self._spans(NVTX, OF_RANGES, "globalTid"), self._late(NVTX))

    def _launches(self) -> Iterator[pa.Table]:
        return in_order(self._spans(CALLS, _OF_CALLS, "globalTid"), self._late(CALLS))

    def _late(self, table: str) -> Callable[[int, int], None]:
        def late(row: int, count: int) -> None:
            self._report.repair(f"rows of {table} far out of order", self._place(table, row), count)

        return late

    def _spans(self, table: str, kinds: Mapping[str, Kind], owner: str) -> Iterator[pa.Table]:
        """The rows of a table that are wanted and have times, numbered."""
        first = 0
        for rows in self._stored.blocks(table, kinds, (owner, self._process)):
            count = len(rows)
            numbered = rows.append_column("number", pa.array(np.arange(first, first + count)))
            first, self._report.rows = first + count, self._report.rows + count
            is_wanted, others = self._wanted(table, rows)
            if not is_wanted.all():
                self._report.skipped[others] += int(count - is_wanted.sum())
                numbered = numbered.filter(pa.array(is_wanted))
            yield self._timed(table, numbered)

    def _wanted(self, table: str, rows: pa.Table) -> tuple[Flags, str]:
        """Which rows are, and what the others are called."""
        if table == NVTX:
            return np.isin(
                values_of(rows, "eventType", _NONE), (EventType.NESTED, EventType.FREE)
            ), "mark, name or domain"
        if table == CALLS:
            names, codes = self._call_names(rows)
            is_wait = np.array([_WAIT.match(name) is not None for name in names], bool)[codes]
            ids = values_of(rows, "correlationId", NO_CORRELATION)
            return is_wait | self._correlations.among(ids), "API call that starts nothing on the device"
        return np.ones(len(rows), bool), ""

    def _timed(self, table: str, rows: pa.Table) -> pa.Table:
        """Rows with usable times, in Unix time."""
        start, end = values_of(rows, "start", _NONE), values_of(rows, "end", _NONE)
        is_timed = (start > -_TIME_LIMIT) & (start <= end) & (end < _TIME_LIMIT)
        if not is_timed.all():
            lost = np.flatnonzero(~is_timed)
            place = self._place(table, int(rows["number"][int(lost[0])].as_py()))
            self._report.drop(f"row of {table} without usable times", place, len(lost))
            rows, start, end = rows.filter(pa.array(is_timed)), start[is_timed], end[is_timed]
        for name, times in (("start", start), ("end", end)):
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(times + self._base_ns))
        return rows

    def _host_table(self, ranges: pa.Table, calls: pa.Table) -> pa.Table:
        """Ranges and launches in order of time, each launch with the operator around it."""
        own, names = self.ranges.own(ranges)
        calls = self._first_launches(calls)
        columns = [(values_of(rows, "start", 0), values_of(rows, "end", 0), threads_of(rows)) for rows in (own, calls)]
        start, end, thread = map(np.concatenate, zip(*columns, strict=True))
        count, ids = len(own), values_of(calls, "correlationId", NO_CORRELATION)
        order = np.argsort(start, kind="stable")
        events = np.empty(len(order), np.int64)
        events[order] = np.arange(self._count, self._count + len(order))
        is_op = np.array([named.category == "op" for named in names.named], bool)[names.codes]
        is_call = np.arange(len(order)) >= count
        is_nested = is_call.copy()
        is_nested[:count] = is_op & (values_of(own, "eventType", 0) == EventType.NESTED)
        rows = order[is_nested[order]]
        around = np.full(len(order), _NONE)
        around[rows[is_call[rows]]] = self._ops.around(
            start[rows], end[rows], thread[rows], events[rows], is_call[rows]
        )
        is_launch = self._correlations.among(ids)
        self._correlations.surround(ids[is_launch], around[count:][is_launch])
        self._communicating.note(ids, start[count:], thread[count:])
        around[:count] = np.where(is_op, events[:count], _NONE)
        called, codes = self._call_names(calls)
        return self._table(
            [*names.named, *(Named("launch", name) for name in called)],
            np.concatenate([names.codes, codes + len(names.named)])[order],
            start=start[order], end=end[order], thread=thread[order], external_id=around[order],
            correlation=np.concatenate([np.full(count, _NONE), ids])[order],
            sequence_number=np.concatenate([names.sequence, np.full(len(ids), _NONE)])[order],
        )  # fmt: skip

    def _first_launches(self, calls: pa.Table) -> pa.Table:
        ids = values_of(calls, "correlationId", NO_CORRELATION)
        is_launch = self._correlations.among(ids)
        is_first = np.ones(len(calls), bool)
        is_first[is_launch] = self._correlations.launched_first(ids[is_launch])
        if not is_first.all():
            reason = "launch whose correlation an earlier one has"
            self._report.drop(reason, self._place(CALLS), int((~is_first).sum()))
        return calls.filter(pa.array(is_first))

    def _call_names(self, calls: pa.Table) -> tuple[list[str], Numbers]:
        numbers, codes = coded(calls, "nameId")
        return [_VERSION.sub("", self._texts.of(None, number) or NAMELESS) for number in numbers], codes

    def _device_table(self, table: str, rows: pa.Table) -> pa.Table:
        ids = values_of(rows, "correlationId", NO_CORRELATION)
        start, end, stream = values_of(rows, "start", 0), values_of(rows, "end", 0), _known(rows, "streamId")
        if table == KERNELS:
            names, codes = self._kernel_names(rows)
            communicates = np.array([is_communication_kernel(name) for name in names], bool)[codes]
            for row in np.flatnonzero(communicates).tolist():
                self._note_kernel(names[codes[row]], int(start[row]), int(end[row]), int(stream[row]), int(ids[row]))
        else:
            numbers, codes = coded(rows, "graphId" if table == GRAPHS else "copyKind")
            names = [_DEVICE_NAMES[table](number) for number in numbers]
        ops = self._correlations.ops_around(ids)
        return self._table(
            [Named(_CATEGORY[table], name) for name in names], codes, start=start, end=end, stream=stream,
            correlation=_known(rows, "correlationId"), external_id=np.where(ops < 0, _NONE, ops), blocks=_blocks(rows),
        )  # fmt: skip

    def _note_kernel(self, name: str, start: int, end: int, stream: int, correlation: int) -> None:
        if self.kernels.count >= MOST_KERNELS:
            reason = f"more than {MOST_KERNELS:,} communication kernels: no rows in comms"
            self._report.drop(reason, self._place(KERNELS))
            return
        launch_ns, thread = self._communicating.of(correlation) or (start, None)
        self.kernels.add(
            CommKernel(
                name=name, start_ns=start, end_ns=end, stream=None if stream == _NONE else stream, external_id=None,
                launch_ns=launch_ns, launch_thread=thread,
            )
        )  # fmt: skip

    def _table(
        self, named: list[Named], codes: NDArray[Any], *, start: Numbers, end: Numbers, **optional: Numbers
    ) -> pa.Table:
        """Rows of ``events``; of optional columns a stand-in is null."""
        count = len(codes)
        columns = {
            "event": pa.array(np.arange(self._count, self._count + count)),
            "rank": pa.array(np.full(count, self._rank, np.int32)),
            "start_ns": pa.array(start),
            "duration_ns": pa.array(end - start),
        }
        texts: dict[str, list[str | None]] = {
            "category": [n.category for n in named],
            "name": [n.name for n in named],
            "label": [n.label for n in named],
        }
        columns |= {name: _dictionary(each, codes) for name, each in texts.items()}
        columns |= {name: pa.array(values, mask=values < 0) for name, values in optional.items()}
        schema = TABLES["events"].arrow_schema()
        absent = (pa.nulls(count, field.type) for field in schema)
        return pa.Table.from_arrays(
            [columns.get(field.name, nothing) for field, nothing in zip(schema, absent, strict=True)], schema=schema
        )


def _dictionary(texts: Sequence[str | None], codes: NDArray[Any]) -> pa.Array:
    """A column of texts, each of which is there once."""
    shown = [None if text is None else text.encode("utf-8", "backslashreplace").decode() for text in texts]
    encoded = pa.array(shown, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(codes)), encoded.dictionary)


def _known(rows: pa.Table, name: str) -> Numbers:
    """Numbers of a column; those that mean that there is none are null, as for ``known``."""
    numbers = values_of(rows, name, _NONE)
    return np.where((numbers < 0) | np.isin(numbers, list(NO_NUMBERS)), _NONE, numbers)


def _blocks(rows: pa.Table) -> Numbers:
    """Blocks in the grid of each row."""
    sides = [values_of(rows, name, 0) for name in ("gridX", "gridY", "gridZ")]
    is_size = np.all([(side > 0) & (side < _MOST_BLOCKS) for side in sides], axis=0)
    x, y, z = (np.where(is_size, side, 0) for side in sides)
    is_size &= x.astype(float) * y * z < _TIME_LIMIT
    return np.where(is_size, x * y * z, _NONE)


def _bare(name: str) -> str:
    """A kernel's name without its return type, which the demangled names of templates begin with."""
    return name.removeprefix("void ")


_DEVICE_NAMES: dict[str, Callable[[int | None], str]] = {
    COPIES: lambda kind: f"Memcpy {_COPIES.get(kind or 0, '?')}", FILLS: lambda _: "Memset",
    GRAPHS: lambda graph: f"CUDA graph {graph}",
}  # fmt: skip
