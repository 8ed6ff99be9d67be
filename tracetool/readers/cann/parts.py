"""The files of one rank's folder: which there are, and who the rank is.

A rank's folder holds ``ASCEND_PROFILER_OUTPUT`` and, beside it, ``profiler_info_{rank}.json`` or
``profiler_metadata.json``. Any of the files may be absent or empty. Databases are known by their tables.
"""

from __future__ import annotations

import re
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tracetool.model.notice import SourceCode
from tracetool.readers import Claim, Group, Identity, Left, Source
from tracetool.readers.cann import csv_header, csv_rows, decoded, small_integer
from tracetool.readers.cann.comms import COMMUNICATION, MATRIX
from tracetool.readers.cann.db import companions, opened, unmerged
from tracetool.readers.cann.db_identity import (
    ANALYSIS,
    CAPTURE,
    About,
    about_capture,
    devices_of,
    kind_of,
    rank_in_name,
)
from tracetool.readers.cann.kernels import KERNEL_DETAILS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tracetool.readers import SourceReport
    from tracetool.readers.cann.db import Database

STEP_TRACE = "step_trace_time.csv"
MEMORY = "memory_record.csv"
OPERATOR_MEMORY = "operator_memory.csv"
MODULE_MEMORY = "npu_module_mem.csv"
TRACE_VIEW = "trace_view.json"
OPTIONAL = (OPERATOR_MEMORY, MODULE_MEMORY)
"""Text files that add to others: nobody misses them."""
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
# Where databases have what a text file has: one of these sets of tables.
_TABLES = {
    KERNEL_DETAILS: (("TASK", "COMPUTE_TASK_INFO"),),
    COMMUNICATION: (("COMMUNICATION_OP", "COMMUNICATION_TASK_INFO"), ("CommAnalyzerTime", "CommAnalyzerBandwidth")),
    MATRIX: (("COMMUNICATION_TASK_INFO",), ("CommAnalyzerMatrix",)),
    STEP_TRACE: (("StepTraceTime",),),
    MEMORY: (("MEMORY_RECORD",), ("NPU_MEM",), ("OP_MEMORY",), ("NPU_OP_MEM",)),
}
_WITHOUT_TABLE = {
    "COMMUNICATION_OP": "its communication is unknown, unless text files list it",
    "CANN_API": "launches are unknown",
    "PYTORCH_API": "operators of the framework are unknown",
    "STEP_TIME": "the host's marks of its steps are unknown",
    "STRING_IDS": "names are unknown",
}


def rank_folders(reader: str, files: Sequence[Path]) -> Claim:
    """One source per folder that holds the output of a rank, and per database that lies alone; and what is left.

    Args:
        reader: Name of the reader.
        files: Everything there is; nothing else is looked at.
    """
    kinds = {file: kind for file in files if (kind := kind_of(file)) is not None}
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        folders[file.parent].append(file)
    members_of: dict[Path, list[Path]] = defaultdict(list)
    others: list[Path] = []
    for folder, members in sorted(folders.items(), key=lambda item: (item[0].name != _OUTPUT, item[0])):
        databases = [f for f in members if f in kinds]
        text = any(f.name in _ANY_OF and f.stat().st_size > 0 for f in members)
        if not text and not databases:
            continue
        around = [f for f in folders.get(folder.parent, ()) if _part(f) in _BESIDE]
        inside = [f for f in members if _part(f) in _BESIDE]
        if around or (folder.name == _OUTPUT and (text or databases)):
            root, beside = folder.parent, around
        elif inside:
            root, beside = folder, inside
        else:
            continue
        output = [f for f in members if (_part(f) in _WITHOUT or f.name in OPTIONAL) and f not in beside] + databases
        members_of[root] += [f for f in sorted(output) + sorted(beside) if f not in members_of[root]]
        others += [f for f in members if f not in members_of[root] and _is_table(f)]
    taken = {file for members in members_of.values() for file in members}
    alone: list[Path] = []
    for database in sorted(file for file in kinds if file not in taken):
        roots = [folder for folder in database.parents if folder in members_of]
        (members_of[roots[0]] if roots else alone).append(database)
    sources = [Source(reader, root, _with_unmerged(parts)) for root, parts in sorted(members_of.items())]
    sources += _alone(reader, alone, kinds)
    taken = {file for source in sources for file in source.files}
    unused = [Left(f, "no table needs it") for f in sorted(others) if f not in taken]
    logs = [Left(f, "belongs to the database") for f in companions(kinds, files) if f not in taken]
    return Claim(sources, unused + logs)


def _is_table(file: Path) -> bool:
    """Whether a file is text with a header, as CSV files are."""
    header = csv_header(file)
    return len(header) > 1 and header[0][:1] not in ("{", "[")


