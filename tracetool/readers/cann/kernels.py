"""``kernel_details.csv``: one record per device task, communication operations among them.

What a rank logged that it exchanged with another member of a group.
"""

from __future__ import annotations

import itertools
import re
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tracetool.readers.cann import csv_rows, integer, lost_digits, small_integer, time_ns
from tracetool.readers.files.spill import TWICE, Repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport


@dataclass(frozen=True, slots=True)
class LoggedTraffic:
    """Bytes that a rank logged between two members of a group, counted inside the group."""

    own: int
    peer: int
    transport: str
    size_bytes: int


CHUNK_ROWS = 1 << 16
_FARTHEST = 1 << 62
KERNEL_DETAILS = "kernel_details.csv"

_REQUIRED = ("Name", "Start Time(us)", "Duration(us)")
_OPTIONAL = ("Type", "Accelerator Core", "Stream ID", "Step Id")
_COMMUNICATION_CORES = ("COMMUNICATION", "HCCL")
# Matrix products are no sign: backward passes are full of them.
_FORWARD = re.compile(r"FlashAttention|RmsNorm|LayerNorm|SwiGlu|Gelu|Softmax|RotaryPosition")


@dataclass(frozen=True, slots=True)
class CommunicationTask:
    """A communication operation as the device ran it: its times are exact.

    Attributes:
        name: Name in the trace, without the hash.
        kernel_class: Its type.
        start_ns: Start, Unix time.
        end_ns: End.
        stream: Device stream.
        hash: Hash of the communicator as text; empty if unknown, as in ``kernel_details.csv``.
        links: All its links; empty if unknown.
        linked_bytes: Bytes over HCCS, PCIe and SIO; None if unknown.
        rdma_bytes: The same over RDMA.
        notified: Ranks inside the group that it exchanged notices with.
        connection: Joins it to its launch.
    """

    name: str
    kernel_class: str | None
    start_ns: int
    end_ns: int
    stream: int | None
    hash: str = ""
    links: tuple[LoggedTraffic, ...] = ()
    linked_bytes: int | None = None
    rdma_bytes: int | None = None
    notified: tuple[int, ...] = ()
    connection: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class PhaseKernel:
    """A kernel that tells forward from backward: a gradient kernel, or one of a layer's forward pass."""

    start_ns: int
    backward: bool


def mark_of(kind: str, start_ns: int) -> PhaseKernel | None:
    """What a kernel of this type tells; None for most of them."""
    if "Grad" in kind:
        return PhaseKernel(start_ns, backward=True)
    return PhaseKernel(start_ns, backward=False) if _FORWARD.search(kind) else None


def is_communication(name: str, core: str) -> bool:
    """Whether a device task is a communication operation, by its name or the core it ran on."""
    return core in _COMMUNICATION_CORES or name.startswith("hcom_")


class _Record(NamedTuple):
    """What is read of a line."""

    name: str
    start_ns: int
    duration_ns: int
    kind: str
    core: str
    stream: int | None
    step: str

    @property
    def is_on_a_stream(self) -> bool:
        """Whether it names its stream, by a number that can be one."""
        return self.stream is not None and 0 <= self.stream < _FARTHEST


class Kernels:
    """Reads the file once; what other tables need from it is kept.

    Attributes:
        count: Kernels so far.
        tasks: Communication operations, in file order.
        marks: Kernels that tell forward from backward, in file order.
        extents: Step number to first start and last end of its records, ns.
        starts: Start of each kernel, in file order.
    """

    def __init__(self, rank: int, report: SourceReport) -> None:
        self.tasks: list[CommunicationTask] = []
        self.marks: list[PhaseKernel] = []
        self.extents: dict[int, tuple[int, int]] = {}
        self.starts = array("q")
        self._repeats = Repeats()
        self._rank = rank
        self._report = report

    def event_rows(self, path: Path, advance: Callable[[int], None]) -> Iterator[list[tuple[object, ...]]]:
        """Rows of the ``events`` table, in chunks.

        Args:
            path: The CSV file.
            advance: Called with the file bytes consumed.

        Raises:
            MalformedTrace: With the line, if the file is damaged.
        """
        rows: list[tuple[object, ...]] = []
        for name, start, duration, kind, core, stream, step in self._once(self._timed(path, advance)):
            kernel_class = None if kind in ("", "N/A") else kind
            self._extend(small_integer(step), start, start + duration)
            if is_communication(name, core):
                self.tasks.append(CommunicationTask(name, kernel_class, start, start + duration, stream))
                continue
            if mark := mark_of(kernel_class or name, start):
                self.marks.append(mark)
            rows.append(
                (
                    len(self.starts), self._rank, "kernel", name, start, duration,
                    None, stream, None, None, None, kernel_class, None, None, None,
                )
            )  # fmt: skip
            self.starts.append(start)
            if len(rows) == CHUNK_ROWS:
                yield rows
                rows = []
        yield rows

    def _timed(self, path: Path, advance: Callable[[int], None]) -> Iterator[_Record]:
        for name, start_text, duration_text, kind, core, stream_text, step in csv_rows(
            path, _REQUIRED, _OPTIONAL, advance, self._report
        ):
            self._report.rows += 1
            times = self._times(start_text, duration_text)
            if times is not None:
                start, duration = times
                yield _Record(
                    name=name, start_ns=start, duration_ns=duration, kind=kind, core=core, stream=integer(stream_text),
                    step=step,
                )  # fmt: skip

    def _once(self, records: Iterator[_Record]) -> Iterator[_Record]:
        """The records without those that the file held before: a stream runs one task at a time."""
        import numpy as np

        while chunk := list(itertools.islice(records, CHUNK_ROWS)):
            # Communication operations have names of their own, and may be listed without a stream.
            streamed = [r for r in chunk if r.duration_ns and (r.is_on_a_stream or is_communication(r.name, r.core))]
            names = self._repeats.numbers_of([r.name for r in streamed])
            numbers = np.array(
                [(r.start_ns, r.duration_ns, r.stream if r.is_on_a_stream else -1) for r in streamed], np.int64
            ).reshape(-1, 3)
            fresh = self._repeats.fresh([names, *numbers.T])
            again = {id(r) for r, is_fresh in zip(streamed, fresh.tolist(), strict=True) if not is_fresh}
            if again:
                self._report.repaired[TWICE] += len(again)
            yield from (record for record in chunk if id(record) not in again)

    def _times(self, start_text: str, duration_text: str) -> tuple[int, int] | None:
        start, duration = time_ns(start_text), time_ns(duration_text)
        if lost_digits(start_text):
            self._report.dropped["time in E notation: its digits are lost"] += 1
        elif start is None or duration is None:
            self._report.dropped["time is no number"] += 1
        elif start <= 0:
            self._report.dropped["time is zero"] += 1
        elif duration < 0:
            self._report.repaired["negative duration set to 0"] += 1
            return start, 0
        else:
            return start, duration
        return None

    def _extend(self, step: int | None, start: int, end: int) -> None:
        if step is not None:
            first, last = self.extents.get(step, (start, end))
            self.extents[step] = (min(first, start), max(last, end))
