"""Exports of NVIDIA Nsight Systems: ``nsys export`` as SQLite, Arrow, Parquet or JSON lines, of any version.

A file holds one rank or all those of a host: every process that used a GPU is a source. The report itself is closed:
only NVIDIA's own tool reads it.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from tracetool.errors import MalformedTrace
from tracetool.model.notice import SourceCode
from tracetool.readers import ABSOLUTE_NS, Claim, Group, Identity, Left, Source, SourceReport, rows_table
from tracetool.readers.cann.db import companions, is_database, unmerged, whole
from tracetool.readers.nsys.capture import (
    DIAGNOSTICS,
    GRAPHS,
    NsysExport,
    ProcessSource,
    capture_of,
    communicators_of,
    is_export,
)
from tracetool.readers.nsys.comms import comm_records
from tracetool.readers.nsys.events import ProcessEvents
from tracetool.readers.nsys.forms import opened
from tracetool.readers.nsys.stored import ProcessRows, is_events_form, is_lines
from tracetool.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from tracetool.readers.nsys.stored import Stored

_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
_OTHER_FORMS = (".h5", ".hdf")
_TABLE_FILE = re.compile(r"^([A-Z][A-Z0-9_]+|StringIds|ThreadNames|ProcessStreams|UnwindMethodType)\.(arrow|parquet)$")
_FOLDER = re.compile(r"_(arw|pqt)dir$")
_LATER_VERSION = re.compile(r"^((?:CUPTI_ACTIVITY_KIND|NVTX|CUDA_GPU)_\w+?)_V\d+$")
_STREAMS = ".arrows"
_CHUNK_ROWS = 1 << 13
_SEVERE = 2


class NsysReader:
    """Reads exports of Nsight Systems; see :class:`tracetool.readers.Reader`."""

    name = "nsys"

    def find(self, files: Sequence[Path]) -> Claim:
        """Each process with a GPU in each export is one source."""
        claim = Claim()
        captures: dict[Path, NsysExport] = {}
        members: dict[Path, tuple[Path, ...]] = {}
        for path, parts in _exports(files):
            try:
                with opened(path) as stored:
                    if not is_export(stored):
                        if stored.damaged and path.suffix == ".sqlite":
                            raise stored.malformed()
                        continue
                captures[path] = capture_of(path)
            except MalformedTrace as error:
                claim.failed.append(Left(path, error.message.rstrip(".")))
                continue
            members[path] = parts
            if not captures[path].processes:
                claim.left.append(Left(path, "an export of Nsight Systems in which no process used a GPU or NCCL"))
        known = communicators_of(p for capture in captures.values() for p in capture.processes.values())
        for path, capture in captures.items():
            several = len(capture.processes) > 1
            for process in capture.processes.values():
                mine = tuple(known.values())
                claim.sources.append(
                    ProcessSource(
                        self.name, path, members[path], member=str(process.pid) if several else "", pid=process.pid,
                        rank=process.rank, communicators=mine, domains=process.domains,
                        devices=process.devices, has_device=capture.has_device,
                    )
                )  # fmt: skip
        claim.left += [Left(file, "belongs to the database") for file in companions(captures, files)
                       if not any(file in parts for parts in members.values())]  # fmt: skip
        claim.left += [Left(part, "belongs to the export") for path, parts in members.items()
                       if not captures[path].processes for part in parts if part != path]  # fmt: skip
        _refuse_reports(files, members, claim)
        return claim

    def identify(self, source: Source) -> Identity:
        """Rank and device, from what the capture says of the process."""
        capture, own = capture_of(source.path), _own(source)
        process = capture.processes[own.pid]
        groups = tuple(
            Group(c.name, "", tuple(r for r in c.ranks if r is not None))
            for c in own.communicators
            if None not in c.ranks and (own.rank is None or own.rank in c.ranks) and len(c.ranks) > 1
        )
        return Identity(
            rank=own.rank, world_size=process.world_size, groups=groups, host=process.host, device=process.gpu,
            device_name=process.gpu_name, sm_count=process.sm_count, hbm_bytes=process.hbm_bytes,
            base_ns=capture.base_ns,
        )  # fmt: skip

    def read(
        self,
        source: Source,
        rank: int,
        identity: Identity,
        keep: frozenset[str],
        report: SourceReport,
        advance: Callable[[int], None],
    ) -> Iterator[tuple[str, pa.Table]]:
        """Host and device events as they stream by, then steps, communication and memory."""
        own = _own(source)
        with opened(source.path) as stored:
            events = ProcessEvents(stored, own, rank, identity.base_ns, report)
            for rows in events.tables():
                yield "events", rows
            yield "steps", rows_table("steps", [(rank, *step, None, None) for step in events.ranges.steps])
            communicators = {c.name: c for c in own.communicators}
            posts = events.ranges.calls if events.ranges.calls.count else events.ranges.labels
            records = comm_records(posts, events.kernels, communicators, rank, report)
            for chunk in _chunks(
                (
                    rank, position, r.operation, r.group, r.group_ranks, r.peer, r.payload_bytes, r.posted_ns,
                    r.thread, r.batch, r.stream, r.start_ns, r.end_ns, r.evidence, None, r.communicator,
                )
                for position, r in enumerate(records)
            ):  # fmt: skip
                yield "comms", rows_table("comms", chunk)
            for chunk in _chunks(events.memory_rows()):
                yield "memory", rows_table("memory", chunk)
            stored.record_gaps(report)
            if report.rows == 0 and stored.damaged:
                raise stored.malformed()
            _record_limits(stored, own, report)
        advance(source.size_bytes)


READER = NsysReader()


def _own(source: Source) -> ProcessSource:
    if not isinstance(source, ProcessSource):
        raise TypeError(f"{source.path} is no source of this reader")
    return source


def _chunks(rows: Iterable[tuple[object, ...]]) -> Iterator[list[tuple[object, ...]]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK_ROWS)):
        yield chunk


def _exports(files: Sequence[Path]) -> Iterator[tuple[Path, tuple[Path, ...]]]:
    """What may be exports: databases, files of JSON lines or streams, and folders with a file per table."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for file in files:
        if _TABLE_FILE.match(file.name):
            folders[file.parent].append(file)
        elif is_database(file):
            yield file, (file, *unmerged(file))
        elif file.suffix == _STREAMS or is_lines(file):
            yield file, (file,)
    for folder, parts in folders.items():
        yield folder, tuple(sorted(parts))


