"""One batch of Kineto events, column by column: which rows are spans, and what their values mean."""

from __future__ import annotations

import math
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tracetool.readers import HOST_MEMORY
from tracetool.readers.chrome import NO_CODE, Field, codes_of, filled, in_one_piece, rows_of_texts
from tracetool.readers.cuda import action_in
from tracetool.readers.kineto.comms import OF_ELEMENTS, OF_STRIDES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import FilePlace, SourceReport
    from tracetool.readers.files.spill import Repeats

ABSENT = -(2**63)
"""Stands for null in arrays of int64."""

_CATEGORY = {
    "kernel": "kernel", "Kernel": "kernel",
    "gpu_memcpy": "memcpy", "Memcpy": "memcpy",
    "gpu_memset": "memset", "Memset": "memset",
    "cuda_runtime": "launch", "cuda_driver": "launch", "Runtime": "launch",
    "xpu_runtime": "launch", "xpu_driver": "launch", "mtia_runtime": "launch", "glow_runtime": "launch",
    "privateuse1_runtime": "launch", "privateuse1_driver": "launch",
    "cpu_op": "op", "Operator": "op",
    "user_annotation": "annotation",
    "overhead": "overhead",
    "python_function": "python",
}  # fmt: skip
_CATEGORIES = ("kernel", "memcpy", "memset", "launch", "op", "annotation", "overhead", "python")
_DEVICE = 3  # the first three of them run on the device
_LAUNCH = _CATEGORIES.index("launch")
_MEMORY = "[memory]"
_HOST = 0  # c10 device type of the CPU
_FARTHEST_NS = 2**61
_DIGITS = re.compile(r"\d+")


def _argument(key: str, kind: Any = "int") -> Field:
    return Field(key, kind, in_args=True)


def fields(keep: frozenset[str]) -> list[Field]:
    """The values of an event that are read."""
    own = [
        Field("ph", "text"), Field("cat", "text"), Field("name", "text"), Field("pid", "text"), Field("tid", "int"),
        Field("ts", "time"), Field("dur", "time"),
    ]  # fmt: skip
    numbers = (
        "correlation", "stream", "device", "External id", "external id", "Sequence number", "sycl queue", "l0 queue",
        "Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id", "Addr",
        *OF_ELEMENTS, *OF_STRIDES, "Rank", "Src Rank", "Dst Rank",
    )  # fmt: skip
    texts = ("Collective name", "dtype", "Process Group Name", "Process Group Ranks", "rank", "name", "labels")
    always = (
        own
        + [_argument(k) for k in numbers]
        + [_argument(k, "text") for k in texts]
        + [_argument(k, "json") for k in ("grid", "Comms Id", "Concrete Inputs", "Input Dims", "Input type")]
    )
    return [*always, Field("args", "json")] if "args" in keep else always


def column_names(keep: frozenset[str]) -> list[str]:
    """What the columns of these values are called: names of processes are no names of events."""
    return ["process" if field.in_args and field.key == "name" else field.key for field in fields(keep)]


def wanted(keep: frozenset[str]) -> dict[bytes, frozenset[bytes] | None]:
    """Raw phases and categories that are read."""
    names = [n for n in _CATEGORY if n != "python_function" or n in keep]
    return {b'"X"': frozenset(f'"{n}"'.encode() for n in names), b'"i"': None, b'"I"': None, b'"M"': None}


