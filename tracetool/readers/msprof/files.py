"""Which table a file of the ``msprof`` command is, by its columns or tracks; exports and slices of one table.

Names only order files: ``X_{dev}_{model}_{iter}`` (to CANN 6.3, one file per iteration) or ``X_{time}``, where
a large X goes on as ``X_slice_{n}_{time}``. Every slice has its own time, so a new export begins where n does
not grow.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracetool.readers.cann.text import csv_header
from tracetool.readers.chrome.bounds import lists_traces
from tracetool.readers.files.byte_stream import ByteStream

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

OP_SUMMARY = "op_summary"
TASK_TIME = "task_time"
STEP_TRACE = "step_trace"
MEMORY = "memory_record"
DEVICE_MEMORY = "npu_mem"
RANGES = "msprof_tx"
STATISTICS = "statistics"
TIMELINE = "timeline"

_HEAD_BYTES = 1 << 16
_ANY_OF = {
    OP_SUMMARY: ({"Op Name", "Task Duration(us)"},),
    TASK_TIME: ({"kernel_name", "kernel_type", "task_start(us)", "task_time(us)"},),
    STEP_TRACE: ({"Iteration ID", "Iteration End(us)", "Iteration Time(us)"},),
    MEMORY: (
        {"Component", "Timestamp(us)", "Total Allocated(KB)"},
        {"Component", "Timestamp(us)", "Total Allocated(MB)"},
    ),
    DEVICE_MEMORY: ({"event", "hbm(KB)", "timestamp(us)"}, {"event", "hbm(MB)", "timestamp(us)"}),
    RANGES: ({"event_type", "Start_time(us)", "End_time(us)", "message"},),
    STATISTICS: ({"Level", "API Name"}, {"OP Type", "Count", "Total Time(us)"}),
}
_TRACK = re.compile(
    rb'"process_name".{0,200}?"name"\s*:\s*"(Ascend Hardware|Task Scheduler|CANN|HCCL|Communication|Step Trace)"',
    re.DOTALL,
)
# What torch's own profiler writes beside its ops, and torch_npu does not.
_TORCH = re.compile(rb'"External id"|"cat"\s*:\s*"(kernel|cuda_runtime|cuda_driver|gpu_\w+|xpu_runtime|ac2g)"')
_NAME = re.compile(
    r"^(?P<stem>.*?)(?P<numbers>(?:_\d{1,10})*?)(?:_slice_(?P<slice>\d+))?(?:_(?P<time>\d{14}))?\.\w+(?:\.gz|\.zst)?$"
)


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table.

    Attributes:
        path: The file.
        table: What it is.
        stem: Its name without numbers.
        numbers: Device, model and iteration that the name has, as far as it has them.
        slice: Which slice, from 0.
        time: When it was exported, as digits that sort.
    """

    path: Path
    table: str
    stem: str
    numbers: tuple[int, ...]
    slice: int
    time: str


def part_of(path: Path) -> TableFile | None:
    """What a file is, or None if it is none of msprof's."""
    table = _table_of(path)
    if table is None:
        return None
    match = _NAME.match(path.name)
    if match is None:
        return TableFile(path, table, path.stem, (), 0, "")
    numbers = tuple(int(n) for n in match["numbers"].split("_") if n)
    return TableFile(path, table, match["stem"], numbers, int(match["slice"] or 0), match["time"] or "")


def latest(parts: Iterable[TableFile]) -> tuple[list[list[TableFile]], list[TableFile]]:
    """The newest export of each file, its slices in order; and the parts of older exports.

    Args:
        parts: Parts of one table.
    """
    same: dict[tuple[str, tuple[int, ...]], list[TableFile]] = defaultdict(list)
    for part in parts:
        same[part.stem, part.numbers].append(part)
    newest: list[list[TableFile]] = []
    older: list[TableFile] = []
    for _, of_file in sorted(same.items()):
        exports = _exports(of_file)
        newest.append(exports[-1])
        older += [part for export in exports[:-1] for part in export]
    return newest, older


def _exports(parts: Sequence[TableFile]) -> list[list[TableFile]]:
    exports: list[list[TableFile]] = []
    for part in sorted(parts, key=lambda p: (p.time, p.slice)):
        if exports and part.slice > exports[-1][-1].slice:
            exports[-1].append(part)
        else:
            exports.append([part])
    return exports


def _table_of(path: Path) -> str | None:
    head = ByteStream(path).head(_HEAD_BYTES)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"[":
        if lists_traces(head):
            return None
        if _TRACK.search(head):
            return TIMELINE
        return TIMELINE if b'"ph"' in head and b'"cpu_op"' in head and not _TORCH.search(head) else None
    if start in (b"", b"{") or b"," not in head or b"\0" in head.partition(b"\n")[0]:
        return None
    columns = set(csv_header(path))
    return next((table for table, choices in _ANY_OF.items() if any(c <= columns for c in choices)), None)