def _refuse_reports(files: Sequence[Path], members: dict[Path, tuple[Path, ...]], claim: Claim) -> None:
    """Say of reports, and of forms of export that are not read, how to export them; of those that were, where."""
    stems = {path.with_suffix("") for path in members}
    stems |= {path.with_name(_FOLDER.sub("", path.name)) for path in members}
    for file in files:
        if file.suffix not in (*_REPORTS, *_OTHER_FORMS) and not is_events_form(file):
            continue
        if file.with_suffix("") in stems:
            claim.left.append(Left(file, "its export lies beside it"))
            continue
        is_report = file.suffix in _REPORTS
        report = shlex.quote(str(file if is_report else file.with_suffix(".nsys-rep")))
        what = "is a report of Nsight Systems, which only its own tool reads"
        form = "is a form of export of Nsight Systems that is not read"
        claim.failed.append(
            Left(
                file,
                f"{file} {what if is_report else form}: run "
                f"nsys export -t sqlite --include-blobs=true --include-json=true {report}",
            )
        )


def _record_limits(stored: Stored, own: ProcessSource, report: SourceReport) -> None:
    """Note what the capture hides."""
    graphs = sum(1 for _ in stored.select(GRAPHS, ("start",), ("globalPid", ProcessRows(own.pid))))
    if graphs:
        report.unread["CUDA graphs whose kernels are hidden"] += graphs
        report.note(
            SourceCode.GRAPHS_HIDDEN,
            f"{format_count(graphs, 'launch')} of CUDA graphs show as one kernel each, messages inside them not at "
            "all: record with nsys profile --cuda-graph-trace=node",
        )
    if own.devices > 1:
        report.note(
            SourceCode.DEVICES_SEVERAL,
            f"its kernels ran on {own.devices} devices: all are taken for this rank's",
        )
    if not own.has_device:
        report.note(SourceCode.PARTS_MISSING, "no kernels in the export: record with nsys profile -t cuda,nvtx")
    unknown = sorted(t for t in stored.tables if (name := _LATER_VERSION.match(t)) and name[1] not in stored.tables)
    if unknown:
        report.note(SourceCode.PARTS_MISSING, f"tables of a later version are not read: {', '.join(unknown)}")
    severe = sum((whole(severity) or 0) >= _SEVERE for (severity,) in stored.rows(DIAGNOSTICS, "severity"))
    if severe:
        report.note(
            SourceCode.PROFILER_PROBLEMS,
            f"the profiler itself reports {format_count(severe, 'problem')}: its own tool shows them",
        )
    if report.first_ns is not None and report.first_ns < ABSOLUTE_NS:
        report.note(
            SourceCode.NO_EPOCH, "its times do not count from 1970: ranks of other files cannot be aligned with it"
        )