class EventBatch:
    """A table of events as a scanner made it, with absolute times.

    Args:
        table: One column per field of :func:`fields`.
        base_ns: Added to its times.
        report: Told about what is dropped, repaired or skipped.
        place: Where the first of them is.
    """

    def __init__(self, table: pa.Table, base_ns: int, report: SourceReport, place: FilePlace) -> None:
        self._report = report
        self._place = place
        self._table = table
        self._columns = {name: in_one_piece(table.column(name)) for name in ("ph", "cat", "name")}
        self._names: list[str] = self._columns["name"].dictionary.to_pylist()
        self._phases: list[str] = self._columns["ph"].dictionary.to_pylist()
        self._is_span = rows_of_texts(self._phases, self._codes("ph"), "X".__eq__)
        relative = filled(table.column("ts"), ABSENT)
        self._start = relative + base_ns
        self._timed = self._check_times(relative)

    def _codes(self, name: str) -> NDArray[np.int64]:
        import numpy as np

        return codes_of(self._columns[name]).astype(np.int64, copy=False)

    def _check_times(self, relative: NDArray[np.int64]) -> NDArray[np.bool_]:
        import numpy as np

        unknown = relative == ABSENT
        zero = relative == 0
        far = ~unknown & (np.abs(np.where(unknown, 0, relative)) > _FARTHEST_NS)
        long = filled(self._table.column("dur"), ABSENT) > _FARTHEST_NS
        for reason, rows in (
            ("time is no number", unknown),
            ("time is zero", zero),
            ("time is out of range", far),
            ("duration is out of range", long & ~(unknown | zero | far)),
        ):
            count = int(np.count_nonzero(rows & self._is_span))
            if count:
                self._report.drop(reason, self._place, count)
        usable: NDArray[np.bool_] = ~(unknown | zero | far | long)
        return usable

    def memory(self) -> list[NDArray[np.int64]]:
        """Allocator records of the device: time, change, allocated, reserved, device, address; ABSENT where unknown."""
        import numpy as np

        code = self._names.index(_MEMORY) if _MEMORY in self._names else -2
        rows = ~self._is_span & (self._codes("name") == code)
        others = ~self._is_span & ~rows
        about = rows_of_texts(self._phases, self._codes("ph"), "M".__eq__)
        for reason, some in (("instants", others & ~about), ("ph M", others & about)):
            if some.any():
                self._report.skipped[reason] += int(np.count_nonzero(some))
        kinds = filled(self._table.column("Device Type"), ABSENT)
        on_device = (kinds != _HOST) & (kinds != ABSENT)
        on_host = int(np.count_nonzero(rows & ~on_device))
        if on_host:
            self._report.skipped[HOST_MEMORY] += on_host
        rows &= on_device & self._timed
        names = ("Bytes", "Total Allocated", "Total Reserved", "Device Id", "Addr")
        values = [filled(self._table.column(n), ABSENT)[rows] for n in names]
        return [self._start[rows], *values]

    def spans(self) -> EventSpans:
        """Its events with a duration that a table needs."""
        import numpy as np

        cats = self._columns["cat"].dictionary.to_pylist()
        place = np.array(
            [_CATEGORIES.index(_CATEGORY[c]) if c in _CATEGORY else NO_CODE for c in cats] + [NO_CODE], np.int32
        )
        category = place[self._codes("cat")]
        rows = np.flatnonzero(self._is_span & self._timed & (category >= 0))
        duration = filled(self._table.column("dur"), ABSENT)[rows]
        for reason, rows_wrong in (
            ("no duration: set to 0", duration == ABSENT),
            ("negative duration set to 0", (duration < 0) & (duration != ABSENT)),
        ):
            if rows_wrong.any():
                self._report.repair(reason, self._place, int(np.count_nonzero(rows_wrong)))
        return EventSpans(self._table, rows, category[rows], self._start[rows], np.maximum(duration, 0))


