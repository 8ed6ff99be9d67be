"""Text output of torch_npu for Ascend devices: one folder per rank.

A rank's folder holds ``ASCEND_PROFILER_OUTPUT`` and, beside it, ``profiler_info_{rank}.json`` or
``profiler_metadata.json``. Each file may be absent or empty: what is unknown then is said in the report.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from tracetool.readers import Finding, Identity, Source, SourceReport, rows_table
from tracetool.readers.ascend_comms import (
    COMMUNICATION,
    MATRIX,
    Matrix,
    Operation,
    collective_bytes,
    join,
    read_communication,
    read_matrix,
)
from tracetool.readers.ascend_kernels import CHUNK_ROWS, KERNEL_DETAILS, Kernels
from tracetool.readers.ascend_messages import BATCH, INFERRED, P2P, UNKNOWN, Message, Messages
from tracetool.readers.ascend_parts import MEMORY, STEP_TRACE, Parts, rank_folders
from tracetool.readers.ascend_text import (
    MB_OF_MEMORY,
    csv_rows,
    lost_digits,
    scaled,
    small_integer,
    time_ns,
)
from tracetool.readers.ascend_view import TRACE_VIEW, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa


class AscendReader:
    """Reads torch_npu text output; see :class:`tracetool.readers.Reader`."""

    name = "ascend"

    def find(self, files: Sequence[Path]) -> Finding:
        """Each folder of a rank is one source, whatever it is called."""
        return Finding(rank_folders(self.name, files))

    def identify(self, source: Source) -> Identity:
        """Rank and groups from the files beside the output, the device from its tables."""
        return Parts(source).identity()

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Kernels first, then what is known only together with them."""
        parts = Parts(source)
        parts.take_beside(report, advance)
        kernels = Kernels(rank, report)
        if (path := parts.path(KERNEL_DETAILS)) is not None:
            for rows in kernels.event_rows(path, advance):
                yield "events", rows_table("events", rows)
        if (path := parts.path(TRACE_VIEW)) is not None:
            for rows in View(path, rank, report, advance).event_rows(kernels):
                yield "events", rows_table("events", rows)
        path = parts.path(COMMUNICATION)
        listed = read_communication(path, report, advance) if path is not None else []
        path = parts.path(MATRIX)
        matrix = read_matrix(path, report, advance) if path is not None else Matrix()
        operations = join(kernels.tasks, listed, matrix, identity.groups, report)
        messages = Messages(rank, operations, kernels.marks, matrix.totals)
        yield "comms", rows_table("comms", _comm_rows(rank, operations, messages, report))
        extents = kernels.extents or _extents(operations)
        if extents and not kernels.extents:
            report.notes.append("its steps last from the first to the last communication operation only")
        path = parts.path(STEP_TRACE)
        yield "steps", rows_table("steps", _step_rows(path, rank, extents, report, advance))
        if (path := parts.path(MEMORY)) is not None:
            for rows in _memory_rows(path, rank, report, advance):
                yield "memory", rows_table("memory", rows)


READER = AscendReader()


def _comm_rows(
    rank: int, operations: Sequence[Operation], messages: Messages, report: SourceReport
) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    batches: dict[str, list[Message]] = defaultdict(list)
    sent_or_received: list[Message] = []
    for batch, operation in enumerate(operations):
        if operation.operation in P2P:
            carried = messages.of(operation)
            sent_or_received += carried
            if operation.operation == BATCH:
                batches[operation.group_name] += carried
        else:
            size = collective_bytes(operation)
            carried = [Message(operation.operation, None, size, UNKNOWN if size is None else INFERRED)]
        ranks = list(operation.group.ranks) if operation.group is not None else []
        rows += [
            (
                rank, len(rows) + number, m.operation, operation.group_name, ranks, m.peer, m.payload_bytes,
                operation.start_ns, None, batch, operation.stream, operation.start_ns, operation.end_ns,
                m.evidence, None,
            )
            for number, m in enumerate(carried)
        ]  # fmt: skip
    messages.check(batches, report)
    for evidence, meaning in (
        (INFERRED, "inferred from waits, usual sizes and the computing beside them"),
        (UNKNOWN, "unknown"),
    ):
        count = sum(m.evidence == evidence for m in sent_or_received)
        if count:
            report.notes.append(f"direction, peer or bytes of {count} messages are {meaning}")
    return rows


def _extents(operations: Sequence[Operation]) -> dict[int, tuple[int, int]]:
    extents: dict[int, tuple[int, int]] = {}
    for operation in operations:
        if operation.step is not None:
            first, last = extents.get(operation.step, (operation.start_ns, operation.end_ns))
            extents[operation.step] = (min(first, operation.start_ns), max(last, operation.end_ns))
    return extents


def _step_rows(
    path: Path | None,
    rank: int,
    extents: dict[int, tuple[int, int]],
    report: SourceReport,
    advance: Callable[[int], None],
) -> list[tuple[object, ...]]:
    vendor: dict[int, tuple[int | None, int | None]] = {}
    records = csv_rows(path, ("Step",), ("Bubble", "Computing"), advance, report) if path is not None else ()
    for text, bubble, computing in records:
        report.rows += 1
        step = small_integer(text)
        if step is None:
            report.skipped[f"row of {STEP_TRACE} without a step"] += 1
        elif step not in extents:
            report.dropped["step without operations: nothing tells when it was"] += 1
        elif step in vendor:
            report.dropped["step listed twice"] += 1
        else:
            vendor[step] = (time_ns(bubble), time_ns(computing))
    blank = report.skipped[f"row of {STEP_TRACE} without a step"]
    if blank:
        report.notes.append(f"{blank} rows of {STEP_TRACE} name no step: recorded without a schedule")
    return [(rank, step, start, end, *vendor.get(step, (None, None))) for step, (start, end) in sorted(extents.items())]


def _memory_rows(
    path: Path, rank: int, report: SourceReport, advance: Callable[[int], None]
) -> Iterator[list[tuple[object, ...]]]:
    rows: list[tuple[object, ...]] = []
    columns = ("Total Allocated(MB)", "Total Reserved(MB)")
    for component, time, allocated, reserved in csv_rows(
        path, ("Component", "Timestamp(us)", *columns), (), advance, report
    ):
        report.rows += 1
        time_of_change = time_ns(time)
        if lost_digits(time):
            report.dropped["time in E notation: its digits are lost"] += 1
        elif time_of_change is None or time_of_change <= 0:
            report.dropped["memory time is no number"] += 1
        else:
            sizes = (scaled(allocated, MB_OF_MEMORY), scaled(reserved, MB_OF_MEMORY))
            rows.append((rank, component, time_of_change, None, *sizes))
        if len(rows) == CHUNK_ROWS:
            yield rows
            rows = []
    yield rows