def _alone(reader: str, databases: Sequence[Path], kinds: Mapping[Path, str]) -> list[Source]:
    """Databases of no rank's folder: each capture is a source, with the analyses that lie nearest to it."""
    members: dict[Path, list[Path]] = {file: [file] for file in databases if kinds[file] == CAPTURE}
    for file in databases:
        if kinds[file] != ANALYSIS:
            continue
        near = [c for c in members if c.parent == file.parent] or [
            c for c in members if file.parent.parent in (c.parent, c.parent.parent)
        ]
        members.setdefault(near[0] if len(near) == 1 else file, []).append(file)
    sources = []
    for database, parts in members.items():
        devices = devices_of(database) if kinds[database] == CAPTURE else []
        names = [f"device {device}" for device in devices] if len(devices) > 1 else [""]
        sources += [Source(reader, database, _with_unmerged(parts), member=name) for name in names]
    return sources


def _with_unmerged(files: Sequence[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(f for file in files for f in (file, *_changes(file))))


def _changes(file: Path) -> tuple[Path, ...]:
    return unmerged(file) if kind_of(file) is not None else ()


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

    Attributes:
        device: The only device of the source, where its database holds several.
        folder: Folder or file to name in messages.
    """

    def __init__(self, source: Source) -> None:
        self._files: dict[str, list[Path]] = defaultdict(list)
        self._empty: set[str] = set()
        self._changes: list[Path] = []
        self._about: list[About] = []
        self.folder = source.path
        self.device = small_integer(source.member.removeprefix("device ")) if source.member else None
        for file in source.files:
            part = kind_of(file) or _part(file)
            if file.stat().st_size == 0:
                self._empty.add(part)
            elif part in _WITHOUT or part in OPTIONAL or part in (CAPTURE, ANALYSIS):
                self._files[part].append(file)
            else:
                self._changes.append(file)

    def path(self, part: str) -> Path | None:
        """The file that is this part, or None if it is missing."""
        return self._files[part][0] if self._files[part] else None

    @contextmanager
    def databases(self) -> Iterator[tuple[list[Database], list[Database]]]:
        """The databases of captures and of analyses, open as long as the context lasts."""
        with ExitStack() as stack:
            captures, analyses = (
                [stack.enter_context(opened(file)) for file in self._files[kind]] for kind in (CAPTURE, ANALYSIS)
            )
            if not self._about:
                self._about = [about_capture(database) for database in captures]
            yield captures, analyses

    def identity(self) -> Identity:
        """Rank and groups from the files beside the output, the device from its tables.

        Raises:
            MalformedTrace: If one of them is damaged, or all there is is a database of which nothing can be read.
        """
        self._check()
        metadata = self._metadata()
        groups = tuple(_groups(metadata))
        everyone = max((len(g.ranks) for g in groups), default=None)
        ranks = [rank for rank in self._ranks() if rank is not None]
        device = self._device()
        about = self._captured()
        named = [a.device_names[device] for a in about if device is not None and device in a.device_names]
        return Identity(
            rank=ranks[0] if ranks else None,
            world_size=_whole(_mapping(metadata.get("distributed_args")).get("world_size")) or everyone,
            groups=groups,
            host=next((a.host for a in about if a.host), None),
            device=device,
            device_name=named[0] if named else None,
        )

    def session(self) -> tuple[int, int] | None:
        """First and last moment of the recording as a database says."""
        return next((a.session for a in self._captured() if a.session is not None), None)

    def take_beside(self, databases: Sequence[Database], report: SourceReport, advance: Callable[[int], None]) -> None:
        """Count the files beside the output and the databases as read, and say what is missing or at odds.

        Args:
            databases: All of the source, open.
            report: Gets one note for each.
            advance: Called with the bytes of the files.
        """
        for part, consequence in _WITHOUT.items():
            if part in _BESIDE:
                advance(sum(f.stat().st_size for f in self._files[part]))
            if self._files[part]:
                taken, *others = (f"{f.parent.name}/{f.name}" for f in self._files[part])
                for other in others:
                    report.note(SourceCode.FILES_LEFT_OUT, f"{other} left out: {taken} was taken")
            elif self._in_databases(part, databases) or part in self._said_elsewhere(databases):
                continue
            elif part in self._empty:
                report.note(SourceCode.PARTS_MISSING, f"{part} is empty (0 bytes), hence missing: {consequence}")
            else:
                tables = _TABLES.get(part) if self._files[CAPTURE] else None
                instead = f", and no {' with '.join(tables[0])} in a database" if tables else ""
                report.note(SourceCode.PARTS_MISSING, f"no {part}{instead}: {consequence}")
        self._record_databases(databases, report)
        advance(sum(f.stat().st_size for kind in (CAPTURE, ANALYSIS) for f in self._files[kind]))
        advance(sum(f.stat().st_size for f in self._changes))
        ranks = [rank for rank in self._ranks() if rank is not None]
        if len(set(ranks)) > 1:
            report.note(SourceCode.RANK_DISPUTED, f"its files disagree about the rank ({ranks}): the first was taken")

    def _said_elsewhere(self, databases: Sequence[Database]) -> tuple[str, ...]:
        """Files that nobody misses: what they would tell is in another one, or comes from no text export at all."""
        listed = (MEMORY,) if self._files[OPERATOR_MEMORY] else ()
        if not databases:
            return (*listed, KERNEL_DETAILS) if self._files[TRACE_VIEW] else listed
        return (*listed, TRACE_VIEW, METADATA)

    def _in_databases(self, part: str, databases: Sequence[Database]) -> bool:
        if part == INFO:
            return any(rank is not None for a in self._captured() for rank in a.ranks.values())
        if part == METADATA:
            return any("parallel_group_info" in a.metadata for a in self._captured())
        return any(
            all(table in database.tables for table in tables)
            for tables in _TABLES.get(part, ())
            for database in databases
        )

    def _record_databases(self, databases: Sequence[Database], report: SourceReport) -> None:
        captures = [d for d in databases if d.path in self._files[CAPTURE] and not d.failure]
        for table, consequence in _WITHOUT_TABLE.items():
            if captures and not any(table in d.tables for d in captures):
                report.note(SourceCode.PARTS_MISSING, f"no {table} in {captures[0].path.name}: {consequence}")
        for about in self._captured():
            if self.device is None and about.devices and not set(about.devices) & set(about.ranks or about.devices):
                report.note(
                    SourceCode.DEVICES_DISPUTED,
                    f"RANK_DEVICE_MAP says device {sorted(about.ranks)}, its tasks ran on {about.devices}: "
                    "the tasks are believed",
                )
            if self.device is None and len(about.devices) > 1:
                report.note(
                    SourceCode.DEVICES_SEVERAL,
                    f"its tasks ran on devices {about.devices}: all are taken for this rank's",
                )
        if self.device is not None:
            report.note(SourceCode.DEVICES_SEVERAL, f"only device {self.device} of the database")

    def _check(self) -> None:
        with self.databases() as (captures, analyses):
            databases = [*captures, *analyses]
            text = any(self._files[part] for part in _WITHOUT if part not in _BESIDE)
            if databases and not text and all(d.failure or not d.tables for d in databases):
                raise databases[0].malformed()

    def _captured(self) -> list[About]:
        if not self._about:
            for file in self._files[CAPTURE]:
                with opened(file) as database:
                    self._about.append(about_capture(database))
        return self._about

    def _metadata(self) -> dict[str, Any]:
        """That of the text file, completed from the databases."""
        merged: dict[str, Any] = {}
        for content in (self._content(METADATA), *(a.metadata for a in self._captured())):
            merged = {**content, **merged}
        return merged

    def _ranks(self) -> tuple[int | None, ...]:
        """What rank_id, the databases, the framework and the file names say, best first."""
        path = self.path(INFO)
        match = _INFO_NAME.match(path.name) if path is not None else None
        framework = _mapping(self._metadata().get("distributed_args")).get("rank") if self.device is None else None
        mapped = [self._mapped(about) for about in self._captured()]
        said = [
            _whole(r) for r in (self._content(INFO).get("rank_id"), *mapped, framework, match[1] if match else None)
        ]
        return (*said, *(rank_in_name(file) for file in self._files[CAPTURE] if self.device is None))

    def _mapped(self, about: About) -> int | None:
        if self.device is not None:
            return about.ranks.get(self.device)
        ranks = {rank for rank in about.ranks.values() if rank is not None}
        return ranks.pop() if len(ranks) == 1 else None

    def _content(self, part: str) -> dict[str, Any]:
        path = self.path(part)
        return {} if path is None else decoded(path, dict[str, Any], nobody)

    def _device(self) -> int | None:
        if self.device is not None:
            return self.device
        for about in self._captured():
            mapped = [device for device in about.devices if device in about.ranks]
            devices = mapped or about.devices or sorted(about.ranks)
            if devices:
                return devices[0]
        for part in (KERNEL_DETAILS, STEP_TRACE):
            path = self.path(part)
            if path is not None:
                device = small_integer(next(csv_rows(path, (), ("Device_id",), nobody), ("",))[0])
                if device is not None:
                    return device
        return None


def nobody(count: int) -> None:
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
