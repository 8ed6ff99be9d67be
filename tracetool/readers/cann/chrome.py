"""Spans of the JSON timelines that Ascend's tools write, in columns; what their threads are called may stand anywhere.

A file is read once. Its spans wait on disk until all names are known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracetool.readers.cann.tracks import ABSENT, PYTHON, is_kernel_type
from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import event_scanner
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.files import ByteStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from tracetool.readers import SourceReport
    from tracetool.readers.cann.tracks import Tracks
    from tracetool.readers.files.spill import TableSpill

NAMELESS = ("", "N/A")

_SPAN, _NAMES = b'"X"', b'"M"'
# In 32 bits, -1 stands for none; as microseconds it came to lie at the second.
_NONE, _NONE_NS = 2**32 - 1, (2**32 - 1) * 1000
_FARTHEST = 2**62
_OWN = {
    "ph": ("ph", "text"), "cat": ("cat", "text"), "name": ("name", "text"), "pid": ("pid", "int"),
    "tid": ("tid", "int"), "start": ("ts", "moment"), "duration": ("dur", "time"),
}  # fmt: skip
_ARGS = {
    "called": ("name", "text"), "sort_index": ("sort_index", "int"), "connection": ("connection_id", "int"),
    "sequence": ("Sequence number", "int"), "task_type": ("Task Type", "text"), "iteration": ("Iteration ID", "int"),
    "stream": ("stream id", "int"), "source": ("src rank", "int"), "destination": ("dst rank", "int"),
    "transport": ("transport type", "text"), "link": ("link type", "text"), "size": ("size(Byte)", "int"),
}  # fmt: skip
_ONLY_NAMES = ("ph", "cat", "pid", "tid", "called", "sort_index")


def take_spans(
    path: Path,
    tracks: Tracks,
    spill: TableSpill,
    keep: frozenset[str],
    report: SourceReport,
    advance: Callable[[int], None],
) -> list[int]:
    """Read a timeline once: names go to the tracks, spans into the spill.

    Args:
        path: A list of events, bare or inside an object.
        tracks: Learns the names, and counts the spans.
        spill: Gets the spans as tables for :class:`Spans`.
        keep: What is read on request only.
        report: Told about damage, and events that are no spans.
        advance: Called with the file bytes consumed.

    Returns:
        Numbers of the tables, in file order.

    Raises:
        MalformedTrace: If there is no list of events.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    own = [Field(key, kind) for key, kind in _fields(_OWN)]
    args = [Field(key, kind, in_args=True) for key, kind in _fields(_ARGS)]
    whole = [Field("args", "json")] if "args" in keep else []
    columns = [*_OWN, *_ARGS, *(["args"] if whole else [])]
    unwanted = frozenset() if PYTHON in keep else frozenset((f'"{PYTHON}"'.encode(),))
    scanner = event_scanner([*own, *args, *whole], {_SPAN: None, _NAMES: None}, unwanted)
    numbers = []
    for scanned in ChromeTrace(ByteStream(path, advance=advance), scanner, report).tables():
        table = scanned.rename_columns(columns)
        phases = table.column("ph").combine_chunks()
        is_span = pc.equal(phases.cast(pa.string()), "X") if len(phases.dictionary) > 1 else None
        if is_span is None and phases.dictionary[0].as_py() == "M":
            _learn(tracks, table)
            continue
        if is_span is not None:
            _learn(tracks, table.filter(pc.invert(is_span)))
            table = table.filter(is_span)
        numbers.append(spill.add(_waiting(table, tracks)))
    return numbers


def _fields(named: dict[str, tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    yield from named.values()


def _learn(tracks: Tracks, table: pa.Table) -> None:
    names = ("name", "pid", "tid", "called", "sort_index")
    for row in zip(*(known(table.column(n)).to_pylist() for n in names), strict=True):
        tracks.learn(*row)


def _waiting(table: pa.Table, tracks: Tracks) -> pa.Table:
    """The spans with one number for process, thread and category, less the columns that none of them has."""
    import numpy as np
    import pyarrow as pa

    spans = SpanColumns(table)
    threads = tracks.threads_of(spans.integers("pid"), spans.integers("tid"), *spans.texts("cat"))
    types, kinds = spans.texts("task_type")
    names, called = spans.texts("name")
    computes = np.array([is_kernel_type(kind) for kind in kinds], bool)[types]
    kernels = computes & ~np.array([name in NAMELESS for name in called], bool)[names]
    tracks.count(threads, kernels)
    there = [n for n in table.column_names if n not in _ONLY_NAMES and table.column(n).null_count < len(table)]
    return table.select(there).append_column("thread", pa.array(threads)).append_column("kernel", pa.array(kernels))


def known(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without the numbers that stand for none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type != pa.int64():
        return column
    odd = pc.or_(pc.equal(column, _NONE), pc.greater_equal(pc.abs(column), _FARTHEST))
    return pc.if_else(odd, pa.scalar(None, pa.int64()), column) if pc.any(odd).as_py() else column


class SpanColumns:
    """Columns of spans.

    Args:
        table: As it lay in the spill; of what no span has there is no column.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def only(self, rows: NDArray[np.int64]) -> SpanColumns:
        """Some of the spans."""
        import pyarrow as pa

        return self if len(rows) == len(self) else SpanColumns(self.table.take(pa.array(rows)))

    def integers(self, name: str) -> NDArray[np.int64]:
        """A column of numbers, ABSENT where there is none."""
        import numpy as np
        import pyarrow.compute as pc

        if name not in self.table.column_names:
            return np.full(len(self.table), ABSENT)
        column = self.table.column(name)
        if name not in ("start", "duration"):
            column = known(column)
        values: NDArray[np.int64] = pc.fill_null(column, ABSENT).to_numpy()
        if name in ("start", "duration"):
            values = np.where((values == _NONE_NS) | (values >= _FARTHEST) | (values <= -_FARTHEST), ABSENT, values)
        return values

    @property
    def kernels(self) -> NDArray[np.bool_]:
        """Which of them compute, if they are the device's."""
        is_kernel: NDArray[np.bool_] = self.table.column("kernel").to_numpy()
        return is_kernel

    @property
    def threads(self) -> NDArray[np.int32]:
        """Numbers of their threads, as the tracks gave them."""
        numbers: NDArray[np.int32] = self.table.column("thread").to_numpy()
        return numbers

    def texts(self, name: str) -> tuple[NDArray[np.int64], list[str]]:
        """A column of text as places in a list of different texts; what is absent is the empty one."""
        import numpy as np
        import pyarrow.compute as pc

        if name not in self.table.column_names:
            return np.zeros(len(self.table), np.int64), [""]
        column = self.table.column(name).combine_chunks()
        listed = column.dictionary.to_pylist()
        if "" not in listed:
            listed.append("")
        codes = pc.fill_null(column.indices, listed.index("")).to_numpy(zero_copy_only=False)
        return codes.astype(np.int64, copy=False), listed
