"""Trees that the ``msprof`` command leaves: one source per device, and what is left and why.

New output lies beside ``device_N`` and ``host`` in one folder, old output inside ``device_N``; folders may have
any name. torch_npu's folders hold such a tree too: it is read only where nothing better was made of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tracetool.readers import Claim, Left, Source
from tracetool.readers.cann.parts import holds_output, is_beside
from tracetool.readers.cann.text import csv_header, csv_rows, small_integer
from tracetool.readers.msprof.capture import configuration, is_configuration, is_rank_table
from tracetool.readers.msprof.files import OP_SUMMARY, STATISTICS, TASK_TIME, TIMELINE, TableFile, part_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

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
