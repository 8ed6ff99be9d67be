"""Which table a file of the ``msprof`` command is, by its columns or tracks; exports and slices of one table.

Names only order files: ``X_{dev}_{model}_{iter}`` (to CANN 6.3, one file per iteration) or ``X_{time}``, where
a large X goes on as ``X_slice_{n}_{time}``. Every slice has its own time, so a new export begins where n does
not grow.

Trees that the ``msprof`` command leaves: one source per device, and what is left and why.

New output lies beside ``device_N`` and ``host`` in one folder, old output inside ``device_N``; folders may have
any name. torch_npu's folders hold such a tree too: it is read only where nothing better was made of it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers import Claim, Left, Source
from tracetool.readers.cann import csv_header, csv_rows, small_integer
from tracetool.readers.cann.parts import holds_output, is_beside
from tracetool.readers.chrome.members import lists_traces
from tracetool.readers.files import HEAD_BYTES, ByteStream
from tracetool.readers.msprof.capture import configuration, is_configuration, is_rank_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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


def _first_sign(head: bytes) -> bytes:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]


def _table_of(path: Path) -> str | None:
    stream = ByteStream(path)
    if _first_sign(stream.head(HEAD_BYTES)) == b"{":
        return None
    head = stream.head(_HEAD_BYTES)
    start = _first_sign(head)
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


_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_DATABASES = ("ascend_pytorch_profiler*.db", "ascend_mindspore_profiler*.db")
# Timelines of one capture; any other name may be another capture's.
_STEMS = ("msprof", "task_time", "hccl", "step_trace")
_OLD_FOLDERS = ("timeline", "summary")
_NAMES_A_DEVICE = (STATISTICS, TASK_TIME, OP_SUMMARY)


@dataclass(slots=True)
class _Tree:
    """The files of one output, and of the capture that it was made of."""

    root: Path
    parts: list[TableFile] = field(default_factory=list)
    beside: list[Path] = field(default_factory=list)


def trees(reader: str, files: Sequence[Path]) -> Claim:
    """One source per device of each tree.

    Args:
        reader: Name of the reader.
        files: Everything there is.
    """
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    configured = {folder for folder, members in folders.items() if any(is_configuration(f) for f in members)}
    tree_of: dict[Path, _Tree] = {}
    for folder, members in sorted(folders.items()):
        parts = [] if holds_output(folder) else [p for f in sorted(members) if (p := part_of(f)) is not None]
        if any(p.table != STATISTICS for p in parts):
            root = _root(folder, configured)
            tree_of.setdefault(root, _Tree(root)).parts += parts
    finding = Claim()
    for root, tree in tree_of.items():
        if (reason := _better_beside(root.parent if root in configured else root)) is not None:
            finding.left.append(Left(root, reason))
            continue
        tree.beside = _beside(root, folders, configured)
        # The whole capture's folder: its name may hold the rank.
        path = root.parent if root in configured and root.parent.name else root
        finding.sources += _sources(reader, path, tree)
    finding.left += _unparsed(configured, tree_of, folders)
    return finding


def _root(folder: Path, configured: set[Path]) -> Path:
    if folder in configured:
        return folder
    parent = folder.parent
    if parent in configured or folder.name in _OLD_FOLDERS:
        return parent
    return parent if any(other.parent == parent for other in configured) else folder


def _sources(reader: str, path: Path, tree: _Tree) -> list[Source]:
    alone = [p for p in tree.parts if not tree.beside and p.table == TIMELINE and p.stem not in _STEMS]
    sources = [Source(reader, part.path, (part.path,)) for part in alone]
    parts = [p for p in tree.parts if p not in alone]
    if any(p.table != STATISTICS for p in parts):
        paths = (*sorted({p.path for p in parts}), *tree.beside)
        members = ["" if device is None else f"device {device}" for device in _devices(parts, tree.beside)]
        sources += [Source(reader, path, paths, member) for member in members]
    return sources


def _devices(parts: Sequence[TableFile], beside: Iterable[Path]) -> list[int | None]:
    said = {c.device for f in beside if (c := configuration(f)) is not None and c.kind == "info.json"}
    named = {p.numbers[0] for p in parts if len(p.numbers) > 1 or (p.numbers and p.time)}
    listed = {device for device in said if device is not None} or named or _listed_devices(parts)
    return [*sorted(listed)] if listed else [None]


def _listed_devices(parts: Iterable[TableFile]) -> set[int]:
    """Devices of the smallest table that names them all."""
    tables = [p.path for p in parts if p.table in _NAMES_A_DEVICE and "Device_id" in csv_header(p.path)]
    if not tables:
        return set()
    smallest = min(tables, key=lambda path: path.stat().st_size)
    devices = {small_integer(device) for (device,) in csv_rows(smallest, ("Device_id",), (), _nobody)}
    return {device for device in devices if device is not None}


def _beside(root: Path, folders: Mapping[Path, list[Path]], configured: set[Path]) -> list[Path]:
    """Configuration of the devices and of the host, what the framework wrote beside the tree, and rank tables."""
    hosts = {root, root.parent / "host"} if root in configured else {root}
    near = [folder for folder in configured if folder in hosts or (folder.parent == root and root not in configured)]
    own = [f for folder in sorted(near) for f in sorted(folders[folder]) if is_configuration(f)]
    around = [*folders.get(root, ()), *folders.get(root.parent, ()), *folders.get(root.parent.parent, ())]
    framework = [f for folder in (root.parent, root.parent.parent) for f in folders.get(folder, ()) if is_beside(f)]
    return own + sorted(framework) + sorted(f for f in around if is_rank_table(f))


def _unparsed(
    configured: Iterable[Path], parsed: Mapping[Path, _Tree], folders: Mapping[Path, list[Path]]
) -> list[Left]:
    """Captures of which nothing was exported: whole trees, or single devices of one exported by device."""
    left: dict[Path, Left] = {}
    for folder in sorted(configured):
        root = folder.parent
        read = [c for f in folders[folder] if (c := configuration(f)) is not None]
        if not read or root in left or root in parsed or folder in parsed or _has_database(root):
            continue
        by_device = any(tree.parent == root and tree in configured for tree in parsed)
        if by_device and all(c.device is None for c in read):
            continue
        reason = _better_beside(root)
        if reason is None and _beside_in(root.parent):
            reason = f"not parsed yet; run in Python: torch_npu.profiler.profiler.analyse({str(root.parent)!r})"
        place = folder if by_device else root
        left[place] = Left(place, reason or f"not parsed yet; run: msprof --export=on --output={root}")
    return list(left.values())


def _beside_in(folder: Path) -> bool:
    """Whether the framework's profiler made a folder."""
    return any(f.name == "FRAMEWORK" or is_beside(f) for f in _listing(folder))


def _better_beside(prof: Path) -> str | None:
    """Why a tree inside a framework's folder is left: the framework's own output of it is there."""
    made = _beside_in(prof.parent)
    for folder in (f for f in _listing(prof.parent) if f.is_dir() and f != prof):
        if not made and folder.name != _OUTPUT:
            continue
        databases = [f for pattern in _DATABASES for f in folder.glob(pattern)]
        if holds_output(folder) or any(f.stat().st_size for f in databases):
            return f"{folder.name} beside it holds the same, with ranks and steps: that is read"
    return None


def _has_database(prof: Path) -> bool:
    """Whether the capture was exported as a database, which is another reader's."""
    places = (prof, *(f for f in _listing(prof) if f.is_dir()))
    return any(f.name.startswith("msprof") and f.suffix == ".db" for place in places for f in _listing(place))


def _listing(folder: Path) -> list[Path]:
    """What is in a folder; nothing if it must not be looked at."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _nobody(count: int) -> None:
    """Bytes that are read ahead are shown to nobody: they are counted when they are read again."""
