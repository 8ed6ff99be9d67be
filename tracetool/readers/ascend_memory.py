"""``memory_record.csv``: what the allocators and the driver say of memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracetool.readers.ascend_kernels import CHUNK_ROWS
from tracetool.readers.ascend_text import MB_OF_MEMORY, csv_rows, lost_digits, scaled, time_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tracetool.readers import SourceReport


def text_memory_rows(
    path: Path, rank: int, report: SourceReport, advance: Callable[[int], None]
) -> Iterator[list[tuple[object, ...]]]:
    """Rows of the ``memory`` table, in chunks.

    Args:
        path: The CSV file.
        rank: Global rank.
        report: Told about unusable rows.
        advance: Called with the file bytes consumed.

    Raises:
        MalformedTrace: With the line, if the file is damaged.
    """
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
