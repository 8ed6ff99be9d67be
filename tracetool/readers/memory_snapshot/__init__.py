"""The history of torch's CUDA caching allocator, as ``torch.cuda.memory._dump_snapshot`` writes it.

A pickle of plain data: what is allocated when it was taken (``segments``), and what led there (``device_traces``, a
list per device, of the last ``max_entries`` changes). It is read by :mod:`tracetool.readers.memory_snapshot.pickle`,
whole: nothing of a pickle is known before its end. Its times are Unix time in whole microseconds.

It adds to the Kineto trace of its rank, so it has no events of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tracetool.errors import IngestError, MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import OTHER_MEMORY, Claim, FilePlace, Identity, Source, rows_table
from tracetool.readers.files import HEAD_BYTES, ByteStream
from tracetool.readers.memory_snapshot.pickle import MOST_BYTES, is_pickle, plain_data
from tracetool.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers import SourceReport


COMPONENT = "torch snapshot"
_HEAD_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
_CHUNK_ROWS = 1 << 16
_KEYS = (b"segments", b"device_traces")
_ALLOCATED = "active_allocated"
_BLOCK = 512
"""The allocator's smallest block: sizes are multiples of it (kMinBlockSize)."""
_NS_LIMIT = 2**62
_OF_BLOCKS = {"alloc": 1, "free_requested": -1}
_OF_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
# A free is counted when it is requested, as torch's own counters do; it completes when streams are done with it.
_NO_CHANGE = frozenset({"free_completed", "snapshot", "workspace_snapshot"})


class _Change(NamedTuple):
    """One entry of the history."""

    time_ns: int
    address: int | None
    allocated: int
    reserved: int