class EventSpans:
    """Events with a category, a start and a duration, one per row.

    Attributes:
        size: Number of them.
        start: Start, Unix time in ns.
        duration: Duration, ns.

    Args:
        table: A batch of events.
        at: Which of them these are: of the many columns of the others only some are asked for.
        category: Place in the categories of each.
        start: Start of each, Unix time in ns.
        duration: Duration of each, ns.
    """

    def __init__(
        self,
        table: pa.Table,
        at: NDArray[np.int64],
        category: NDArray[np.int32],
        start: NDArray[np.int64],
        duration: NDArray[np.int64],
    ) -> None:
        self._table = table
        self._at = at
        self._category = category
        self.size = len(start)
        self.start = start
        self.duration = duration
        self._on_device = category < _DEVICE
        self._name_column = self._texts("name")
        self._name_codes = codes_of(self._name_column)
        self._names: list[str | None] = self._name_column.dictionary.to_pylist()
        self._thread = self._integers("tid")
        self._correlation = self._integers("correlation")

    @property
    def is_identified(self) -> NDArray[np.bool_]:
        """Which of them no other event equals: by a number of their own, or as the one that a stream runs at a time."""
        is_identified: NDArray[np.bool_] = self._is_kernel | (self._correlation > 0) | (self._external > 0)
        return is_identified

    @property
    def _is_kernel(self) -> NDArray[np.bool_]:
        is_kernel: NDArray[np.bool_] = self._on_device & (self.duration > 0)
        return is_kernel

    def identity(self, repeats: Repeats) -> list[NDArray[np.int64]]:
        """All that tells one span from another.

        A stream runs no two kernels at once: theirs leaves out the numbers, which merged exports give anew.
        """
        import numpy as np

        # Without a code they have the last of the numbers.
        names = repeats.numbers_of([*self._names, None])[self._name_codes]
        process = self._texts("pid")
        processes = repeats.numbers_of([*process.dictionary.to_pylist(), None])[codes_of(process)]
        numbers = [np.where(self._is_kernel, ABSENT, column) for column in (self._correlation, self._external)]
        columns = [self._thread, self._streams, self._device, *numbers]
        return [self._category.astype(np.int64), names, processes, self.start, self.duration, *columns]

    def kept(self, keep: NDArray[np.bool_]) -> EventSpans:
        """Some of them."""
        return EventSpans(self._table, self._at[keep], self._category[keep], self.start[keep], self.duration[keep])

    def _integers(self, *keys: str) -> NDArray[np.int64]:
        """The first of several values that is there."""
        import numpy as np

        columns = [column for key in keys if (column := self._table.column(key)).null_count < len(column)]
        if not columns:
            return np.full(self.size, ABSENT)
        values, *others = (filled(column, ABSENT)[self._at] for column in columns)
        for other in others:
            values = np.where(values == ABSENT, other, values)
        return values

    def devices(self) -> dict[int, int]:
        """Number of device activities by device."""
        import numpy as np

        values = self._device[self._on_device]
        devices, counts = np.unique(values[(values >= 0) & (values < 2**31)], return_counts=True)
        return dict(zip(devices.tolist(), counts.tolist(), strict=True))

    def launches(self) -> list[NDArray[np.int64]]:
        """Correlation, start and thread of every launch that has them."""
        rows = (self._category == _LAUNCH) & (self._correlation != ABSENT) & (self._thread != ABSENT)
        return [self._correlation[rows], self.start[rows], self._thread[rows]]

    def named(self, condition: Callable[[str], object], categories: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """(name, row) of the spans of some categories whose name meets a condition."""
        import numpy as np

        codes = self._name_codes
        rows = rows_of_texts(self._names, codes, condition)
        if rows.any():
            kinds = np.array([category in categories for category in _CATEGORIES])
            for row in np.flatnonzero(rows & kinds[self._category]).tolist():
                yield str(self._names[codes[row]]), row

    def args(self, rows: Sequence[int], keys: Iterable[str]) -> Sequence[Mapping[str, Any]]:
        """Some arguments of some spans, those that are there."""
        import pyarrow as pa

        # Of many events few are asked about.
        at = pa.array(self._at[rows])
        listed: list[dict[str, Any]] = [{} for _ in rows]
        for key in keys:
            column = self._table.column(key)
            if column.null_count == len(column):
                continue
            some = in_one_piece(column).take(at)
            if pa.types.is_dictionary(some.type):
                # Arrow makes a value of each code by itself: twenty times what it takes for texts.
                some = some.cast(some.type.value_type)
            for args, value in zip(listed, some.to_pylist(), strict=True):
                if value is not None:
                    args[key] = value
        return listed

    def _texts(self, key: str) -> pa.DictionaryArray:
        import pyarrow as pa

        whole = in_one_piece(self._table.column(key))
        if self.size == len(whole):
            return whole
        codes = codes_of(whole)[self._at]
        absent = codes == NO_CODE
        indices = pa.array(codes, mask=absent if absent.any() else None)
        return pa.DictionaryArray.from_arrays(indices, whole.dictionary, safe=False)

    def thread_of(self, row: int) -> int:
        """Host thread of one span; 0 if the trace does not say."""
        thread = int(self._thread[row])
        return 0 if thread == ABSENT else thread

    def links(self, row: int) -> tuple[int | None, int | None, int | None]:
        """Stream, external id and correlation of one span on the device."""
        values = (self._streams[row], self._external[row], self._correlation[row])
        stream, external, correlation = (None if v == ABSENT else int(v) for v in values)
        return stream, external, correlation

    @cached_property
    def _device(self) -> NDArray[np.int64]:
        return self._integers("device")

    @cached_property
    def _external(self) -> NDArray[np.int64]:
        return self._integers("External id", "external id")

    @cached_property
    def _streams(self) -> NDArray[np.int64]:
        import numpy as np

        streams = self._integers("stream", "sycl queue", "l0 queue")
        return np.where(streams == ABSENT, self._thread, streams)

    def _blocks(self) -> pa.Array:
        """Thread blocks of each kernel's grid."""
        import numpy as np

        grids = self._texts("grid")
        sizes = []
        for text in grids.dictionary.to_pylist():
            numbers = [int(n) for n in _DIGITS.findall(text)[:3] if len(n) < 11]
            size = math.prod(numbers) if numbers else ABSENT
            sizes.append(size if size < 2**62 else ABSENT)
        return _masked(np.array([*sizes, ABSENT], np.int64)[codes_of(grids)])

    def _labels(self, by_name: list[str | None]) -> pa.Array:
        """The action that an annotation names."""
        import pyarrow as pa
        import pyarrow.compute as pc

        annotated = pa.array(self._category == _CATEGORIES.index("annotation"))
        labels = pa.array(by_name, pa.string()).take(self._name_column.indices)
        return pc.if_else(annotated, labels, pa.scalar(None, pa.string())).dictionary_encode()

    def rows(self, rank: int, first: int) -> pa.Table:
        """Rows of the ``events`` table.

        Args:
            rank: Global rank.
            first: Number of the first event.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        on_host = ~self._on_device
        nothing = pa.nulls(self.size, pa.dictionary(pa.int32(), pa.string()))
        labels = [action_in(name or "") for name in self._names]
        args = self._texts("args").cast(pa.string()) if "args" in self._table.column_names else None
        named = self._name_column
        if named.null_count:
            named = pc.fill_null(named.cast(pa.string()), "").dictionary_encode()
        return pa.table(
            {
                "event": np.arange(first, first + self.size),
                "rank": np.full(self.size, rank, np.int32),
                "category": pa.DictionaryArray.from_arrays(self._category, list(_CATEGORIES)),
                "name": named,
                "start_ns": self.start,
                "duration_ns": self.duration,
                "thread": _masked(self._thread, on_host),
                "stream": _masked(self._streams, self._on_device),
                "correlation": _masked(self._correlation),
                "external_id": _masked(self._external),
                "sequence_number": _masked(self._integers("Sequence number")),
                "kernel_class": nothing,
                "blocks": self._blocks(),
                "label": self._labels(labels) if any(labels) else nothing,
                "args": args if args is not None else pa.nulls(self.size, pa.string()),
            }
        )


def _masked(values: NDArray[np.int64], where: NDArray[np.bool_] | None = None) -> pa.Array:
    """An Arrow column, null where absent or not asked for."""
    import pyarrow as pa

    absent = values == ABSENT
    return pa.array(values, mask=absent if where is None else absent | ~where)
