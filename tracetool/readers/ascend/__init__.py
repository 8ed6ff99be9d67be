"""Output of torch_npu's profiler as text or as SQLite databases: one folder per rank, or one database.

A rank's folder holds ``ASCEND_PROFILER_OUTPUT`` and, beside it, ``profiler_info_{rank}.json`` or
``profiler_metadata.json``. Each file may be absent or empty: what is unknown then is said in the report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.model.notice import SourceCode
from tracetool.readers import Claim, Identity, Source, SourceReport, rows_table
from tracetool.readers.ascend.choice import ChosenFiles
from tracetool.readers.cann import small_integer, time_ns
from tracetool.readers.cann.messages import MessageFinder, comm_rows
from tracetool.readers.cann.parts import Parts, rank_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers.cann.comms import CommOperation


_INFERRED_FROM = "waits, usual sizes and the computing beside them"


class AscendReader:
    """Reads output of torch_npu, MindSpore and msprof; see :class:`tracetool.readers.Reader`."""

    name = "ascend"

    def find(self, files: Sequence[Path]) -> Claim:
        """Each folder of a rank is one source, whatever it is called, and each database that lies alone."""
        return rank_folders(self.name, files)

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
        with parts.databases() as (captures, analyses):
            databases = [*captures, *analyses]
            parts.take_beside(databases, report, advance)
            choice = ChosenFiles(parts, captures, analyses, report, advance)
            for events in choice.event_tables(rank, keep):
                yield "events", events
            operations, matrix = choice.operations(identity.groups)
            messages = MessageFinder(rank, operations, choice.marks, matrix.totals)
            yield "comms", rows_table("comms", comm_rows(rank, operations, messages, _INFERRED_FROM, report))
            extents = choice.extents()
            if not extents and (extents := _extents(operations)):
                report.note(
                    SourceCode.STEPS_INFERRED, "its steps last from the first to the last communication operation only"
                )
            yield "steps", rows_table("steps", _step_rows(choice.vendor_steps(), rank, extents, report))
            for rows in choice.memory_rows(rank):
                yield "memory", rows_table("memory", rows)
            for database in databases:
                database.record_gaps(report)
            if report.rows == 0 and (damaged := [d for d in databases if d.damaged]):
                raise damaged[0].malformed()


READER = AscendReader()


def _extents(operations: Sequence[CommOperation]) -> dict[int, tuple[int, int]]:
    extents: dict[int, tuple[int, int]] = {}
    for operation in operations:
        if operation.step is not None:
            first, last = extents.get(operation.step, (operation.start_ns, operation.end_ns))
            extents[operation.step] = (min(first, operation.start_ns), max(last, operation.end_ns))
    return extents


def _step_rows(
    records: Iterable[tuple[str, str, str]], rank: int, extents: dict[int, tuple[int, int]], report: SourceReport
) -> list[tuple[object, ...]]:
    vendor: dict[int, tuple[int | None, int | None]] = {}
    unnamed = "row of the vendor's steps without a step"
    for text, bubble, computing in records:
        report.rows += 1
        step = small_integer(text)
        if step is None:
            report.skipped[unnamed] += 1
        elif step not in extents:
            report.dropped["step without operations: nothing tells when it was"] += 1
        elif step in vendor:
            report.dropped["step listed twice"] += 1
        else:
            vendor[step] = (time_ns(bubble), time_ns(computing))
    if blank := report.skipped[unnamed]:
        report.note(
            SourceCode.STEPS_UNNAMED, f"{blank} rows of the vendor's steps name no step: recorded without a schedule"
        )
    return [(rank, step, start, end, *vendor.get(step, (None, None))) for step, (start, end) in sorted(extents.items())]