class MemorySnapshotReader:
    """Reads snapshots of torch 2.1 and newer; see :class:`tracetool.readers.Reader`."""

    name = "memory_snapshot"

    def find(self, files: Sequence[Path]) -> Claim:
        """Pickles of a dict that names segments or traces of devices; nothing is unpickled yet."""
        streams = ((file, ByteStream(file)) for file in files)
        pickles = [
            file for file, stream in streams
            if is_pickle(stream.head(HEAD_BYTES)) and any(key in stream.head(_HEAD_BYTES) for key in _KEYS)
        ]  # fmt: skip
        return Claim([Source(self.name, file, (file,), complements=True) for file in pickles])

    def identify(self, source: Source) -> Identity:
        """Nothing: a snapshot does not say whose it is."""
        del source
        return Identity(None)

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Rows of ``memory``, in the order of the history.

        Raises:
            MalformedTrace: If it is cut off, too large, or holds anything but plain data.
            IngestError: If it holds no history.
        """
        del identity, keep
        snapshot = _Snapshot(_content(source, advance), str(source.path), report)
        rows: list[tuple[object, ...]] = []
        for row in snapshot.rows(rank):
            rows.append(row)
            if len(rows) == _CHUNK_ROWS:
                yield "memory", rows_table("memory", rows)
                rows = []
        yield "memory", rows_table("memory", rows)


READER = MemorySnapshotReader()


def _content(source: Source, advance: Callable[[int], None]) -> bytes:
    stream = ByteStream(source.path, advance=advance)
    content = bytearray()
    for block in stream.blocks(_BLOCK_BYTES):
        content += block
        if len(content) > MOST_BYTES:
            break  # refused by its size
    if stream.broken:
        raise MalformedTrace(f"{source.path}: damaged after {len(content):,} bytes: {stream.broken}.")
    return bytes(content)


class _Snapshot:
    """What a snapshot tells of the device it is about.

    Args:
        content: The pickle.
        name: What to call it in messages.
        report: Told about unusable entries.
    """

    def __init__(self, content: bytes, name: str, report: SourceReport) -> None:
        self._name = name
        self._report = report
        value = plain_data(content, name)
        top = value if isinstance(value, dict) else {}
        traces = [_dicts(trace) for trace in _items(top.get("device_traces"))]
        segments = _dicts(top.get("segments"))
        report.rows += sum(map(len, traces))
        lengths = [len(trace) for trace in traces]
        if not any(lengths):
            raise IngestError(
                f"{name} holds no history, only what was allocated when it was taken.",
                hint="call torch.cuda.memory._record_memory_history() before the steps, _dump_snapshot() after them",
            )
        self._device = lengths.index(max(lengths))
        report.device = self._device
        self._history = traces[self._device]
        if others := sum(lengths) - max(lengths):
            report.skipped[OTHER_MEMORY] += others
        self._segments = [s for s in segments if _whole(s.get("device", 0)) == self._device]
        self._live = _live_blocks(self._segments)
        if (count := len(_items(top.get("external_annotations")))) > 0:
            report.skipped["annotation beside the history"] += count
        self._record_settings(top.get("allocator_settings"))

    def rows(self, rank: int) -> Iterator[tuple[object, ...]]:
        """Rows of ``memory``: levels are counted back from what the segments hold at the end."""
        changes = self._changes()
        allocated, reserved = self._at_end()
        if allocated is not None:
            allocated -= sum(change.allocated for change in changes)
        if reserved is not None:
            reserved -= sum(change.reserved for change in changes)
        if allocated is not None and allocated < 0:
            self._report.note(
                SourceCode.LEVELS_APPROXIMATE,
                f"its history allocates {format_size(-allocated)} more than its segments hold: sizes are rounded "
                "otherwise than assumed, so levels may be off by that",
            )
        for change in changes:
            allocated = None if allocated is None else allocated + change.allocated
            reserved = None if reserved is None else reserved + change.reserved
            yield rank, COMPONENT, change.time_ns, change.allocated, allocated, reserved, change.address

    def _at_end(self) -> tuple[int | None, int | None]:
        sizes = [(_whole(s.get("allocated_size")), _whole(s.get("total_size"))) for s in self._segments]
        if not sizes:
            self._report.note(
                SourceCode.LEVELS_UNKNOWN,
                "it lists no segments: how much was allocated is unknown, only how it changed",
            )
            return None, None
        allocated, reserved = zip(*sizes, strict=True)
        return (
            None if None in allocated else sum(n for n in allocated if n is not None),
            None if None in reserved else sum(n for n in reserved if n is not None),
        )

    def _changes(self) -> list[_Change]:
        changes: list[_Change] = []
        last = 0
        out_of_memory: list[dict[Any, Any]] = []
        for number, entry in enumerate(self._history, 1):
            action, time = entry.get("action"), _whole(entry.get("time_us"))
            size, address = _whole(entry.get("size")), _whole(entry.get("addr"))
            if action in _NO_CHANGE:
                self._report.skipped[f"{action} in the history"] += 1
            elif action == "oom":
                out_of_memory.append(entry)
            elif action not in _OF_BLOCKS and action not in _OF_SEGMENTS:
                self._drop("action that is not known", number)
            elif time is None or not 0 < time * 1000 < _NS_LIMIT:
                self._drop("entry without a time", number)
            elif size is None or not 0 <= size < _NS_LIMIT or (action in _OF_BLOCKS and address is None):
                self._drop("entry without a size or address", number)
            else:
                if time * 1000 + 999 < last:
                    self._report.repair("time before that of the entry ahead of it: set to follow it", self._at(number))
                # Entries of one microsecond stay in their order.
                last = max(time * 1000, last + 1)
                of_blocks, of_segments = _OF_BLOCKS.get(action, 0), _OF_SEGMENTS.get(action, 0)
                rounded = max(_BLOCK, -(-size // _BLOCK) * _BLOCK)
                changes.append(_Change(last, address if of_blocks else None, of_blocks * rounded, of_segments * size))
        if not changes:
            raise IngestError(f"{self._name}: none of its {len(self._history):,} entries can be used.")
        self._record_out_of_memory(out_of_memory)
        return self._with_true_sizes(changes)

    def _with_true_sizes(self, changes: list[_Change]) -> list[_Change]:
        """What is still allocated at the end has its size in a segment; the history says only what was asked for."""
        live = dict(self._live)
        for index in range(len(changes) - 1, -1, -1):
            change = changes[index]
            if change.address is None:
                continue
            size = live.pop(change.address, None)
            if size is not None and change.allocated > 0:
                changes[index] = change._replace(allocated=size)
        return changes

    def _record_out_of_memory(self, entries: Sequence[dict[Any, Any]]) -> None:
        if entries:
            wanted, free = (_whole(entries[0].get(key)) or 0 for key in ("size", "device_free"))
            self._report.note(
                SourceCode.OUT_OF_MEMORY,
                f"it ran out of memory {len(entries)} times: the first time {format_size(wanted)} were asked for and "
                f"{format_size(free)} of the device were free",
            )

    def _record_settings(self, settings: object) -> None:
        rounding = settings.get("roundup_power2_divisions") if isinstance(settings, dict) else None
        values = rounding.values() if isinstance(rounding, dict) else ()
        if any((_whole(value) or 0) > 1 for value in values):
            self._report.note(
                SourceCode.LEVELS_APPROXIMATE,
                "its allocator rounds sizes up to divisions of powers of two, which the history does not show: "
                "levels inside it are lower bounds",
            )

    def _drop(self, reason: str, number: int) -> None:
        self._report.drop(reason, self._at(number))

    def _at(self, number: int) -> FilePlace:
        return FilePlace(f"{self._name}: device_traces[{self._device}]", number, "event")


def _live_blocks(segments: Sequence[dict[Any, Any]]) -> dict[int, int]:
    """Sizes of the blocks that are allocated, by address."""
    sizes = {}
    for segment in segments:
        at = _whole(segment.get("address"))
        for block in _dicts(segment.get("blocks")):
            size, address = _whole(block.get("size")), _whole(block.get("address"))
            # Old releases leave the address out: blocks follow one another.
            address = at if address is None else address
            if address is None or size is None:
                break
            at = address + size
            if block.get("state") == _ALLOCATED:
                sizes[address] = size
    return sizes


def _items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _dicts(value: object) -> list[dict[Any, Any]]:
    return [item for item in _items(value) if isinstance(item, dict)]


def _whole(value: object) -> int | None:
    """A whole number that fits a column."""
    return value if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63 else None
