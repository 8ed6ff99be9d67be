"""The files of one rank's folder: which there are, and who the rank is.

A rank's folder holds ``ASCEND_PROFILER_OUTPUT`` and, beside it, ``profiler_info_{rank}.json`` or
``profiler_metadata.json``. Any of the files may be absent or empty.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tracetool.readers import Group, Identity, Source
from tracetool.readers.ascend_comms import COMMUNICATION, MATRIX
from tracetool.readers.ascend_kernels import KERNEL_DETAILS
from tracetool.readers.ascend_text import csv_rows, decoded, small_integer
from tracetool.readers.ascend_view import TRACE_VIEW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tracetool.readers import SourceReport

STEP_TRACE = "step_trace_time.csv"
MEMORY = "memory_record.csv"
METADATA = "profiler_metadata.json"
INFO = "profiler_info_{rank}.json"

_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_ANY_OF = (KERNEL_DETAILS, COMMUNICATION, STEP_TRACE, TRACE_VIEW)
_BESIDE = (INFO, METADATA)
_INFO_NAME = re.compile(r"^profiler_info(?:_(\d+))?\.json$")
_WITHOUT = {
    KERNEL_DETAILS: "compute of this rank is unknown",
    COMMUNICATION: "bytes and waits of its communication are unknown",
    MATRIX: "links of its communication are unknown",
    STEP_TRACE: "the vendor's times of its steps are unknown",
    MEMORY: "memory of this rank is unknown",
    TRACE_VIEW: "what its host did is unknown",
    METADATA: "its process groups are unknown",
    INFO: "its rank is taken from elsewhere",
}


def rank_folders(reader: str, files: Sequence[Path]) -> list[Source]:
    """One source per folder that holds the output of a rank.

    Args:
        reader: Name of the reader.
        files: Everything there is; nothing else is looked at.
    """
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    found: dict[Path, list[Path]] = defaultdict(list)
    for folder, members in sorted(folders.items(), key=lambda item: (item[0].name != _OUTPUT, item[0])):
        if not any(f.name in _ANY_OF and f.stat().st_size > 0 for f in members):
            continue
        around = [f for f in folders.get(folder.parent, ()) if _part(f) in _BESIDE]
        inside = [f for f in members if _part(f) in _BESIDE]
        if around or folder.name == _OUTPUT:
            root, beside = folder.parent, around
        elif inside:
            root, beside = folder, inside
        else:
            continue
        output = [f for f in members if _part(f) in _WITHOUT and f not in beside]
        found[root] += [f for f in sorted(output) + sorted(beside) if f not in found[root]]
    return [Source(reader, root, tuple(parts)) for root, parts in sorted(found.items())]


def is_beside(file: Path) -> bool:
    """Whether a file is named like those that the framework's profiler writes beside its output."""
    return _part(file) in _BESIDE


def holds_output(folder: Path) -> bool:
    """Whether :func:`rank_folders` would take the files of a folder, looked up on disk."""
    try:
        if not any((f := folder / name).is_file() and f.stat().st_size > 0 for name in _ANY_OF):
            return False
        return folder.name == _OUTPUT or any(is_beside(f) for near in (folder, folder.parent) for f in near.iterdir())
    except OSError:
        return False


class Parts:
    """The files of a source by what they are; files of zero bytes count as missing.

    Args:
        source: What :func:`rank_folders` found.
    """

    def __init__(self, source: Source) -> None:
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._empty: set[str] = set()
        for file in source.files:
            part = _part(file)
            if file.stat().st_size == 0:
                self._empty.add(part)
            else:
                self._files[part].append(file)

    def path(self, part: str) -> Path | None:
        """The file that is this part, or None if it is missing."""
        return self._files[part][0] if self._files[part] else None

    def identity(self) -> Identity:
        """Rank and groups from the files beside the output, the device from its tables.

        Raises:
            MalformedTrace: If one of them is damaged.
        """
        metadata = self._content(METADATA)
        groups = tuple(_groups(metadata))
        everyone = max((len(g.ranks) for g in groups), default=1)
        ranks = [rank for rank in self._ranks() if rank is not None]
        return Identity(
            rank=ranks[0] if ranks else None,
            world_size=_whole(_mapping(metadata.get("distributed_args")).get("world_size")) or everyone,
            groups=groups,
            device=self._device(),
        )

    def take_beside(self, report: SourceReport, advance: Callable[[int], None]) -> None:
        """Count the files beside the output as read, and say what is missing or at odds.

        Args:
            report: Gets one note for each.
            advance: Called with the bytes of the files.
        """
        for part, consequence in _WITHOUT.items():
            if part in _BESIDE:
                advance(sum(f.stat().st_size for f in self._files[part]))
            if self._files[part]:
                taken, *others = (f"{f.parent.name}/{f.name}" for f in self._files[part])
                report.notes += [f"{other} left out: {taken} was taken" for other in others]
            elif part in self._empty:
                report.notes.append(f"{part} is empty (0 bytes), hence missing: {consequence}")
            else:
                report.notes.append(f"no {part}: {consequence}")
        ranks = [rank for rank in self._ranks() if rank is not None]
        if len(set(ranks)) > 1:
            report.notes.append(f"its files disagree about the rank ({ranks}): the first was taken")

    def _ranks(self) -> tuple[int | None, ...]:
        """What rank_id, the framework and the file name say, best first."""
        path = self.path(INFO)
        match = _INFO_NAME.match(path.name) if path is not None else None
        framework = _mapping(self._content(METADATA).get("distributed_args")).get("rank")
        said = (self._content(INFO).get("rank_id"), framework, match[1] if match else None)
        return tuple(_whole(rank) for rank in said)

    def _content(self, part: str) -> dict[str, Any]:
        path = self.path(part)
        return {} if path is None else decoded(path, dict[str, Any], _nobody)

    def _device(self) -> int | None:
        for part in (KERNEL_DETAILS, STEP_TRACE):
            path = self.path(part)
            if path is not None:
                device = small_integer(next(csv_rows(path, (), ("Device_id",), _nobody), ("",))[0])
                if device is not None:
                    return device
        return None


def _nobody(count: int) -> None:
    """Bytes that are read ahead are shown to nobody: they are counted when they are read again."""


def _part(file: Path) -> str:
    return INFO if _INFO_NAME.match(file.name) else file.name


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    """A number of 0 or more that old releases write as such and new ones as text."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return small_integer(str(value))


def _groups(metadata: dict[str, Any]) -> Iterator[Group]:
    for name, entry in _mapping(metadata.get("parallel_group_info")).items():
        about = _mapping(entry)
        listed = about.get("global_ranks")
        ranks = [_whole(r) for r in listed] if isinstance(listed, list) else []
        yield Group(name, str(about.get("group_name", "")), tuple(r for r in ranks if r is not None))
