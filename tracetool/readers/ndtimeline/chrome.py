"""Chrome timelines of labelled operations: a bare array of events, or an object with ``traceEvents``.

NDTimeline writes the rank into every event (args ``rank``, ``step``, ``pp``, ``tp``; pid is the DP rank).
The straggler analysis writes one thread per rank and class of operations and names the threads; its rank
is the thread over the number of classes. Times are microseconds.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tracetool.errors import MalformedTrace
from tracetool.readers import FilePlace, SourceReport
from tracetool.readers.chrome import Field
from tracetool.readers.chrome.compiled import event_scanner
from tracetool.readers.chrome.scan import ChromeTrace
from tracetool.readers.files import HEAD_BYTES, ByteStream
from tracetool.readers.files.spill import Spill
from tracetool.readers.ndtimeline.layout import (
    BACKWARD,
    COMPUTE,
    FORWARD,
    TIME_LIMIT_NS,
    JobLayout,
    Operation,
    RankPlace,
    is_known,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_HEAD_BYTES = 1 << 16
_BOM = b"\xef\xbb\xbf"
_ARRAY = re.compile(rb'^\s*(?:\[|\{.*?"traceEvents"\s*:\s*\[)', re.DOTALL)
_UNPLACED = "event without rank, stage or step"
_THREAD = re.compile(r"^PP rank (\d+), TP rank (\d+), (\S.*)$")
_SAME_DURATIONS = 8
_ABSENT = -(2**63)
_STEP = 6  # among the columns of usable operations
_NUMBERS = ("rank", "step", "pp", "tp", "seq_id", "model_chunk", "mb_id")
_FIELDS = (
    Field("ph", "text"), Field("cat", "text"), Field("name", "text"), Field("pid", "int"), Field("tid", "int"),
    Field("ts", "time"), Field("dur", "time"), *(Field(key, "int", in_args=True) for key in _NUMBERS),
    Field("name", "text", in_args=True),
)  # fmt: skip
_COLUMNS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", *_NUMBERS, "called")


def opens_labelled(path: Path) -> bool:
    """Whether the first span at the head of the file is one of the labelled operations."""
    stream = ByteStream(path)
    known = _opens_labelled(stream.head(HEAD_BYTES))
    return bool(_opens_labelled(stream.head(_HEAD_BYTES)) if known is None else known)


def _opens_labelled(head: bytes) -> bool | None:
    """The same of the beginning of a file; None if its first span lies behind."""
    head = head.removeprefix(_BOM)
    match = _ARRAY.match(head)
    if match is None:
        return None
    text = head[match.end() :].decode("utf-8", errors="replace")
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        if not isinstance(event, dict):
            return False
        if event.get("ph") == "X":
            return is_known(event.get("cat", event.get("name"))) and is_known(event.get("name"))
    return None


class _Spans(NamedTuple):
    """Columns of spans; what is absent is negative, absent times are lower than any. ``at`` counts from 1."""

    at: Integers
    name: Integers
    pid: Integers
    tid: Integers
    start: Integers
    duration: Integers
    rank: Integers
    step: Integers
    pp: Integers
    tp: Integers
    order: Integers
    chunk: Integers
    microbatch: Integers


class SpilledEvents:
    """The events of one file, read once; they wait on disk until a rank asks for its own.

    Args:
        path: Chrome-trace JSON, plain or compressed.

    Raises:
        MalformedTrace: If it holds no list of events.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: dict[str, int] = {}
        self._spans = Spill(len(_Spans._fields))
        self._threads: dict[int, tuple[int, RankPlace]] = {}
        self._everyone = SourceReport()
        self._of_rank: dict[int, SourceReport] = defaultdict(SourceReport)
        self._durations: dict[str, tuple[int, int, int]] = {}
        self._read()
        self._known = [is_known(name) for name in self._names]
        for spans in map(_Spans._make, self._spans.blocks()):
            self._judge(spans)

    def record_losses(self, rank: int | None, report: SourceReport, *, strays: bool = False) -> None:
        """Add what was met to a report, with the numbers of events or the bytes of what cannot be used.

        Args:
            rank: Global rank; None for all ranks.
            report: Added to.
            strays: Whether to count what belongs to no rank, too.
        """
        own = self._of_rank.values() if rank is None else [self._of_rank[rank]] if rank in self._of_rank else []
        for some in [*own, *([self._everyone] if strays or rank is None else [])]:
            _add(report, some)

    def usable(self, rank: int | None) -> Iterator[list[Integers]]:
        """The usable operations of one rank, or of all, as columns for :meth:`operations_of`."""
        import numpy as np

        for spans in map(_Spans._make, self._spans.blocks()):
            who = self._placed(spans)
            known = np.array(self._known, bool)[spans.name]
            mine = known & (spans.start > _ABSENT) & (spans.duration > _ABSENT) & (who.rank >= 0) & (spans.step >= 0)
            if rank is not None:
                mine &= who.rank == rank
            chosen = (
                *who, spans.at, spans.name, spans.step, spans.start, np.maximum(spans.duration, 0), spans.order,
                spans.chunk, spans.microbatch,
            )  # fmt: skip
            yield [column[mine] for column in chosen]

    def operations_of(self, columns: Iterable[Integers]) -> Iterator[Operation]:
        """The operations that :meth:`usable` gave."""
        rows = zip(*(column.tolist() for column in columns), strict=True)
        names = list(self._names)
        for of, dp, pp, tp, at, name, step, start, duration, order, chunk, microbatch in rows:
            yield Operation(
                place=FilePlace(str(self._path), at, "event"), rank=of, where=RankPlace(dp, pp, _number(tp)),
                step=step, name=names[name], start_ns=start, duration_ns=duration, order=_number(order),
                chunk=_number(chunk), stage=None,
                microbatch=_number(microbatch) if names[name] in COMPUTE else None,
            )  # fmt: skip

    @cached_property
    def layout(self) -> JobLayout:
        """What the timeline says as a whole.

        Raises:
            MalformedTrace: If no event can be used.
        """
        layout = JobLayout()
        for columns in self.usable(None):
            for operation in self.operations_of(columns):
                layout.take(operation)
        unplaced = sum(report.dropped[_UNPLACED] for report in self._of_rank.values())
        layout.unplaced = self._everyone.dropped.total() + unplaced
        if not layout.steps:
            raise MalformedTrace(
                f"{self._path}: no event names a rank, a step and a time.", hint="export the timeline again"
            )
        return layout.done()

    def is_simulated(self) -> bool:
        """Whether all forwards last equally long, and all backwards: no measurement gives that."""
        ranges = [self._durations[name] for name in (FORWARD, BACKWARD) if name in self._durations]
        return bool(ranges) and all(low == high and count >= _SAME_DURATIONS for low, high, count in ranges)

    def _read(self) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        named: dict[int, tuple[int, int, int, str]] = {}
        scanner = event_scanner(_FIELDS, {b'"X"': None, b'"M"': None})
        count = 0
        for scanned in ChromeTrace(ByteStream(self._path), scanner, self._everyone).tables():
            table = scanned.rename_columns(_COLUMNS)
            is_span = pc.equal(table.column("ph").cast(pa.string()), "X")
            named |= _threads_in(table.filter(pc.invert(is_span)))
            at = np.arange(count + 1, count + 1 + len(table))[is_span.to_numpy()]
            count += len(table)
            self._take(table.filter(is_span), at)
        classes = len({kind for *_, kind in named.values()})
        self._threads = {tid: (tid // classes, RankPlace(dp, pp, tp)) for tid, (dp, pp, tp, _) in named.items()}

    def _take(self, table: pa.Table, at: Integers) -> None:
        import numpy as np

        encoded = table.column("name").combine_chunks()
        numbers = [self._names.setdefault(name, len(self._names)) for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
        names = np.array([*numbers, self._names.setdefault("", len(self._names))], np.int64)[codes]
        columns = [_integers(table, key, 2**31) for key in ("pid", "tid")]
        columns += [_integers(table, key, TIME_LIMIT_NS) for key in ("ts", "dur")]
        columns += [_integers(table, key, 2**31) for key in _NUMBERS]
        spans = _Spans._make((at, names, *columns))
        self._spans.add(spans)
        for name in (FORWARD, BACKWARD):
            durations = spans.duration[names == self._names.get(name, -1)]
            if len(durations):
                low, high, count = self._durations.get(name, (2**63, -(2**63), 0))
                low, high = min(low, int(durations.min())), max(high, int(durations.max()))
                self._durations[name] = (low, high, count + len(durations))

    def _placed(self, spans: _Spans) -> _Places:
        """Rank and coordinates of each span: those it names, else those of its thread; rank -1 if neither tells."""
        import numpy as np

        direct = (spans.rank >= 0) & (spans.pp >= 0) & (spans.pid >= 0)
        places = _Places(np.where(direct, spans.rank, -1), spans.pid.copy(), spans.pp.copy(), spans.tp.copy())
        for tid in np.unique(spans.tid[~direct]).tolist():
            if tid in self._threads:
                rank, where = self._threads[tid]
                rows = ~direct & (spans.tid == tid)
                for column, value in zip(places, (rank, *where), strict=True):
                    column[rows] = -1 if value is None else value
        return places

    def _judge(self, spans: _Spans) -> None:
        """Count what each rank has, and what of it cannot be used."""
        import numpy as np

        rank = self._placed(spans).rank
        known = np.array(self._known, bool)[spans.name]
        whole = (rank >= 0) & (spans.step >= 0)
        timed = (spans.start > _ABSENT) & (spans.duration > _ABSENT)
        dropped = (
            (_UNPLACED, ~whole),
            ("event of an unknown operation", whole & ~known),
            ("time is no number", whole & known & ~timed),
        )
        for of in np.unique(rank).tolist():
            mine = rank == of
            report = self._everyone if of < 0 else self._of_rank[of]
            if of >= 0:
                # Every event of the file was counted for everyone.
                report.rows += int(np.count_nonzero(mine))
                self._everyone.rows -= int(np.count_nonzero(mine))
            for reason, rows in dropped:
                if count := int(np.count_nonzero(rows & mine)):
                    report.drop(reason, self._place(spans, rows & mine), count)
            negative = mine & whole & known & timed & (spans.duration < 0)
            if count := int(np.count_nonzero(negative)):
                report.repair("negative duration set to 0", self._place(spans, negative), count)

    def _place(self, spans: _Spans, rows: NDArray[np.bool_]) -> FilePlace:
        return FilePlace(str(self._path), int(spans.at[rows][0]), "event")


class _Places(NamedTuple):
    """Columns of ranks and their coordinates."""

    rank: Integers
    dp: Integers
    pp: Integers
    tp: Integers


@lru_cache(maxsize=16)
def timeline_of(path: Path, version: tuple[int, int]) -> SpilledEvents:  # noqa: ARG001 - part of the cache's key
    """A timeline, read once for all its ranks.

    Args:
        path: The file.
        version: Size and time of change, so that a changed file is read anew.

    Raises:
        MalformedTrace: If it holds no list of events.
    """
    return SpilledEvents(path)


def by_step(timelines: Sequence[SpilledEvents], rank: int) -> Callable[[], Iterator[tuple[int, list[Operation]]]]:
    """The usable operations of a rank by step; only their numbers are held.

    Args:
        timelines: Files of one job.
        rank: Global rank.
    """
    import numpy as np

    blocks = [(n, columns) for n, timeline in enumerate(timelines) for columns in timeline.usable(rank)]
    held = [np.concatenate(some) for some in zip(*(columns for _, columns in blocks), strict=True)]
    files = np.concatenate([np.full(len(columns[0]), n) for n, columns in blocks]) if blocks else None

    def steps() -> Iterator[tuple[int, list[Operation]]]:
        if files is None:
            return
        # In the order of the files within each step.
        numbers = held[_STEP]
        order = np.argsort(numbers, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
            operations: list[Operation] = []
            for n in np.unique(files[rows]).tolist():
                own = rows[files[rows] == n]
                operations += timelines[n].operations_of([column[own] for column in held])
            if operations:
                yield operations[0].step, operations

    return steps


def _threads_in(table: pa.Table) -> dict[int, tuple[int, int, int, str]]:
    """Thread to DP, PP and TP rank and class of operations, from the names of threads."""
    named = {}
    rows = zip(*(table.column(key).to_pylist() for key in ("name", "called", "pid", "tid")), strict=True)
    for name, called, pid, tid in rows:
        match = _THREAD.match(called or "") if name == "thread_name" else None
        if match is not None and all(n is not None and 0 <= n < 2**31 for n in (pid, tid)):
            named[tid] = (pid, int(match[1]), int(match[2]), match[3])
    return named


def _integers(table: pa.Table, key: str, limit: int) -> Integers:
    """A column of numbers, absent where there is none or it is too far from 0."""
    import numpy as np
    import pyarrow.compute as pc

    values = pc.fill_null(table.column(key), _ABSENT).to_numpy()
    numbers: Integers = np.where((values < limit) & (values > -limit), values, _ABSENT)
    return numbers


def _number(value: int) -> int | None:
    """A number of 0 or more; -1 stands for none."""
    return value if value >= 0 else None


def _add(into: SourceReport, report: SourceReport) -> None:
    into.rows += report.rows
    into.dropped.update(report.dropped)
    into.repaired.update(report.repaired)
    into.skipped.update(report.skipped)
    into.places = report.places | into.places
